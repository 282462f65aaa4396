"""The choice of names by the fields `include` and `exclude` of a spec."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence


class NamePatterns:
    """Regular expressions that must match a whole name: one of `include`, and none of `exclude`."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._include = [re.compile(pattern) for pattern in include]
        self._exclude = [re.compile(pattern) for pattern in exclude]

    def chooses(self, name: str) -> bool:
        """Whether the patterns choose the name."""
        return any(pattern.fullmatch(name) for pattern in self._include) and not self.excludes(name)

    def excludes(self, name: str) -> bool:
        """Whether `exclude` leaves the name out, whatever `include` says."""
        return any(pattern.fullmatch(name) for pattern in self._exclude)

    def unmatched(self, names: Collection[str]) -> list[int]:
        """The places in `include` of the patterns that match none of these names."""
        return [at for at, pattern in enumerate(self._include) if not any(pattern.fullmatch(name) for name in names)]
