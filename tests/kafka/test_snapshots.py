"""A compacted topic is backed up with snapshots, and restored to any point: it is what a plain consumer has seen."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RemovedSegment, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.errors import SpecError
from logkeep_engine.storage import Storage, open_uri
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import NO_RETENTION, create_topic, end_transaction
from tests.kafka.backing_up import FOR_TEST, WATCH
from tests.kafka.restores import Seen, back_up, backup_spec, bring_back, committed, restore_spec

OFTEN = {"snapshots": {"maxRecordBytesBetweenSnapshots": "1", "minCleanableRatio": 0}}
WHOLE = {"verify": "Full", "offsets": "Same"}


def overwrite(broker: KafkaBroker, topic: str, random: Random, *, null_keys: bool) -> None:
    """Overwrites and tombstones of a few keys, in transactions and outside of them; some are aborted."""
    keys: list[bytes | None] = [b"k%d" % at for at in range(6)]
    plain = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "linger.ms": 20})
    bound = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 20})
    bound.init_transactions(60)

    def some(producer: Producer) -> None:
        for _ in range(random.randrange(1, 12)):
            key = random.choice([*keys, None]) if null_keys else random.choice(keys)
            value = None if key is not None and random.random() < 0.25 else random.randbytes(20)
            producer.produce(topic, value, key, partition=0)
        producer.flush()

    for _ in range(3):
        some(plain)
        bound.begin_transaction()
        some(bound)
        end_transaction(broker.bootstrap, bound, [(topic, 0)], commit=random.random() < 0.6)


def set_policy(broker: KafkaBroker, topic: str, policy: str) -> None:
    change = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def state_of(records: list[Seen]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for _, key, value, _, _ in records:
        if key is not None and value is None:
            found.pop(key, None)
        elif key is not None and value is not None:
            found[key] = value
    return found


def entry_of(storage: Storage, name: str) -> TopicEntry:
    (found,) = [topic for topic in Archive.open(storage).load().topics.values() if topic.name == name]
    return found


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_comes_back_as_a_consumer_has_seen_it_at_every_point(
    kafka: KafkaBroker, second_kafka: KafkaBroker, unique: str, tmp_path: Path, policy: str
) -> None:
    # A broker takes no null key where the topic is compacted: they are from before.
    before = "compact" if policy == "compact" else "delete"
    create_topic(kafka.bootstrap, unique, 1, {**NO_RETENTION, "cleanup.policy": before, "delete.retention.ms": "0"})
    random, at_end, storage = Random(policy), [], open_uri(tmp_path.as_uri())
    for number in range(3):
        overwrite(kafka, unique, random, null_keys=before == "delete" and number == 0)
        if number == 0:
            set_policy(kafka, unique, policy)
        result = back_up(backup_spec(kafka, tmp_path, unique, **OFTEN), f"backup-{number}")
        assert (result.message, result.warnings) == ("made snapshots of 1 partition", ())
        at_end.append(committed(kafka, unique))
    archive, everything = Archive.open(storage, FOR_TEST), at_end[-1]
    key = (entry_of(storage, unique).topic_id, 0)
    ends = [item.end for item in archive.load().snapshots[key]]
    report = verify(archive)
    assert (len(ends), report.faults, report.orphans) == (3, [], [])

    def check(name: str, point: dict[str, Any] | None, expected: list[Seen]) -> list[Seen]:
        spec = restore_spec(second_kafka, tmp_path, suffix=f"-{name}", **WHOLE)
        result = bring_back({**spec, **({"point": point} if point else {})}, f"restore-{name}")
        assert result.verification is not None
        assert result.verification.outcome == "Verified"
        found = committed(second_kafka, f"{unique}-{name}")
        assert state_of(found) == state_of(expected)
        assert set(found) <= set(expected), "with its own offset, value and time"
        return found

    newest = check("newest", None, everything)
    assert len(newest) < len(everything)
    for number, end in enumerate(ends[:2]):
        assert check(f"run{number}", {"run": f"backup-{number}"}, at_end[number]) == check(
            f"end{number}",
            {"offsets": [{"topic": unique, "partition": 0, "offset": end}]},
            [record for record in everything if record[0] < end],
        )
    between = {"offsets": [{"topic": unique, "partition": 0, "offset": ends[1] + 1}]}
    check("between", between, [record for record in everything if record[0] <= ends[1]])

    if policy == "compact":
        with begin_run(archive, "removal", wait=WATCH) as writer:
            writer.end(RunOutcome.SUCCEEDED)
            below = [item.base_offset for item in writer.state.segments[key] if item.base_offset < ends[1]]
            writer.remove(RemovedSegment(*key, base) for base in below)
        assert check("removed", None, everything) == newest
        check("removed-between", between, [record for record in everything if record[0] <= ends[1]])
        check("first-snapshot", {"run": "backup-0"}, at_end[0])
        gone = {"offsets": [{"topic": unique, "partition": 0, "offset": ends[0] + 1}]}
        spec = restore_spec(second_kafka, tmp_path, suffix="-gone", point=gone)
        with pytest.raises(SpecError, match=f"its state is kept at offset {ends[1]} and later"):
            bring_back(spec, "restore-gone")
        (inspected,) = describe(archive.info, archive.load()).topics
        assert inspected.partitions[0].exact_from == ends[1]
