"""Raw record batches to a partition's leader, each exactly once and in order.

That holds for idempotent batches (producer id, epoch and sequence set): a batch whose answer got lost is sent again,
and the broker recognises it. Batches without a producer id may be written twice after a lost answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from dataclasses import dataclass

from logkeep_engine.errors import BrokerRefused, ProduceRefused
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import LANES, BrokerPool, Patience, Trouble, raise_for
from logkeep_engine.kafka.fetch import Fetcher
from logkeep_engine.kafka.protocol import LATEST, Buffer, Code

MAX_IN_FLIGHT = 5  # a broker remembers the last five batches of a producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)
DEFAULT_TIMEOUT_MS = 30_000

_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_HEADER_SIZE = 61

_HINTS = {
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "Another task wrote with this producer id, or an earlier batch is missing: "
    "read back what is there before going on.",
    Code.INVALID_PRODUCER_EPOCH: "A newer holder of this producer id has written to the partition.",
    Code.PRODUCER_FENCED: "A newer holder of this producer id has written to the partition.",
    Code.UNKNOWN_PRODUCER_ID: "The broker has forgotten this producer id (producer.id.expiration.ms).",
    Code.MESSAGE_TOO_LARGE: "Raise max.message.bytes of the topic to the size of the batch.",
    Code.RECORD_LIST_TOO_LARGE: "Raise segment.bytes of the topic above the size of the batch.",
    Code.INVALID_TIMESTAMP: "Widen message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic.",
    Code.INVALID_RECORD: "A broker takes one batch with base offset 0 and no gaps; a compacted topic wants keys.",
    Code.CORRUPT_MESSAGE: "The bytes changed on their way, or the CRC was not computed again after a change.",
    Code.INVALID_TXN_STATE: "A transactional batch is only taken inside its transaction: clear its transactional bit.",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "The broker is too old for the compression of this batch.",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "The topic has an old message format.",
}


@dataclass(slots=True)
class _Sent:
    batch: Buffer
    answer: asyncio.Task[int]


@dataclass(frozen=True, slots=True)
class _Target:
    topic: str
    partition: int
    timeout_ms: int


class _OutOfOrder(Exception):
    """OUT_OF_ORDER_SEQUENCE_NUMBER: expected behind a batch that failed, and for one that is there already but
    forgotten.
    """


class Producer:
    """Writes through a `BrokerPool`.

    Many partitions at once are fine; one partition takes one writer of a producer id at a time.
    """

    def __init__(self, pool: BrokerPool, fetcher: Fetcher) -> None:
        self._pool = pool
        self._fetcher = fetcher

    async def produce(
        self, topic: str, partition: int, batch: Buffer, *, acks: int = -1, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> int:
        """Write one batch (base offset 0 in its header, as brokers want it) and return the base offset it got.

        Leader changes, restarts and lost answers are waited out by sending the same bytes again. -1 is returned for a
        batch that a broker recognises as written before without saying where (DUPLICATE_SEQUENCE_NUMBER). `acks` is -1
        or 1.

        Raises ProduceRefused, TopicGone, BrokerUnavailable, BrokerRefused.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks={acks}: only -1 and 1 are answered by a broker")
        target = _Target(topic, partition, timeout_ms)
        try:
            return await self._until_acknowledged(target, batch, None, acks=acks)
        except _OutOfOrder as error:
            raise self._refused(target, batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "") from error

    async def produce_many(
        self,
        topic: str,
        partition: int,
        batches: AsyncIterator[Buffer],
        *,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> AsyncGenerator[int, None]:
        """Write batches in order and yield the base offset of each, in order, when all replicas in sync have it.

        Up to `max_in_flight` (at most 5) idempotent batches are under way at once; one without a producer id goes
        alone. The first batch goes alone too: a partition takes any sequence from a producer id it does not know, so
        until it knows this one it would take the second batch although the first failed. After a failure everything not
        acknowledged is sent again in order. Acks: -1.

        Raises what `produce` raises; batches after the one that failed may or may not be written then.
        """
        target = _Target(topic, partition, timeout_ms)
        limit = max(1, min(max_in_flight, MAX_IN_FLIGHT))
        floor = await self._fetcher.list_offset(topic, partition, LATEST)
        window: deque[_Sent] = deque()
        known: tuple[int, int] | None = None  # the producer id and epoch that wrote the last acknowledged batch
        following: asyncio.Task[Buffer | None] | None = _next(batches)
        try:
            while window or following is not None:
                room = len(window) < limit and known is not None and not any(_failed(sent) for sent in window)
                if following is not None and (room or not window):
                    head = [window[0].answer] if window else []
                    await asyncio.wait([following, *head], return_when=asyncio.FIRST_COMPLETED)
                    if following.done():
                        batch = following.result()
                        if batch is None:
                            following = None
                            continue
                        if not window or _producer(batch) == known:
                            window.append(await self._send(target, batch))
                            following = _next(batches)
                            continue
                offset = await self._settle(target, window, floor)
                known = _producer(window.popleft().batch)
                floor = max(floor, offset + 1)
                yield offset
        finally:
            tasks = [*([following] if following else []), *(sent.answer for sent in window)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def init_producer_id(self) -> tuple[int, int]:
        """A new (producer id, epoch) for idempotent batches. Raises BrokerUnavailable, BrokerRefused."""
        patience = Patience(self._pool.limits, "get a producer id")
        while True:
            try:
                node = self._pool.any_node()
                answer = await self._pool.send(node, 0, protocol.init_producer_id())
                if answer.code in protocol.RETRIABLE:
                    raise Trouble(f"{self._pool.name(node)} says {Code.name_of(answer.code)}")
            except Trouble as trouble:
                await patience.wait(trouble)
                continue
            if answer.code != Code.NONE:
                raise BrokerRefused(
                    f"{self._pool.name(node)} gives no producer id: {Code.name_of(answer.code)}.",
                    hint="Give the user the ACL IDEMPOTENT_WRITE on the cluster, or WRITE on any topic.",
                )
            return answer.producer_id, answer.producer_epoch

    # ---- one batch

    async def _send(self, target: _Target, batch: Buffer) -> _Sent:
        """Write the request now, if the leader can be reached; else the trouble is the answer."""
        loop = asyncio.get_running_loop()
        try:
            answer = await self._post(target, batch, acks=-1, newer_than=-1.0)
        except Trouble as trouble:
            return _Sent(batch, loop.create_task(_raise(trouble)))
        task = loop.create_task(_await(answer))
        await asyncio.sleep(0)  # a task cancelled before it runs would leave the answer without a reader
        return _Sent(batch, task)

    async def _post(self, target: _Target, batch: Buffer, *, acks: int, newer_than: float) -> Awaitable[int]:
        topic, partition = target.topic, target.partition
        leader = await self._pool.leader(topic, partition, newer_than=newer_than)
        call = protocol.produce(topic, partition, batch, acks=acks, timeout_ms=target.timeout_ms)
        answer = await self._pool.post(leader.node, LANES + 1 + partition % LANES, call)
        return self._base_offset(target, batch, leader.node, answer)

    async def _base_offset(
        self, target: _Target, batch: Buffer, node: int, waiting: Awaitable[protocol.ProduceAnswer]
    ) -> int:
        answer = await waiting
        if answer.code == Code.NONE:
            return answer.base_offset
        if answer.code == Code.DUPLICATE_SEQUENCE_NUMBER:
            return -1
        if answer.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise _OutOfOrder(answer.reason)
        raise_for(answer.code, target.topic, target.partition, "write to", "WRITE", self._pool.name(node))
        raise self._refused(target, batch, answer.code, answer.reason)

    async def _until_acknowledged(
        self, target: _Target, batch: Buffer, trouble: Trouble | None, *, acks: int = -1
    ) -> int:
        patience = Patience(self._pool.limits, f"write to topic {target.topic!r} partition {target.partition}")
        newer_than = -1.0
        while True:
            if trouble is not None:
                newer_than = await patience.wait(trouble)
            try:
                return await (await self._post(target, batch, acks=acks, newer_than=newer_than))
            except Trouble as again:
                trouble = again

    # ---- the window

    async def _settle(self, target: _Target, window: deque[_Sent], floor: int) -> int:
        """The base offset of the first batch of the window, whatever it takes; the batches behind it are sent again if
        need be.
        """
        head = window[0]
        try:
            return await head.answer
        except Trouble as problem:
            trouble = problem
        except _OutOfOrder as error:
            return await self._read_back(target, head.batch, floor, str(error))
        # Let the others fail or arrive first: what is sent again must come behind what is still under way.
        await asyncio.wait([sent.answer for sent in window])
        try:
            offset = await self._until_acknowledged(target, head.batch, trouble)
        except _OutOfOrder as error:
            offset = await self._read_back(target, head.batch, floor, str(error))
        for index in range(1, len(window)):
            if _failed(window[index]):
                window[index] = await self._send(target, window[index].batch)
        return offset

    async def _read_back(self, target: _Target, batch: Buffer, floor: int, reason: str) -> int:
        """Where the log holds this batch already.

        A broker that was restarted remembers the last batch of a producer, not five, so it calls an older one that is
        sent again out of order although it has it (a producer snapshot holds the last sequence only; seen on 4.1 after
        a clean stop and after a kill).
        """
        producer_id, epoch, sequence = _PRODUCER.unpack_from(batch, 43)
        for found in await self._fetcher.written_by(target.topic, target.partition, producer_id, start=floor):
            if (found.producer_epoch, found.base_sequence) == (epoch, sequence):
                return found.base_offset
        raise self._refused(target, batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)

    def _refused(self, target: _Target, batch: Buffer, code: int, reason: str) -> ProduceRefused:
        producer = ""
        if len(batch) >= _HEADER_SIZE:
            producer_id, epoch, sequence = _PRODUCER.unpack_from(batch, 43)
            producer = f", sequence {sequence} of producer {producer_id} epoch {epoch}" if producer_id >= 0 else ""
        said = Code.name_of(code) + (f" ({reason})" if reason else "")
        return ProduceRefused(
            f"Topic {target.topic!r} partition {target.partition}: "
            f"a batch of {len(batch)} bytes{producer} was refused: {said}.",
            hint=_HINTS[Code(code)] if code in _HINTS else "The broker's log says more.",
        )


def _producer(batch: Buffer) -> tuple[int, int] | None:
    producer_id, epoch, _ = _PRODUCER.unpack_from(batch, 43)
    return (producer_id, epoch) if producer_id >= 0 else None


def _failed(sent: _Sent) -> bool:
    return sent.answer.done() and sent.answer.exception() is not None


def _next(batches: AsyncIterator[Buffer]) -> asyncio.Task[Buffer | None]:
    async def take() -> Buffer | None:
        with contextlib.suppress(StopAsyncIteration):
            return await anext(batches)
        return None

    return asyncio.get_running_loop().create_task(take())


async def _await(answer: Awaitable[int]) -> int:
    return await answer


async def _raise(trouble: Trouble) -> int:
    raise trouble
