"""How fast an archive grows, by the runs in its catalog. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from logkeep_engine.archive.catalog.facts import RunEntry
from logkeep_engine.contract.names import BACKUP

DAY_MS = 86_400_000
GROWTH_MS = 7 * DAY_MS
LEAST_GROWTH_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Growth:
    """The `runs` of the backups that began between `since` and `until` (ms since the epoch), and what they added."""

    since: int
    until: int
    runs: tuple[RunEntry, ...]

    @property
    def bytes_per_day(self) -> int:
        """Bytes of logs, or of records."""
        return self.per_day(sum(run.bytes for run in self.runs))

    def per_day(self, count: int) -> int:
        """Return the part of a day in what was counted between `since` and `until`."""
        return count * DAY_MS // (self.until - self.since)


def growth(runs: Iterable[RunEntry], now: int) -> Growth | None:
    """Return the growth by the latest backups, None if it cannot be known yet. The runs up to the first that succeeded
    are left out: they archived what had been there before."""
    backups = [run for run in runs if run.kind == BACKUP]
    first = next((at for at, run in enumerate(backups) if run.success is not None), None)
    if first is None or first + 1 == len(backups):
        return None
    since = max(backups[first].begin_time, now - GROWTH_MS)
    if now - since < LEAST_GROWTH_MS:
        return None
    return Growth(since, now, tuple(run for run in backups[first + 1 :] if run.begin_time >= since))
