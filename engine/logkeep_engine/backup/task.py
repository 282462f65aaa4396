"""One task of a backup: fetch chunks of partitions, check every batch, write segments, and say in receipts what was
done.

    stream (kafka/fetch.py) -> walk and CRC (log/batch.py) -> SegmentBuilder (log/segment.py) -> objects (storage.py)

In the record-shaped formats `records.RecordChunkWriter` stands in the place of `ChunkWriter`, all else is the same.

In Kafka's format bytes are written as the broker gave them, with one exception: when the log starts inside a batch
(DeleteRecords, or an offset that retention chose), the records before that are gone for every consumer, and the batch
is built anew without them. A batch across a bound between two chunks is the first one's with all its offsets: if that
one fails, the hole that it leaves has the whole batch, and if the log's start moves into the batch between the two
fetches, what neither has settled is done by another round of tasks.

Memory: per partition one fetch in work, one in flight, and the storage's writer; at most CONCURRENT partitions at once.
Their fetches together are FETCH_BYTES: it is the same for one partition and for many, and whatever their size.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from logkeep_engine.archive.catalog.facts import Receipt
from logkeep_engine.archive.writing.log_writer import LogSegment
from logkeep_engine.backup.chunk import PieceWriter, Setting
from logkeep_engine.backup.markers import find_ends
from logkeep_engine.backup.plan import REASON_DELETED, REASON_RETENTION, REASON_TRUNCATED, Piece
from logkeep_engine.backup.records import LossChecker, RecordChunkWriter
from logkeep_engine.backup.transactions import Disagreement
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.errors import (
    BatchTooLarge,
    CorruptBatch,
    LogDiverged,
    OffsetOutOfRange,
    RecordsWithheld,
    TopicGone,
)
from logkeep_engine.formats.base import Loss
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader, Codec, parse_header, seal, walk_checked
from logkeep_engine.log.memory import alone
from logkeep_engine.log.records import decode, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL
from logkeep_engine.tasks import PartitionUpdate, TaskContext

__all__ = ["ChunkWriter", "PieceDone", "Setting", "archive_pieces", "trim"]

log = logging.getLogger(__name__)

FETCH_BYTES = 8 << 20  # asked for at once by all streams of a task together: enough for a broker 5 ms away
CONCURRENT = 4
CONCURRENT_SMALL = 16
SMALL_BYTES = 1 << 20
REPORT_SECONDS = 1.0
SEQUENCE_MODULUS = 2**31

_OVERHEAD = 12  # bytes of a batch that its length does not count
_LAST_CODEC = max(Codec)
_RUN = 4096  # batches that are handed on at once: their headers take more memory than tiny batches themselves
_ATTRIBUTES_AT = 22  # the low byte
_APPEND_TIME = 0x08
_CODEC_MASK = 0x07
_PASSES = 5

PieceFailure = CorruptBatch | BatchTooLarge | RecordsWithheld | LogDiverged


@dataclass(frozen=True, slots=True)
class PieceDone:
    """`receipt` is None if nothing was settled. `failure`: a damaged batch, one too large to be unpacked, or records
    that the broker does not give, stopped the piece after what the receipt holds; or the log is not the planned one any
    more, then nothing is settled.
    `by_name`: bytes were asked for by the topic's name only, so they may be another incarnation's.
    `losses`: what the format cannot hold of the piece, if that was all that was asked for. `disagreements`: of which
    transactions the broker said something else than their markers, which hold. `repeated`: the piece was taken more
    than once, so objects may lie beside its segments that are none.
    """

    number: int
    receipt: Receipt | None
    failure: PieceFailure | None = None
    by_name: bool = False
    losses: tuple[Loss, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    repeated: bool = False


def archive_pieces(setting: Setting, pieces: Sequence[Piece], context: TaskContext) -> tuple[PieceDone, ...]:
    """Archive `pieces` and return what became of each, in their order.

    With `setting.checking` nothing is written, and what is said is what the format would lose. Raises what Kafka client
    and storage raise; then nothing that a commit names is of this attempt.
    """
    return asyncio.run(_archive_pieces(setting, pieces, context))


async def _archive_pieces(setting: Setting, pieces: Sequence[Piece], context: TaskContext) -> tuple[PieceDone, ...]:
    small = all(0 < piece.bytes <= SMALL_BYTES for piece in pieces)  # 0: not known
    concurrent = CONCURRENT_SMALL if small else CONCURRENT
    gate = asyncio.Semaphore(concurrent)
    streams = max(1, min(concurrent, len(pieces)))
    portion = context.throttle.portion(FETCH_BYTES // streams, streams)
    writers = [_writer(setting, piece, context.attempt) for piece in pieces]
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(concurrent + 1, thread_name_prefix="logkeep-task") as pool:
        loop.set_default_executor(pool)
        async with RawClient(setting.connection) as client:

            async def one(writer: PieceWriter) -> PieceDone:
                async with gate, context.throttle.reading(writer.piece.leader):
                    return await _archive(client, writer, context.throttle, portion)

            reporting = asyncio.create_task(_report(writers, context))
            tasks = [asyncio.create_task(one(writer)) for writer in writers]
            try:
                return tuple(await asyncio.gather(*tasks))
            finally:
                for task in (*tasks, reporting):
                    task.cancel()
                await asyncio.gather(*tasks, reporting, return_exceptions=True)
                for writer in writers:
                    await asyncio.to_thread(writer.abort)


def _writer(setting: Setting, piece: Piece, attempt: int) -> PieceWriter:
    if setting.format is FormatName.KAFKA:
        return ChunkWriter(setting, piece, attempt)
    return (LossChecker if setting.checking else RecordChunkWriter)(setting, piece, attempt)


async def _report(writers: Sequence[PieceWriter], context: TaskContext) -> None:
    told: dict[int, int] = {}
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        updates = []
        for writer in writers:
            piece = writer.piece
            if writer.at > piece.start and told.get(piece.number) != writer.at:
                told[piece.number] = writer.at
                updates.append(
                    PartitionUpdate(piece.topic, piece.partition, piece.number, writer.at, writer.records, writer.bytes)
                )
        if updates:
            await asyncio.to_thread(context.report, updates)


async def _archive(client: RawClient, writer: PieceWriter, throttle: Throttle, portion: int) -> PieceDone:
    """Until all of the piece has come by as its transactions ended, see `PieceWriter.must_restart`, or all of it that
    can be had."""
    piece = writer.piece
    failure: PieceFailure | None = None
    for number in range(_PASSES):
        done = await _pass(client, writer, throttle, portion)
        if isinstance(done, PieceDone):
            return replace(done, failure=done.failure or failure, repeated=number > 0)
        failure = done.failure or failure
        if done.until <= piece.start:
            return PieceDone(piece.number, None, failure, losses=writer.losses)
        await asyncio.to_thread(writer.restart, done.until)
    return PieceDone(piece.number, None, _unsteady(writer), repeated=True)


@dataclass(frozen=True, slots=True)
class _Again:
    """The piece must be taken once more, up to offset `until`: more of it cannot be had, for `failure`, or records were
    taken that should not have been."""

    until: int
    failure: PieceFailure | None = None


async def _pass(client: RawClient, writer: PieceWriter, throttle: Throttle, portion: int) -> PieceDone | _Again:
    """Take the piece."""
    piece = writer.piece
    damaged_at = -1
    by_name = False
    while writer.at < piece.end:
        try:
            stream = client.stream(
                piece.topic,
                piece.partition,
                writer.at,
                piece.end,
                max_bytes=portion,
                topic_id=piece.topic_id,
                sparing=throttle.limited,
            )
            async for fetched in stream:
                by_name = by_name or not fetched.by_id
                await throttle.pace(len(fetched.data))
                await asyncio.to_thread(writer.absorb, fetched.data, fetched.aborted)
                fetched.release()
            await asyncio.to_thread(writer.reach_end)
        except OffsetOutOfRange as error:
            if error.log_start > writer.at:
                await asyncio.to_thread(writer.skip_to, error.log_start, REASON_RETENTION)
            else:
                await asyncio.to_thread(writer.skip_to, piece.end, REASON_TRUNCATED)
        except RecordsWithheld as error:
            return await _stop(writer, error, by_name=by_name)
        except TopicGone:
            await asyncio.to_thread(writer.skip_to, piece.end, REASON_DELETED)
        except BatchTooLarge as error:
            return await _stop(writer, error.within(f"T{piece.where[1:]}"), by_name=by_name)
        except CorruptBatch as error:
            # Bytes can be hurt on their way: only what arrives damaged twice is damaged on the broker.
            if writer.at > damaged_at:
                damaged_at = writer.at
                log.warning("%s: fetched again: %s", piece.where, error.message)
                continue
            return await _stop(writer, _located(error, piece, writer.at), by_name=by_name)
        except LogDiverged as error:
            return PieceDone(piece.number, None, error, by_name)
    if writer.undecided:
        try:
            ends = await find_ends(client, writer, throttle)
        except RecordsWithheld as error:
            return await _stop(writer, error, by_name=by_name)
        except CorruptBatch as error:
            return await _stop(writer, _located(error, piece, writer.at), by_name=by_name)
        for producer_id, (aborted, marker) in ends.items():
            writer.end_behind(producer_id, aborted, marker)
    if writer.must_restart:
        return _Again(piece.end)
    receipt = await asyncio.to_thread(writer.finish, piece.end)
    return PieceDone(piece.number, receipt, by_name=by_name, losses=writer.losses, disagreements=writer.disagreements)


async def _stop(writer: PieceWriter, failure: PieceFailure, *, by_name: bool) -> PieceDone | _Again:
    """Nothing comes behind what has come so far. How transactions ended that are open there, nobody knows: where that
    matters they are left for another run."""
    if writer.undecided or writer.must_restart:
        return _Again(writer.decided_until, failure)
    receipt = await asyncio.to_thread(writer.finish, writer.at)
    return PieceDone(writer.piece.number, receipt, failure, by_name, writer.losses, writer.disagreements)


def _unsteady(writer: PieceWriter) -> RecordsWithheld:
    return RecordsWithheld(
        f"T{writer.piece.where[1:]}: {_PASSES} times, each time in other places, the broker's lists of aborted "
        "transactions have contradicted the markers in its log.",
        hint="Nothing of this piece was archived. It may pass; run again.",
    )


def _located(error: CorruptBatch, piece: Piece, at: int) -> CorruptBatch:
    known = f"{piece.topic!r} partition {piece.partition}" in error.message
    message = error.message if known else f"T{piece.where[1:]}, at offset {at}: {error.message}"
    return CorruptBatch(
        message,
        hint=error.hint
        or "It arrived so twice: the leader's log is damaged there. What lies before it is archived; "
        "move the leadership to a replica that is whole.",
    )


class ChunkWriter(PieceWriter):
    """The segments of one piece in Kafka's format: batches as they are."""

    def __init__(self, setting: Setting, piece: Piece, attempt: int) -> None:
        super().__init__(setting, piece, attempt)
        self._segment: _OpenSegment | None = None
        self._run_transactional = False  # a batch of the run that is being gathered is

    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        self._transactions.expect(aborted)
        # Millions of tiny batches pass here: fields by number, and what stays the same for a run in local names.
        run: list[tuple[int, BatchHeader]] = []
        at = self.at
        epoch = self._epoch
        room, end_offset = self._room()
        try:
            for position, header in walk_checked(data, self.piece.end):
                base = header[0]
                if base < at:
                    self._flush(data, run)
                    self.at = at
                    self._overlapping(data, position, header)
                    at, epoch = self.at, self._epoch
                    room, end_offset = self._room()
                    continue
                attributes = header[5]
                if attributes & _CODEC_MASK > _LAST_CODEC:
                    codec = attributes & _CODEC_MASK
                    raise CorruptBatch(f"The batch at offset {base} has a codec that does not exist: {codec}.")
                if header[2] != epoch:
                    epoch = header[2]
                    self._note_epoch(epoch, base)
                following = base + header[6] + 1
                size = _OVERHEAD + header[1]
                if size > room or following > end_offset:
                    self._flush(data, run)
                    self._close_segment()
                    self._segment = self._open_segment(base)
                    room, end_offset = self._room()
                if attributes & TRANSACTIONAL_OR_CONTROL:
                    self._run_transactional = True
                    self._observe(data, position, header)
                run.append((position, header))
                room -= size
                at = self._passed = following
                if len(run) == _RUN:
                    self._flush(data, run)
        finally:
            self.at = at
            self._flush(data, run)

    def _room(self) -> tuple[int, int]:
        """How many bytes the open segment may still take, and below which offset; nothing if none is open."""
        if self._segment is None:
            return -1, -1
        builder = self._segment.builder
        return min(self._setting.segment_bytes - builder.size, builder.bytes_left), builder.last_possible_offset + 1

    def _observe(self, data: memoryview, position: int, header: BatchHeader) -> None:
        if self._segment is not None:
            self._transactions.observe(data, position, header, self._segment)

    def _overlapping(self, data: memoryview, position: int, header: BatchHeader) -> None:
        """A batch that begins below where this piece goes on."""
        if header.next_offset <= self.at:
            return  # lies wholly before the offset that was asked for
        self._check_overlap(header)
        if header.base_offset < self.piece.start and not self.piece.first:
            self._leave_below(header.next_offset)
            self._passed = header.next_offset
            return
        with alone():
            trimmed = trim(data[position : position + header.size], self.at)  # the log starts inside of it
        self.at = self._passed = header.next_offset
        if trimmed is None:
            return
        fresh = parse_header(trimmed)
        if fresh.leader_epoch != self._epoch:
            self._note_epoch(fresh.leader_epoch, fresh.base_offset)
        self._segment = self._open_segment(fresh.base_offset)
        if fresh.is_transactional:
            self._run_transactional = True
            self._transactions.observe(memoryview(trimmed), 0, fresh, self._segment)
        self._flush(memoryview(trimmed), [(0, fresh)])

    def _flush(self, data: memoryview, run: list[tuple[int, BatchHeader]]) -> None:
        if not run:
            return
        segment, headers = self._segment, run.copy()
        transactional, self._run_transactional = self._run_transactional, False
        run.clear()
        if segment is None:
            raise RuntimeError(f"{self.piece.where}: batches without a segment")
        first, (last, header) = headers[0][0], headers[-1]
        end = last + header.size
        before = segment.builder.records
        try:
            segment.builder.append(data[first:end], headers)
            if transactional:
                segment.transactions.note(data, headers)
            else:
                segment.transactions.passed(segment.builder.next_offset, dense=segment.builder.dense)
        except CorruptBatch as error:  # `at` has moved on: it must not look like a batch that may be fetched again
            raise RuntimeError(f"{self.piece.where}: {error}") from error
        self.bytes += end - first
        self.records += segment.builder.records - before

    def _open_segment(self, base_offset: int) -> _OpenSegment:
        return _OpenSegment(self._setting, self.piece, base_offset, self._attempt)

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
    def __init__(self, setting: Setting, piece: Piece, base_offset: int, attempt: int) -> None:
        super().__init__(
            setting.storage,
            setting.compression,
            piece.topic,
            piece.topic_id,
            piece.partition,
            base_offset,
            setting.epoch,
            attempt,
        )
        # Last offset of an aborted transaction in this segment -> (producer id, first offset).
        self._ended: dict[int, tuple[int, int]] = {}
        self._unended: dict[int, tuple[int, int]] = {}

    def aborted_data(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """A batch of an aborted transaction whose marker has not come by yet."""
        self._unended[producer_id] = (first_offset, last_offset)

    def abort_marker(self, producer_id: int, first_offset: int, offset: int) -> None:
        """The end of an aborted transaction."""
        self._unended.pop(producer_id, None)
        self._ended[offset] = (producer_id, first_offset)

    def commit_marker(self, producer_id: int) -> None:
        """The end of a transaction that was committed, whatever a list has said."""
        self._unended.pop(producer_id, None)

    def aborted(self) -> list[AbortedTxn]:
        """The segment's transaction index: what has its marker here, as a broker writes it, and what only has data
        here.

        The second kind is more than a broker writes. Its marker lies in a later segment, maybe past the end of this
        run, and without an entry here a reader of this run could not know that these records were never committed. The
        entry ends with the last batch.
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
    """The batch without its records below offset `start`, or None if none is left. Offsets, times, headers, codec,
    producer and timestamp type stay; the producer's sequence moves on with the records that are gone.
    """
    header = parse_header(batch)
    if header.is_control:
        return None
    records = [record for record in decode(batch) if record.offset >= start]
    if not records:
        return None
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + records[0].offset - header.base_offset) % SEQUENCE_MODULUS
    fresh = bytearray(
        encode(
            records,
            codec=header.codec,
            base_offset=records[0].offset,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=sequence,
            transactional=header.is_transactional,
            leader_epoch=header.leader_epoch,
        )
    )
    if header.is_log_append_time:
        fresh[_ATTRIBUTES_AT] |= _APPEND_TIME
        seal(fresh)
    return fresh
