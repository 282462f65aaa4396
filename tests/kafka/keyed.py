"""Compacted topics of a real broker, backed up as generations: how tests write, clean, back up and look."""

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import Generation
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.verify import VerifyReport, verify
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.contract.run import RunResult
from logkeep_engine.log.batch import walk
from logkeep_engine.log.records import decode
from logkeep_engine.storage import Storage, open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.data.topics import create_topic
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec

Contents = dict[bytes, bytes]

CLEANED_SOON = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "segment.ms": "100",
    "max.compaction.lag.ms": "100",
}


def wait_until_cleaned_away(broker: KafkaBroker, topic: str, keys: Collection[str], roll: Callable[[], None]) -> None:
    """Roll the active segment of partition 0 by one more record of another key, which `roll` writes, until the log has
    nothing of these keys, nor a tombstone."""
    wanted = {key.encode() for key in keys}

    def gone() -> bool:
        roll()
        try:
            return not wanted & _keys_on_disk(broker, topic)
        except FileNotFoundError:  # the cleaner has just replaced the file
            return False

    wait_until(gone, 120, f"the cleaner to remove {keys} from {topic}")


def _keys_on_disk(broker: KafkaBroker, topic: str) -> set[bytes | None]:
    logs = [file.read_bytes() for file in (broker.data_dir / f"{topic}-0").glob("*.log")]
    return {
        record.key for log in logs for at, header in walk(log) if not header.is_control for record in decode(log, at)
    }


def contents(records: Mapping[int, tuple[bytes | None, bytes | None]]) -> Contents:
    """The last value of each key, in the order of offsets; a tombstone takes the key away."""
    found: Contents = {}
    for _, (key, value) in sorted(records.items()):
        assert key is not None
        found.pop(key, None)
        if value is not None:
            found[key] = value
    return found


def archived_contents(storage: Storage, topic: str) -> Contents:
    """The contents that a restore of the archive gives, by key."""
    state = view.choose(Archive.open(storage)).state
    found: dict[int, tuple[bytes | None, bytes | None]] = {}
    for key, entries in state.segments.items():
        if state.topics[key[0]].name == topic:
            for records in open_partition(storage, topic, list(entries), state.kept(*key)).records():
                for record in records:
                    assert record.offset not in found
                    found[record.offset] = record.key, record.value
    return contents(found)


class Keyed:
    """A compacted topic of one partition, and its backups into a folder."""

    def __init__(self, broker: KafkaBroker, topic: str, root: Path, format_name: str = "Kafka", **config: str) -> None:
        self.broker, self.topic, self.root = broker, topic, root
        settings = {key.replace("_", "."): value for key, value in config.items()}
        create_topic(broker.bootstrap, topic, 1, {**CLEANED_SOON, **settings})
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        self.format = format_name
        self._runs = 0

    def put(self, values: Mapping[str, str | None]) -> None:
        """Write these keys, None: a tombstone."""
        for key, value in values.items():
            self.producer.produce(self.topic, None if value is None else value.encode(), key.encode(), 0)
        assert self.producer.flush(60) == 0

    def clean(self) -> None:
        """Let the cleaner run over all that is there."""
        time.sleep(0.12)  # the age at which the segment is rolled by the next record
        self.put({"last": "one"})
        self.broker.wait_until_cleaned(self.topic)

    def clean_until_gone(self, offset: int) -> None:
        """Let the cleaner run until the record at this offset is gone, be it a tombstone."""

        def gone() -> bool:
            self.clean()
            return all(record[0] != offset for record in committed(self.broker, self.topic))

        wait_until(gone, 60, f"the cleaner to remove offset {offset}")

    @property
    def live(self) -> Contents:
        """The contents of the topic now, by key."""
        return contents({record[0]: (record[1], record[2]) for record in committed(self.broker, self.topic)})

    def spec(self, cycle: str = "7d", **more: Any) -> dict[str, Any]:
        own = {"compactedTopics": "Generations", "generations": {"cycle": cycle}, "format": self.format}
        return backup_spec(self.broker, self.root, self.topic, **{**own, **more})

    def back_up(self, *, again: bool = False, run_id: str = "", **more: Any) -> RunResult:
        """A run; `again`: a new generation is due."""
        return back_up(self._spec(again, more), run_id or self._next())

    def _spec(self, again: bool, more: Mapping[str, Any]) -> dict[str, Any]:
        if again:
            self.wait_for_the_cycle()
        return self.spec("1s" if again else "7d", **more)

    def _next(self) -> str:
        self._runs += 1
        return f"run-{self._runs}"

    def wait_for_the_cycle(self) -> None:
        """Wait until the active generation began longer ago than the shortest cycle."""
        began = max(self.generation.began, 0) or min(run.begin_time for run in self.state.runs.values())
        while time.time() * 1000 - began <= 1010:
            time.sleep(0.02)

    @property
    def storage(self) -> Storage:
        return open_uri(self.root.as_uri())

    @property
    def state(self) -> ArchiveState:
        return Archive.open(self.storage).load()

    @property
    def key(self) -> Partition:
        return next(topic.topic_id for topic in self.state.topics.values() if topic.name == self.topic), 0

    @property
    def generation(self) -> Generation:
        return self.state.generations.get(self.key, Generation(0))

    @property
    def archived(self) -> Contents:
        return archived_contents(self.storage, self.topic)

    def verified(self) -> VerifyReport:
        """The report on an archive without damage."""
        report = verify(Archive.open(self.storage))
        assert report.faults == []
        return report

    def try_restore(self, run_id: str, **more: Any) -> RunResult:
        """Restore into a topic of its own."""
        return bring_back(restore_spec(self.broker, self.root, suffix=f"-{run_id}", **more), run_id)

    def restored(self, run_id: str = "restore-1", **more: Any) -> Contents:
        """Restore into a topic of its own, and say what it holds."""
        result = self.try_restore(run_id, **more)
        assert result.outcome == "Succeeded", result
        copies = committed(self.broker, f"{self.topic}-{run_id}")
        return contents({record[0]: (record[1], record[2]) for record in copies})
