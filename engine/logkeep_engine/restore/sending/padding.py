"""Fills the offsets between records, so that every record goes to its source offset (`offsets: Same`).

How far the target's log reaches says what was written: its end is a source offset. Where the next record lies further,
a transaction of its own moves the end on: a marker alone fills one offset, aborted empty records and their marker fill
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
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from logkeep_engine.errors import ArchiveDamaged, OffsetOutOfRange, TargetChanged
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.transactions import PaddingTransactions, TransactionOver
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import walk
from logkeep_engine.log.padding import MOST_RECORDS
from logkeep_engine.restore.sending.window import Window
from logkeep_engine.restore.sending.written import (
    LogEnd,
    Mark,
    PositionLost,
    TargetPartition,
    WrittenRecords,
    batch_at,
    is_there,
)
from logkeep_engine.restore.streams.filter import SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.streams.same import Extent, transactional_id

_BATCHES = 16
"""The batches of one transaction, at most: it must end long before the coordinator gives it up."""

_TRIES = 20  # of transactions, one after another, that do not move the end of the log
_PAUSE = 1.0  # an attempt that was fenced lets the other one continue
_DELETE_AND_BEGIN = "Delete the topic, and start a new restore under another run id."


def transactions_of(target: TargetPartition, client: RawClient) -> PaddingTransactions:
    """Return the transactions of a partition's restore."""
    return client.transactions(transactional_id(target.producer_id), target.topic, target.partition)


async def look_for_end(client: RawClient, target: TargetPartition, *, fresh: bool) -> WrittenRecords:
    """Find out how far the target's log reaches: the mark says it. `fresh`: nothing was written before.

    Raises what the client raises.
    """
    if not fresh:
        await transactions_of(target, client).fence()
    patience = client.patience(f"read back what this run has written to {target}")
    while True:
        ended = await client.epoch_end(target.topic, target.partition)
        end = ended.end_offset
        if end == 0:
            return WrittenRecords(log_end=0)
        if end == await client.start_offset(target.topic, target.partition):
            return WrittenRecords(mark=Mark(ended.leader_epoch, end))
        try:
            last = await batch_at(client, target, end - 1)
            return WrittenRecords(mark=Mark(last.leader_epoch, end))
        except RetriableError as trouble:
            await patience.wait(trouble)
        except OffsetOutOfRange as error:  # cut off, or removed, meanwhile
            await patience.wait(RetriableError(error.message))


