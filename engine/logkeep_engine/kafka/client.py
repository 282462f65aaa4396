"""The data plane: raw batches in and out of a cluster, on one event loop.

    async with RawClient(connection) as client:
        async for fetched in client.stream("orders", 3, start, end):
            ...

Leaving a stream early? Wrap it in `contextlib.aclosing`, so that the fetch in flight ends there and then.

Nothing here looks inside a batch beyond its header; `log.batch` and `log.records` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka import protocol, transactions
from logkeep_engine.kafka.brokers import BrokerPool, Leader
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.fetch import Fetcher
from logkeep_engine.kafka.fetched import Fetched, WrittenBatch
from logkeep_engine.kafka.produce import Producer
from logkeep_engine.kafka.protocol import EARLIEST, LATEST
from logkeep_engine.kafka.retry import Patience, RetriableError, raise_for, refused
from logkeep_engine.kafka.survey import in_parts
from logkeep_engine.kafka.transactions import PaddingTransactions, PaddingTurns

__all__ = ["Fetched", "Limits", "RawClient", "WrittenBatch"]

R = TypeVar("R")

_LOG_DIR_PARTITIONS = 5_000
_TOPICS_A_REQUEST = 500
_REQUESTS_AT_ONCE = 32
_NO_PARTITION = (1 << 31) - 1  # no topic has this many, and the request holds no batch either
_NO_TIME = 0  # a time-out that is refused before anything is looked up


class RawClient:
    """Fetches (see `Fetcher`) and produces (see `Producer`) many partitions at once over a few connections a broker.

    Entering the context connects: BrokerUnavailable if no bootstrap address can be reached within `limits.connect`,
    BrokerRefused if login or certificates are not accepted.
    """

    def __init__(self, connection: KafkaConnection, *, limits: Limits | None = None) -> None:
        self._pool = BrokerPool(connection, limits or connection.limits)
        self._fetcher = fetcher = Fetcher(self._pool)
        self._turns = PaddingTurns()
        self.fetch = fetcher.fetch
        self.stream = fetcher.stream
        self.written_by = fetcher.written_by
        self.local_start = fetcher.local_start
        self.epoch_end = fetcher.epoch_end
        producer = Producer(self._pool, fetcher)
        self.only_while = producer.only_while
        self.produce = producer.produce
        self.produce_many = producer.produce_many
        self.init_producer_id = producer.init_producer_id

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

    def transactions(self, transactional_id: str, topic: str, partition: int) -> PaddingTransactions:
        """Transactions that move the end of a partition's log on."""
        return PaddingTransactions(self._pool, transactional_id, topic, partition, self._turns)

    async def start_offset(self, topic: str, partition: int) -> int:
        """Return the log start offset."""
        return await self._fetcher.list_offset(topic, partition, EARLIEST)

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """Return the high watermark, or with `committed` the last stable offset."""
        return await self._fetcher.list_offset(topic, partition, LATEST, committed=committed)

    async def log_end(self, topic: str, partition: int) -> int:
        """Return the end of the leader's log. Unlike the high watermark it is not a lower after a change of leaders,
        and counts what followers do not have yet.
        """
        return (await self.epoch_end(topic, partition)).end_offset

    async def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Let the log start at offset `before`, which is not after its high watermark. Harmless when done again.

        Needs the ACL DELETE on the topic. Raises TopicGone, BrokerUnavailable, BrokerRefused.
        """
        what = "remove records of"

        async def ask(leader: Leader) -> None:
            answer = await self._pool.send(leader.node, 0, protocol.delete_records(topic, partition, before))
            broker = self._pool.name(leader.node)
            raise_for(answer.code, topic, partition, what, "DELETE", broker)
            if answer.code == Code.OFFSET_OUT_OF_RANGE:  # a new leader starts with a high watermark of before
                raise RetriableError(f"{broker} says OFFSET_OUT_OF_RANGE")
            if answer.code != Code.NONE:
                raise refused(answer.code, topic, partition, what, broker)

        await self._pool.ask_leader(topic, partition, what, ask)

    # ---- what the user may do: a broker looks at the rights first, and refuses these requests for another reason

    async def may_delete_records(self, topic: str) -> bool:
        """Return whether the user may remove records of a topic that need not be there. Raises BrokerUnavailable."""
        call = protocol.delete_records(topic, 0, 0)
        answer = await self._ask_any(f"ask for the rights on topic {topic!r}", call)
        return answer.code != Code.TOPIC_AUTHORIZATION_FAILED

    async def unwritable(self, topics: Sequence[str]) -> list[str]:
        """Return the topics among these, whether they exist or not, to which the user may not write. Raises
        BrokerUnavailable."""
        found: list[str] = []
        for part in in_parts(topics, _TOPICS_A_REQUEST):
            call = protocol.produce([(topic, _NO_PARTITION, ()) for topic in part], acks=-1, timeout_ms=1000)
            answers = (await self._ask_any("ask for the right to write", call)).partitions
            found += [topic for (topic, _), answer in answers.items() if answer.code == Code.TOPIC_AUTHORIZATION_FAILED]
        return sorted(found)

    async def unreadable(self, topics: Sequence[str]) -> list[str]:
        """Return the topics among these, whether they exist or not, that the user may not read. Raises
        BrokerUnavailable."""

        async def may_read(topic: str) -> bool:
            call = protocol.fetch(
                topic, None, _NO_PARTITION, -1, 0, max_bytes=1, max_wait_ms=0, min_bytes=0, committed=True
            )
            answer = await self._ask_any("ask for the right to read", call)
            return answer.code != Code.TOPIC_AUTHORIZATION_FAILED

        found: list[str] = []
        for part in in_parts(topics, _REQUESTS_AT_ONCE):
            answers = await asyncio.gather(*map(may_read, part))
            found += [topic for topic, readable in zip(part, answers, strict=True) if not readable]
        return sorted(found)

    async def may_use_transaction(self, transactional_id: str) -> bool:
        """Return whether the user may write transactions of this id. Raises BrokerUnavailable."""
        call = transactions.init_producer_id(transactional_id, _NO_TIME)
        answer = await self._ask_any("ask for the right to write transactions", call)
        return answer.code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    async def _ask_any(self, what: str, call: Call[R]) -> R:
        """Ask some broker, and again as long as the limits allow."""
        patience = self.patience(what)
        while True:
            try:
                return await self._pool.send(self._pool.any_node(), 0, call)
            except RetriableError as trouble:
                await patience.wait(trouble)

    def patience(self, what: str) -> Patience:
        """Waits between attempts of the caller's own, as long as the connection's limits allow."""
        return Patience(self._pool.limits, what)

    async def replica_bytes(self, broker: int, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], int]:
        """Bytes on disk of the replicas that `broker` holds of `partitions`; those it does not hold are absent.

        Raises BrokerUnavailable, and BrokerRefused without the ACL DESCRIBE on the cluster.
        """
        sizes: dict[tuple[str, int], int] = {}
        for part in _parts(partitions, _LOG_DIR_PARTITIONS):
            sizes |= await self._log_dirs(broker, part)
        return sizes

    async def _log_dirs(self, broker: int, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], int]:
        patience = Patience(self._pool.limits, f"ask broker {broker} for the size of its partitions")
        while True:
            try:
                answer = await self._pool.send(broker, 0, protocol.describe_log_dirs(partitions))
            except RetriableError as trouble:
                await patience.wait(trouble)
                continue
            if not answer.codes or Code.CLUSTER_AUTHORIZATION_FAILED in answer.codes:
                raise BrokerRefused(
                    f"{self._pool.name(broker)} does not report the size of its partitions.",
                    hint="Give the user the ACL DESCRIBE on the cluster.",
                )
            return answer.sizes


def _parts(partitions: Mapping[str, Sequence[int]], most: int) -> list[dict[str, list[int]]]:
    parts: list[dict[str, list[int]]] = [{}]
    room = most
    for topic, numbers in partitions.items():
        for number in numbers:
            if room == 0:
                parts.append({})
                room = most
            parts[-1].setdefault(topic, []).append(number)
            room -= 1
    return [part for part in parts if part]
