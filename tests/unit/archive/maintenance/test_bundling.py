"""Old commits move into bundles: nothing is lost by it, whoever sleeps and whatever dies in between."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.commit_reader import CatalogListing
from logkeep_engine.archive.catalog.facts import GroupEntry, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance import bundling
from logkeep_engine.archive.maintenance.bundling import REST, BundlingDone, bundle_old_commits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.view import at_end_of, choose, ends_of_runs
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced, ClockDoubtful, StorageUnavailable
from logkeep_engine.storage import LocalStorage, ObjectInfo, Storage, open_uri
from tests.unit.archive.build import ORDERS, begin, chunk

ID = ORDERS.topic_id
FEW = CheckpointPolicy(commits=4)
RUNS = 9
LATER = 10**15
"""A time at which everything has rested."""


@pytest.fixture(autouse=True)
def small_bundles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BUNDLED", 10)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def one_run(storage: Storage, number: int) -> Writer:
    """A run with one segment: three commits."""
    with begin(storage, f"run-{number}", checkpoints=FEW) as writer:
        start = writer.state.next_offset(ID, 0) or 0
        writer.commit(topics=[ORDERS], receipts=[chunk(storage, start, start + 10, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED, groups=[GroupEntry("billing", "orders", ID, 0, number, 3, "m")])
    return writer


def aged(storage: Storage, runs: int = RUNS) -> Archive:
    for number in range(runs):
        one_run(storage, number)
    return Archive.open(storage)


def bundle_all(storage: Storage, first_run: int = RUNS) -> Archive:
    """Runs that bundle until nothing is left to do."""
    for number in range(first_run, first_run + 9):
        writer = one_run(storage, number)
        while bundle_old_commits(writer, lambda: LATER) != BundlingDone():
            pass
        if not Archive.open(storage).listing().removable:
            return Archive.open(storage)
    raise AssertionError("bundling does not end")


def facts(archive: Archive, last: int) -> object:
    """All that the archive says of its first commits: the states, the ends of runs."""
    newest = archive.load()
    states = [archive.load_at(number) for number in range(last + 1)]
    runs = [run_id for run_id in newest.runs if int(run_id.removeprefix("run-")) <= last // 3]
    ends = [at_end_of(archive, newest, run_id) for run_id in runs]
    return (
        [vars(state) for state in states],
        [end and vars(end.state) for end in ends],
        list(ends_of_runs(archive, last)),
        list(archive.read_commits(range(last + 1))),
        [archive.read_commit(number) for number in range(last + 1)],
    )


def clean(storage: Storage) -> None:
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans) == ([], [])


def test_every_state_and_every_end_of_a_run_is_there_when_the_commits_are_in_bundles(storage: Storage) -> None:
    last = aged(storage).load().commit
    before = facts(Archive.open(storage), last)
    archive = bundle_all(storage)
    listing = archive.listing()
    assert (sorted(listing.bundles)[:2], min(listing.commits) % 10, listing.removable) == ([0, 1], 0, {})
    assert all(names.bundle_of(number) not in listing.bundles for number in listing.commits)
    assert facts(archive, last) == before
    clean(storage)
    storage.delete(info.path for _, _, info in listing.checkpoints)
    assert facts(Archive.open(storage), last) == before


def test_commits_and_bundles_rest_before_anything_is_deleted(storage: Storage) -> None:
    aged(storage)
    modified = max(info.modified for info in storage.list(names.CATALOG)) * 1000
    writer = one_run(storage, RUNS)
    assert bundle_old_commits(writer, lambda: int(modified) - 60_000 + REST) == BundlingDone()
    assert bundle_old_commits(writer, lambda: int(modified) + 60_000 + REST).commits == 10
    modified = max(info.modified for info in storage.list(names.CATALOG) if info.path.endswith(".bundle")) * 1000
    assert bundle_old_commits(writer, lambda: int(modified) - 60_000 + REST).removed == 0
    assert len(Archive.open(storage).listing().removable) >= 10
    clean(storage)
    assert bundle_old_commits(writer, lambda: int(modified) + 60_000 + REST).removed == 10
    clean(storage)


def test_a_clock_in_doubt_moves_nothing(storage: Storage) -> None:
    def now() -> int:
        raise ClockDoubtful("the clock")

    aged(storage)
    there = storage.list(names.CATALOG)
    with pytest.raises(ClockDoubtful):
        bundle_old_commits(one_run(storage, RUNS), now)
    assert [info for info in storage.list(names.CATALOG) if info in there] == there


def test_nothing_is_asked_of_a_young_archive(storage: Storage) -> None:
    def now() -> int:
        raise AssertionError

    assert bundle_old_commits(one_run(storage, 0), now) == BundlingDone()


def test_commits_stay_until_a_checkpoint_of_them_was_read(storage: Storage) -> None:
    aged(storage)
    bundle_old_commits(one_run(storage, RUNS), lambda: LATER)
    storage.delete(info.path for info in storage.list(names.CATALOG) if info.path.endswith(".checkpoint"))
    with begin(storage, "run-100", checkpoints=CheckpointPolicy(10_000, 1 << 30, 10_000)) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    assert writer.read_back == -1
    assert bundle_old_commits(writer, lambda: LATER).removed == 0
    writer.checkpoint()
    assert bundle_old_commits(one_run(storage, 101), lambda: LATER).removed == 10


def test_a_damaged_bundle_keeps_the_commits_and_is_named(storage: Storage) -> None:
    aged(storage)
    bundle_old_commits(one_run(storage, RUNS), lambda: LATER)
    path = names.bundle_path(0)
    data = bytearray(storage.read(path))
    data[-20] ^= 1
    storage.put(path, bytes(data))
    with pytest.raises(ArchiveDamaged, match=r"0{20}\.bundle: "):
        bundle_old_commits(one_run(storage, RUNS + 1), lambda: LATER)
    assert set(Archive.open(storage).listing().removable) >= set(range(10))
    assert [damage.what for damage in verify(Archive.open(storage)).faults if path in damage.object]
    assert Archive.open(storage).load().commit > 30  # the checkpoints hold the same


def test_a_missing_bundle_is_named_once(storage: Storage) -> None:
    aged(storage)
    bundle_all(storage)
    storage.delete([names.bundle_path(0)])
    faults = verify(Archive.open(storage)).faults
    assert [damage for damage in faults if "Commit 0 is missing" in damage.what], faults
    assert len(faults) < 5


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data[:30], "it is not complete JSON"),
        (lambda data: data.replace(b'"first":0', b'"first":1'), "it holds commits 1 to 9, not 0 to 9"),
        (lambda data: data.replace(b'"last":9', b'"last":8'), "it holds commits 0 to 8, not 0 to 9"),
        (lambda data: data.replace(b'"format":1', b'"format":2'), "archive format 2"),
        (lambda data: data.replace(b'"first"', b'"frist"'), "unknown keys frist"),
        (lambda data: data.replace(b'"archiveId":"', b'"archiveId":"x'), "is of archive x"),
        (lambda data: data[:-9], "commit|zstd"),
    ],
)
def test_an_altered_bundle_is_named(storage: Storage, change: Callable[[bytes], bytes], what: str) -> None:
    aged(storage)
    bundle_all(storage)
    path = names.bundle_path(0)
    data = storage.read(path)
    assert change(data) != data
    storage.put(path, change(data))
    faults = verify(Archive.open(storage)).faults
    assert any(path in damage.object and re.search(what, damage.what) for damage in faults), faults


class Killed(BaseException):
    """The process was killed."""


class Mortal(LocalStorage):
    """Dies after its n-th change of the catalog or archive.json."""

    left = -1

    def _done(self, path: str) -> None:
        if path.startswith((names.CATALOG, names.ARCHIVE)):
            self.left -= 1
            if self.left == 0:
                raise Killed

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        self._done(path)

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self._done(path)

    def delete(self, paths: object) -> None:
        for path in list(paths):  # type: ignore[call-overload]
            super().delete([path])
            self._done(path)


def test_a_kill_between_any_two_steps_leaves_a_whole_archive(tmp_path: Path) -> None:
    storage = Mortal(f"file://{tmp_path}")
    last = aged(storage).load().commit
    before = facts(Archive.open(storage), last)
    died: list[str] = []
    writer = one_run(storage, RUNS)
    while True:
        storage.left = 1  # so it dies after every step
        try:
            if bundle_old_commits(writer, lambda: LATER) == BundlingDone():
                break
        except Killed:
            died.append("again")
        storage.left = -1
        assert facts(Archive.open(storage), last) == before
        clean(storage)
    storage.left = -1
    assert len(died) > 20, "a bundle, the note, ten commits; two more bundles"
    bundle_all(storage, RUNS + 1)
    assert facts(Archive.open(storage), last) == before


def asleep(storage: Storage, run: int) -> Writer:
    """A writer that has committed and does not continue: its machine is suspended."""
    writer = begin(storage, f"run-{run}", checkpoints=FEW)
    receipt = chunk(storage, run * 10, run * 10 + 10, epoch=writer.epoch)
    writer.commit(topics=[ORDERS], receipts=[receipt])
    writer.close()
    return writer


def test_a_writer_that_wakes_up_after_the_bundles_is_fenced_and_changes_nothing(storage: Storage) -> None:
    aged(storage, 2)
    sleeper = asleep(storage, 2)
    number = sleeper.state.commit + 1
    for run in range(3, RUNS):
        one_run(storage, run)
    archive = bundle_all(storage)
    newest = vars(archive.load())
    assert number not in archive.listing().commits
    with pytest.raises(ArchiveFenced, match="Run run-3 has taken over"):
        sleeper.commit(receipts=[chunk(storage, 500, 510, epoch=sleeper.epoch)])
    with pytest.raises(ArchiveFenced):
        sleeper.end(RunOutcome.SUCCEEDED)
    assert archive.listing().removable.keys() == {number}, "the number was free: its object is there"
    storage.delete([info.path for info in storage.list("topics/") if "00500." in info.path])
    assert vars(Archive.open(storage).load()) == newest
    clean(storage)
    assert Archive.open(storage).read_commit(number).run_id == "run-3"
    bundle_all(storage, 60)
    assert Archive.open(storage).listing().removable == {}


def test_a_removal_that_wakes_up_after_the_bundles_deletes_nothing(storage: Storage) -> None:
    aged(storage, 2)
    sleeper = one_run(storage, 2)
    for run in range(3, RUNS):
        one_run(storage, run)
    bundle_all(storage)
    with pytest.raises(ArchiveFenced):
        sleeper.remove([RemovedSegment(ID, 0, 0)])
    clean(storage)


def test_a_checkpoint_of_a_writer_that_slept_is_not_taken(storage: Storage) -> None:
    aged(storage, 2)
    sleeper = asleep(storage, 2)
    for run in range(3, RUNS):
        one_run(storage, run)
    archive = bundle_all(storage)
    sleeper.checkpoint()
    clean(storage)
    assert choose(archive).state.commit == archive.load().commit


def test_a_run_that_begins_with_an_old_look_at_the_archive_looks_again(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    aged(storage, 3)
    load = Archive.load_and_count
    slept: list[int] = []

    def sleeps(archive: Archive) -> object:
        found = load(archive)
        if not slept:
            slept.append(found[0].commit)
            for run in range(3, RUNS):
                one_run(storage, run)
            bundle_all(storage)
        return found

    monkeypatch.setattr(Archive, "load_and_count", sleeps)
    writer = one_run(storage, 70)
    assert slept == [8]
    assert writer.state.runs["run-70"].outcome is RunOutcome.SUCCEEDED
    assert writer.state.commit > 3 * RUNS
    clean(storage)


class LosesAnswers(LocalStorage):
    """Creates an object, and lets its caller not know. Or does other things before a create."""

    lose = False

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        if self.lose:
            raise StorageUnavailable("the answer was lost")


@pytest.mark.parametrize("bundled", [False, True])
def test_a_commit_whose_answer_was_lost_is_the_writers_also_when_it_is_in_a_bundle(
    tmp_path: Path, bundled: bool
) -> None:
    storage = LosesAnswers(f"file://{tmp_path}")
    aged(storage, 2)
    sleeper = asleep(storage, 2)
    storage.lose = True
    with pytest.raises(StorageUnavailable):
        sleeper.commit(receipts=[chunk(storage, 30, 40, epoch=sleeper.epoch)])
    storage.lose = False
    number = sleeper.state.commit + 1
    if bundled:
        for run in range(4, RUNS):
            one_run(storage, run)
        archive = bundle_all(storage)
        assert archive.read_commit(number).run_id == "run-2"
        with pytest.raises(ArchiveFenced, match="Run run-4 has taken over"):
            sleeper.end(RunOutcome.SUCCEEDED)
        assert sleeper.state.commit == number, "its own commit was found in the bundle"
    else:
        assert sleeper.end(RunOutcome.SUCCEEDED) == number + 1
    clean(storage)


class Suspends(LocalStorage):
    """Does something after it was listed."""

    then: Callable[[], object] | None = None

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        found = super().list(prefix)
        if self.then is not None and prefix == names.CATALOG:
            then, self.then = self.then, None
            then()
        return found


def test_a_reader_that_was_suspended_looks_again(tmp_path: Path) -> None:
    """It has listed nine commits. When it reads, commits are in bundles, and a stray one lies after the last."""
    storage = LocalStorage(f"file://{tmp_path}")
    aged(storage, 2)
    sleeper = asleep(storage, 2)
    suspended = Suspends(f"file://{tmp_path}")

    def meanwhile() -> None:
        for run in range(3, RUNS):
            one_run(storage, run)
        bundle_all(storage)
        with pytest.raises(ArchiveFenced):
            sleeper.end(RunOutcome.SUCCEEDED)

    suspended.then = meanwhile
    state = Archive.open(suspended).load()
    assert vars(state) == vars(Archive.open(storage).load())


def test_a_second_bundler_changes_nothing(storage: Storage) -> None:
    aged(storage)
    one, other = one_run(storage, RUNS), one_run(storage, RUNS + 1)
    assert bundle_old_commits(one, lambda: LATER).commits == 10
    data = storage.read(names.bundle_path(0))
    listing = other.archive.listing()
    without = CatalogListing({**listing.commits, **listing.removable}, [], {}, {})
    assert bundling._make_bundle(other.archive, without, 0, LATER) == 10
    assert storage.read(names.bundle_path(0)) == data


def listing_of(checkpoints: Iterator[tuple[int, int]], bundles: dict[int, int]) -> CatalogListing:
    found = [(number, 1, ObjectInfo(names.checkpoint_path(number, 1), size)) for number, size in checkpoints]
    by_number = {number: ObjectInfo(names.bundle_path(number), size) for number, size in bundles.items()}
    return CatalogListing({}, sorted(found, reverse=True), by_number, {})


def test_checkpoints_stay_that_save_as_much_reading_as_they_cost() -> None:
    checkpoints = iter([(9, 50), (14, 60), (19, 70), (29, 300), (39, 80), (59, 400), (69, 400)])
    listing = listing_of(checkpoints, dict.fromkeys(range(5), 100))
    gone = [info.path for info in bundling.useless_checkpoints(listing, 69)]
    # 9: 100 bytes of bundles before it. 14: 50 more. 19: 100 more. 29: 100 more for 300. 39: 200 more for 80.
    assert gone == [names.checkpoint_path(14, 1), names.checkpoint_path(29, 1)]


def test_checkpoints_above_the_bundles_the_newest_two_and_newer_ones_than_was_read_stay() -> None:
    def gone(read_back: int, bundles: int) -> list[int]:
        listing = listing_of(((number, 10**9) for number in range(9, 60, 10)), dict.fromkeys(range(bundles), 1))
        found = bundling.useless_checkpoints(listing, read_back)
        return [checkpoint[0] for info in found if (checkpoint := names.parse_checkpoint(info.path))]

    assert gone(59, 6) == [9, 19, 29, 39]
    assert gone(59, 2) == [9, 19]
    assert gone(29, 6) == [9, 19]
    assert gone(-1, 6) == []
