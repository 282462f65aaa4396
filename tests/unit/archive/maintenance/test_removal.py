"""Removing segments from an archive of files: the catalog first, then the objects, whatever comes between."""

import os
import time
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Partition, Receipt, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.run_note import RunNote
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance import removal
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.maintenance.removal import Purged, Removed, purge, remove_expired
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.view import _last_end, choose
from logkeep_engine.archive.writing.record_files import write_partition_indexes
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveFenced, ClockDoubtful, LogkeepError
from logkeep_engine.formats.records_names import RecordsName, pack_partition_index
from logkeep_engine.log.batch import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.spark.source import LogkeepSource
from logkeep_engine.storage import LocalStorage, ObjectInfo, Storage, open_uri
from tests.unit.archive.build import FAST, ORDERS, TIME, Batch, archive_of, begin, chunk, write_segment
from tests.unit.distant import Distant
from tests.unit.erasure.erasing import archive_records
from tests.unit.log.batches import NOON, batch, marker

ID = ORDERS.topic_id
HOUR = 3_600_000
DAY = 24 * HOUR
AN_HOUR = RetentionLimits(max_age=HOUR)
PRODUCER = 7


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def filled(storage: Storage) -> Archive:
    """Segments [0, 20) [20, 40) [40, 60) of partition 0; the record at offset o has the time TIME + o."""
    receipts = [chunk(storage, start, start + 20) for start in (0, 20, 40)]
    transactions = [AbortedTxn(7, 0, 5, 6)]
    with_index = write_segment(storage, [Batch(0).encode(), Batch(10).encode()], attempt=1, aborted=transactions)
    storage.delete(receipts[0].segments[0].objects("orders"))
    return archive_of(storage, replace(receipts[0], segments=(with_index,)), *receipts[1:])


def objects(storage: Storage) -> set[str]:
    return {info.path for info in storage.list("topics/")}


def retain(writer: Writer, limits: RetentionLimits, now: int) -> Removed:
    """Remove what is beyond the limits, and delete its objects at once."""
    removed = remove_expired(writer, limits, now)
    purge(writer)
    return removed


def bases(removals: Iterable[Unpurged]) -> list[int]:
    """The base offsets of the segments of these removals."""
    return [entry.base_offset for item in removals for entry in item.segments[ID, 0]]


def before(offset: int) -> tuple[RetentionLimits, int]:
    """Limits and a time by which the segments that end below `offset` are too old, and no other."""
    return RetentionLimits(max_age=1000), TIME + offset + 1000


def test_a_segment_that_is_too_old_goes_with_all_of_its_objects_and_the_rest_is_whole(storage: Storage) -> None:
    archive = filled(storage)
    entries = archive.load().segments[ID, 0]
    sizes = entries[0].objects("orders")
    assert len(sizes) == 4
    there = objects(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert retain(writer, *before(20)) == Removed(1, sum(sizes.values()))
    assert objects(storage) == there - set(sizes)
    state = archive.load()
    assert [item.base_offset for item in state.segments[ID, 0]] == [20, 40]
    assert (state.removed, state.unpurged, state.accounted_for(ID, 0)) == ({(ID, 0): [(0, 20)]}, (), [(0, 60)])
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 40)


def test_nothing_too_old_writes_nothing(storage: Storage) -> None:
    filled(storage)
    with begin(storage, "run-2") as writer:
        commit = writer.end(RunOutcome.SUCCEEDED)
        assert retain(writer, *before(5)) == Removed(0, 0)
        assert writer.state.commit == commit


def test_a_crash_between_the_commit_and_the_deletion_is_finished_by_the_next_run(storage: Storage) -> None:
    archive = filled(storage)
    there = objects(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 0), RemovedSegment(ID, 0, 20)])
    assert objects(storage) == there
    report = verify(archive)
    assert (report.faults, report.orphans) == ([], [])
    assert bases(archive.load().unpurged) == [0, 20]
    with begin(storage, "run-3") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        assert retain(writer, RetentionLimits(), 0) == Removed(0, 0)
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 20)
    assert archive.load().unpurged == ()


class Clocked(LocalStorage):
    """A store whose clock the test sets, in seconds since the epoch, as it sets that of the driver."""

    now = 0.0

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        os.utime(self._path(path), (self.now, self.now))

    def create(self, path: str, data: bytes) -> None:
        super().create(path, data)
        os.utime(self._path(path), (self.now, self.now))


