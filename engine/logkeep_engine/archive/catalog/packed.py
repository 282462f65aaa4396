"""Segments as packed rows: a million of them take 180 MB instead of more than a gigabyte of Python objects.

    table = SegmentTable()
    table.add(entry)
    for entry in table[topic_id, partition]: ...      # a SegmentEntry is made when it is asked for

A row says everything of a segment but its topic id and partition, so equal rows are equal segments, and a checkpoint
can hold rows as they are (`archive/catalog/checkpoint.py`). `fields` says what lies where in a row.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import fields as fields_of
from itertools import product
from operator import attrgetter, itemgetter
from typing import Any, overload

from logkeep_kernel import rows_in_order

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.documents import NEWER, damaged
from logkeep_engine.archive.catalog.entry import FILES, Files, Layout, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.fields import (
    CODECS,
    DIGEST_NUMBERS,
    HAS_TXNINDEX_SHA256,
)
from logkeep_engine.archive.ranges import Range
from logkeep_engine.digest import Digest, name_of
from logkeep_engine.errors import ArchiveMismatch

ROW = struct.Struct(fields.ROW_LAYOUT)
ROW_BYTES = ROW.size
_OFFSETS = struct.Struct(f"<2q{ROW_BYTES - 16}x")
_SUMS = struct.Struct(f"<24xq8xq{ROW_BYTES - 48}x")  # records and bytes
_BASE = struct.Struct("<q")
_IDENTITY = itemgetter(*map(fields.at, ("base_offset", "epoch", "attempt")))
_END_AT = fields.at("files.end", Layout.SNAPSHOT)
LAYOUT_AT = -2
"""The place of the number of the layout in an unpacked row."""
PackId = tuple[int, int, int, int]
"""Epoch, task, attempt and number of a pack, as `names.pack_path` takes them."""
PACK_ID: Callable[[Sequence[Any]], PackId] = itemgetter(
    *(fields.at(path, Layout.PACK) for path in ("epoch", "files.pack_task", "attempt", "files.pack_number"))
)
"""The pack of an unpacked row of that layout."""
_NO_HASH = bytes(32)
_KNOWN_FLAGS = range(HAS_TXNINDEX_SHA256 << 1)
_KNOWN_CODECS = frozenset(CODECS)
_FLAG_VALUES = [tuple(reversed(values)) for values in product((False, True), repeat=len(fields.FLAGS))]
_BITS = {values: bits for bits, values in enumerate(_FLAG_VALUES)}
_ALGORITHMS = {number: algorithm for algorithm, number in DIGEST_NUMBERS.items()}
_NUMBERS = [attrgetter(*(field.path for field in fields.numbers(layout))) for layout in sorted(Layout)]


def pack(entry: SegmentEntry) -> bytes:
    """Return the row of a segment; of a slice, that of the whole one. Raises ValueError for what no row can hold: an
    unknown codec, a digest that is not 256 bits in hex, a number of more than 64 bits (32 for counts of batches by
    codec and sizes of indexes)."""
    entry, layout = entry.uncut, entry.layout
    own = entry.digest.hex, DIGEST_NUMBERS[entry.digest.algorithm]
    return pack_facts(
        _NUMBERS[layout](entry), entry.codecs, own, entry.files.txnindex_sha256, _BITS[entry.flags], layout
    )


def pack_facts(
    numbers: tuple[int, ...],
    codecs: Mapping[str, int],
    digest: tuple[str, int],
    txnindex_sha256: str,
    flags: int,
    layout: Layout,
) -> bytes:
    """Return the row of a segment with the `numbers` of `fields.numbers(layout)`; `flags` has the bits of
    `fields.FLAGS`, and `digest` is one in hex, with the number of its algorithm. Raises ValueError as `pack` does."""
    if not _KNOWN_CODECS.issuperset(codecs):
        raise ValueError(f"segment with codecs {', '.join(codecs)}")
    count = codecs.get
    try:
        return ROW.pack(
            *numbers,
            count("none", 0),
            count("gzip", 0),
            count("snappy", 0),
            count("lz4", 0),
            count("zstd", 0),
            _hash(*digest),
            _hash(txnindex_sha256) if txnindex_sha256 else _NO_HASH,
            flags | (HAS_TXNINDEX_SHA256 if txnindex_sha256 else 0),
            layout,
            digest[1],
        )
    except struct.error as error:
        raise ValueError(f"segment {numbers[0]}: {error}") from error


def _hash(text: str, number: int = 0) -> bytes:
    raw = bytes.fromhex(text)
    if len(raw) != 32:
        raise ValueError(f"{text!r} is not a {name_of(_ALGORITHMS[number])}")
    return raw


def digests_of(rows: bytes | bytearray) -> dict[str, int]:
    """Return how many segments of these rows have a digest of each algorithm, by its name."""
    numbers = rows[ROW_BYTES - 1 :: ROW_BYTES]  # the last byte of a row is the number of its digest's algorithm
    return {name_of(algorithm): numbers.count(number) for algorithm, number in DIGEST_NUMBERS.items()}


def check_numbers(rows: bytes, start: int = 0) -> None:
    """Raises ArchiveMismatch for rows with flags, a layout or a digest that this version does not know."""
    # the last three bytes of a row, in this order
    known = (("flags", _KNOWN_FLAGS), ("a layout", range(len(Layout))), ("a digest", _ALGORITHMS.keys()))
    for at, (what, numbers) in enumerate(known, start=ROW_BYTES - len(known)):
        # A slice of bytes takes a tenth of the time of one of a memoryview.
        if unknown := set(rows[start + at :: ROW_BYTES]).difference(numbers):
            raise ArchiveMismatch(f"A segment has {what} of number {min(unknown)}.", hint=NEWER)


def offsets_of(row: bytes) -> tuple[int, int]:
    """Return the base and the next offset of a row."""
    base, following = _OFFSETS.unpack(row)
    return int(base), int(following)


def identity_of(row: bytes) -> tuple[int, int, int, int]:
    """Base offset, epoch and attempt of a row, and the end of the snapshot of which it is a part (0: of none): no two
    segments of a partition have had the same."""
    values = ROW.unpack(row)
    base, epoch, attempt = _IDENTITY(values)
    return base, epoch, attempt, values[_END_AT] if values[LAYOUT_AT] == Layout.SNAPSHOT else 0


def sums_of(rows: bytes | bytearray) -> tuple[int, int]:
    """Return the sums of records and bytes of these rows."""
    records = size = 0
    for some, more in _SUMS.iter_unpack(bytes(rows)):
        records += some
        size += more
    return records, size


def packs_of(rows: bytes | bytearray) -> set[PackId]:
    """Return the packs that these rows name."""
    # one byte of each row names its layout, so rows are unpacked only if one of them is in a pack
    if Layout.PACK not in rows[ROW_BYTES + LAYOUT_AT :: ROW_BYTES]:
        return set()
    return {PACK_ID(row) for row in ROW.iter_unpack(bytes(rows)) if row[LAYOUT_AT] == Layout.PACK}


def without_bases(rows: bytes | bytearray, bases: Set[int]) -> tuple[bytearray, list[bytes]]:
    """Return the rows without those of segments with these base offsets, and the latter in order."""
    left, gone = bytearray(), []
    for at in range(0, len(rows), ROW_BYTES):
        row = bytes(rows[at : at + ROW_BYTES])
        if _BASE.unpack_from(row)[0] in bases:
            gone.append(row)
        else:
            left += row
    return left, gone


def with_row(rows: bytes | bytearray, row: bytes) -> bytearray:
    """Return the rows with one more, where its base offset belongs. A bytearray is changed and returned."""
    found = rows if isinstance(rows, bytearray) else bytearray(rows)
    (base,) = _BASE.unpack_from(row)
    # runs append: nearly every row belongs at the end, and is not searched for
    if not found or _BASE.unpack_from(found, len(found) - ROW_BYTES)[0] <= base:
        found += row
    else:
        at = bisect_left(range(len(found) // ROW_BYTES), base + 1, key=lambda index: _base_offset(found, index))
        found[at * ROW_BYTES : at * ROW_BYTES] = row
    return found


def _base_offset(rows: bytes | bytearray, index: int) -> int:
    return int(_BASE.unpack_from(rows, index * ROW_BYTES)[0])


def keyed_row(entry: SegmentEntry) -> tuple[Partition, bytes]:
    """Return the partition of a segment, and its row."""
    return (entry.topic_id, entry.partition), pack(entry)


def _picking(paths: Sequence[str], layout: Layout = Layout.KAFKA) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that takes these fields out of an unpacked row."""
    places = [fields.at(path, layout) for path in paths]
    if len(places) > 1:
        return itemgetter(*places)
    return lambda row: [row[place] for place in places]


