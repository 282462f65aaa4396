"""Reads a run's records in a target partition back from the log, by producer ids and sequences.

    found = await look(client, Look(connection, target, (producer_id,), ours), throttle)
    found[producer_id].records, found[producer_id].mark

So a task finds its place, whatever has happened before: an attempt died, or a leader has lost records that the one
before it had acknowledged. A record is only counted if all before it are there. A partition to which several producers
of the run write is read once for all of them.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import IO

from logkeep_engine.errors import OffsetOutOfRange, TargetChanged, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.survey import Ended
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader, walk
from logkeep_engine.restore.streams.filter import SEQUENCE_SPACE
from logkeep_engine.tasks import TaskContext

_ROW = struct.Struct(">qqq")
_SPOOL_BYTES = 1 << 20
_BLOCK = 1 << 16
_DELETE_AND_BEGIN = (
    "The cluster has lost records that it had acknowledged (unclean.leader.election.enable, or disks that failed)."
)


@dataclass(frozen=True, slots=True)
class TargetPartition:
    """A partition to which a run writes. It ended at offset `start` before the run. `created`: no other writes to
    it. `compacts`: its compaction may remove records of the run while the run lasts. `divided`: the run writes to it
    with other producer ids, too.
    """

    topic: str
    partition: int
    producer_id: int
    start: int
    created: bool
    compacts: bool
    divided: bool = False

    @property
    def alone(self) -> bool:
        """Whether no other producer writes to it, so that the place of each batch is known."""
        return self.created and not self.divided

    def __str__(self) -> str:
        return f"topic {self.topic!r} partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Mark:
    """One past a run's last record in the log, and the leader epoch in which its batch was written.

    A log that has this epoch up to `end` has everything that was before `end` in the log of that epoch's leader: logs
    that agree on an epoch at an offset agree on all before it.
    """

    epoch: int
    end: int

    def is_in(self, log: EpochEnd | Ended) -> bool:
        """`log` is what a partition's leader says of the epoch."""
        return log.leader_epoch == self.epoch and log.end_offset >= self.end


async def is_there(client: RawClient, target: TargetPartition, mark: Mark, *, at_least: int = -1) -> bool:
    """Return whether the partition's leader, of epoch `at_least` or a later one, has the records up to `mark`. Raises
    what `RawClient.epoch_end` does.
    """
    return mark.is_in(await client.epoch_end(target.topic, target.partition, mark.epoch, at_least=at_least))


@dataclass(slots=True)
class LogEnd:
    """Where a target's log is known to end, as far as the run has written it, and the mark of that."""

    end: int
    mark: Mark | None

    def reach(self, end: int, epoch: int) -> None:
        """Note that it ends there now."""
        self.end, self.mark = end, Mark(epoch, end)


