"""Backups of a real broker in the Records and the Avro format: what is archived is what a committed consumer reads."""

import json
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.planning import plan_builder as making
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.formats.base import LogRecord
from logkeep_engine.formats.records_groups import read_consumer_offsets
from logkeep_engine.formats.records_names import read_partition_index
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.log.batch import walk
from logkeep_engine.report import CallbackSink
from logkeep_engine.tasks import TaskRunner
from tests import examples
from tests.data.compare import read_committed
from tests.kafka import spark_functions
from tests.kafka.backing_up import Backups, Topics, numbers
from tests.kafka.test_backup import (
    CODECS,
    PARTITIONS,
    RECORDS,
    SLOW,
    driver,
    many_partitions,
)
from tests.runners import Job, Runner
from tests.unit.archive.build import read_records

FORMATS = ("Records", "Avro")
ALL_PAIRS = (("backups", "Records"), ("s3_backups", "Avro"), ("backups", "Avro"), ("s3_backups", "Records"))
PAIRS = ALL_PAIRS[: examples.number(2, deep=4)]
"""Each kind of storage and each format once, as formats do not know where their objects lie; all in the deep run."""

Consumed = tuple[int, int | None, int | None, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def only(topic: str) -> dict[str, list[str]]:
    """A selection without internal topics."""
    return {"include": [topic], "exclude": ["_.*"]}


def consumed(topics: Topics, topic: str, partition: int = 0) -> list[Consumed]:
    """The partition as librdkafka hands it to a committed reader."""
    found: list[Consumed] = []
    for message in read_committed(topics.broker.bootstrap, topic, partition):
        kind, timestamp = message.timestamp()
        headers = tuple(message.headers() or ())
        offset = message.offset()
        assert offset is not None
        found.append((offset, timestamp, kind - 1, message.key(), message.value(), headers))  # type: ignore[arg-type]
    return found


def plain(record: LogRecord) -> Consumed:
    headers = tuple((key, value) for key, value in record.headers)
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, headers)


def archived(backups: Backups, topic: str, partition: int = 0) -> list[Consumed]:
    """The partition as the archive has it."""
    storage = backups.storage
    return [
        plain(record)
        for entry in backups.segments(topic, partition)
        for records in read_records(storage, topic, entry)
        for record in records
    ]


def assert_whole(backups: Backups) -> None:
    report = verify(backups.archive)
    assert [str(fault) for fault in report.faults] == []
    assert report.orphans == []


def assert_same(backups: Backups, topics: Topics, topic: str, partition: int = 0) -> list[Consumed]:
    expected = consumed(topics, topic, partition)
    assert archived(backups, topic, partition) == expected
    return expected


def objects(backups: Backups) -> dict[str, bytes]:
    """Everything below `topics/`."""
    storage = backups.storage
    return {info.path: storage.read(info.path) for info in storage.list(names.TOPICS)}


