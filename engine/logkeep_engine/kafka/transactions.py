"""Transactions that move the end of one partition's log on: what they write, readers of committed records never see.

    transactions = client.transactions("logkeep-71", "orders", 3)
    await transactions.hold()               # what an earlier holder of the id has begun is over
    await transactions.write([])            # one offset: the marker alone
    await transactions.write([9, 5])        # fifteen offsets: two aborted batches, and their marker

A broker writes a marker some time after the transaction has ended, and once more if the coordinator did not hear of it:
a connection broke, an answer took long, or the coordinator itself died. So `write` and `fence` return when the
coordinator says that the transaction is complete: from then on nothing of it will come into the log any more. Between
two calls no transaction is open, and so none times out. A request that is still on its way could open one later: after
an answer that did not come the id is fenced.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1. The versions used are
those in which a producer names the partitions of a transaction itself, so that one may have no records.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import LANES, BrokerPool
from logkeep_engine.kafka.codes import GONE, RETRIABLE, Code
from logkeep_engine.kafka.encoding import Call, Reader, pack_array, pack_string, pack_uvarint
from logkeep_engine.kafka.positions import TRANSACTION, find_coordinator
from logkeep_engine.kafka.protocol import ProducerIdAnswer
from logkeep_engine.kafka.retry import Patience, RetriableError, raise_for
from logkeep_engine.log.padding import padding_batch

T = TypeVar("T")
A = TypeVar("A", bound="Answer")

TIMEOUT_MS = 60_000
"""The default of Kafka's own producers, which every cluster takes (transaction.max.timeout.ms)."""

_SEQUENCES = 1 << 31  # after the highest int32, sequences begin again at 0
_IN_FLIGHT = 5  # a broker remembers the last five batches of a producer, so it recognizes these when sent again
_SECONDS_OF_WRITING = TIMEOUT_MS / 1000 / 4  # then a transaction ends with what it has
_AT_ONCE = 2  # transactions with padding that write to one leader; a broker unpacks some million records a second
_SMALL = 1_000  # padding that needs no turn
_LANES = 2  # connections to each broker for padding alone
_PAUSE = 0.001  # a coordinator that is well completes a transaction within some milliseconds
_LONGEST_PAUSE = 0.1
_BEGUN = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
# The transaction is not ours any more: another holder of the id has fenced this one, or it took longer than its limit.
_OVER = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
        Code.INVALID_TXN_STATE,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.TRANSACTIONAL_ID_NOT_FOUND,
        Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
        Code.UNKNOWN_PRODUCER_ID,
    }
)


class Answer(Protocol):
    """The answer of a coordinator."""

    @property
    def code(self) -> int: ...


class TransactionOver(Exception):
    """The transaction has ended without us, or it is not known how far it has come: `fence`, and look at the log."""


