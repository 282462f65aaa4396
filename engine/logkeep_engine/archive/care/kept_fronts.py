"""Finds removals whose objects kept points still need.

What retention removes no kept point needs. A generation that becomes active does not ask: it takes the place of what
points before it have. So the objects of that stay as long as one of these points is kept, or held.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from logkeep_engine.archive.care.points import LAST_ONLY, KeptPoint, kept_points
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import GenerationStep
from logkeep_engine.archive.catalog.held_tables import HeldTable, TableKind
from logkeep_engine.archive.catalog.replacements import first_epochs
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged


def points_with(
    archive: Archive, state: ArchiveState, item: Unpurged, points: Sequence[KeptPoint]
) -> tuple[KeptPoint, ...]:
    """The points that have segments which a new generation has replaced with this removal. Raises ArchiveDamaged if
    the catalog is."""
    if not state.generations:
        return ()
    commit = archive.read_commit(item.commit)
    changes = (change for change in commit.generations if change.step is GenerationStep.ACTIVATE)
    keys = {(change.topic_id, change.partition) for change in changes} & set(item.segments)
    first = min(
        (
            epoch_of(entry)
            for key in keys
            for epoch_of in [first_epochs(state.replaced.get(key, ()))]
            for entry in item.segments[key]
        ),
        default=commit.epoch,
    )
    return tuple(point for point in points if first <= point.epoch < commit.epoch)


def kept_tables(archive: Archive, state: ArchiveState, topic_ids: Collection[str]) -> Iterator[HeldTable]:
    """The segments of these topics that a new generation has replaced and the newest run that succeeded, or one with a
    hold, has: nobody deletes their objects. Rules keep more, but the catalog does not have them. Raises ArchiveDamaged
    if the catalog is."""
    points = kept_points(state, LAST_ONLY) if state.unpurged else []
    for item in state.unpurged:
        if points_with(archive, state, item, points):
            keys = sorted(key for key in item.segments if key[0] in topic_ids)
            yield from (HeldTable(TableKind.REMOVED, key, item.segments[key]) for key in keys)
