"""Moves segments out of packs that hold records which were erased.

A pack is deleted as a whole. So the segments that stay are copied byte for byte into new packs, and the copies take
their places in a commit, as segments that were rewritten do. It is not reported twice: a copy has all records.

The catalog shows at any time which packs are left like this: those of segments of the topic that were replaced, or
removed, and whose objects are there. So the next erasure continues after a kill. Besides, a pack may hold a segment of
the topic that no commit names, since its receipt was refused: its own table shows that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables, tables_of
from logkeep_engine.archive.catalog.packed import PackedSegments, PackId, packs_of
from logkeep_engine.archive.catalog.row_facts import packed_facts
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.merging import SegmentMove
from logkeep_engine.archive.pack_table import read_table
from logkeep_engine.storage import Storage


def packs_with(storage: Storage, state: ArchiveState, topic: str, topic_ids: Collection[str]) -> set[PackId]:
    """Return the packs that hold something of the topic that is not a part of the archive any more."""
    found = {pack for table in removed_tables(state, topic_ids) for pack in packs_of(table.segments.packed)}
    return found | set(_with_unnamed(storage, state, topic))


def _with_unnamed(storage: Storage, state: ArchiveState, topic: str) -> Iterator[PackId]:
    """Yield the packs with a segment of the topic that no commit names, and those whose table cannot be read."""
    known = _positions(state)
    for info in storage.list(names.PACKS):
        pack = names.parse_pack(info.path)
        if pack is None or pack not in known:
            continue  # nothing of it is named: it is deleted as it is
        table = read_table(storage, info.path, info.size)
        if table is None or any(item.topic == topic and item.position not in known[pack] for item in table):
            yield pack


def _positions(state: ArchiveState) -> Mapping[PackId, set[int]]:
    """Return where segments that commits name begin in packs, also those that are to be deleted."""
    found: dict[PackId, set[int]] = {}
    for table in (*held_tables(state), *removed_tables(state)):
        if packs_of(table.segments.packed):
            for entry in table.segments:
                if (files := entry.pack_files) is not None:
                    pack = (entry.epoch, files.pack_task, entry.attempt, files.pack_number)
                    found.setdefault(pack, set()).add(files.position)
    return found


def dropped(state: ArchiveState, packs: Collection[PackId]) -> list[GenerationChange]:
    """Return the end of each generation that is being read and has a segment in these packs: a backup begins it
    again."""
    passive: Mapping[Partition, PackedSegments] = {} if state.passive is None else state.passive.segments
    keys = [key for key in sorted(passive) if not packs_of(passive[key].packed).isdisjoint(packs)]
    steps = ((key, passive_of(state, key)) for key in keys)
    return [GenerationChange(*key, item.number, GenerationStep.DROP) for key, item in steps if item is not None]


def moves_out_of(state: ArchiveState, packs: Collection[PackId]) -> list[SegmentMove]:
    """Return the copies of all segments of the archive that lie in these packs."""
    found: list[SegmentMove] = []
    for key, line, segments in tables_of(state):
        if packs_of(segments.packed).isdisjoint(packs):
            continue
        rows = enumerate(packed_facts(segments.packed))
        found += (
            SegmentMove(state.topics[key[0]].name, line, (segments[at],)) for at, row in rows if row.pack in packs
        )
    return found
