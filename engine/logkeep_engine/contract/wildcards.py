"""Names with `*` in the lists of what an installation allows."""

from __future__ import annotations

import re
from collections.abc import Iterable


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern is the whole name. `*` stands for any characters, also for none."""
    return any(re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) for pattern in patterns)
