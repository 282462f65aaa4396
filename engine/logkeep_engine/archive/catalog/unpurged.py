"""Segments that were removed from an archive, and whose objects may be there still. No I/O.

A commit takes segments out of the archive: nothing names their objects any more. The objects are deleted later, so that
readers who have begun before find them. Then another commit says that they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import NO_COMMIT, Partition
from logkeep_engine.archive.catalog.packed import SegmentTable

NOT_KNOWN = 0
"""The time of a removal in a checkpoint of an earlier version."""


@dataclass(frozen=True, slots=True)
class Unpurged:
    """The segments that one commit has removed. `time` is that of the commit, in ms since the epoch by its writer's
    clock. If it is NOT_KNOWN, `commit` is the last by which they were removed."""

    commit: int
    time: int
    segments: SegmentTable = field(default_factory=SegmentTable)

    @property
    def is_known(self) -> bool:
        """Whether `commit` is the very one that has removed the segments."""
        return self.time != NOT_KNOWN


def without_commits(
    removals: tuple[Unpurged, ...], commits: Collection[int], up_to: int = NO_COMMIT
) -> tuple[Unpurged, ...]:
    """The removals without those of these commits, and without all that were made up to one.

    Raises ValueError for a commit that has removed nothing, or whose objects were deleted before. A removal of an
    earlier version stays until all of it is known to be gone: nobody knows which of its segments are of which commit.
    """
    left = tuple(item for item in removals if item.commit > up_to and item.commit not in commits)
    known = {item.commit for item in removals}
    among_unknown = max((item.commit for item in removals if not item.is_known), default=NO_COMMIT)
    if wrong := [number for number in sorted(commits) if number not in known and number > among_unknown]:
        raise ValueError(f"the commits {', '.join(map(str, wrong))} have removed no segments to be deleted")
    return left


def told(gone: Iterable[Unpurged]) -> tuple[tuple[int, ...], int]:
    """The commits whose removals are done, and the one up to which all are, as a commit tells it of these removals.
    Another reader may have begun with a checkpoint that tells one unknown removal as several ones."""
    removals = list(gone)
    up_to = max((item.commit for item in removals if not item.is_known), default=NO_COMMIT)
    return tuple(sorted(item.commit for item in removals if item.is_known)), up_to


def all_unpurged(removals: Iterable[Unpurged], only: Partition | None = None) -> SegmentTable:
    """The segments of all these removals, or `only` those of one partition."""
    found = SegmentTable()
    for item in removals:
        for key in item.segments if only is None else {only} & set(item.segments):
            rows = item.segments[key]
            for at in range(len(rows)):
                found.add_row(key, rows.row(at))
    return found


def same_unpurged(some: tuple[Unpurged, ...], others: tuple[Unpurged, ...]) -> bool:
    """True if both say the same, as far as both know it."""
    if not all(item.is_known for item in (*some, *others)):
        mine, its = all_unpurged(some), all_unpurged(others)
        return set(mine) == set(its) and all(_rows(mine, key) == _rows(its, key) for key in mine)
    return some == others


def _rows(table: SegmentTable, key: Partition) -> list[bytes]:
    rows = table[key]
    return sorted(rows.row(at) for at in range(len(rows)))
