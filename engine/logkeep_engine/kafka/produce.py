"""Raw record batches to a partition's leader, each exactly once and in order.

That holds for idempotent batches (producer id, epoch and sequence set): a batch whose answer got lost is looked for in
the log (`read_back`), and sent again if it is not there. Batches without a producer id may be written twice after a
lost answer.

Batches that several partitions have ready at the same moment for one connection go in one request, since a request
costs client and broker more than a small batch in it. Each partition's answer is handled on its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from logkeep_engine.errors import BrokerRefused, LogkeepError, ProduceRefused
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.batch_queue import Batch, BatchQueue
from logkeep_engine.kafka.brokers import LANES, BrokerPool, Leader
from logkeep_engine.kafka.codes import RETRIABLE, Code
from logkeep_engine.kafka.encoding import Buffer
from logkeep_engine.kafka.fetch import Fetcher
from logkeep_engine.kafka.protocol import LATEST
from logkeep_engine.kafka.read_back import ReadBack, WrittenLaterError
from logkeep_engine.kafka.retry import Patience, RetriableError, raise_for
from logkeep_engine.log.batch import HEADER_SIZE

MAX_IN_FLIGHT = 5  # a broker remembers the last five batches of a producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)
DEFAULT_TIMEOUT_MS = 30_000  # less than `Limits.request`: the broker's own answer comes first
# The size of one request, far below socket.request.max.bytes (100 MiB). A larger one would save nothing more, and hold
# up the answers to its first batches until the last is written. A batch that is larger goes alone.
REQUEST_BYTES = 1 << 20
_REQUESTS_IN_FLIGHT = 5  # on one connection; what comes meanwhile waits, and goes together

_PRODUCER = struct.Struct(">qhi")  # id, epoch, base sequence
_LAST_OFFSET_DELTA = struct.Struct(">i")  # at byte 23 of a batch

_HINTS = {
    Code.OUT_OF_ORDER_SEQUENCE_NUMBER: "Another task wrote with this producer id, or an earlier batch is missing: "
    "read back what it holds before you continue.",
    Code.INVALID_PRODUCER_EPOCH: "A newer holder of this producer id has written to the partition.",
    Code.PRODUCER_FENCED: "A newer holder of this producer id has written to the partition.",
    Code.UNKNOWN_PRODUCER_ID: "The broker has forgotten this producer id (producer.id.expiration.ms).",
    Code.MESSAGE_TOO_LARGE: "Raise max.message.bytes of the topic to the size of the batch.",
    Code.RECORD_LIST_TOO_LARGE: "Raise segment.bytes of the topic above the size of the batch.",
    Code.INVALID_TIMESTAMP: "Widen message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic.",
    Code.INVALID_RECORD: "A broker takes one batch with base offset 0 and no gaps; a compacted topic requires keys.",
    Code.CORRUPT_MESSAGE: "The bytes changed on their way, or the CRC was not computed again after a change.",
    Code.INVALID_TXN_STATE: "A transactional batch belongs inside its transaction: clear its transactional bit.",
    Code.UNSUPPORTED_COMPRESSION_TYPE: "The broker is too old for the compression of this batch.",
    Code.UNSUPPORTED_FOR_MESSAGE_FORMAT: "The topic has an old message format.",
}


@dataclass(frozen=True, slots=True)
class _Target:
    topic: str
    partition: int
    timeout_ms: int
    acks: int = -1
    small: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition


@dataclass(slots=True)
class _Sent:
    """A batch under way; `answer` is its base offset."""

    target: _Target
    batch: tuple[Buffer, ...]
    answer: asyncio.Future[int]

    @property
    def size(self) -> int:
        return sum(len(piece) for piece in self.batch)

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


Confirm = Callable[[Leader], Awaitable[None]]
Permit = Callable[[], Awaitable[None]]


class _Guard:
    """Lets the first batch pass to a leader of another epoch only when none is under way to the one before, and after
    `confirm`.

    A leader that does not know a producer id takes any sequence of it. So a batch that reached a leader without those
    before it would hide that they are missing.
    """

    def __init__(self, confirm: Confirm | None) -> None:
        self._confirm = confirm
        self._epoch: int | None = None

    async def check(self, leader: Leader, *, alone: bool) -> None:
        """Raises RetriableError if the batch has to wait, and what `confirm` raises."""
        if leader.epoch == self._epoch:
            return
        if self._epoch is not None and leader.epoch < self._epoch:
            raise RetriableError(
                f"a broker knows only the leader of epoch {leader.epoch}, but there was one of {self._epoch}"
            )
        if not alone:
            raise RetriableError("the partition has another leader")
        if self._confirm is not None:
            await self._confirm(leader)
        self._epoch = leader.epoch


class _OutOfOrder(Exception):
    """OUT_OF_ORDER_SEQUENCE_NUMBER. A broker answers it to a batch after one that failed, and to a batch that it has
    already but no longer remembers.
    """


class _Outbox:
    """Batches on their way over one connection, in the order of `put`. A request takes one waiting batch of each
    partition, since brokers accept no more, and up to REQUEST_BYTES.
    """

    def __init__(self, pool: BrokerPool, node: int, lane: int, permit: Permit) -> None:
        self._pool = pool
        self._node = node
        self._lane = lane
        self._permit = permit
        self._waiting: deque[_Sent] = deque()
        self._room = asyncio.Semaphore(_REQUESTS_IN_FLIGHT)
        self._posting: asyncio.Task[None] | None = None
        self._answers: set[asyncio.Task[None]] = set()

    def put(self, sent: _Sent) -> None:
        self._waiting.append(sent)
        if self._posting is None:
            # It runs when what is ready now has been put.
            self._posting = asyncio.get_running_loop().create_task(self._post_all())

    async def _post_all(self) -> None:
        try:
            while self._waiting:
                await self._room.acquire()
                request = self._take()
                waiting = await self._post(request) if request else None
                if waiting is None:
                    self._room.release()
                    continue
                task = asyncio.get_running_loop().create_task(self._hand_out(request, waiting))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
                await asyncio.sleep(0)  # a task cancelled before it runs would leave the answer without a reader
        finally:
            self._posting = None

    def _take(self) -> list[_Sent]:
        """Return the batches of the next request. Those that their callers have given up meanwhile are dropped."""
        taken: list[_Sent] = []
        left: deque[_Sent] = deque()
        keys: set[tuple[str, int]] = set()
        size = 0
        while self._waiting:
            sent = self._waiting.popleft()
            if sent.answer.done():
                continue
            alike = not taken or (sent.target.acks, sent.target.timeout_ms) == (
                taken[0].target.acks,
                taken[0].target.timeout_ms,
            )
            if taken and (size + sent.size > REQUEST_BYTES or not alike):
                left.append(sent)
                break
            if sent.target.key in keys:
                left.append(sent)
                continue
            keys.add(sent.target.key)
            taken.append(sent)
            size += sent.size
        self._waiting.extendleft(reversed(left))
        return taken

    async def _post(self, request: list[_Sent]) -> Awaitable[protocol.ProduceAnswers] | None:
        first = request[0].target
        call = protocol.produce(
            [(*sent.target.key, sent.batch) for sent in request], acks=first.acks, timeout_ms=first.timeout_ms
        )
        try:
            await self._permit()
            return await self._pool.post(self._node, self._lane, call)
        except Exception as error:
            for sent in request:
                self._fail(sent, error)
            return None
        except BaseException:
            for sent in request:
                sent.answer.cancel()
            raise

    async def _hand_out(self, request: list[_Sent], waiting: Awaitable[protocol.ProduceAnswers]) -> None:
        """Wait for the answer to a request, and give each batch its own part of it."""
        try:
            answers = await waiting
        except Exception as error:
            for sent in request:
                self._fail(sent, error)
        except BaseException:
            for sent in request:
                sent.answer.cancel()
            raise
        else:
            for sent in request:
                try:
                    offset = self._base_offset(sent, answers.partitions.get(sent.target.key))
                except Exception as error:
                    self._fail(sent, error)
                else:
                    if not sent.answer.done():
                        sent.answer.set_result(offset)
        finally:
            self._room.release()

    def _base_offset(self, sent: _Sent, answer: protocol.ProduceAnswer | None) -> int:
        name = self._pool.name(self._node)
        if answer is None:
            raise RetriableError(f"{name} did not include the partition in its answer")
        if answer.code == Code.NONE:
            return answer.base_offset
        if answer.code == Code.DUPLICATE_SEQUENCE_NUMBER:
            return -1
        if answer.code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            raise _OutOfOrder(answer.reason)
        raise_for(answer.code, sent.target.topic, sent.target.partition, "write to", "WRITE", name)
        raise _refused(sent.target, sent.batch, answer.code, answer.reason)

    def _fail(self, failed: _Sent, error: Exception) -> None:
        """Fail a batch and those that wait after it: they would be out of order, and are sent again after it."""
        failed.fail(error)
        for sent in self._waiting:
            if sent.target.key == failed.target.key:
                sent.fail(RetriableError("an earlier batch of the partition failed"))


class Producer:
    """Writes through a `BrokerPool`.

    Many partitions at once are fine; one partition takes one writer of a producer id at a time.
    """

    def __init__(self, pool: BrokerPool, fetcher: Fetcher) -> None:
        self._pool = pool
        self._fetcher = fetcher
        self._read_back = ReadBack(fetcher)
        self._outboxes: dict[tuple[int, int], _Outbox] = {}
        self._permit: Permit = _permit_all

    def only_while(self, permit: Permit) -> None:
        """From the first batch on ask `permit` before each request, right before: batches may have waited for long. It
        raises if this process must send none."""
        self._permit = permit

    async def produce(
        self, topic: str, partition: int, batch: Batch, *, acks: int = -1, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> int:
        """Write one batch (base offset 0 in its header, as brokers require it) and return the base offset it got.

        Leader changes, restarts and lost answers are waited out by sending the same bytes again. -1 is returned for a
        batch that a broker recognises as written before without saying where (DUPLICATE_SEQUENCE_NUMBER). `acks` is -1
        or 1.

        Raises ProduceRefused, TopicGone, BrokerUnavailable, BrokerRefused.
        """
        if acks not in (-1, 1):
            raise ValueError(f"acks={acks}: only -1 and 1 are answered by a broker")
        target = _Target(topic, partition, timeout_ms, acks)
        pieces = _buffers(batch)
        try:
            return await self._until_acknowledged(target, pieces)
        except _OutOfOrder as error:
            raise _refused(target, pieces, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "") from error

    async def produce_many(
        self,
        topic: str,
        partition: int,
        batches: BatchQueue,
        *,
        floor: int | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        confirm: Confirm | None = None,
        small: bool = False,
        contested: bool = False,
    ) -> AsyncGenerator[int, None]:
        """Write batches in order and yield the base offset of each, in order, when all replicas in sync have it.

        Up to MAX_IN_FLIGHT idempotent batches are under way at once; one without a producer id goes alone. The first
        batch goes alone too: a partition takes any sequence from a producer id it does not know, so until it knows this
        one it would take the second batch although the first failed. After a failure everything not acknowledged is
        sent again in order, unless it is in the log. Acks: -1. `floor`: an offset below which none of the batches can
        be; by default the partition's end. `confirm` is asked before the first batch goes to a leader, and again before
        one goes to a leader of another epoch: nothing is sent to it unless it returns, and what it raises ends all.
        `small`: the batches are small, so they share a connection, and requests, with those of other such partitions.
        Every call for a partition must say the same. `contested`: another producer may send these very batches, so what
        lies in front of each is looked at.

        Raises what `produce` raises, and TargetChanged if a batch is there twice; batches after the one that failed may
        or may not be written then.
        """
        target = _Target(topic, partition, timeout_ms, small=small)
        guard = _Guard(confirm)
        if floor is None:
            floor = await self._fetcher.list_offset(topic, partition, LATEST)
        window: deque[_Sent] = deque()
        known: tuple[int, int] | None = None  # the producer id and epoch that wrote the last acknowledged batch
        opening = asyncio.get_running_loop().create_task(self._open(target))
        try:
            while window or not batches.over:
                room = len(window) < MAX_IN_FLIGHT and known is not None and not any(_failed(sent) for sent in window)
                if room or not window:
                    if batches.ready:
                        if not window or _producer(_buffers(batches.ready[0])) == known:
                            batch = _buffers(batches.ready.popleft())
                            window.append(await self._send(target, guard, batch, alone=not window))
                            continue
                    elif not batches.ended:
                        head = window[0].answer if window else None
                        if head is None or not head.done():
                            await batches.wait(head)
                            continue
                offset = await self._acknowledged(target, guard, window, floor, contested=contested)
                batch = window.popleft().batch
                known = _producer(batch)
                if offset >= 0:
                    floor = offset + int(_LAST_OFFSET_DELTA.unpack_from(batch[0], 23)[0]) + 1
                yield offset
        finally:
            for sent in window:
                sent.answer.cancel()
            opening.cancel()
            await asyncio.gather(opening, *(sent.answer for sent in window), return_exceptions=True)

    async def init_producer_id(self) -> tuple[int, int]:
        """Return a new (producer id, epoch) for idempotent batches. Raises BrokerUnavailable, BrokerRefused."""
        patience = Patience(self._pool.limits, "get a producer id")
        while True:
            try:
                node = self._pool.any_node()
                answer = await self._pool.send(node, 0, protocol.init_producer_id())
                if answer.code in RETRIABLE:
                    raise RetriableError(f"{self._pool.name(node)} says {Code.name_of(answer.code)}")
            except RetriableError as trouble:
                await patience.wait(trouble)
                continue
            if answer.code != Code.NONE:
                raise BrokerRefused(
                    f"{self._pool.name(node)} returned no producer id: {Code.name_of(answer.code)}.",
                    hint="Give the user the ACL IDEMPOTENT_WRITE on the cluster, or WRITE on any topic.",
                )
            return answer.producer_id, answer.producer_epoch

    # ---- one batch

    async def _open(self, target: _Target) -> None:
        """Open the connection of the partition while its first batch is made. What goes wrong is reported when that is
        sent.
        """
        with contextlib.suppress(RetriableError, LogkeepError):
            leader = await self._pool.leader(target.topic, target.partition)
            await self._pool.connected(leader.node, _lane(target))

    async def _send(
        self, target: _Target, guard: _Guard, batch: tuple[Buffer, ...], newer_than: float = -1.0, *, alone: bool
    ) -> _Sent:
        """Put the batch on its way. If the leader is not known, the answer is that trouble. `alone`: no other batch is
        under way.
        """
        sent = _Sent(target, batch, asyncio.get_running_loop().create_future())
        try:
            leader = await self._pool.leader(target.topic, target.partition, newer_than=newer_than)
            await guard.check(leader, alone=alone)
        except RetriableError as trouble:
            sent.fail(trouble)
            return sent
        lane = _lane(target)
        outbox = self._outboxes.get((leader.node, lane))
        if outbox is None:
            outbox = self._outboxes[leader.node, lane] = _Outbox(self._pool, leader.node, lane, self._permit)
        outbox.put(sent)
        return sent

    async def _until_acknowledged(self, target: _Target, batch: tuple[Buffer, ...]) -> int:
        patience = self._patience(target)
        guard, newer_than = _Guard(None), -1.0
        while True:
            try:
                return await (await self._send(target, guard, batch, newer_than, alone=True)).answer
            except RetriableError as trouble:
                newer_than = await patience.wait(trouble)

    # ---- the window

    async def _acknowledged(
        self, target: _Target, guard: _Guard, window: deque[_Sent], floor: int, *, contested: bool
    ) -> int:
        """Return the base offset of the first batch of the window, once it is known to be there. If it has to be sent
        again, those after it that failed have to be, too: each goes alone, when it is the first.
        """
        head = window[0]
        try:
            offset = await head.answer
        except RetriableError as trouble:
            # Let the others fail or arrive first: what is sent again must come after what is still under way.
            await asyncio.wait([sent.answer for sent in window])
            offset = await self._sent_again(target, guard, head.batch, floor, trouble)
            contested = True
            for index in range(1, len(window)):
                if _failed(window[index]):
                    window[index] = _Sent(target, window[index].batch, asyncio.get_running_loop().create_future())
                    window[index].fail(RetriableError("an earlier batch of the partition failed"))
        except _OutOfOrder as error:
            # A producer snapshot holds the last sequence only, so a broker that was restarted calls an older batch
            # that is sent again out of order, although it has it (seen on 4.1 after a clean stop and after a kill).
            return await self._found(target, head.batch, floor, str(error))
        if contested and offset > floor:
            await self._read_back.check_none(target.key, _PRODUCER.unpack_from(head.batch[0], 43)[0], floor, offset)
        return offset

    async def _sent_again(
        self, target: _Target, guard: _Guard, batch: tuple[Buffer, ...], floor: int, trouble: RetriableError
    ) -> int:
        """Return the base offset of a batch that may have been written. It is sent again only where it is not in the
        log: a broker that has forgotten the producer id would take it once more.
        """
        patience = self._patience(target)
        while True:
            newer_than = await patience.wait(trouble)
            try:
                await self._pool.leader(*target.key, newer_than=newer_than)
                offset = await self._read_back.find(target.key, _PRODUCER.unpack_from(batch[0], 43), floor)
                if offset is None:
                    offset = await (await self._send(target, guard, batch, newer_than, alone=True)).answer
                return offset
            except RetriableError as again:
                trouble = again
            except WrittenLaterError as error:
                raise _refused(target, batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, str(error)) from error
            except _OutOfOrder as error:
                return await self._found(target, batch, floor, str(error))

    async def _found(self, target: _Target, batch: tuple[Buffer, ...], floor: int, reason: str) -> int:
        """Return the base offset of a batch that the log must hold already. Raises ProduceRefused if it does not."""
        offset = await self._read_back.look(target.key, _PRODUCER.unpack_from(batch[0], 43), floor)
        if offset is None:
            raise _refused(target, batch, Code.OUT_OF_ORDER_SEQUENCE_NUMBER, reason)
        return offset

    def _patience(self, target: _Target) -> Patience:
        return Patience(self._pool.limits, f"write to topic {target.topic!r} partition {target.partition}")


async def _permit_all() -> None:
    pass


def _lane(target: _Target) -> int:
    """Return the connection of a partition. It is always the same one: that keeps its batches in order."""
    if target.small:
        return LANES + 1
    # With the name in it, since many topics have a partition 0 and no other.
    return LANES + 1 + (zlib.crc32(target.topic.encode()) + target.partition) % LANES


def _refused(target: _Target, batch: tuple[Buffer, ...], code: int, reason: str) -> ProduceRefused:
    producer = ""
    if len(batch[0]) >= HEADER_SIZE:
        producer_id, epoch, sequence = _PRODUCER.unpack_from(batch[0], 43)
        producer = f", sequence {sequence} of producer {producer_id} epoch {epoch}" if producer_id >= 0 else ""
    said = Code.name_of(code) + (f" ({reason})" if reason else "")
    return ProduceRefused(
        f"Topic {target.topic!r} partition {target.partition}: "
        f"a batch of {sum(len(piece) for piece in batch)} bytes{producer} was refused: {said}.",
        hint=_HINTS[Code(code)] if code in _HINTS else "See the broker's log.",
    )


def _buffers(batch: Batch) -> tuple[Buffer, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _producer(batch: tuple[Buffer, ...]) -> tuple[int, int] | None:
    producer_id, epoch, _ = _PRODUCER.unpack_from(batch[0], 43)
    return (producer_id, epoch) if producer_id >= 0 else None


def _failed(sent: _Sent) -> bool:
    return sent.answer.done() and sent.answer.exception() is not None
