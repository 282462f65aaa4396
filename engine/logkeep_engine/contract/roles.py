"""The users of an archive, by what they may do there."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """A user of an archive, as docs/security.md has policies for them. Each may do what those before it may."""

    READER = "reader"
    WRITER = "writer"
    PRUNER = "pruner"
    ERASER = "eraser"

    def includes(self, other: Role) -> bool:
        """Return whether such a user may do what the other one may."""
        order = [*Role]
        return order.index(other) <= order.index(self)