class Clocks:
    """The clocks of a driver and of the store, in seconds since the epoch."""

    def __init__(self, storage: Clocked, monkeypatch: pytest.MonkeyPatch) -> None:
        self._storage, self.driver = storage, NOON / 1000
        monkeypatch.setattr(time, "time_ns", lambda: int(self.driver * 1e9))
        self.set(self.driver)

    def set(self, store: float, driver: float | None = None) -> None:
        self._storage.now, self.driver = store, store if driver is None else driver


@pytest.fixture
def clocked(tmp_path: Path) -> Clocked:
    return Clocked(f"file://{tmp_path}/archive")


@pytest.fixture
def clocks(clocked: Clocked, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(clocked, monkeypatch)


def removing(storage: Storage, run_id: str, *offsets: int) -> None:
    """A run that removes these segments and does not delete their objects."""
    with begin(storage, run_id) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove(RemovedSegment(ID, 0, offset) for offset in offsets)


def purging(storage: Storage, run_id: str, grace: int = DAY) -> Purged:
    """A run that deletes what was removed so long ago."""
    with begin(storage, run_id) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        return purge(writer, grace)


def test_objects_stay_for_the_grace_of_their_own_removal(clocked: Clocked, clocks: Clocks) -> None:
    archive, start = filled(clocked), NOON / 1000
    there = objects(clocked)
    removing(clocked, "one", 0)
    clocks.set(start + DAY / 2000)
    removing(clocked, "two", 20)
    clocks.set(start + DAY / 1000 - 1)
    assert purging(clocked, "three") == Purged(waiting=2)
    assert objects(clocked) == there
    clocks.set(start + DAY / 1000)
    found = purging(clocked, "four")
    assert (found.segments, found.waiting) == (1, 1)
    assert bases(archive.load().unpurged) == [20]
    clocks.set(start + 2 * DAY / 1000)
    assert purging(clocked, "five").segments == 1
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 20)


def test_the_store_tells_only_the_time_of_removals_whose_grace_may_be_over(
    clocked: Clocked, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(clocked)
    removing(clocked, "one", 0)
    removed_by = Archive.open(clocked).load().commit
    clocks.set(NOON / 1000 + DAY / 2000)
    removing(clocked, "two", 20)
    clocks.set(NOON / 1000 + DAY / 1000)
    asked: list[str] = []
    listed = Clocked.list

    def counted(store: Clocked, prefix: str = "") -> list[ObjectInfo]:
        asked.append(prefix)
        return listed(store, prefix)

    monkeypatch.setattr(Clocked, "list", counted)
    assert purging(clocked, "three").waiting == 1
    assert [path for path in asked if path.startswith(names.commit_path(0)[:-10])] == [names.commit_path(removed_by)]


def test_the_index_of_a_partition_is_written_once_for_all_removals(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_records(storage, FormatName.RECORDS, [[(0, b"a")], [(1, b"b")], [(2, b"c")]])
    written: list[list[object]] = []

    def counted(storage: Storage, state: ArchiveState, keys: list[Partition], *, root: str) -> None:
        written.append(list(keys))
        write_partition_indexes(storage, state, keys, root=root)

    monkeypatch.setattr(removal, "write_partition_indexes", counted)
    with begin_run(Archive.open(storage), "run-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        for offset in (0, 1):
            writer.remove([RemovedSegment(ID, 0, offset)])
        assert purge(writer).segments == 2
    assert written == [[(ID, 0)]]
    assert storage.read("topics/orders/index_partition_000") == pack_partition_index([RecordsName(0, 2)])


YEAR = 365 * 86_400


@pytest.mark.parametrize(("store", "driver"), [(YEAR, 0), (0, YEAR), (-YEAR, 0), (0, -YEAR)])
def test_a_clock_that_is_wrong_by_a_year_deletes_nothing(
    clocked: Clocked, clocks: Clocks, store: int, driver: int
) -> None:
    filled(clocked)
    there, start = objects(clocked), NOON / 1000
    removing(clocked, "one", 0)
    clocks.set(start + store, start + driver)
    with pytest.raises(ClockDoubtful):
        purging(clocked, "two")
    assert objects(clocked) == there


@pytest.mark.parametrize(("store", "driver"), [(YEAR, 0), (0, YEAR), (-YEAR, 0), (0, -YEAR)])
def test_a_clock_that_was_wrong_by_a_year_when_a_segment_was_removed_shortens_no_grace(
    clocked: Clocked, clocks: Clocks, store: int, driver: int
) -> None:
    filled(clocked)
    start = NOON / 1000
    clocks.set(start + store, start + driver)
    removing(clocked, "wrong", 0)
    clocks.set(start + DAY / 1000 - 60)
    with begin(clocked, "soon") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.state.runs["wrong"] = replace(writer.state.runs["wrong"], end_time=NOON)
        assert purge(writer, DAY) == Purged(waiting=1)
        clocks.set(start + DAY / 1000)
        assert purge(writer, DAY).segments == 1


def test_objects_stay_as_long_as_a_run_reads_that_has_begun_before_their_removal(storage: Storage) -> None:
    archive = filled(storage)
    with RunNote(storage, "restore-1") as old, RunNote(storage, "restore-2") as young:
        old.knows(archive.load().commit)
        removing(storage, "one", 0)
        young.knows(archive.load().commit)
        removing(storage, "two", 20)
        found = purging(storage, "three", 0)
        assert (found.segments, found.waiting, found.readers) == (0, 2, ("restore-1", "restore-2"))
        old.write(ended=True)
        found = purging(storage, "four", 0)
        assert (found.segments, found.waiting, found.readers) == (1, 1, ("restore-2",))
    assert purging(storage, "five", 0).segments == 1
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])


def test_what_the_archive_names_again_is_never_deleted(storage: Storage) -> None:
    """In formats whose names have no epoch another segment may have taken the place of a removed one."""
    filled(storage)
    there = objects(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        first = writer.state.segments[ID, 0][0]
        writer.remove([RemovedSegment(ID, 0, 0)])
        writer.state.segments.add(first)
        purge(writer)
    assert objects(storage) == there


def test_a_crash_between_two_deletions_is_finished_too(storage: Storage) -> None:
    archive = filled(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 0)])
        storage.delete([sorted(objects(storage))[0]])
    with begin(storage, "run-3") as writer:
        purge(writer)
        number = writer.state.commit
        purge(writer)
        assert writer.state.commit == number
    assert (verify(archive).faults, verify(archive).orphans) == ([], [])


