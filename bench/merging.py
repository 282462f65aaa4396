"""Weeks of merges: what the rules of `archive.maintenance.merging` make of runs every five minutes.

    python -m bench.merging                       # 3,000 partitions for ten days; a JSON object a day
    python -m bench.merging --partitions 300 --days 365 --every 30

It plays the policy with sizes alone: which segments are merged, which packs are cleared and which are deleted. The
engine's own rules decide (`parts_to_merge`, `packs_to_clear`). They are asked for what may have changed: `Neighbours`
knows for which neighbours the rule could hold now.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

from logkeep_engine.archive.catalog.packed import PackId
from logkeep_engine.archive.maintenance.merging import MergeRules, packs_to_clear, parts_to_merge
from logkeep_engine.archive.reading.files import NEIGHBOURS_BYTES
from logkeep_engine.archive.writing.packs import PACK_BYTES
from logkeep_engine.backup.model.plan import MAX_CHUNKS_PER_TASK
from logkeep_engine.contract.archive_format import SegmentSpec
from logkeep_engine.tasks import in_groups

RUNS_A_DAY = 288
BLOCKS = 16, 128  # that are kept by a reader of neighbours, at least and at most
LEAST = 100  # bytes: a batch of a small record, with its indexes
OWN_OBJECTS = 3  # a log and two indexes


@dataclass(frozen=True)
class Kind:
    """Partitions that get about `size` bytes in one of `every` runs; `part` of all partitions."""

    name: str
    part: float
    size: int
    every: float


MIX = (
    Kind("busy", 0.1, 20 << 10, 1),
    Kind("steady", 0.3, 2 << 10, 1),
    Kind("hourly", 0.4, 1 << 10, 12),
    Kind("idle", 0.2, 1 << 10, 3 * RUNS_A_DAY),
)
"""Few topics of many carry most: a busy partition has 70 bytes a second, a steady one a few records in five minutes."""


class Row(NamedTuple):
    """A segment: its pack, and where it lies in it."""

    pack: PackId
    at: int


@dataclass(slots=True)
class Neighbours:
    """Segments of a partition in packs, side by side, and their bytes."""

    rows: list[Row] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    _spine: list[list[int]] = field(default_factory=list)
    """The ranges at the end in which the rule looks: the largest of each, and the bytes of this and of what lies before
    it, after the largest of the range around it. The rule divides a range at its largest, so an append changes only
    these."""
    _known: int = 0

    def may_merge(self, count: int) -> bool:
        """Tell whether a range that has changed since the last call has `count` times its largest."""
        spine, found = self._spine, False
        for size in self.sizes[self._known :]:
            own = size
            while spine and spine[-1][0] < size:
                own += spine.pop()[1]
            spine.append([size, own])
        self._known = len(self.sizes)
        total = 0
        for largest, own in reversed(spine):
            total += own
            found = found or total >= count * largest
        return found

    def changed(self) -> None:
        """Look at everything again."""
        self._spine, self._known = [], 0


@dataclass(frozen=True, slots=True)
class Move:
    """Neighbours to merge, [start, end), or one to copy."""

    partition: int
    of: Neighbours
    start: int
    end: int
    first: Row
    size: int


@dataclass(slots=True)
class Tally:
    """Counts from row to row."""

    archived: int = 0
    rewritten: int = 0
    copied: int = 0
    backup_puts: int = 0
    merge_puts: int = 0
    gets: int = 0
    deleted: int = 0
    commits: int = 0


@dataclass
class Archive:
    """The rows of each partition, and the packs with what lives and what is dead in each."""

    rules: MergeRules
    grace: int
    rows: list[list[Neighbours]]
    live: Counter[PackId] = field(default_factory=Counter)
    gone: Counter[PackId] = field(default_factory=Counter)
    of_pack: dict[PackId, set[int]] = field(default_factory=lambda: defaultdict(set))
    gone_rows: Counter[PackId] = field(default_factory=Counter)
    dead: deque[tuple[int, PackId]] = field(default_factory=deque)
    """The packs of which nothing lives, and since when."""
    own: int = 0
    own_bytes: int = 0
    tally: Tally = field(default_factory=Tally)

    def back_up(self, run: int, news: Sequence[tuple[int, int]]) -> None:
        """Archive these numbers of bytes of the partitions in a run."""
        most = MAX_CHUNKS_PER_TASK
        for task, start in enumerate(range(0, len(news), most)):
            packs = _Packs(self, run, task)
            for partition, size in news[start : start + most]:
                last = self.rows[partition][-1]
                last.rows.append(packs.take(partition, size))
                last.sizes.append(size)
                self.tally.archived += size
            self.tally.backup_puts += packs.number

    def merge(self, run: int, partitions: Sequence[int]) -> set[int]:
        """Merge and clear what is due, and return the partitions of which something was merged. Only these partitions
        are looked at: others have what they had."""
        moves: list[Move] = []
        merging: Counter[PackId] = Counter()
        taken: set[Row] = set()
        for partition in partitions:
            for of in self.rows[partition]:
                if not of.may_merge(self.rules.count):
                    continue
                for part in parts_to_merge(of.sizes, self.rules):
                    rows, sizes = of.rows[part[0] : part[-1] + 1], of.sizes[part[0] : part[-1] + 1]
                    moves.append(Move(partition, of, part[0], part[-1] + 1, rows[0], sum(sizes)))
                    taken.update(rows)
                    for row, size in zip(rows, sizes, strict=True):
                        merging[row.pack] += size
        merged = {move.partition for move in moves}
        live = {pack: left for pack, size in self.live.items() if (left := size - merging[pack])}
        self.gone.update(merging)  # and back again: a sum would copy what a thousand packs have
        cleared = packs_to_clear(live, self.gone, self.rules)
        self.gone.subtract(merging)
        moves += self._to_copy(cleared, taken)
        if moves:
            self._move(run, moves)
        return merged

    def _to_copy(self, packs: Collection[PackId], taken: set[Row]) -> Iterator[Move]:
        for partition in {partition for pack in packs for partition in self.of_pack[pack]}:
            for of in self.rows[partition]:
                found = [at for at, (pack, _) in enumerate(of.rows) if pack in packs]
                for at, row in ((at, of.rows[at]) for at in found):
                    if row not in taken:
                        yield Move(partition, of, at, at + 1, row, of.sizes[at])

    def _move(self, run: int, moves: list[Move]) -> None:
        moves.sort(key=lambda move: (move.partition, move.first))  # as `moving.works_of` does
        first = math.ceil(len(self.rows) / MAX_CHUNKS_PER_TASK)
        done: list[tuple[Move, Row | None]] = []
        for task, group in enumerate(in_groups(moves, attrgetter("size"), PACK_BYTES), first):
            self.tally.gets += self._gets(group)
            packs = _Packs(self, run, task)
            for move in group:
                merged = move.end - move.start > 1
                self.tally.rewritten += move.size
                self.tally.copied += 0 if merged else move.size
                own = merged and move.size >= self.rules.below
                done.append((move, None if own else packs.take(move.partition, move.size)))
            self.tally.merge_puts += packs.number
        for move, found in sorted(done, key=lambda item: -item[0].start):  # so that the numbers before it stay
            self._put_in_place(run, move, found)
        self.tally.commits += 1

    def _put_in_place(self, run: int, move: Move, found: Row | None) -> None:
        of, start, end = move.of, move.start, move.end
        for row, size in zip(of.rows[start:end], of.sizes[start:end], strict=True):
            self.live[row.pack] -= size
            self.gone[row.pack] += size
            self.gone_rows[row.pack] += 1
            if not self.live[row.pack]:
                del self.live[row.pack]
                self.dead.append((run, row.pack))
        if found is not None:
            of.rows[start:end], of.sizes[start:end] = [found], [move.size]
            if end - start > 1:
                of.changed()
            return
        groups = self.rows[move.partition]
        at = next(at for at, item in enumerate(groups) if item is of)
        groups.insert(at + 1, Neighbours(of.rows[end:], of.sizes[end:]))
        del of.rows[start:], of.sizes[start:]  # `of` keeps what lies before: moves of that may come yet
        of.changed()
        self.own += 1
        self.own_bytes += move.size
        self.tally.merge_puts += OWN_OBJECTS

    def _gets(self, group: Sequence[Move]) -> int:
        """Count the requests of a task: it reads blocks, and keeps some."""
        packs = {row.pack for move in group for row in move.of.rows[move.start : move.end]}
        most = min(max(len(packs) + 1, BLOCKS[0]), BLOCKS[1])
        blocks: OrderedDict[PackId, tuple[int, int]] = OrderedDict()
        count = 0
        for move in group:
            for (pack, at), size in zip(
                move.of.rows[move.start : move.end], move.of.sizes[move.start : move.end], strict=True
            ):
                if size > NEIGHBOURS_BYTES:
                    count += 2  # it is checked, then read
                    continue
                start, end = blocks.get(pack, (0, 0))
                if not start <= at < at + size <= end:
                    count += 1
                    blocks[pack] = at, at + NEIGHBOURS_BYTES
                blocks.move_to_end(pack)
                if len(blocks) > most:
                    blocks.popitem(last=False)
        return count

    def purge(self, run: int) -> None:
        """Delete the packs of which nothing has lived for the grace."""
        packs: set[PackId] = set()
        while self.dead and self.dead[0][0] + self.grace <= run:
            packs.add(self.dead.popleft()[1])
        for pack in packs:
            del self.gone[pack], self.gone_rows[pack]
            self.of_pack.pop(pack, None)
        self.tally.deleted += len(packs)
        self.tally.commits += bool(packs)

    def row(self, days: int) -> dict[str, Any]:
        """Tell what there is, and what was done since the last time, by the day."""
        tally = self.tally
        self.tally = Tally()
        return {
            "rows": (self.own + sum(len(of.rows) for some in self.rows for of in some)),
            "removed_rows": sum(self.gone_rows.values()),
            "packs": len({*self.live, *self.gone}),
            "own_objects": OWN_OBJECTS * self.own,
            "own_bytes": self.own_bytes,
            "live_bytes": sum(self.live.values()),
            "dead_bytes": sum(self.gone.values()),
            "archived_a_day": round(tally.archived / days),
            "rewritten": round(tally.rewritten / max(1, tally.archived), 2),
            "copied": round(tally.copied / max(1, tally.archived), 2),
            "backup_packs_a_day": round(tally.backup_puts / days),
            "merge_puts_a_day": round(tally.merge_puts / days),
            "merge_gets_a_day": round(tally.gets / days),
            "deletes_a_day": round(tally.deleted / days),
            "care_commits_a_day": round(tally.commits / days),
        }


class _Packs:
    """The packs of a task."""

    def __init__(self, archive: Archive, run: int, task: int) -> None:
        self._archive, self._run, self._task = archive, run, task
        self.number = self._size = 0

    def take(self, partition: int, size: int) -> Row:
        """Put a segment at the end."""
        if not self._size:
            self.number += 1
        pack = (self._run, self._task, 0, self.number)
        row = Row(pack, self._size)
        self._size += size
        if self._size >= PACK_BYTES:
            self._size = 0
        self._archive.live[pack] += size
        self._archive.of_pack[pack].add(partition)
        return row


def kinds_of(partitions: int, seed: int) -> list[Kind]:
    """Return the kind of each partition, mixed."""
    found = [kind for kind in MIX for _ in range(round(partitions * kind.part))]
    random.Random(seed).shuffle(found)
    return found


def play(partitions: int, days: int, *, grace: int = RUNS_A_DAY, every: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the rows of this many days: what there is after each `every` days."""
    spec, rng = SegmentSpec(), random.Random(5)
    rules = MergeRules(spec.merge_count, spec.live_percent, spec.pack_below_int)
    kinds = kinds_of(partitions, 5)
    archive = Archive(rules, grace, [[Neighbours()] for _ in kinds])
    again: set[int] = set()
    for run in range(days * RUNS_A_DAY):
        news = [
            (at, LEAST + int(rng.expovariate(1 / kind.size)))
            for at, kind in enumerate(kinds)
            if kind.every == 1 or rng.random() * kind.every < 1
        ]
        archive.back_up(run, news)
        again = archive.merge(run, sorted(again.union(at for at, _ in news)))
        archive.purge(run)
        if (run + 1) % (every * RUNS_A_DAY) == 0:
            yield {"days": (run + 1) // RUNS_A_DAY, **archive.row(every)}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="bench.merging", description="Weeks of merges.")
    parser.add_argument("--partitions", type=int, default=3000)
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--every", type=int, default=1, help="days from row to row")
    parser.add_argument("--grace", type=int, default=RUNS_A_DAY, help="runs until objects are deleted")
    options = parser.parse_args(argv)
    started = time.process_time()
    for row in play(options.partitions, options.days, grace=options.grace, every=options.every):
        print(json.dumps({**row, "cpu_seconds": round(time.process_time() - started)}), flush=True)


if __name__ == "__main__":
    main()
