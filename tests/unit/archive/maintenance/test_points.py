"""Which runs stay restorable points: the last ones, and the newest of each day, week and month."""

from datetime import UTC, datetime

import pytest

from logkeep_engine.archive.catalog.facts import RunEntry, RunOutcome
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.points import KeepRules, kept_points


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def ran(*ends: str, kind: str = "KafkaBackup") -> ArchiveState:
    """A state with a run that ended at each of these times; its id is the time."""
    state = ArchiveState()
    for epoch, end in enumerate(ends, 1):
        run_id = end.replace(":", "-")
        state.runs[run_id] = RunEntry(run_id, epoch, kind, ms(end) - 1, ms(end), RunOutcome.SUCCEEDED)
    return state


def kept(state: ArchiveState, **rules: int) -> dict[str, str]:
    return {point.run_id: ",".join(point.rules) for point in kept_points(state, KeepRules(**rules))}


DAYS = ran("2026-10-30T23:59:59", "2026-10-31T00:00:00", "2026-10-31T12:00:00", "2026-11-01T23:00:00", "2026-11-02")


def test_the_newest_run_is_always_kept() -> None:
    assert kept(DAYS) == {"2026-11-02": "last"}
    assert kept(ArchiveState(), runs=3, daily=3) == {}


def test_the_last_runs_are_kept() -> None:
    assert list(kept(DAYS, runs=3)) == ["2026-10-31T12-00-00", "2026-11-01T23-00-00", "2026-11-02"]
    assert len(kept(DAYS, runs=100)) == 5


def test_of_each_day_week_and_month_that_has_a_run_the_newest_is_kept() -> None:
    assert kept(DAYS, daily=3) == {
        "2026-10-31T12-00-00": "daily",
        "2026-11-01T23-00-00": "daily",
        "2026-11-02": "last,daily",
    }
    assert kept(DAYS, weekly=2) == {"2026-11-01T23-00-00": "weekly", "2026-11-02": "last,weekly"}  # a Monday
    assert kept(DAYS, monthly=5) == {"2026-10-31T12-00-00": "monthly", "2026-11-02": "last,monthly"}
    assert kept(DAYS, runs=1, daily=1, monthly=2)["2026-11-02"] == "last,keepRuns,daily,monthly"


def test_days_without_a_run_do_not_count() -> None:
    assert len(kept(ran("2026-01-01", "2026-05-01", "2026-11-01"), daily=3)) == 3


def test_runs_that_failed_or_only_took_care_are_no_points() -> None:
    state = ran("2026-11-01", "2026-11-02")
    state.runs["care"] = RunEntry("care", 3, "Retention", 0, ms("2026-11-03"), RunOutcome.SUCCEEDED)
    state.runs["failed"] = RunEntry("failed", 4, "KafkaBackup", 0, ms("2026-11-03"), RunOutcome.FAILED)
    assert list(kept(state, runs=5, daily=5)) == ["2026-11-01", "2026-11-02"]


def test_a_hold_keeps_its_run() -> None:
    state = ran("2026-11-01", "2026-11-02")
    state.retention_holds = (Hold(HoldKind.RUN, "2026-11-01", HoldOrigin.SPEC),)
    assert kept(state) == {"2026-11-01": "hold", "2026-11-02": "last"}


@pytest.mark.parametrize("wrong", ["1970-01-01", "2099-01-01"])
def test_a_clock_that_was_wrong_takes_one_place_of_a_kind(wrong: str) -> None:
    state = ran("2026-11-01", "2026-11-02", wrong, "2026-11-03", "2026-11-04")
    assert list(kept(state, daily=4)) == ["2026-11-02", wrong, "2026-11-03", "2026-11-04"]