@pytest.mark.deep
@pytest.mark.parametrize(("where", "format_name"), PAIRS)
def test_archives_what_a_consumer_reads_of_every_codec(
    where: str, format_name: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    backups: Backups = request.getfixturevalue(where)
    if examples.number(0, deep=1):
        backups.nursery = None
    for codec in CODECS:
        topics.create(f"{unique}-{codec}", 2)
        topics.produce(f"{unique}-{codec}", numbers(1000), codec=codec, key=lambda number: b"key %d" % number)
    topics.commit_position(f"{unique}-group", f"{unique}-lz4", 700)
    result = backups.run(f"{unique}-.*", format=format_name)
    assert (result.outcome, result.message) == ("Succeeded", "")
    for codec in CODECS:
        assert len(assert_same(backups, topics, f"{unique}-{codec}")) == 1000
        assert archived(backups, f"{unique}-{codec}", 1) == [], "an empty partition has no object"
    assert_whole(backups)
    assert backups.archive.info.segments == format_name
    assert any("does not keep batch bounds, compression" in warning for warning in result.warnings)
    (group,) = [group for group in backups.state().groups if group.group_id == f"{unique}-group"]
    assert (group.topic, group.offset) == (f"{unique}-lz4", 700)


@pytest.mark.parametrize("format_name", FORMATS)
def test_only_committed_records_are_archived(backups: Backups, topics: Topics, unique: str, format_name: str) -> None:
    topics.create(unique)
    topics.transaction(unique, numbers(10), commit=True)
    topics.transaction(unique, numbers(10), commit=False)
    topics.produce(unique, numbers(10))
    topics.transaction(unique, numbers(10), commit=False)
    topics.transaction(unique, numbers(10), commit=True)
    aborted = topics.open_transaction(unique, numbers(5))
    still_open = topics.open_transaction(unique, numbers(5))
    topics.end(aborted, unique, commit=False)
    first = backups.run(unique, format=format_name, topics=only(unique))
    assert (first.outcome, first.records) == ("Succeeded", 30), first.message
    assert_same(backups, topics, unique)
    topics.end(still_open, unique, commit=True)
    second = backups.run(unique, format=format_name, topics=only(unique))
    assert (second.outcome, second.records) == ("Succeeded", 5), second.message
    assert len(assert_same(backups, topics, unique)) == 35
    assert_whole(backups)


@pytest.mark.parametrize("format_name", FORMATS)
def test_chunks_that_meet_inside_of_batches_share_their_records(
    backups: Backups, topics: Topics, unique: str, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 300 << 10)
    topics.create(unique)
    topics.produce(unique, numbers(60_000, 70), batch=10_000)
    result = backups.run(unique, format=format_name, topics=only(unique), segment={"maxBytes": "1Mi"})
    assert (result.outcome, result.records) == ("Succeeded", 60_000), result.message
    assert len(assert_same(backups, topics, unique)) == 60_000
    bases = {header.base_offset for _, header in walk(topics.log(unique))}
    inside = [entry.base_offset for entry in backups.segments(unique) if entry.base_offset not in bases]
    assert len(inside) > 6, "of 16 chunks, in 6 or 7 batches"
    assert_whole(backups)


def test_transaction_that_spans_chunks_is_left_out_in_all_of_them(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 100 << 10)
    topics.create(unique)
    for commit in (True, False, True, False):
        topics.transaction(unique, numbers(3000), commit=commit, batch=50)
    result = backups.run(unique, format="Records")
    assert (result.outcome, result.records) == ("Succeeded", 6000)
    assert len(backups.segments(unique)) > 4
    assert_same(backups, topics, unique)
    assert_whole(backups)


@pytest.mark.parametrize("format_name", FORMATS)
def test_keys_values_headers_and_times_are_archived_as_they_are(
    backups: Backups, topics: Topics, unique: str, format_name: str
) -> None:
    append_time = f"{unique}-append"
    topics.create(unique, retention_ms="-1")
    topics.create(append_time, message_timestamp_type="LogAppendTime")
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    headers: list[tuple[str, str | bytes | None]] = [
        ("twice", b"1"), ("null", None), ("twice", b"2"), ("empty", b""), ("", b"no name"), ("ü", b"\xff"),
    ]  # fmt: skip
    for topic in (unique, append_time):
        producer.produce(topic, None, key=b"tombstone", timestamp=1_500_000_000_000)
        producer.produce(topic, b"", key=b"")
        producer.produce(topic, b"value", key=None, headers=headers)
        producer.produce(topic, b"\x00\xff" * 500, key="ключ".encode(), timestamp=1)
        producer.produce(topic, b"large" * 150_000)
    assert producer.flush(120) == 0
    result = backups.run(f"{unique}.*", format=format_name)
    assert (result.outcome, result.records >= 10) == ("Succeeded", True), result.message
    created, appended = assert_same(backups, topics, unique), assert_same(backups, topics, append_time)
    assert [record[2] for record in created] == [0] * 5
    assert [record[2] for record in appended] == [1] * 5
    entries = [entry for topic in (unique, append_time) for entry in backups.segments(topic)]
    assert [entry.times.append_time for entry in entries] == [False, True]
    assert created[2][5] == tuple(headers)
    assert_whole(backups)


@pytest.mark.parametrize("format_name", FORMATS)
def test_compacted_topic_keeps_its_offsets(backups: Backups, topics: Topics, unique: str, format_name: str) -> None:
    topics.create_compacted(unique)
    result = backups.run(unique, format=format_name)
    assert result.outcome == "Succeeded", result.message
    assert len(assert_same(backups, topics, unique)) < 12_010
    assert any(entry.gaps for entry in backups.segments(unique))
    assert_whole(backups)


def test_log_that_starts_inside_a_batch_is_archived_from_there(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(200), codec="zstd")
    topics.delete_records(unique, 37)
    result = backups.run(unique, format="Records")
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 163, 0)
    assert [record[0] for record in assert_same(backups, topics, unique)] == list(range(37, 200))
    assert_whole(backups)


