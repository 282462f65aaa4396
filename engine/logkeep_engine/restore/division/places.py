"""Finds out what the pairs of a target partition have written: one pass over its log, by producer ids.

Several producers write to the partition, so a place in it says nothing of one of them. The sequences of its own batches
do (see `landed`). A driver that goes on reads each target partition once for all pairs, not once for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from logkeep_engine.errors import OffsetOutOfRange, TargetChanged, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.trouble import BrokerTrouble
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader, walk
from logkeep_engine.restore.landed import Landed, LandedReader, LandedRows, Mark, TargetPartition
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class PairPlace:
    """The part of a pair that is in the target: its first `records`, up to `mark`. `end`: where the log ended when it
    was looked at; None: nobody has looked, since nothing was written before."""

    records: int = 0
    mark: Mark | None = None
    end: int | None = None

    def landed(self) -> Landed:
        """The same, without the offsets of the records."""
        return Landed(self.records, _NoRows(), self.mark)


@dataclass(frozen=True, slots=True)
class PlacesTask:
    """A target partition to read. `target` stands for its pairs, whose producer ids are `wanted`. `ours` are all that
    the run writes with; None: others may write, too. Pickles without secrets."""

    connection: KafkaConnection
    target: TargetPartition
    wanted: tuple[int, ...]
    ours: frozenset[int] | None


def read_places(tasks: tuple[PlacesTask, ...], context: TaskContext) -> tuple[dict[int, PairPlace], ...]:
    """Runs on an executor: the places of the pairs of some target partitions, by producer id."""

    async def read() -> list[dict[int, PairPlace]]:
        async with RawClient(tasks[0].connection) as client:
            return [await places_of(client, task, context.throttle) for task in tasks]

    return tuple(asyncio.run(read()))


async def places_of(client: RawClient, task: PlacesTask, throttle: Throttle) -> dict[int, PairPlace]:
    """The places of the pairs of a target partition, by producer id.

    Waits for a leader, and until followers have what the leader has. Raises TargetChanged if records of the run are
    missing before later ones, TopicExists if somebody else has written to a created topic, and what the client raises.
    """
    target = task.target
    patience = client.patience(f"read back what this run has written to {target}")
    while True:
        end = await client.log_end(target.topic, target.partition)
        if end < target.start:
            raise TargetChanged(
                f"{target} ends at offset {end}, it had ended at {target.start} when the restore was planned.",
                hint="The cluster has lost records that it had acknowledged. Begin a new restore under another run id.",
            )
        if end == target.start:
            return dict.fromkeys(task.wanted, PairPlace(end=end))
        try:
            return await _read(client, task, end, throttle)
        except BrokerTrouble as trouble:
            await patience.wait(trouble)
        except OffsetOutOfRange as error:  # the batches to read were removed, or cut off, meanwhile
            await patience.wait(BrokerTrouble(error.message))


async def _read(client: RawClient, task: PlacesTask, end: int, throttle: Throttle) -> dict[int, PairPlace]:
    target = task.target
    log_start = await client.start_offset(target.topic, target.partition)
    position = max(target.start, log_start)
    readers = {
        producer_id: LandedReader(replace(target, producer_id=producer_id), log_start, _NoRows())
        for producer_id in task.wanted
    }
    async with aclosing(client.stream(target.topic, target.partition, position, end, committed=False)) as stream:
        async for fetched in stream:
            await throttle.pace(len(fetched.data))
            for _, header in walk(fetched.data):
                if position <= header.base_offset < end:
                    _refuse_other(task, header)
                    reader = readers.get(header.producer_id)
                    if reader is not None:
                        reader.add(header)
            fetched.release()
    if log_start > target.start:
        _refuse_removed(target, log_start, readers.values())
    found = {producer_id: reader.landed() for producer_id, reader in readers.items()}
    return {producer_id: PairPlace(landed.records, landed.mark, end) for producer_id, landed in found.items()}


def _refuse_other(task: PlacesTask, header: BatchHeader) -> None:
    """Raises TopicExists for a batch that is not the run's, where nobody else may write."""
    if task.ours is not None and (header.magic < 2 or header.is_control or header.producer_id not in task.ours):
        raise TopicExists(
            f"{task.target} holds records that this restore has not written, at offset {header.base_offset}.",
            hint="The topic was created, or written to, by somebody else meanwhile. Delete it and restore again "
            "under another run id.",
        )


def _refuse_removed(target: TargetPartition, log_start: int, readers: Iterable[LandedReader]) -> None:
    """Raises TargetChanged where retention may have removed all that a pair has written."""
    if not all(reader.landed().records for reader in readers):
        raise TargetChanged(
            f"{target}: retention has removed everything up to offset {log_start}; it cannot be seen what this run "
            "has written before.",
            hint="Set retention.ms=-1 on the topic while restoring into it, and begin a new restore under another run "
            "id.",
        )


class _NoRows(LandedRows):
    """Keeps no offsets: a pair has no offset map."""

    def add(self, index: int, offset: int, count: int) -> None:
        pass
