"""Reads the records of a target partition as a consumer of committed records sees them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain, pairwise

from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import Headers, Stretch, runs
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.rows import kept_rows
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL
from logkeep_engine.restore.verification.aligning import ListedRecords


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
        self._seen_until = -1

    async def stretches(self, start: int, end: int) -> AsyncGenerator[Stretch, None]:
        """The batches with records at [start, end) that are compared. What the first has below `start`, and the last
        behind `end`, is the caller's to skip. Raises the errors of the data plane."""
        visible = _Visible()
        async with aclosing(self._client.stream(self._topic, self._partition, start, end)) as stream:
            async for fetched in stream:
                await self._throttle.pace(len(fetched.data))
                self.bytes += len(fetched.data)
                visible.expect(fetched.aborted)
                for headers in runs(fetched.data, end, checked=True):
                    for some in visible.of(fetched.data, headers):
                        for own in self._own(some, start):
                            yield fetched.data, own
                fetched.release()

    async def listed(self, start: int, end: int, count: int) -> ListedRecords:
        """The first `count` records that are compared at [start, end)."""
        found = ListedRecords()
        async with aclosing(self.stretches(start, end)) as stretches:
            async for data, headers in stretches:
                for position, header in headers:
                    for rows in kept_rows(memoryview(bytes(data[position : position + header.size])), header):
                        wanted = rows.between(start, end)[: count - len(found)]
                        if wanted:
                            found.add(wanted)
                    if len(found) >= count:
                        return found
        return found

    def _own(self, headers: Headers, start: int) -> Iterator[Headers]:
        """The batches that are compared. Those of others are counted, once."""
        at = 0
        for number, (_, header) in enumerate(headers):
            if header.next_offset <= start:
                at = number + 1
            elif header.magic < 2 or header.producer_id != self._producer_id:
                if header.base_offset > self._seen_until:
                    self.others.add(max(header.base_offset, start), max(header.record_count, 1))
                    self._seen_until = header.last_offset
                if not self._created:
                    if number > at:
                        yield headers[at:number]
                    at = number + 1
        if at < len(headers):
            yield headers[at:]


class _Visible:
    """Leaves out control batches and aborted transactions, as a consumer of committed records does."""

    def __init__(self) -> None:
        self._aborting: set[int] = set()
        self._waiting: deque[tuple[int, int]] = deque()
        self._known: set[tuple[int, int]] = set()

    def expect(self, aborted: tuple[tuple[int, int], ...]) -> None:
        """Take note of the aborted transactions of an answer: producer id and first offset."""
        if aborted:
            fresh = set(aborted) - self._known
            self._known |= fresh
            self._waiting = deque(sorted(chain(self._waiting, fresh), key=lambda item: item[1]))

    def of(self, data: memoryview, headers: Headers) -> Iterator[Headers]:
        """The batches of a stretch that a consumer sees."""
        hidden = [-1]
        for number in headers.with_bits(TRANSACTIONAL_OR_CONTROL):
            position, header = headers[number]
            while self._waiting and self._waiting[0][1] <= header.last_offset:
                self._aborting.add(self._waiting.popleft()[0])
            if header.is_control:
                hidden.append(number)
                if control_type(data, position) is ControlType.ABORT:
                    self._aborting.discard(header.producer_id)
            elif header.producer_id in self._aborting:
                hidden.append(number)
        for before, number in pairwise((*hidden, len(headers))):
            if number > before + 1:
                yield headers[before + 1 : number]