def test_a_checkpoint_between_the_commit_and_the_deletion_knows_what_is_left_to_delete(storage: Storage) -> None:
    archive = filled(storage)
    with begin(storage, "run-2", checkpoints=CheckpointPolicy(most_commits=1)) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ID, 0, 0)])
    assert archive.listing().checkpoints[0][0] == archive.load().commit
    assert verify(archive).faults == []
    with begin(storage, "run-3") as writer:
        purge(writer)
    assert verify(archive).orphans == []


def test_many_segments_go_a_commit_and_a_deletion_at_a_time(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "SEGMENTS_AT_ONCE", 2)
    archive = filled(storage)
    with begin(storage, "run-2") as writer:
        commit = writer.end(RunOutcome.SUCCEEDED)
        assert retain(writer, *before(60)).segments == 3
        assert writer.state.commit == commit + 3
    assert objects(storage) == set()
    assert archive.load().removed == {(ID, 0): [(0, 60)]}


def in_transaction(base: int, *times: int) -> bytes:
    """A batch of producer 7's transaction; its records have these times after NOON."""
    records = [Record(base + at, NOON + time, None, b"v") for at, time in enumerate(times)]
    return encode(records, codec=Codec.NONE, base_offset=base, producer_id=PRODUCER, transactional=True)


def archived(storage: Storage, run_id: str, outcome: RunOutcome, start: int, *segments: SegmentEntry) -> None:
    """A run that archives these segments and the offsets from `start` to the end of the last."""
    with begin(storage, run_id) as writer:
        coverage = Coverage(ID, 0, start, segments[-1].next_offset)
        writer.commit(topics=[ORDERS], receipts=[Receipt((coverage,), segments)])
        writer.end(outcome)


def read_offsets(storage: Storage) -> list[int]:
    """The offsets of all records that the Spark reader finds."""
    reader = LogkeepSource({"path": storage.uri}).reader(StructType([StructField("offset", LongType())]))
    batches = (batch for partition in reader.partitions() for batch in reader.read(partition))
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def remove_at(storage: Storage, hours: int, limits: RetentionLimits = AN_HOUR) -> int:
    """The number of segments that a run removes if it ends so long after NOON."""
    with begin(storage, f"removes-after-{hours}") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        return retain(writer, limits, NOON + hours * HOUR).segments


