"""An attempt that puts every record at its source offset, and fills the offsets between.

How far the target's log reaches says what has landed: its end is a source offset. Where the next record lies further, a
transaction of its own moves the end on: a marker alone fills one offset, aborted empty records and their marker fill
more. Readers of committed records see none of it. What lies in front of the first offset of the source is removed with
DeleteRecords.

Three rules keep a log from being filled at the wrong place, whatever dies in between:

- Records and transactions alternate: a transaction begins when all records before it are acknowledged, and the next
  record is sent when the transaction is complete, so that no marker of it can still come.
- The end of the log is asked for before and after a transaction, of the same leader by its epoch, so no other leader
  can have taken it. It is asked for with the transactional id in hand, so no other attempt can have moved it on: a
  transaction fails if another one has fenced it since.
- Whoever looks for its place first fences the transactions of earlier attempts, and then reads back the last record
  that must lie in front of that place. It was sent when everything before it was right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

from logkeep_engine.errors import ArchiveDamaged, OffsetOutOfRange, TargetChanged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.produce import Batch
from logkeep_engine.kafka.transactions import PaddingTransactions, TransactionOver
from logkeep_engine.kafka.trouble import BrokerTrouble
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import walk
from logkeep_engine.log.padding import MOST_RECORDS
from logkeep_engine.restore.attempt import Attempt, LookAgain, RestoreTask, update_of
from logkeep_engine.restore.filter import SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.landed import Landed, Mark, batch_at, is_there
from logkeep_engine.restore.outgoing_ahead import OutgoingAhead
from logkeep_engine.restore.same import Extent, transactional_id
from logkeep_engine.tasks import TaskProgress

_BATCHES = 16
"""The batches of one transaction, at most: it must end long before the coordinator gives it up."""

_PAUSE = 1.0  # an attempt that was fenced lets the other one go on
_DELETE_AND_BEGIN = "Delete the topic, and begin a new restore under another run id."


def transactions_of(task: RestoreTask, client: RawClient) -> PaddingTransactions:
    """The transactions of a partition's restore."""
    return client.transactions(transactional_id(task.producer_id), task.target, task.partition)


async def look_for_end(client: RawClient, task: RestoreTask, *, fresh: bool) -> Landed:
    """Find out how far the target's log reaches. `fresh`: nothing was written before.

    Raises TargetChanged if it reaches further than the source, and what the client raises.
    """
    assert task.extent is not None
    if not fresh:
        await transactions_of(task, client).fence()
    patience = client.patience(f"read back what this run has written to {task.where}")
    while True:
        ended = await client.epoch_end(task.target, task.partition)
        end = ended.end_offset
        if end > task.extent.end:
            raise _too_far(task, end, task.extent.end)
        if end == 0:
            return Landed()
        if end == await client.start_offset(task.target, task.partition):
            return Landed(mark=Mark(ended.leader_epoch, end))
        try:
            last = await batch_at(client, task.place, end - 1)
            return Landed(mark=Mark(last.leader_epoch, end))
        except BrokerTrouble as trouble:
            await patience.wait(trouble)
        except OffsetOutOfRange as error:  # cut off, or removed, meanwhile
            await patience.wait(BrokerTrouble(error.message))


