"""Packs of which only some segments are removed: they stay until nobody needs any of them."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.storage import LocalStorage, LockedObject
from tests.unit.archive.build import Batch, begin
from tests.unit.archive.packing import AUDIT, ORDERS, Content, faults, pack_paths, packed
from tests.unit.erasure.erasing import Killed, Mortal, copied

ID = ORDERS.topic_id


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage((tmp_path / "archive").as_uri())


def part(partition: int, start: int = 0) -> Content:
    return ORDERS, partition, [Batch(start).encode()]


def removed(writer: Writer, *gone: RemovedSegment) -> int:
    """Remove these segments; returns how many removals wait, after what can be deleted was."""
    writer.remove(gone, [])
    return purge(writer).waiting


def test_a_pack_stays_as_long_as_a_segment_in_it_does(storage: LocalStorage) -> None:
    packed(storage, part(0), part(1))
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0)) == 1
        assert pack_paths(storage) == ["packs/0000000001-0-0-0.pack"]
        assert [len(item.segments[ID, 0]) for item in writer.state.unpurged] == [1]
    assert faults(storage) == []
    assert verify(Archive.open(storage)).records == 10
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 1, 0)) == 0
        assert writer.state.unpurged == ()
    assert pack_paths(storage) == []
    assert faults(storage) == []


def test_segments_of_one_removal_go_with_their_pack(storage: LocalStorage) -> None:
    packed(storage, part(0), part(1))
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0), RemovedSegment(ID, 1, 0)) == 0
    assert pack_paths(storage) == []
    assert Archive.open(storage).load().unpurged == ()


def test_of_a_removal_each_pack_goes_by_itself(storage: LocalStorage) -> None:
    packed(storage, part(0), part(1))
    packed(storage, part(0, 10), run_id="run-2")
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0), RemovedSegment(ID, 0, 10)) == 1
        # A segment of partition 1 is in the first one.
        assert pack_paths(storage) == ["packs/0000000001-0-0-0.pack"]
        assert waiting(writer) == [[((ID, 0), 0)]]
        assert waiting(Archive.open(storage)) == [[((ID, 0), 0)]]
        before = writer.state.commit
        assert purge(writer).waiting == 1
        assert writer.state.commit == before  # nothing is noted again
    assert faults(storage) == []
    with begin(storage, "run-4") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 1, 0)) == 0
        assert writer.state.unpurged == ()
    assert pack_paths(storage) == []


def waiting(holder: Writer | Archive) -> list[list[tuple[tuple[str, int], int]]]:
    """The segments that each removal still has, by partition and base offset."""
    state = holder.state if isinstance(holder, Writer) else holder.load()
    return [
        [(key, entry.base_offset) for key, some in item.segments.items() for entry in some] for item in state.unpurged
    ]


def test_objects_of_their_own_do_not_wait_for_a_pack(storage: LocalStorage) -> None:
    packed(storage, part(1), (ORDERS, 2, [Batch(0).encode()]), own=[part(0)])
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0), RemovedSegment(ID, 1, 0)) == 1
        assert storage.list("topics/") == []
        assert waiting(writer) == [[((ID, 1), 0)]]
        writer.checkpoint()
        assert purge(writer).waiting == 1
    assert waiting(Archive.open(storage)) == [[((ID, 1), 0)]]
    assert faults(storage) == []


def test_removals_of_many_runs_do_not_hold_each_other_up(storage: LocalStorage) -> None:
    """Each removal shares a pack with the one before it and with the next one, of which something stays for ever."""
    for run in range(8):
        packed(storage, part(0, 10 * run), part(1, 10 * run), run_id=f"run-{run + 1}")
    for run in range(1, 8):
        with begin(storage, f"merge-{run}") as writer:
            writer.end(RunOutcome.SUCCEEDED)
            left = removed(writer, RemovedSegment(ID, 1, 10 * (run - 1)), RemovedSegment(ID, 0, 10 * run))
            assert left == 2 if run == 1 else 1
            assert len(pack_paths(storage)) == 8 - (run - 1)
    assert faults(storage) == []


def test_a_pack_that_the_store_keeps_locked_stays_in_the_catalog(storage: LocalStorage) -> None:
    class Locking(LocalStorage):
        def delete_unlocked(self, paths: Iterable[str]) -> tuple[LockedObject, ...]:
            some = list(paths)
            kept = [path for path in some if path.endswith("0000000001-0-0-0.pack")]
            self.delete(path for path in some if path not in kept)
            return tuple(LockedObject(path, None, True) for path in kept)

    packed(storage, part(0))
    packed(storage, part(0, 10), run_id="run-2")
    with begin(Locking(storage.uri), "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 0), RemovedSegment(ID, 0, 10)], [])
        done = purge(writer)
        assert (done.segments, done.waiting, len(done.locked)) == (1, 1, 1)
        assert waiting(writer) == [[((ID, 0), 0)]]
    assert pack_paths(storage) == ["packs/0000000001-0-0-0.pack"]


def test_a_pack_stays_as_long_as_a_removal_that_has_it_is_in_its_grace(storage: LocalStorage) -> None:
    packed(storage, part(0), part(1))
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 0)], [])
        writer.remove([RemovedSegment(ID, 1, 0)], [])
        late, early = writer.state.unpurged
        writer.state.unpurged = (late, replace(early, time=early.time - 3_600_000))
        assert purge(writer, grace=60_000).waiting == 2
        assert len(pack_paths(storage)) == 1


def test_segments_with_objects_of_their_own_do_not_wait(storage: LocalStorage) -> None:
    packed(storage, part(1), own=[part(0)])
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0)) == 0
    assert storage.list("topics/") == []
    assert len(pack_paths(storage)) == 1


def test_an_idle_run_asks_for_no_deletion_of_what_must_stay(storage: LocalStorage) -> None:
    class Deleting(LocalStorage):
        asked: list[str]

        def delete(self, paths: Iterable[str]) -> None:
            self.asked = [*getattr(self, "asked", []), *paths]

    packed(storage, part(0), (AUDIT, 0, [Batch(0).encode()]))
    deleting = Deleting(storage.uri)
    with begin(deleting, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert removed(writer, RemovedSegment(ID, 0, 0)) == 1
        assert purge(writer).waiting == 1
    assert getattr(deleting, "asked", []) == []


def test_a_kill_at_any_moment_leaves_what_the_next_run_finishes(storage: LocalStorage, tmp_path: Path) -> None:
    packed(storage, part(0), part(1))
    packed(storage, part(0, 10), part(1, 10), run_id="run-2")
    for left in range(40):
        path = copied(storage, tmp_path / f"copy-{left}")
        mortal = Mortal(path.as_uri(), left)
        try:
            with begin(mortal, "run-3") as writer:
                writer.end(RunOutcome.SUCCEEDED)
                removed(writer, RemovedSegment(ID, 0, 0))
                removed(writer, RemovedSegment(ID, 1, 0), RemovedSegment(ID, 1, 10))
        except Killed:
            pass
        else:
            assert left >= 5
            assert len(pack_paths(mortal)) == 1
            return
        reader = LocalStorage(path.as_uri())
        assert faults(reader) == []
        with begin(reader, "run-4") as writer:
            writer.end(RunOutcome.SUCCEEDED)
            there = {key: [entry.base_offset for entry in some] for key, some in writer.state.segments.items()}
            gone = [RemovedSegment(*key, base) for key, bases in there.items() for base in bases]
            removed(writer, *gone)
            assert writer.state.unpurged == ()
        assert pack_paths(reader) == []
        assert faults(reader) == []
    raise AssertionError("it never comes to its end")


def test_a_pack_that_no_commit_names_is_an_orphan(storage: LocalStorage) -> None:
    packed(storage, part(0))
    storage.put("packs/0000000001-9-0-0.pack", b"left by a killed task")
    assert faults(storage) == ["packs/0000000001-9-0-0.pack"]
    report = verify(Archive.open(storage), topics=lambda topic: topic == "orders")
    assert report.orphans == []


def test_a_pack_of_an_epoch_that_the_catalog_does_not_know_tells_of_lost_commits(storage: LocalStorage) -> None:
    packed(storage, part(0))
    storage.put("packs/0000000007-0-0-0.pack", b"x")
    (fault,) = verify(Archive.open(storage)).faults
    assert "it is of epoch 7, at which no commit was made" in str(fault)


def test_objects_count_a_pack_once(storage: LocalStorage) -> None:
    packed(storage, part(0), part(1), own=[(AUDIT, 0, [Batch(0).encode()])])
    before = verify(Archive.open(storage)).objects
    assert before == 1 + 3 + 1 + 3  # archive.json, commits, the pack, objects of their own
