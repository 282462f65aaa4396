"""A partition that is spread over tasks gives the records of one that is a task."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.backup.run.snapshots import do_or_tell
from logkeep_engine.compaction import spreading
from logkeep_engine.compaction.partition import CompactionSetting, CompactionWork, PartitionCompacted
from logkeep_engine.compaction.spreading import Spreading, divided, entries_of, ranges_of
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log import compaction
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.records import encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage.local import LocalStorage
from logkeep_engine.tasks import Demand
from tests.examples import scaled
from tests.runners import Context
from tests.unit.archive.build import ORDERS, verify_segment, write_segment
from tests.unit.compaction.made import DAY, compact, plain, row, setting_of, work_of
from tests.unit.log.batches import NOON, marker, of_epoch


@contextmanager
def small_blocks(size: int) -> Iterator[None]:
    """The map of a range has so many bytes."""
    with patch.object(compaction, "_block_bytes", lambda: size):
        yield


def spread(setting: CompactionSetting, work: CompactionWork, attempt: int) -> PartitionCompacted | list[Any]:
    """The snapshot that the tasks of a partition make, or their errors; each segment is a range."""
    with patch.object(spreading, "RANGE_BYTES", 1):
        ranges = ranges_of(work, setting.max_bytes)
    assert len(ranges) == len(entries_of(work))
    rounds = Spreading()
    done = None
    rounds_of: Sequence[Callable[[], Sequence[Any]]] = (lambda: rounds.add(work, ranges), rounds.shares, rounds.copies)
    for tasks_of in rounds_of:
        for task in pickle.loads(pickle.dumps(tasks_of()[::-1])):
            answer = do_or_tell(setting, task, Context(attempt))
            if isinstance(answer, Exception):
                return [answer, rounds.give_up(task), rounds.give_up(task)]
            done = rounds.take(task, pickle.loads(pickle.dumps(answer)))
    assert done is not None
    setting.storage.delete(rounds.objects)
    return done


def records_of(storage: LocalStorage, snapshot: SnapshotEntry) -> list[LogRecord]:
    return [item for some in open_partition(storage, ORDERS.name, snapshot.parts).records() for item in some]


def check_equal(storage: LocalStorage, dirty: Sequence[SegmentEntry], last: SnapshotEntry | None, now: int) -> None:
    one = compact(storage, dirty, last, now=now, attempt=1)
    several = spread(setting_of(storage, now=now), work_of(dirty, last), attempt=1)
    assert isinstance(several, PartitionCompacted)
    names, others = (
        {path for part in item.snapshot.parts for path in part.objects(ORDERS.name)} for item in (one, several)
    )
    assert not names & others, "an attempt at the whole may still write"
    assert records_of(storage, several.snapshot) == records_of(storage, one.snapshot)
    ours, its = several.snapshot, one.snapshot
    assert (ours.end, ours.leader_epoch, ours.time) == (its.end, its.leader_epoch, its.time)
    assert (several.records, several.tombstones) == (one.records, one.tombstones)
    for part in ours.parts:
        assert verify_segment(storage, ORDERS.name, part) == []


rows = st.tuples(st.none() | st.integers(0, 6), st.none() | st.binary(max_size=9), st.integers(1, 3))
batches = st.tuples(st.lists(rows, min_size=1, max_size=6), st.sampled_from([None, None, True, False]))


@settings(max_examples=scaled(60, light=10))
@given(st.lists(batches, min_size=2, max_size=10), st.data())
def test_several_tasks_leave_what_one_leaves(
    log: list[tuple[list[tuple[int | None, bytes | None, int]], bool | None]], data: st.DataObject
) -> None:
    with TemporaryDirectory() as folder, small_blocks(data.draw(st.sampled_from([1, 1 << 20]))):
        storage = LocalStorage(f"file://{folder}")
        offset, made, aborted = 0, [], []
        for producer, (some, commits) in enumerate(log):
            first, records = offset + 1, []
            for key, value, gap in some:
                offset += gap
                records.append(row(offset, None if key is None else b"key %d" % key, value))
            codec = data.draw(st.sampled_from(Codec))
            if commits is None:
                made.append([of_epoch(plain(records, codec), producer // 3)])
                continue
            batch = encode(records, codec=codec, base_offset=first, producer_id=producer, transactional=True)
            offset += 1
            made.append([of_epoch(each, producer // 3) for each in (batch, marker(offset, producer, commit=commits))])
            if not commits:
                aborted.append(AbortedTxn(producer, first, offset, first))
        cuts = sorted(data.draw(st.sets(st.integers(1, len(made) - 1), max_size=4)) | {0, len(made)})
        entries = []
        for at, to in pairwise(cuts):
            some_batches = [batch for each in made[at:to] for batch in each]
            ends = {item.last_offset for item in aborted}
            own = [item for item in aborted if item.last_offset in ends and _is_within(item, some_batches)]
            entries.append(write_segment(storage, some_batches, aborted=own))
        cut = data.draw(st.integers(0, len(entries) - 1))
        last = compact(storage, entries[:cut], now=NOON).snapshot if cut else None
        check_equal(storage, entries[cut:], last, NOON + data.draw(st.integers(0, 2)) * DAY)
        assert not [path for path in Path(folder).rglob("*") if path.suffix in (".keys", ".dead")]


def _is_within(item: AbortedTxn, some: Sequence[bytes]) -> bool:
    return any(int.from_bytes(batch[:8], "big") == item.last_offset for batch in some)


def test_a_key_is_found_among_many_in_any_block_and_any_share(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    dirty = []
    for number in range(5):
        keys = [(number * 800 + at) * 7919 % 500 for at in range(800)]  # each comes again in its range, blocks later
        base = number * 800
        records = [row(base + at, b"%d" % key, b"%d" % number) for at, key in enumerate(keys)]
        dirty.append(write_segment(storage, [plain(records[at : at + 50]) for at in range(0, 800, 50)]))
    with small_blocks(16 * 150), patch.object(compaction, "task_bytes", lambda: 1 << 15):
        shares = 0

        def counted(self: Spreading) -> Any:
            nonlocal shares
            found = shares_of(self)
            shares = len(found)
            return found

        shares_of = Spreading.shares
        with patch.object(Spreading, "shares", counted):
            check_equal(storage, dirty, None, NOON)
        assert shares > 2


def test_damage_is_reported_once(tmp_path: Path) -> None:
    storage = LocalStorage(f"file://{tmp_path}")
    entries = [write_segment(storage, [plain([row(at, b"k", b"v")])]) for at in range(3)]
    path = next(iter(entries[1].objects(ORDERS.name)))
    data = bytearray(storage.read(path))
    data[-1] ^= 1
    (tmp_path / path).write_bytes(data)
    reported = spread(setting_of(storage), work_of(entries), 0)
    assert isinstance(reported, list)
    answer, first, again = reported
    assert isinstance(answer, ArchiveDamaged)
    assert (first, again) == (True, False)


@pytest.mark.parametrize(
    ("sizes", "slots", "large"),
    [
        ([5, 5, 5], 2, []),
        ([9], 1, []),
        ([9], 2, [9]),
        ([3], 8, []),
        ([20, 5, 1], 2, [20]),
        ([20, 5, 1], 4, [20]),
        ([20, 8, 8], 8, [20, 8, 8]),
    ],
)
def test_a_partition_is_spread_if_others_would_wait_for_it(
    tmp_path: Path, sizes: list[int], slots: int, large: list[int]
) -> None:
    entry = write_segment(LocalStorage(f"file://{tmp_path}"), [plain([row(0, b"k", b"v")])])
    work = [work_of([entry] * size, number=number) for number, size in enumerate(sizes)]
    asked: list[Demand] = []

    def expect(demand: Demand) -> int:
        asked.append(demand)
        return slots

    with patch.object(spreading, "LEAST_BYTES", 4 * entry.bytes):
        alone, spread_out = divided(work, entry.bytes, 1, expect)
    assert [len(item.dirty) for item, _ in spread_out] == large
    assert sorted([*(len(item.dirty) for item in alone), *large]) == sorted(sizes)
    assert [len(ranges) for _, ranges in spread_out] == large
    (demand,) = asked
    assert demand.bytes == sum(sizes) * entry.bytes
    assert demand.chunks == sum(size if size > 4 else 1 for size in sizes)


def test_more_records_than_a_task_has_marks_for_are_spread_whatever_their_bytes(tmp_path: Path) -> None:
    entry = write_segment(LocalStorage(f"file://{tmp_path}"), [plain([row(at, b"k", b"v") for at in range(9)])])
    with patch.object(spreading, "most_records", lambda: 20):
        alone, ((_, ranges),) = divided([work_of([entry] * 5)], 1 << 30, 1, None)
    assert not alone
    assert [len(some) for some in ranges] == [2, 2, 1]


def test_the_secret_of_the_keys_is_in_no_text(tmp_path: Path) -> None:
    entry = write_segment(LocalStorage(f"file://{tmp_path}"), [plain([row(0, b"k", b"v")])])
    (task,) = Spreading().add(work_of([entry]), [(entry,)])
    assert str(task.secret[0]) not in repr(task)
