"""Cuts the few partitions that hold much of a run where their bytes are.

A broker reports how large a partition is, but not where in it the bytes lie, so a plan cuts partitions into even ranges
of offsets. If the records of a partition grew from bytes to kilobytes, nearly everything is in the last range, and one
task works long after all others. That matters only for a partition that is a large part of the run: such a partition
is cut finer, and batches are looked at here and there to see how many bytes an offset has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from logkeep_engine.backup.model.plan import CHUNK_BYTES, BackupPlan, Chunk
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.log.batch import parse_header

log = logging.getLogger(__name__)

# A run is divided into at least this many shares of equal size for each slot, if it is large enough for that.
SHARES_PER_SLOT = 2
HEAVY = 1.5  # shares; less is not worth looking at: the tasks of a run are never quite equal
MIN_CHUNK_BYTES = 32 << 20  # smaller objects cost more requests than the evenness wins
SAMPLES_PER_PARTITION = 64
MAX_SAMPLES = 4096
SAMPLES_AT_ONCE = 32
SAMPLING_SECONDS = 15.0

Key = tuple[str, int, int]  # topic id, partition, generation


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets [start, end) take about `bytes_per_offset` each."""

    start: int
    end: int
    bytes_per_offset: float


def balance(plan: BackupPlan, slots: int, connection: KafkaConnection) -> BackupPlan:
    """Return the plan with its heavy partitions cut for `slots` tasks at once.

    Raises nothing: where brokers do not answer, ranges are even.
    """
    wanted = heavy(plan.chunks, slots)
    if not wanted:
        return plan
    try:
        samples = asyncio.run(_sample(connection, wanted))
    except (LogkeepError, TimeoutError) as error:
        log.info("large partitions are cut into even ranges of offsets: %s", str(error) or "the brokers are slow")
        samples = {}
    return recut(plan, wanted, samples, slots)


def share(chunks: Iterable[Chunk], slots: int) -> int:
    """Return the bytes of a run that one task may do so that no other task waits for it in the end."""
    return max(MIN_CHUNK_BYTES, sum(chunk.bytes for chunk in chunks) // (SHARES_PER_SLOT * max(1, slots)))


def heavy(chunks: Sequence[Chunk], slots: int) -> dict[Key, Chunk]:
    """Return the partitions with more than a task's share of the run, each as one range of offsets; there are never
    many."""
    whole: dict[Key, Chunk] = {}
    for chunk in chunks:
        key = (chunk.topic_id, chunk.partition, chunk.generation)
        before = whole.get(key)
        whole[key] = chunk if before is None else replace(before, end=chunk.end, bytes=before.bytes + chunk.bytes)
    least = HEAVY * share(chunks, slots)
    return {key: chunk for key, chunk in whole.items() if chunk.bytes > least}


def recut(
    plan: BackupPlan, wanted: Mapping[Key, Chunk], samples: Mapping[Key, Sequence[Sample]], slots: int
) -> BackupPlan:
    """Return the plan with the chunks of the `wanted` partitions made again. By the samples they have equal bytes; a
    partition without samples gets chunks of equal numbers of offsets.
    """
    limit = min(CHUNK_BYTES, share(plan.chunks, slots))
    chunks: list[Chunk] = []
    done: set[Key] = set()
    for chunk in plan.chunks:
        key = (chunk.topic_id, chunk.partition, chunk.generation)
        if key not in wanted:
            chunks.append(chunk)
        elif key not in done:
            done.add(key)
            chunks += cut(wanted[key], samples.get(key, ()), limit)
    return replace(plan, chunks=tuple(chunks))


def cut(whole: Chunk, samples: Sequence[Sample], limit: int) -> list[Chunk]:
    """`whole` in chunks of equal bytes, at most about `limit` each. The samples cover its offsets without a gap."""
    weights = [sample.bytes_per_offset * (sample.end - sample.start) for sample in samples]
    if not sum(weights):
        samples, weights = [Sample(whole.start, whole.end, 1.0)], [1.0]
    count = min(-(-whole.bytes // limit), whole.end - whole.start)
    reached = [0.0, *accumulate(weights)]
    bounds = [whole.start]
    number = 0
    for share_number in range(1, count):
        wanted = reached[-1] * share_number / count
        while reached[number + 1] < wanted:
            number += 1
        sample = samples[number]
        into = (wanted - reached[number]) / weights[number] * (sample.end - sample.start)
        bound = sample.start + int(into)
        # Bounds may meet where one offset has the bytes of several chunks.
        if bounds[-1] < bound < whole.end:
            bounds.append(bound)
    bounds.append(whole.end)
    size = whole.bytes // (len(bounds) - 1)
    return [replace(whole, start=start, end=end, bytes=size) for start, end in pairwise(bounds)]


async def _sample(connection: KafkaConnection, wanted: Mapping[Key, Chunk]) -> dict[Key, list[Sample]]:
    count = max(1, min(SAMPLES_PER_PARTITION, MAX_SAMPLES // len(wanted)))
    gate = asyncio.Semaphore(SAMPLES_AT_ONCE)
    async with asyncio.timeout(SAMPLING_SECONDS), RawClient(connection) as client:

        async def one(whole: Chunk, start: int, end: int, lane: int) -> tuple[int, int, float | None]:
            async with gate:
                return start, end, await bytes_per_offset(client, whole, (start + end) // 2, lane)

        async def partition(whole: Chunk) -> list[Sample]:
            ranges = enumerate(even_ranges(whole, count))
            seen = await asyncio.gather(*(one(whole, start, end, lane) for lane, (start, end) in ranges))
            return filled(seen)

        return dict(zip(wanted, await asyncio.gather(*map(partition, wanted.values())), strict=True))


def filled(seen: Sequence[tuple[int, int, float | None]]) -> list[Sample]:
    """Samples from (start, end, bytes per offset). A range in which nothing was seen gets the mean of the others; there
    are no samples if nothing was seen in any.
    """
    known = [size for _, _, size in seen if size is not None]
    if not known:
        return []
    mean = sum(known) / len(known)
    return [Sample(start, end, mean if size is None else size) for start, end, size in seen]


def even_ranges(whole: Chunk, count: int) -> Iterable[tuple[int, int]]:
    """At most `count` ranges of the chunk's offsets."""
    offsets = whole.end - whole.start
    count = min(count, offsets)
    return pairwise(whole.start + offsets * number // count for number in range(count + 1))


async def bytes_per_offset(client: RawClient, whole: Chunk, offset: int, lane: int) -> float | None:
    """Return the bytes per offset of the batch at `offset`. If compaction has removed that one, the next batch counts,
    with the offsets between. None if the broker gave no batch: the log ends there, or a remote store is slow.
    """
    fetched = await client.fetch(
        whole.topic,
        whole.partition,
        offset,
        max_bytes=1,
        max_wait_ms=0,
        topic_id=whole.topic_id,
        committed=False,
        lane=lane,
    )
    try:
        if not fetched.data:
            return None
        header = parse_header(fetched.data)
        return header.size / (header.next_offset - min(offset, header.base_offset))
    finally:
        fetched.release()
