"""The sources of a comparison: the records of one partition, in order, as a consumer of committed records sees them.

What is wanted of an archive is the caller's to know, so its source is made where that is known. The source of a log is
here: it reads what the partition's leader has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from logkeep_engine.compare.aligning import ListedRecords, digests_of_each
from logkeep_engine.errors import BatchTooLarge, BrokerUnavailable, CorruptBatch, OffsetOutOfRange, TopicGone
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.committed import CommittedBatches
from logkeep_engine.kafka.fetched import Fetched
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.limits import UNLIMITED, Throttle
from logkeep_engine.log.batch import MAX_OFFSET, Headers, Stretch
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.rows import RecordDigest, Rows, rows_of_batch

FETCH_BYTES = 8 << 20
_ONE_BATCH = 1

MAY_HAPPEN_TO_ONE = (BatchTooLarge, BrokerUnavailable, CorruptBatch, OffsetOutOfRange, TopicGone)
"""The errors of reading one partition that say nothing about the others."""


class ComparedRecords(ABC):
    """The records of a partition. The subclass says how `rows` are read; the rest follows from that."""

    @abstractmethod
    def rows(self, start: int, stop: int = MAX_OFFSET) -> AsyncGenerator[Rows, None]:
        """Return the records with offsets in [start, stop). They are good until the next ones are asked for. Raises
        what reading raises."""

    async def listed(self, start: int, stop: int, count: int) -> ListedRecords:
        """Return the first `count` records at [start, stop)."""
        found = ListedRecords()
        async with aclosing(self.rows(start, stop)) as parts:
            async for rows in parts:
                found.add(rows[: count - len(found)])
                if len(found) >= count:
                    break
        return found

    async def noted(self, start: int, stop: int) -> RecordDigest:
        """Return the records at [start, stop), as a digest."""
        found = RecordDigest(offsets=False)
        async with aclosing(self.rows(start, stop)) as parts:
            async for rows in parts:
                found.note(rows)
        return found

    async def record_at(self, offset: int) -> LogRecord | None:
        """Return the record at an offset, None if there is none."""
        async with aclosing(self.rows(offset, offset + 1)) as parts:
            async for rows in parts:
                if rows:
                    return rows[0]
        return None

    async def first_of(self, start: int, stop: int, digests: frozenset[bytes], count: int) -> tuple[int, int] | None:
        """Return the number and the offset of the first record with one of these digests, among the first `count` at
        [start, stop); None if there is none."""
        passed = 0
        async with aclosing(self.rows(start, stop)) as parts:
            async for rows in parts:
                for number, digest in enumerate(digests_of_each(rows) if rows else ()):
                    if digest in digests:
                        return passed + number, rows.offsets()[number]
                passed += len(rows)
                if passed >= count:
                    break
        return None


class LiveRecords(ComparedRecords):
    """The records of a log, of which `bytes` were read so far. Reading raises the errors of the data plane, and
    CorruptBatch."""

    def __init__(
        self,
        client: RawClient,
        topic: str,
        partition: int,
        throttle: Throttle = UNLIMITED,
        *,
        topic_id: str | None = None,
    ) -> None:
        self.client = client
        self.topic = topic
        self.partition = partition
        self.bytes = 0
        self.stable = MAX_OFFSET
        self._throttle = throttle
        self._topic_id = topic_id

    async def start(self) -> int:
        """Return the offset at which the log starts now."""
        return await self.client.start_offset(self.topic, self.partition)

    async def stable_end(self) -> int:
        """Return the last stable offset now."""
        return await self.client.end_offset(self.topic, self.partition, committed=True)

    async def epoch(self) -> EpochEnd:
        """Return the last leader epoch of the log."""
        return await self.client.epoch_end(self.topic, self.partition)

    async def is_cut_off(self, before: EpochEnd, end: int) -> bool:
        """Return whether the leader's log has lost offsets below `end`, which was there in the leader epoch `before`:
        of the epoch that was the last one, every leader's log must still have all."""
        still = await self.client.epoch_end(self.topic, self.partition, before.leader_epoch)
        return 0 <= still.end_offset < end

    async def fetched(
        self, start: int, end: int, size: int = FETCH_BYTES, *, committed: bool = True
    ) -> AsyncGenerator[Fetched, None]:
        """Yield the leader's answers with the batches at [start, end), as `Fetcher.stream` gives them. Each is good
        until the next one is asked for."""
        stream = self.client.stream(
            self.topic, self.partition, start, end, max_bytes=size, topic_id=self._topic_id, committed=committed
        )
        async with aclosing(stream):
            async for fetched in stream:
                await self._throttle.pace(len(fetched.data))
                self.bytes += len(fetched.data)
                yield fetched
                fetched.release()

    async def batches(self, start: int, end: int, size: int = FETCH_BYTES) -> AsyncGenerator[Stretch, None]:
        """Yield the batches at [start, end) that are compared: below `stable` those that a consumer of committed
        records sees, and after it also those of open transactions. What the first has below `start`, and the last after
        `end`, is the caller's to skip."""
        decided = min(end, max(start, self.stable))
        for first, last, committed in ((start, decided, True), (decided, end, False)):
            if first >= last:
                continue
            seen = CommittedBatches()
            async with aclosing(self.fetched(first, last, size, committed=committed)) as answers:
                async for fetched in answers:
                    for headers in seen.of(fetched, last):
                        for part in self.compared(headers, first, committed=committed):
                            yield fetched.data, part

    def compared(self, headers: Headers, start: int, *, committed: bool) -> Iterator[Headers]:
        """Yield the batches among these that are compared: all of them."""
        yield headers

    async def rows(self, start: int, stop: int = MAX_OFFSET) -> AsyncGenerator[Rows, None]:
        """Yield the records at [start, stop)."""
        size = _ONE_BATCH if stop == start + 1 else FETCH_BYTES
        async with aclosing(self.batches(start, stop, size)) as batches:
            async for data, headers in batches:
                for position, header in headers:
                    for rows in rows_of_batch(data[position : position + header.size], header):
                        if wanted := rows.between(start, stop):
                            yield wanted