class PaddingTurns:
    """The turns of partitions that pad much to write to a leader, so that no transaction waits for the others until it
    times out."""

    def __init__(self) -> None:
        self._rooms: dict[int, asyncio.Semaphore] = {}

    def of(self, node: int, records: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the turn of a partition that this broker leads."""
        if records <= _SMALL:
            return contextlib.nullcontext()
        return self._rooms.setdefault(node, asyncio.Semaphore(_AT_ONCE))


class PaddingTransactions:
    """The transactions of one transactional id in one partition, one after another. Needs no closing."""

    def __init__(
        self, pool: BrokerPool, transactional_id: str, topic: str, partition: int, turns: PaddingTurns
    ) -> None:
        self._pool = pool
        self._turns = turns
        self._id = transactional_id
        self._topic = topic
        self._partition = partition
        self._coordinator: int | None = None
        self._producer: tuple[int, int] | None = None
        self._sequence = 0

    async def fence(self) -> None:
        """End what any holder of the id has begun, and let no earlier holder continue.

        Raises BrokerUnavailable, BrokerRefused.
        """
        self._producer = None
        answer = await self._ask(lambda: init_producer_id(self._id, TIMEOUT_MS), "get a producer id for")
        if answer.code == Code.INVALID_TRANSACTION_TIMEOUT:
            raise BrokerRefused(
                f"The cluster does not accept transactions of {TIMEOUT_MS // 1000} s: INVALID_TRANSACTION_TIMEOUT.",
                hint=f"Set transaction.max.timeout.ms of the brokers to {TIMEOUT_MS} or more.",
            )
        if answer.code != Code.NONE:
            raise BrokerRefused(
                f"The coordinator of transaction {self._id!r} says {Code.name_of(answer.code)}.",
                hint="See the broker's log.",
            )
        self._producer = (answer.producer_id, answer.producer_epoch)
        self._sequence = 0

    async def hold(self) -> None:
        """Fence, unless this holder has done so and knows of no other that has fenced it since. A caller that then asks
        for the log's end knows that `write` adds to it only if no other has written transactions in the meantime.

        Raises as `fence`.
        """
        if self._producer is None:
            await self.fence()

    async def write(self, sizes: Sequence[int]) -> int:
        """Add a transaction to the log: batches of this many empty records and the marker that aborts them, or without
        sizes a marker alone. Returns how many offsets it takes, when all of it is in the log, and nothing more of it
        will come. It takes fewer than asked for if the broker is slow: it must end before it times out.

        Raises TransactionOver if nothing is held, or if it may be there in part only, TopicGone, BrokerUnavailable,
        BrokerRefused.
        """
        try:
            leader = await self._pool.leader(self._topic, self._partition)
            async with self._turns.of(leader.node, sum(sizes)):
                await self._begin()
                written = await self._write(sizes)
            await self._end(commit=not sizes)
            await self._complete()
        except RetriableError as trouble:
            self._producer = None
            raise TransactionOver(trouble.reason) from trouble
        except BaseException:
            self._producer = None
            raise
        return written + 1

    # ---- the steps

    async def _begin(self) -> None:
        """Begin the transaction. It is not begun again without an answer: the first request could come later still,
        and open it when it has ended.
        """
        where = (self._topic, self._partition)
        answer = await self._ask(
            lambda: add_partition(self._id, *self._held, *where), "add a partition to", may_repeat=False
        )
        raise_for(answer.code, *where, "write to", "WRITE", "")
        self._check(answer.code)

    async def _write(self, sizes: Sequence[int]) -> int:
        """Send the batches, all on one connection, so that they come in their order. Returns how many records were
        written: those that there was time for."""
        producer_id, epoch = self._held
        leader = await self._pool.leader(self._topic, self._partition)
        until = asyncio.get_running_loop().time() + _SECONDS_OF_WRITING
        written = 0
        waiting: list[Awaitable[protocol.ProduceAnswers]] = []
        try:
            for size in sizes:
                if written and asyncio.get_running_loop().time() > until:
                    break
                batch = padding_batch(
                    size, producer_id=producer_id, producer_epoch=epoch, base_sequence=self._sequence % _SEQUENCES
                )
                self._sequence += size
                call = protocol.produce(
                    [(self._topic, self._partition, batch)],
                    acks=-1,
                    timeout_ms=TIMEOUT_MS // 2,
                    transactional_id=self._id,
                )
                waiting.append(asyncio.ensure_future(await self._pool.post(leader.node, self._lane, call)))
                written += size
                if len(waiting) >= _IN_FLIGHT:
                    self._check_written(await waiting.pop(0))
            while waiting:
                self._check_written(await waiting.pop(0))
        finally:
            await asyncio.gather(*waiting, return_exceptions=True)
        return written

    @property
    def _lane(self) -> int:
        """The connection of the padding: one that neither small questions nor records wait for."""
        return 2 * LANES + 1 + (zlib.crc32(self._topic.encode()) + self._partition) % _LANES

    def _check_written(self, answers: protocol.ProduceAnswers) -> None:
        answer = answers.partitions.get((self._topic, self._partition))
        if answer is None:
            raise RetriableError("a broker did not include the partition in its answer")
        raise_for(answer.code, self._topic, self._partition, "write to", "WRITE", "")
        self._check(answer.code)

    async def _end(self, *, commit: bool) -> None:
        self._check((await self._send(end_transaction(self._id, *self._held, commit=commit))).code)

    async def _complete(self) -> None:
        """Wait until the coordinator has noted that all markers are written."""
        patience = Patience(self._pool.limits, f"end the transaction {self._id!r}")
        pause = _PAUSE
        while True:
            try:
                answer = await self._send(describe_transaction(self._id))
                self._check(answer.code)
                if (answer.producer_id, answer.producer_epoch) != self._held:
                    raise TransactionOver("another holder of the transactional id has fenced this one")
                if answer.state not in _BEGUN:
                    return
            except RetriableError as trouble:
                await patience.wait(trouble)
                continue
            if pause > _LONGEST_PAUSE:
                await patience.wait(RetriableError(f"its coordinator says {answer.state}"))
                continue
            await asyncio.sleep(pause)
            pause *= 2

    # ---- the coordinator

    @property
    def _held(self) -> tuple[int, int]:
        if self._producer is None:
            raise TransactionOver("no producer id is held")
        return self._producer

    async def _ask(self, call: Callable[[], Call[A]], what: str, *, may_repeat: bool = True) -> A:
        """Return the coordinator's answer to a question, when it is one that does not pass. Without `may_repeat` the
        question is not put again after an answer that did not come: that is TransactionOver.
        """
        patience = Patience(self._pool.limits, f"{what} the transaction {self._id!r}")
        pause = _PAUSE
        while True:
            try:
                node = await self._asked_coordinator()
                try:
                    answer = await self._send_to(node, call())
                except RetriableError as trouble:
                    if may_repeat:
                        raise
                    raise TransactionOver(trouble.reason) from trouble
                code: int = answer.code
                if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                    self._check(code)
                if code == Code.CONCURRENT_TRANSACTIONS and pause <= _LONGEST_PAUSE:
                    await asyncio.sleep(pause)
                    pause *= 2
                    continue
                if code in RETRIABLE or code in GONE:  # it may not have heard of a topic that is new
                    self._coordinator = None
                    raise RetriableError(f"its coordinator says {Code.name_of(code)}", gone=code in GONE)
            except RetriableError as trouble:
                await patience.wait(trouble)
                continue
            return answer

    async def _send(self, call: Call[T]) -> T:
        """Ask the coordinator. Raises RetriableError, BrokerRefused."""
        return await self._send_to(await self._asked_coordinator(), call)

    async def _asked_coordinator(self) -> int:
        if self._coordinator is None:
            found = await self._pool.send(self._pool.any_node(), 0, find_coordinator(self._id, TRANSACTION))
            self._check(found.code)
            self._coordinator = found.node
        return self._coordinator

    async def _send_to(self, node: int, call: Call[T]) -> T:
        try:
            return await self._pool.send(node, 0, call)
        except RetriableError:
            self._coordinator = None
            raise

    def _check(self, code: int) -> None:
        if code == Code.NONE:
            return
        if code in _OVER:
            raise TransactionOver(Code.name_of(code))
        if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise id_refused(self._id)
        if code in RETRIABLE:
            self._coordinator = None
            raise RetriableError(f"the transaction {self._id!r}: {Code.name_of(code)}")
        raise BrokerRefused(
            f"The transaction {self._id!r} is refused: {Code.name_of(code)}.", hint="See the broker's log."
        )


def id_refused(transactional_id: str) -> BrokerRefused:
    """Return the error of a user who may not write transactions of this id."""
    return BrokerRefused(
        f"The user may not use the transactional id {transactional_id!r}, which `offsets: Same` needs.",
        hint="Give the user the ACL WRITE on the transactional ids with the prefix 'logkeep-'.",
    )


# ---- the requests


@dataclass(frozen=True, slots=True)
class TransactionAnswer:
    throttle_ms: int
    code: int


@dataclass(frozen=True, slots=True)
class TransactionState:
    """A transactional id as its coordinator knows it."""

    throttle_ms: int
    code: int
    state: str = ""
    producer_id: int = -1
    producer_epoch: int = -1


def init_producer_id(transactional_id: str, timeout_ms: int) -> Call[ProducerIdAnswer]:
    """Return a producer id and a new epoch for a transactional id; aborts what is open."""
    body = pack_string(transactional_id) + struct.pack(">i", timeout_ms)
    return Call(22, 1, (body,), lambda read: ProducerIdAnswer(read.int32(), read.int16(), read.int64(), read.int16()))


def add_partition(
    transactional_id: str, producer_id: int, epoch: int, topic: str, partition: int
) -> Call[TransactionAnswer]:
    """Begin a transaction with this partition."""
    body = pack_string(transactional_id) + struct.pack(">qh", producer_id, epoch)
    body += pack_array([pack_string(topic) + pack_array([struct.pack(">i", partition)])])

    def answer(read: Reader) -> TransactionAnswer:
        throttle, code = read.int32(), int(Code.NONE)
        for _ in range(read.int32()):
            read.string()
            for _ in range(read.int32()):
                read.int32()
                code = read.int16() or code
        return TransactionAnswer(throttle, code)

    return Call(24, 1, (body,), answer)


def end_transaction(transactional_id: str, producer_id: int, epoch: int, *, commit: bool) -> Call[TransactionAnswer]:
    """Commit or abort."""
    body = pack_string(transactional_id) + struct.pack(">qhb", producer_id, epoch, int(commit))
    return Call(26, 1, (body,), lambda read: TransactionAnswer(read.int32(), read.int16()))


def describe_transaction(transactional_id: str) -> Call[TransactionState]:
    """Return the state of a transactional id."""
    name = transactional_id.encode()
    body = b"\x02" + pack_uvarint(len(name) + 1) + name + b"\x00"  # one id: compact lengths are one more (KIP-482)

    def state(read: Reader, throttle: int) -> TransactionState:
        code = read.int16()
        read.compact_string()
        said = read.compact_string()
        read.int32()
        read.int64()
        return TransactionState(throttle, code, said, read.int64(), read.int16())

    def answer(read: Reader) -> TransactionState:
        throttle = read.int32()
        if read.uvarint() < 2:
            return TransactionState(throttle, Code.COORDINATOR_NOT_AVAILABLE)
        return state(read, throttle)

    return Call(65, 0, (body,), answer, flexible=True)
