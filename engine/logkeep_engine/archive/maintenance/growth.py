"""How fast an archive grows, by the runs in its catalog. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import cache

from logkeep_engine.archive.catalog.facts import RunEntry
from logkeep_engine.archive.catalog.held_tables import TableKind, held_tables, removed_tables
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import SegmentBytes, bytes_of
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

    def objects(self, added: SegmentBytes, held: SegmentBytes) -> float:
        """Return the bytes of the objects that were added. Of what was `added` retention may have removed some, of
        which only the bytes of logs are known: it took as much as what is left, or as all segments that are `held`."""
        left = added if added.logs else held
        return sum(run.bytes for run in self.runs) * (left.objects / left.logs if left.logs else 1.0)

    def epochs(self, state: ArchiveState) -> Container[int]:
        """Return the epochs at which these runs wrote."""
        return _Epochs(runs_by_epoch(state), frozenset(run.run_id for run in self.runs))


class _Epochs(Container[int]):
    """The epochs of some runs. Each is looked up when it is asked for: the last of an archive is a claim, and may be
    too far to count to."""

    def __init__(self, name: Callable[[int], str], runs: frozenset[str]) -> None:
        self._name = cache(name)
        self._runs = runs

    def __contains__(self, epoch: object) -> bool:
        return isinstance(epoch, int) and epoch > 0 and self._name(epoch) in self._runs


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """The bytes of all objects that the catalog names, and of those that retention has removed and not deleted yet.
    `per_day` is what segments add to them in a day, None if that is not known."""

    bytes: int
    per_day: int | None

    @classmethod
    def of(cls, state: ArchiveState, grown: Growth | None) -> NamedObjects:
        """Return those of an archive that has grown so."""
        held, added, others = SegmentBytes(), SegmentBytes(), 0
        epochs: Container[int] = () if grown is None else grown.epochs(state)
        for table in held_tables(state):
            some, fresh = bytes_of(table.segments.packed, epochs)
            if table.kind in (TableKind.SNAPSHOT, TableKind.OLD_SNAPSHOT):  # later ones take the place of earlier ones
                others += some.objects
            else:
                held, added = held + some, added + fresh
        others += sum(bytes_of(table.segments.packed)[0].objects for table in removed_tables(state))
        per_day = None if grown is None else grown.per_day(round(grown.objects(added, held)))
        return cls(held.objects + others, per_day)


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


def runs_by_epoch(state: ArchiveState) -> Callable[[int], str]:
    """Return a function that names the run that wrote at an epoch. The catalog has the epoch of a run's last attempt
    only; an epoch that is the last attempt of none is of the next run with more attempts than one."""
    last = {run.epoch: run.run_id for run in state.runs.values()}
    retried = sorted((run.epoch, run.run_id) for run in state.runs.values() if run.attempts > 1)

    def name(epoch: int) -> str:
        return last.get(epoch) or next((run_id for later, run_id in retried if later > epoch), "")

    return name