def _own(layout: Layout) -> tuple[type[Files], Callable[[Sequence[Any]], Sequence[Any]]]:
    kind = FILES[layout]
    return kind, _picking([f"files.{item.name}" for item in fields_of(kind)], layout)  # type: ignore[arg-type]


_entry: Callable[..., SegmentEntry] = SegmentEntry
_times: Callable[..., SegmentTimes] = SegmentTimes
_PLAIN = _picking(
    (
        "epoch",
        "attempt",
        "base_offset",
        "next_offset",
        "records",
        "batches",
        "bytes",
        "max_batch_bytes",
        "digest.sha256",
    )
)
_ARCHIVED = _picking(("first_epoch", "last_epoch"))
_TIMES = _picking(("times.min_base_timestamp", "times.max_timestamp"))
_FILES = [_own(layout) for layout in sorted(Layout)]
_COUNTS_AT = fields.at("codecs")
_DIGEST_AT = fields.at("digest.sha256")
_TXNINDEX_SHA256_AT = fields.at("files.txnindex_sha256")


def _unpack(topic_id: str, partition: int, row: tuple[Any, ...]) -> SegmentEntry:
    """Return the entry of a row. Raises ArchiveDamaged for a row of a checkpoint that no segment has."""
    try:
        return _entry_of(topic_id, partition, row)
    except ValueError as error:
        raise damaged(f"a checkpoint, topic id {topic_id}", str(error)) from error


