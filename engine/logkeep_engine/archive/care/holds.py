"""Tells what an erasure, or whoever else takes records out of an archive, must leave alone."""

from __future__ import annotations

from logkeep_engine.archive.catalog.holds import Hold, HoldKind, topic_hold
from logkeep_engine.archive.catalog.state import ArchiveState


def hold_on(state: ArchiveState, topic_id: str) -> Hold | None:
    """A hold on a topic: on its name, or on a run that has, or may have, records of it."""
    hold = topic_hold(state.retention_holds, state.topics[topic_id].name)
    if hold is not None:
        return hold
    epochs = [
        *(entry.epoch for key, entries in state.segments.items() if key[0] == topic_id for entry in entries),
        *(
            entry.epoch
            for key, branches in state.branches.items()
            if key[0] == topic_id
            for branch in branches
            for entry in branch.segments
        ),
    ]
    first = min(epochs, default=None)
    for item in state.retention_holds:
        run = state.runs.get(item.name) if item.kind is HoldKind.RUN else None
        if run is not None and first is not None and first <= run.epoch:
            return item
    return None
