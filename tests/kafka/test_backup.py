"""Backups of a real broker with local Spark: what is archived is what the broker has, whatever happens meanwhile."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Gap, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.partition import read_file
from logkeep_engine.backup.model.plan import REASON_DELETED, REASON_RETENTION, BackupPlan, Piece
from logkeep_engine.backup.pieces.task import BackupTask, PieceDone, archive_pieces
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.backup.planning import plan_builder as making
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ENV_ERASURES_DIR, ExitCode
from logkeep_engine.contract.run import Progress, RunRequest, RunResult
from logkeep_engine.kafka import admin
from logkeep_engine.kafka.connection import Limits, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.limits import UNLIMITED, Throttle
from logkeep_engine.log.batch import walk
from logkeep_engine.log.segment import read_txn_index
from logkeep_engine.report import CallbackSink
from logkeep_engine.spark.driver import ENV_TERMINATION_LOG
from logkeep_engine.tasks import PartitionUpdate, TaskRunner
from tests import examples
from tests.kafka.backing_up import POD, Backups, Topics, numbers
from tests.kafka.raw import plain
from tests.runners import Job, Runner
from tests.unit.archive.build import FAST, PATIENT

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SOON = Limits(unknown=1)


@pytest.mark.parametrize("format_name", ["Kafka", "Records", "Avro"])
def test_the_digest_is_what_the_resource_says_and_may_change(
    backups: Backups, topics: Topics, unique: str, format_name: str
) -> None:
    topics.create(unique)
    for segment in ({"digest": "Sha256"}, {}, {"digest": "Sha256"}):
        topics.produce(unique, numbers(100))
        assert backups.run(unique, format=format_name, segment=segment).outcome == "Succeeded"
    archive = Archive.open(backups.storage)
    state = archive.load()
    digests = [entry.digest.name for found in state.segments.values() for entry in found]
    assert digests == ["SHA-256", "BLAKE3", "SHA-256"]
    report = verify(archive)
    assert (report.faults, report.records) == ([], 300)


@pytest.mark.deep
@pytest.mark.parametrize("where", ["backups", "s3_backups"])
def test_archives_the_broker_s_bytes_of_every_codec(
    where: str, topics: Topics, unique: str, request: pytest.FixtureRequest
) -> None:
    backups: Backups = request.getfixturevalue(where)
    if examples.number(0, deep=1):
        backups.nursery = None
    for codec in CODECS:
        topics.create(f"{unique}-{codec}", 2)
        for partition in range(2):
            topics.produce(f"{unique}-{codec}", numbers(1000), partition=partition, codec=codec)
    topics.commit_position(f"{unique}-group", f"{unique}-lz4", 700)
    result = backups.run(f"{unique}-.*")
    assert (result.outcome, result.message) == ("Succeeded", "")
    assert (result.topics, result.partitions, result.records, result.groups) == (5, 10, 10_000, 1)
    total = 0
    for codec in CODECS:
        for partition in range(2):
            log = backups.log(f"{unique}-{codec}", partition)
            assert log == topics.log(f"{unique}-{codec}", partition)
            # A producer sends a batch as it is that its codec does not make smaller: a single record, say.
            large = [header for _, header in walk(log) if header.record_count > 10]
            assert {header.codec.name.lower() for header in large} == {codec}
            total += len(log)
    assert result.bytes == total
    assert backups.faults() == []
    (group,) = backups.state().groups
    assert (group.group_id, group.topic, group.offset) == (f"{unique}-group", f"{unique}-lz4", 700)


def test_second_run_archives_what_is_new_and_a_third_nothing(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique, 2)
    topics.produce(unique, numbers(500))
    first = backups.run(unique)
    before = {info.path for info in backups.storage.list(names.PACKS)}
    topics.produce(unique, numbers(300, first=500))
    second = backups.run(unique)
    third = backups.run(unique)
    assert [run.records for run in (first, second, third)] == [500, 300, 0]
    assert [run.epoch for run in (first, second, third)] == [1, 2, 3]
    assert before < {info.path for info in backups.storage.list(names.PACKS)}
    assert [entry.base_offset for entry in backups.segments(unique)] == [0, 500]
    assert backups.log(unique) == topics.log(unique)
    assert backups.faults() == []


def test_chunks_and_segments_cut_a_partition_without_losing_or_doubling_a_batch(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 1 << 20)
    topics.create(unique)
    topics.produce(unique, numbers(30_000, 300), batch=77)
    result = backups.run(unique, segment={"maxBytes": "1Mi"})
    log = topics.log(unique)
    assert result.outcome == "Succeeded"
    assert backups.log(unique) == log
    segments = backups.segments(unique)
    assert len(segments) > len(log) >> 20
    assert max(entry.bytes for entry in segments) <= 1 << 20
    assert backups.faults() == []


def test_progress_reaches_all_of_the_partitions(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique, 3)
    for partition in range(2):
        topics.produce(unique, numbers(2000), partition=partition)
    seen: list[Progress] = []
    backups.run(unique, sinks=[CallbackSink(seen.append)])
    last = seen[-1]
    assert (last.phase, last.percent, last.records) == ("Finishing", 100, 4000)
    assert (last.topics, last.partitions, last.partitions_done) == (1, 3, 3)
    assert last.bytes == sum(len(topics.log(unique, partition)) for partition in range(2))
    assert [(shown.partition, shown.at, shown.end) for shown in last.partitions_shown] == [
        (0, 2000, 2000),
        (1, 2000, 2000),
    ]


def test_transactions_keep_their_batches_markers_and_aborts(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.transaction(unique, numbers(10), commit=True)
    topics.transaction(unique, numbers(10), commit=False)
    topics.produce(unique, numbers(10))
    topics.transaction(unique, numbers(10), commit=False)
    topics.transaction(unique, numbers(10), commit=True)
    result = backups.run(unique)
    assert result.outcome == "Succeeded"
    assert backups.log(unique) == topics.log(unique)
    (segment,) = backups.segments(unique)
    assert (segment.transactional, segment.control, segment.records) == (True, True, 50)
    ours = read_txn_index(read_file(backups.storage, unique, segment, names.TXNINDEX))
    (theirs,) = (topics.data_dir / f"{unique}-0").glob("*.txnindex")
    assert [(txn.producer_id, txn.first_offset, txn.last_offset) for txn in ours] == [
        (txn.producer_id, txn.first_offset, txn.last_offset) for txn in read_txn_index(theirs.read_bytes())
    ]
    assert len(ours) == 2
    assert backups.faults() == []


def test_positions_that_no_client_reads_from_are_reported_by_number_and_name(
    backups: Backups, topics: Topics, unique: str
) -> None:
    """Sarama commits -1 and -2 for the end and the beginning, and anybody may commit an offset past the end."""
    topics.create(unique, 3)
    topics.produce(unique, numbers(10))
    topics.commit_position(f"{unique}-group", unique, 0)
    committed = {0: -1, 1: -2, 2: 1_000_000}
    control = ControlPlane(plain(topics.broker.bootstrap))
    positions = [GroupPosition(f"{unique}-group", unique, *item, -1, "") for item in committed.items()]
    assert control.set_group_offsets(positions) == []
    result = backups.run(unique, consumerGroups={"include": [f"{unique}-group"]})
    assert result.outcome == "Succeeded"
    (group,) = backups.state().groups
    below, past = result.warnings
    assert below.startswith(
        "2 positions of consumer groups pointed below 0, which clients treat as no position: not archi"
    )
    group_id = f"group '{unique}-group' has"
    assert f"{group_id} -1 in topic {unique} partition 0; {group_id} -2 in topic {unique} partition 1" in below
    assert past.startswith("1 position of consumer groups pointed past the end of what is archived")
    assert past.endswith(f"{group_id} 1000000 in topic {unique} partition 2, archived is {group.offset}")


def test_run_ends_at_the_oldest_open_transaction_and_knows_what_was_aborted_below(
    backups: Backups, topics: Topics, unique: str
) -> None:
    """The abort marker lies past the end of the run: without a word about it the records would look committed."""
    topics.create(unique)
    aborted = topics.open_transaction(unique, numbers(5))
    still_open = topics.open_transaction(unique, numbers(5))
    topics.end(aborted, unique, commit=False)
    topics.commit_position(f"{unique}-group", unique, 9)
    first = backups.run(unique)
    assert (first.outcome, first.records) == ("Succeeded", 5)
    (segment,) = backups.segments(unique)
    (txn,) = read_txn_index(read_file(backups.storage, unique, segment, names.TXNINDEX))
    assert (txn.first_offset, txn.last_offset) == (0, 4)
    assert [group.offset for group in backups.state().groups] == [5], "no position past the archived end"
    assert any(
        "1 position of consumer groups pointed past the end of what is archived" in note for note in first.warnings
    )
    assert backups.faults() == []
    topics.end(still_open, unique, commit=True)
    second = backups.run(unique)
    assert (second.outcome, second.records) == ("Succeeded", 5)
    assert backups.log(unique) == topics.log(unique)
    later = backups.segments(unique)[1]
    (txn,) = read_txn_index(read_file(backups.storage, unique, later, names.TXNINDEX))
    assert (txn.first_offset, txn.last_offset) == (0, 10)


def test_compacted_topic_is_archived_with_its_gaps(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create_compacted(unique)
    result = backups.run(unique)
    assert result.outcome == "Succeeded"
    assert any(entry.gaps for entry in backups.segments(unique))
    state = backups.state()
    ((start, end),) = [item for ranges in state.coverage.values() for item in ranges]
    assert (start, end) == (0, 12_010)
    assert backups.faults() == []
    assert {record.key for record in backups.records(unique)} >= {b"%d" % number for number in range(50)}


def test_log_that_starts_inside_a_batch_is_archived_from_there(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    values = numbers(100)
    topics.produce(unique, values, codec="zstd")
    topics.produce(unique, numbers(100), codec="zstd")
    topics.delete_records(unique, 37)
    result = backups.run(unique)
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 163, 0)
    records = backups.records(unique)
    assert [record.offset for record in records] == list(range(37, 200))
    assert [record.value for record in records[:63]] == values[37:]
    second_batch = [at for at, _ in walk(topics.log(unique))][1]
    assert backups.log(unique).endswith(topics.log(unique)[second_batch:])
    assert backups.faults() == []


@pytest.mark.parametrize(
    ("policy", "outcome", "code"),
    [("Fail", "Failed", ExitCode.DATA_LOSS), ("Record", "Succeeded", ExitCode.OK)],
)
def test_records_gone_before_they_were_archived_are_named(
    backups: Backups, topics: Topics, unique: str, policy: str, outcome: str, code: ExitCode
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    assert backups.run(unique).outcome == "Succeeded"
    topics.produce(unique, numbers(200))
    topics.delete_records(unique, 150)
    result = backups.run(unique, onDataLoss=policy)
    assert (result.outcome, result.exit_code, result.records) == (outcome, int(code), 150)
    assert (result.loss_total, result.loss_offsets) == (1, 50)
    (fact,) = result.loss
    assert (fact.topic, fact.partition, fact.start, fact.end) == (unique, 0, 100, 150)
    if code is ExitCode.DATA_LOSS:
        assert result.error_code == "DataLoss"
        assert f"topic '{unique}' partition 0 offsets [100, 150)" in result.message
    assert [record.offset for record in backups.records(unique)] == [*range(100), *range(150, 300)]
    again = backups.run(unique)
    if code is ExitCode.DATA_LOSS:
        assert "offsets [100, 150) are neither archived nor recorded as lost" in str(backups.faults())
        assert (again.exit_code, again.records, again.loss_offsets) == (int(code), 0, 50), "told until it is recorded"
        assert backups.run(unique, onDataLoss="Record").loss_offsets == 50
        again = backups.run(unique)
    assert backups.faults() == []
    assert (again.outcome, again.records, again.loss_total) == ("Succeeded", 0, 0), "recorded for good"


def test_run_that_has_lost_records_erases_all_the_same_and_can_continue(
    backups: Backups, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100), key=lambda number: b"key %d" % number)
    asked = [{"name": "ticket-1", "topic": unique, "keysSecretRef": {"name": "keys"}}]
    (tmp_path / "ticket-1").mkdir()
    (tmp_path / "ticket-1" / "keys").write_bytes(b"key 7\n")
    backups = replace(backups, environ={**backups.environ, ENV_ERASURES_DIR: str(tmp_path)})
    result = backups.run(f"{unique}x", erasures=asked)
    assert (result.error_code, len(result.warnings)) == ("NoTopicMatches", 1)
    assert "ticket-1: not done, since the run failed first" in result.warnings[0]
    assert backups.run(unique).outcome == "Succeeded"
    topics.produce(unique, numbers(200))
    topics.delete_records(unique, 150)
    result = backups.run(unique, onDataLoss="Fail", erasures=asked)
    assert (result.exit_code, result.error_code) == (int(ExitCode.DATA_LOSS), "DataLoss")
    assert result.warnings == (f"erasure ticket-1 took 1 record out of 1 segment of topic {unique}",)
    again = backups.run(unique, run_id=result.run_id, onDataLoss="Record", erasures=asked)
    assert (again.outcome, again.loss_offsets, again.message) == ("Succeeded", 50, ""), again.message
    kept = [*range(7), *range(8, 100), *range(150, 300)]
    assert [record.offset for record in backups.records(unique)] == kept
    assert backups.faults() == []


@dataclass
class OneByOne(Runner):
    """The tasks of the chunks run one after another, and after the first something happens in the cluster."""

    runner: TaskRunner
    act: Callable[[], None]
    backwards: bool

    def perform(self, job: Job) -> None:
        chunks = [piece for task in job.work for piece in task.pieces]
        for piece in sorted(chunks, key=lambda piece: piece.start, reverse=self.backwards):
            replace(job, work=[BackupTask(piece.number, (piece,))]).on(self.runner)
            self.act()


@pytest.mark.deep
@pytest.mark.parametrize(("log_start", "backwards"), examples.covered([1000, 1500, 1100], [False, True]))
def test_log_start_may_move_into_or_past_a_batch_across_a_bound_while_the_run_continues(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch, log_start: int, backwards: bool
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 100 << 10)
    topics.create(unique)
    topics.produce(unique, numbers(2000), batch=300)  # across the bound 1000 lies [900, 1200)
    backups.wrap = lambda runner: OneByOne(runner, lambda: topics.delete_records(unique, log_start), backwards)
    result = backups.run(unique, onDataLoss="Record")
    assert result.outcome == "Succeeded", result.message
    gone = range(min(log_start, 1200)) if backwards else range(1200, log_start)  # the first of the two had read its own
    assert [at for fact in result.loss for at in range(fact.start, fact.end)] == list(gone)
    assert [record.offset for record in backups.records(unique)] == [at for at in range(2000) if at not in gone]
    assert backups.faults() == []
    backups.wrap = lambda runner: runner
    again = backups.run(unique)
    assert (again.outcome, again.records, again.loss_total) == ("Succeeded", 0, 0)


def test_stored_plan_continues_though_its_gap_is_settled_in_part(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    backups.run(unique, run_id="first")
    for count in (50, 150):
        topics.produce(unique, numbers(count))
    made = BackupPlan.from_json(backups.storage.read("runs/first/plan.json"), "plan")
    (chunk,) = made.chunks
    gap = Gap(chunk.topic_id, 0, 50, 150, REASON_RETENTION)
    topics.delete_records(unique, 150)
    with begin_run(backups.archive, "late") as writer:  # plans are stored after a run's first commit
        begun = writer.state.runs["late"].begin_time
    stored = replace(made, run_id="late", begun=begun, gaps=(gap,), chunks=(replace(chunk, start=150, end=300),))
    backups.storage.put("runs/late/plan.json", stored.to_json())
    result = backups.run(unique, run_id="late", onDataLoss="Record")
    assert (result.outcome, result.records) == ("Succeeded", 150), result.message
    assert [(fact.start, fact.end) for fact in result.loss] == [(100, 150)]
    assert backups.faults() == []


def test_recreated_topic_is_another_incarnation(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    backups.run(unique)
    topics.delete(unique)
    topics.create(unique)
    topics.produce(unique, numbers(30))
    result = backups.run(unique)
    assert (result.outcome, result.records) == ("Succeeded", 30)
    (warning,) = result.warnings
    for topic_id in {entry.topic_id for entry in backups.segments(unique)}:
        assert topic_id in warning
    assert backups.run(unique).warnings == ()  # told once
    assert [(entry.base_offset, entry.records) for entry in backups.segments(unique)] == [(0, 100), (0, 30)]
    assert len({entry.topic_id for entry in backups.segments(unique)}) == 2
    assert backups.faults() == []


@dataclass
class Meanwhile(Runner):
    """Lets something happen in the cluster after the tasks have read and before their receipts are committed."""

    runner: TaskRunner
    act: Callable[[], None]
    change: Callable[[Any], Any] = lambda result: result

    def perform(self, job: Job) -> None:
        results: list[tuple[int, Any]] = []
        replace(job, on_result=lambda index, result: results.append((index, result))).on(self.runner)
        self.act()
        for index, result in results:
            job.on_result(index, self.change(result))


def read_by_name(done: tuple[PieceDone, ...]) -> tuple[PieceDone, ...]:
    """Make the tasks read by name, as if a broker with a replica selector had asked for it."""
    return tuple(replace(piece, by_name=True) for piece in done)


def test_what_was_read_by_id_is_kept_when_the_topic_goes_during_the_run(
    backups: Backups, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(100))
    log = topics.log(unique)
    backups.wrap = lambda runner: Meanwhile(runner, lambda: topics.delete(unique))
    result = backups.run(unique)
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 100, 0)
    assert backups.log(unique) == log
    topics.create(unique)


@pytest.mark.parametrize(("again", "word"), [(True, "created again"), (False, "deleted")])
def test_what_was_read_by_name_becomes_a_loss_when_the_topic_goes_during_the_run(
    backups: Backups, topics: Topics, unique: str, again: bool, word: str
) -> None:
    for name in (unique, f"{unique}-stays"):
        topics.create(name)
        topics.produce(name, numbers(100))

    def act() -> None:
        topics.delete(unique)
        if again:
            topics.create(unique)

    backups.wrap = lambda runner: Meanwhile(runner, act, read_by_name)
    result = backups.run(f"{unique}.*", onDataLoss="Record")
    assert (result.outcome, result.records) == ("Succeeded", 100)
    (fact,) = result.loss
    assert (fact.topic, fact.start, fact.end) == (unique, 0, 100)
    assert word in fact.reason
    assert backups.segments(unique) == []
    assert backups.log(f"{unique}-stays") == topics.log(f"{unique}-stays")


def test_pattern_without_a_topic_is_refused_naming_what_exists(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    result = backups.run(f"no-{unique}", f"{unique}x")
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "NoTopicMatches")
    assert f"'no-{unique}', '{unique}x'" in result.message
    assert "The cluster has" in result.message
    assert backups.state().runs[result.run_id].outcome is RunOutcome.FAILED


def test_name_that_chooses_no_topic_beside_others_fails_the_run_when_the_others_are_archived(
    backups: Backups, topics: Topics, unique: str
) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    text = f"spec.topics.include[1] '{unique}-typo' chooses no topic of the cluster."
    result = backups.run(unique, f"{unique}-typo")
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "PatternsUnmatched")
    assert text in result.message
    assert backups.log(unique) == topics.log(unique)
    result = backups.run(unique, f"{unique}-typo", onUnmatched="Warn")
    assert (result.outcome, result.warnings) == ("Succeeded", (text,))
    assert result.coverage is not None
    assert (result.coverage.protected, result.coverage.unmatched) == (1, 1)


def test_topic_that_was_deleted_since_the_last_backup_is_reported(
    backups: Backups, topics: Topics, unique: str
) -> None:
    for name in (unique, f"{unique}-gone"):
        topics.create(name)
        topics.produce(name, numbers(10))
    assert backups.run(f"{unique}.*").warnings == ()
    topics.delete(f"{unique}-gone")
    result = backups.run(f"{unique}.*")
    assert result.outcome == "Succeeded", result.message
    (warning,) = result.warnings
    assert f"1 topic of the archive is no longer in the cluster: '{unique}-gone'" in warning
    assert result.coverage is not None
    assert (result.coverage.protected, result.coverage.vanished) == (1, 1)


def test_internal_topics_are_left_out_unless_asked_for(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.commit_position(f"{unique}-group", unique, 0)  # makes __consumer_offsets
    backups.run(unique, "__consumer_offsets")
    assert {topic.name for topic in backups.state().topics.values()} == {unique}
    result = backups.run("__consumer_offsets", topics={"include": ["__consumer_offsets"], "internal": True})
    assert result.outcome == "Succeeded"
    assert "__consumer_offsets" in {topic.name for topic in backups.state().topics.values()}


def test_unreachable_broker_may_be_tried_again(backups: Backups, unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_CONNECT_TIMEOUT", 2.0)
    result = backups.run(unique, cluster={"bootstrapServers": ["127.0.0.1:1"]})
    assert (result.exit_code, result.error_code) == (int(ExitCode.FAILED), "BrokerUnavailable")
    assert "127.0.0.1:1" in result.message
    assert backups.storage.list() == []


def test_archive_of_another_cluster_is_refused(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    Archive.create_or_open(backups.storage, "another-cluster-id-123")
    result = backups.run(unique)
    assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "ArchiveMismatch")
    assert "another-cluster-id-123" in result.message


def test_archive_that_another_run_writes_is_left_alone(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    archive = Archive.create_or_open(backups.storage, topics.broker.cluster_id)
    backups.timing = PATIENT
    with begin_run(archive, "the-other", wait=FAST):
        result = backups.run(unique)
    assert (result.exit_code, result.error_code) == (int(ExitCode.FENCED), "ArchiveBusy")
    assert "the-other" in result.message
    assert list(backups.state().runs) == ["the-other"]


def test_fenced_run_stops_without_a_word_in_the_archive(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    backups.wrap = lambda runner: Meanwhile(runner, lambda: begin_run(backups.archive, "mine").close())
    result = backups.run(unique, run_id="mine")
    assert (result.exit_code, result.error_code) == (int(ExitCode.FENCED), "ArchiveFenced")
    run = backups.state().runs["mine"]
    assert (run.outcome, run.epoch, run.segments) == (RunOutcome.RUNNING, 2, 0)


def test_batch_that_is_damaged_on_the_broker_stops_its_partition_only(
    backups: Backups, topics: Topics, unique: str
) -> None:
    topics.create(unique, 2)
    for partition in range(2):
        topics.produce(unique, numbers(1000), partition=partition)
    file = topics.data_dir / f"{unique}-0" / "00000000000000000000.log"
    log = bytearray(file.read_bytes())
    position, header = list(walk(log))[4]
    with file.open("r+b") as disk:
        disk.seek(position + header.size - 1)
        disk.write(bytes([log[position + header.size - 1] ^ 1]))
    result = backups.run(unique)
    assert (result.exit_code, result.error_code) == (int(ExitCode.FAILED), "CorruptBatch")
    assert f"'{unique}' partition 0" in result.message
    assert f"offset {header.base_offset}" in result.message
    assert backups.log(unique, 0) == bytes(log[:position]), "what lies before the damage is archived"
    assert backups.log(unique, 1) == topics.log(unique, 1)
    assert backups.faults() == []


@dataclass(frozen=True)
class Alone:
    """A task's context outside of Spark."""

    attempt: int = 0
    throttle: Throttle = UNLIMITED

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        """Nobody hears of it."""


