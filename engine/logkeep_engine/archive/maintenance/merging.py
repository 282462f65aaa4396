"""Finds what is to be merged, so that the objects of an archive stay large and its segments few. Pure; `moving` does
it.

Each run adds a small segment to a partition, and a pack. Neighbouring segments of a line are merged as soon as they
have `count` times the bytes of the largest of them. So a merged segment is that much larger than all of which it was
made, and a byte is written again once for each time that its segment grows by this factor, until it has `below` bytes.
In the same way small packs are copied together, four times as many. A pack of which less than `live` percent are left
is cleared at once.

Who reads the archive as of an earlier run sees the part of a merged segment that was there then. So nothing may be
merged that says more apart than together: segments in which offsets are missing, or of a run in one of whose segments
they are. Of a compacted topic states that end within such a run are refused (`history.compacted`), and only the
segments show where that begins and ends.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import Layout, PackFiles, SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.held_lines import PartitionFacts
from logkeep_engine.archive.catalog.held_tables import removed_tables, tables_of
from logkeep_engine.archive.catalog.packed import PackedSegments, PackId, packs_of
from logkeep_engine.archive.catalog.row_facts import PackedFacts, packed_facts
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import together, without
from logkeep_engine.archive.writing.packs import PACK_BYTES
from logkeep_engine.tasks import in_groups

PATIENCE = 4
"""This many times more packs than segments must add up: meanwhile merges take out of them what would be copied
twice."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """When neighbours are merged, and packs cleared. A `count` of 0: never."""

    count: int
    live: int
    below: int


@dataclass(frozen=True, slots=True)
class SegmentMove:
    """A segment to be copied, or neighbours to be merged: the name of their topic, and the number of the line on which
    they lie."""

    topic: str
    line: int
    entries: tuple[SegmentEntry, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(files_of(entry).whole(entry).size for entry in self.entries)


def files_of(entry: SegmentEntry) -> PackFiles:
    """Return the files of a segment in a pack. Raises TypeError for another one."""
    files = entry.pack_files
    if files is None:
        raise TypeError(f"segment {entry.base_offset} of {entry.topic_id} is not in a pack")
    return files


def moves_of(state: ArchiveState, rules: MergeRules) -> list[SegmentMove]:
    """Return the segments to merge or to copy by these rules, those of one partition and line by their offsets."""
    if not rules.count:
        return []
    found: list[SegmentMove] = []
    ends = [run.epoch for run in state.successes()]
    facts: dict[tuple[Partition, int], list[PackedFacts]] = {}
    tables: dict[tuple[Partition, int], PackedSegments] = {}
    merged: dict[tuple[Partition, int], set[int]] = {}
    for key, line, segments in tables_of(state):
        if Layout.PACK not in segments.layouts:
            continue
        tables[key, line] = segments
        rows = facts[key, line] = list(packed_facts(segments.packed))
        known = generation_of(state, key)
        apart = [known.exact] if known.passive is None else [known.exact, known.passive.end]
        for numbers in _to_merge(rows, _begins(state.own_facts(key)[line], rows[0].start), ends, rules, apart):
            merged.setdefault((key, line), set()).update(numbers)
            found.append(SegmentMove(state.topics[key[0]].name, line, tuple(segments[at] for at in numbers)))
    packs = _to_clear(state, facts, merged, rules)
    for (key, line), rows in facts.items():
        taken = merged.get((key, line), ())
        some = [at for at, row in enumerate(rows) if row.pack in packs and at not in taken]
        segments = tables[key, line]
        found += (SegmentMove(state.topics[key[0]].name, line, (segments[at],)) for at in some)
    return found


def _begins(own: PartitionFacts, first: int) -> int:
    """Return the offset at which the first segment of a line would begin if no offset were missing before it: what was
    lost, or removed, had no records to be overwritten. `first` is the one at which it begins."""
    gone = together(own.removed, ((gap.start, gap.end) for gap in own.gaps))
    accounted = own.accounted
    missing = without(accounted[0][0], first, gone) if accounted else []
    return missing[0][0] if missing else first


def _to_merge(
    rows: Sequence[PackedFacts], begins: int, ends: Sequence[int], rules: MergeRules, apart: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the numbers of neighbours that become one segment. The first of a line is that of `begins` if nothing is
    missing before it. None lies across an offset of `apart`. A generation that is being read ends there, and
    what follows joins it; or points are exact from there on, and a segment across it would have the times of both."""
    if len(rows) < rules.count:
        return
    runs = [bisect_left(ends, row.first_epoch) for row in rows]
    sparse = {
        run
        for at, (run, row) in enumerate(zip(runs, rows, strict=True))
        if row.gaps or row.start != (rows[at - 1].end if at else begins)
    }
    for group in _neighbours(rows, [run not in sparse for run in runs], rules.below, apart):
        for part in parts_to_merge([rows[at].size for at in group], rules):
            yield [group[at] for at in part]


