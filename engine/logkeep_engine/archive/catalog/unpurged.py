"""Segments that were removed from an archive, and whose objects may still be there. No I/O.

A commit takes segments out of the archive: the state no longer names their objects. The objects are deleted later, so
that readers that began before find them. Then another commit says that they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.packed import (
    LAYOUT_AT,
    PACK_ID,
    ROW,
    ROW_BYTES,
    PackId,
    SegmentTable,
    packs_of,
)
from logkeep_engine.archive.names import pack_path


@dataclass(frozen=True, slots=True)
class Unpurged:
    """The segments that one commit has removed. `time` is that of the commit, in ms since the epoch by its writer's
    clock."""

    commit: int
    time: int
    segments: SegmentTable = field(default_factory=SegmentTable)
    _packs: dict[Partition, set[PackId]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def packs(self) -> dict[Partition, set[PackId]]:
        """The packs of each partition, found out once: no commit adds to what another one has removed."""
        if not self._packs:
            self._packs.update((key, packs_of(some.packed)) for key, some in self.segments.items())
        return self._packs

    def without(self, packs: Collection[PackId], *, own: bool) -> Unpurged:
        """Return the removal without what lies in these packs, and, with `own`, without what has objects of its own."""
        left, known = self.segments.copy(), dict(self.packs)
        for key, some in self.packs.items():
            if own or not some.isdisjoint(packs):
                left.replace_rows(key, b"")
                staying = divided(self.segments.rows(key), packs, own=own)[0]
                for at in range(0, len(staying), ROW_BYTES):  # rows of several lines may have the same offsets
                    left.add_row(key, bytes(staying[at : at + ROW_BYTES]))
                known[key] = some.difference(packs)
        return replace(self, segments=left, _packs={key: known[key] for key in left})


def divided(rows: bytes | bytearray, packs: Collection[PackId], *, own: bool) -> tuple[bytearray, bytearray]:
    """Return the rows that stay, and those of segments in these packs, and, with `own`, with objects of their own."""
    left, gone = bytearray(), bytearray()
    for at, row in enumerate(ROW.iter_unpack(bytes(rows))):
        is_gone = PACK_ID(row) in packs if row[LAYOUT_AT] == Layout.PACK else own
        (gone if is_gone else left).extend(rows[at * ROW_BYTES : (at + 1) * ROW_BYTES])
    return left, gone


def without_purged(
    removals: tuple[Unpurged, ...], commits: Collection[int], packs: Collection[PackId] = ()
) -> tuple[Unpurged, ...]:
    """Return the removals without what is deleted: these packs, and, of these commits, what has objects of its own.
    Raises ValueError for a commit that has removed nothing, or whose objects were deleted before, and for a pack in
    which no removed segment lies."""
    known = {item.commit for item in removals}
    if wrong := [number for number in sorted(commits) if number not in known]:
        raise ValueError(f"the commits {', '.join(map(str, wrong))} have removed no segments to be deleted")
    gone, unknown = frozenset(packs), set(packs)
    left: list[Unpurged] = []
    for item in removals:
        own = item.commit in commits
        some = gone.intersection(chain.from_iterable(item.packs.values())) if gone else gone
        unknown -= some
        found = item.without(some, own=own) if own or some else item
        if found.segments:
            left.append(found)
    if unknown:
        raise ValueError(f"no removed segment is in pack {pack_path(*min(unknown))}")
    return tuple(left)


def all_unpurged(removals: Iterable[Unpurged], only: Partition | None = None) -> SegmentTable:
    """Return the segments of all these removals, or `only` those of one partition."""
    found = SegmentTable()
    for item in removals:
        for key in item.segments if only is None else {only} & set(item.segments):
            rows = item.segments[key]
            for at in range(len(rows)):
                found.add_row(key, rows.row(at))
    return found