def test_task_whose_topic_is_gone_gives_up_its_offsets(backups: Backups, topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.produce(unique, numbers(10))
    connection = replace(connection_from(ClusterSpec(bootstrap_servers=(topics.broker.bootstrap,)), {}), limits=SOON)
    another_incarnation = Piece(0, unique, "AAAAAAAAAAAAAAAAAAAAAQ", 0, 0, 10, 1, 1000)
    (done,) = archive_pieces(BackupSetting(connection, backups.storage, 1, 1 << 20), [another_incarnation], Alone())
    assert done.receipt is not None
    ((start, end, reason),) = [(gap.start, gap.end, gap.reason) for gap in done.receipt.gaps]
    assert (start, end, reason) == (0, 10, REASON_DELETED)
    assert backups.storage.list() == []


# ---- the driver's process


def driver(
    backups: Backups, folder: Path, request: RunRequest, master: str | None, *, dies_by: signal.Signals | None = None
) -> subprocess.Popen[str]:
    """The driver as the Job starts it, or with `--master`. It may get a signal after its first receipt."""
    folder.mkdir(exist_ok=True)
    file = folder / "request.json"
    file.write_text(request.to_json())
    environ = (
        backups.environ
        | POD
        | {
            "PYTHONPATH": ":".join(path for path in sys.path if path),
            ENV_TERMINATION_LOG: str(folder / "termination-log"),
        }
    )
    dying = ["tests.kafka.dying", dies_by.name] if dies_by is not None else []
    module = [*dying, "logkeep_engine.spark.driver"]
    command = [sys.executable, "-m", *module, "--request", str(file)]
    command += ["--master", master] if master else []
    return subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)


