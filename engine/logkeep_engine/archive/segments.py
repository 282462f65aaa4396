"""Reading archived segments, every batch checked. Bounded memory whatever the segment's size.

`read_segment` is strict (the first fault is ArchiveDamaged) or, with `on_fault`, goes on with the next whole batch and
says which offsets are lost. What a CRC does not cover (offsets, leader epochs) is held against the catalog: offsets
must rise inside the segment's range, and the whole object must have the catalog's SHA-256. The last is known at the end
only: whoever must not act on a segment that is altered there verifies it first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.model import Range, SegmentEntry
from logkeep_engine.errors import ArchiveDamaged, CorruptBatch, CorruptIndex, ObjectMissing
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, check_crc, parse_header, walk
from logkeep_engine.log.segment import AbortedTxn, read_txn_index
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

_HINT = "Restore the object from a copy of the archive, or go on without it (onDamagedArchive: Skip)."
_SIZE_AND_MAGIC = struct.Struct(">8xi4xB")
_OVERHEAD = 12  # bytes that a batch's length does not count
_MAGIC_AT = 16
_READERS = 16

Run = tuple[memoryview, list[tuple[int, BatchHeader]]]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something of the archive is not what the catalog says. `topic` "" and `partition` -1: it is the catalog
    itself."""

    object: str
    topic: str
    partition: int
    offset: int | None
    what: str

    def __str__(self) -> str:
        where = f" (topic {self.topic} partition {self.partition}" if self.topic else ""
        if self.offset is not None:
            where += f" offset {self.offset}" if where else f" (offset {self.offset}"
        return f"{self.object}{where}{')' if where else ''}: {self.what}"


OnFault = Callable[[Fault, Range | None], None]
"""Told of a fault and the offsets [start, end) that cannot be read for it; None: nothing is lost, but the object is not
as it was."""


def read_segment(
    storage: Storage, topic: str, entry: SegmentEntry, *, on_fault: OnFault | None = None, block: int = DEFAULT_BLOCK
) -> Iterator[Run]:
    """Runs of whole batches, each a view on batches that lie back to back and their headers with positions in the view.

    Every CRC is checked. Without `on_fault` raises ArchiveDamaged at the first fault. Storage errors are raised in both
    modes, but for a missing object, which is a fault.
    """
    return _Reading(storage, topic, entry, on_fault).runs(block)


def aborted_transactions(
    storage: Storage, topic: str, entries: Iterable[SegmentEntry]
) -> dict[int, list[tuple[int, int]]]:
    """Producer id to the aborted transactions [(first offset, offset of the marker), ...], sorted, of one partition's
    segments.

    A transaction is in the index of the segment that holds its marker, which may be behind the segment of its records:
    hand in all segments of the partition. Raises ArchiveDamaged if an index is missing or altered.
    """
    indexed = [entry for entry in entries if entry.txnindex_bytes]
    found: dict[int, list[tuple[int, int]]] = {}
    if not indexed:
        return found
    with ThreadPoolExecutor(min(_READERS, len(indexed)), thread_name_prefix="logkeep-txn") as pool:
        for transactions in pool.map(lambda entry: read_transactions(storage, topic, entry), indexed):
            for transaction in transactions:
                spans = found.setdefault(transaction.producer_id, [])
                spans.append((transaction.first_offset, transaction.last_offset))
    for spans in found.values():
        spans.sort()
    return found


def read_transactions(storage: Storage, topic: str, entry: SegmentEntry) -> list[AbortedTxn]:
    """The entries of a segment's `.txnindex`, [] if it has none. Raises ArchiveDamaged if it is missing or altered."""
    if not entry.txnindex_bytes:
        return []
    path = entry.stem(topic) + names.TXNINDEX
    try:
        data = storage.read(path)
    except ObjectMissing as error:
        raise _damaged(_fault(storage, path, topic, entry, None, "the object is missing")) from error
    what = ""
    if len(data) != entry.txnindex_bytes:
        what = f"{len(data)} bytes, the catalog says {entry.txnindex_bytes}"
    elif entry.txnindex_sha256 and hashlib.sha256(data).hexdigest() != entry.txnindex_sha256:
        what = "its SHA-256 is not the catalog's"
    if what:
        raise _damaged(_fault(storage, path, topic, entry, None, what))
    try:
        return read_txn_index(data)
    except CorruptIndex as error:
        raise _damaged(_fault(storage, path, topic, entry, None, error.message)) from error