@pytest.mark.parametrize("format_name", FORMATS)
def test_segments_end_with_the_record_that_passes_the_limit(
    backups: Backups, topics: Topics, unique: str, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 3 << 20)
    topics.create(unique)
    topics.produce(unique, numbers(30_000, 300), batch=77)
    result = backups.run(unique, format=format_name, segment={"maxBytes": "1Mi"})
    assert result.outcome == "Succeeded", result.message
    segments = backups.segments(unique)
    assert len(segments) > 6
    assert (1 << 20) < max(entry.bytes for entry in segments) < (1 << 20) + (300 << 10)
    assert len(assert_same(backups, topics, unique)) == 30_000
    assert_whole(backups)


@pytest.mark.parametrize("format_name", FORMATS)
def test_second_run_adds_what_is_new_and_changes_no_segment(
    backups: Backups, topics: Topics, unique: str, format_name: str
) -> None:
    topics.create(unique, 2)
    topics.produce(unique, numbers(500))
    backups.run(f"{unique}.*", format=format_name, topics=only(f"{unique}.*"))
    before = objects(backups)
    topics.produce(unique, numbers(300, first=500))
    topics.produce(unique, numbers(5), partition=1)
    topics.create(f"{unique}-new")
    topics.produce(f"{unique}-new", numbers(7))
    topics.grow(unique, 3)
    topics.produce(unique, numbers(11), partition=2)
    second = backups.run(f"{unique}.*", format=format_name, topics=only(f"{unique}.*"))
    assert (second.outcome, second.records) == ("Succeeded", 323), second.message
    after = objects(backups)
    kept = {path for path in before if not path.rpartition("/")[2].startswith(("index_", "consumer_offsets_"))}
    assert {path: after[path] for path in kept} == {path: before[path] for path in kept}
    for topic, partition in ((unique, 0), (unique, 1), (unique, 2), (f"{unique}-new", 0)):
        assert_same(backups, topics, topic, partition)
    assert_whole(backups)


# ---- what a Records archive has beside its segments


def test_topic_s_folder_has_the_files_that_the_original_tool_reads(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 50 << 10)
    topics.create(unique, 2)
    topics.produce(unique, numbers(3000))
    topics.commit_position(f"{unique}-one", unique, 700)
    topics.commit_position(f"{unique}-two", unique, 3000)
    backups.run(unique, format="Records")
    storage, folder = backups.storage, f"{names.TOPICS}{unique}/"
    starts = [entry.base_offset for entry in backups.segments(unique)]
    assert starts[0] == 0
    assert len(starts) > 2
    stems = [f"segment_partition_000_from_offset_{start:010d}" for start in starts]
    assert {info.path.removeprefix(folder) for info in storage.list(folder)} == {
        *(f"{stem}_{suffix}" for stem in stems for suffix in ("records", "index")),
        "index_partition_000",
        "index_partition_001",
        "consumer_offsets_partition_000",
    }
    assert read_partition_index(storage.read(f"{folder}index_partition_001")) == []
    index = read_partition_index(storage.read(f"{folder}index_partition_000"))
    assert [str(segment) for segment in index] == stems
    positions = read_consumer_offsets(storage.read(f"{folder}consumer_offsets_partition_000"))
    assert positions == {f"{unique}-one": 700, f"{unique}-two": 3000}


