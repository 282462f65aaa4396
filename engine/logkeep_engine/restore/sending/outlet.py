"""The way of batches to one target partition, in one pass over the archive.

An outlet has a producer id, and begins where the target is (`written`). It has a builder of the offset map, unless the
topic is divided: that map would have nearly a row a record. With `offsets: Same` it has a `Padding`, which fills the
offsets that hold no record. Batches come in their order, by `take`; those that are in the target already are only
counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import aclosing

from logkeep_engine.errors import TargetChanged
from logkeep_engine.kafka.batch_queue import BatchQueue
from logkeep_engine.kafka.brokers import Leader
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.model.offset_map import OffsetMapBuilder, OutletSummary
from logkeep_engine.restore.model.plan import PartitionPlan
from logkeep_engine.restore.sending.padding import Padding
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.window import Window
from logkeep_engine.restore.sending.written import LogEnd, Mark, PositionLost, WrittenRecords, is_there
from logkeep_engine.restore.streams.filter import Outgoing

Progress = Callable[[int, int, int], None]
"""Takes the source offset that is reached, and how many records and bytes have come since it was called before."""


class Outlet:
    """See the module."""

    def __init__(
        self,
        task: RestoreTask,
        part: PartitionPlan,
        written: WrittenRecords,
        client: RawClient,
        throttle: Throttle,
        window: Window,
        progress: Progress,
        *,
        contested: bool,
    ) -> None:
        """`contested`: an earlier attempt may still write."""
        self._target = target = task.target_of(part)
        self._written = written
        self._client = client
        self._throttle = throttle
        self._window = window
        self._progress = progress
        self._contested = contested and not task.topic.created
        self._small = task.small
        self._counts_bytes = task.topic.divided
        # After the look an attempt that was taken for dead may have written these very batches.
        self._log = LogEnd(max(target.start, written.log_end or 0), None)
        if written.mark is not None:
            self._log = LogEnd(written.mark.end, written.mark)
        self.offsets = None if task.topic.divided else OffsetMapBuilder()
        self._padding: Padding | None = None
        if part.extent is not None:
            self._padding = Padding(
                target, part.extent, str(task.archived), client, throttle, self._log, window, self._moved
            )
        self._queue = BatchQueue()
        self._pending: deque[Outgoing] = deque()
        self._rows = iter(written.rows or ())
        self._placed = 0
        self._epoch = -1
        self._made = self._reported = 0  # records of the stream: those that came, and those of which the progress knows
        self._bytes = self._bytes_reported = 0

    # ---- from the stream

    async def take(self, item: Outgoing) -> None:
        """Take the next batch, when there is room for it."""
        if self._is_there(item):
            self._note(item)
            if self.offsets is not None:
                self._note_place(item, self.offsets)
            self._tell(item.source_end, self._made)
            return
        if self._padding is not None:
            await self._padding.before(item)
        self._note(item)
        if item.data is None:
            raise AssertionError(f"{self._target}: a batch to send has no data")
        await self._window.take(self._weight(item))
        await self._throttle.pace(item.size)
        self._pending.append(item)
        self._queue.put(item.data)

    async def finish(self) -> None:
        """Note that all batches have come."""
        if self._padding is not None:
            await self._padding.finish()
        self._queue.end()

    def end(self) -> None:
        """Let no more batches come, whatever the reason."""
        self._queue.end()

    def _is_there(self, item: Outgoing) -> bool:
        if self._padding is not None:
            return self._padding.holds(item)
        there = self._written.records
        if item.index < there < item.index + item.count:
            raise TargetChanged(
                f"{self._target}: {there} records of this run are there, which is inside a batch of this plan "
                f"({item.index} to {item.index + item.count - 1}).",
                hint="The archive or the plan was changed while the restore was running: start a new restore.",
            )
        return item.index < there

    def _note(self, item: Outgoing) -> None:
        if self.offsets is not None:
            for offset, count in item.source:
                self.offsets.source(offset, count)
        self._made = item.index + item.count
        self._bytes += item.size

    def _note_place(self, item: Outgoing, offsets: OffsetMapBuilder) -> None:
        """Note the target offsets of a batch that is there already."""
        if self._padding is not None:
            for offset, count in item.source:
                offsets.target(offset, count)
            return
        while self._placed < item.index + item.count:
            index, offset, count = next(self._rows)
            if index > self._placed:
                offsets.gone(index - self._placed)
            offsets.target(offset, count)
            self._placed = index + count

    def _weight(self, item: Outgoing) -> int:
        return item.weight if self._counts_bytes else 1

    # ---- to the target

    async def run(self) -> None:
        """Send the batches until all have come, and are acknowledged. Raises PositionLost if the target must be read
        back, and what the client raises."""
        target = self._target
        if self._written.mark is None and self._written.log_end is None:
            # What others have written before is not looked at again when an answer gets lost.
            self._log.end = max(target.start, await self._client.log_end(target.topic, target.partition))
        sending = self._client.produce_many(
            target.topic,
            target.partition,
            self._queue,
            floor=self._log.end,
            confirm=self._confirm,
            small=self._small,
            contested=self._contested,
        )
        async with aclosing(sending) as offsets:
            async for offset in offsets:
                self._acknowledge(self._pending.popleft(), offset)
        if self._contested:
            await self._check_nothing_after()

    async def _confirm(self, leader: Leader) -> None:
        """Check that a leader has all that earlier leaders had acknowledged, before it gets more."""
        target, client, mark = self._target, self._client, self._log.mark
        if mark is not None:
            whole = await is_there(client, target, mark, at_least=leader.epoch)
        else:
            whole = target.start == 0 or await client.log_end(target.topic, target.partition) >= target.start
        if target.alone and self._epoch >= 0:  # nothing is under way, and no other writes
            whole = whole and await client.log_end(target.topic, target.partition) == self._log.end
        if not whole:
            raise PositionLost
        self._epoch = leader.epoch

    def _acknowledge(self, item: Outgoing, offset: int) -> None:
        """Note where the broker has put a batch. Raises PositionLost if it cannot lie there."""
        if self._target.alone:
            expected = self._target.start + item.index if self._padding is None else item.source[0][0]
            # -1: a broker that recognizes a batch need not say where it lies.
            if offset not in (expected, -1):
                raise PositionLost
            offset = expected
        elif offset < self._log.end:
            raise PositionLost
        if self.offsets is not None:
            self.offsets.target(offset, item.count)
        self._log.reach(offset + item.count, self._epoch)
        self._tell(item.source_end, item.index + item.count)
        self._window.give_back(self._weight(item))

    async def _check_nothing_after(self) -> None:
        """Check that nothing of this run lies after its last record. In front of the others, `produce_many` looks.

        Where no other writes to the topic, offsets show it.
        """
        target = self._target
        end = await self._client.log_end(target.topic, target.partition)
        if await self._client.written_by(
            target.topic, target.partition, target.producer_id, start=self._log.end, end=end
        ):
            raise PositionLost

    # ---- what is known of it

    def _moved(self) -> None:
        """Tell the progress of the padding."""
        self._tell(self._log.end, self._made)

    def _tell(self, at: int, records: int) -> None:
        self._progress(at, records - self._reported, self._bytes - self._bytes_reported)
        self._reported, self._bytes_reported = records, self._bytes

    def knew(self, written: WrittenRecords) -> bool:
        """Return whether this outlet knows of all that is in the target."""
        return written.end == (0 if self._log.mark is None else self._log.mark.end)

    def summary(self) -> OutletSummary:
        """Return what was done, when all is acknowledged. Raises TargetChanged if the target holds more than the
        archive."""
        if self._made < self._written.records:
            raise TargetChanged(
                f"{self._target}: {self._written.records} records of this run are there, the archive gives "
                f"{self._made}.",
                hint="The archive or the plan was changed while the restore was running: start a new restore.",
            )
        start, mark = self._target.start, self._log.mark or Mark(-1, self._target.start)
        return OutletSummary(self._target.partition, self._made, start, mark.end, mark.epoch)

    @property
    def bytes(self) -> int:
        """Return the bytes of its batches."""
        return self._bytes

    def close(self) -> None:
        self._written.close()
        if self.offsets is not None:
            self.offsets.close()
