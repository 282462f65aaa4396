"""The data plane: raw batches in and out of a cluster, on one event loop.

    async with RawClient(connection) as client:
        async for fetched in client.stream("orders", 3, start, end):
            ...

Leaving a stream early? Wrap it in `contextlib.aclosing`, so that the fetch in flight ends there and then.

Nothing here looks inside a batch beyond its header; `log.batch` and `log.records` do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import BrokerPool, Limits, Patience, Trouble
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.kafka.fetch import DEFAULT_MAX_BYTES, Fetched, Fetcher, WrittenBatch
from logkeep_engine.kafka.produce import DEFAULT_TIMEOUT_MS, MAX_IN_FLIGHT, Batch, Producer
from logkeep_engine.kafka.protocol import EARLIEST, LATEST, Code

__all__ = ["Fetched", "Limits", "RawClient", "WrittenBatch"]

_LOG_DIR_PARTITIONS = 5_000


class RawClient:
    """Fetches and produces many partitions at once over a few connections a broker.

    Entering the context connects: BrokerUnavailable if no bootstrap address can be reached within `limits.connect`,
    BrokerRefused if login or certificates are not accepted.
    """

    def __init__(self, connection: Connection, *, limits: Limits | None = None) -> None:
        self._pool = BrokerPool(connection, limits or Limits())
        self._fetcher = Fetcher(self._pool)
        self._producer = Producer(self._pool, self._fetcher)

    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._pool.__aexit__(kind, error, trace)

    async def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        topic_id: str | None = None,
        committed: bool = True,
    ) -> Fetched:
        """See `Fetcher.fetch`."""
        return await self._fetcher.fetch(
            topic,
            partition,
            offset,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            topic_id=topic_id,
            committed=committed,
        )

    def stream(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_wait_ms: int = 500,
        topic_id: str | None = None,
        sparing: bool = False,
    ) -> AsyncGenerator[Fetched, None]:
        """See `Fetcher.stream`."""
        return self._fetcher.stream(
            topic,
            partition,
            start,
            end,
            max_bytes=max_bytes,
            max_wait_ms=max_wait_ms,
            topic_id=topic_id,
            sparing=sparing,
        )

    async def written_by(
        self, topic: str, partition: int, producer_id: int, *, start: int = 0, end: int | None = None
    ) -> list[WrittenBatch]:
        """See `Fetcher.written_by`."""
        return await self._fetcher.written_by(topic, partition, producer_id, start=start, end=end)

    async def produce(
        self, topic: str, partition: int, batch: Batch, *, acks: int = -1, timeout_ms: int = DEFAULT_TIMEOUT_MS
    ) -> int:
        """See `Producer.produce`."""
        return await self._producer.produce(topic, partition, batch, acks=acks, timeout_ms=timeout_ms)

    def produce_many(
        self,
        topic: str,
        partition: int,
        batches: AsyncIterator[Batch],
        *,
        floor: int | None = None,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> AsyncGenerator[int, None]:
        """See `Producer.produce_many`."""
        return self._producer.produce_many(
            topic, partition, batches, floor=floor, timeout_ms=timeout_ms, max_in_flight=max_in_flight
        )

    async def init_producer_id(self) -> tuple[int, int]:
        """See `Producer.init_producer_id`."""
        return await self._producer.init_producer_id()

    async def start_offset(self, topic: str, partition: int) -> int:
        """The log start offset."""
        return await self._fetcher.list_offset(topic, partition, EARLIEST)

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """The high watermark, or with `committed` the last stable offset."""
        return await self._fetcher.list_offset(topic, partition, LATEST, committed=committed)

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
            except Trouble as trouble:
                await patience.wait(trouble)
                continue
            if not answer.codes or Code.CLUSTER_AUTHORIZATION_FAILED in answer.codes:
                raise BrokerRefused(
                    f"{self._pool.name(broker)} does not tell the size of its partitions.",
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
