"""Moves segments into new packs, as they are or merged with neighbours. Nothing names a copy before a commit does.

    works = works_of(moves, below)
    done = move_task(place, works[0], context)       # in a task
    writer.exchange(done.exchanges)

Batches stay byte for byte. Neighbours that are merged become one segment: their batches, one after the other, with
indexes of their own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower
from logkeep_engine.archive.maintenance.merging import SegmentMove, files_of
from logkeep_engine.archive.maintenance.rewriting import RewritePlace
from logkeep_engine.archive.maintenance.segment_check import check_all
from logkeep_engine.archive.reading.partition import NeighbouringReads, fetched_epoch, open_partition
from logkeep_engine.archive.writing.log_writer import LogSegment, Packing
from logkeep_engine.archive.writing.packs import PACK_BYTES, TaskPacks
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ObjectCold
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext, in_groups

ATTEMPTS = 1000
"""Lines may have segments of the same base offset, and so may the run that moves them. Their names must differ, and a
task has fewer attempts."""


@dataclass(frozen=True, slots=True)
class MoveWork:
    """The moves of one task, all on the same `line` of their partitions. No two tasks of a run have the same `number`.
    What has `below` bytes or more gets objects of its own."""

    number: int
    line: int
    moves: tuple[SegmentMove, ...]
    below: int


@dataclass(frozen=True, slots=True)
class MoveDone:
    """The new segments in place of the old ones, and the `faults` of segments that are not whole: these stay, and
    with them those with which they were to be merged. So do those whose objects are `cold`."""

    exchanges: tuple[Exchange, ...]
    faults: tuple[str, ...]
    cold: tuple[str, ...] = ()


def works_of(moves: Iterable[SegmentMove], below: int, first: int = 0) -> list[MoveWork]:
    """Return the tasks for these moves, numbered from `first` on."""
    lines: dict[int, list[SegmentMove]] = {}
    for move in moves:
        lines.setdefault(move.line, []).append(move)
    found: list[MoveWork] = []
    for line, some in sorted(lines.items()):
        # Packs have their segments by partition, so a task reads all of its packs from front to back at the same time.
        some.sort(key=_place)
        for group in in_groups(some, lambda item: item.size, PACK_BYTES):
            found.append(MoveWork(first + len(found), line, tuple(group), below))
    return found


def _place(move: SegmentMove) -> tuple[str, str, int, int]:
    entry = move.entries[0]
    return move.topic, entry.topic_id, entry.partition, entry.base_offset


def move_task(place: RewritePlace, work: MoveWork, context: TaskContext) -> MoveDone:
    """Write the segments of a task into packs, which are there when this returns. Each is checked first: the copy of
    what is damaged would hide it. Raises what the storage raises."""
    packs = {files_of(entry).pack(entry) for move in work.moves for entry in move.entries}
    storage = NeighbouringReads(place.storage, blocks=len(packs) + 1)
    attempt = (work.line + 1) * ATTEMPTS + context.attempt
    packing = Packing(TaskPacks(place.storage, place.epoch, work.number, attempt), work.below)
    exchanges: list[Exchange] = []
    faults: list[str] = []
    cold: list[str] = []
    try:
        for move in work.moves:
            try:
                damage = [item for entry in move.entries for item in check_all(storage, move.topic, entry).damage]
            except ObjectCold as error:
                cold.append(error.message)
                continue
            if damage:
                faults.append(str(damage[0]))
                continue
            if len(move.entries) == 1:
                found = _copied(storage, packing.packs, move.topic, move.entries[0])
            else:
                found = _Merging(storage, place, move, attempt, packing).done()
            exchanges += (Exchange(entry, found, move.line) for entry in move.entries)
        packing.packs.commit()
        return MoveDone(tuple(exchanges), tuple(faults), tuple(cold))
    finally:
        packing.packs.abort()


def _copied(storage: Storage, packs: TaskPacks, topic: str, entry: SegmentEntry) -> SegmentEntry:
    files = files_of(entry)
    whole = files.whole(entry)
    data = memoryview(storage.read_range(whole.path, whole.start, whole.end))
    content: dict[str, memoryview] = {}
    at = 0
    for suffix, size in files.all_sizes(entry).items():
        content[suffix] = data[at : at + size]
        at += size
    return packs.take(topic, entry, content.pop(files.suffix), content)


class _Merging:
    """Neighbours on their way into one segment."""

    def __init__(
        self, storage: Storage, place: RewritePlace, move: SegmentMove, attempt: int, packing: Packing
    ) -> None:
        self._storage, self._move = storage, move
        first = move.entries[0]
        self._segment = LogSegment(
            place.storage,
            Compression.ZSTD if first.files.stored_bytes else Compression.PASSTHROUGH,
            move.topic,
            first.topic_id,
            first.partition,
            first.base_offset,
            place.epoch,
            attempt,
            first.digest.algorithm,
            packing,
        )

    def done(self) -> SegmentEntry:
        """Write the segment; see `LogSegment.finish`."""
        segment, move = self._segment, self._move
        try:
            last = move.entries[-1]
            epoch = fetched_epoch(self._storage, move.topic, last) if last.transactional else last.archived_last
            segment.transactions = SegmentFollower(move.entries[0].base_offset, epoch)
            reader = open_partition(self._storage, move.topic, move.entries)
            for stretch, headers in reader.batches():
                segment.builder.append(stretch, headers)
                segment.transactions.note(stretch, headers)
            index = joined(list(reader.transaction_index()), segment.transactions.ends())
            return segment.finish(index)
        except BaseException:
            segment.abort()
            raise


def joined(index: Sequence[AbortedTxn], ends: Iterable[tuple[int, int]]) -> list[AbortedTxn]:
    """Return the transaction index of a segment, from those of the segments that it has. Where a transaction continues
    in the next of these, an entry ends with its last batch in one of them. Here it ends where the transaction does: at
    one of these `ends` of the merged segment, by producer and offset."""
    of: dict[int, list[int]] = {}
    for producer_id, offset in sorted(ends):
        of.setdefault(producer_id, []).append(offset)
    found: dict[tuple[int, int], AbortedTxn] = {}
    for entry in index:
        offsets = of.get(entry.producer_id, [])
        at = bisect_left(offsets, entry.last_offset)
        last = offsets[at] if at < len(offsets) else entry.last_offset
        known = found.setdefault((entry.producer_id, last), replace(entry, last_offset=last))
        found[entry.producer_id, last] = replace(
            known,
            first_offset=min(known.first_offset, entry.first_offset),
            last_stable_offset=min(known.last_stable_offset, entry.last_stable_offset),
        )
    return sorted(found.values(), key=attrgetter("last_offset"))
