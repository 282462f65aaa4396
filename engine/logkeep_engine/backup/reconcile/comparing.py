"""The comparison of one partition: what it reads, in which order, and when it has seen enough.

The cleaner of the cluster keeps working in the meantime. It takes a record away only if a later one of the same key is
committed, or if it is a tombstone. So a key of which the log holds nothing from an archived offset on was deleted, if
all of the log was read at one moment. It is not: between two fetches a record may be replaced by one after the end of
the read, and be gone before the read comes by. So the log is read on, up to its new end, as long as keys are in doubt,
until the last stretch is dense: all of its offsets were there. A record of a key in doubt would have been in that
stretch, or replaced by one after it, and then a record of the stretch would be gone. Retention and DeleteRecords take
whatever lies below the log's start, so that is asked last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from logkeep_engine.archive.ranges import Range
from logkeep_engine.log.key_comparison import ALL_KEYS, KeyCounts, KeyNotes, new_secret

MOST_STRETCHES = 20


class CleanerTooFast(Exception):
    """Each stretch of the live log that was read had lost records already."""


class LiveLog(Protocol):
    """The log of a partition as its leader has it."""

    async def start(self) -> int:
        """Return the offset at which it starts now."""
        ...

    async def stable_end(self) -> int:
        """Return the last stable offset now."""
        ...

    async def note(self, keys: KeyNotes, start: int, end: int) -> bool:
        """Note the committed records at [start, end). Returns whether all offsets were there."""
        ...


@dataclass(frozen=True, slots=True)
class ComparedKeys:
    """The findings about a partition. The live log was read from `start` to `end`. `stale` and `wrong` are the lowest
    offsets of records: of stale keys in the archive, and of keys that are missing in it or differ."""

    counts: KeyCounts
    start: int
    end: int
    stale: tuple[int, ...]
    wrong: tuple[int, ...]
    shares: int


@dataclass(slots=True)
class _Found:
    counts: KeyCounts = field(default_factory=KeyCounts)
    start: int = 0
    end: int = 0
    stale: list[int] = field(default_factory=list)
    wrong: list[int] = field(default_factory=list)

    def add(self, keys: KeyNotes, log: Range, most: int) -> None:
        """Add what was found of a share."""
        self.counts += keys.counts(log[0])
        self.start, self.end = max(self.start, log[0]), max(self.end, log[1])
        stale, wrong = keys.offsets(log[0], most)
        self.stale += stale
        self.wrong += wrong


async def compare_keys(
    note_archived: Callable[[KeyNotes], None],
    live: LiveLog,
    end: int,
    accounted: Sequence[Range],
    *,
    map_bytes: int,
    most: int,
    on_share: Callable[[int, int], None] = lambda number, shares: None,
) -> ComparedKeys:
    """Compare the keys of an archived partition, which ends at offset `end` and whose records `note_archived` notes,
    with the live log. At most `most` offsets of each kind are found. Where not all keys fit into `map_bytes`, one share
    of them is compared after the other. Raises CleanerTooFast, and what reading raises."""
    found, secret, open_shares, done = _Found(), new_secret(), [ALL_KEYS], 0
    while open_shares:
        share = open_shares.pop()
        on_share(done, done + len(open_shares) + 1)
        for last in (False, True):
            keys = KeyNotes.of(secret, share, end, accounted, map_bytes=map_bytes)
            await asyncio.to_thread(note_archived, keys)
            log = await _read_live(keys, live)
            # What must not be is looked at twice: a new leader may have records that were cleaned elsewhere.
            if last or not keys.counts(log[0]).wrong:
                break
        found.add(keys, log, most)
        open_shares += keys.rest
        done += 1
    stale, wrong = (tuple(sorted(offsets)[:most]) for offsets in (found.stale, found.wrong))
    return ComparedKeys(found.counts, found.start, found.end, stale, wrong, done)


async def _read_live(keys: KeyNotes, live: LiveLog) -> Range:
    """Note the live log. Returns the offsets at which it starts after that, and to which it was read."""
    start = at = await live.start()
    keys.begin_live(start)
    for stretch in count():
        until = max(at, await live.stable_end())
        dense = await live.note(keys, at, until)
        at, start = until, max(start, await live.start())
        if dense or not _in_doubt(keys.counts(start)):
            return start, at
        if stretch == MOST_STRETCHES:
            raise CleanerTooFast
    raise AssertionError("unreachable")


def _in_doubt(counts: KeyCounts) -> bool:
    """A later record may take these findings back."""
    return bool(counts.stale or counts.wrong)
