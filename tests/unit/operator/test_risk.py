"""RetentionRisk: the deadline that the last run told, against the clock and the next run that is expected."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta

import pytest

from logkeep_engine.contract.facts.archive import (
    ArchiveReport,
    ArchiveSize,
    Cause,
    Deadlines,
    Recoverable,
    TopicBehind,
    TopicDeadline,
)
from logkeep_engine.contract.facts.outcome import LossFact, TopicCoverage
from logkeep_engine.contract.facts.progress import PartitionProgress, TopicProgress
from logkeep_engine.contract.facts.values import time_of, timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import HistoryEntry, Resource, Status
from logkeep_operator.api.status import MAX_HISTORY, ArchiveStatus
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import is_at_rest, wake_after_rest
from logkeep_operator.reconcile.risk import risk_changes_after, risk_condition
from tests.unit.operator.world import START, World, backup_spec, resource

HOUR = timedelta(hours=1)


def status(
    *starts: datetime, deadline: datetime | None = None, took: int = 600, unknown: int = 0, cause: Cause = Cause.TIME
) -> Status:
    """After runs that began at these times; the last one asked the brokers when it had ended."""
    topics = (
        (
            TopicDeadline(
                topic="clicks",
                partition=3,
                deadline=timestamp(deadline),
                oldest_time=timestamp(starts[-1]),
                window_seconds=93600,
                cause=cause,
            ),
        )
        if deadline
        else ()
    )
    return Status(
        recovery=Recoverable(last_time=timestamp(START)),
        retention=Deadlines(
            check_time=timestamp(starts[-1] + timedelta(seconds=took)),
            deadline=timestamp(deadline) if deadline else None,
            unknown_topics=unknown,
            topics=topics,
        ),
        history=tuple(
            HistoryEntry(run_id=f"run-{at}", outcome="Succeeded", start_time=timestamp(start), duration_seconds=took)
            for at, start in reversed(list(enumerate(starts)))
        ),
    )


DAILY = (START - 48 * HOUR, START - 24 * HOUR, START)


def of(found: Status, suspended: bool = False, **spec: object) -> Resource:
    return resource("KafkaBackup", backup_spec(suspend=suspended, **spec), status=found)


def judged(found: Status, now: datetime, *, suspended: bool = False) -> tuple[str, str]:
    condition = risk_condition(of(found, suspended), found, now)
    assert condition is not None
    return condition.status, condition.reason


@pytest.mark.parametrize(
    ("deadline", "now", "expected"),
    [
        (26 * HOUR, 1 * HOUR, ("False", "KeptLongEnough")),
        (26 * HOUR, 23.9 * HOUR, ("False", "KeptLongEnough")),
        (24 * HOUR, 1 * HOUR, ("True", "NextRunTooLate")),
        (24 * HOUR + timedelta(seconds=599), 1 * HOUR, ("True", "NextRunTooLate")),
        (24 * HOUR + timedelta(seconds=600), 1 * HOUR, ("False", "KeptLongEnough")),
        (26 * HOUR, 24.1 * HOUR, ("True", "DeadlineNear")),
        (26 * HOUR, 26 * HOUR, ("True", "DeadlinePassed")),
        (96 * HOUR, 30 * HOUR, ("False", "KeptLongEnough")),
        (96 * HOUR, 78 * HOUR, ("True", "DeadlineNear")),
    ],
)
def test_the_next_run_is_expected_after_the_longest_pause(
    deadline: timedelta, now: timedelta, expected: tuple[str, str]
) -> None:
    assert judged(status(*DAILY, deadline=START + deadline), START + now) == expected


def test_nothing_is_expected_of_a_suspended_backup_nor_after_a_single_run() -> None:
    late = START + 24 * HOUR
    assert judged(status(START, deadline=late), START + HOUR) == ("False", "KeptLongEnough")
    assert judged(status(*DAILY, deadline=late), START + HOUR, suspended=True) == ("False", "KeptLongEnough")
    assert judged(status(*DAILY, deadline=late), START + 20 * HOUR, suspended=True) == ("True", "DeadlineNear")


def test_with_a_schedule_the_next_run_is_expected_at_its_time_with_all_of_the_jitter() -> None:
    scheduled = replace(status(*DAILY, deadline=START + 7 * HOUR), next_schedule_time=timestamp(START + 6 * HOUR))
    for jitter, expected in ((60, "KeptLongEnough"), (3600, "NextRunTooLate")):
        backup = of(scheduled, schedule={"cron": "0 14 * * *", "jitterSeconds": jitter})
        condition = risk_condition(backup, scheduled, START + HOUR)
        assert condition is not None
        assert condition.reason == expected


def test_the_message_names_topic_cause_and_times() -> None:
    late = status(*DAILY, deadline=START + 20 * HOUR, unknown=2)
    condition = risk_condition(of(late), late, START + HOUR)
    assert condition is not None
    assert condition.message == (
        "From 2026-11-22T04:00:00Z on the cluster may delete records that are not archived, and the next run is "
        "expected at 2026-11-22T08:00:00Z and to take 10m. First topic clicks partition 3: retention.ms keeps records "
        "for 1d 2h. Run more often, or keep records longer. Not known of 2 topics."
    )
    early = status(START, deadline=START, cause=Cause.DELETED)
    deleted = risk_condition(of(early), early, START)
    assert deleted is not None
    assert "archived records were deleted when they were 1d 2h old" in deleted.message


def test_what_is_unknown_is_not_taken_for_safe() -> None:
    assert risk_condition(of(Status()), Status(), START) is None
    assert judged(Status(recovery=Recoverable(last_time=timestamp(START))), START) == ("Unknown", "NotKnown")
    assert judged(status(START, unknown=1), START) == ("Unknown", "NotKnown")
    assert judged(status(START), START) == ("False", "NoLimit")


def test_an_alarm_is_set_for_each_moment_at_which_the_answer_may_change() -> None:
    found = status(*DAILY, deadline=START + 48 * HOUR, took=0)
    moments = []
    now = START
    while (after := risk_changes_after(of(found), found, now)) is not None:
        now += timedelta(seconds=after)
        moments.append(((now - START) / HOUR, judged(found, now)[1]))
    assert moments == [(24, "KeptLongEnough"), (38.4, "DeadlineNear"), (48, "DeadlinePassed")]


def report(deadline: datetime | None, **changes: object) -> ArchiveReport:
    began = START.timestamp()
    topics = (
        ()
        if deadline is None
        else (
            TopicDeadline(
                topic="clicks",
                partition=3,
                deadline=timestamp(deadline),
                oldest_time=time_of(began),
                window_seconds=93600,
                cause=Cause.TIME,
            ),
        )
    )
    return ArchiveReport(
        size=ArchiveSize(
            topics=2,
            segments=9,
            records=70,
            bytes=2048,
            stored_bytes=1536,
            size="1.5 KiB",
            bytes_per_day=1024,
            growth="1.0 KiB/day",
        ),
        recovery=Recoverable(first_time=time_of(began - 86400), last_time=time_of(began), topics=2),
        retention=Deadlines(
            check_time=time_of(began + 10), deadline=None if deadline is None else timestamp(deadline), topics=topics
        ),
    )


def succeeded(world: World, expected: ArchiveReport | None) -> None:
    """The wanted run takes a minute and says this of the archive."""
    world.step()
    world.driver()
    world.pass_time(minutes=1)
    world.reports(result=world.result(archive=expected))
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0)
    world.settle()


def test_the_status_has_what_the_run_tells_and_the_condition_turns_by_time_alone() -> None:
    world = World()
    succeeded(world, report(START + 10 * HOUR))
    found = world.status
    assert found.archive is not None
    assert (found.archive.size, found.archive.growth) == ("1.5 KiB", "1.0 KiB/day")
    assert (found.archive.bytes, found.archive.commit) == (2048, 7)
    assert found.recovery is not None
    assert (found.recovery.first_time, found.recovery.last_time) == ("2026-11-20T08:00:00Z", "2026-11-21T08:00:00Z")
    assert found.history[0].duration_seconds == 60
    assert world.condition("RetentionRisk") == ("False", "KeptLongEnough")
    requeue = world.step().requeue_after
    assert requeue is not None
    assert 0 < requeue <= 8 * 3600
    world.pass_time(hours=7.9)
    assert is_at_rest(world.resource, world.now)
    wake = wake_after_rest(world.resource, world.now)
    assert wake is not None
    world.pass_time(seconds=wake)
    assert not is_at_rest(world.resource, world.now), "the deadline is near now"
    world.settle()
    assert world.condition("RetentionRisk") == ("True", "DeadlineNear")
    assert world.events.count(("Warning", "RetentionRisk")) == 1
    assert is_at_rest(world.resource, world.now)


def test_a_run_without_a_report_leaves_what_was_known() -> None:
    world = World()
    succeeded(world, report(START + 10 * HOUR))
    before = world.status
    world.annotate("again")
    succeeded(world, None)
    assert len(world.status.history) == 2
    assert (world.status.recovery, world.status.retention) == (before.recovery, before.retention)
    assert world.status.archive is not None
    assert replace(world.status.archive, write_time=None) == replace(before.archive or ArchiveStatus(), write_time=None)


def test_a_run_that_could_not_ask_the_brokers_makes_the_risk_unknown() -> None:
    world = World()
    reported = report(START + 10 * HOUR)
    succeeded(world, reported)
    world.annotate("again")
    succeeded(world, ArchiveReport(size=reported.size, recovery=reported.recovery))
    assert world.condition("RetentionRisk") == ("Unknown", "NotKnown")


def test_a_run_that_failed_and_could_not_ask_leaves_the_deadline_that_stands() -> None:
    world = World()
    reported = report(START + 10 * HOUR)
    succeeded(world, reported)
    world.annotate("again")
    world.step()
    world.pass_time(hours=11)
    world.reports(result=world.failed_result(archive=ArchiveReport(size=reported.size, recovery=reported.recovery)))
    world.job_is(active=0, failed=4, failure=("BackoffLimitExceeded", "too often"))
    world.settle()
    assert world.condition("RetentionRisk") == ("True", "DeadlinePassed")


def test_a_status_is_smaller_than_its_bound_whatever_runs_tell() -> None:
    longest, said, most, began = "t" * 249, "ü" * 5000, 2**62, timestamp(START)
    behind = TopicBehind(topic=longest, first_time=time_of(0.0), last_time=began, offsets=most)
    deadline = TopicDeadline(
        topic=longest,
        partition=most,
        deadline=began,
        oldest_time=time_of(0.0),
        window_seconds=2**37,
        cause=Cause.DELETED,
    )
    reported = ArchiveReport(
        size=ArchiveSize(topics=most, segments=most, records=most, bytes=most, stored_bytes=most, bytes_per_day=most),
        recovery=Recoverable(last_time=began, topics=most, topics_behind=most, behind=(behind,) * 100),
        retention=Deadlines(check_time=began, deadline=began, topics=(deadline,) * 100),
    )
    names = (longest,) * 100
    world = World()
    for number in range(MAX_HISTORY + 2):
        world.annotate(str(number))
        world.step()
        world.reports(
            world.progress(
                moving=tuple(TopicProgress(topic=name, done=1, total=2) for name in names),
                partitions_shown=tuple(
                    PartitionProgress(topic=name, partition=2**31, start=0, end=most, at=1, records=most, bytes=most)
                    for name in names
                ),
            )
        )
        world.pass_time(minutes=5)
        world.step()
        world.reports(
            result=world.failed_result(
                message=said,
                archive=reported,
                archive_id="a",
                loss=tuple(LossFact(topic=name, partition=2**31, start=0, end=most, reason=said) for name in names),
                loss_total=most,
                warnings=(said,) * 100,
                coverage=TopicCoverage(
                    protected=most,
                    unmatched=most,
                    left_out=most,
                    vanished=most,
                    unreadable=most,
                    patterns_unmatched=(said,) * 100,
                    topics_left_out=names,
                    topics_vanished=names,
                    topics_unreadable=names,
                ),
            )
        )
        world.job_is(active=0, failed=4, failure=("BackoffLimitExceeded", said))
        world.settle()
    found = world.status
    assert (found.recovery is not None, found.retention is not None, len(found.history)) == (True, True, MAX_HISTORY)
    assert found.progress is not None
    assert (len(found.progress.lagging), len(found.progress.moving)) == (20, 0)
    assert len(json.dumps(found.to_dict(), ensure_ascii=False).encode()) < 128 << 10


def test_metrics_of_a_backup_tell_the_recoverable_time_the_deadline_and_the_size() -> None:
    metrics, world = Metrics(), World()
    labels = {"kind": "KafkaBackup", "namespace": "team", "name": "nightly"}

    def shown() -> list[float | None]:
        names = ("last_recoverable_timestamp_seconds", "retention_deadline_timestamp_seconds", "archive_stored_bytes")
        return [metrics.registry.get_sample_value(f"logkeep_{name}", labels) for name in names]

    metrics.seen(world.resource.key, world.status, None)
    assert shown() == [0, math.inf, 0]
    succeeded(world, report(START + 10 * HOUR))
    metrics.seen(world.resource.key, world.status, None)
    assert shown() == [START.timestamp(), (START + 10 * HOUR).timestamp(), 1536]
    restore = World("KafkaRestore")
    metrics.seen(restore.resource.key, restore.status, None)
    labels = {"kind": "KafkaRestore", "namespace": "team", "name": "again"}
    assert shown() == [None, None, None]
    metrics.gone(world.resource.key)
    labels = {"kind": "KafkaBackup", "namespace": "team", "name": "nightly"}
    assert shown() == [None, None, None]
