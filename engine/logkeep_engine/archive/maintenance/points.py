"""The runs whose states stay restorable. Pure.

    points = kept_points(state, KeepRules(runs=3, daily=7))

The newest run that succeeded is always kept. `runs` keeps the last N. `daily`, `weekly` and `monthly` keep the
newest run of each of the last N days, weeks (from Monday) and months that have one, by the end of the run in UTC:
grandfather, father, son. Days without a run do not count, as in `restic forget`. A hold keeps its run.

Runs are counted in the order in which they were made, whatever their times say: a clock that was wrong takes one place
of a kind, and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

from logkeep_engine.archive.catalog.facts import RunEntry
from logkeep_engine.archive.catalog.holds import HoldKind
from logkeep_engine.archive.catalog.state import ArchiveState

LAST, RUNS, DAILY, WEEKLY, MONTHLY, HELD = "last", "keepRuns", "daily", "weekly", "monthly", "hold"
_FIRST_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class KeepRules:
    """How many runs are kept as points, by each rule."""

    runs: int = 0
    daily: int = 0
    weekly: int = 0
    monthly: int = 0

    @property
    def is_set(self) -> bool:
        return self != LAST_ONLY


LAST_ONLY = KeepRules()
"""Without rules the newest run alone is kept."""


@dataclass(frozen=True, slots=True)
class KeptPoint:
    """The state of the archive at the end of a run (`time`, ms), and the rules by which it is kept."""

    run_id: str
    epoch: int
    time: int
    rules: tuple[str, ...]

    @property
    def is_held(self) -> bool:
        return HELD in self.rules

    @property
    def is_kept(self) -> bool:
        """Whether a rule keeps it. The newest run without one is what the limits leave now."""
        return self.rules != (LAST,)

    def __str__(self) -> str:
        return f"run {self.run_id} ({', '.join(self.rules)})"


def kept_points(state: ArchiveState, keep: KeepRules) -> list[KeptPoint]:
    """Return the points that stay, the oldest first; the last one is that of the newest run that succeeded."""
    runs = state.successes()
    held = {hold.name for hold in state.retention_holds if hold.kind is HoldKind.RUN}
    why: dict[str, list[str]] = {run.run_id: [] for run in runs}
    if runs:
        why[runs[-1].run_id].append(LAST)
    for run in runs[len(runs) - min(keep.runs, len(runs)) :]:
        why[run.run_id].append(RUNS)
    for rule, count in ((DAILY, keep.daily), (WEEKLY, keep.weekly), (MONTHLY, keep.monthly)):
        for run in _newest_of_each(runs, _PERIODS[rule], count):
            why[run.run_id].append(rule)
    for run_id in held & why.keys():
        why[run_id].append(HELD)
    return [KeptPoint(run.run_id, run.epoch, _end(run), tuple(why[run.run_id])) for run in runs if why[run.run_id]]


def _newest_of_each(runs: list[RunEntry], period: Callable[[date], object], count: int) -> Iterator[RunEntry]:
    seen: set[object] = set()
    for run in reversed(runs):
        if len(seen) == count:
            return
        own = period(_day(_end(run)))
        if own not in seen:
            seen.add(own)
            yield run


def _end(run: RunEntry) -> int:
    return run.end_time or run.begin_time


def _day(time: int) -> date:
    try:
        return datetime.fromtimestamp(time / 1000, UTC).date()
    except (ValueError, OverflowError, OSError):
        return _FIRST_TIME.date()


_PERIODS: dict[str, Callable[[date], object]] = {
    DAILY: lambda day: day,
    WEEKLY: lambda day: day.isocalendar()[:2],
    MONTHLY: lambda day: (day.year, day.month),
}
