"""Moves segments out of packs that hold records which were erased.

A pack is deleted as a whole. So the segments that stay are copied byte for byte into new packs, and the copies take
their places in a commit, as segments that were written anew do. It is not told twice: a copy has all records.

Which packs are left so, the catalog tells at any time: those of segments of the topic that were replaced, or removed,
and whose objects are there. So the next erasure goes on after a kill. Besides, a pack may hold a segment of the topic
that no commit names, since its receipt was refused: its own table tells that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.care.rewriting import RewritePlace
from logkeep_engine.archive.care.segment_check import check_all
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables
from logkeep_engine.archive.catalog.packed import PackedSegments, PackId, packs_of
from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.pack_table import read_table
from logkeep_engine.archive.reading.partition import NeighbouringReads
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.erasure.work import ATTEMPTS, tables_of
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext, in_groups

TASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class MovedSegment:
    """A segment to be copied: the name of its topic, and the number of the line on which it lies."""

    topic: str
    line: int
    entry: SegmentEntry

    @property
    def size(self) -> int:
        files = self.entry.pack_files
        return 0 if files is None else files.whole(self.entry).size


@dataclass(frozen=True, slots=True)
class MoveWork:
    """Some segments that one task copies, all on the same `line` of their partitions. No two tasks have the same
    `number`."""

    number: int
    line: int
    segments: tuple[MovedSegment, ...]


@dataclass(frozen=True, slots=True)
class MoveDone:
    """The copies in the place of what they are of, and the `faults` of segments that are not whole: these stay."""

    exchanges: tuple[Exchange, ...]
    faults: tuple[str, ...]


def packs_with(storage: Storage, state: ArchiveState, topic: str, topic_ids: Collection[str]) -> set[PackId]:
    """The packs that hold something of the topic that is no part of the archive any more."""
    found = {pack for table in removed_tables(state, topic_ids) for pack in packs_of(table.segments.packed)}
    return found | set(_with_unnamed(storage, state, topic))


def _with_unnamed(storage: Storage, state: ArchiveState, topic: str) -> Iterator[PackId]:
    """The packs with a segment of the topic that no commit names, and those whose table cannot be read."""
    known = _positions(state)
    for info in storage.list(names.PACKS):
        pack = names.parse_pack(info.path)
        if pack is None or pack not in known:
            continue  # nothing of it is named: it is deleted as it is
        table = read_table(storage, info.path, info.size)
        if table is None or any(item.topic == topic and item.position not in known[pack] for item in table):
            yield pack


def _positions(state: ArchiveState) -> Mapping[PackId, set[int]]:
    """Where segments that commits name begin in packs, also those that are to be deleted."""
    found: dict[PackId, set[int]] = {}
    for table in (*held_tables(state), *removed_tables(state)):
        if packs_of(table.segments.packed):
            for entry in table.segments:
                if (files := entry.pack_files) is not None:
                    pack = (entry.epoch, files.pack_task, entry.attempt, files.pack_number)
                    found.setdefault(pack, set()).add(files.position)
    return found


def dropped(state: ArchiveState, packs: Collection[PackId]) -> list[GenerationChange]:
    """The end of each generation that is being read and has a segment in these packs: a backup begins it again."""
    passive: Mapping[Partition, PackedSegments] = {} if state.passive is None else state.passive.segments
    keys = [key for key in sorted(passive) if not packs_of(passive[key].packed).isdisjoint(packs)]
    steps = ((key, passive_of(state, key)) for key in keys)
    return [GenerationChange(*key, item.number, GenerationStep.DROP) for key, item in steps if item is not None]


def moves_out_of(state: ArchiveState, packs: Collection[PackId]) -> list[MoveWork]:
    """The tasks that copy all segments of the archive that lie in these packs."""
    lines: dict[int, list[MovedSegment]] = {}
    for key, line, segments in tables_of(state):
        if packs_of(segments.packed).isdisjoint(packs):
            continue
        topic = state.topics[key[0]].name
        for entry in segments:
            files = entry.pack_files
            if files is not None and (entry.epoch, files.pack_task, entry.attempt, files.pack_number) in packs:
                lines.setdefault(line, []).append(MovedSegment(topic, line, entry))
    found: list[MoveWork] = []
    for line, some in sorted(lines.items()):
        # In the order in which they lie there, so that a task reads few packs, and each from front to back.
        some.sort(key=_place)
        for group in in_groups(some, lambda item: item.size, TASK_BYTES):
            found.append(MoveWork(len(found), line, tuple(group)))
    return found


def _place(item: MovedSegment) -> tuple[str, int]:
    files = item.entry.pack_files
    assert files is not None
    return files.pack(item.entry), files.position


def move_task(place: RewritePlace, work: MoveWork, context: TaskContext) -> MoveDone:
    """Copy some segments into packs of this task, which are there when this returns. Each is checked first: the copy of
    what is damaged would hide it. Raises what the storage raises."""
    storage = NeighbouringReads(place.storage)
    packs = TaskPacks(place.storage, place.epoch, work.number, work.line * ATTEMPTS + context.attempt)
    exchanges: list[Exchange] = []
    faults: list[str] = []
    try:
        for item in work.segments:
            if damage := check_all(storage, item.topic, item.entry).damage:
                faults.append(str(damage[0]))
                continue
            copy = _copy(storage, packs, item.topic, item.entry)
            exchanges.append(Exchange(item.entry, copy, item.line))
        packs.commit()
        return MoveDone(tuple(exchanges), tuple(faults))
    finally:
        packs.abort()


def _copy(storage: Storage, packs: TaskPacks, topic: str, entry: SegmentEntry) -> SegmentEntry:
    files = entry.pack_files
    assert files is not None
    whole = files.whole(entry)
    data = memoryview(storage.read_range(whole.path, whole.start, whole.end))
    content: dict[str, memoryview] = {}
    at = 0
    for suffix, size in files.all_sizes(entry).items():
        content[suffix] = data[at : at + size]
        at += size
    return packs.take(topic, entry, content.pop(files.suffix), content)