class _Reading:
    """One pass over a segment's `.log`."""

    def __init__(self, storage: Storage, topic: str, entry: SegmentEntry, on_fault: OnFault | None) -> None:
        self._storage = storage
        self._topic = topic
        self._entry = entry
        self._on_fault = on_fault
        self._path = entry.stem(topic) + names.LOG
        self._expected = entry.base_offset
        self._position = 0  # in the object, of the first byte of the buffer
        self._faults = 0
        # Set while looking for the next whole batch behind a damaged one: what was wrong, where, and where the length
        # says it is.
        self._damage: tuple[int, str] | None = None
        self._jump: int | None = None

    def runs(self, block: int) -> Iterator[Run]:
        digest = hashlib.sha256()
        size = 0
        data = b""
        with self._storage.reader(self._path, block=block) as reader:
            while True:
                try:
                    fresh = reader.read_block()
                except ObjectMissing:
                    self._report("the object is missing", self._expected, self._rest())
                    return
                digest.update(fresh)
                size += len(fresh)
                data = data + fresh if data else fresh
                final = not fresh
                consumed = 0
                while True:
                    if self._damage is not None:
                        found, consumed = self._resume(data, consumed, final)
                        if not found:
                            break
                    start = consumed
                    headers, consumed, wrong = self._walk(data, start, final)
                    if headers:
                        yield memoryview(data)[start:consumed], _relative(headers, start)
                    if wrong is None:
                        break
                    self._begin_search(data, consumed, wrong)
                data = data[consumed:]
                self._position += consumed
                if self._jump is not None:
                    self._jump -= consumed
                if final:
                    break
        self._finish(size, digest.hexdigest())

    def _walk(self, data: bytes, start: int, final: bool) -> tuple[list[tuple[int, BatchHeader]], int, str | None]:
        """Whole good batches from `start`, the position behind them, and what is wrong there (None: more bytes are
        needed)."""
        headers: list[tuple[int, BatchHeader]] = []
        at = start
        end_offset = self._entry.next_offset
        try:
            for position, header in walk(data, start):
                check_crc(data, position, header)
                if not self._expected <= header.base_offset <= header.last_offset < end_offset:
                    return (
                        headers,
                        at,
                        (
                            f"a batch with offsets {header.base_offset} to {header.last_offset}, "
                            f"where offsets from {self._expected} to {end_offset - 1} may follow"
                        ),
                    )
                headers.append((position, header))
                self._expected = header.next_offset
                at = position + header.size
        except CorruptBatch as error:
            return headers, at, error.message
        left = len(data) - at
        if left >= _SIZE_AND_MAGIC.size:
            claimed = _SIZE_AND_MAGIC.unpack_from(data, at)[0] + _OVERHEAD
            if claimed > self._entry.max_batch_bytes:
                return headers, at, f"a batch of {claimed} bytes, the largest has {self._entry.max_batch_bytes}"
        if final and left:
            return headers, at, f"the last batch is cut short: {left} bytes of it are there"
        return headers, at, None

    def _begin_search(self, data: bytes, at: int, wrong: str) -> None:
        if self._on_fault is None:
            raise _damaged(self._fault(self._expected, wrong, self._position + at))
        self._damage = (self._position + at, wrong)
        self._jump = None
        if len(data) - at >= _SIZE_AND_MAGIC.size:
            size = _SIZE_AND_MAGIC.unpack_from(data, at)[0] + _OVERHEAD
            if HEADER_SIZE <= size <= self._entry.max_batch_bytes:
                self._jump = at + size

    def _resume(self, data: bytes, start: int, final: bool) -> tuple[bool, int]:
        """(True, position of the next whole batch), or (False, position from which bytes must be kept to go on
        looking)."""
        if self._jump is not None:
            # The damaged batch's own length comes first: a record may hold something that looks like a batch.
            good = self._good_batch(data, self._jump, final)
            if good is None:
                return False, start
            if good:
                return self._found(data, self._jump)
            self._jump = None
        # Where the damaged batch begins there is none: look behind it.
        at = start + 1 if self._damage is not None and self._position + start == self._damage[0] else start
        if self._entry.legacy:
            return False, len(data)
        while True:
            magic = data.find(b"\x02", at + _MAGIC_AT)
            if magic < 0:
                return False, max(start, min(len(data), max(at, len(data) - _MAGIC_AT)))
            at = magic - _MAGIC_AT
            good = self._good_batch(data, at, final)
            if good is None:
                return False, at
            if good:
                return self._found(data, at)
            at += 1

    def _good_batch(self, data: bytes, at: int, final: bool) -> bool | None:
        """Is a whole batch of this segment at `at`? None: more bytes are needed to tell."""
        if len(data) - at < HEADER_SIZE and not final:
            return None
        try:
            header = parse_header(data, at)
            in_place = self._expected <= header.base_offset <= header.last_offset < self._entry.next_offset
            if not in_place or header.size > self._entry.max_batch_bytes:
                return False
            if at + header.size > len(data) and not final:
                return None
            check_crc(data, at, header)
        except CorruptBatch:
            return False
        return True

    def _found(self, data: bytes, at: int) -> tuple[bool, int]:
        assert self._damage is not None
        position, wrong = self._damage
        following = parse_header(data, at).base_offset
        self._report(wrong, self._expected, (self._expected, following), position)
        self._expected = following
        self._damage = self._jump = None
        return True, at

    def _finish(self, size: int, digest: str) -> None:
        entry = self._entry
        if self._damage is not None:
            position, wrong = self._damage
            if size < entry.bytes:
                wrong = f"{wrong}; the object has {size} bytes, the catalog says {entry.bytes}"
            self._report(wrong, self._expected, self._rest(), position)
        elif size != entry.bytes:
            self._report(f"{size} bytes, the catalog says {entry.bytes}", self._expected, self._rest())
        elif self._expected != entry.next_offset:
            self._report(
                f"its batches end before offset {self._expected}, the catalog says {entry.next_offset}",
                self._expected,
                self._rest(),
            )
        elif not self._faults and digest != entry.sha256:
            self._report(
                f"its SHA-256 is {digest}, the catalog says {entry.sha256}: "
                "offsets or leader epochs of batches were altered",
                entry.base_offset,
                None,
            )

    def _rest(self) -> Range:
        return (self._expected, self._entry.next_offset)

    def _report(self, what: str, offset: int, lost: Range | None, position: int | None = None) -> None:
        fault = self._fault(offset, what, position)
        if self._on_fault is None:
            raise _damaged(fault)
        self._faults += 1
        self._on_fault(fault, lost if lost is not None and lost[0] < lost[1] else None)

    def _fault(self, offset: int, what: str, position: int | None = None) -> Fault:
        at = f" at position {position}" if position is not None else ""
        return _fault(self._storage, self._path, self._topic, self._entry, offset, what + at)


def _relative(headers: list[tuple[int, BatchHeader]], start: int) -> list[tuple[int, BatchHeader]]:
    return headers if start == 0 else [(position - start, header) for position, header in headers]


def _fault(storage: Storage, path: str, topic: str, entry: SegmentEntry, offset: int | None, what: str) -> Fault:
    return Fault(f"{storage.uri}/{path}", topic, entry.partition, offset, what)


def _damaged(fault: Fault) -> ArchiveDamaged:
    return ArchiveDamaged(f"{fault}.", hint=_HINT)
