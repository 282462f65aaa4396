"""Segments that an erasure has replaced: what took the place of each, so that older states find it. No I/O.

The objects of a replaced segment are gone, and an older state of the archive still names them. What the erasure has
left of a segment stands in its place there, too: `ArchiveState.following`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from logkeep_engine.archive.catalog.packed import ROW_BYTES, identity_of

Identity = tuple[int, int, int]


class Replacement(NamedTuple):
    """A segment that was replaced, by base offset, epoch and attempt, and the row of the one in its place (b"": nothing
    is left of it)."""

    segment: Identity
    row: bytes


def rows_following(rows: bytes | bytearray, replacements: Iterable[Replacement]) -> bytes:
    """The rows of segments after these replacements."""
    latest = {item.segment: item.row for item in replacements}
    found = bytearray()
    for at in range(0, len(rows), ROW_BYTES):
        row = bytes(rows[at : at + ROW_BYTES])
        while row and (identity := identity_of(row)) in latest:
            row = latest[identity]
        found += row
    return bytes(found)


def replacements_out(replacements: Sequence[Replacement]) -> tuple[list[list[int]], bytes]:
    """The replacements as a checkpoint has them: base offset, epoch, attempt and the number of rows of each, and the
    rows."""
    return [[*item.segment, 1 if item.row else 0] for item in replacements], b"".join(item.row for item in replacements)


def replacements_in(items: Iterable[Sequence[int]], rows: bytes | memoryview) -> tuple[list[Replacement], int]:
    """The replacements of a checkpoint, and how many bytes of `rows` are theirs. Raises ValueError if rows are
    missing."""
    found: list[Replacement] = []
    at = 0
    for base, epoch, attempt, count in items:
        row = bytes(rows[at : at + count * ROW_BYTES])
        if count not in (0, 1) or len(row) != count * ROW_BYTES:
            raise ValueError(f"segment {base} of epoch {epoch} was replaced by {count} segments in {len(row)} bytes")
        found.append(Replacement((base, epoch, attempt), row))
        at += len(row)
    return found, at
