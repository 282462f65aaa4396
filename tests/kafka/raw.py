"""Batches for the tests of the data plane, made by a codec that is not ours, and helpers to look at fetched ones."""

import asyncio
import struct
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from aiokafka.record import MemoryRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.kafka.batch_queue import Batch, BatchQueue
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.fetched import Fetched

T = TypeVar("T")


def plain(bootstrap: str) -> KafkaConnection:
    """A connection without TLS and login."""
    return connection_from(ClusterSpec(bootstrap_servers=(bootstrap,)), {})


def run(work: Coroutine[Any, Any, T], seconds: float = 240) -> T:
    """Run a coroutine, but not for ever."""

    async def limited() -> T:
        async with asyncio.timeout(seconds):
            return await work

    return asyncio.run(limited())


def batch(
    values: Sequence[bytes], *, producer_id: int = -1, epoch: int = -1, sequence: int = -1, codec: int = 0
) -> bytes:
    """A record batch v2 with base offset 0."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 26,
    )
    now = int(time.time() * 1000)
    for index, value in enumerate(values):
        builder.append(index, timestamp=now, key=None, value=value, headers=[])
    return bytes(builder.build())


def numbered(producer_id: int, batches: int, records: int, *, size: int = 100) -> list[bytes]:
    """Idempotent batches whose values are the numbers 0, 1, 2 ... padded to `size` bytes."""
    return [
        batch(
            [value(first + index, size) for index in range(records)], producer_id=producer_id, epoch=0, sequence=first
        )
        for first in range(0, batches * records, records)
    ]


def value(number: int, size: int = 100) -> bytes:
    return str(number).encode().ljust(size, b".")


def eventually(holds: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that a broker does after it has answered."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def each(items: Iterable[Batch]) -> BatchQueue:
    """All of these batches, ready to be sent."""
    queue = BatchQueue()
    for item in items:
        queue.put(item)
    queue.end()
    return queue


def records(fetched: Iterable[Fetched], start: int, end: int) -> list[tuple[int, bytes]]:
    """(offset, value) of the data records in batches that begin in [start, end), aborted ones included."""
    found: list[tuple[int, bytes]] = []
    for part in fetched:
        memory = MemoryRecords(bytes(part.data))
        while memory.has_next():
            one = memory.next_batch()
            if one.is_control_batch or not start <= one.base_offset < end:
                continue
            found += [(record.offset, record.value) for record in one]
    return found


def batches(data: bytes | memoryview) -> list[bytes]:
    """The whole batches in fetched bytes."""
    found, at = [], 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        if at + 12 + length > len(data):
            break
        found.append(bytes(data[at : at + 12 + length]))
        at += 12 + length
    return found


async def read_all(
    client: RawClient, topic: str, partition: int = 0, *, max_bytes: int = 1 << 20
) -> list[tuple[int, bytes]]:
    """Every record of a partition through `stream`."""
    end = await client.end_offset(topic, partition, committed=True)
    parts = [part async for part in client.stream(topic, partition, 0, end, max_bytes=max_bytes)]
    return records(parts, 0, end)
