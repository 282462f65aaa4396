"""Erasures from packs: what stays is copied out of them, and they go."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import Batch, begin, write_segment
from tests.unit.archive.packing import AUDIT, ORDERS, faults, pack_paths, packed
from tests.unit.erasure.erasing import (
    ALICE,
    BOB,
    GONE,
    KEY,
    Inside,
    Killed,
    Mortal,
    batch_of,
    copied,
    erase_whole,
    erased,
    seen,
    traces,
    without,
)

OTHER = (ORDERS.topic_id, 1)
FOREIGN = (AUDIT.topic_id, 0)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    found = LocalStorage((tmp_path / "archive").as_uri())
    packed(
        found,
        (ORDERS, 0, [batch_of(0, [ALICE, GONE])]),
        (ORDERS, 1, [batch_of(0, [BOB])]),
        (AUDIT, 0, [batch_of(0, [ALICE, BOB])]),
    )
    packed(found, (ORDERS, 0, [batch_of(2, [ALICE])]), (AUDIT, 0, [batch_of(2, [ALICE])]), run_id="run-2")
    return found


def test_the_pack_goes_and_all_that_stays_is_as_it_was(storage: LocalStorage) -> None:
    before = {key: seen(storage, key) for key in (KEY, OTHER, FOREIGN)}
    result = erase_whole(storage, GONE)
    assert (result.records, result.segments) == (1, 1)
    assert "packs/0000000001-0-0-0.pack" not in pack_paths(storage)
    assert "packs/0000000002-0-0-0.pack" in pack_paths(storage)  # it has none of the key
    for key, records in before.items():
        assert seen(storage, key) == without(records, GONE)
    state = Archive.open(storage).load()
    assert state.segments[KEY][0].layout is Layout.KAFKA
    assert state.segments[OTHER][0].layout is Layout.PACK
    assert state.unpurged == ()


def test_only_what_was_rewritten_counts_as_erased(storage: LocalStorage) -> None:
    erase_whole(storage, GONE)
    state = Archive.open(storage).load()
    assert erased_ranges(state, KEY, 3) == [(0, 2)]
    assert erased_ranges(state, FOREIGN, 3) == []


def test_earlier_points_find_the_copies(storage: LocalStorage) -> None:
    erase_whole(storage, GONE)
    archive = Archive.open(storage)
    point = view.choose(archive).state
    assert [entry.base_offset for entry in point.segments[FOREIGN]] == [0, 2]


@pytest.mark.parametrize("unnamed", [False, True])
def test_an_erasure_that_was_killed_continues(storage: LocalStorage, tmp_path: Path, unnamed: bool) -> None:
    before = {key: seen(storage, key) for key in (KEY, OTHER, FOREIGN)}
    if unnamed:
        storage.put("packs/0000000002-7-0-0.pack", b"left by a killed task " + GONE)
    for left in range(60):
        path = copied(storage, tmp_path / f"copy-{left}")
        try:
            erased(Mortal(path.as_uri(), left), GONE, runner=Inside())
        except Killed:
            pass
        else:
            assert left > 8
            return
        reader = LocalStorage(path.as_uri())
        assert [fault for fault in faults(reader) if not fault.startswith(("packs/", "topics/"))] == []
        erase_whole(reader, GONE)
        for key, records in before.items():
            assert seen(reader, key) == without(records, GONE)
    raise AssertionError("it never comes to its end")


def test_what_retention_has_removed_from_a_pack_is_erased_too(storage: LocalStorage) -> None:
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*KEY, 0)], [])
    assert traces(storage, GONE)
    erase_whole(storage, GONE)
    assert len(seen(storage, OTHER)) == 1


def test_what_was_removed_of_another_topic_in_the_same_pack_goes_with_it(storage: LocalStorage) -> None:
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(*FOREIGN, 0)], [])
    erase_whole(storage, GONE)
    assert len(seen(storage, FOREIGN)) == 1


def test_a_segment_in_a_pack_that_no_commit_names_goes_with_the_pack(tmp_path: Path) -> None:
    storage = LocalStorage((tmp_path / "archive").as_uri())
    packed(storage, (ORDERS, 0, [Batch(0).encode()]))
    with begin(storage, "run-2") as writer:
        packs = TaskPacks(storage, writer.epoch, 0, 0)
        entry = write_segment(storage, [batch_of(0, [ALICE])], topic=AUDIT, epoch=writer.epoch, packs=packs)
        write_segment(storage, [batch_of(10, [GONE])], partition=1, epoch=writer.epoch, packs=packs)
        packs.commit()
        writer.commit(topics=[AUDIT], receipts=[Receipt((Coverage(*FOREIGN, 0, 1),), (entry,))])
        writer.end(RunOutcome.SUCCEEDED)
    assert traces(storage, GONE)
    erase_whole(storage, GONE)
    assert len(seen(storage, FOREIGN)) == 1


def test_a_pack_whose_table_was_altered_is_copied_out(storage: LocalStorage) -> None:
    path = "packs/0000000002-0-0-0.pack"
    data = bytearray(storage.read(path))
    data[-1] ^= 1
    storage.put(path, bytes(data))
    before = seen(storage, FOREIGN)
    erase_whole(storage, GONE)
    assert path not in pack_paths(storage)
    assert seen(storage, FOREIGN) == before


def test_a_damaged_segment_in_the_same_pack_is_named_and_the_pack_stays(storage: LocalStorage) -> None:
    entry = Archive.open(storage).load().segments[FOREIGN][0]
    path = pack_paths(storage)[0]
    whole = storage.read(path)
    data = bytearray(whole)
    data[entry.files.position + 70] ^= 1
    storage.put(path, bytes(data))
    result = erased(storage, GONE)
    assert result.error_code == "ArchiveDamaged"
    assert "1 segment cannot be copied out of packs that hold records of the keys" in result.message
    assert f"pack:{entry.files.position}.log" in result.message
    assert path in pack_paths(storage)
    storage.put(path, whole)
    erase_whole(storage, GONE, run_id="erase-2")


def test_copies_are_erased_from_again(storage: LocalStorage) -> None:
    erase_whole(storage, GONE)
    before = seen(storage, OTHER)
    assert erased(storage, BOB, run_id="erase-2").outcome == "Succeeded"
    assert faults(storage) == []
    assert seen(storage, OTHER) == without(before, BOB)
    assert seen(storage, FOREIGN)[1][2] == BOB  # the other topic keeps its records
