"""Finds out what the pairs of a target partition have written: one pass over its log, by producer ids.

Several producers write to the partition, so a place in it says nothing of one of them. The sequences of its own batches
do (see `landed`). A driver that continues reads each target partition once for all pairs, not once for each.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace

from logkeep_engine.errors import TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.restore.sending.written import (
    Mark,
    TargetPartition,
    WrittenReader,
    WrittenRecords,
    WrittenRows,
    front_removed,
    headers_between,
    read_back,
)
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class PairPlace:
    """The part of a pair that is in the target: its first `records`, up to `mark`. `end`: where the log ended then;
    None: nobody has looked, since nothing can be there."""

    records: int = 0
    mark: Mark | None = None
    end: int | None = None

    def landed(self) -> WrittenRecords:
        """The same, without the offsets of the records."""
        return WrittenRecords(self.records, _NoRows(), self.mark)


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

    async def found(end: int) -> dict[int, PairPlace]:
        if end == task.target.start:
            return dict.fromkeys(task.wanted, PairPlace(end=end))
        return await _read(client, task, end, throttle)

    return await read_back(client, task.target, found)


async def _read(client: RawClient, task: PlacesTask, end: int, throttle: Throttle) -> dict[int, PairPlace]:
    target = task.target
    log_start = await client.start_offset(target.topic, target.partition)
    position = max(target.start, log_start)
    readers = {
        producer_id: WrittenReader(replace(target, producer_id=producer_id), log_start, _NoRows())
        for producer_id in task.wanted
    }
    async with aclosing(headers_between(client, target, position, end, throttle)) as headers:
        async for header in headers:
            _refuse_other(task, header)
            reader = readers.get(header.producer_id)
            if reader is not None:
                reader.add(header)
    found = {producer_id: reader.landed() for producer_id, reader in readers.items()}
    if log_start > target.start and not all(landed.records for landed in found.values()):
        raise front_removed(target, log_start)
    return {producer_id: PairPlace(landed.records, landed.mark, end) for producer_id, landed in found.items()}


def _refuse_other(task: PlacesTask, header: BatchHeader) -> None:
    """Raises TopicExists for a batch that is not the run's, where nobody else may write."""
    if task.ours is not None and (header.magic < 2 or header.is_control or header.producer_id not in task.ours):
        raise TopicExists(
            f"{task.target} holds records that this restore has not written, at offset {header.base_offset}.",
            hint="The topic was created, or written to, by somebody else meanwhile. Delete it and restore again "
            "under another run id.",
        )


class _NoRows(WrittenRows):
    """Keeps no offsets: a pair has no offset map."""

    def add(self, index: int, offset: int, count: int) -> None:
        pass
