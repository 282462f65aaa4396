"""Retention of real archives: what is too old or too much goes, and all the rest works as before."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.storage import Storage, open_storage
from tests import examples
from tests.cluster.kafka import STEADY, KafkaBroker
from tests.cluster.s3 import S3Server
from tests.command import logkeep, script
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.kafka.raw import eventually, plain
from tests.kafka.restores import (
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    topic_settings,
)

DAY = 86_400_000
NOW = int(time.time() * 1000)

# A process that is gone at the first, second, ... deletion of an object that is not a temporary file.
KILLED = """
import json, os, pathlib, signal, sys
from tests.kafka.restores import back_up

left = int(sys.argv[2])
unlink = pathlib.Path.unlink

def counted(path, missing_ok=False):
    global left
    if not path.name.startswith("."):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    unlink(path, missing_ok)

pathlib.Path.unlink = counted
back_up(json.loads(sys.argv[1]), "killed")
"""


class Days:
    """A topic whose records are some days old, archived a segment at a time."""

    def __init__(self, broker: KafkaBroker, topic: str, storage: dict[str, Any], **spec: Any) -> None:
        self.broker, self.topic, self.storage = broker, topic, storage
        topics = {"include": [topic], "exclude": ["_.*"]}
        self.spec = {**backup_spec(broker, Path("/"), topic), "topics": topics, "storage": storage, **spec}
        self.records = 0
        self.warnings: tuple[str, ...] = ()
        create_topic(broker.bootstrap, topic, 1, NO_RETENTION)

    def archive(self, *days: int, count: int = 10, size: int = 10) -> None:
        """A run, and so a segment, for each of `days`."""
        for day in days:
            produce(self.broker.bootstrap, self.topic, self._records(count, NOW - day * DAY, size))
            back_up(self.spec, f"run-{self.records}")
            self.records += count

    def _records(self, count: int, time_of_last: int, size: int) -> Iterator[Record]:
        for number in range(count):
            value = b"%d" % (self.records + number)
            yield Record(b"k", value.rjust(size), time_of_last - count + 1 + number, [], 0)

    def retain(self, run_id: str = "retaining", **retention: str) -> str:
        """A run with this retention; what it says."""
        return back_up({**self.spec, "retention": {"grace": "0s", **retention}}, run_id).message

    @cached_property
    def opened_storage(self) -> Storage:
        """Opened once: the clients of an S3 store take a while to make."""
        return open_storage(StorageSpec.model_validate(self.storage))

    @property
    def opened(self) -> Archive:
        return Archive.open(self.opened_storage)

    @property
    def state(self) -> ArchiveState:
        return self.opened.load()

    @property
    def bases(self) -> list[int]:
        return [entry.base_offset for entries in self.state.segments.values() for entry in entries]

    def check(self) -> None:
        """Nothing wrong, nothing left over."""
        report = verify(self.opened)
        assert (report.faults, report.orphans) == ([], [])

    def restored(self, run_id: str = "restore-1", **more: bool) -> list[int]:
        """Restore; the number in each record's value, in order."""
        source = {"storage": self.storage}
        spec = {**restore_spec(self.broker, Path("/"), suffix=f"-{run_id}"), "source": source, **more}
        result = bring_back(spec, run_id)
        assert (result.outcome, result.loss_total) == ("Succeeded", 0), result
        self.warnings = result.warnings
        return [int(record[2] or b"") for record in committed(self.broker, f"{self.topic}-{run_id}")]


MakeDays = Callable[..., Days]


@pytest.fixture
def days(kafka: KafkaBroker, unique: str, tmp_path: Path) -> MakeDays:
    """Makes `Days` in an archive of files."""
    return lambda **spec: Days(kafka, unique, {"uri": (tmp_path / "archive").as_uri()}, **spec)


@pytest.fixture
def s3_days(kafka: KafkaBroker, unique: str, s3: S3Server, bucket: str, storage_environment: None) -> MakeDays:
    """Makes `Days` in an archive in a bucket."""
    storage = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
    return lambda **spec: Days(kafka, unique, storage, **spec)


ALL_PAIRS = (("s3_days", "Kafka"), ("days", "Records"), ("days", "Avro"), ("days", "Kafka"), ("s3_days", "Records"))