def result_in(folder: Path) -> RunResult:
    return RunResult.from_json((folder / "termination-log").read_text())


PARTITIONS = 24
RECORDS = 500
SLOW = {"bytesPerSecond": "3Mi"}
"""`limits` with which a run over `many_partitions` has not ended with its first receipt."""


def many_partitions(topics: Topics, name: str) -> None:
    """PARTITIONS partitions of RECORDS records, half a megabyte each."""
    topics.create(name, PARTITIONS)
    values = numbers(RECORDS, 1000)
    for partition in range(PARTITIONS):
        topics.produce(name, values, partition=partition)


@pytest.mark.deep
@pytest.mark.parametrize("master", [None, "local[1]"][: examples.number(1, deep=2)])
def test_driver_killed_in_the_middle_continues_where_it_was(
    backups: Backups, topics: Topics, unique: str, tmp_path: Path, master: str | None
) -> None:
    many_partitions(topics, unique)
    slow = RunRequest(
        kind="KafkaBackup", name="test", namespace="test", run_id="the-run", spec=backups.spec(unique, limits=SLOW)
    )
    process = driver(backups, tmp_path / "one", slow, master, dies_by=signal.SIGKILL)
    assert process.wait(200) == -signal.SIGKILL
    before = backups.state()
    done = len(before.segments)
    assert 0 < done < PARTITIONS
    topics.produce(unique, numbers(10))  # after the plan: not part of this run
    process = driver(backups, tmp_path / "two", replace(slow, spec=backups.spec(unique)), None)
    output = process.communicate(timeout=200)[1]
    assert process.returncode == 0, output
    result = result_in(tmp_path / "two")
    assert (result.outcome, result.records, result.epoch) == ("Succeeded", PARTITIONS * RECORDS, 2)
    state = backups.state()
    assert {range_ for ranges in state.coverage.values() for range_ in ranges} == {(0, RECORDS)}
    assert all(state.segments[key] == before.segments[key] for key in before.segments)
    for partition in range(PARTITIONS):
        assert [record.offset for record in backups.records(unique, partition)] == list(range(RECORDS))
    assert backups.faults() == []
    assert backups.run(unique).records == 10


