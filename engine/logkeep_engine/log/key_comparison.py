"""The keys of an archived partition next to those of the live log, in bounded memory: see `KeyComparison`."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from logkeep_kernel import KeyComparison

from logkeep_engine.log.batch import Headers
from logkeep_engine.log.memory import SMALL_BYTES
from logkeep_engine.log.rows import Rows, rows_of_batch

__all__ = ["ALL_KEYS", "MOST_OFFSETS", "KeyCounts", "KeyNotes", "KeySecret", "KeyShare", "new_secret"]

KeySecret = tuple[int, int]
KeyShare = tuple[int, int]
"""The number of a share of all keys, and of how many."""

ALL_KEYS: KeyShare = (0, 1)

MOST_OFFSETS = 1 << 45
"""A comparison holds offsets below this one. A log that takes a million records a second gets there in a year."""


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """How many keys there are, by what was found. `expired` keys are stale ones whose record lies below the start of
    the live log. `without_key` counts archived records."""

    keys: int = 0
    stale: int = 0
    expired: int = 0
    missing: int = 0
    differing: int = 0
    without_key: int = 0

    @property
    def wrong(self) -> int:
        """Keys of which the archive does not have the last record."""
        return self.missing + self.differing

    def __add__(self, other: KeyCounts) -> KeyCounts:
        return KeyCounts(
            self.keys + other.keys,
            self.stale + other.stale,
            self.expired + other.expired,
            self.missing + other.missing,
            self.differing + other.differing,
            self.without_key + other.without_key,
        )


class KeyNotes:
    """One share of all keys; `rest` has what of it does not fit into memory, and is left out.

    First all archived records are noted, then the live ones, both in the order of the log and committed ones only.
    Batches whose CRC was checked come with their headers.
    """

    def __init__(self, comparison: KeyComparison) -> None:
        self._comparison = comparison

    @classmethod
    def of(
        cls,
        secret: KeySecret,
        share: KeyShare,
        end: int,
        accounted: Sequence[tuple[int, int]],
        *,
        map_bytes: int,
    ) -> Self:
        """Nothing is noted yet. The archive accounts for the ranges `accounted`, and ends at offset `end`."""
        part, parts = share
        made = KeyComparison(
            secret=secret, map_bytes=map_bytes, part=part, parts=parts, end=end, accounted=list(accounted)
        )
        return cls(made)

    @property
    def rest(self) -> list[KeyShare]:
        """The shares that were left out."""
        return self._comparison.rest

    def begin_live(self, log_start: int) -> None:
        """Take live records from this offset on only: the first batch of a log may have others."""
        self._comparison.begin_live(log_start)

    def note(self, rows: Rows, *, live: bool) -> None:
        """Note records, whose offsets lie below MOST_OFFSETS; raises ValueError for others."""
        self._comparison.note(live, rows)

    def note_batches(self, stretch: memoryview, headers: Headers, *, live: bool) -> None:
        """Note the records of these batches. Control batches are left out; aborted ones are for the caller to leave
        out. Raises as `rows_of_batch`."""
        while headers:
            taken = self._comparison.note_batches(live, stretch, headers, SMALL_BYTES)
            if taken < len(headers):
                at, header = headers[taken]
                for rows in rows_of_batch(stretch[at : at + header.size], header):
                    self.note(rows, live=live)
            headers = headers[taken + 1 :]

    def counts(self, log_start: int) -> KeyCounts:
        """Return the findings, if the live log starts there."""
        return KeyCounts(*self._comparison.counts(log_start))

    def offsets(self, log_start: int, most: int) -> tuple[list[int], list[int]]:
        """Return the lowest offsets of the last archived records of stale keys, and of records of keys that are missing
        or differ: at most this many of each."""
        return self._comparison.offsets(log_start, most)


def new_secret() -> KeySecret:
    """Return a secret, so that an attacker cannot make two keys collide."""
    return secrets.randbits(64), secrets.randbits(64)