def _neighbours(
    rows: Sequence[PackedFacts], may: Sequence[bool], below: int, apart: Sequence[int]
) -> Iterator[list[int]]:
    """Yield the numbers of segments that lie side by side, on one side of each of `apart`, and are written alike."""
    group: list[int] = []
    for at, row in enumerate(rows):
        fits = may[at] and row.pack is not None and row.size < below and not row.legacy
        is_after = any(row.start >= offset > rows[at - 1].start for offset in apart)
        if group and (is_after or not (fits and row.kind == rows[group[-1]].kind)):
            yield group
            group = []
        if fits:
            group.append(at)
    if group:
        yield group


def parts_to_merge(sizes: Sequence[int], rules: MergeRules) -> Iterator[Sequence[int]]:
    """Yield the numbers of neighbours, of which these are the sizes, that become one segment each."""
    for start, end in chosen(sizes, rules.count):
        for part in in_groups(range(start, end), sizes.__getitem__, PACK_BYTES):
            if len(part) > 1:
                yield part


def chosen(sizes: Sequence[int], count: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of neighbours, as [first, last), that have `count` times the bytes of their largest. Of what has
    less, the largest stays as it is, and those before and after it are asked again."""
    left = [(0, len(sizes))]
    while left:
        start, end = left.pop()
        if end - start < count:
            continue
        some = sizes[start:end]
        most = max(some)
        if sum(some) >= count * most:
            yield start, end
        else:
            at = start + some.index(most)
            left += [(start, at), (at + 1, end)]


def _to_clear(
    state: ArchiveState,
    facts: Mapping[tuple[Partition, int], Sequence[PackedFacts]],
    merged: Mapping[tuple[Partition, int], Collection[int]],
    rules: MergeRules,
) -> Collection[PackId]:
    """Return the packs of which all that lives is to be copied, once that is merged which is to be."""
    live, gone = Counter[PackId](), Counter[PackId]()
    for place, rows in facts.items():
        taken = merged.get(place, ())
        for at, row in enumerate(rows):
            if row.pack is not None:
                (gone if at in taken else live)[row.pack] += row.size
    for table in removed_tables(state):
        for row in packed_facts(table.segments.packed):
            if row.pack is not None:
                gone[row.pack] += row.size
    held = {pack for table in _being_read(state) for pack in packs_of(table.packed)}
    return packs_to_clear({pack: size for pack, size in live.items() if pack not in held}, gone, rules)


def packs_to_clear(live: Mapping[PackId, int], gone: Mapping[PackId, int], rules: MergeRules) -> Collection[PackId]:
    """Return the packs to clear: `live` and `gone` have the bytes of each that live, and that do not any more."""
    packs = sorted(pack for pack, size in live.items() if size < PACK_BYTES // 2)
    few = rules.count * PATIENCE
    small = [packs[at] for part in chosen([live[pack] for pack in packs], few) for at in range(*part)]
    sparse = [pack for pack in packs if live[pack] * 100 < rules.live * (live[pack] + gone.get(pack, 0))]
    return {*small, *sparse}


def _being_read(state: ArchiveState) -> Iterable[PackedSegments]:
    """Return the segments of generations that are being read, which are on no line yet: their packs stay."""
    return () if state.passive is None else state.passive.segments.values()