@pytest.mark.parametrize("by_size", [False, True])
def test_aborted_records_are_never_left_without_their_marker(storage: Storage, by_size: bool) -> None:
    records = write_segment(storage, [in_transaction(0, 0, 10 * HOUR)])
    between = write_segment(storage, [batch(2, 1)])
    aborted = [AbortedTxn(PRODUCER, 0, 3, 0)]
    markers = write_segment(storage, [marker(3, PRODUCER, commit=False), batch(4, 2)], aborted=aborted)
    archived(storage, "run-1", RunOutcome.SUCCEEDED, 0, records, between, markers)
    assert read_offsets(storage) == [2, 4, 5]
    removed = remove_at(storage, 5, RetentionLimits(max_bytes=object_bytes(markers)) if by_size else AN_HOUR)
    assert (removed, read_offsets(storage)) == ((2, [4, 5]) if by_size else (0, [2, 4, 5]))
    remove_at(storage, 12)
    assert read_offsets(storage) == []


def test_aborted_records_of_many_segments_are_never_left_without_their_marker(storage: Storage) -> None:
    newest = (1, 30, 2, 20)
    parts = [write_segment(storage, [in_transaction(base, at * HOUR)]) for base, at in enumerate(newest)]
    ends = write_segment(storage, [marker(4, PRODUCER, commit=False)], aborted=[AbortedTxn(PRODUCER, 0, 4, 0)])
    archived(storage, "run-1", RunOutcome.SUCCEEDED, 0, *parts, ends)
    for hours, removed in ((2, 0), (3, 1), (25, 0), (32, 4)):
        assert (remove_at(storage, hours), read_offsets(storage)) == (removed, [])


def test_a_removal_that_ends_early_leaves_no_aborted_record_without_its_marker(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "SEGMENTS_AT_ONCE", 1)
    records = write_segment(storage, [in_transaction(0, 2 * HOUR)])
    markers = write_segment(storage, [marker(1, PRODUCER, commit=False)], aborted=[AbortedTxn(PRODUCER, 0, 1, 0)])
    archived(storage, "run-1", RunOutcome.SUCCEEDED, 0, records, markers)
    with begin(storage, "killed") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        monkeypatch.setattr(writer, "remove", Mock(wraps=writer.remove, side_effect=[DEFAULT, KeyboardInterrupt]))
        with pytest.raises(KeyboardInterrupt):
            retain(writer, AN_HOUR, NOON + 5 * HOUR)
    assert [item.base_offset for item in Archive.open(storage).load().segments[ID, 0]] == [1]
    assert read_offsets(storage) == []
    assert remove_at(storage, 5) == 1


def test_committed_records_stay_readable_where_transactions_are_followed_from_batch_to_batch(storage: Storage) -> None:
    # The first run has failed inside the transaction: if nothing of the second is left, it is unknown how it ended.
    archived(storage, "run-1", RunOutcome.FAILED, 0, write_segment(storage, [in_transaction(0, 10 * HOUR)]))
    between = write_segment(storage, [batch(1, 1)], epoch=2)
    markers = write_segment(storage, [marker(2, PRODUCER, commit=True), batch(3, 1)], epoch=2)
    archived(storage, "run-2", RunOutcome.SUCCEEDED, 1, between, markers)
    assert remove_at(storage, 5) == 0
    assert read_offsets(storage) == [0, 1, 3]


def test_what_was_removed_is_not_archived_again(storage: Storage) -> None:
    archive = filled(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, *before(60))
    with begin(storage, "run-3") as writer:
        ignored = writer.commit(receipts=[chunk(storage, 0, 20, epoch=3)]).ignored
        assert [why for _, why in ignored] == ["its offsets are archived already"]
        writer.commit(receipts=[chunk(storage, 60, 80, epoch=3)])
    assert [item.base_offset for item in archive.load().segments[ID, 0]] == [60]


def test_a_run_that_was_overtaken_removes_nothing(storage: Storage) -> None:
    archive = filled(storage)
    old = begin(storage, "run-2")
    old.end(RunOutcome.SUCCEEDED)
    with begin(storage, "run-3"):
        there = objects(storage)
        with pytest.raises(ArchiveFenced):
            retain(old, *before(60))
    assert objects(storage) == there
    assert archive.load().removed == {}


