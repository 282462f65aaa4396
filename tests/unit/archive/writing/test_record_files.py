"""The files beside the segments of a Records archive: which are made when, and by whom."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, GroupEntry, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.writing.record_files import write_consumer_offsets, write_partition_indexes
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.backup.run.finishing import write_record_files
from logkeep_engine.contract.archive_format import FormatName, FormatOptions
from logkeep_engine.convert.folder import scan
from logkeep_engine.errors import ArchiveFenced, StorageUnavailable
from logkeep_engine.formats.records_groups import read_consumer_offsets
from logkeep_engine.formats.records_names import read_partition_index
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import CLUSTER, FAST

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
ORDERS = TopicEntry("orders", ID, 3, 1)
EMPTY = b"\x01"

Range = tuple[int, int]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = open_uri(f"file://{tmp_path}")
    Archive.create_or_open(storage, CLUSTER, FormatName.RECORDS)
    return storage


def begin(storage: Storage, run_id: str) -> Writer:
    return begin_run(Archive.open(storage), run_id, wait=FAST)


def segment(storage: Storage, epoch: int, start: int, end: int, topic: TopicEntry = ORDERS) -> SegmentEntry:
    sink = RecordSink(
        storage, Layout.RECORDS, topic.name, topic.topic_id, 0, epoch, 0, 1 << 20, FormatOptions()
    )  # fmt: skip
    sink.append([PlainRecord(offset, 1000 + offset, 0, b"k", b"v", ()) for offset in range(start, end)])
    return sink.finish()


def plan(
    run_id: str, topics: Sequence[TopicEntry], chunks: Sequence[Range], groups: Sequence[GroupEntry]
) -> BackupPlan:
    rows = tuple(Chunk(topics[0].name, topics[0].topic_id, 0, start, end, 1, 10) for start, end in chunks)
    return BackupPlan(run_id, tuple(topics), rows, groups=tuple(groups))


def run(
    storage: Storage,
    run_id: str,
    *chunks: Range,
    topics: Sequence[TopicEntry] = (ORDERS,),
    groups: Sequence[GroupEntry] = (),
    fails: bool = False,
) -> None:
    """A backup run that archives these offsets of partition 0 of the first topic. If it fails, before it has come to
    the files."""
    with begin(storage, run_id) as writer:
        before = dict(writer.state.topics)
        entries = [segment(storage, writer.epoch, *chunk, topics[0]) for chunk in chunks]
        covered = [Coverage(topics[0].topic_id, 0, *chunk) for chunk in chunks]
        writer.commit(topics=topics, receipts=[Receipt((c,), (e,)) for c, e in zip(covered, entries, strict=True)])
        if fails:
            writer.end(RunOutcome.FAILED)
            return
        made = plan(run_id, topics, chunks, groups)
        write_record_files(writer, made, writer.state.groups_after(groups, topics), before)
        writer.end(RunOutcome.SUCCEEDED, groups=made.groups)


def index_path(partition: int, topic: str = "orders") -> str:
    return f"{names.TOPICS}{topic}/index_partition_{partition:03d}"


def starts(storage: Storage, partition: int = 0, topic: str = "orders") -> list[int]:
    return [item.start_offset for item in read_partition_index(storage.read(index_path(partition, topic)))]


def files(storage: Storage) -> dict[str, str | None]:
    """The versions of those that no commit names."""
    found = [info.path for info in storage.list(names.TOPICS)]
    return {path: storage.version(path) for path in found if "/segment_" not in path}


# ---- which are made


def test_every_partition_has_an_index_and_those_with_records_have_positions(storage: Storage) -> None:
    run(storage, "one", (0, 10), (10, 20), groups=[GroupEntry("g", "orders", ID, 0, 7)])
    folder = f"{names.TOPICS}orders/"
    assert {path.removeprefix(folder) for path in files(storage)} == {
        "index_partition_000",
        "index_partition_001",
        "index_partition_002",
        "consumer_offsets_partition_000",
    }
    assert starts(storage) == [0, 10]
    assert [storage.read(index_path(partition)) for partition in (1, 2)] == [EMPTY, EMPTY]
    assert read_consumer_offsets(storage.read(f"{folder}consumer_offsets_partition_000")) == {"g": 7}


def test_import_counts_partitions_without_records(storage: Storage) -> None:
    nothing = TopicEntry("nothing", "AAAAAAAAAAAAAAAAAAAAAw", 2, 1)
    run(storage, "one", (0, 10), topics=[ORDERS, nothing])
    assert scan(storage.list(), storage.uri).partitions == {"orders": 3, "nothing": 2}


def test_later_run_makes_what_is_new_and_leaves_the_rest(storage: Storage) -> None:
    run(storage, "one", (0, 10))
    before = files(storage)
    run(storage, "two", topics=[TopicEntry("orders", ID, 4, 1)])
    after = files(storage)
    assert after == before | {index_path(3): after[index_path(3)]}
    assert storage.read(index_path(3)) == EMPTY
    run(storage, "three", (10, 20))
    assert starts(storage) == [0, 10]
    assert {path: version for path, version in files(storage).items() if after[path] != version}.keys() == {
        index_path(0),
        f"{names.TOPICS}orders/consumer_offsets_partition_000",
    }


def test_after_a_run_that_failed_all_are_made(storage: Storage) -> None:
    nothing = TopicEntry("nothing", "AAAAAAAAAAAAAAAAAAAAAw", 2, 1)
    run(storage, "one", (0, 10), topics=[ORDERS, nothing], fails=True)
    assert files(storage) == {}
    run(storage, "two", topics=[TopicEntry("other", "AAAAAAAAAAAAAAAAAAAABA", 1, 1)])
    assert starts(storage) == [0]
    made = [index_path(1), index_path(2), index_path(0, "nothing"), index_path(1, "nothing"), index_path(0, "other")]
    assert [storage.read(path) for path in made] == [EMPTY] * 5


def test_the_last_run_is_the_last_that_began_not_the_last_that_was_new(storage: Storage) -> None:
    """A run keeps its id when it is started again."""
    run(storage, "one", (0, 10), fails=True)
    run(storage, "two")
    run(storage, "one", (10, 20), fails=True)
    run(storage, "three")
    assert starts(storage) == [0, 10]


def test_run_that_was_begun_before_makes_all(storage: Storage) -> None:
    with begin(storage, "one") as writer:
        writer.commit(topics=[ORDERS])
    run(storage, "one", (0, 10))
    assert [storage.read(index_path(partition)) for partition in (1, 2)] == [EMPTY, EMPTY]


def test_topic_without_records_that_was_made_again_does_not_hide_the_records_of_the_new_one(storage: Storage) -> None:
    run(storage, "one", fails=True)
    again = TopicEntry("orders", "AAAAAAAAAAAAAAAAAAAAAw", 1, 1)
    run(storage, "two", (0, 10), topics=[again])
    assert starts(storage) == [0]
    assert index_path(1) not in files(storage)


# ---- by whom

Write = Callable[[Storage, Writer], None]
BOTH = pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda storage, writer: write_partition_indexes(storage, writer.state, [(ID, 0)]), id="index"),
        pytest.param(
            lambda storage, writer: write_consumer_offsets(storage, writer.state, [(ID, 0)], []), id="consumer-offsets"
        ),
    ],
)


@BOTH
def test_run_that_was_overtaken_replaces_nothing(storage: Storage, write: Write) -> None:
    with begin(storage, "old") as old:
        entry = segment(storage, old.epoch, 0, 10)
        old.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ID, 0, 0, 10),), (entry,))])
    run(storage, "new", (10, 20), groups=[GroupEntry("g", "orders", ID, 0, 7)])
    before = files(storage)
    with pytest.raises(ArchiveFenced, match=r"Run new has taken over the archive .* at epoch 2"):
        write(storage, old)
    assert files(storage) == before
    assert starts(storage) == [0, 10]


@BOTH
@pytest.mark.parametrize("was_there", [False, True])
def test_run_that_is_overtaken_between_its_looks_replaces_nothing(
    storage: Storage, write: Write, was_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if was_there:
        run(storage, "first", (0, 10))
    with begin(storage, "old") as old:
        old.commit(topics=[ORDERS])
    listing = Archive.listing

    def overtaken(archive: Archive) -> object:
        found = listing(archive)
        monkeypatch.undo()
        run(storage, "new", (10, 20), groups=[GroupEntry("g", "orders", ID, 0, 7)])
        return found

    monkeypatch.setattr(Archive, "listing", overtaken)
    with pytest.raises(ArchiveFenced, match="Run new has taken over"):
        write(storage, old)
    assert starts(storage) == ([0, 10] if was_there else [10])
    positions = storage.read(f"{names.TOPICS}orders/consumer_offsets_partition_000")
    assert read_consumer_offsets(positions) == {"g": 7}


@pytest.mark.parametrize("same", [False, True])
def test_file_that_another_has_written_meanwhile_is_left_to_the_next_attempt_unless_it_is_the_same(
    storage: Storage, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same: the answer to the request that wrote it was lost."""
    listing = Archive.listing

    def written_meanwhile(archive: Archive) -> object:
        found = listing(archive)
        monkeypatch.undo()
        storage.put(index_path(1), EMPTY if same else b"something else")
        return found

    with begin(storage, "one") as writer:
        writer.commit(topics=[ORDERS])
        monkeypatch.setattr(Archive, "listing", written_meanwhile)
        if not same:
            with pytest.raises(StorageUnavailable, match="index_partition_001 was written by another writer"):
                write_partition_indexes(storage, writer.state, [(ID, 1)])
            assert storage.read(index_path(1)) == b"something else"
        write_partition_indexes(storage, writer.state, [(ID, 1)])
    assert storage.read(index_path(1)) == EMPTY
