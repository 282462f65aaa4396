"""A range of a live log, read through: one fetch is under way while the caller works on the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from logkeep_engine.errors import OffsetOutOfRange, RecordsWithheld
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.emptiness import EmptyAnswers
from logkeep_engine.kafka.fetched import Fetched, first_batch_bytes
from logkeep_engine.kafka.survey import Survey

if TYPE_CHECKING:
    from logkeep_engine.kafka.fetch import Fetcher

_LEAST_REMOTE_BYTES = 64 << 10
_SPARING_BATCHES = 8  # with this many batches in an answer, about a sixteenth of it is cut off


class NextSize:
    """How many bytes the next fetch of a stream asks for, of at most `most`.

    A broker fills an answer up with a part of a batch, which is fetched again with the next one. A `sparing` stream
    gets large batches one by one instead: then nothing is cut.
    """

    def __init__(self, most: int, *, sparing: bool) -> None:
        self._most = most
        self._sparing = sparing
        self._bound = most
        self.next = 1 if sparing else most

    def grow(self, data: memoryview) -> None:
        """An answer with `data` has come."""
        # By little: what made the store too slow for more may not be over.
        self._bound = min(self._most, self._bound + self._bound // 8)
        alone = self._sparing and first_batch_bytes(data) * _SPARING_BATCHES > self._most
        self.next = 1 if alone else self._bound

    def shrink(self) -> None:
        """No data came. A read of a remote store may have been too large for the time that the broker gives it."""
        self._bound = max(min(self._bound, _LEAST_REMOTE_BYTES), self._bound // 2)
        self.next = min(self.next, self._bound)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of `Fetcher.fetch` that hold for all fetches of a stream."""

    max_wait_ms: int
    topic_id: str | None
    committed: bool


class Stream:
    """Reads ranges of one partition for `Fetcher.stream`, which says what its caller gets."""

    def __init__(
        self,
        fetcher: Fetcher,
        pool: BrokerPool,
        topic: str,
        partition: int,
        size: NextSize,
        options: StreamOptions,
    ) -> None:
        self._fetcher = fetcher
        self._pool = pool
        self._topic = topic
        self._partition = partition
        self._size = size
        self._options = options
        self._short_since: float | None = None

    async def batches(self, start: int, end: int) -> AsyncGenerator[Fetched, None]:
        """Yield all batches that touch [start, end), in order."""
        if start >= end:
            return
        position = start
        empty = EmptyAnswers(self._fetcher, self._pool.limits, self._topic, self._partition, self._options.topic_id)
        with self._fetcher.lane(self._partition) as lane:
            pending = self._ask(position, lane)
            try:
                while position < end:
                    fetched = await pending
                    if fetched.next_offset > position:
                        self._short_since = None
                        empty.over()
                        position = fetched.next_offset
                        self._size.grow(fetched.data)
                        # Before the caller gets this answer: the broker reads on while the caller works.
                        if position < end:
                            pending = self._ask(position, lane)
                        yield fetched
                        continue
                    if self._readable_to(fetched) >= end:
                        if await empty.proved(fetched, position, end):
                            position = end
                            yield replace(fetched, next_offset=end, aborted=())
                            continue
                        await empty.wait(position, end)
                        self._size.shrink()
                    else:
                        await self._refuse_if_short(end, fetched)
                    pending = self._ask(position, lane)
            finally:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)  # nobody waits for what went wrong there

    def _ask(self, offset: int, lane: int) -> asyncio.Task[Fetched]:
        fetch = self._fetcher.fetch(
            self._topic,
            self._partition,
            offset,
            max_bytes=self._size.next,
            max_wait_ms=self._options.max_wait_ms,
            topic_id=self._options.topic_id,
            committed=self._options.committed,
            lane=lane,
        )
        return asyncio.get_running_loop().create_task(fetch)

    def _readable_to(self, fetched: Fetched) -> int:
        return fetched.last_stable_offset if self._options.committed else fetched.high_watermark

    async def _refuse_if_short(self, end: int, fetched: Fetched) -> None:
        """Raises OffsetOutOfRange or RecordsWithheld if what may be read has ended below `end` for too long."""
        loop = asyncio.get_running_loop()
        self._short_since = self._short_since or loop.time()
        if loop.time() - self._short_since >= self._pool.limits.truncated:
            await self._refuse_if_cut_off(end, fetched)
            if loop.time() - self._short_since >= self._pool.limits.outage:
                raise _not_readable(self._topic, self._partition, end, fetched)

    async def _refuse_if_cut_off(self, end: int, fetched: Fetched) -> None:
        """Raises OffsetOutOfRange if the leader's log ends below `end`. A leader that came back from a crash gives its
        records only up to the high watermark that it remembers, until enough followers are in sync again.
        """
        where = (self._topic, self._partition)
        ended = (await Survey(self._pool).epoch_ends({where: None})).found.get(where)
        if ended is not None and 0 <= ended.end_offset < end and ended.leader_epoch == ended.current_epoch:
            raise _cut_off(*where, end, fetched, ended.end_offset)


def _cut_off(topic: str, partition: int, end: int, fetched: Fetched, log_end: int) -> OffsetOutOfRange:
    return OffsetOutOfRange(
        f"Topic {topic!r} partition {partition}: the leader's log ends at offset {log_end}, "
        f"but the last stable offset had been {end} or more before.",
        hint="The log was cut off (unclean leader election), or the topic was deleted and created again.",
        log_start=fetched.log_start_offset,
        log_end=log_end,
    )


def _not_readable(topic: str, partition: int, end: int, fetched: Fetched) -> RecordsWithheld:
    return RecordsWithheld(
        f"Topic {topic!r} partition {partition}: the last stable offset is {fetched.last_stable_offset}, but it had "
        f"been {end} or more before, and the leader's log may reach that far.",
        hint="Too few replicas are in sync (min.insync.replicas) for the leader to return what it has: bring their "
        "brokers back. What was not read is not recorded: the next run tries it again.",
    )
