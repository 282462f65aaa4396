"""An attempt that puts every record at its source offset, and fills the offsets between.

How far the target's log reaches says what has landed: its end is a source offset. Where the next record lies further, a
transaction of its own moves the end on: a marker alone fills one offset, aborted empty records and their marker fill
more. Readers of committed records see none of it. What lies in front of the first offset of the source is removed with
DeleteRecords.

Three rules keep a log from being filled at the wrong place, whatever dies in between:

- Records and transactions alternate: a transaction begins when all records before it are acknowledged, and the next
  record is sent when the transaction is complete, so that no marker of it can still come.
- The end of the log is asked for before and after a transaction. It is asked for with the transactional id in hand,
  so no other attempt can have moved it on: a transaction fails if another one has fenced it since. Where it is not
  exactly what was written, because the leader has changed, the transaction was cut short, or a coordinator has sent a
  marker again, the log from the last known place on is read: it may hold transactions and nothing else.
- Whoever looks for its place first fences the transactions of earlier attempts, and then reads back the last record
  that must lie in front of that place. It was sent when everything before it was right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace

from logkeep_engine.errors import ArchiveDamaged, OffsetOutOfRange, TargetChanged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.produce import Batch
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.kafka.retry import BrokerTrouble
from logkeep_engine.kafka.transactions import PaddingTransactions, TransactionOver
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import walk
from logkeep_engine.log.padding import MOST_RECORDS
from logkeep_engine.restore.sending.attempt import Attempt, PositionLost, RestoreTask, update_of
from logkeep_engine.restore.sending.written import Mark, WrittenRecords, batch_at, is_there
from logkeep_engine.restore.streams.filter import SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.outgoing_ahead import OutgoingBatches
from logkeep_engine.restore.streams.same import Extent, transactional_id
from logkeep_engine.tasks import ProgressSink

_BATCHES = 16
"""The batches of one transaction, at most: it must end long before the coordinator gives it up."""

_TRIES = 20  # of transactions, one after another, that do not move the end of the log
_PAUSE = 1.0  # an attempt that was fenced lets the other one continue
_DELETE_AND_BEGIN = "Delete the topic, and begin a new restore under another run id."


def transactions_of(task: RestoreTask, client: RawClient) -> PaddingTransactions:
    """The transactions of a partition's restore."""
    return client.transactions(transactional_id(task.producer_id), task.target, task.target_partition)


async def look_for_end(client: RawClient, task: RestoreTask, *, fresh: bool) -> WrittenRecords:
    """Find out how far the target's log reaches. `fresh`: nothing was written before.

    Raises what the client raises.
    """
    assert task.extent is not None
    if not fresh:
        await transactions_of(task, client).fence()
    patience = client.patience(f"read back what this run has written to {task.where}")
    while True:
        ended = await client.epoch_end(task.target, task.target_partition)
        end = ended.end_offset
        if end == 0:
            return WrittenRecords()
        if end == await client.start_offset(task.target, task.target_partition):
            return WrittenRecords(mark=Mark(ended.leader_epoch, end))
        try:
            last = await batch_at(client, task.place, end - 1)
            return WrittenRecords(mark=Mark(last.leader_epoch, end))
        except BrokerTrouble as trouble:
            await patience.wait(trouble)
        except OffsetOutOfRange as error:  # cut off, or removed, meanwhile
            await patience.wait(BrokerTrouble(error.message))


