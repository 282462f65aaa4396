"""The items that retention may take, by the rules of docs/guides/keep-an-archive.md ("Retention"): nothing of the
engine is imported here.

An item is a segment or a snapshot as the archive has it before a removal. Whatever is removed, and is not in `may_go`,
was taken without a rule. What a kept point has is not looked at here: readers ask for all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """`time` is that of its newest record, of a snapshot that of its run. `name` tells it from others of its range."""

    topic_id: str
    partition: int
    branch: str
    start: int
    end: int
    bytes: int
    time: int
    transactional: bool
    is_snapshot: bool
    name: str

    @property
    def line(self) -> tuple[str, int, str]:
        """The partition, and its branch."""
        return self.topic_id, self.partition, self.branch


@dataclass(frozen=True)
class Limits:
    """ms and bytes, 0: no limit. `compacted`: ids of topics that are compacted only now."""

    max_age: int
    max_bytes: int
    compacted: frozenset[str]


def may_go(items: Sequence[Item], limits: Limits, now: int) -> set[Item]:
    """The items that the limits let go, and those of compacted topics for which a snapshot stands."""
    free = [item for item in items if item.topic_id not in limits.compacted or _stands_for(items, item)]
    times = dict(_as_old_as_transactions_before(free))
    found = {item for item in free if item.topic_id in limits.compacted}
    old = {item for item in free if limits.max_age and times[item] < now - limits.max_age}
    if limits.max_bytes:
        found |= set(_too_much([item for item in free if item not in old], times, limits.max_bytes))
    # Whether a snapshot that goes was needed is asked of states of keys.
    return found | old | {item for item in items if item.is_snapshot}


def _stands_for(items: Iterable[Item], item: Item) -> bool:
    """Whether a snapshot has the keys of a segment."""
    return any(other.is_snapshot and other.line == item.line and item.end <= other.end for other in items)


def _as_old_as_transactions_before(items: Iterable[Item]) -> Iterator[tuple[Item, int]]:
    """The times of items. What follows a transaction in its log is never older than it. A branch follows what lies
    below it of the log that continues."""
    held: dict[tuple[str, int, str], int] = {}
    trunk: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for item in sorted(items, key=lambda item: (item.line, item.is_snapshot, item.start)):
        below = [time for end, time in trunk.get(item.line[:2], ()) if end <= item.start and item.branch]
        held.setdefault(item.line, max(below, default=-1))
        time = item.time if item.is_snapshot else max(item.time, held[item.line])
        if item.transactional and not item.is_snapshot:
            held[item.line] = time
            if not item.branch:
                trunk.setdefault(item.line[:2], []).append((item.end, time))
        yield item, time


def _too_much(items: Iterable[Item], times: dict[Item, int], most: int) -> Iterator[Item]:
    """The oldest of these, until the others are no larger than the limit. Those that are as old as the last of them may
    go as well: no rule says which of them goes first."""
    oldest = sorted(items, key=times.__getitem__)
    left, last = sum(item.bytes for item in oldest), -1
    for item in oldest:
        if left <= most and times[item] > last:
            return
        last = times[item]
        left -= item.bytes
        yield item