def _entry_of(topic_id: str, partition: int, row: tuple[Any, ...]) -> SegmentEntry:
    values = list(row)
    digest, layout, flags = values.pop(), values.pop(), values.pop()  # they end the row, the last first
    values[_DIGEST_AT] = Digest(_ALGORITHMS[digest], values[_DIGEST_AT].hex())
    values[_TXNINDEX_SHA256_AT] = values[_TXNINDEX_SHA256_AT].hex() if flags & HAS_TXNINDEX_SHA256 else ""
    # the bits below HAS_TXNINDEX_SHA256 are those of FLAGS
    transactional, control, gaps, append_time, legacy = _FLAG_VALUES[flags & (HAS_TXNINDEX_SHA256 - 1)]
    kind, own = _FILES[layout]
    return _entry(
        topic_id,
        partition,
        *_PLAIN(values),
        _times(*_TIMES(values), append_time),
        kind(*own(values)),
        {name: count for name, count in zip(CODECS, row[_COUNTS_AT:], strict=False) if count},
        transactional,
        control,
        gaps,
        legacy,
        *_ARCHIVED(values),
    )


class _Rows(Sequence[SegmentEntry]):
    """Rows that read as entries. They are equal to a list or tuple of the same entries."""

    __slots__ = ("_rows",)

    def __init__(self, rows: bytes | bytearray) -> None:
        self._rows = rows

    @abstractmethod
    def _key(self, index: int) -> Partition:
        """Return the partition of a row."""

    def __len__(self) -> int:
        return len(self._rows) // ROW_BYTES

    @overload
    def __getitem__(self, index: int) -> SegmentEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[SegmentEntry]: ...

    def __getitem__(self, index: int | slice) -> SegmentEntry | list[SegmentEntry]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"segment {index} of {len(self)}")
        return self._entry(at, ROW.unpack_from(self._rows, at * ROW_BYTES))

    def __iter__(self) -> Iterator[SegmentEntry]:
        # This reads a copy: a buffer cannot grow while it is read.
        for at, row in enumerate(ROW.iter_unpack(bytes(self._rows))):
            yield _unpack(*self._key(at), row)

    def _entry(self, index: int, row: tuple[Any, ...]) -> SegmentEntry:
        return _unpack(*self._key(index), row)

    def sums(self) -> tuple[int, int]:
        """Return the sums of records and bytes."""
        return sums_of(self._rows)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (_Rows, list, tuple)):
            return len(self) == len(other) and all(mine == its for mine, its in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class SegmentBatch(_Rows):
    """Segments of several partitions, in the order of a commit."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Sequence[Partition], rows: bytes | bytearray) -> None:
        super().__init__(rows)
        self._keys = keys

    @property
    def keys(self) -> Sequence[Partition]:
        """The partition of each segment."""
        return self._keys

    def _key(self, index: int) -> Partition:
        return self._keys[index]

    def rows(self) -> Iterator[tuple[Partition, bytes]]:
        """Each row with its partition."""
        for at, key in enumerate(self._keys):
            yield key, bytes(self._rows[at * ROW_BYTES : (at + 1) * ROW_BYTES])


def sums_of_segments(segments: Sequence[SegmentEntry]) -> tuple[int, int]:
    """Return the sums of records and bytes."""
    if isinstance(segments, _Rows):
        return segments.sums()
    return sum(entry.records for entry in segments), sum(entry.bytes for entry in segments)


Cuts = Mapping[int, Range]
"""The offsets [start, end) that count of segments, by their numbers in a table. Of all others everything counts."""
NO_CUTS: Cuts = {}


class PackedSegments(_Rows):
    """The segments of one partition by base offset: a view that sees what its table gets later. Those that are cut read
    as slices."""

    __slots__ = ("_cuts", "_partition")

    def __init__(self, key: Partition, rows: bytes | bytearray, cuts: Cuts = NO_CUTS) -> None:
        super().__init__(rows)
        self._partition = key
        self._cuts = cuts

    def _key(self, index: int) -> Partition:
        return self._partition

    def __iter__(self) -> Iterator[SegmentEntry]:
        return map(self.__getitem__, range(len(self))) if self._cuts else super().__iter__()

    def _entry(self, index: int, row: tuple[Any, ...]) -> SegmentEntry:
        entry = super()._entry(index, row)
        return entry.cut(*self._cuts[index]) if index in self._cuts else entry

    @property
    def cuts(self) -> Cuts:
        """The offsets that count of the segments that are cut."""
        return self._cuts

    def span(self, index: int) -> Range:
        """Return the offsets of a segment that count."""
        cut = self._cuts.get(index)
        return offsets_of(self.row(index)) if cut is None else cut

    @property
    def layouts(self) -> bytes | bytearray:
        """The number of the layout of each segment."""
        return self._rows[ROW_BYTES + LAYOUT_AT :: ROW_BYTES]

    @property
    def packed(self) -> bytes | bytearray:
        """The rows, to be read only."""
        return self._rows

    def row(self, index: int) -> bytes:
        """Return a packed row."""
        return bytes(self._rows[index * ROW_BYTES : (index + 1) * ROW_BYTES])

    def between(self, start: int, end: int) -> bytes:
        """Return the packed rows of the segments from number `start` on, up to number `end`."""
        return bytes(self._rows[start * ROW_BYTES : end * ROW_BYTES])

    def since(self, offset: int) -> PackedSegments:
        """Return the segments from an offset on. Of one that lies across it, the part from there on."""
        first = self.position(offset)
        cuts = {at - first: cut for at, cut in self._cuts.items() if at >= first}
        if first and (end := self.span(first - 1)[1]) > offset:
            first -= 1
            cuts = {0: (offset, end), **{at + 1: cut for at, cut in cuts.items()}}
        return PackedSegments(self._partition, self._rows[first * ROW_BYTES :], cuts)

    def position(self, offset: int) -> int:
        """Return the number of segments with a base offset below `offset`."""
        return bisect_left(range(len(self)), offset, key=self._base)

    def _base(self, index: int) -> int:
        cut = self._cuts.get(index)
        return int(_BASE.unpack_from(self._rows, index * ROW_BYTES)[0]) if cut is None else cut[0]


class SegmentTable(Mapping[Partition, PackedSegments]):
    """The segments of an archive by partition. `add`, `set_rows`, `remove` change it; what it hands out are views."""

    def __init__(self) -> None:
        self._rows: dict[Partition, bytearray] = {}
        self._cuts: dict[Partition, Cuts] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._rows)

    def __getitem__(self, key: Partition) -> PackedSegments:
        return PackedSegments(key, self._rows[key], self._cuts.get(key, NO_CUTS))

    def __contains__(self, key: object) -> bool:
        return key in self._rows

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SegmentTable):
            return self._rows == other._rows and self._cuts == other._cuts
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]

    @property
    def count(self) -> int:
        """The number of all segments."""
        return sum(map(len, self._rows.values())) // ROW_BYTES

    def rows(self, key: Partition) -> bytearray:
        """Return the packed rows of a partition, to be read only; empty if it has none."""
        return self._rows.get(key, bytearray())

    def cuts(self, key: Partition) -> Cuts:
        """Return the offsets that count of those segments of a partition that are cut."""
        return self._cuts.get(key, NO_CUTS)

    def add(self, entry: SegmentEntry) -> None:
        """Put a segment where its base offset belongs. Raises ValueError for what no row can hold."""
        self.add_row((entry.topic_id, entry.partition), pack(entry))

    def add_row(self, key: Partition, row: bytes) -> None:
        """Add a segment that is packed already."""
        rows = self._rows.get(key)
        if rows is None:
            self._rows[key] = bytearray(row)
        else:
            with_row(rows, row)

    def set_rows(self, key: Partition, rows: bytes | bytearray | memoryview) -> None:
        """Take over all rows of a partition. Raises ValueError if they are not whole, or not in order."""
        if not rows or len(rows) % ROW_BYTES:
            raise ValueError(f"{len(rows)} bytes of segment rows")
        if not rows_in_order(rows, ROW_BYTES):
            raise ValueError("segment rows that are not in order")
        self._rows[key] = bytearray(rows)

    def replace_rows(self, key: Partition, rows: bytes | bytearray, cuts: Cuts = NO_CUTS) -> None:
        """Take over all rows of a partition, with what counts of some; without rows the partition is removed."""
        self._cuts.pop(key, None)
        if not rows:
            self._rows.pop(key, None)
        elif cuts:
            # Their order is that of what counts of them: a view has made them, and no catalog ever has them.
            self._rows[key], self._cuts[key] = bytearray(rows), cuts
        else:
            self.set_rows(key, rows)

    def keep(self, key: Partition, numbers: Sequence[int]) -> None:
        """Leave a partition no segments but those with these numbers, which rise."""
        segments = self[key]
        cuts = {at: segments.cuts[number] for at, number in enumerate(numbers) if number in segments.cuts}
        self.replace_rows(key, b"".join(map(segments.row, numbers)), cuts)

    def copy(self) -> SegmentTable:
        """Return a table that changes on its own; both share rows until one of them replaces its rows."""
        other = SegmentTable()
        other._rows, other._cuts = dict(self._rows), dict(self._cuts)
        return other

    def remove(self, key: Partition, bases: Set[int]) -> list[bytes]:
        """Take out the segments with these base offsets, and return their rows in order. Raises ValueError if one is
        not there; then nothing is taken out."""
        left, gone = without_bases(self._rows.get(key, bytearray()), bases)
        if len(gone) != len(bases):
            missing = min(bases - {_BASE.unpack_from(row)[0] for row in gone})
            raise ValueError(f"there is no segment {missing} of topic id {key[0]} partition {key[1]} to remove")
        if left:
            self._rows[key] = left
        else:
            self._rows.pop(key, None)
        return gone

    def overlapping(self, entry: SegmentEntry) -> SegmentEntry | None:
        """Return a segment of the same partition that shares an offset with `entry`."""
        entries = self.get((entry.topic_id, entry.partition))
        if entries is None:
            return None
        at = entries.position(entry.base_offset)
        if at < len(entries) and (after := entries[at]).base_offset < entry.next_offset:
            return after
        if at and (before := entries[at - 1]).next_offset > entry.base_offset:
            return before
        return None
