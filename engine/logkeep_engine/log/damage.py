"""Damage of a log or a file: bytes that are not as they were written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DamagedBytes:
    """`size` bytes from `position` on are damaged. `offset` is the lowest that may be lost with them.

    -1 stands for a number that is unknown. Size 0: the object is not as it was written, but no byte of the log is
    lost.
    """

    what: str
    size: int = -1
    position: int = -1
    offset: int = -1

    @property
    def end(self) -> int:
        """The position after the last damaged byte."""
        return self.position + self.size


OnDamagedBytes = Callable[[DamagedBytes], None]
"""A reader calls this with each damage that it meets, and continues after it."""
