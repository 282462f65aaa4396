"""Damage in place: a reader that goes on behind damage hands it out between what is whole."""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.segments import Fault


@dataclass(frozen=True, slots=True)
class Damage:
    """A `fault` and the offsets [start, end) that cannot be read for it; None: nothing is lost, but the object is not
    as it was."""

    fault: Fault
    lost: Range | None
