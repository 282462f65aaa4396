"""The records of a run that are read back from its target partition."""

import tracemalloc
from dataclasses import replace

import pytest

from logkeep_engine.errors import TargetChanged
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.restore.sending.written import Mark, TargetPartition, WrittenReader, WrittenRecords, WrittenRows
from logkeep_engine.restore.streams.filter import SEQUENCE_SPACE
from tests.unit.log.batches import NOON, batch, marker, of_epoch

PLAIN = TargetPartition("orders", 0, producer_id=9, start=10, created=False, compacts=False)
COMPACTS = replace(PLAIN, compacts=True)

Facts = tuple[int, list[tuple[int, int, int]], Mark | None]


def ours(offset: int, sequence: int, count: int, epoch: int = 3) -> bytes:
    records = [Record(offset + at, NOON, None, b"") for at in range(count)]
    built = encode(
        records, codec=Codec.NONE, base_offset=offset, producer_id=9, producer_epoch=0, base_sequence=sequence
    )
    return of_epoch(built, epoch)


def read(*batches: bytes, target: TargetPartition = PLAIN, log_start: int = 0) -> Facts:
    reader = WrittenReader(target, log_start, WrittenRows())
    for one in batches:
        reader.add(parse_header(one))
    return facts(reader.written(0))


def facts(landed: WrittenRecords) -> Facts:
    return landed.records, list(landed.rows or ()), landed.mark


def test_nothing() -> None:
    assert read(batch(0, 4), marker(4, 9, commit=True)) == facts(WrittenRecords()) == (0, [], None)


def test_batches_that_follow_are_one_run_and_others_between_cut_it() -> None:
    found = read(ours(10, 0, 3), ours(13, 3, 2), batch(15, 5), ours(20, 5, 4, epoch=5))
    assert found == (9, [(0, 10, 5), (5, 20, 4)], Mark(5, 24))


def test_a_sequence_that_wrapped() -> None:
    last = SEQUENCE_SPACE - 2
    reader = WrittenReader(replace(COMPACTS, start=0), 0, None)
    reader.add(parse_header(ours(last, last, 2)))
    reader.add(parse_header(ours(SEQUENCE_SPACE, 0, 3)))
    assert reader.written(0).records == SEQUENCE_SPACE + 3


def test_what_compaction_removed_still_counts() -> None:
    assert read(ours(12, 2, 1), ours(20, 8, 2), target=COMPACTS) == (10, [(2, 12, 1), (8, 20, 2)], Mark(3, 22))


def test_what_retention_removed_at_the_front_still_counts() -> None:
    assert read(ours(18, 8, 2), log_start=18) == (10, [(8, 18, 2)], Mark(3, 20))


@pytest.mark.parametrize(
    ("batches", "target", "log_start", "missing"),
    [
        ([ours(10, 0, 3), ours(20, 8, 2)], PLAIN, 0, "5 records of this run, numbers 3 to 7 of the partition"),
        ([ours(20, 8, 2)], PLAIN, 10, "8 records of this run, numbers 0 to 7"),
        ([ours(10, 0, 3), ours(20, 8, 2)], PLAIN, 10, "5 records"),
        ([ours(10, 0, 3), ours(20, 8, 2)], PLAIN, 15, "5 records"),
        ([ours(10, 0, 3), ours(13, 8, 2)], COMPACTS, 0, "5 records of this run, numbers 3 to 7"),
        ([ours(11, 8, 2)], PLAIN, 11, "8 records"),
        (
            [ours(10, 0, 3), ours(13, 0, 3)],
            PLAIN,
            0,
            "from number 0 of the partition on, are there once more at offset 13",
        ),
    ],
)
def test_a_hole_that_nothing_explains_is_reported(
    batches: list[bytes], target: TargetPartition, log_start: int, missing: str
) -> None:
    """Records in front of others that were sent later, and neither compaction nor retention can have taken them."""
    with pytest.raises(TargetChanged) as caught:
        read(*batches, target=target, log_start=log_start)
    assert caught.value.message.startswith("topic 'orders' partition 0: ")
    assert missing in caught.value.message
    assert "start a new restore under another run id" in caught.value.hint


def test_runs_beside_a_busy_producer_take_little_memory() -> None:
    """A batch of another producer between any two of ours: each is a run of its own."""
    runs = WrittenRows()
    tracemalloc.start()
    for at in range(200_000):
        runs.add(at, 2 * at, 1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 << 20
    for _ in range(2):
        assert all(run == (at, 2 * at, 1) for at, run in enumerate(runs))
    assert sum(1 for _ in runs) == 200_000
    runs.close()
