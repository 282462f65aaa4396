"""The topics of the benchmark: what lies in them, the same bytes each time.

A topic's batches are drawn from a pool of distinct ones (`pool`), repeated in order with times, producer fields and
CRC of their own (`batches`): building millions of records in Python would take longer than the benchmark. The pool of
a topic is far larger than the window of any compressor that meets the batches again.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode

VERSION = 1
"""Raised when the bytes of any topic change."""

FIRST_MS = 1_767_225_600_000  # 2026-01-01: the past of every run, so that no broker finds a time in the future
PRODUCER_ID = 1_000_000  # plus the partition; a broker takes any sequence from an id it does not know
POOL_BYTES = 64 << 20
POOL_BATCHES = 64
_SEQUENCE_SPACE = 1 << 31
_TINY = 1 << 10

_TIMES = struct.Struct(">qq")
_PRODUCER = struct.Struct(">qhi")


@dataclass(frozen=True, slots=True)
class Topic:
    """`batch_bytes` bounds the records of a batch before compression, `random_bytes` of a record do not compress.

    `first_share` is the share of the records in partition 0; None spreads them evenly. With `transactions` records
    lie in transactions of that many, every fifth of them aborted.
    """

    name: str
    title: str
    records: int
    record_bytes: int
    codec: Codec
    partitions: int = 4
    batch_bytes: tuple[int, int] = (64 << 10, 1 << 20)
    random_bytes: int = 0
    first_share: float | None = None
    transactions: int = 0

    def shrunk(self, factor: int) -> Topic:
        """The same topic with a part of the records."""
        return replace(self, records=max(self.partitions, self.records // factor))

    @property
    def shares(self) -> tuple[int, ...]:
        """Records of each partition."""
        first = None if self.first_share is None else int(self.records * self.first_share)
        if first is None:
            return _even(self.records, self.partitions)
        return (first, *_even(self.records - first, self.partitions - 1))


def _even(total: int, parts: int) -> tuple[int, ...]:
    return tuple(total * (n + 1) // parts - total * n // parts for n in range(parts))


TOPICS: tuple[Topic, ...] = (
    Topic("plain-1k", "2 M × 1 kB, uncompressed", 2_000_000, 1000, Codec.NONE, random_bytes=430),
    Topic("zstd-1k", "2 M × 1 kB, zstd", 2_000_000, 1000, Codec.ZSTD, random_bytes=430),
    Topic("lz4-1k", "2 M × 1 kB, lz4", 2_000_000, 1000, Codec.LZ4, random_bytes=300),
    Topic("lz4-100", "5 M × 100 B, lz4", 5_000_000, 100, Codec.LZ4, random_bytes=40),
    Topic("single-100", "200,000 batches of one 100 B record", 200_000, 100, Codec.NONE, batch_bytes=(1, 1)),
    Topic("single-2m", "2 M batches of one 100 B record", 2_000_000, 100, Codec.NONE, batch_bytes=(1, 1)),
    Topic("five-100", "200,000 batches of five 100 B records", 1_000_000, 100, Codec.NONE, batch_bytes=(500, 500)),
    Topic(
        "skewed", "64 partitions, one with 90 %, zstd", 500_000, 1000, Codec.ZSTD, 64, random_bytes=430, first_share=0.9
    ),
    Topic("txn", "transactions of 500, every fifth aborted, zstd", 400_000, 1000, Codec.ZSTD, transactions=500,
          batch_bytes=(16 << 10, 64 << 10), random_bytes=430),
    Topic("random-10k", "10 kB records that do not compress", 100_000, 10_000, Codec.NONE, random_bytes=10_000),
)  # fmt: skip


def named(names: Sequence[str]) -> tuple[Topic, ...]:
    """The topics with these names, in the table's order. Raises KeyError for a name that is none."""
    known = {topic.name for topic in TOPICS}
    for name in names:
        if name not in known:
            raise KeyError(f"no topic {name!r}: there are {', '.join(sorted(known))}")
    return tuple(topic for topic in TOPICS if topic.name in names)


class Values:
    """Record values of a topic, one after the other, from its seed."""

    def __init__(self, topic: Topic) -> None:
        self._random = random.Random(f"{VERSION} {topic.name}")
        self._size = topic.record_bytes
        self._noise = topic.random_bytes
        words = [self._random.randbytes(3).hex() for _ in range(64)]
        self._text = " ".join(self._random.choice(words) for _ in range(400)).encode()

    def next(self) -> bytes:
        """The next value: printable, unless nothing of it compresses."""
        if self._noise == self._size:
            return self._random.randbytes(self._size)
        noise = base64.b64encode(self._random.randbytes(self._noise * 3 // 4 + 3))[: self._noise]
        rest = self._size - self._noise
        start = self._random.randrange(64)
        return noise + self._text[start : start + rest].ljust(rest, b".")


@dataclass(frozen=True, slots=True)
class Template:
    """A batch as `encode` makes it and the number of its records."""

    data: bytes
    records: int


def pool(topic: Topic) -> list[Template]:
    """The distinct batches that the topic repeats: up to POOL_BYTES of records, at least POOL_BATCHES batches."""
    values = Values(topic)
    sizes = random.Random(f"sizes {VERSION} {topic.name}")
    templates: list[Template] = []
    filled = 0
    wanted = min(POOL_BYTES, topic.records * topic.record_bytes)
    while filled < wanted or len(templates) < min(POOL_BATCHES, topic.records):
        low, high = topic.batch_bytes
        count = max(1, sizes.randint(low, high) // topic.record_bytes)
        if topic.transactions:
            count = min(count, topic.transactions // topic.partitions)
        templates.append(template(topic, [values.next() for _ in range(count)]))
        filled += count * topic.record_bytes
        if filled >= (1 << 20) and high <= _TINY:  # tiny batches: a few thousand are enough
            break
    return templates


def template(topic: Topic, values: Sequence[bytes]) -> Template:
    """One batch, the records a millisecond apart."""
    records = [Record(n, n, None, value) for n, value in enumerate(values)]
    data = encode(records, codec=topic.codec, base_offset=0, transactional=bool(topic.transactions))
    return Template(data, len(records))


def addressed(batch: Template, first_ms: int, producer: tuple[int, int], sequence: int) -> bytearray:
    """The batch with its times, producer id, epoch and sequence set, and a CRC that holds."""
    data = bytearray(batch.data)
    _TIMES.pack_into(data, 27, first_ms, first_ms + batch.records - 1)
    _PRODUCER.pack_into(data, 43, *producer, sequence)
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def batches(
    topic: Topic, templates: Sequence[Template], partition: int, *, producer: tuple[int, int] | None = None
) -> Iterator[bytearray]:
    """The batches of a partition in order, ready to be sent, exactly `topic.shares[partition]` records in all."""
    values = Values(topic)
    left, done = topic.shares[partition], 0
    at = partition * 7  # partitions begin at different batches
    identity = producer or (PRODUCER_ID + partition, 0)
    while left:
        chosen = templates[at % len(templates)]
        if chosen.records > left:
            chosen = template(topic, [values.next() for _ in range(left)])
        yield addressed(chosen, FIRST_MS + done, identity, done % _SEQUENCE_SPACE)
        at, done, left = at + 1, done + chosen.records, left - chosen.records