@pytest.mark.deep
@pytest.mark.parametrize(("where", "format_name"), ALL_PAIRS[: examples.number(3, deep=5)])
def test_what_is_too_old_goes_and_the_rest_is_whole_continues_and_comes_back(
    where: str, format_name: str, request: pytest.FixtureRequest
) -> None:
    make: MakeDays = request.getfixturevalue(where)
    days = make(format=format_name)
    days.archive(40, 20, 1)
    topic = days.topic
    before = {info.path for info in days.opened.storage.list(f"topics/{topic}/")}
    (entries,) = days.state.segments.values()
    gone = set(entries[0].objects(topic))

    assert days.retain(maxAge="30d") == f"retention removed 1 segment, {sum(entries[0].objects(topic).values())} bytes"

    assert {info.path for info in days.opened.storage.list(f"topics/{topic}/")} == before - gone
    assert days.bases == [10, 20]
    days.check()
    assert back_up(days.spec, "nothing-new").records == 0
    days.archive(0)
    assert (days.bases, days.state.gaps) == ([10, 20, 30], {})
    days.check()
    assert days.restored() == list(range(10, 40))
    assert not [warning for warning in days.warnings if "removed by retention" in warning]


def test_the_partition_index_of_the_records_format_lists_what_is_left(days: MakeDays, tmp_path: Path) -> None:
    made = days(format="Records")
    made.archive(40, 20)
    made.retain(maxAge="30d")
    index = (tmp_path / "archive/topics" / made.topic / "index_partition_000").read_bytes()
    name = b"segment_partition_000_from_offset_0000000010"
    assert index == b"\x01" + len(name).to_bytes(4, "big") + name + (10).to_bytes(8, "big")
    made.retain("again", maxAge="1d")
    assert (tmp_path / "archive/topics" / made.topic / "index_partition_000").read_bytes() == b"\x01"
    assert made.bases == []


def test_when_there_is_too_much_the_oldest_go(days: MakeDays) -> None:
    made = days()
    made.archive(3, 9, 1, count=100, size=5000)  # the middle segment is the oldest
    assert made.retain("enough", maxBytes="2Mi") == ""
    assert made.retain("less", maxBytes="1100k").startswith("retention removed 1 segment, ")
    assert made.bases == [0, 200]
    made.check()
    assert made.restored() == [*range(100), *range(200, 300)]
    assert (
        f"topic {made.topic}: 100 offsets between others were removed by retention, first partition 0 offsets 100 to "
        "199"
    ) in made.warnings


def test_both_limits_hold_and_everything_may_go(days: MakeDays) -> None:
    made = days()
    made.archive(40, 20, 10, 1, count=100, size=4000)
    assert made.retain("both", maxAge="30d", maxBytes="1Mi").startswith("retention removed 2 segments, ")
    assert made.bases == [200, 300]
    assert made.retain("all", maxAge="1h").startswith("retention removed 2 segments, ")
    assert (made.bases, made.state.accounted_for(*made.state.partitions()[0])) == ([], [(0, 400)])
    made.check()
    shown = logkeep("inspect", made.storage["uri"], "--partitions").stdout
    (row,) = (line for line in shown.splitlines() if line.startswith(made.topic))
    assert row.split()[-4:] == ["-", "0", "to", "399"], row
    assert back_up(made.spec, "nothing-new").records == 0
    assert made.restored(allowEmpty=True) == []