def test_a_run_that_was_overtaken_after_its_commit_deletes_what_is_removed_and_nothing_else(storage: Storage) -> None:
    archive = filled(storage)
    old = begin(storage, "run-2")
    old.end(RunOutcome.SUCCEEDED)
    old.remove([RemovedSegment(ID, 0, 0)])
    with begin(storage, "run-3") as writer:
        writer.commit(receipts=[chunk(storage, 60, 80, epoch=3)])
        with pytest.raises(ArchiveFenced):
            purge(old)
        writer.end(RunOutcome.SUCCEEDED)
        purge(writer)
    report = verify(archive)
    assert (report.faults, report.orphans, report.records) == ([], [], 60)


def test_a_writer_removes_only_what_is_there_and_one_batch_after_another(storage: Storage) -> None:
    filled(storage)
    with begin(storage, "run-2") as writer:
        with pytest.raises(ValueError, match="run run-2 has not ended with success"):
            writer.remove([RemovedSegment(ID, 0, 0)])
        writer.end(RunOutcome.SUCCEEDED)
        for missing in (RemovedSegment(ID, 0, 10), RemovedSegment(ID, 1, 0), RemovedSegment(ID, 0, 60)):
            with pytest.raises(ValueError, match="there is no segment"):
                writer.remove([missing])
        writer.remove([RemovedSegment(ID, 0, 0)])
        first = writer.state.commit
        writer.remove([RemovedSegment(ID, 0, 20)])
        for unknown in ([first - 1], [first, first + 2]):
            with pytest.raises(ValueError, match="have removed no segments"):
                writer.purged(unknown)
        writer.purged([first])
        assert bases(writer.state.unpurged) == [20]
        writer.purged([first + 1])
        writer.purged([])
        assert (writer.state.unpurged, writer.state.commit) == ((), first + 3)
        with pytest.raises(ValueError, match="run run-2 has ended"):
            writer.commit(receipts=[chunk(storage, 60, 80, epoch=2)])


def test_a_run_that_failed_removes_nothing(storage: Storage) -> None:
    filled(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.FAILED)
        with pytest.raises(ValueError, match="has not ended with success"):
            retain(writer, *before(60))


def test_a_description_says_what_was_removed(storage: Storage) -> None:
    archive = filled(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, *before(20))
    zero, one = describe(archive.info, archive.load()).topics[0].partitions
    assert (zero.start, zero.end, zero.records, zero.removed, zero.holes) == (0, 60, 40, ((0, 20),), ())
    assert one.removed == ()
    assert zero.to_json()["removed"] == [[0, 20]]


def test_a_restore_sees_what_the_last_success_left_after_its_removals(storage: Storage) -> None:
    archive = filled(storage)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        retain(writer, *before(20))
    seen = choose(archive).state
    assert [item.base_offset for item in seen.segments[ID, 0]] == [20, 40]
    with begin(storage, "run-3") as writer:
        writer.commit(receipts=[chunk(storage, 60, 80, epoch=3)])
        state = choose(archive).state
        assert state.same_facts(seen)
        assert archive.load_at(state.commit).same_facts(seen)


def test_commits_of_a_run_that_continues_are_read_side_by_side_to_find_the_last_success(tmp_path: Path) -> None:
    """They may be thousands, and each takes an object store some hundredths of a second."""
    storage = Distant(f"file://{tmp_path}/archive", 0)
    archive = filled(storage)
    success = archive.load().commit
    with begin(storage, "run-2") as writer:
        for start in range(60, 260, 10):
            writer.commit(receipts=[chunk(storage, start, start + 10, epoch=2)])
        storage.most, storage.seconds = 0, 0.2
        end = _last_end(archive, writer.state.commit)
        assert end is not None
        assert end.number == success
        assert storage.most > 1


def test_objects_that_cannot_be_deleted_are_left_to_the_next_run(storage: Storage, tmp_path: Path) -> None:
    archive = filled(storage)
    name = next(iter(archive.load().segments[ID, 0][1].objects("orders")))
    stuck = tmp_path / "archive" / name
    stuck.unlink()
    (stuck / "in-the-way").mkdir(parents=True)
    with begin(storage, "run-2") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        with pytest.raises(LogkeepError, match=stuck.name):
            retain(writer, *before(60))
        (stuck / "in-the-way").rmdir()
        stuck.rmdir()
    with begin(storage, "run-3") as writer:
        purge(writer)
    assert (verify(archive).faults, objects(storage)) == ([], set())