class WrittenRows:
    """The places of a run's records: rows of (index of the first record, target offset, count), in order. Neighbours
    that follow one another are one row. Memory is bounded: other producers may write between any two batches, and then
    each batch has a row.
    """

    def __init__(self) -> None:
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 (closed by close)
        self._last: tuple[int, int, int] | None = None

    def add(self, index: int, offset: int, count: int) -> None:
        if self._last is not None:
            first, at, before = self._last
            if first + before == index and at + before == offset:
                self._last = (first, at, before + count)
                return
            self._spool.write(_ROW.pack(*self._last))
        self._last = (index, offset, count)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield the rows, when all have been added."""
        self._spool.seek(0)
        while block := self._spool.read(_BLOCK * _ROW.size):
            yield from _ROW.iter_unpack(block)
        if self._last is not None:
            yield self._last

    def close(self) -> None:
        self._spool.close()


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """The first `records` of a producer are in the log, where `rows` say (None: they were not kept), or the target's
    compaction or retention has removed them from there. `mark` is None if there is no batch of the producer. `log_end`:
    where the log ended then; None: it was not read, since nothing can be there. Pickles without `rows`.
    """

    records: int = 0
    rows: WrittenRows | None = None
    mark: Mark | None = None
    log_end: int | None = None

    @property
    def end(self) -> int:
        """One past the last offset of the producer."""
        return self.mark.end if self.mark is not None else 0

    def close(self) -> None:
        if self.rows is not None:
            self.rows.close()


@dataclass(frozen=True, slots=True)
class Look:
    """A target partition to read. `target` stands for the producers that are `wanted`. `ours` are all that the run
    writes with; None: others may write, too. `rows`: the places of the records are needed. Pickles without secrets."""

    connection: KafkaConnection
    target: TargetPartition
    wanted: tuple[int, ...]
    ours: frozenset[int] | None
    rows: bool = False


class PositionLost(Exception):
    """The task no longer knows what is in the target, and must read it back."""


class WrittenReader:
    """Follows the batches of a run through its target partition, header by header, in offset order.

    Places come from the sequences, not from record counts: the target's compaction and retention may have removed
    records, but the header of a batch still tells which records of the run it held. Nothing is left below `log_start`.
    """

    def __init__(self, target: TargetPartition, log_start: int, rows: WrittenRows | None) -> None:
        self._target = target
        self._front_is_gone = log_start > target.start
        self._next = 0
        self._rows = rows
        self._mark: Mark | None = None

    def add(self, header: BatchHeader) -> None:
        """Take the next batch. Raises TargetChanged if records of the run are missing in front of it."""
        if header.magic < 2 or header.producer_id != self._target.producer_id or header.is_control:
            return
        # Batches come in the order of their sequences, so a step back means that the sequence has begun again.
        index = self._next + (header.base_sequence - self._next) % SEQUENCE_SPACE
        if index > self._next:
            self._check_missing(index, header.base_offset)
        count = header.last_offset_delta + 1
        if self._rows is not None:
            self._rows.add(index, header.base_offset, count)
        self._next = index + count
        self._mark = Mark(header.leader_epoch, header.base_offset + count)

    def _check_missing(self, index: int, offset: int) -> None:
        """Raises TargetChanged unless compaction, or retention at the front, may have removed the missing records.

        Removed records leave their offsets unused. Records that were never there leave no offsets, or nothing removes
        records from the log.
        """
        before = self._target.start if self._mark is None else self._mark.end
        removed = self._target.compacts or (self._mark is None and self._front_is_gone)
        if removed and index - self._next <= offset - before:
            return
        if index - self._next > SEQUENCE_SPACE // 2:  # a step back
            first = index - SEQUENCE_SPACE
            raise TargetChanged(
                f"{self._target}: records of this run, from number {first} of the partition on, are there once more at "
                f"offset {offset}: a broker that had forgotten the producer id (producer.id.expiration.ms) took them "
                "twice.",
                hint=f"Delete the topic, or what is in it from offset {self._target.start} on, and start a new "
                "restore under another run id.",
            )
        raise TargetChanged(
            f"{self._target}: {index - self._next} records of this run, numbers {self._next} to {index - 1} of the "
            f"partition, are missing before offset {offset}, where number {index} is. What was written after them "
            "cannot be undone.",
            hint=f"{_DELETE_AND_BEGIN} Delete the topic, or what is in it from offset {self._target.start} on, and "
            "start a new restore under another run id.",
        )

    def written(self, log_end: int) -> WrittenRecords:
        """Return what was found, up to the end of the log."""
        return WrittenRecords(self._next, self._rows, self._mark, log_end)

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()


def read_back(tasks: tuple[Look, ...], context: TaskContext) -> tuple[dict[int, WrittenRecords], ...]:
    """Find out on an executor what is in some target partitions, by producer id."""

    async def read() -> list[dict[int, WrittenRecords]]:
        async with RawClient(tasks[0].connection) as client:
            return [await look(client, task, context.throttle) for task in tasks]

    return tuple(asyncio.run(read()))


async def look(
    client: RawClient, wanted: Look, throttle: Throttle, *, fresh: bool = False
) -> dict[int, WrittenRecords]:
    """Find out which records of the run are in the target partition, by producer id. `fresh`: nothing was written
    before.

    Waits for a leader, and until followers have what the leader has. Raises TargetChanged if records of the run are
    missing before later ones, or the log ends before the run's start, TopicExists if another client has written to a
    created topic, and what the client raises.
    """
    target = wanted.target
    patience = client.patience(f"read back what this run has written to {target}")
    while True:
        end = await client.log_end(target.topic, target.partition)
        if end < target.start:
            raise TargetChanged(
                f"{target} ends at offset {end}, it had ended at {target.start} when the restore was planned.",
                hint=f"{_DELETE_AND_BEGIN} Start a new restore under another run id.",
            )
        try:
            if end == target.start:
                return dict.fromkeys(wanted.wanted, WrittenRecords(log_end=end))
            if wanted.ours is not None and len(wanted.ours) == 1:
                return await _last_one(client, wanted, end)
            return await _among_others(client, wanted, end, throttle, fresh=fresh)
        except RetriableError as trouble:
            await patience.wait(trouble)
        except OffsetOutOfRange as error:  # the batches to read were removed, or cut off, meanwhile
            await patience.wait(RetriableError(error.message))


async def batch_at(client: RawClient, target: TargetPartition, offset: int) -> BatchHeader:
    """Return the header of the batch that holds an offset. Raises RetriableError if the leader lacks it now, and
    what the client raises.
    """
    fetched = await client.fetch(target.topic, target.partition, offset, max_bytes=1, max_wait_ms=500, committed=False)
    # Where the batch is gone, a broker gives the next one.
    found = next((header for _, header in walk(fetched.data) if header.base_offset <= offset), None)
    if found is None:
        raise RetriableError(f"its leader does not give the batch at offset {offset}")
    return found


async def _last_one(client: RawClient, wanted: Look, end: int) -> dict[int, WrittenRecords]:
    """Find out by the last batch of a created topic, which holds batches of one producer and nothing else. Raises
    RetriableError if the leader does not give that batch now.
    """
    target = wanted.target
    last = await batch_at(client, target, end - 1)
    if last.magic < 2 or last.producer_id not in (wanted.ours or ()):
        raise _strange(target)
    records = end - target.start
    after = (last.base_sequence + last.last_offset_delta + 1) % SEQUENCE_SPACE
    if after != records % SEQUENCE_SPACE:
        raise TargetChanged(
            f"{target} has {records} records, but the last one was sent as number {after}: another producer wrote "
            "to the topic, or the cluster has lost records.",
            hint="Stop the other producers, delete the topic and restore again under another run id.",
        )
    rows = WrittenRows() if wanted.rows else None
    if rows is not None:
        # Nobody else has written to the topic, so the records lie side by side.
        rows.add(0, target.start, records)
    return {last.producer_id: WrittenRecords(records, rows, Mark(last.leader_epoch, end), end)}


async def _among_others(
    client: RawClient, wanted: Look, end: int, throttle: Throttle, *, fresh: bool
) -> dict[int, WrittenRecords]:
    """Walk the target from where it ended before the run, header by header, uncommitted batches included."""
    target = wanted.target
    log_start = await client.start_offset(target.topic, target.partition)
    start = max(target.start, log_start)
    readers = {
        producer_id: WrittenReader(
            replace(target, producer_id=producer_id), log_start, WrittenRows() if wanted.rows else None
        )
        for producer_id in wanted.wanted
    }
    try:
        async with aclosing(client.stream(target.topic, target.partition, start, end, committed=False)) as stream:
            async for fetched in stream:
                await throttle.pace(len(fetched.data))
                for _, header in walk(fetched.data):
                    if start <= header.base_offset < end:
                        _refuse_other(wanted, header)
                        if header.producer_id in readers:
                            readers[header.producer_id].add(header)
                fetched.release()
    except BaseException:
        for reader in readers.values():
            reader.close()
        raise
    found = {producer_id: reader.written(end) for producer_id, reader in readers.items()}
    if log_start > target.start and not fresh and not all(item.records for item in found.values()):
        raise TargetChanged(
            f"{target}: retention has removed everything up to offset {log_start}; it is unknown what this run had "
            "written before.",
            hint="Set retention.ms=-1 on the topic while restoring into it, and start a new restore under another run "
            "id.",
        )
    return found


def _refuse_other(wanted: Look, header: BatchHeader) -> None:
    """Raises TopicExists for a batch that is not the run's, where no other may write."""
    if wanted.ours is not None and (header.magic < 2 or header.is_control or header.producer_id not in wanted.ours):
        raise _strange(wanted.target, f", at offset {header.base_offset}")


def _strange(target: TargetPartition, where: str = "") -> TopicExists:
    return TopicExists(
        f"{target} holds records that this restore has not written{where}.",
        hint="The topic was created, or written to, by another client in the meantime. Delete it and restore again "
        "under another run id.",
    )
