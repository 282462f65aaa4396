"""Reads archived segments and checks every batch. Memory is bounded whatever the segment's size, compressed or not.

`read_segment` is strict: it raises ArchiveDamaged at the first damage. With `on_damage` it continues with the next
whole batch and says which offsets are lost. A CRC does not cover offsets and leader epochs. So offsets must rise inside
the segment's range, and the whole object must have the catalog's digest. The digest is known only at the end: a caller
that must not use a batch of an altered segment verifies the segment first.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Self

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.files import read_file
from logkeep_engine.archive.reading.log_reader import read_log
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.errors import (
    ArchiveDamaged,
    BatchTooLarge,
    CorruptBatch,
    CorruptIndex,
    ObjectMissing,
    ObjectTooLarge,
)
from logkeep_engine.log.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    Headers,
    Stretch,
    check_crc,
    parse_header,
    runs,
)
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.seekable import FRAME_BYTES
from logkeep_engine.log.segment import AbortedTxn, find_offset, find_time, read_txn_index
from logkeep_engine.storage import DEFAULT_BLOCK, Storage

_SIZE_AND_MAGIC = struct.Struct(">8xi4xB")
_MAGIC_AT = 16  # the same place in every version of the format
SEEK_BLOCK = FRAME_BYTES


def read_segment(
    storage: Storage, topic: str, entry: SegmentEntry, *, on_damage: OnDamage | None = None, block: int = DEFAULT_BLOCK
) -> Iterator[Stretch]:
    """Stretches of whole batches, each a view on batches that lie back to back and their headers with positions in the
    view.

    Every CRC is checked. Without `on_damage` raises ArchiveDamaged at the first damage. Storage errors are raised with
    and without it; only a missing object counts as damage.
    """
    return _Reading(storage, topic, entry, on_damage).stretches(block)


def read_from(storage: Storage, topic: str, entry: SegmentEntry, offset: int) -> Iterator[Stretch]:
    """Yield the stretches of `read_segment` from the batch that holds `offset` on, or from the first after it. Earlier
    batches are not read.

    Three small requests lead to the first stretch: index, seek table, frame (plain segments: index, range). The offset
    index is only a hint: where it is missing or not that of the log, the segment is read from its start. Raises
    ArchiveDamaged at the first damage of what is read. The digest of the whole cannot be compared with a part.
    """
    stretches = _from_hint(storage, topic, entry, offset)
    if stretches is None:
        stretches = _Reading(storage, topic, entry, None).stretches(SEEK_BLOCK)
    wanted = False
    for stretch, headers in stretches:
        if wanted:
            yield stretch, headers
            continue
        rest = headers[headers.first_reaching(offset) :]
        if rest:
            wanted = True
            yield stretch[rest.start :], rest.relative()


def first_at_or_after(storage: Storage, topic: str, entry: SegmentEntry, timestamp: int) -> BatchHeader | None:
    """Return the first batch of a segment whose max timestamp is `timestamp` (ms) or later, None if there is none.
    Compaction may have emptied it.

    Reads time index, offset index and what lies between two of their entries. Raises ArchiveDamaged like `read_from`.
    """
    if entry.times.max_timestamp < timestamp:
        return None
    start = entry.base_offset
    data = _index(storage, topic, entry, names.TIMEINDEX)
    found = find_time(data, entry.base_offset, timestamp)
    if found is not None and found.offset < entry.next_offset:
        start = found.offset + 1
    for _, headers in read_from(storage, topic, entry, start):
        late = headers[headers.first_since(timestamp) :]
        if late:
            return late[0][1]
    return None


def _from_hint(storage: Storage, topic: str, entry: SegmentEntry, offset: int) -> Iterator[Stretch] | None:
    """Return the stretches from where the offset index says; None: it says nothing, or no batch that ends as it says
    begins there."""
    data = _index(storage, topic, entry, names.INDEX)
    hint = find_offset(data, entry.base_offset, offset)
    if hint is None or not 0 < hint.position < entry.bytes:
        return None
    stretches = _Reading(storage, topic, entry, None, hint.position).stretches(SEEK_BLOCK)
    try:
        first = next(stretches)
    except (ArchiveDamaged, StopIteration):
        return None
    if first[1][0][1].last_offset != hint.offset:
        stretches.close()
        return None
    return chain([first], stretches)


def _index(storage: Storage, topic: str, entry: SegmentEntry, suffix: str) -> bytes:
    """Return an index, b"" if it is not there as the catalog says: `verify` reports that, a reader does without."""
    try:
        data = read_file(storage, topic, entry, suffix)
    except (ObjectMissing, ObjectTooLarge):
        return b""
    return data if len(data) == entry.place(topic, suffix).size else b""


def read_index(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
) -> list[AbortedTxn] | None:
    """Return the entries of a segment's `.txnindex`, [] if it has none. If it is missing or altered, raises
    ArchiveDamaged, or tells `on_damage` and gives None."""
    if not entry.files.txnindex_bytes:
        return []
    path = entry.stem(topic) + names.TXNINDEX
    try:
        data = read_file(storage, topic, entry, names.TXNINDEX)
        if len(data) != entry.files.txnindex_bytes:
            what = f"{len(data)} bytes, the catalog says {entry.files.txnindex_bytes}"
        elif entry.files.txnindex_sha256 and hashlib.sha256(data).hexdigest() != entry.files.txnindex_sha256:
            what = "its SHA-256 is not the catalog's"
        else:
            return read_txn_index(data)
    except ObjectMissing:
        what = "the object is missing"
    except (CorruptIndex, ObjectTooLarge) as error:
        what = error.message
    damage = Damage(f"{storage.uri}/{path}", topic, entry.partition, None, what)
    if on_damage is None:
        raise damage.error()
    on_damage(replace(damage, what=what.rstrip(".")))
    return None


class _Reading:
    """One pass over a segment's log, from position `start` of it on."""

    def __init__(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None, start: int = 0
    ) -> None:
        self._storage = storage
        self._topic = topic
        self._entry = entry
        self._on_damage = on_damage
        self._path = entry.stem(topic) + entry.log_suffix
        self._margin = entry.files.margin
        self._expected = entry.base_offset - self._margin
        self._start = start
        self._position = start  # of the next byte, in the log
        self._size: int | None = 0  # bytes read; None: not known, since some could not be read
        self._reported = 0
        # Set while the reader looks for the next whole batch after a damaged one: where the damage begins and what is
        # wrong, and where the length of the damaged batch says that the next one begins.
        self._damage: tuple[int, str] | None = None
        self._jump: int | None = None

    def stretches(self, block: int) -> Generator[Stretch, None, None]:
        rest = memoryview(b"")
        with _Digest(self._entry.digest.algorithm, threaded=self._entry.bytes > block) as digest:
            try:
                for item in read_log(self._storage, self._topic, self._entry, start=self._start, block=block):
                    if isinstance(item, DamagedBytes) and item.size == 0:
                        self._report(item.what, self._at, None)
                    elif isinstance(item, DamagedBytes):
                        yield from self._batches(rest, item.what)
                        rest = memoryview(b"")
                        self._pass_damage(item)
                    else:
                        fresh = memoryview(item.buffer)[item.start : item.end]
                        if self._start == 0:
                            digest.update(fresh)
                        self._size = None if self._size is None else self._size + len(fresh)
                        data = item.after(rest)
                        rest = data[(yield from self._batches(data, None)) :]
                        del item, fresh, data  # so that their buffer is free as soon as the caller's views are gone
            except ObjectMissing:
                self._report("the object is missing", self._at, self._rest())
                return
            yield from self._batches(rest, "the last batch is cut short: {left} bytes of it are there")
            self._finish(digest)

    def _batches(self, data: memoryview, cut: str | None) -> Generator[Stretch, None, int]:
        """Stretches of whole batches in `data`, and the bytes that are done with. `cut`: no more bytes follow, and this
        is what to say of a batch that they would have completed."""
        consumed = 0
        while True:
            if self._damage is not None:
                found, consumed = self._resume(bytes(data), consumed, cut is not None)
                if not found:
                    break
            start = consumed
            consumed, wrong = yield from self._good(data, start)
            if wrong is None:
                wrong = self._incomplete(data, consumed, cut)
            if wrong is None:
                break
            self._begin_search(data, consumed, wrong)
        self._position += consumed
        if self._jump is not None:
            self._jump -= consumed
        return consumed

    def _good(self, data: memoryview, start: int) -> Generator[Stretch, None, tuple[int, str | None]]:
        """Stretches of whole good batches from `start`, the position after them, and what is wrong there (None: no
        whole batch is left)."""
        at = start
        end_offset = self._entry.next_offset
        try:
            for headers in runs(data, start=start, checked=True):
                good = headers[: headers.in_order(self._expected, end_offset + self._margin)]
                if good:
                    at = good.end
                    self._expected = good.next_offset
                    log = self._of_the_log(good) if self._margin else good
                    if log:
                        yield data[log.start : log.end], log.relative()
                    del log
                if len(good) < len(headers):
                    header = headers[len(good)][1]
                    return at, (
                        f"a batch with offsets {header.base_offset} to {header.last_offset}, "
                        f"where offsets from {self._expected} to {end_offset - 1} may follow"
                    )
                del headers, good  # of tiny batches they take as much memory as the batches
        except CorruptBatch as error:
            return at, error.message
        except BatchTooLarge as error:  # it is unknown what is in these old messages, but they may be whole
            where = f"{self._storage.uri}/{self._path}"
            raise error.within(f"{where} (topic {self._topic} partition {self._entry.partition})") from error
        return at, None

    def _of_the_log(self, headers: Headers) -> Headers:
        """Return the batches without those in front of the log and after it."""
        first = 1 if headers[0][1].base_offset < self._entry.base_offset else 0
        last = 1 if headers[-1][1].base_offset >= self._entry.next_offset else 0
        return headers[first : len(headers) - last]

    @property
    def _at(self) -> int:
        """The offset of the log that is reached."""
        return max(self._expected, self._entry.base_offset) if self._margin else self._expected

    def _incomplete(self, data: memoryview, at: int, cut: str | None) -> str | None:
        """Return the fault of the bytes from `at` on, which are not a whole batch; None if more bytes may make it
        one."""
        left = len(data) - at
        if left >= _SIZE_AND_MAGIC.size:
            claimed = _SIZE_AND_MAGIC.unpack_from(data, at)[0] + LOG_OVERHEAD
            if claimed > self._entry.max_batch_bytes:
                return f"a batch of {claimed} bytes, the largest has {self._entry.max_batch_bytes}"
        return cut.format(left=left) if cut is not None and left else None

    def _begin_search(self, data: memoryview, at: int, wrong: str) -> None:
        if self._on_damage is None:
            raise self._damage_at(self._at, wrong, self._position + at).error()
        self._damage = (self._position + at, wrong)
        self._jump = None
        if len(data) - at >= _SIZE_AND_MAGIC.size:
            size = _SIZE_AND_MAGIC.unpack_from(data, at)[0] + LOG_OVERHEAD
            if HEADER_SIZE <= size <= self._entry.max_batch_bytes:
                self._jump = at + size

    def _pass_damage(self, damaged: DamagedBytes) -> None:
        """Continue after bytes that could not be read: the next bytes begin with a batch, as far as is known."""
        if self._damage is None:
            self._begin_search(memoryview(b""), 0, damaged.what)
        self._jump = 0
        if damaged.size < 0:
            self._size = None
            return
        self._position += damaged.size
        self._size = None if self._size is None else self._size + damaged.size

    def _resume(self, data: bytes, start: int, final: bool) -> tuple[bool, int]:
        """(True, position of the next whole batch), or (False, position from which bytes must be kept to continue
        looking)."""
        if self._jump is not None:
            # Try the damaged batch's own length first: a record may hold bytes that look like a batch.
            good = self._good_batch(data, self._jump, final)
            if good is None:
                return False, start
            if good:
                return self._found(data, self._jump)
            self._jump = None
        # No batch begins where the damaged one begins: look after it.
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
        self._report(wrong, self._at, (self._at, following), position)
        self._expected = following
        self._damage = self._jump = None
        return True, at

    def _finish(self, digest: _Digest) -> None:
        entry = self._entry
        size = entry.bytes if self._size is None else self._start + self._size
        if self._damage is not None:
            position, wrong = self._damage
            if size < entry.bytes:
                wrong = f"{wrong}; the object has {size} bytes, the catalog says {entry.bytes}"
            self._report(wrong, self._at, self._rest(), position)
        elif size != entry.bytes:
            self._report(f"{size} bytes, the catalog says {entry.bytes}", self._at, self._rest())
        elif not 0 <= self._expected - entry.next_offset <= self._margin:
            self._report(
                f"its batches end before offset {self._expected}, the catalog says {entry.next_offset}",
                self._at,
                self._rest(),
            )
        elif not self._start and not self._reported and (found := digest.digest()) != entry.digest:
            what = f"{entry.digest.difference(found)}: offsets or leader epochs of batches were altered"
            self._report(what, entry.base_offset, None)

    def _rest(self) -> Range:
        return (self._at, self._entry.next_offset)

    def _report(self, what: str, offset: int, lost: Range | None, position: int | None = None) -> None:
        damage = self._damage_at(offset, what, position, lost if lost is not None and lost[0] < lost[1] else None)
        if self._on_damage is None:
            raise damage.error()
        self._reported += 1
        self._on_damage(damage)

    def _damage_at(self, offset: int, what: str, position: int | None = None, lost: Range | None = None) -> Damage:
        if position is not None:
            what = f"{what.rstrip('.')}, at position {position}"
        entry = self._entry
        return Damage(f"{self._storage.uri}/{self._path}", self._topic, entry.partition, offset, what, lost)


class _Digest:
    """Digest of what comes by; if `threaded`, worked out while the caller does something else with the same bytes."""

    def __init__(self, algorithm: DigestAlgorithm, *, threaded: bool) -> None:
        self._hasher = Hasher(algorithm)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="logkeep-digest") if threaded else None
        self._running: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def update(self, data: memoryview) -> None:
        """The bytes must stay as they are until the next call."""
        if self._pool is None:
            self._hasher.update(data)
            return
        self._wait()
        self._running = self._pool.submit(self._hasher.update, data)

    def digest(self) -> Digest:
        self._wait()
        return self._hasher.digest()

    def _wait(self) -> None:
        if self._running is not None:
            self._running.result()
            self._running = None
