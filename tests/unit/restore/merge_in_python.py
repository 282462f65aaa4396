"""The stream of a restore as it was before the kernel: what the kernel's is compared with. One batch at a time goes in,
and cramjam compresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import BatchHeader, parse_header
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.log.packer import repacked_size
from logkeep_engine.log.records import SMALLEST_RECORD, sealed, unpack
from logkeep_engine.log.transactions import Spans
from logkeep_engine.log.varints import INT64_MAX, long_varint, varint, wrap
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Action, Outgoing, decide, unchanged
from logkeep_engine.restore.streams.merge import MERGED_BYTES, MERGED_UNPACKED, SMALL_BYTES, SMALL_RECORDS, packed_limit
from tests.unit.restore.rebuilt_in_python import rebuilt

_MAGIC = 2
_CUT_AHEAD = 2 << 20
_SMALL_VARINTS = [long_varint(number) for number in range(8192)]  # those that fill two bytes at most


class PackerInPython:
    """Gathers the records of batches of magic 2 into one batch of create time, without gaps, in the order of `add`.

    The packer reads and writes again only the length, time and offset of a record. Keys, values and headers are copied
    as they are, packed. Every record keeps the time that a consumer sees, which is the batch's max
    timestamp in a log-append-time batch.
    """

    def __init__(self) -> None:
        self._body = bytearray()
        self._base_timestamp = 0
        self._max_timestamp = 0
        self.count = 0

    def add(self, packed: bytes | memoryview, header: BatchHeader) -> list[tuple[int, int]]:
        """Take the records of a batch over; returns their offsets as ranges (first source offset, count).

        `packed` is what `unpack` gives. Raises `CorruptBatch` if it does not hold as many records as `header` says, one
        after the other. Then the packer is of no use any more.
        """
        data = bytes(packed)
        try:
            return self._add(data, header)
        except IndexError:
            raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: a record is cut short.") from None
        except CorruptBatch as problem:
            raise CorruptBatch(f"The batch at offset {header.base_offset} is damaged: {problem.message}.") from problem

    def _add(self, data: bytes, header: BatchHeader) -> list[tuple[int, int]]:
        source_base, source_time = header.base_offset, header.base_timestamp
        append_time = header.max_timestamp if header.is_log_append_time else None
        far = abs(source_time) > INT64_MAX - 64
        total = len(data)
        body, small = self._body, _SMALL_VARINTS
        table = len(small)
        delta = self.count
        runs: list[tuple[int, int]] = []
        first = following = source_base
        at = 0
        for _ in range(header.record_count):
            # One loop: a call for each number would take most of the time, and one to write each record 7 % of it.
            number = data[at]
            if number < 0x80:
                length = (number >> 1) ^ -(number & 1)
                at += 1
            else:
                length, at = varint(data, at)
            start, end = at, at + length
            if length < SMALLEST_RECORD or end > total:
                raise CorruptBatch(f"a record of {length} bytes at {at} of {total}")
            at += 1  # attributes
            number = data[at]
            if number < 0x80:
                timestamp = source_time + ((number >> 1) ^ -(number & 1))
                at += 1
            else:
                timestamp, at = varint(data, at)
                timestamp += source_time
                if not -INT64_MAX <= timestamp <= INT64_MAX:
                    timestamp = wrap(timestamp)
            number = data[at]
            if number < 0x80:
                offset = source_base + ((number >> 1) ^ -(number & 1))
                at += 1
            else:
                offset, at = varint(data, at)
                offset += source_base
            if at > end:
                raise CorruptBatch(f"the record at offset {offset} does not fill its length")
            if append_time is not None:
                timestamp = append_time
            elif far:
                timestamp = wrap(timestamp)
            if delta == 0:
                self._base_timestamp = self._max_timestamp = timestamp
            elif timestamp > self._max_timestamp:
                self._max_timestamp = timestamp
            if offset != following:
                if following > first:
                    runs.append((first, following - first))
                first = offset
            following = offset + 1
            later = timestamp - self._base_timestamp
            time_bytes = small[later] if 0 <= later < table else long_varint(later)
            offset_bytes = small[delta] if delta < table else long_varint(delta)
            length = 1 + len(time_bytes) + len(offset_bytes) + end - at
            body += small[length] if length < table else long_varint(length)
            body += data[start : start + 1] + time_bytes + offset_bytes
            body += data[at:end]
            at = end
            delta += 1
        if at != total:
            raise CorruptBatch(f"{total - at} bytes are left over after {header.record_count} records")
        runs.append((first, following - first))
        self.count = delta
        return runs

    def batch(self, codec: Codec, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """All records taken over, at least one, as one batch from offset 0."""
        return sealed(
            compress(codec, self._body),
            BatchHeader(
                base_offset=0,
                batch_length=0,
                leader_epoch=-1,
                magic=_MAGIC,
                crc=0,
                attributes=codec,
                last_offset_delta=self.count - 1,
                base_timestamp=self._base_timestamp,
                max_timestamp=self._max_timestamp,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                base_sequence=base_sequence,
                record_count=self.count,
            ),
        )


def _cut_at(packed: bytes | memoryview, header: BatchHeader, most: int) -> Iterator[tuple[int, int, int]]:
    total = len(packed)
    start = at = count = size = 0
    for _ in range(header.record_count):
        length, body = varint(packed, at)
        end = body + length
        if length < SMALLEST_RECORD or end > total:
            raise CorruptBatch(f"a record of {length} bytes at {body} of {total}")
        taken = repacked_size(end - at, 1)
        if count and size + taken > most:
            yield start, at, count
            start, count, size = at, 0, 0
        count += 1
        size += taken
        at = end
    if at != total:
        raise CorruptBatch(f"{total - at} bytes are left over after {header.record_count} records")
    yield start, at, count


@dataclass(frozen=True, slots=True)
class _Member:
    batch: memoryview
    header: BatchHeader
    action: Action
    packed: bytes | memoryview


class StreamInPython:
    """Turns archived batches into those to send. `add` and, at the end, `finish` give them in order.

    `max_bytes` are the bytes of the largest batch that the target topic takes. The first `done` records come without
    data, with source offsets and sizes only.
    """

    def __init__(self, *, producer_id: int, max_bytes: int, done: int = 0) -> None:
        self._producer_id = producer_id
        self._max_bytes = max_bytes
        self._done = done
        self._limit = min(MERGED_BYTES, max_bytes)
        self._most = min(MERGED_UNPACKED, packed_limit(max_bytes))
        self._index = 0
        self._group: list[_Member] = []
        self._bytes = 0
        self._unpacked = 0

    def add(self, batch: memoryview, header: BatchHeader, action: Action) -> Iterator[Outgoing]:
        """Take a batch whose CRC was checked; returns the batches that are ready then. `action` is RAW or REBUILD.

        A small batch is copied, of a large one the outgoing batch holds a view. Raises CorruptBatch if the records are
        not what the header says, and BatchTooLarge for a batch that must be rebuilt and cannot be unpacked.
        """
        if action is Action.RAW and not (header.record_count <= SMALL_RECORDS and header.size <= SMALL_BYTES):
            yield from self._as_it_is(batch, header)
        elif header.magic < 2:
            yield from self.finish()
            yield from self._rebuilt(batch, header)
        elif (member := self._member(batch, header, action)) is not None:
            if not self._fits(member):
                yield from self.finish()
            self._group.append(member)
            self._bytes += header.size
            self._unpacked += self._weight(member)
        elif action is Action.RAW:
            yield from self._as_it_is(batch, header)
        else:
            yield from self.finish()
            yield from self._cut(batch, header)

    def finish(self) -> Iterator[Outgoing]:
        """The batches that were kept back for more to come."""
        group = self._group
        if group:
            self._group = []
            self._bytes = self._unpacked = 0
            yield from self._together(group)

    def _as_it_is(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        yield from self.finish()
        yield self._counted(unchanged(batch, header, index=self._index, **self._sent_by()))

    def _member(self, batch: memoryview, header: BatchHeader, action: Action) -> _Member | None:
        """The batch, unpacked, if it can go with others; None if it unpacks to too much for that."""
        own = memoryview(bytes(batch))
        try:
            packed = unpack(own, header, limit=MERGED_UNPACKED)
        except BatchTooLarge:
            return None
        member = _Member(own, header, action, packed)
        return member if self._weight(member) <= self._most else None

    def _weight(self, member: _Member) -> int:
        return repacked_size(len(member.packed), member.header.record_count)

    def _fits(self, member: _Member) -> bool:
        return (
            bool(self._group)
            and self._group[0].header.codec == member.header.codec
            and self._bytes + member.header.size <= self._limit
            and self._unpacked + self._weight(member) <= self._most
        )

    def _together(self, group: Sequence[_Member]) -> Iterator[Outgoing]:
        first = group[0]
        if len(group) == 1 and first.action is Action.RAW:
            yield self._counted(unchanged(first.batch, first.header, index=self._index, **self._sent_by()))
        else:
            yield self._counted(self._packed(group))

    def _cut(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        """The batches for one that is too large to be rebuilt as a whole.

        It is unpacked again for every few of them, so that it does not lie in memory while these are on their way,
        beside the large batches of all other partitions.
        """
        taken = 0
        while taken < header.record_count:
            some = self._cut_from(batch, header, taken)
            taken += sum(item.count for item in some)
            yield from some

    def _cut_from(self, batch: memoryview, header: BatchHeader, taken: int) -> list[Outgoing]:
        """The next batches after the first `taken` records, some MiB of them."""
        packed = memoryview(unpack(batch, header))
        found: list[Outgoing] = []
        size = passed = 0
        for start, end, count in _cut_at(packed, header, self._most):
            passed += count
            if passed > taken:
                part = header._replace(record_count=count)
                found.append(self._counted(self._packed([_Member(batch, part, Action.REBUILD, packed[start:end])])))
                size += found[-1].weight
                if size > _CUT_AHEAD:
                    break
        return found

    def _packed(self, group: Sequence[_Member]) -> Outgoing:
        packer = PackerInPython()
        rows: list[tuple[int, int]] = []
        append_times = 0
        for member in group:
            for offset, count in packer.add(member.packed, member.header):
                if rows and sum(rows[-1]) == offset:
                    rows[-1] = (rows[-1][0], rows[-1][1] + count)
                else:
                    rows.append((offset, count))
            append_times += member.header.record_count if member.header.is_log_append_time else 0
        data = packer.batch(
            group[0].header.codec,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=self._index % SEQUENCE_SPACE,
        )
        wanted = self._index + packer.count > self._done
        return Outgoing(self._index, packer.count, len(data), (data,) if wanted else None, tuple(rows), append_times)

    def _rebuilt(self, batch: memoryview, header: BatchHeader) -> Iterator[Outgoing]:
        most = self._most
        for item in rebuilt(batch, header, index=self._index, most=most, **self._sent_by()):
            yield self._counted(item)

    def _counted(self, item: Outgoing) -> Outgoing:
        self._index = item.index + item.count
        return item

    def _sent_by(self) -> dict[str, int]:
        return {"producer_id": self._producer_id, "done": self._done}


def in_python(batches: Iterable[bytes], *, aborted: Spans, max_bytes: int, done: int = 0) -> list[Outgoing]:
    """The batches that a restore sends for those of an archive."""
    made = StreamInPython(producer_id=9, max_bytes=max_bytes, done=done)
    found: list[Outgoing] = []
    for data in batches:
        header = parse_header(data)
        action = decide(header, aborted)
        if action is Action.RAW or action is Action.REBUILD:
            found += made.add(memoryview(data), header, action)
    return [*found, *made.finish()]