def test_compacted_topics_are_left_alone(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    made = Days(kafka, unique, {"uri": tmp_path.as_uri()})
    compacted = Days(kafka, f"{unique}-compacted", {"uri": tmp_path.as_uri()})
    made.spec = {**made.spec, "topics": {"include": [f"{unique}.*"]}}
    with ControlPlane(plain(kafka.bootstrap)) as control:
        control.alter_topic_configs(compacted.topic, {"cleanup.policy": "compact"})
    eventually(lambda: topic_settings(kafka, compacted.topic).get("cleanup.policy") == "compact")
    produce(kafka.bootstrap, compacted.topic, [Record(b"k", b"v", NOW - 40 * DAY, [], 0)])
    made.archive(40)
    assert made.retain(maxAge="30d").startswith("retention removed 1 segment, ")
    state = made.state
    assert [state.topics[topic_id].name for topic_id, _ in state.segments] == [compacted.topic]


@pytest.fixture
def compacting() -> Iterator[KafkaBroker]:
    """A broker that compacts topics that do not say otherwise."""
    with KafkaBroker(overrides={**STEADY, "log.cleanup.policy": "compact"}) as broker:
        yield broker


def test_topics_compacted_by_the_default_of_the_brokers_are_left_alone_also_when_they_are_gone(
    compacting: KafkaBroker, tmp_path: Path
) -> None:
    storage = {"uri": tmp_path.as_uri()}
    made = {name: Days(compacting, name, storage) for name in ("compacted", "gone", "deleting", "both")}
    with ControlPlane(plain(compacting.bootstrap)) as control:
        control.alter_topic_configs("deleting", {"cleanup.policy": "delete"})
        control.alter_topic_configs("both", {"cleanup.policy": "compact,delete"})
        eventually(lambda: topic_settings(compacting, "both").get("cleanup.policy") == "compact,delete")
        for days in made.values():
            produce(compacting.bootstrap, days.topic, [Record(b"k", b"v", NOW - 40 * DAY, [], 0)])
        spec = {**made["compacted"].spec, "topics": {"include": [".*"], "exclude": ["_.*"]}}
        back_up(spec, "first")
        control.delete_topic_ids(control.topic_ids(["gone"]))

    retaining = back_up({**spec, "retention": {"maxAge": "30d", "grace": "0s"}}, "second")

    assert retaining.message.startswith("retention removed 2 segments, ")
    state = made["compacted"].state
    assert {state.topics[topic_id].name for topic_id, _ in state.segments} == {"compacted", "gone"}
    target = restore_spec(compacting, tmp_path)
    result = bring_back({**target, "topics": {**target["topics"], "include": ["gone"]}})
    assert (result.outcome, len(committed(compacting, "gone-copy"))) == ("Succeeded", 1), result
    assert topic_settings(compacting, "gone-copy") == {**NO_RETENTION, "cleanup.policy": "compact"}


@pytest.mark.parametrize(("deletion", "format_name"), [(1, "Kafka"), (2, "Kafka"), (2, "Records"), (1, "Avro")])
def test_a_run_killed_while_it_deletes_is_finished_by_the_next(
    days: MakeDays, deletion: int, format_name: str, tmp_path: Path
) -> None:
    made = days(format=format_name)
    made.archive(50, 40, 1)
    spec = {**made.spec, "retention": {"maxAge": "30d", "grace": "0s"}}
    killed = script(KILLED, json.dumps(spec), str(deletion))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    report = verify(made.opened)
    assert report.faults == []
    assert made.state.unpurged
    assert made.bases == [20]
    assert made.restored("meanwhile") == list(range(20, 30))

    # Also by a run that has no limits any more, and whose name is another.
    back_up({**made.spec, "retention": {"grace": "0s"}}, "next")

    made.check()
    assert made.state.unpurged == ()
    assert made.restored("afterwards") == list(range(20, 30))
    assert offset_map_starts(made, "afterwards") == 20


def offset_map_starts(days: Days, run_id: str) -> int:
    root = Path(days.storage["uri"].removeprefix("file://"))
    return offset_map(root, run_id, f"{days.topic}-{run_id}").rows[0][0]


def test_objects_that_cannot_be_deleted_are_a_warning_and_the_next_run_tries_again(
    days: MakeDays, tmp_path: Path
) -> None:
    made = days()
    made.archive(40, 1)
    (entries,) = made.state.segments.values()
    stuck = tmp_path / "archive" / next(iter(entries[0].objects(made.topic)))
    stuck.unlink()
    (stuck / "in-the-way").mkdir(parents=True)
    result = back_up({**made.spec, "retention": {"maxAge": "30d", "grace": "0s"}}, "stuck")
    assert result.outcome == "Succeeded"
    (warning,) = result.warnings
    assert warning.startswith("retention could not be finished, the next run continues it: ")
    assert stuck.name in warning
    assert made.bases == [10]
    (stuck / "in-the-way").rmdir()
    stuck.rmdir()
    assert back_up({**made.spec, "retention": {"grace": "0s"}}, "next").warnings == ()
    made.check()


@contextmanager
def clock_ahead(days: int) -> Iterator[None]:
    """This process takes it for a later day; the store does not."""
    real, real_ns, ahead = time.time, time.time_ns, days * DAY
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: real() + ahead / 1000)
        patch.setattr(time, "time_ns", lambda: real_ns() + ahead * 1_000_000)
        yield


@pytest.mark.parametrize(
    ("make", "ahead"), [("days", 365), ("days", -365), ("s3_days", 365)], ids=["ahead", "behind", "ahead of a bucket"]
)
def test_a_driver_whose_clock_is_wrong_removes_nothing(request: pytest.FixtureRequest, make: str, ahead: int) -> None:
    days: Days = request.getfixturevalue(make)()
    days.archive(3, 2, 1)
    with clock_ahead(ahead):
        result = back_up({**days.spec, "retention": {"maxAge": "90d", "grace": "0s"}}, "wrong")
    assert days.bases == [0, 10, 20]
    (warning,) = [text for text in result.warnings if "clock" in text]
    assert warning.startswith("nothing was removed by age: The driver's clock says 20")
    assert "the store's clock says 20" in warning
    days.check()
    days.retain(maxAge="60h")
    assert days.bases == [10, 20], "the next run, whose clock is right, removes what is old"
