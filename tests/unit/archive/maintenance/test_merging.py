"""Small segments are merged with their neighbours: which, what becomes of them, and who sees what after that."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Gap, Receipt, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.replacements import Exchange, drafted, put_in_place
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.merging import MergeRules, chosen, moves_of
from logkeep_engine.archive.maintenance.moving import joined
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.reading import view
from logkeep_engine.backup.run.merging import Merged, merge_segments
from logkeep_engine.contract.archive_format import Compression, SegmentSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage
from tests.examples import scaled
from tests.runners import HereRunner
from tests.unit.archive.build import Batch, begin, chunk
from tests.unit.archive.forge import rewritten
from tests.unit.archive.packing import AUDIT, ORDERS, faults, pack_paths, packed
from tests.unit.erasure.erasing import ALICE, GONE, Inside, batch_of, erase_whole, records_in

KEY, OTHER, FOREIGN = (ORDERS.topic_id, 0), (ORDERS.topic_id, 1), (AUDIT.topic_id, 0)
FOUR = SegmentSpec(merge_count=4)
RULES = MergeRules(4, 50, 8 << 20)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def merge(storage: LocalStorage, spec: SegmentSpec = FOUR, *, clean: bool = True) -> Merged:
    """A run that archives nothing and merges, and deletes what is out of use."""
    runs = len(Archive.open(storage).load().runs)
    with begin(storage, f"run-{runs + 1}") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        merged = merge_segments(writer, spec, Inside, first_task=0)
        if clean:
            purge(writer)
        return merged


def filled(storage: LocalStorage, runs: int, *, count: int = 2, **options: Any) -> None:
    """Runs that each put so many records of three partitions into a pack."""
    for run in range(runs):
        content = [
            (topic, partition, [batch_of(run * count, [ALICE] * count)])
            for topic, partition in ((ORDERS, 0), (ORDERS, 1), (AUDIT, 0))
        ]
        packed(storage, *content, run_id=f"run-{run + 1}", **options)


def spans(state: ArchiveState, key: tuple[str, int] = KEY) -> list[tuple[int, int]]:
    return [(entry.base_offset, entry.next_offset) for entry in state.segments[key]]


# ---- which


@given(st.lists(st.integers(1, 10_000), max_size=60), st.integers(2, 16))
@settings(max_examples=scaled(300), deadline=None)
def test_what_is_chosen_has_so_many_times_the_largest_and_nothing_else_would(sizes: list[int], count: int) -> None:
    found = sorted(chosen(sizes, count))
    at = 0
    for start, end in found:
        assert at <= start < end
        assert sum(sizes[start:end]) >= count * max(sizes[start:end])
        at = end
    for start, end in zip([0, *(end for _, end in found)], [*(start for start, _ in found), len(sizes)], strict=True):
        assert sum(sizes[start:end]) < count * max(sizes[start:end], default=1)


def test_a_byte_is_written_again_once_for_each_time_that_its_segment_grows_so_much() -> None:
    """One segment of 100 bytes a run, for 4,096 runs: 16, 256 and 4,096 are three times."""
    sizes: list[int] = []
    rewritten = most = 0
    for _ in range(4096):
        sizes.append(100)
        for start, end in sorted(chosen(sizes, 16), reverse=True):
            rewritten += sum(sizes[start:end])
            sizes[start:end] = [sum(sizes[start:end])]
        most = max(most, len(sizes))
    assert rewritten <= 3 * 4096 * 100
    assert most <= 3 * 15 + 1


def test_neighbours_are_merged_once_there_are_enough(storage: LocalStorage) -> None:
    filled(storage, 3)
    assert moves_of(Archive.open(storage).load(), RULES) == []
    packed(storage, *((ORDERS, at, [batch_of(6, [ALICE] * 2)]) for at in (0, 1)), run_id="run-4")
    moves = moves_of(Archive.open(storage).load(), RULES)
    assert [(move.topic, [entry.base_offset for entry in move.entries]) for move in moves[:2]] == [
        ("orders", [0, 2, 4, 6]),
        ("orders", [0, 2, 4, 6]),
    ]
    # A third of each pack lives, so it is cleared: its segments are copied as they are.
    assert [(move.topic, [entry.base_offset for entry in move.entries]) for move in moves[2:]] == [
        ("audit", [0]),
        ("audit", [2]),
        ("audit", [4]),
    ]
    assert moves_of(Archive.open(storage).load(), MergeRules(0, 50, 8 << 20)) == []
    assert len(moves_of(Archive.open(storage).load(), MergeRules(4, 0, 8 << 20))) == 2


@pytest.mark.parametrize("other", ["own objects", "a hole", "compressed", "too large", "overwritten"])
def test_what_says_more_apart_stays_as_it_is(storage: LocalStorage, other: str) -> None:
    batches = [batch_of(start, [ALICE] * 2) for start in (0, 2, 4, 6)]
    content: list[list[tuple[Any, int, Sequence[bytes]]]] = [[(ORDERS, 0, [one])] for one in batches]
    below = 8 << 20
    if other == "own objects":
        for at, some in enumerate(content):
            packed(storage, *([] if at == 2 else some), own=some if at == 2 else [], run_id=f"run-{at + 1}")
    elif other == "a hole":
        content[2] = [(ORDERS, 0, [batch_of(5, [ALICE])])]  # offset 4 was compacted away
        for at, some in enumerate(content):
            packed(storage, *some, run_id=f"run-{at + 1}")
    elif other == "overwritten":
        content[2] = [(ORDERS, 0, [batch_of(4, [ALICE]), batch_of(6, [ALICE])])]
        content[3] = [(ORDERS, 0, [batch_of(7, [ALICE])])]
        for at, some in enumerate(content):
            packed(storage, *some, run_id=f"run-{at + 1}")
    else:
        for at, some in enumerate(content):
            how = Compression.ZSTD if at == 2 and other == "compressed" else Compression.PASSTHROUGH
            packed(storage, *some, run_id=f"run-{at + 1}", compression=how)
        below = 100 if other == "too large" else below
    moves = moves_of(Archive.open(storage).load(), MergeRules(2, 0, below))
    merged = {entry.base_offset for move in moves if move.entries[1:] for entry in move.entries}
    assert merged == (set() if other == "too large" else {0, 2})


@pytest.mark.parametrize("gone", ["overwritten", "lost", "removed"])
def test_where_the_first_offsets_of_a_log_are_missing_its_first_run_stays_as_it_is(
    storage: LocalStorage, gone: str
) -> None:
    """Points within what it has archived are refused, and no others may be. What was lost or removed is not missed."""
    if gone != "overwritten":
        with begin(storage, "run-0") as writer:
            there = Receipt(gaps=(Gap(*KEY, 0, 1, "deleted by retention"),))
            if gone == "removed":
                there = chunk(storage, 0, 1, epoch=writer.epoch)
            writer.commit(topics=[ORDERS], receipts=[there])
            writer.end(RunOutcome.SUCCEEDED)
            if gone == "removed":
                writer.remove([RemovedSegment(*KEY, 0)])
    for run, start in enumerate((1, 2, 4, 6, 8)):
        packed(storage, (ORDERS, 0, [batch_of(start, [ALICE] * (2 if run else 1))]), run_id=f"run-{run + 1}")
    moves = moves_of(Archive.open(storage).load(), MergeRules(4, 0, 8 << 20))
    first = [2] if gone == "overwritten" else [1, 2]
    assert [[entry.base_offset for entry in move.entries] for move in moves] == [[*first, 4, 6, 8]]


# ---- what becomes of them


@pytest.mark.parametrize("compression", list(Compression))
def test_points_of_all_runs_give_what_they_gave(storage: LocalStorage, compression: Compression) -> None:
    filled(storage, 9, compression=compression)
    archive = Archive.open(storage)
    before = {run: view.at_end_of(archive, archive.load(), run) for run in archive.load().runs}
    records = {
        run: [records_in(storage, seen.state, key) for key in (KEY, OTHER, FOREIGN)]
        for run, seen in before.items()
        if seen is not None
    }
    assert (merge(storage).segments, faults(storage)) == (27, [])
    assert len(pack_paths(storage)) == 1
    archive = Archive.open(storage)
    newest = archive.load()
    assert spans(newest) == spans(newest, FOREIGN) == [(0, 18)]
    merged = newest.segments[KEY][0]
    assert (merged.layout, merged.archived_first, merged.archived_last) == (Layout.PACK, 1, 9)
    for run, known in records.items():
        seen = view.at_end_of(archive, newest, run)
        assert seen is not None
        assert [records_in(storage, seen.state, key) for key in (KEY, OTHER, FOREIGN)] == known
    fifth = view.at_end_of(archive, newest, "run-5")
    assert fifth is not None
    assert spans(fifth.state) == [(0, 10)]


def test_what_has_become_large_has_objects_of_its_own(storage: LocalStorage) -> None:
    filled(storage, 4)
    merge(storage, SegmentSpec(merge_count=4, pack_below="400"))
    state = Archive.open(storage).load()
    assert [entry.layout for entry in state.segments[KEY]] == [Layout.KAFKA]
    assert (pack_paths(storage), faults(storage)) == ([], [])
    assert moves_of(state, RULES) == []


def test_merging_adds_nothing_to_what_a_run_has_archived(storage: LocalStorage) -> None:
    filled(storage, 4)
    merge(storage)
    run = Archive.open(storage).load().runs["run-5"]
    assert (run.records, run.bytes, run.segments) == (0, 0, 0)


def test_merged_segments_are_merged_again_and_erased_from(storage: LocalStorage) -> None:
    for number in range(16):
        keys = [GONE if number % 4 == 1 else ALICE] * 2
        packed(storage, (ORDERS, 0, [batch_of(2 * number, keys)]), run_id=f"run-{number + 1}")
        if number % 4 == 3:
            with begin(storage, f"merge-{number}") as writer:
                writer.end(RunOutcome.SUCCEEDED)
                merge_segments(writer, SegmentSpec(merge_count=2), Inside, first_task=0)
    state = Archive.open(storage).load()
    assert spans(state) == [(0, 32)]
    assert (state.segments[KEY][0].archived_first, state.segments[KEY][0].archived_last) == (1, 19)
    erase_whole(storage, GONE)
    archive = Archive.open(storage)
    seen = view.at_end_of(archive, archive.load(), "run-8")
    assert seen is not None
    assert [offset for offset, *_ in records_in(storage, seen.state)] == [0, 1, *range(4, 10), *range(12, 16)]


def test_what_another_run_has_merged_and_deleted_meanwhile_is_not_called_damaged(storage: LocalStorage) -> None:
    filled(storage, 4)
    others: list[Merged] = []

    def overtake(_: object) -> None:
        if not others:
            others.append(merge(storage))

    with begin(storage, "run-overtaken") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        with pytest.raises(ArchiveFenced, match="Another run has taken over the archive"):
            merge_segments(writer, FOUR, lambda: HereRunner(before=overtake), first_task=0)
    assert others[0].segments
    assert faults(storage) == []


def test_a_damaged_segment_stays_and_is_reported(storage: LocalStorage) -> None:
    filled(storage, 4)
    path = Path(storage.uri.removeprefix("file://")) / pack_paths(storage)[1]
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    merged = merge(storage)
    assert merged.segments == 8
    assert "1 damaged segment could not be merged, `logkeep verify` reports them: first " in merged.notes[0]
    assert spans(Archive.open(storage).load()) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_a_pack_of_which_little_lives_is_cleared(storage: LocalStorage) -> None:
    packed(storage, (ORDERS, 0, [batch_of(0, [ALICE] * 90)]), (AUDIT, 0, [batch_of(0, [ALICE])]))
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        erase = writer.state.segments[KEY][0]
        writer.exchange([Exchange(erase, None)])
        assert purge(writer).segments == 0  # another segment shares the pack
        assert merge_segments(writer, SegmentSpec(live_percent=0), Inside, first_task=0).segments == 0
        assert merge_segments(writer, SegmentSpec(), Inside, first_task=1).segments == 1
        assert purge(writer).segments == 2
    assert (len(pack_paths(storage)), faults(storage)) == (1, [])


def test_only_neighbours_with_all_that_they_have_can_be_merged(storage: LocalStorage) -> None:
    filled(storage, 3)
    state = Archive.open(storage).load()
    first, second, third = state.segments[KEY]
    whole = replace(first, epoch=4, next_offset=4, records=4, bytes=first.bytes + second.bytes)
    for wrong in (
        [(first, replace(whole, next_offset=6)), (third, replace(whole, next_offset=6))],  # no neighbours
        [(first, replace(whole, records=3)), (second, replace(whole, records=3))],
        [(first, replace(whole, base_offset=1)), (second, replace(whole, base_offset=1))],
    ):
        replaced, segments = drafted(state, [Exchange(*item) for item in wrong])
        with pytest.raises(ValueError, match=r"segment 0 of .* lacks a part of what it replaces"):
            put_in_place(state, replaced, segments, lambda key, row: None)
    replaced, segments = drafted(state, [Exchange(first, whole), Exchange(second, whole)])
    assert put_in_place(state, replaced, segments, lambda key, row: None) == (0, 0, 0, frozenset())
    assert spans(state) == [(0, 4), (4, 6)]


# ---- transactions


def test_the_index_of_a_merged_segment_ends_where_transactions_do() -> None:
    index = [AbortedTxn(7, 2, 9, 2), AbortedTxn(7, 2, 14, 12), AbortedTxn(8, 5, 6, 2), AbortedTxn(7, 20, 21, 20)]
    ends = {(7, 14), (8, 6), (7, 25)}
    assert joined(index, ends) == [AbortedTxn(8, 5, 6, 2), AbortedTxn(7, 2, 14, 2), AbortedTxn(7, 20, 25, 20)]
    assert joined([], ends) == []


def test_batches_stay_byte_for_byte(storage: LocalStorage) -> None:
    logs = [Batch(start).encode() for start in range(0, 40, 10)]
    for number, data in enumerate(logs):
        packed(storage, (ORDERS, 0, [data]), run_id=f"run-{number + 1}")
    merge(storage, SegmentSpec(merge_count=3))
    (entry,) = Archive.open(storage).load().segments[KEY]
    place = entry.place("orders", ".log")
    assert storage.read_range(place.path, place.start, place.end) == b"".join(logs)


def test_a_forged_merge_is_damage_that_verify_tells(storage: LocalStorage) -> None:
    filled(storage, 4)
    merge(storage)
    last = Archive.open(storage).load().commit
    number = next(at for at in range(last, -1, -1) if Archive.open(storage).read_commit(at).replaced)

    def change(document: dict[str, Any]) -> None:
        by = document["replaced"]["columns"].index("by")
        document["replaced"]["rows"][0][by] = 99

    rewritten(storage, number, change)
    (fault,) = [item for item in faults(storage) if "is replaced by number 99" in item]
    assert f"{number:020}.json" in fault
    with pytest.raises(ArchiveDamaged, match="is replaced by number 99"):
        Archive.open(storage).load()


@pytest.mark.parametrize("epochs", [(0, 3), (3, 2), (1, 1 << 31), (1 << 31, 1 << 31), (5, 7)])
def test_epochs_that_no_merged_segment_has_are_damage(storage: LocalStorage, epochs: tuple[int, int]) -> None:
    filled(storage, 4)
    merge(storage)
    last = Archive.open(storage).load().commit
    number = next(at for at in range(last, -1, -1) if Archive.open(storage).read_commit(at).replaced)

    def change(document: dict[str, Any]) -> None:
        for column, epoch in zip(("firstEpoch", "lastEpoch"), epochs, strict=True):
            document["segments"]["rows"][0][document["segments"]["columns"].index(column)] = epoch

    rewritten(storage, number, change)
    with pytest.raises(ArchiveDamaged, match="of records of epochs"):
        list(Archive.open(storage).load().segments[KEY])
    assert any("of records of epochs" in fault for fault in faults(storage))
