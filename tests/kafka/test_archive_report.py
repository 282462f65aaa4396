"""A backup of a real broker tells what a restore brings back, and when the broker may delete what is not archived."""

import time
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.contract.facts.archive import ArchiveReport, Cause
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import human_bytes, parse_timestamp
from logkeep_engine.storage import open_uri
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.command import logkeep
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.restores import back_up, backup_spec, try_backup

HOUR = 3_600_000
DAY = 24 * HOUR


def seconds(text: str) -> float:
    moment = parse_timestamp(text)
    assert moment is not None
    return moment.timestamp()


def report_of(result: RunResult) -> ArchiveReport:
    assert result.archive is not None, result
    return result.archive


def causes(report: ArchiveReport) -> dict[str, Cause]:
    assert report.retention is not None
    return {topic.topic: topic.cause for topic in report.retention.topics}


@pytest.fixture
def topics(kafka: KafkaBroker) -> Topics:
    return Topics(kafka)


def test_the_limits_of_each_topic_make_its_deadline(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    by_time, by_size, compacted, unlimited = (f"{unique}-{name}" for name in ("time", "size", "compacted", "unlimited"))
    topics.create(by_time, 2, retention_ms=str(DAY))
    topics.create(by_size, retention_ms="-1", retention_bytes="1048576")
    topics.create(compacted, cleanup_policy="compact", retention_ms="1000")
    topics.create(unlimited, retention_ms="-1")
    for topic in (by_time, by_size, compacted, unlimited):
        topics.produce(topic, numbers(500), key=lambda number: b"%d" % number)
    before = time_of(time.time())
    report = report_of(back_up(backup_spec(kafka, tmp_path, f"{unique}-.*")))
    after = time_of(time.time())

    assert before <= report.recovery.last_time <= after
    assert (report.recovery.topics, report.recovery.topics_behind, report.recovery.behind) == (4, 0, ())
    assert report.recovery.first_time is not None
    assert report.recovery.first_time <= before
    assert (report.size.topics, report.size.records) == (4, 2000)
    state = Archive.open(open_uri(tmp_path.as_uri())).load()
    archived = sum(entry.bytes for segments in state.segments.values() for entry in segments)
    assert report.size.stored_bytes == report.size.bytes == archived > 0
    assert (report.size.size, report.size.growth) == (human_bytes(archived), None)
    assert causes(report) == {by_time: Cause.TIME, by_size: Cause.SIZE}
    assert report.retention is not None
    assert report.retention.unknown_topics == 0
    times = {topic.topic: topic for topic in report.retention.topics}
    assert times[by_time].window_seconds == 86400
    # All is archived and nothing has come since: a record that comes now is kept for a day.
    assert before <= time_of(seconds(times[by_time].deadline) - 86400) <= after
    assert report.retention.deadline == min(topic.deadline for topic in report.retention.topics)


def test_records_that_are_deleted_early_tell_how_long_the_cluster_keeps_them(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    topics.create(unique, retention_ms=str(7 * DAY))
    topics.produce(unique, numbers(100))
    spec = backup_spec(kafka, tmp_path, unique)
    first = report_of(back_up(spec, "run-1"))
    assert causes(first) == {unique: Cause.TIME}
    topics.delete_records(unique, 100)
    topics.produce(unique, numbers(10))
    second = report_of(back_up(spec, "run-2"))
    assert causes(second) == {unique: Cause.DELETED}
    assert second.retention is not None
    assert second.retention.topics[0].window_seconds < 3600
    assert second.retention.deadline is not None
    assert seconds(second.retention.deadline) < time.time() + 3600


def test_a_topic_that_could_not_be_archived_whole_is_behind_since_the_last_success(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    whole, lost = f"{unique}-whole", f"{unique}-lost"
    for topic in (whole, lost):
        topics.create(topic, retention_ms=str(DAY))
        topics.produce(topic, numbers(50))
    spec = backup_spec(kafka, tmp_path, f"{unique}-.*")
    first = report_of(back_up(spec, "run-1"))
    for topic in (whole, lost):
        topics.produce(topic, numbers(50))
    topics.delete_records(lost, 70)
    later = time.time() + 1  # the report tells whole seconds
    wait_until(lambda: time.time() > later, 10, "the next second")
    result = try_backup(spec, "run-2")
    assert (result.outcome, result.error_code) == ("Failed", "DataLoss")
    report = report_of(result)
    (behind,) = report.recovery.behind
    assert (behind.topic, behind.offsets, report.recovery.topics_behind) == (lost, 20, 1)
    assert behind.last_time == first.recovery.last_time < report.recovery.last_time
    assert report.retention is not None
    times = {topic.topic: topic for topic in report.retention.topics}
    # The run asked for the time of the first record after the archived ones, which the broker has.
    assert seconds(first.recovery.last_time) - 60 < seconds(times[lost].oldest_time)
    assert times[lost].oldest_time < times[whole].oldest_time

    shown = logkeep("inspect", tmp_path.as_uri())
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.startswith(unique)}
    assert lines[whole][1:3] == ["1", "100"]
    assert lines[lost][-3:] != lines[whole][-3:]
    assert lines[lost][-2:] == ["20", "offsets"]
    wide = logkeep("inspect", tmp_path.as_uri(), "--wide").stdout
    (line,) = (line.split() for line in wide.splitlines() if line.startswith(f"{whole} "))
    assert (line[1:3], line[5:7]) == (["1", "100"], ["2", "2"])
    by_partition = logkeep("inspect", tmp_path.as_uri(), "--partitions").stdout
    assert "0 to 99" in by_partition
    assert "0 to 99" not in shown.stdout


def test_brokers_that_do_not_answer_any_more_cost_the_facts_and_not_the_run(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logkeep_engine.backup.recoverability import watch
    from logkeep_engine.errors import BrokerUnavailable

    def silent(*_: object) -> None:
        raise BrokerUnavailable("No broker answers.")

    topics.create(unique)
    topics.produce(unique, numbers(10))
    monkeypatch.setattr(watch, "effective_topic_configs", silent)
    report = report_of(back_up(backup_spec(kafka, tmp_path, unique)))
    assert (report.retention, report.size.records) == (None, 10)


def test_what_lies_after_an_open_transaction_is_not_promised(
    kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
) -> None:
    """A backup gets it only when the transaction has ended, and the cluster may delete it before."""
    held, stuck, whole = (f"{unique}-{name}" for name in ("held", "stuck", "whole"))
    for topic in (held, stuck, whole):
        topics.create(topic, retention_ms=str(DAY))
    topics.produce(whole, numbers(50))
    topics.produce(held, numbers(50))
    short, long = topics.open_transaction(held, numbers(1)), topics.open_transaction(stuck, [])
    hour_ago = int(time.time() * 1000) - HOUR
    long.produce(stuck, b"1", partition=0, timestamp=hour_ago)
    assert long.flush(60) == 0
    topics.produce(stuck, numbers(20))  # acknowledged, and above the last stable offset
    time.sleep(1.1)  # times are whole seconds
    before = time.time()
    first = report_of(back_up(backup_spec(kafka, tmp_path, f"{unique}-.*"), "run-1"))

    assert first.size.records == 100
    assert first.recovery.last_time < time_of(before), "a transaction of a short time puts it off"
    (behind,) = first.recovery.behind
    assert (behind.topic, behind.offsets, first.recovery.topics_behind) == (stuck, 21, 1)
    assert behind.last_time == time_of(hour_ago / 1000)
    assert first.retention is not None
    oldest = {topic.topic: topic.oldest_time for topic in first.retention.topics}
    assert (oldest[stuck], first.retention.deadline) == (behind.last_time, time_of(hour_ago / 1000 + 86400))
    assert oldest[stuck] < oldest[held] <= time_of(before) <= oldest[whole]

    for producer, topic in ((short, held), (long, stuck)):
        topics.end(producer, topic, commit=True)
    second = report_of(back_up(backup_spec(kafka, tmp_path, f"{unique}-.*"), "run-2"))
    assert (second.recovery.topics_behind, second.size.records) == (0, 122)