def test_positions_that_move_without_new_records_are_written_too(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique, 2)
    for partition in range(2):
        topics.produce(unique, numbers(10), partition=partition)
    backups.run(unique, format="Records")
    files = [f"{names.TOPICS}{unique}/consumer_offsets_partition_{partition:03d}" for partition in range(2)]
    assert [read_consumer_offsets(backups.storage.read(file)) for file in files] == [{}, {}]
    topics.commit_position(f"{unique}-group", unique, 4, partition=1)
    backups.run(unique, format="Records")
    assert [read_consumer_offsets(backups.storage.read(file)) for file in files] == [{}, {f"{unique}-group": 4}]


def test_files_that_a_killed_run_left_old_are_made_by_the_next(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    backups.run(unique, format="Records")
    topics.produce(unique, numbers(10))
    index = f"{names.TOPICS}{unique}/index_partition_000"
    old = backups.storage.read(index)
    backups.run(unique, format="Records")
    with begin_run(backups.archive, "killed-before-its-end"):
        backups.storage.put(index, old)
    assert backups.run(unique, format="Records").outcome == "Succeeded"
    starts = [segment.start_offset for segment in read_partition_index(backups.storage.read(index))]
    assert starts == [0, 10]


# ---- kills, repeats, other writers


@pytest.mark.deep
@pytest.mark.parametrize("format_name", FORMATS[: examples.number(1, deep=2)])
def test_driver_killed_in_the_middle_continues_where_it_was(
    backups: Backups, topics: Topics, unique: str, tmp_path: Path, format_name: str
) -> None:
    many_partitions(topics, unique)
    spec = backups.spec(unique, format=format_name, topics=only(unique))
    slow = RunRequest(
        kind="KafkaBackup", name="test", namespace="test", run_id="the-run", spec={**spec, "limits": SLOW}
    )
    process = driver(backups, tmp_path / "one", slow, None, dies_by=signal.SIGKILL)
    assert process.wait(200) == -signal.SIGKILL
    state = backups.state()
    assert 0 < len(state.segments) < PARTITIONS
    before = objects(backups)
    result = backups.run(unique, run_id="the-run", format=format_name, topics=only(unique))
    assert (result.outcome, result.records, result.epoch) == ("Succeeded", PARTITIONS * RECORDS, 2), result.message
    after = objects(backups)
    assert {path: after[path] for path in before} == before, "what was there is as it was"
    for partition in range(PARTITIONS):
        assert [record[0] for record in archived(backups, unique, partition)] == list(range(RECORDS))
    assert_same(backups, topics, unique, PARTITIONS - 1)
    assert_whole(backups)


@pytest.mark.deep
@pytest.mark.parametrize(("where", "format_name"), PAIRS)
def test_objects_that_were_never_committed_stay_as_they_are_if_they_are_the_same(
    where: str, format_name: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    backups: Backups = request.getfixturevalue(where)
    topics.create(unique)
    topics.produce(unique, numbers(3000))
    assert backups.run(unique, format=format_name, topics=only(unique)).outcome == "Succeeded"
    written = objects(backups)
    storage = backups.storage
    versions = {path: storage.version(path) for path in written}
    forget_commits(backups)
    result = backups.run(unique, format=format_name, topics=only(unique))
    assert (result.outcome, result.records) == ("Succeeded", 3000), result.message
    segments = {path for entry in backups.segments(unique) for path in entry.objects(unique)}
    assert {path: storage.version(path) for path in segments} == {path: versions[path] for path in segments}
    assert objects(backups) == written
    assert_whole(backups)


@pytest.mark.deep
@pytest.mark.parametrize(("where", "format_name"), PAIRS)
def test_objects_that_were_never_committed_are_replaced_if_they_are_others(
    where: str, format_name: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    """The log was compacted between two attempts, say."""
    backups: Backups = request.getfixturevalue(where)
    topics.create(unique)
    topics.produce(unique, numbers(3000))
    backups.run(unique, format=format_name, topics=only(unique))
    for path in objects(backups):
        backups.storage.put(path, b"something else")
    forget_commits(backups)
    result = backups.run(unique, format=format_name, topics=only(unique))
    assert (result.outcome, result.records) == ("Succeeded", 3000), result.message
    assert_same(backups, topics, unique)
    assert_whole(backups)


@dataclass
class Unheard(Runner):
    """The tasks write their objects, and then nobody hears of it."""

    runner: TaskRunner

    def perform(self, job: Job) -> None:
        replace(job, on_result=lambda index, result: None).on(self.runner)
        raise BrokerUnavailable("The driver hears nothing.", hint="This may be temporary.")


@pytest.mark.deep
@pytest.mark.parametrize(("where", "format_name"), PAIRS)
def test_objects_of_other_bounds_that_were_never_committed_are_removed_by_the_run_that_succeeds(
    where: str, format_name: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    backups: Backups = request.getfixturevalue(where)
    topics.create(unique, 2)
    topics.create(f"{unique}-other")
    for name, partition in ((unique, 0), (unique, 1), (f"{unique}-other", 0)):
        topics.produce(name, numbers(9000, 300), partition=partition)
    backups.wrap = Unheard
    selection = {"include": [f"{unique}.*"], "exclude": ["_.*"]}
    killed = backups.run(unique, format=format_name, topics=selection, segment={"maxBytes": "1Mi"}, run_id="killed")
    assert (killed.outcome, killed.segments) == ("Failed", 0)
    left = set(objects(backups))
    backups.wrap = lambda runner: runner
    result = backups.run(unique, format=format_name, topics=only(unique))
    assert (result.outcome, result.records, result.warnings[1:]) == ("Succeeded", 18_000, ()), result.message
    assert left - set(objects(backups)), "the first run has made more and smaller ones"
    assert_same(backups, topics, unique)
    assert_same(backups, topics, unique, 1)
    report = verify(backups.archive)
    assert report.faults == []
    assert set(report.orphans) == {path for path in left if f"topics/{unique}-other/" in path}, "not of this run"
    assert backups.run(unique, format=format_name, topics=selection).outcome == "Succeeded"


@dataclass
class KilledAtFirst(Runner):
    """Every task's first attempt is killed when it has written its objects."""

    runner: TaskRunner
    marker: Path

    def perform(self, job: Job) -> None:
        killed = partial(spark_functions.killed_at_first, job.function, str(self.marker))
        replace(job, function=killed).on(self.runner)


@pytest.mark.parametrize("format_name", FORMATS)
def test_task_killed_before_its_receipt_arrives_is_done_again_over_its_own_objects(
    backups: Backups, topics: Topics, unique: str, tmp_path: Path, format_name: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(5000, 1000))
    topics.transaction(unique, numbers(100), commit=False)
    backups.wrap = lambda runner: KilledAtFirst(runner, tmp_path / "killed")
    result = backups.run(unique, format=format_name, topics=only(unique), segment={"maxBytes": "1Mi"})
    assert (result.outcome, result.records) == ("Succeeded", 5000), result.message
    assert (tmp_path / "killed").exists()
    assert {entry.attempt for entry in backups.segments(unique)} == {1}
    assert_same(backups, topics, unique)
    assert_whole(backups)


def forget_commits(backups: Backups) -> None:
    """Forget the commits, as if the run had been killed before its first receipt was committed."""
    storage = backups.storage
    storage.delete([info.path for prefix in (names.CATALOG, names.RUNS) for info in storage.list(prefix)])


# ---- names of topics


@pytest.mark.parametrize(("where", "format_name"), [*ALL_PAIRS, ("backups", "Kafka"), ("s3_backups", "Kafka")])
def test_topics_with_the_longest_name_and_with_a_leading_dot_are_archived(
    where: str, format_name: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    backups: Backups = request.getfixturevalue(where)
    room = 227 if format_name == "Avro" else 249  # the S3 server keeps objects in files too
    for topic in (f"{unique}{'t' * room}"[:room], f".{unique}"):
        topics.produce(topics.create(topic), numbers(100))
    result = backups.run(f"[.]?{unique}.*", format=format_name, topics=only(f"[.]?{unique}.*"))
    assert (result.outcome, result.records) == ("Succeeded", 200), result.message
    assert_whole(backups)


def test_topic_with_a_name_too_long_for_files_is_refused_before_anything_is_written(
    backups: Backups, topics: Topics, unique: str
) -> None:
    for topic in (unique, f"{unique}{'t' * 249}"[:249]):
        topics.produce(topics.create(topic), numbers(10))
    result = backups.run(f"{unique}.*", format="Avro", topics=only(f"{unique}.*"))
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "StorageRefused")
    assert "ttt" in result.message
    assert "a name in a file system has at most 255 bytes" in result.message
    assert objects(backups) == {}


def test_name_that_an_object_store_refuses_is_reported(s3_backups: Backups, topics: Topics, unique: str) -> None:
    topic = f"{unique}{'t' * 249}"[:249]
    topics.produce(topics.create(topic), numbers(10))
    result = s3_backups.run(f"{unique}.*", format="Avro", topics=only(f"{unique}.*"))
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "StorageRefused")
    assert f"{topic}+0-00000000000000000000.data: " in result.message
    assert "answered KeyTooLongError. Exclude the topic" in result.message


# ---- refusals


@pytest.mark.parametrize("format_name", FORMATS)
def test_recreated_topic_is_refused_before_anything_of_it_is_written(
    backups: Backups, topics: Topics, unique: str, format_name: str
) -> None:
    old = topic_id(topics, topics.create(unique))
    topics.produce(unique, numbers(100))
    backups.run(unique, format=format_name, topics=only(unique))
    before = objects(backups)
    topics.delete(unique)
    new = topic_id(topics, topics.create(unique))
    topics.produce(unique, numbers(30))
    result = backups.run(unique, format=format_name, topics=only(unique))
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "ArchiveMismatch")
    for part in (f"Topic '{unique}' was deleted and created again", old, new, "another storage.uri"):
        assert part in result.message
    assert objects(backups) == before


def topic_id(topics: Topics, name: str) -> str:
    """The topic id as Kafka writes it. Waits until the broker knows the topic."""
    until = time.monotonic() + 30
    with ControlPlane(connection_from(ClusterSpec(bootstrap_servers=(topics.broker.bootstrap,)), {})) as control:
        while name not in (found := control.topic_ids([name])) and time.monotonic() < until:
            time.sleep(0.1)
    return found[name]


def test_archive_of_another_format_is_refused(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    backups.run(unique)
    before = objects(backups)
    result = backups.run(unique, format="Records")
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "ArchiveMismatch")
    assert "is of format Kafka, not Records" in result.message
    assert objects(backups) == before


def lossy(topics: Topics, topic: str) -> None:
    """A topic whose partition 1 has two tombstones, the first at offset 3."""
    topics.create(topic, 2)
    topics.produce(topic, numbers(10))
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    for number in range(6):
        producer.produce(topic, None if number in (3, 5) else b"value", key=b"%d" % number, partition=1)
    assert producer.flush(120) == 0


STRICT: dict[str, Any] = {"format": "Avro", "formatOptions": {"compatibility": "strict"}}


def test_loss_of_records_is_refused_before_anything_is_written(backups: Backups, topics: Topics, unique: str) -> None:
    lossy(topics, unique)
    result = backups.run(unique, topics=only(unique), **STRICT)
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "FormatLoss")
    assert f"null value in topic '{unique}' partition 1, 2 records from offset 3 on" in result.message
    assert "formatOptions.allowLoss: true" in result.message
    assert objects(backups) == {}
    assert backups.state().topics == {}


def test_loss_that_is_allowed_is_reported_in_the_result_and_in_a_file(
    backups: Backups, topics: Topics, unique: str
) -> None:
    lossy(topics, unique)
    options = {"compatibility": "strict", "allowLoss": True}
    result = backups.run(unique, run_id="lossy", topics=only(unique), format="Avro", formatOptions=options)
    assert (result.outcome, result.records) == ("Succeeded", 16), result.message
    (warning,) = [warning for warning in result.warnings if "could not hold" in warning]
    assert f"null value in topic '{unique}' partition 1, 2 records from offset 3 on" in warning
    assert "runs/lossy/format-loss.json" in warning
    reported = json.loads(backups.storage.read("runs/lossy/format-loss.json"))
    assert reported["losses"] == [
        {"topic": unique, "partition": 1, "what": "null value", "records": 2, "firstOffset": 3}
    ]
    assert_whole(backups)


def test_records_are_looked_through_once_in_a_run(backups: Backups, topics: Topics, unique: str) -> None:
    """A driver that starts again finds what the first has found."""
    lossy(topics, unique)
    refused = backups.run(unique, run_id="twice", topics=only(unique), **STRICT)
    assert refused.error_code == "FormatLoss"
    phases: list[str] = []
    again = backups.run(
        unique,
        run_id="twice",
        topics=only(unique),
        sinks=[CallbackSink(lambda progress: phases.append(progress.phase))],
        **STRICT,
    )
    assert (again.error_code, again.message) == ("FormatLoss", refused.message)
    assert "Checking" not in phases


def test_strict_archive_of_records_that_fit_needs_no_permission(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100), key=lambda number: b"%d" % number)
    result = backups.run(unique, topics=only(unique), **STRICT)
    assert (result.outcome, result.records) == ("Succeeded", 100), result.message
    assert_same(backups, topics, unique)
    assert_whole(backups)


