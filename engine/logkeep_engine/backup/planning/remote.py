"""Cuts the offsets that lie in a remote store (KIP-405, tiered storage) into chunks.

A broker reports how many bytes of a partition are on its own disk, and nothing about those in the remote store. A
partition that is all remote has size 0, and would be one chunk of whatever size. So batches are looked at here and
there to see how many bytes an offset has. A remote read takes long however small it is, and brings no more than one
segment holds. So chunks of the remote range are small, and a task reads one partition in several streams at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from logkeep_engine.backup.model.plan import CHUNK_BYTES, BackupPlan, Chunk
from logkeep_engine.backup.planning.balance import (
    MAX_SAMPLES,
    SAMPLES_AT_ONCE,
    SAMPLING_SECONDS,
    Sample,
    bytes_per_offset,
    cut,
    even_ranges,
    filled,
    share,
)
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection

log = logging.getLogger(__name__)

REMOTE_CHUNK_BYTES = 16 << 20  # so that each of a run's tasks has several
REMOTE_SAMPLES = 8
UNKNOWN_BYTES_PER_OFFSET = 1024.0

Where = tuple[str, int]  # topic name, partition


@dataclass(frozen=True, slots=True)
class RemoteRange:
    """The offsets of a partition that are in the remote store only: those below `end`. `samples` cover the planned
    ones, if any batch could be looked at. From `end` on, an offset takes about `local_density` bytes on the leader's
    disk.
    """

    end: int
    local_density: float
    samples: tuple[Sample, ...] = ()


@dataclass(slots=True)
class _Seen:
    """All that sampling has found so far. It ends when its time is up."""

    ends: dict[Where, int] = field(default_factory=dict)
    samples: dict[Where, dict[tuple[int, int], float | None]] = field(default_factory=dict)

    def ranges(self, sizes: Mapping[Where, int], log_ends: Mapping[Where, int]) -> dict[Where, RemoteRange]:
        found: dict[Where, RemoteRange] = {}
        for where, end in self.ends.items():
            seen = sorted(self.samples.get(where, {}).items())
            samples = filled([(start, stop, size) for (start, stop), size in seen])
            density = sizes.get(where, 0) / max(1, log_ends[where] - end)
            found[where] = RemoteRange(end, density, tuple(samples))
        return found


def cut_remote(
    plan: BackupPlan,
    sizes: Mapping[Where, int],
    log_ends: Mapping[Where, int],
    slots: int,
    connection: KafkaConnection,
) -> BackupPlan:
    """Return the plan with the remote ranges of its partitions estimated and cut. `sizes` are bytes on the leaders'
    disks.

    Raises nothing: where brokers do not answer, chunks are as they are.
    """
    tiered = {topic.name for topic in plan.topics if topic.configs.get("remote.storage.enable") == "true"}
    wanted: dict[Where, list[Chunk]] = {}
    for chunk in plan.chunks:
        if chunk.topic in tiered:
            wanted.setdefault((chunk.topic, chunk.partition), []).append(chunk)
    if not wanted:
        return plan
    seen = _Seen()
    try:
        asyncio.run(_look(connection, wanted, seen))
    except (LogkeepError, TimeoutError) as error:
        log.info("not all remote parts could be inspected: %s", str(error) or "the remote store is slow")
    return with_parts(plan, seen.ranges(sizes, log_ends), slots)


def with_parts(plan: BackupPlan, parts: Mapping[Where, RemoteRange], slots: int) -> BackupPlan:
    """Return the plan with the chunks of these partitions made again, of about equal bytes."""
    sized: list[tuple[Chunk, RemoteRange | None]] = []
    for chunk in _joined(plan.chunks, parts.keys()):
        part = parts.get((chunk.topic, chunk.partition))
        if part is None:
            sized.append((chunk, None))
            continue
        for low, high, is_remote in _split(chunk, part.end):
            size = _remote_bytes(part, low, high) if is_remote else int(part.local_density * (high - low))
            sized.append((replace(chunk, start=low, end=high, bytes=size), part if is_remote else None))
    limit = share((chunk for chunk, _ in sized), slots)
    chunks: list[Chunk] = []
    for chunk, remote in sized:
        if (chunk.topic, chunk.partition) not in parts:
            chunks.append(chunk)
        elif remote is None:
            chunks += cut(chunk, (), min(CHUNK_BYTES, limit))
        else:
            chunks += cut(chunk, _within(remote.samples, chunk), min(REMOTE_CHUNK_BYTES, limit))
    return replace(plan, chunks=tuple(chunks))


def _joined(chunks: Iterable[Chunk], wanted: Iterable[Where]) -> Iterator[Chunk]:
    """Yield the chunks, those of `wanted` partitions that lie end to end as one."""
    chosen = set(wanted)
    before: Chunk | None = None
    for chunk in chunks:
        if (
            before is not None
            and (chunk.topic, chunk.partition) in chosen
            and (before.topic, before.partition, before.end) == (chunk.topic, chunk.partition, chunk.start)
            and before.generation == chunk.generation
        ):
            before = replace(before, end=chunk.end, bytes=before.bytes + chunk.bytes)
            continue
        if before is not None:
            yield before
        before = chunk
    if before is not None:
        yield before


def _split(chunk: Chunk, remote_end: int) -> Iterator[tuple[int, int, bool]]:
    """(start, end, whether it is remote) of the two sides of the bound."""
    bound = min(max(chunk.start, remote_end), chunk.end)
    if chunk.start < bound:
        yield chunk.start, bound, True
    if bound < chunk.end:
        yield bound, chunk.end, False


def _remote_bytes(part: RemoteRange, low: int, high: int) -> int:
    if not part.samples:
        return int((high - low) * (part.local_density or UNKNOWN_BYTES_PER_OFFSET))
    return int(
        sum(sample.bytes_per_offset * max(0, min(high, sample.end) - max(low, sample.start)) for sample in part.samples)
    )


def _within(samples: Sequence[Sample], chunk: Chunk) -> list[Sample]:
    return [
        replace(sample, start=max(sample.start, chunk.start), end=min(sample.end, chunk.end))
        for sample in samples
        if sample.start < chunk.end and chunk.start < sample.end
    ]


async def _look(connection: KafkaConnection, wanted: Mapping[Where, Sequence[Chunk]], seen: _Seen) -> None:
    count = max(1, min(REMOTE_SAMPLES, MAX_SAMPLES // len(wanted)))
    gate = asyncio.Semaphore(SAMPLES_AT_ONCE)
    async with asyncio.timeout(SAMPLING_SECONDS), RawClient(connection) as client:

        async def sample(where: Where, whole: Chunk, start: int, end: int, lane: int) -> None:
            seen.samples.setdefault(where, {})[start, end] = None
            async with gate:
                seen.samples[where][start, end] = await bytes_per_offset(client, whole, (start + end) // 2, lane)

        async def partition(where: Where, chunks: Sequence[Chunk]) -> None:
            async with gate:
                local = await client.local_start(*where)
            if local is None or local[0] <= chunks[0].start:
                return
            seen.ends[where] = local[0]
            whole = replace(chunks[0], end=min(local[0], chunks[-1].end))
            ranges = enumerate(even_ranges(whole, count))
            await asyncio.gather(*(sample(where, whole, start, end, lane) for lane, (start, end) in ranges))

        await asyncio.gather(*(partition(where, chunks) for where, chunks in wanted.items()))
