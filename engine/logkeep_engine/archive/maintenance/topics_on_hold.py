"""Tells what must stay in an archive, no matter what takes records out of it: an erasure, a new generation, or
something else."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from logkeep_engine.archive.catalog.held_tables import TableKind, held_tables, removed_tables
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, topic_hold
from logkeep_engine.archive.catalog.state import ArchiveState


def hold_on(state: ArchiveState, topic_id: str, *, removed: bool = False) -> Hold | None:
    """Return a hold on a topic: on its name, or on a run that has, or may have, records of it. `removed`: also records
    that no commit names any more, and whose objects are there."""
    if not state.retention_holds:
        return None
    hold = topic_hold(state.retention_holds, state.topics[topic_id].name)
    if hold is not None:
        return hold
    first = min(_epochs(state, topic_id, removed=removed), default=None)
    for item in state.retention_holds:
        run = state.runs.get(item.name) if item.kind is HoldKind.RUN else None
        if run is not None and first is not None and first <= run.epoch:
            return item
    return None


def _epochs(state: ArchiveState, topic_id: str, *, removed: bool) -> Iterator[int]:
    """Yield the epochs at which what the archive has of a topic was archived. No run shows a generation that is being
    read."""
    gone = removed_tables(state, {topic_id}) if removed else ()
    for table in chain(held_tables(state, {topic_id}), gone):
        if table.kind is not TableKind.PASSIVE:
            yield from (entry.archived_first for entry in table.segments)
