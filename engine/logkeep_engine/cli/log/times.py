"""Times and ranges, as the commands `logkeep log …` take and show them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from logkeep_engine.errors import SpecError

_OFFSETS = re.compile(r"(-?[0-9]+)?\.\.(-?[0-9]+)?|(-?[0-9]+)")


def parse_time(text: str) -> int:
    """Read a time in ISO 8601 (UTC unless it says otherwise), or in ms. Returns ms since the epoch."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise SpecError(f"{text!r} is not a time", hint="Write 2026-11-17T14:05:00Z, or ms since the epoch.") from error
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return round(found.timestamp() * 1000)


def moment(timestamp: int | None) -> str:
    """Show a time (ms) in ISO 8601, UTC. No time is "-", and a time that no calendar has is its number."""
    from logkeep_engine.archive.moments import iso

    if timestamp is None:
        return "-"
    try:
        return iso(timestamp)
    except (OverflowError, ValueError, OSError):
        return str(timestamp)


def offset_range(text: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last offset of --offset. Raises SpecError."""
    if text is None:
        return None, None
    match = _OFFSETS.fullmatch(text.strip())
    if match is None or text.strip() == "..":
        raise SpecError(f"--offset {text!r} is not a range", hint="Write A..B, A.., ..B or A.")
    if match[3] is not None:
        return int(match[3]), int(match[3])
    first, last = (int(part) if part else None for part in match.groups()[:2])
    return _rising("--offset", text, first, last)


def time_range(text: str | None) -> tuple[int | None, int | None]:
    """Return the first and the last time (ms) of --time. Raises SpecError."""
    if text is None:
        return None, None
    begin, dots, end = text.partition("..")
    if not dots or not (begin or end):
        raise SpecError(f"--time {text!r} is not a range", hint="Write FROM..TO, FROM.. or ..TO.")
    first, last = (parse_time(part) if part else None for part in (begin, end))
    return _rising("--time", text, first, last)


def _rising(option: str, text: str, first: int | None, last: int | None) -> tuple[int | None, int | None]:
    if first is not None and last is not None and last < first:
        raise SpecError(f"{option} {text!r} ends before it begins")
    return first, last
