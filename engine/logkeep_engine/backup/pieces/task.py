"""One task of a backup: it fetches pieces of partitions, checks every batch, writes segments, and returns receipts.

    stream (kafka/fetch.py) -> walk and CRC (log/batch.py) -> SegmentBuilder (log/segment.py) -> objects (storage/)

In the formats of records, `pieces.records.RecordChunkWriter` takes the place of `pieces.batches.ChunkWriter`.

Memory: each partition has one fetch in work, one in flight, and what the storage's writer collects. A task reads at
most CONCURRENT partitions at once, and fewer if they are large (`streams_for`). Their fetches share FETCH_BYTES,
however many and however large the partitions are. A segment stays in memory until it is too large for a pack; then the
storage's writer has what it has collected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from logkeep_engine.archive.catalog.facts import Receipt
from logkeep_engine.archive.writing.log_writer import Packing
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.backup.model.plan import REASON_DELETED, REASON_RETENTION, REASON_TRUNCATED, Piece
from logkeep_engine.backup.pieces.batches import ChunkWriter
from logkeep_engine.backup.pieces.markers import find_ends
from logkeep_engine.backup.pieces.records import LossChecker, RecordChunkWriter
from logkeep_engine.backup.pieces.transactions import ListDisagreement
from logkeep_engine.backup.pieces.writer import BackupSetting, PieceWriter
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
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
from logkeep_engine.storage import PART_BYTES
from logkeep_engine.tasks import REPORT_SECONDS, PartitionUpdate, TaskContext

log = logging.getLogger(__name__)

FETCH_BYTES = 8 << 20  # asked for at once by all streams of a task together: enough for a broker 5 ms away
CONCURRENT = 4
CONCURRENT_LARGE = 2
CONCURRENT_SMALL = 16
SMALL_BYTES = 1 << 20
COLLECTED_BYTES = 64 << 20  # what the writers of all streams may have collected, none of them more than a part
_PASSES = 5

PieceFailure = CorruptBatch | BatchTooLarge | RecordsWithheld | LogDiverged


@dataclass(frozen=True, slots=True)
class PieceDone:
    """The result of one piece. `receipt` is None if the task accounts for no offset of it.

    `failure` is the error at which the piece stopped, after the offsets of the receipt: a damaged batch, a batch too
    large to be unpacked, or records that the broker does not give. There is no receipt if the log is no longer the
    planned one. `by_name`: bytes were fetched by the topic's name only, so they may be another incarnation's. `losses`
    are those of the format, if the task was only to look for them. `disagreements` are the transactions about which the
    broker's lists contradict the markers; the markers hold. `repeated`: the piece was read more than once, so objects
    of no segment may lie next to its segments. `dense`: the broker had a record at every offset of the piece.
    """

    number: int
    receipt: Receipt | None
    failure: PieceFailure | None = None
    by_name: bool = False
    losses: tuple[Loss, ...] = ()
    disagreements: tuple[ListDisagreement, ...] = ()
    repeated: bool = False
    dense: bool = False


class BackupTask(NamedTuple):
    """The pieces of one task. No two tasks of an attempt at a run have the same `number`: packs are named by it."""

    number: int
    pieces: tuple[Piece, ...]


def archive_task(setting: BackupSetting, task: BackupTask, context: TaskContext) -> tuple[PieceDone, ...]:
    """Archive the pieces of a task as `archive_pieces` does; small segments share objects. They are visible when this
    returns."""
    if setting.format is not FormatName.KAFKA or not setting.pack_below:
        return archive_pieces(setting, task.pieces, context)
    packs = TaskPacks(setting.storage, setting.epoch, task.number, context.attempt)
    try:
        done = archive_pieces(setting, task.pieces, context, Packing(packs, setting.pack_below))
        packs.commit()
        return done
    finally:
        packs.abort()


def archive_pieces(
    setting: BackupSetting, pieces: Sequence[Piece], context: TaskContext, packing: Packing | None = None
) -> tuple[PieceDone, ...]:
    """Archive `pieces` and return the result of each, in their order. With `packing` its packs are not committed yet.

    With `setting.checking` nothing is written, and the results say what the format would lose. Raises what Kafka
    client and storage raise; no commit names anything of such an attempt.
    """
    return asyncio.run(_archive_pieces(setting, pieces, context, packing))


async def _archive_pieces(
    setting: BackupSetting, pieces: Sequence[Piece], context: TaskContext, packing: Packing | None
) -> tuple[PieceDone, ...]:
    concurrent = streams_for(pieces)
    gate = asyncio.Semaphore(concurrent)
    streams = max(1, min(concurrent, len(pieces)))
    fetch_bytes = context.throttle.fetch_bytes(FETCH_BYTES // streams, streams)
    writers = [_writer(setting, piece, context.attempt, packing) for piece in pieces]
    loop = asyncio.get_running_loop()
    # A thread for each stream, whose writer may wait for the store, and one for reports.
    with ThreadPoolExecutor(concurrent + 1, thread_name_prefix="logkeep-task") as pool:
        loop.set_default_executor(pool)
        async with RawClient(setting.connection) as client:

            async def one(writer: PieceWriter) -> PieceDone:
                async with gate, context.throttle.reading(writer.piece.leader):
                    return await _archive(client, writer, context.throttle, fetch_bytes)

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


def streams_for(pieces: Sequence[Piece]) -> int:
    """Return how many pieces a task reads at once. More hide that brokers and stores are far away, but writers of large
    objects each collect a part of an upload. A piece of unknown size counts as one of medium size.
    """
    if all(0 < piece.bytes <= SMALL_BYTES for piece in pieces):
        return CONCURRENT_SMALL
    largest = sorted((min(piece.bytes, PART_BYTES) for piece in pieces), reverse=True)
    return CONCURRENT if sum(largest[:CONCURRENT]) <= COLLECTED_BYTES else CONCURRENT_LARGE


def _writer(setting: BackupSetting, piece: Piece, attempt: int, packing: Packing | None) -> PieceWriter:
    if setting.format is FormatName.KAFKA:
        return ChunkWriter(setting, piece, attempt, packing)
    return (LossChecker if setting.checking else RecordChunkWriter)(setting, piece, attempt)


async def _report(writers: Sequence[PieceWriter], context: TaskContext) -> None:
    reported: dict[int, int] = {}
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        updates = []
        for writer in writers:
            piece = writer.piece
            if writer.at > piece.start and reported.get(piece.number) != writer.at:
                reported[piece.number] = writer.at
                updates.append(
                    PartitionUpdate(piece.topic, piece.partition, piece.number, writer.at, writer.records, writer.bytes)
                )
        if updates:
            await asyncio.to_thread(context.report, updates)


async def _archive(client: RawClient, writer: PieceWriter, throttle: Throttle, fetch_bytes: int) -> PieceDone:
    """Read the piece until all of it was taken as its transactions ended (see `PieceWriter.must_restart`), or as much
    of it as the broker gives.
    """
    piece = writer.piece
    failure: PieceFailure | None = None
    for number in range(_PASSES):
        done = await _pass(client, writer, throttle, fetch_bytes)
        if isinstance(done, PieceDone):
            return replace(done, failure=done.failure or failure, repeated=number > 0)
        failure = done.failure or failure
        if done.until <= piece.start:
            return PieceDone(piece.number, None, failure, losses=writer.losses)
        await asyncio.to_thread(writer.restart, done.until)
    return PieceDone(piece.number, None, _unsteady(writer), repeated=True)


@dataclass(frozen=True, slots=True)
class _Again:
    """The piece must be read once more, up to offset `until`: the broker gives no more of it (`failure`), or records
    were taken that should not have been."""

    until: int
    failure: PieceFailure | None = None


async def _pass(client: RawClient, writer: PieceWriter, throttle: Throttle, fetch_bytes: int) -> PieceDone | _Again:
    """Read the piece once."""
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
                max_bytes=fetch_bytes,
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
            writer.end_after(producer_id, aborted, marker)
    if writer.must_restart:
        return _Again(piece.end)
    receipt = await asyncio.to_thread(writer.finish, piece.end)
    return PieceDone(
        piece.number,
        receipt,
        by_name=by_name,
        losses=writer.losses,
        disagreements=writer.disagreements,
        dense=writer.dense,
    )


async def _stop(writer: PieceWriter, failure: PieceFailure, *, by_name: bool) -> PieceDone | _Again:
    """End the piece where the broker gives no more. It is unknown how transactions ended that are open there: where the
    format needs to know it, they are left for another run."""
    if writer.undecided or writer.must_restart:
        return _Again(writer.decided_until, failure)
    receipt = await asyncio.to_thread(writer.finish, writer.at)
    return PieceDone(writer.piece.number, receipt, failure, by_name, writer.losses, writer.disagreements)


def _unsteady(writer: PieceWriter) -> RecordsWithheld:
    return RecordsWithheld(
        f"T{writer.piece.where[1:]}: {_PASSES} times, each time in other places, the broker's lists of aborted "
        "transactions have contradicted the markers in its log.",
        hint="Nothing of this piece was archived. This may be temporary; run again.",
    )


def _located(error: CorruptBatch, piece: Piece, at: int) -> CorruptBatch:
    known = f"{piece.topic!r} partition {piece.partition}" in error.message
    message = error.message if known else f"T{piece.where[1:]}, at offset {at}: {error.message}"
    return CorruptBatch(
        message,
        hint=error.hint
        or "It arrived damaged twice: the leader's log is damaged there. Everything before it is archived; "
        "move the leadership to an intact replica.",
    )