class Padding:
    """Lets the `log` of a target end where the next record belongs. See the module."""

    def __init__(
        self,
        target: TargetPartition,
        extent: Extent,
        archived: str,
        client: RawClient,
        throttle: Throttle,
        log: LogEnd,
        window: Window,
        moved: Callable[[], None],
    ) -> None:
        """`log` is also kept by the sender of the records; `moved` is called when it ends elsewhere by what was filled.
        `archived` stands for the archived partition in messages."""
        self._target = target
        self._extent = extent
        self._archived = archived
        self._client = client
        self._throttle = throttle
        self._log = log
        self._window = window
        self._moved = moved
        self._found = log.end  # what the run had written before, up to there
        self._last: Outgoing | None = None  # the last batch of it
        self._begun = False
        self._sent = log.end  # where the log ends when all that was sent is acknowledged
        self._transactions = transactions_of(target, client)

    def holds(self, item: Outgoing) -> bool:
        """Return whether the log has the batch already."""
        if item.source_end > self._found:
            return False
        self._last = item
        return True

    async def before(self, item: Outgoing) -> None:
        """Let the log end where this batch belongs, which is sent next."""
        await self._begin()
        first = item.source[0][0]
        if first < self._found:
            raise TargetChanged(
                f"{self._target} ends at offset {self._found}, which is inside a batch of this plan ({first} "
                f"to {item.source_end - 1}).",
                hint="The archive or the plan was changed while the restore was running, or a coordinator has written "
                f"the marker of a transaction twice. {_DELETE_AND_BEGIN}",
            )
        if first < self._sent:
            raise ArchiveDamaged(
                f"{self._archived}: the record at offset {first} comes after the one at {self._sent - 1}, so not all "
                "can have their offsets.",
                hint="Delete what was restored, and restore the topic with spec.offsets: Any.",
            )
        await self._fill(first)
        self._sent = item.source_end

    async def finish(self) -> None:
        """Let the log end where the source's does."""
        await self._begin()
        await self._fill(self._extent.end, last=True)

    # ---- what was written before

    async def _begin(self) -> None:
        """Check once that the last record in front of the log's end is there. Raises TargetChanged."""
        if self._begun:
            return
        self._begun = True
        target = self._target
        if self._last is not None:
            first, count = self._last.source[0]
            patience = self._client.patience(f"read back what this run has written to {target}")
            while True:
                try:
                    found = await batch_at(self._client, target, first)
                    break
                except RetriableError as trouble:
                    await patience.wait(trouble)
                except OffsetOutOfRange:
                    raise PositionLost from None
            wanted = (first, target.producer_id, self._last.index % SEQUENCE_SPACE, count)
            if wanted != (found.base_offset, found.producer_id, found.base_sequence, found.last_offset_delta + 1):
                raise TargetChanged(
                    f"{target} does not hold what this run has written at offset {first}: another producer wrote to "
                    "it, a coordinator has written the marker of a transaction twice, or the cluster has lost records "
                    "that it had acknowledged.",
                    hint=_DELETE_AND_BEGIN,
                )
        position = await self._client.start_offset(target.topic, target.partition)
        if self._last is not None:
            position = max(position, self._last.source_end)
        await self._check_padding(position, self._found, written=True)
        if self._log.end >= self._extent.start > 0:
            await self._client.delete_records(target.topic, target.partition, self._extent.start)

    async def _check_padding(self, start: int, end: int, *, written: bool) -> int:
        """Check that in [start, end) lie transactions only: a batch that a broker took twice would stay there, and so
        would one of another client. Returns the leader epoch of the last batch, -1 if there is none. Raises
        TargetChanged, and PositionLost if the log was cut off, or removed, in the meantime. Unless it was `written`
        before, PositionLost comes for records of this run, too: another attempt may have got further.
        """
        target, epoch = self._target, -1
        if start >= end:
            return epoch
        stream = self._client.stream(target.topic, target.partition, start, end, committed=False)
        try:
            async with aclosing(stream) as fetches:
                async for fetched in fetches:
                    await self._throttle.pace(len(fetched.data))
                    for _, header in walk(fetched.data):
                        if not start <= header.base_offset < end:
                            continue
                        if not (header.is_transactional or header.is_control):
                            if not written and header.producer_id == target.producer_id:
                                raise PositionLost
                            raise TargetChanged(
                                f"{target} holds records at offset {header.base_offset}, where the source has "
                                "none: another producer wrote to it, or a broker took records of this run twice.",
                                hint=_DELETE_AND_BEGIN,
                            )
                        epoch = header.leader_epoch
                    fetched.release()
        except OffsetOutOfRange:
            raise PositionLost from None
        return epoch

    # ---- gaps

    async def _fill(self, to: int, *, last: bool = False) -> None:
        """Let the log end at offset `to`, with nothing on its way. Where it is the `last` gap, the log may end after
        it: no record is moved by that.
        """
        if self._sent == to:
            return
        await self._window.all_back()
        target, log = self._target, self._log
        tries, begun = 0, log.end
        while log.end < to:
            in_front = log.end < self._extent.start
            await self._move_on(min(to, self._extent.start) if in_front else to)
            if log.end > to and not last:
                raise _too_far(target, log.end, to)
            tries = 0 if log.end > begun else tries + 1
            if tries == _TRIES:
                raise PositionLost
            begun = log.end
            if in_front:
                before = min(log.end, self._extent.start)
                await self._client.delete_records(target.topic, target.partition, before)
            self._moved()
        self._sent = max(self._sent, log.end)

    async def _move_on(self, to: int) -> None:
        """Let one transaction move the end of the log on. It may come further than `to`, if a marker was written twice,
        and not as far, if it was cut short.

        Raises PositionLost if records are not where they were, TargetChanged if anything but transactions
        is in the gap.
        """
        log, target = self._log, self._target
        await self._transactions.hold()
        before = await self._look_on()
        if log.end >= to:
            return
        sizes = sizes_for(to - log.end)
        await self._throttle.pace(sum(sizes))
        try:
            expected = log.end + await self._transactions.write(sizes)
        except TransactionOver:
            # At random: two attempts in step would fence each other forever.
            await asyncio.sleep(_PAUSE * random.random())
            return
        after = await self._client.epoch_end(target.topic, target.partition)
        # With the epoch: under a new leader the same end may stand for other records.
        if after == replace(before, end_offset=expected):
            log.reach(expected, after.leader_epoch)
        else:
            await self._look_on()

    async def _look_on(self) -> EpochEnd:
        """Ask for the log's end, and continue from there if transactions only were added since. Raises PositionLost if
        they are not after all that was there, TargetChanged.
        """
        target, client, log = self._target, self._client, self._log
        ended = await client.epoch_end(target.topic, target.partition)
        whole = ended.end_offset >= log.end
        if log.mark is not None and ended.leader_epoch != log.mark.epoch:
            whole = whole and await is_there(client, target, log.mark, at_least=ended.leader_epoch)
        if not whole:
            raise PositionLost
        if ended.end_offset > log.end:
            log.reach(ended.end_offset, await self._check_padding(log.end, ended.end_offset, written=False))
        return ended


def sizes_for(gap: int) -> Sequence[int]:
    """Return the batches of empty records of one transaction that fills this many offsets, or the first of them."""
    records = gap - 1
    sizes: list[int] = []
    while records > 0 and len(sizes) < _BATCHES:
        sizes.append(min(records, MOST_RECORDS))
        records -= sizes[-1]
    return sizes


def _too_far(target: TargetPartition, end: int, to: int) -> TargetChanged:
    return TargetChanged(
        f"{target} ends at offset {end}, and the next record belongs to offset {to}: a coordinator has written the "
        "marker of a transaction twice (brokers were restarted, or slow).",
        hint=f"{_DELETE_AND_BEGIN} Records cannot keep their offsets now. Do not restart brokers during the restore.",
    )
