"""Tells what an erasure, a new generation, or whoever else takes records out of an archive, must leave alone."""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.archive.catalog.holds import Hold, HoldKind, topic_hold
from logkeep_engine.archive.catalog.replacements import first_epochs
from logkeep_engine.archive.catalog.state import ArchiveState


def hold_on(state: ArchiveState, topic_id: str, *, removed: bool = False) -> Hold | None:
    """A hold on a topic: on its name, or on a run that has, or may have, records of it. `removed`: also records that no
    commit names any more, and whose objects are there."""
    if not state.retention_holds:
        return None
    hold = topic_hold(state.retention_holds, state.topics[topic_id].name)
    if hold is not None:
        return hold
    gone = _removed_epochs(state, topic_id) if removed else ()
    first = min((*_epochs(state, topic_id), *gone), default=None)
    for item in state.retention_holds:
        run = state.runs.get(item.name) if item.kind is HoldKind.RUN else None
        if run is not None and first is not None and first <= run.epoch:
            return item
    return None


def _removed_epochs(state: ArchiveState, topic_id: str) -> Iterator[int]:
    for item in state.unpurged:
        for key in item.segments:
            if key[0] == topic_id:
                yield from map(first_epochs(state.replaced.get(key, ())), item.segments[key])


def _epochs(state: ArchiveState, topic_id: str) -> Iterator[int]:
    """The epochs at which what the archive has of a topic was archived, with that of branches and snapshots."""
    for key in {*state.segments, *state.branches, *state.snapshots}:
        if key[0] == topic_id:
            epoch_of = first_epochs(state.replaced.get(key, ()))
            branches = state.branches.get(key, ())
            yield from map(epoch_of, state.segments.get(key, ()))
            yield from (epoch_of(entry) for branch in branches for entry in branch.segments)
            snapshots = [
                *state.snapshots.get(key, ()),
                *(item for branch in branches for item in branch.held.snapshots),
            ]
            yield from (epoch_of(part) for item in snapshots for part in item.parts(key))