def test_partition_that_could_not_be_looked_through_is_not_archived_before_it_is(
    backups: Backups, topics: Topics, unique: str
) -> None:
    """A damaged batch hides a tombstone until the leadership moves, here until the batch is whole again."""
    topics.create(unique, 2)
    topics.produce(unique, numbers(1000), key=lambda number: b"%d" % number, partition=1)
    topics.produce(unique, numbers(1000), key=lambda number: b"%d" % number)
    producer = Producer({"bootstrap.servers": topics.broker.bootstrap})
    producer.produce(unique, None, key=b"key", partition=0)
    assert producer.flush(120) == 0
    file = topics.data_dir / f"{unique}-0" / "00000000000000000000.log"
    position, header = list(walk(file.read_bytes()))[4]
    flip(file, position + header.size - 1)
    damaged = backups.run(unique, run_id="strict", topics=only(unique), **STRICT)
    assert (damaged.exit_code, damaged.error_code) == (int(ExitCode.FAILED), "CorruptBatch")
    assert "nothing of its chunk was archived in this attempt" in damaged.message
    assert archived(backups, unique) == []
    assert len(assert_same(backups, topics, unique, 1)) == 1000, "the other partition is archived"
    flip(file, position + header.size - 1)
    again = backups.run(unique, run_id="strict", topics=only(unique), **STRICT)
    assert (again.exit_code, again.error_code) == (int(ExitCode.REFUSED), "FormatLoss")
    assert f"null value in topic '{unique}' partition 0, 1 record from offset 1000 on" in again.message
    assert archived(backups, unique) == []


def flip(file: Path, position: int) -> None:
    with file.open("r+b") as disk:
        disk.seek(position)
        byte = disk.read(1)[0]
        disk.seek(position)
        disk.write(bytes([byte ^ 1]))


def test_avro_archive_holds_the_topics_of_groups_and_schemas(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    topics.commit_position(f"{unique}-group", unique, 7)  # makes __consumer_offsets
    if "_schemas" not in topics.admin.list_topics(timeout=30).topics:
        topics.create("_schemas")
    topics.produce("_schemas", [b"schema"])
    result = backups.run(unique, format="Avro")
    assert result.outcome == "Succeeded", result.message
    assert {topic.name for topic in backups.state().topics.values()} == {unique}, "others' topics are not asked for"
    result = backups.run(unique, run_id="internal", format="Avro", topics={"include": [unique], "internal": True})
    assert result.outcome == "Succeeded", result.message
    assert {topic.name for topic in backups.state().topics.values()} == {unique, "__consumer_offsets", "_schemas"}
    keys = [record[3] or b"" for partition in range(4) for record in archived(backups, "__consumer_offsets", partition)]
    assert any(f"{unique}-group".encode() in key for key in keys)
    assert_whole(backups)
