"""Objects of attempts that did not come to their end are removed, and nothing else."""

from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance.leftovers import may_have_leftovers, remove_leftovers
from logkeep_engine.archive.maintenance.record_check import verify_record_segment
from logkeep_engine.archive.maintenance.retaining import change_holds
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import FormatName, FormatOptions
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST, ORDERS
from tests.unit.archive.writing.test_record_segments import BOTH, FORMATS, records

ID = ORDERS.topic_id
KEY = (ID, 0)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}")


def write(
    storage: Storage,
    layout: Layout,
    start: int,
    end: int,
    *,
    epoch: int = 1,
    partition: int = 0,
    topic: TopicEntry = ORDERS,
) -> SegmentEntry:
    options = FormatOptions()
    sink = RecordSink(storage, layout, topic.name, topic.topic_id, partition, epoch, 0, 1 << 20, options)
    sink.append(records(*range(start, end)))
    return sink.finish()


def begin(
    storage: Storage, layout: Layout, run_id: str = "two", *, imported: bool = False, kind: str = "KafkaBackup"
) -> Writer:
    archive = Archive.create_or_open(storage, CLUSTER, FORMATS[layout], imported=imported)
    return begin_run(archive, run_id, kind=kind, wait=FAST)


def killed(storage: Storage, layout: Layout, *ranges: tuple[int, int]) -> list[str]:
    """A run that was killed when it had written segments of partition 0; their objects."""
    with begin(storage, layout, "one"):
        entries = [write(storage, layout, *part) for part in ranges]
    return [path for entry in entries for path in entry.objects("orders")]


def succeed(writer: Writer, layout: Layout, *ranges: tuple[int, int], gaps: tuple[Gap, ...] = ()) -> None:
    """Archive segments of partition 0, and end the run."""
    storage = writer.archive.storage
    for start, end in ranges:
        entry = write(storage, layout, start, end, epoch=writer.epoch)
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ID, 0, start, end),), (entry,))])
    writer.commit(topics=[ORDERS], receipts=[Receipt(gaps=(gap,)) for gap in gaps])
    writer.end(RunOutcome.SUCCEEDED)


def assert_whole(storage: Storage, *, orphans: list[str] | None = None) -> None:
    report = verify(Archive.open(storage))
    assert (report.faults, report.orphans) == ([], sorted(orphans or []))


@BOTH
def test_objects_of_other_bounds_are_removed_and_named_ones_stay(storage: Storage, layout: Layout) -> None:
    left = killed(storage, layout, (0, 50), (50, 100), (100, 150))
    writer = begin(storage, layout)
    succeed(writer, layout, (0, 100), (100, 200))
    assert may_have_leftovers(writer)
    (entry,) = [entry for entry in writer.state.segments[KEY] if entry.base_offset == 100]
    assert remove_leftovers(writer, [KEY]) == len(left) // 3
    assert_whole(storage)
    assert verify_record_segment(storage, "orders", entry) == []
    assert remove_leftovers(writer, [KEY]) == 0, "and there is nothing more to do"