class SameAttempt(Attempt):
    """See the module. `landed.mark` says how far the log reaches, `landed.records` nothing."""

    def __init__(
        self,
        task: RestoreTask,
        landed: Landed,
        progress: TaskProgress,
        pool: ThreadPoolExecutor,
        throttle: Throttle,
        *,
        contested: bool = False,
    ) -> None:
        super().__init__(task, landed, progress, pool, throttle, contested=contested)
        assert task.extent is not None
        self._extent: Extent = task.extent
        self._landed_end = self._end
        self._last: Outgoing | None = None
        self._sent = self._end  # where the log ends when all that was sent is acknowledged
        self._moved = asyncio.Event()
        self._transactions: PaddingTransactions

    def knew(self, landed: Landed) -> bool:
        return landed.end == self._end

    async def _to_send(self, ahead: OutgoingAhead) -> AsyncGenerator[Batch, None]:
        self._transactions = transactions_of(self._task, self._client)
        begun = False
        async for items in ahead.take():
            for item in items:
                first = item.source[0][0]
                if item.source_end <= self._landed_end:
                    self._skip(item)
                    continue
                if not begun:
                    begun = True
                    await self._check_landed()
                self._check_place(item)
                await self._fill(first)
                self._note(item)
                if item.data is None:
                    raise AssertionError(f"{self._task.where}: a batch to send has no data")
                await self._throttle.pace(item.size)
                self._pending.append(item)
                self._sent = item.source_end
                yield item.data
        if not begun:
            await self._check_landed()
        await self._fill(self._extent.end)
        self._all_made = True

    def _skip(self, item: Outgoing) -> None:
        self._note(item)
        for offset, count in item.source:
            self._map.target(offset, count)
        self._last = item
        self.acknowledged = item.index + item.count
        self._progress.tell(update_of(self._task, item.source_end, self._made, self._bytes))

    def _check_place(self, item: Outgoing) -> None:
        first = item.source[0][0]
        if first < self._landed_end:
            raise TargetChanged(
                f"{self._task.where} ends at offset {self._landed_end}, which is inside a batch of this plan ({first} "
                f"to {item.source_end - 1}).",
                hint="The archive or the plan was changed while the restore went on: begin a new restore.",
            )
        if first < self._sent:
            raise ArchiveDamaged(
                f"topic {self._task.source!r} partition {self._task.partition}: the record at offset {first} comes "
                f"behind the one at {self._sent - 1}, so not all can have their offsets.",
                hint="Delete what was restored, and restore the topic with spec.offsets: Any.",
            )

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        super()._acknowledge(item, offset)
        self._moved.set()

    def _place(self, item: Outgoing) -> int:
        return item.source[0][0]

    # ---- what has landed

    async def _check_landed(self) -> None:
        """Check that the last record in front of the log's end is there. Raises TargetChanged."""
        task = self._task
        if self._last is not None:
            first, count = self._last.source[0]
            patience = self._client.patience(f"read back what this run has written to {task.where}")
            while True:
                try:
                    found = await batch_at(self._client, task.place, first)
                    break
                except BrokerTrouble as trouble:
                    await patience.wait(trouble)
                except OffsetOutOfRange:
                    raise LookAgain from None
            wanted = (first, task.producer_id, self._last.index % SEQUENCE_SPACE, count)
            if wanted != (found.base_offset, found.producer_id, found.base_sequence, found.last_offset_delta + 1):
                raise TargetChanged(
                    f"{task.where} does not hold what this run has written at offset {first}: somebody else wrote to "
                    "it, or the cluster has lost records that it had acknowledged.",
                    hint=_DELETE_AND_BEGIN,
                )
        await self._check_gap()
        if self._end >= self._extent.start > 0:
            await self._client.delete_records(task.target, task.partition, self._extent.start)

    async def _check_gap(self) -> None:
        """Check that behind the last record lie transactions only: a batch that a broker took twice would stay there,
        and so would one of somebody else. Raises TargetChanged.
        """
        task, client = self._task, self._client
        position = await client.start_offset(task.target, task.partition)
        if self._last is not None:
            position = max(position, self._last.source_end)
        if position >= self._landed_end:
            return
        stream = client.stream(task.target, task.partition, position, self._landed_end, committed=False)
        try:
            async with aclosing(stream) as fetches:
                async for fetched in fetches:
                    for _, header in walk(fetched.data):
                        inside = position <= header.base_offset < self._landed_end
                        if inside and not (header.is_transactional or header.is_control):
                            raise TargetChanged(
                                f"{task.where} holds records at offset {header.base_offset}, where the source has "
                                "none: somebody else wrote to it, or a broker took records of this run twice.",
                                hint=_DELETE_AND_BEGIN,
                            )
        except OffsetOutOfRange:  # cut off, or removed, meanwhile
            raise LookAgain from None

    # ---- gaps

    async def _fill(self, to: int) -> None:
        """Let the log end at offset `to`, with nothing on its way."""
        if self._sent == to:
            return
        while self._end < self._sent:
            self._moved.clear()
            await self._moved.wait()
        while self._end < to:
            in_front = self._end < self._extent.start
            await self._move_on(min(to, self._extent.start) if in_front else to)
            self._sent = self._end
            if in_front:
                await self._client.delete_records(self._task.target, self._task.partition, self._end)
            self._progress.tell(update_of(self._task, self._end, self._made, self._bytes))

    async def _move_on(self, to: int) -> None:
        """Let one transaction move the end of the log on, at most up to `to`. Raises LookAgain."""
        task, client, sizes = self._task, self._client, sizes_for(to - self._end)
        await self._transactions.hold()
        before = await client.epoch_end(task.target, task.partition)
        whole = before.end_offset == self._end
        if self._mark is not None and before.leader_epoch != self._mark.epoch:
            whole = whole and await is_there(client, task.place, self._mark, at_least=before.leader_epoch)
        if not whole:
            raise LookAgain
        await self._throttle.pace(sum(sizes))
        try:
            await self._transactions.write(sizes)
        except TransactionOver:
            await asyncio.sleep(_PAUSE * random.random())
            raise LookAgain from None
        after = await client.epoch_end(task.target, task.partition)
        if after.leader_epoch != before.leader_epoch:
            raise LookAgain
        if after.end_offset > to:
            raise _too_far(task, after.end_offset, to)
        if after.end_offset <= self._end:
            raise LookAgain
        self._end = after.end_offset
        self._mark = Mark(after.leader_epoch, self._end)


def sizes_for(gap: int) -> Sequence[int]:
    """The batches of empty records of one transaction that fills so many offsets, or the first of them."""
    records = gap - 1
    sizes: list[int] = []
    while records > 0 and len(sizes) < _BATCHES:
        sizes.append(min(records, MOST_RECORDS))
        records -= sizes[-1]
    return sizes


def _too_far(task: RestoreTask, end: int, to: int) -> TargetChanged:
    return TargetChanged(
        f"{task.where} ends at offset {end}, and this run has written up to {to} at most: somebody else wrote to it, "
        "or a coordinator that died has written the marker of a transaction twice.",
        hint=f"{_DELETE_AND_BEGIN} Records cannot have their offsets any more.",
    )