class SameAttempt(Attempt):
    """See the module. `landed.mark` says how far the log reaches, `landed.records` nothing."""

    def __init__(
        self,
        task: RestoreTask,
        landed: WrittenRecords,
        progress: ProgressSink,
        pool: ThreadPoolExecutor,
        throttle: Throttle,
        *,
        contested: bool = False,
        left_out: LeftOut | None = None,
    ) -> None:
        super().__init__(task, landed, progress, pool, throttle, contested=contested, left_out=left_out)
        assert task.extent is not None
        self._extent: Extent = task.extent
        self._landed_end = self._end
        self._last: Outgoing | None = None
        self._sent = self._end  # where the log ends when all that was sent is acknowledged
        self._moved = asyncio.Event()
        self._transactions: PaddingTransactions

    def knew(self, landed: WrittenRecords) -> bool:
        return landed.end == self._end

    async def _to_send(self, ahead: OutgoingBatches) -> AsyncGenerator[Batch, None]:
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
        await self._fill(self._extent.end, last=True)
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
                hint="The archive or the plan was changed while the restore was running, or a coordinator has written "
                f"the marker of a transaction twice. {_DELETE_AND_BEGIN}",
            )
        if first < self._sent:
            raise ArchiveDamaged(
                f"topic {self._task.source!r} partition {self._task.partition}: the record at offset {first} comes "
                f"after the one at {self._sent - 1}, so not all can have their offsets.",
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
                    raise PositionLost from None
            wanted = (first, task.producer_id, self._last.index % SEQUENCE_SPACE, count)
            if wanted != (found.base_offset, found.producer_id, found.base_sequence, found.last_offset_delta + 1):
                raise TargetChanged(
                    f"{task.where} does not hold what this run has written at offset {first}: somebody else wrote to "
                    "it, a coordinator has written the marker of a transaction twice, or the cluster has lost records "
                    "that it had acknowledged.",
                    hint=_DELETE_AND_BEGIN,
                )
        position = await self._client.start_offset(task.target, task.target_partition)
        if self._last is not None:
            position = max(position, self._last.source_end)
        await self._check_padding(position, self._landed_end, landed=True)
        if self._end >= self._extent.start > 0:
            await self._client.delete_records(task.target, task.target_partition, self._extent.start)

    async def _check_padding(self, start: int, end: int, *, landed: bool) -> int:
        """Check that in [start, end) lie transactions only: a batch that a broker took twice would stay there, and so
        would one of somebody else. Returns the leader epoch of the last batch, -1 if there is none. Raises
        TargetChanged, and LookAgain if the log was cut off, or removed, meanwhile. Unless it is what has `landed`
        before, LookAgain comes for records of this run, too: another attempt may have got further.
        """
        task, epoch = self._task, -1
        if start >= end:
            return epoch
        stream = self._client.stream(task.target, task.target_partition, start, end, committed=False)
        try:
            async with aclosing(stream) as fetches:
                async for fetched in fetches:
                    await self._throttle.pace(len(fetched.data))
                    for _, header in walk(fetched.data):
                        if not start <= header.base_offset < end:
                            continue
                        if not (header.is_transactional or header.is_control):
                            if not landed and header.producer_id == task.producer_id:
                                raise PositionLost
                            raise TargetChanged(
                                f"{task.where} holds records at offset {header.base_offset}, where the source has "
                                "none: somebody else wrote to it, or a broker took records of this run twice.",
                                hint=_DELETE_AND_BEGIN,
                            )
                        epoch = header.leader_epoch
                    fetched.release()
        except OffsetOutOfRange:
            raise PositionLost from None
        return epoch

    # ---- gaps

    async def _fill(self, to: int, *, last: bool = False) -> None:
        """Let the log end at offset `to`, with nothing on its way. Where it is the `last` gap, the log may end behind
        it: no record is moved by that.
        """
        if self._sent == to:
            return
        while self._end < self._sent:
            self._moved.clear()
            await self._moved.wait()
        tries, begun = 0, self._end
        while self._end < to:
            in_front = self._end < self._extent.start
            await self._move_on(min(to, self._extent.start) if in_front else to)
            if self._end > to and not last:
                raise _too_far(self._task, self._end, to)
            tries = 0 if self._end > begun else tries + 1
            if tries == _TRIES:
                raise PositionLost
            begun = self._end
            if in_front:
                before = min(self._end, self._extent.start)
                await self._client.delete_records(self._task.target, self._task.target_partition, before)
            self._progress.tell(update_of(self._task, self._end, self._made, self._bytes))
        self._sent = max(self._sent, self._end)

    async def _move_on(self, to: int) -> None:
        """Let one transaction move the end of the log on. It may come further than `to`, if a marker was written twice,
        and not as far, if it was cut short.

        Raises LookAgain if records are not where they were, TargetChanged if anything but transactions is in the gap.
        """
        await self._transactions.hold()
        before = await self._look_on()
        if self._end >= to:
            return
        sizes = sizes_for(to - self._end)
        await self._throttle.pace(sum(sizes))
        try:
            expected = self._end + await self._transactions.write(sizes)
        except TransactionOver:
            await asyncio.sleep(_PAUSE * random.random())
            return
        after = await self._client.epoch_end(self._task.target, self._task.target_partition)
        if after == replace(before, end_offset=expected):
            self._end = expected
            self._mark = Mark(after.leader_epoch, expected)
        else:
            await self._look_on()

    async def _look_on(self) -> EpochEnd:
        """Ask for the log's end, and continue from there if transactions only were added since. Raises LookAgain if
        they are not after all that was there, TargetChanged.
        """
        task, client = self._task, self._client
        ended = await client.epoch_end(task.target, task.target_partition)
        whole = ended.end_offset >= self._end
        if self._mark is not None and ended.leader_epoch != self._mark.epoch:
            whole = whole and await is_there(client, task.place, self._mark, at_least=ended.leader_epoch)
        if not whole:
            raise PositionLost
        if ended.end_offset > self._end:
            epoch = await self._check_padding(self._end, ended.end_offset, landed=False)
            self._end = ended.end_offset
            self._mark = Mark(epoch, self._end)
        return ended


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
        f"{task.where} ends at offset {end}, and the next record belongs to offset {to}: a coordinator has written the "
        "marker of a transaction twice (brokers were restarted, or slow).",
        hint=f"{_DELETE_AND_BEGIN} Records cannot have their offsets any more. Do not restart brokers meanwhile.",
    )
