"""Cron expressions: what a CronJob means by them, and what becomes of them when clocks change."""

from __future__ import annotations

import random
from bisect import bisect_right
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from logkeep_engine.contract.cron import CronInvalid, CronTimes, parse_zone


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def times(expression: str, zone: str = "UTC") -> CronTimes:
    return CronTimes.parse(expression, parse_zone(zone))


def all_between(found: CronTimes, first: datetime, last: datetime) -> list[datetime]:
    listed = []
    at = found.after(first)
    while at is not None and at <= last:
        listed.append(at)
        at = found.after(at)
    return listed


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 2 * * *", "2026-11-21T08:00:00Z", "2026-11-22T02:00:00Z"),
        ("0 2 * * *", "2026-11-22T02:00:00Z", "2026-11-23T02:00:00Z"),
        ("0 2 * * *", "2026-11-22T01:59:59.9Z", "2026-11-22T02:00:00Z"),
        ("*/15 * * * *", "2026-11-22T23:46:00Z", "2026-11-23T00:00:00Z"),
        ("20-35/15 * * * *", "2026-11-22T15:45:00Z", "2026-11-22T16:20:00Z"),
        ("5/20 * * * *", "2026-11-22T15:06:00Z", "2026-11-22T15:25:00Z"),
        ("30 8 ? Jul Sun", "2012-07-09T00:00:00Z", "2012-07-15T08:30:00Z"),
        ("0 0 9 Apr-Oct ?", "2012-07-09T23:35:00Z", "2012-08-09T00:00:00Z"),
        ("0 0 29 2 *", "2026-11-22T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 * * 7", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),
        ("0 0 1 * mon", "2026-11-22T00:00:00Z", "2026-11-23T00:00:00Z"),  # one of the two suffices
        ("0 0 * * mon", "2026-11-24T00:00:00Z", "2026-11-30T00:00:00Z"),
        ("0 0 */2 * 0", "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"),  # a Sunday with an even number
        ("0 0 */1 * 0", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"),
        ("0 0 5,* * 0", "2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"),
        ("0 0 * * fri/1", "2026-11-21T00:00:00Z", "2026-11-27T00:00:00Z"),  # until Saturday
        ("0 0 * * Mon/2", "2026-11-23T00:00:00Z", "2026-11-25T00:00:00Z"),
        ("@hourly", "2026-11-22T02:00:00Z", "2026-11-22T03:00:00Z"),
        ("@daily", "2026-11-22T02:00:00Z", "2026-11-23T00:00:00Z"),
        ("@weekly", "2026-11-22T02:00:00Z", "2026-11-29T00:00:00Z"),
        ("@monthly", "2026-11-22T02:00:00Z", "2026-12-01T00:00:00Z"),
        ("@yearly", "2026-11-22T02:00:00Z", "2027-01-01T00:00:00Z"),
    ],
)
def test_the_next_time_is_that_of_a_cron_job(expression: str, after: str, expected: str) -> None:
    assert times(expression).after(moment(after)) == moment(expected)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("61 2 * * *", "bad minute"),
        ("0 24 * * *", "bad hour"),
        ("0 0 32 * *", "bad day-of-month"),
        ("0 0 31 4 *", "bad day-of-month"),
        ("0 0 * 13 *", "bad month"),
        ("0 0 * * 8", "bad day-of-week"),
        ("0 0 * abc *", "bad month"),
        ("*/0 * * * *", "bad minute"),
        ("5-1 * * * *", "bad minute"),
        ("0 2 * *", "4 fields"),
        ("0 0 2 * * *", "6 fields"),
    ],
)
def test_a_time_that_is_none_is_refused(expression: str, what: str) -> None:
    with pytest.raises(CronInvalid, match=what):
        times(expression)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Local", "localtime", "", "../etc/passwd", "Europe"])
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(CronInvalid):
        parse_zone(zone)


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # 2027-03-28: 02:00 becomes 03:00 in Berlin. A fixed hour that is skipped comes when it would have been over.
        ("30 2 * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T01:00:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2027-03-28T01:00:00Z", "2027-03-29T00:30:00Z"),
        ("0 3 * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T01:00:00Z"),
        ("0 * * * *", "Europe/Berlin", "2027-03-28T00:00:00Z", "2027-03-28T01:00:00Z"),
        # 2027-10-31: 03:00 becomes 02:00. The first 02:30 counts, also seen from the second.
        ("30 2 * * *", "Europe/Berlin", "2027-10-30T22:00:00Z", "2027-10-31T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2027-10-31T01:10:00Z", "2027-11-01T01:30:00Z"),
        ("0 * * * *", "Europe/Berlin", "2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z"),
        ("0 * * * *", "Europe/Berlin", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"),
        ("0 9 * * *", "Asia/Kolkata", "2026-11-22T00:00:00Z", "2026-11-22T03:30:00Z"),
    ],
)
def test_when_the_clock_changes_a_fixed_hour_comes_once(expression: str, zone: str, after: str, expected: str) -> None:
    assert times(expression, zone).after(moment(after)) == moment(expected)


@pytest.mark.parametrize("expression", ["30 2 * * *", "15 1 * * *", "0 0 * * *", "45 23 * * *"])
@pytest.mark.parametrize(
    ("zone", "year"),
    [
        ("Europe/Berlin", 2027),
        ("America/New_York", 2027),
        ("Australia/Lord_Howe", 2027),  # by half an hour
        ("Africa/Cairo", 2024),  # at midnight
        ("America/Sao_Paulo", 2018),
        ("Asia/Beirut", 2022),
        ("Pacific/Apia", 2012),
    ],
)
def test_every_day_of_a_year_has_one_run(expression: str, zone: str, year: int) -> None:
    """The next time from any moment is the same as on the way through the year."""
    found = times(expression, zone)
    begin = datetime(year, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end = datetime(year + 1, 1, 1, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    listed = all_between(found, begin - timedelta(seconds=1), end - timedelta(seconds=1))
    days = [at.astimezone(ZoneInfo(zone)).date() for at in listed]
    assert len(days) == len(set(days)) == (end.date() - begin.date()).days
    drawn = random.Random(f"{zone} {expression}")
    for _ in range(60):
        at = begin + timedelta(seconds=drawn.randrange(int((listed[-1] - begin).total_seconds())))
        assert found.after(at) == listed[bisect_right(listed, at)]


@pytest.mark.parametrize(
    "expression", ["* * * * *", "*/7 3 * * *", "0 2 * * *", "30 2 1,15 * 5", "0 0 1 1 *", "* 1 * * *"]
)
def test_the_latest_time_is_the_last_of_all_between(expression: str) -> None:
    found, drawn = times(expression, "Europe/Berlin"), random.Random(expression)
    for _ in range(40):
        last = moment("2027-10-31T03:00:00Z") + timedelta(minutes=drawn.randrange(-3000, 3000), seconds=drawn.random())
        first = last - timedelta(minutes=drawn.randrange(0, 3000))
        listed = all_between(found, first - timedelta(microseconds=1), last)
        assert found.latest(first.replace(microsecond=0), last) == (listed[-1] if listed else None)


def test_the_latest_time_of_every_minute_for_ten_years_is_found_at_once() -> None:
    found = times("* * * * *")
    last = moment("2026-11-22T02:00:30Z")
    assert found.latest(last - timedelta(days=3650), last) == moment("2026-11-22T02:00:00Z")
