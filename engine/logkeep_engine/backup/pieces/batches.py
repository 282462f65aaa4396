"""The writer of pieces in Kafka's format: batches as the broker gave them.

There is one exception: when the log starts inside a batch (DeleteRecords, or an offset that retention chose), the
records before that are gone for every consumer, and the batch is rebuilt without them. A batch across the bound between
two chunks belongs to the first one, with all its offsets. If that chunk fails, the whole batch is left for a later
attempt. If the log's start moves into the batch between the two fetches, another round of tasks archives the offsets
for which neither accounts.
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.archive.writing.log_writer import LogSegment, Packing
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.writer import BackupSetting, PieceWriter
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import BatchHeader, Codec, Headers, headers_of, parse_header, runs, seal
from logkeep_engine.log.memory import alone
from logkeep_engine.log.rows import listed_rows, packed_batch
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL

SEQUENCE_MODULUS = 2**31  # after the highest int32, sequences begin again at 0

_LAST_CODEC = max(Codec)
_ATTRIBUTES_AT = 22  # the low byte
_APPEND_TIME = 0x08  # bit 3: the broker has set the times
_CODEC_MASK = 0x07  # bits 0 to 2 of a batch's attributes


class ChunkWriter(PieceWriter):
    """The segments of one piece in Kafka's format: batches as they are. Those that stay small go into a pack, if there
    is `packing`."""

    def __init__(self, setting: BackupSetting, piece: Piece, attempt: int, packing: Packing | None = None) -> None:
        super().__init__(setting, piece, attempt)
        self._packing = packing
        self._segment: _OpenSegment | None = None
        self._stretch_transactional = False  # whether a batch of the stretch that is being gathered is

    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        self._transactions.expect(aborted)
        for headers in runs(data, self.piece.end, checked=True):
            self._take(data, headers)

    def _take(self, data: memoryview, headers: Headers) -> None:
        """Take batches that lie back to back: plain ones in stretches, and others one by one."""
        start = end = 0  # the stretch that is being gathered, by the numbers of its batches
        space, end_offset = self._space_left()
        in_transaction = False  # the batch before was: so is this one, most likely, and then it is not plain
        try:
            while end < len(headers):
                plain = 0 if in_transaction else headers.plain(end, self.at, end_offset, space, self._epoch)
                if plain:
                    taken = headers[end : end + plain]
                    space -= taken.size
                    end += plain
                    self.at = self._passed = taken.next_offset
                    continue
                position, header = headers[end]
                if header.base_offset < self.at:
                    gathered, start = headers[start:end], end + 1
                    end = start
                    self._flush(data, gathered)
                    self._overlapping(data, position, header)
                    space, end_offset = self._space_left()
                    continue
                self._look_at(header)
                if header.size > space or header.next_offset > end_offset:
                    gathered, start = headers[start:end], end
                    self._flush(data, gathered)
                    self._close_segment()
                    self._segment = self._open_segment(header.base_offset)
                    space, end_offset = self._space_left()
                in_transaction = header.attributes & TRANSACTIONAL_OR_CONTROL != 0
                if in_transaction:
                    self._stretch_transactional = True
                    self._observe(data, position, header)
                end += 1
                space -= header.size
                self.at = self._passed = header.next_offset
        finally:
            self._flush(data, headers[start:end])

    def _look_at(self, header: BatchHeader) -> None:
        """Note a leader epoch that begins with the batch. Raises CorruptBatch for a codec that does not exist."""
        codec = header.attributes & _CODEC_MASK
        if codec > _LAST_CODEC:
            raise CorruptBatch(f"The batch at offset {header.base_offset} has a codec that does not exist: {codec}.")
        if header.leader_epoch != self._epoch:
            self._note_epoch(header.leader_epoch, header.base_offset)

    def _space_left(self) -> tuple[int, int]:
        """Return the bytes that the open segment may still take, and the offset below which they must lie; (-1, -1) if
        no segment is open.
        """
        if self._segment is None:
            return -1, -1
        builder = self._segment.builder
        return min(self._setting.segment_bytes - builder.size, builder.bytes_left), builder.last_possible_offset + 1

    def _observe(self, data: memoryview, position: int, header: BatchHeader) -> None:
        if self._segment is not None:
            self._transactions.observe(data, position, header, self._segment)

    def _overlapping(self, data: memoryview, position: int, header: BatchHeader) -> None:
        """Take a batch that begins below the offset at which this piece continues."""
        if header.next_offset <= self.at:
            return  # the batch lies wholly before the offset that was asked for
        self._check_overlap(header)
        if header.base_offset < self.piece.start and not self.piece.first:
            self._leave_below(header.next_offset)
            self._passed = header.next_offset
            return
        with alone():
            trimmed = trim(data[position : position + header.size], self.at)  # the log starts inside of it
        if trimmed is not None:
            self._take_trimmed(memoryview(trimmed))
        self.at = self._passed = header.next_offset

    def _take_trimmed(self, batch: memoryview) -> None:
        fresh = parse_header(batch)
        if fresh.leader_epoch != self._epoch:
            self._note_epoch(fresh.leader_epoch, fresh.base_offset)
        self._segment = self._open_segment(fresh.base_offset)
        if fresh.is_transactional:
            self._stretch_transactional = True
            self._transactions.observe(batch, 0, fresh, self._segment)
        self._flush(batch, headers_of([(0, fresh)]))

    def _flush(self, data: memoryview, headers: Headers) -> None:
        if not headers:
            return
        segment = self._segment
        transactional, self._stretch_transactional = self._stretch_transactional, False
        if segment is None:
            raise RuntimeError(f"{self.piece.where}: batches without a segment")
        before = segment.builder.records
        try:
            segment.builder.append(data[headers.start : headers.end], headers)
            if transactional:
                segment.transactions.note(data, headers)
            else:
                segment.transactions.passed(segment.builder.next_offset, dense=segment.builder.dense)
        except CorruptBatch as error:  # `at` has moved on: it must not look like a batch that may be fetched again
            raise RuntimeError(f"{self.piece.where}: {error}") from error
        self.bytes += headers.size
        self.records += segment.builder.records - before

    def _open_segment(self, base_offset: int) -> _OpenSegment:
        return _OpenSegment(self._setting, self.piece, base_offset, self._attempt, self._packing)

    def _close_segment(self) -> None:
        segment = self._segment
        if segment is None:
            return
        if segment.builder.size == 0:
            self._drop_segment()
            return
        entry = segment.finish(segment.aborted())
        self._segment = None
        self._segments.append(entry)

    def _drop_segment(self) -> None:
        if self._segment is not None:
            self._segment.abort()
            self._segment = None


class _OpenSegment(LogSegment):
    def __init__(
        self, setting: BackupSetting, piece: Piece, base_offset: int, attempt: int, packing: Packing | None
    ) -> None:
        super().__init__(
            setting.storage,
            setting.compression,
            piece.topic,
            piece.topic_id,
            piece.partition,
            base_offset,
            setting.epoch,
            attempt,
            setting.digest,
            packing,
        )
        # Last offset of an aborted transaction in this segment -> (producer id, first offset).
        self._ended: dict[int, tuple[int, int]] = {}
        self._unended: dict[int, tuple[int, int]] = {}

    def aborted_data(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """Note a batch of an aborted transaction whose marker has not come by yet."""
        self._unended[producer_id] = (first_offset, last_offset)

    def abort_marker(self, producer_id: int, first_offset: int, offset: int) -> None:
        """Note the end of an aborted transaction."""
        self._unended.pop(producer_id, None)
        self._ended[offset] = (producer_id, first_offset)

    def commit_marker(self, producer_id: int) -> None:
        """Note the end of a transaction that was committed, whatever a list has said."""
        self._unended.pop(producer_id, None)

    def aborted(self) -> list[AbortedTxn]:
        """Return the segment's transaction index: aborted transactions that have their marker here, as a broker writes
        them, and those that only have data here.

        A broker does not write the second kind. Their markers lie in a later segment, maybe past the end of this run,
        and without an entry here a reader of this run could not know that these records were never committed. The entry
        ends with the last batch.
        """
        last = dict(self._ended)
        for producer_id, (first_offset, last_offset) in self._unended.items():
            last[last_offset] = (producer_id, first_offset)
        return [
            # A reader stops at the first entry whose last stable offset is past what it reads: too low a value is safe.
            AbortedTxn(producer_id, first_offset, offset, first_offset)
            for offset, (producer_id, first_offset) in sorted(last.items())
        ]


def trim(batch: memoryview, start: int) -> bytearray | None:
    """Return the batch without its records below offset `start`, or None if none is left. Offsets, times, headers,
    codec, producer and timestamp type stay; the producer's sequence moves on with the records that are gone.
    """
    header = parse_header(batch)
    if header.is_control:
        return None
    rows = listed_rows(batch, header)
    first = next((at for at, offset in enumerate(rows.offsets()) if offset >= start), None)
    if first is None:
        return None
    rows = rows[first:]
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + rows.first_offset - header.base_offset) % SEQUENCE_MODULUS
    made, _, _ = packed_batch(
        [rows],
        codec=header.codec,
        base_offset=rows.first_offset,
        dense=False,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=sequence,
        transactional=header.is_transactional,
        leader_epoch=header.leader_epoch,
    )
    fresh = bytearray(made)
    if header.is_log_append_time:
        fresh[_ATTRIBUTES_AT] |= _APPEND_TIME
        seal(fresh)
    return fresh
