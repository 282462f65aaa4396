"""Finds removals whose objects kept points still need.

What retention removes no kept point needs. A generation that becomes active does not ask: it takes the place of what
points before it have. So the objects of that stay as long as one of these points is kept, or held.
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.archive.care.points import KeptPoint
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import GenerationStep
from logkeep_engine.archive.catalog.replacements import first_epochs
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged


def points_with(
    archive: Archive, state: ArchiveState, item: Unpurged, points: Sequence[KeptPoint]
) -> tuple[KeptPoint, ...]:
    """The points that have segments which a new generation has replaced with this removal. Raises ArchiveDamaged if
    the catalog is."""
    if not item.is_known or not state.generations:
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
