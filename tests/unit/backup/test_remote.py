"""A backup cuts the data in a remote store by its estimated bytes, apart from the data on the leader's disk."""

from __future__ import annotations

from itertools import pairwise

import pytest

from logkeep_engine.backup.model.plan import CHUNK_BYTES, BackupPlan, Chunk
from logkeep_engine.backup.planning.balance import MIN_CHUNK_BYTES, Sample, filled
from logkeep_engine.backup.planning.remote import REMOTE_CHUNK_BYTES, UNKNOWN_BYTES_PER_OFFSET, RemoteRange, with_parts

MIB = 1 << 20
ID = "a" * 22
ORDERS = ("orders", 0)


def chunk(start: int, end: int, size: int, partition: int = 0) -> Chunk:
    return Chunk("orders", ID, partition, start, end, 1, size)


def cut(part: RemoteRange, *chunks: Chunk, slots: int = 2) -> list[Chunk]:
    return list(with_parts(BackupPlan("run", (), chunks), {ORDERS: part}, slots).chunks)


def test_a_partition_that_is_all_remote_is_many_chunks() -> None:
    found = cut(RemoteRange(800_000, 0.0, (Sample(0, 800_000, 1000.0),)), chunk(0, 800_000, 0))
    assert len(found) == -(-800_000_000 // REMOTE_CHUNK_BYTES)
    assert [found[0].start, found[-1].end] == [0, 800_000]
    assert all(before.end == after.start for before, after in pairwise(found))
    assert sum(part.bytes for part in found) == pytest.approx(800_000_000, rel=0.01)


def test_chunks_have_equal_bytes_where_records_grew() -> None:
    samples = (Sample(0, 900_000, 10.0), Sample(900_000, 1_000_000, 10_000.0))
    found = cut(RemoteRange(1_000_000, 0.0, samples), chunk(0, 1_000_000, 0))
    assert found[0].end > 900_000
    assert max(part.end - part.start for part in found[1:]) < 5_000


def test_local_and_remote_parts_have_bounds_and_sizes_of_their_own() -> None:
    part = RemoteRange(600_000, 1000.0, (Sample(0, 600_000, 200.0),))
    found = cut(part, chunk(0, 500_000, 7), chunk(500_000, 1_000_000, 7), slots=1)
    assert 600_000 in [piece.start for piece in found]
    remote = [piece for piece in found if piece.end <= 600_000]
    local = [piece for piece in found if piece.start >= 600_000]
    assert sum(piece.bytes for piece in remote) == pytest.approx(120_000_000, rel=0.01)
    assert sum(piece.bytes for piece in local) == pytest.approx(400_000_000, rel=0.01)
    assert max(piece.bytes for piece in remote) <= REMOTE_CHUNK_BYTES
    assert REMOTE_CHUNK_BYTES < max(piece.bytes for piece in local) <= CHUNK_BYTES


def test_ranges_that_are_archived_already_stay_out() -> None:
    part = RemoteRange(1000, 0.0, (Sample(0, 1000, MIB),))
    found = cut(part, chunk(0, 300, 0), chunk(700, 1000, 0))
    covered = [(piece.start, piece.end) for piece in found]
    assert covered[0][0] == 0
    assert (700 in [start for start, _ in covered], 300 in [end for _, end in covered]) == (True, True)
    assert sum(end - start for start, end in covered) == 600


def test_without_samples_the_local_log_tells_and_without_one_a_guess() -> None:
    (found,) = cut(RemoteRange(1000, 50.0), chunk(0, 1000, 0))
    assert found.bytes == 50_000
    (found,) = cut(RemoteRange(1000, 0.0), chunk(0, 1000, 0))
    assert found.bytes == 1000 * UNKNOWN_BYTES_PER_OFFSET


def test_other_partitions_stay_as_they_are() -> None:
    others = [chunk(0, 10, 5, partition=1), chunk(10, 20, MIN_CHUNK_BYTES, partition=1)]
    found = cut(RemoteRange(10, 1.0), chunk(0, 10, 0), *others)
    assert found[1:] == others


def test_a_sample_that_was_not_answered_is_like_the_others() -> None:
    assert filled([(0, 10, 4.0), (10, 20, None), (20, 30, 8.0)])[1] == Sample(10, 20, 6.0)
    assert filled([(0, 10, None)]) == []
