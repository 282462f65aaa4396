"""The positions of consumer groups that a point has, by what docs/guides/consumer-groups.md says of them."""

from __future__ import annotations

from tests.model.asking import Asked
from tests.model.reference import Positions
from tests.model.world import World


def positions_at(world: World, asked: Asked) -> Positions:
    """The newest archived positions at or before a point: of a run its own, at a time those of the last run that had
    ended, with offsets of each partition the newest that is not after its offset."""
    point, reference = asked.point or {}, world.reference
    ended = [(time, reference.positions[run]) for run, time in reference.successes]
    newest: Positions = ended[-1][1] if ended else {}
    if "run" in point:
        return reference.positions[point["run"]]
    if "offsets" in point:
        ends = {key: bounds.end for key, _, bounds in asked.bounded() if bounds.end is not None}
        found = {}
        for where in newest:
            end = ends.get(where[1:])
            fitting = (some[where] for _, some in reversed(ended) if where in some)
            offset = next((offset for offset in fitting if end is None or offset <= end), None)
            if offset is not None:
                found[where] = offset
        return found
    if asked.moment >= 0:
        return next((some for time, some in reversed(ended) if time <= asked.moment), {})
    return newest
