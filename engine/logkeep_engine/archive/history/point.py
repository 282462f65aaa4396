"""Points: which state of a partition is looked at. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from logkeep_engine.archive.catalog.lines import FOREVER


class States(Enum):
    """Whether a state may stand for the log below its end: `NEWEST` does, `WHERE_NEEDED` the first one that stands for
    what is removed of the log does, if something is."""

    NEWEST = "newest"
    WHERE_NEEDED = "where needed"


@dataclass(frozen=True, slots=True)
class Point:
    """The part of a line that lies below the offset `end`. Only states of records before the time `before` (ms)
    count."""

    line: int
    end: int = FOREVER
    before: int | None = None
    states: States = States.WHERE_NEEDED
