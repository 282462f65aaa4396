"""Reads the records of a target partition as a consumer of committed records sees them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.committed import CommittedBatches
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import MAX_OFFSET, Headers, Stretch
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.rows import RecordDigest, Rows, rows_of_batch
from logkeep_engine.restore.verification.aligning import ListedRecords, digests_of_each

_FETCH_BYTES = 8 << 20
_ONE_BATCH = 1


@dataclass(slots=True)
class OtherRecords:
    """Records in the target that the run has not written."""

    records: int = 0
    first: int = -1

    def add(self, offset: int, records: int) -> None:
        """Note records that begin at an offset."""
        if records and self.first < 0:
            self.first = offset
        self.records += records


class TargetReader:
    """Reads one partition. In a topic that the run has created (`created`), all records are compared, and those of
    other producers are `others` beside that. In a topic that was there before, only the run's own are compared.

    `stable` is the last stable offset, where a transaction of others may be open. No restored record is part of one. So
    the run's own records are read after it, too; what others have there is not compared, since nobody knows yet
    whether it will be seen.
    """

    def __init__(
        self, client: RawClient, topic: str, partition: int, producer_id: int, throttle: Throttle, *, created: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._partition = partition
        self._producer_id = producer_id
        self._throttle = throttle
        self._created = created
        self.others = OtherRecords()
        self.bytes = 0
        self.stable = MAX_OFFSET
        self._seen_until = -1

    async def stretches(self, start: int, end: int) -> AsyncGenerator[Stretch, None]:
        """The batches with records at [start, end) that are compared. What the first has below `start`, and the last
        after `end`, is the caller's to skip. Raises the errors of the data plane, and CorruptBatch."""
        async with aclosing(self._stretches(start, end, _FETCH_BYTES)) as stretches:
            async for stretch in stretches:
                yield stretch

    async def listed(self, start: int, end: int, count: int) -> ListedRecords:
        """The first `count` records that are compared at [start, end)."""
        found = ListedRecords()
        async with aclosing(self._rows(start, end)) as parts:
            async for rows in parts:
                found.add(rows[: count - len(found)])
                if len(found) >= count:
                    break
        return found

    async def noted(self, start: int, end: int) -> RecordDigest:
        """The records that are compared at [start, end), as a digest."""
        found = RecordDigest(offsets=False)
        async with aclosing(self._rows(start, end)) as parts:
            async for rows in parts:
                found.note(rows)
        return found

    async def record_at(self, offset: int) -> LogRecord | None:
        """The record at an offset, None if there is none that is compared."""
        async with aclosing(self._rows(offset, offset + 1, _ONE_BATCH)) as parts:
            async for rows in parts:
                return rows[0]
        return None

    async def first_of(self, start: int, end: int, count: int, digests: frozenset[bytes]) -> tuple[int, int] | None:
        """The number and the offset of the first record with one of these digests, among the first `count` at [start,
        end); None if there is none."""
        passed = 0
        async with aclosing(self._rows(start, end)) as parts:
            async for rows in parts:
                for number, digest in enumerate(digests_of_each(rows)):
                    if digest in digests:
                        return passed + number, rows.offsets()[number]
                passed += len(rows)
                if passed >= count:
                    break
        return None

    async def _rows(self, start: int, end: int, size: int = _FETCH_BYTES) -> AsyncGenerator[Rows, None]:
        """The records that are compared at [start, end). They are good until the next ones are asked for."""
        async with aclosing(self._stretches(start, end, size)) as stretches:
            async for data, headers in stretches:
                for position, header in headers:
                    for rows in rows_of_batch(data[position : position + header.size], header):
                        if wanted := rows.between(start, end):
                            yield wanted

    async def _stretches(self, start: int, end: int, size: int) -> AsyncGenerator[Stretch, None]:
        decided = min(end, max(start, self.stable))
        for first, last, committed in ((start, decided, True), (decided, end, False)):
            if first < last:
                async with aclosing(self._batches(first, last, size, committed=committed)) as batches:
                    async for stretch in batches:
                        yield stretch

    async def _batches(self, start: int, end: int, size: int, *, committed: bool) -> AsyncGenerator[Stretch, None]:
        """The batches that are compared at [start, end), which lies before the last stable offset, or without
        `committed` after it."""
        seen = CommittedBatches()
        stream = self._client.stream(self._topic, self._partition, start, end, max_bytes=size, committed=committed)
        async with aclosing(stream):
            async for fetched in stream:
                await self._throttle.pace(len(fetched.data))
                self.bytes += len(fetched.data)
                for headers in seen.of(fetched, end):
                    for own in self._own(headers, start, others=self._created and committed):
                        yield fetched.data, own
                fetched.release()

    def _own(self, headers: Headers, start: int, *, others: bool) -> Iterator[Headers]:
        """The batches that are compared, with those of others or without. Those are counted, once."""
        at = 0
        for number, (_, header) in enumerate(headers):
            if header.next_offset <= start:
                at = number + 1
            elif header.magic < 2 or header.producer_id != self._producer_id:
                if header.base_offset > self._seen_until:
                    self.others.add(max(header.base_offset, start), max(header.record_count, 1))
                    self._seen_until = header.last_offset
                if not others:
                    if number > at:
                        yield headers[at:number]
                    at = number + 1
        if at < len(headers):
            yield headers[at:]
