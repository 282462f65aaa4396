"""Heavy partitions are cut where their bytes are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.backup.model.plan import CHUNK_BYTES, BackupPlan, Chunk
from logkeep_engine.backup.planning.balance import MIN_CHUNK_BYTES, Sample, balance, cut, heavy, recut
from logkeep_engine.kafka.connection import KafkaConnection

MIB = 1 << 20
ID = "a" * 22


def chunk(partition: int, start: int, end: int, size: int) -> Chunk:
    return Chunk("orders", ID, partition, start, end, 1, size)


def plan(*chunks: Chunk) -> BackupPlan:
    return BackupPlan("run", (), tuple(chunks))


def bytes_in(samples: list[Sample], start: int, end: int) -> float:
    return sum(s.bytes_per_offset * max(0, min(end, s.end) - max(start, s.start)) for s in samples)


def test_one_partition_with_most_of_the_bytes_is_spread_over_the_slots() -> None:
    chunks = [chunk(0, 0, 900_000, 900 * MIB), *(chunk(number, 0, 1000, 2 * MIB) for number in range(1, 50))]
    wanted = heavy(chunks, slots=8)
    assert list(wanted) == [(ID, 0, 0)]
    again = recut(plan(*chunks), wanted, {}, slots=8)
    parts = [part for part in again.chunks if part.partition == 0]
    assert len(parts) == 15
    assert max(part.bytes for part in parts) <= 998 * MIB // 16
    assert again.chunks[len(parts) :] == tuple(chunks[1:])


def test_partitions_of_like_size_stay_as_they_are() -> None:
    chunks = [chunk(number, 0, 1000, (170 + number) * MIB) for number in range(4)]
    assert heavy(chunks, slots=2) == {}
    made = plan(*chunks)
    assert balance(made, 2, KafkaConnection(("nobody:1",))) is made


def test_small_runs_are_not_cut_into_crumbs() -> None:
    assert heavy([chunk(0, 0, 1000, MIN_CHUNK_BYTES)], slots=100) == {}


def test_a_heavy_partition_is_known_by_all_its_chunks() -> None:
    chunks = [chunk(0, 0, 10, 256 * MIB), chunk(0, 10, 20, 256 * MIB), chunk(1, 0, 10, 256 * MIB)]
    assert heavy(chunks, slots=1) == {}
    assert heavy(chunks, slots=2) == {(ID, 0, 0): chunk(0, 0, 20, 512 * MIB)}


def test_tiny_records_before_large_ones_do_not_make_one_task_long() -> None:
    samples = [Sample(0, 900_000, 10.0), Sample(900_000, 1_000_000, 10_000.0)]
    whole = chunk(0, 0, 1_000_000, 1024 * MIB)
    parts = cut(whole, samples, 256 * MIB)
    assert len(parts) == 4
    sizes = [bytes_in(samples, part.start, part.end) for part in parts]
    assert max(sizes) < 1.01 * sum(sizes) / 4


def test_without_samples_ranges_are_even() -> None:
    parts = cut(chunk(0, 100, 500, 4 * CHUNK_BYTES), [], CHUNK_BYTES)
    assert [(part.start, part.end) for part in parts] == [(100, 200), (200, 300), (300, 400), (400, 500)]
    nothing_seen = [Sample(100, 300, 0.0), Sample(300, 500, 0.0)]
    assert cut(chunk(0, 100, 500, 4 * CHUNK_BYTES), nothing_seen, CHUNK_BYTES) == parts


@given(
    start=st.integers(0, 10**12),
    weights=st.lists(st.floats(0, 1e9), min_size=1, max_size=64),
    width=st.integers(1, 10**6),
    size=st.integers(1, 1 << 50),
    limit=st.integers(32 * MIB, CHUNK_BYTES),
)
def test_any_cut_covers_every_offset_once(start: int, weights: list[float], width: int, size: int, limit: int) -> None:
    samples = [Sample(start + n * width, start + (n + 1) * width, weight) for n, weight in enumerate(weights)]
    whole = chunk(3, start, start + len(weights) * width, min(size, limit * 1000))
    parts = cut(whole, samples, limit)
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    assert all(before.end == after.start for before, after in pairwise(parts))
    assert all(part.start < part.end for part in parts)
    assert {(part.topic_id, part.partition, part.leader) for part in parts} == {(ID, 3, 1)}


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_there_are_never_many_heavy_partitions(slots: int) -> None:
    chunks = [chunk(number, 0, 1000, (1 + number % 7) * 1000 * MIB) for number in range(1000)]
    assert len(heavy(chunks, slots)) <= 2 * slots
