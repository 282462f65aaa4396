"""Segments that were removed from an archive, and whose objects may still be there. No I/O.

A commit takes segments out of the archive: the state no longer names their objects. The objects are deleted later, so
that readers that began before find them. Then another commit says that they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import SegmentTable


@dataclass(frozen=True, slots=True)
class Unpurged:
    """The segments that one commit has removed. `time` is that of the commit, in ms since the epoch by its writer's
    clock."""

    commit: int
    time: int
    segments: SegmentTable = field(default_factory=SegmentTable)


def without_commits(removals: tuple[Unpurged, ...], commits: Collection[int]) -> tuple[Unpurged, ...]:
    """The removals without those of these commits. Raises ValueError for a commit that has removed nothing, or whose
    objects were deleted before."""
    known = {item.commit for item in removals}
    if wrong := [number for number in sorted(commits) if number not in known]:
        raise ValueError(f"the commits {', '.join(map(str, wrong))} have removed no segments to be deleted")
    return tuple(item for item in removals if item.commit not in commits)


def all_unpurged(removals: Iterable[Unpurged], only: Partition | None = None) -> SegmentTable:
    """The segments of all these removals, or `only` those of one partition."""
    found = SegmentTable()
    for item in removals:
        for key in item.segments if only is None else {only} & set(item.segments):
            rows = item.segments[key]
            for at in range(len(rows)):
                found.add_row(key, rows.row(at))
    return found