@pytest.mark.deep
@pytest.mark.parametrize("master", [None, "local[1]"][: examples.number(1, deep=2)])
def test_driver_that_is_asked_to_stop_says_so_and_can_continue(
    backups: Backups, topics: Topics, unique: str, tmp_path: Path, master: str | None
) -> None:
    many_partitions(topics, unique)
    slow = RunRequest(
        kind="KafkaBackup", name="test", namespace="test", run_id="the-run", spec=backups.spec(unique, limits=SLOW)
    )
    process = driver(backups, tmp_path / "one", slow, master, dies_by=signal.SIGTERM)
    output = process.communicate(timeout=200)[1]
    assert process.returncode == int(ExitCode.INTERRUPTED), output
    assert result_in(tmp_path / "one").error_code == "Interrupted"
    assert backups.state().runs["the-run"].outcome is RunOutcome.FAILED
    result = backups.run(unique, run_id="the-run")
    assert (result.outcome, result.records) == ("Succeeded", PARTITIONS * RECORDS)
    assert backups.faults() == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topics": {"include": ["["]}}, "spec.topics.include[0]"),
        ({"colour": "red"}, "spec.colour: unknown field"),
        ({"storage": {"uri": "ftp://somewhere"}}, "spec.storage.uri"),
    ],
)
def test_driver_refuses_a_wrong_spec_naming_the_field(
    backups: Backups, unique: str, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    request = RunRequest(
        kind="KafkaBackup", name="test", namespace="test", run_id="the-run", spec={**backups.spec(unique), **change}
    )
    process = driver(backups, tmp_path / "one", request, None)
    output = process.communicate(timeout=120)[1]
    assert process.returncode == int(ExitCode.REFUSED), output
    result = result_in(tmp_path / "one")
    assert (result.error_code, says in result.message) == ("InvalidSpec", True), result


def test_driver_refuses_a_request_it_does_not_know(backups: Backups, unique: str, tmp_path: Path) -> None:
    request = RunRequest(kind="KafkaMove", name="test", namespace="test", run_id="the-run", spec=backups.spec(unique))
    process = driver(backups, tmp_path / "one", request, None)
    process.communicate(timeout=120)
    assert process.returncode == int(ExitCode.REFUSED)
    file = tmp_path / "one" / "request.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 99}))
    again = subprocess.run(
        process.args,
        env=backups.environ | {"PYTHONPATH": ":".join(sys.path), ENV_TERMINATION_LOG: str(tmp_path / "told")},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert again.returncode == int(ExitCode.REFUSED)
    assert "format 99" in RunResult.from_json((tmp_path / "told").read_text()).message
