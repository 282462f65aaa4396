"""Times as people read them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(ms: int) -> str:
    """ISO 8601 in UTC of ms since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(ms: int) -> str:
    """Like `iso`; empty for -1 (no time), and for times that no calendar has: producers may write any number."""
    if ms < 0:
        return ""
    try:
        return iso(ms)
    except (ValueError, OverflowError, OSError):
        return ""
