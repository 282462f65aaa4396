"""When a cluster may delete records that are not archived, from its limits and from what the archive shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.recoverability.deadlines import RunTimes, WatchedPartition, deadlines
from logkeep_engine.contract.facts.archive import Cause
from logkeep_engine.contract.facts.values import MAX_TIME, time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.log.cleanup import NO_LIMITS, LogLimits
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, archive_of, changed, chunk

KEY = (ORDERS.topic_id, 0)
SECOND, HOUR = 1000, 3_600_000
DAY_LIMIT = LogLimits(ms=24 * HOUR)
NOW = TIME + 10 * HOUR
TIMES = RunTimes(now=NOW, begun=NOW - SECOND)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def watched(limits: LogLimits, log_start: int | None = 0, oldest: int = NOW) -> WatchedPartition:
    return WatchedPartition("orders", KEY, limits, oldest, log_start)


def archived(storage: Storage, *, hours: float = 0, size: int = 3600) -> ArchiveState:
    """Segments [0, 10) and [10, 20) of `size` bytes each. The second one is `hours` later than the first."""
    receipts = [chunk(storage, 0, 10), chunk(storage, 10, 20)]
    shift = int(hours * HOUR)
    entries = [changed(receipt.segments[0], bytes=size) for receipt in receipts]
    later = changed(
        entries[1],
        min_base_timestamp=entries[1].times.min_base_timestamp + shift,
        max_timestamp=entries[1].times.max_timestamp + shift,
    )
    found = [replace(receipts[0], segments=(entries[0],)), replace(receipts[1], segments=(later,))]
    return archive_of(storage, *found).load()


def test_a_record_is_kept_for_retention_ms_from_the_time_of_the_oldest_that_is_not_archived() -> None:
    (found,) = deadlines([watched(DAY_LIMIT, oldest=TIME)], ArchiveState(), TIMES)
    assert (found.deadline, found.oldest_time) == (time_of((TIME + 24 * HOUR) / 1000), time_of(TIME / 1000))
    assert (found.topic, found.partition, found.window_seconds, found.cause) == ("orders", 0, 86400, Cause.TIME)


def test_the_soonest_partition_counts_and_the_soonest_topic_is_first() -> None:
    users = replace(watched(DAY_LIMIT, oldest=NOW - 2), topic="users")
    parts = [watched(DAY_LIMIT), replace(watched(DAY_LIMIT, oldest=NOW - 1), key=(ORDERS.topic_id, 1)), users]
    assert [(topic.topic, topic.partition) for topic in deadlines(parts, ArchiveState(), TIMES)] == [
        ("users", 0),
        ("orders", 1),
    ]


def test_without_a_limit_there_is_no_deadline(storage: Storage) -> None:
    state = archived(storage)
    assert deadlines([watched(NO_LIMITS, log_start=20)], state, TIMES) == []
    assert deadlines([watched(LogLimits(ms=int(MAX_TIME * 1000)))], state, TIMES) == []


def test_retention_bytes_are_a_time_at_the_rate_of_the_whole_log(storage: Storage) -> None:
    state = archived(storage, hours=5)  # 7,200 bytes in ten hours
    (found,) = deadlines([watched(LogLimits(bytes=14400))], state, TIMES)
    assert found.cause is Cause.SIZE
    assert found.window_seconds == pytest.approx(20 * 3600, abs=5)
    (sooner,) = deadlines([watched(LogLimits(ms=HOUR, bytes=14400))], state, TIMES)
    assert (sooner.cause, sooner.window_seconds) == (Cause.TIME, 3600)


def test_retention_bytes_are_a_shorter_time_when_more_has_come_since_the_run_before(storage: Storage) -> None:
    state = archived(storage)  # at epoch 1
    (found,) = deadlines([watched(LogLimits(bytes=14400))], state, replace(TIMES, before=TIMES.begun - HOUR))
    assert found.window_seconds == 2 * 3600
    (none_new,) = deadlines(
        [watched(LogLimits(bytes=14400))], state, replace(TIMES, before=TIMES.begun - HOUR, epoch_before=1)
    )
    assert none_new.window_seconds == pytest.approx(20 * 3600, abs=5)


@pytest.mark.parametrize(
    ("log_start", "hours", "cause"),
    [
        (0, 0, Cause.TIME),
        (9, 0, Cause.TIME),  # the first segment has a record that is still there
        (10, 0, Cause.DELETED),
        (15, 0, Cause.DELETED),
        (20, 0, Cause.DELETED),
        (25, 0, Cause.DELETED),
        (None, 0, Cause.TIME),
    ],
)
def test_an_archived_segment_that_is_gone_from_the_log_shows_how_long_records_are_kept(
    storage: Storage, log_start: int | None, hours: float, cause: Cause
) -> None:
    (found,) = deadlines([watched(DAY_LIMIT, log_start)], archived(storage, hours=hours), TIMES)
    assert found.cause is cause
    assert found.window_seconds == (86400 if cause is Cause.TIME else 36000 - 1)


def test_a_record_of_a_clock_that_is_ahead_counts_as_new(storage: Storage) -> None:
    assert deadlines([watched(DAY_LIMIT, 20)], archived(storage, hours=20), TIMES)[0].window_seconds == 0


def test_the_youngest_record_that_was_deleted_counts(storage: Storage) -> None:
    state = archived(storage, hours=9)
    ages = [deadlines([watched(DAY_LIMIT, start)], state, TIMES)[0].window_seconds for start in (10, 20)]
    assert ages == [36000 - 1, 3600 - 1]


def test_a_record_that_was_deleted_later_than_the_configuration_says_tells_nothing(storage: Storage) -> None:
    (found,) = deadlines([watched(LogLimits(ms=HOUR), 20)], archived(storage), TIMES)
    assert (found.cause, found.window_seconds) == (Cause.TIME, 3600)
