"""Ranges of which an archive has nothing, and why. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MissingKind(StrEnum):
    """Why there is nothing. `LOST`: it was gone in the cluster before it was archived. `REMOVED`: retention has removed
    it. `UNKNOWN`: the archive does not account for it."""

    LOST = "lost"
    REMOVED = "removed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Offsets [start, end) of which there is nothing. `reason`: what a gap says of itself."""

    start: int
    end: int
    kind: MissingKind
    reason: str = ""