@BOTH
def test_what_lies_after_the_archived_offsets_is_left(storage: Storage, layout: Layout) -> None:
    """A later run may need it as it is, or have written it."""
    left = killed(storage, layout, (50, 100), (200, 250))
    writer = begin(storage, layout)
    succeed(writer, layout, (0, 200))
    remove_leftovers(writer, [KEY])
    assert_whole(storage, orphans=left[len(left) // 2 :])


@BOTH
def test_segments_of_a_later_run_are_left(storage: Storage, layout: Layout) -> None:
    left = killed(storage, layout, (50, 100))
    writer = begin(storage, layout)
    succeed(writer, layout, (0, 200))
    succeed(begin(storage, layout, "three"), layout, (200, 300))
    assert remove_leftovers(writer, [KEY]) == 0
    assert_whole(storage, orphans=left)
    assert len(Archive.open(storage).load().segments[KEY]) == 2


@BOTH
@pytest.mark.parametrize("gap", [(100, 150), (200, 230)], ids=["inside", "behind"])
def test_what_may_be_the_only_copy_of_lost_records_is_left(
    storage: Storage, layout: Layout, gap: tuple[int, int]
) -> None:
    left = killed(storage, layout, (50, 120))
    writer = begin(storage, layout)
    ranges = [(0, 100), (150, 200)] if gap[0] == 100 else [(0, 200)]
    succeed(writer, layout, *ranges, gaps=(Gap(ID, 0, *gap, "gone"),))
    assert remove_leftovers(writer, [KEY]) == 0
    assert_whole(storage, orphans=left)


@BOTH
def test_leftovers_after_a_gap_are_removed(storage: Storage, layout: Layout) -> None:
    killed(storage, layout, (150, 180), (180, 200))
    writer = begin(storage, layout)
    succeed(writer, layout, (0, 100), (150, 200), gaps=(Gap(ID, 0, 100, 150, "gone"),))
    assert remove_leftovers(writer, [KEY]) > 0
    assert_whole(storage)


@BOTH
def test_other_partitions_topics_and_files_are_left(storage: Storage, layout: Layout) -> None:
    with begin(storage, layout, "one"):
        other = TopicEntry("orders.eu", "b" * 22, 1, 1)
        entries = [
            (write(storage, layout, 50, 100, partition=1), "orders"),
            (write(storage, layout, 50, 100, topic=other), "orders.eu"),
        ]
    left = [path for entry, topic in entries for path in entry.objects(topic)]
    foreign = {
        Layout.AVRO: ["partition=0/orders+0-50.data", "partition=0/note.data", "0/orders-0-50.avro"],
        Layout.RECORDS: ["segment_partition_0_from_offset_50_records", "note", "more/segment_partition_000_records"],
    }[layout]
    for name in foreign:
        storage.put(f"topics/orders/{name}", b"not ours")
    writer = begin(storage, layout)
    succeed(writer, layout, (0, 200))
    assert remove_leftovers(writer, [KEY]) == 0
    assert_whole(storage, orphans=[*left, *(f"topics/orders/{name}" for name in foreign)])


@BOTH
def test_adopted_folder_loses_nothing(storage: Storage, layout: Layout) -> None:
    left = list(write(storage, layout, 50, 100).objects("orders"))
    writer = begin(storage, layout, imported=True, kind="Import")
    succeed(writer, layout, (0, 200))
    assert remove_leftovers(writer, [KEY]) == 0
    assert_whole(storage, orphans=left)


@BOTH
def test_archive_that_was_converted_from_another_tool_s_folder_is_logkeep_s_own(
    storage: Storage, layout: Layout
) -> None:
    write(storage, layout, 50, 100)
    writer = begin(storage, layout, imported=True, kind="Convert")
    succeed(writer, layout, (0, 200))
    assert remove_leftovers(writer, [KEY]) > 0
    assert_whole(storage)


@BOTH
def test_run_that_did_not_succeed_removes_nothing(storage: Storage, layout: Layout) -> None:
    killed(storage, layout, (50, 100))
    with begin(storage, layout) as writer:
        with pytest.raises(ValueError, match="has not ended with success"):
            remove_leftovers(writer, [KEY])
        writer.end(RunOutcome.FAILED)
    with pytest.raises(ValueError, match="has not ended with success"):
        remove_leftovers(writer, [KEY])


def test_archive_of_kafka_s_format_has_names_of_its_own_for_every_attempt(storage: Storage) -> None:
    storage.put("topics/orders/segment_partition_000_from_offset_0000000050_records", b"?")
    with begin_run(Archive.create_or_open(storage, CLUSTER, FormatName.KAFKA), "one", wait=FAST) as writer:
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ID, 0, 0, 100),))])
        writer.end(RunOutcome.SUCCEEDED)
    assert remove_leftovers(writer, [KEY]) == 0


def test_folders_are_looked_at_only_after_an_attempt_that_did_not_come_to_its_end(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.archive.catalog.writer.Timing", lambda: FAST)
    found = []
    for run_id, outcome in (
        ("one", RunOutcome.SUCCEEDED),
        ("two", RunOutcome.FAILED),
        ("three", None),
        ("three", None),
    ):
        with begin(storage, Layout.AVRO, run_id) as writer:
            found.append(may_have_leftovers(writer))
            if outcome is not None:
                writer.end(outcome)
    assert found == [False, False, True, True]
    change_holds(Archive.open(storage), "hold-1", [Hold(HoldKind.TOPIC, "x", HoldOrigin.COMMAND)], release=False)
    with begin(storage, Layout.AVRO, "behind-a-hold") as writer:
        assert may_have_leftovers(writer), "a hold is no backup"
        writer.end(RunOutcome.FAILED)
    with begin(storage, Layout.AVRO, "three") as writer:
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, Layout.AVRO, "four") as writer:
        assert not may_have_leftovers(writer)
        writer.end(RunOutcome.SUCCEEDED)
    with begin(storage, Layout.AVRO, "four") as writer:
        assert may_have_leftovers(writer), "the same run again"
