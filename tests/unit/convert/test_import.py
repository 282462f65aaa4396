"""Folders that other tools wrote: adopted where they are, or converted; what does not fit is refused by name."""

import io
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import fastavro
import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import GroupEntry, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.archive_format import Compatibility, DigestAlgorithm, FormatName, FormatOptions
from logkeep_engine.convert.foreign import topic_id
from logkeep_engine.convert.imported import _contents, adopt, foreign_source
from logkeep_engine.convert.run import ConvertOptions, ConvertResult, run_convert
from logkeep_engine.formats.avro_schema import PUBLISHED
from logkeep_engine.formats.records_index import pack_entries
from logkeep_engine.formats.records_names import RecordsName, pack_partition_index, read_partition_index
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.report import Reporter
from logkeep_engine.storage import WHOLE_BYTES, LocalStorage
from tests.kafka.record_archives import write_archive
from tests.runners import HereRunner
from tests.unit.archive.build import FAST, archive_of, chunk
from tests.unit.convert.converting import (
    ORDERS_OFFSETS,
    contents,
    convert,
    converted,
    folder,
    tricky,
)
from tests.unit.convert.test_convert import kill_before
from tests.unit.distant import Distant
from tests.unit.erasure.erasing import Killed
from tests.unit.formats.osodevops_archive import LZ4, NONE, ZSTD, OsoArchive, Written
from tests.unit.formats.records_folder import RecordsFolder
from tests.unit.toolbox.test_offsets import COMMIT_KEY, commit

FIRST = "orders/segment_partition_000_from_offset_0000000000"


@pytest.fixture
def original(tmp_path: Path) -> LocalStorage:
    """The archive that all folders of these tests come from."""
    storage = folder(tmp_path / "original")
    tricky(storage)
    return storage


def written(original: LocalStorage, root: Path, layout: Layout, **options: Any) -> LocalStorage:
    """Write what another tool would have left: the topics' folders, and nothing of Logkeep's."""
    made = root.with_name(f"{root.name}-made")
    name = FormatName.AVRO if layout is Layout.AVRO else FormatName.RECORDS
    converted(original, folder(made), name.value, **options)
    if layout is Layout.RECORDS_AT_ROOT:
        shutil.copytree(made / "topics", root)
    else:
        shutil.copytree(made / "topics", root / "topics")
    return folder(root)


@pytest.fixture
def records(original: LocalStorage, tmp_path: Path) -> LocalStorage:
    """A folder of the Records format as its tool leaves it."""
    return written(original, tmp_path / "records", Layout.RECORDS_AT_ROOT)


def path_of(storage: LocalStorage, name: str) -> Path:
    return Path(storage.uri.removeprefix("file://")) / name


def adopted(storage: LocalStorage, run_id: str = "import-1", **options: Any) -> ArchiveState:
    done = adopt(run_id, storage, HereRunner, Reporter(run_id), **options)
    assert done.result.outcome == "Succeeded", done.result.message
    archive = Archive.open(storage)
    assert [str(fault) for fault in verify(archive).faults] == []
    return archive.load()


def refused(storage: LocalStorage, *, faults: int = 1, **options: Any) -> str:
    """The message of an import that is refused and leaves everything as it was."""
    before = snapshot(storage)
    done = adopt("import-1", storage, HereRunner, Reporter("import-1"), **options)
    assert done.result.exit_code == 2, done.result
    assert len(done.faults) in (0, faults)
    assert snapshot(storage) == before
    return done.result.message


def snapshot(storage: LocalStorage) -> dict[str, bytes]:
    return {info.path: storage.read(info.path) for info in storage.list()}


def import_into(
    source: LocalStorage,
    target: LocalStorage,
    name: str,
    run_id: str = "import-1",
    runner: HereRunner | None = None,
    dry_run: bool = False,
    **options: Any,
) -> ConvertResult:
    return run_convert(
        run_id,
        foreign_source(source, **options),
        target,
        ConvertOptions(FormatName(name)),
        lambda: runner or HereRunner(),
        Reporter(run_id),
        dry_run=dry_run,
        kind="Import",
    )


def whole(found: dict[tuple[str, int], Any]) -> dict[tuple[str, int], Any]:
    return {key: value for key, value in found.items() if value}


class TestInPlace:
    @pytest.mark.parametrize(
        "layout", [Layout.RECORDS, Layout.RECORDS_AT_ROOT, Layout.AVRO], ids=lambda layout: layout.name
    )
    def test_a_folder_becomes_an_archive_and_its_objects_stay(
        self, original: LocalStorage, tmp_path: Path, layout: Layout
    ) -> None:
        storage = written(original, tmp_path / "foreign", layout)
        before = snapshot(storage)
        state = adopted(storage)
        after = snapshot(storage)
        assert before.items() <= after.items()
        assert all(path.startswith(("archive.json", "catalog/", "runs/")) for path in after.keys() - before.keys())
        assert whole(contents(storage)) == whole(contents(original))
        info = Archive.open(storage).info
        assert (info.imported, info.cluster_id) == (True, "-")
        names = {topic.name: topic for topic in state.topics.values()}
        assert names["orders"].topic_id == topic_id(storage.uri, "orders")
        assert names["orders"].replication_factor == -1
        assert state.coverage[names["orders"].topic_id, 0] == [(0, ORDERS_OFFSETS[-1] + 1)]
        entries = [entry for key in state.segments for entry in state.segments[key]]
        assert {entry.layout for entry in entries} == {layout}

    def test_positions_of_groups_come_from_the_files(self, records: LocalStorage) -> None:
        state = adopted(records)
        assert [(group.group_id, group.topic, group.partition, group.offset) for group in state.groups] == [
            ("billing", "notes", 0, 12),
            ("billing", "orders", 0, 40),
        ]

    def test_what_was_imported_can_be_converted(
        self, original: LocalStorage, records: LocalStorage, tmp_path: Path
    ) -> None:
        adopted(records)
        target = folder(tmp_path / "target")
        converted(records, target, "Kafka")
        assert Archive.open(target).info.imported
        assert whole(contents(target)) == whole(contents(original))

    def test_topics_have_as_many_partitions_as_are_seen(self, records: LocalStorage) -> None:
        path_of(records, "orders/consumer_offsets_partition_004").write_text("{}")
        state = adopted(records)
        assert {topic.name: topic.partitions for topic in state.topics.values()} == {"notes": 1, "orders": 5}

    def test_objects_of_other_tools_with_short_numbers(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        for file in path_of(storage, "topics").rglob("*.data"):
            stem, _, digits = file.stem.rpartition("-")
            file.rename(file.with_name(f"{stem}-{int(digits) // 7:05d}.data"))
        adopted(storage)
        assert whole(contents(storage)) == whole(contents(original))

    @pytest.mark.parametrize("short", [None, 1, 30, 73], ids=["missing", "empty", "torn", "short"])
    def test_an_index_that_is_missing_or_short_is_rebuilt(self, records: LocalStorage, short: int | None) -> None:
        index = path_of(records, f"{FIRST}_index")
        whole_index = index.read_bytes()
        if short is None:
            index.unlink()
        else:
            index.write_bytes(whole_index[:short])
        done = adopt("import-1", records, HereRunner, Reporter("import-1"))
        assert done.result.outcome == "Succeeded"
        assert any("index rebuilt" in warning for warning in done.result.warnings)
        assert index.read_bytes() == whole_index
        assert [str(fault) for fault in verify(Archive.open(records)).faults] == []

    def test_a_segment_without_a_record_is_left_out(self, records: LocalStorage) -> None:
        path_of(records, "orders/segment_partition_000_from_offset_0000000099_records").write_bytes(b"\x01")
        state = adopted(records)
        assert [entry.base_offset for entry in state.segments[topic_id(records.uri, "orders"), 0]] == [0]

    def test_a_partition_that_never_had_a_record_is_one_of_the_topic(
        self, records: LocalStorage, tmp_path: Path
    ) -> None:
        """The original tool leaves it so: a first segment without a record, which the partition's index names."""
        name = RecordsName(5, 0)
        for path, data in {name.records: b"\x01", name.index: b"\x01", "consumer_offsets_partition_005": b""}.items():
            path_of(records, f"orders/{path}").write_bytes(data)
        path_of(records, "orders/index_partition_005").write_bytes(pack_partition_index([name]))
        assert warnings(records) == [f"orders/{name.records}: it has no record and is left out"]
        for storage in (records, folder(tmp_path / "target")):
            if storage is records:
                state = adopted(records)
            else:
                state = converted(records, storage, "Records")
                assert storage.read("topics/orders/index_partition_005") == b"\x01"
            assert {topic.name: topic.partitions for topic in state.topics.values()}["orders"] == 6

    def test_an_avro_object_without_a_record_is_left_out(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        empty = io.BytesIO()
        fastavro.writer(empty, fastavro.parse_schema(dict(PUBLISHED)), [])
        path = "topics/orders/partition=0/orders+0-500.data"
        path_of(storage, path).write_bytes(empty.getvalue())
        done = adopt("import-1", storage, HereRunner, Reporter("import-1"))
        assert done.result.outcome == "Succeeded", done.result.message
        assert f"{path}: it has no record and is left out" in done.result.warnings
        assert verify(Archive.open(storage)).whole
        assert whole(contents(storage)) == whole(contents(original))

    def test_what_has_no_name_of_the_format_is_left_out_and_told(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        stray(storage, "topics/third/partition=0/x.avro")
        assert warnings(storage) == [
            "1 object is left out, first topics/third/partition=0/x.avro: it has no name of the format"
        ]
        stray(storage, "README.md")
        assert warnings(storage)[0].startswith("2 objects are left out, first README.md")
        into = import_into(storage, folder(tmp_path / "target"), "Kafka")
        assert into.result.warnings[0].startswith("2 objects are left out")

    def test_a_position_that_was_deleted_is_none_in_strict_avro(self, tmp_path: Path) -> None:
        """The published schema has a tombstone as no bytes."""
        topics = {
            CONSUMER_OFFSETS: [
                PlainRecord(0, 1000, 0, COMMIT_KEY, commit(42), ()),
                PlainRecord(1, 1001, 0, COMMIT_KEY.replace(b"g", b"h"), commit(43), ()),
                PlainRecord(2, 1002, 0, COMMIT_KEY, None, ()),
            ],
            "t": [PlainRecord(0, 1000, 0, b"k", b"v", ())],
        }
        strict = FormatOptions(compatibility=Compatibility.STRICT, allow_loss=True)
        for at, (name, held) in enumerate(topics.items()):
            made = tmp_path / f"made-{at}"
            topic = TopicEntry(name, f"{'a' * 21}{at}", 4, 1, {})
            write_archive(made, Layout.AVRO, topic, {3 * at: held}, options=strict)
            shutil.copytree(made / "topics", tmp_path / "foreign" / "topics", dirs_exist_ok=True)
        state = adopted(folder(tmp_path / "foreign"))
        assert [(group.group_id, group.partition, group.offset) for group in state.groups] == [("h", 3, 43)]

    def test_an_import_that_was_killed_continues(
        self, original: LocalStorage, records: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("logkeep_engine.convert.imported._receipts", killed)
            done = adopt("import-1", records, HereRunner, Reporter("import-1"))
        assert done.result.exit_code == 130
        adopted(records, run_id="import-2")
        assert whole(contents(records)) == whole(contents(original))

    @pytest.mark.parametrize("change", ["grown", "gone"])
    def test_a_folder_that_has_changed_since_an_import_was_killed_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
    ) -> None:
        def killed(*_: object, **__: object) -> None:
            raise SystemExit

        storage = folder(tmp_path / "source")
        grow(tmp_path, storage, 100)
        with monkeypatch.context() as patch:
            patch.setattr("logkeep_engine.archive.catalog.writer.Writer.end", killed)
            with pytest.raises(SystemExit):
                adopt("import-1", storage, HereRunner, Reporter("import-1"))
        if change == "grown":
            grow(tmp_path, storage, 200)
        else:
            shutil.move(path_of(storage, "orders"), path_of(storage, "others"))
        message = refused(storage)
        assert "The segments of topic 'orders' partition 0" in message
        assert "have changed since an import that did not finish" in message
        assert "remove archive.json and catalog/ first" in message
        path_of(storage, "archive.json").unlink()
        shutil.rmtree(path_of(storage, "catalog"))
        if change == "grown":
            adopted(storage)
            assert contents(storage) == contents(longer_archive(tmp_path, 200))

    @pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO], ids=lambda layout: layout.name)
    def test_the_catalog_has_digests_of_the_algorithm_that_was_asked_for(
        self, original: LocalStorage, tmp_path: Path, layout: Layout
    ) -> None:
        state = adopted(written(original, tmp_path / "made", layout), digest=DigestAlgorithm.SHA256)
        found = {entry.digest.algorithm for entries in state.segments.values() for entry in entries}
        assert found == {DigestAlgorithm.SHA256}

    def test_an_import_that_was_killed_continues_with_its_algorithm_only(
        self, records: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: object, **__: object) -> None:
            raise SystemExit

        with monkeypatch.context() as patch:
            patch.setattr("logkeep_engine.archive.catalog.writer.Writer.end", killed)
            with pytest.raises(SystemExit):
                adopt("import-1", records, HereRunner, Reporter("import-1"), digest=DigestAlgorithm.SHA256)
        monkeypatch.setattr("logkeep_engine.archive.catalog.writer.Timing", lambda: FAST)
        assert "was started with --digest Sha256 and has not finished" in refused(records)
        adopted(records, run_id="import-2", digest=DigestAlgorithm.SHA256)

    def test_a_dry_run_writes_nothing(self, records: LocalStorage) -> None:
        path_of(records, f"{FIRST}_index").unlink()
        before = snapshot(records)
        done = adopt("import-1", records, HereRunner, Reporter("import-1"), dry_run=True)
        assert (done.result.outcome, done.result.topics) == ("Succeeded", 2)
        assert snapshot(records) == before

    def test_a_name_below_the_first_record_is_what_the_original_tool_writes(
        self, original: LocalStorage, records: LocalStorage, tmp_path: Path
    ) -> None:
        first = "notes/segment_partition_000_from_offset_0000000000"
        renamed(records, "notes/segment_partition_000_from_offset_0000000008", first)
        state = adopted(records)
        (entry,) = state.segments[topic_id(records.uri, "notes"), 0]
        assert (entry.base_offset, entry.next_offset, entry.records, entry.gaps) == (0, 12, 4, True)
        converted(records, folder(tmp_path / "target"), "Kafka")
        assert whole(contents(folder(tmp_path / "target"))) == whole(contents(original))


def renamed(storage: LocalStorage, stem: str, other: str) -> None:
    for suffix in ("_records", "_index"):
        path_of(storage, stem + suffix).rename(path_of(storage, other + suffix))


class TestTornTails:
    def tear(self, storage: LocalStorage, extra: bytes = b"\0\0\0\0\0\0\0\x63\0\0") -> Path:
        """A record that was being written when its writer was killed."""
        file = path_of(storage, f"{FIRST}_records")
        file.write_bytes(file.read_bytes() + extra)
        return file

    def test_it_is_refused_by_name(self, records: LocalStorage) -> None:
        file = self.tear(records)
        message = refused(records)
        assert f"{FIRST}_records: a torn tail of 10 bytes at position {file.stat().st_size - 10}" in message
        assert "--repair" in message

    def test_it_is_cut_if_that_is_asked_for_and_the_original_kept(self, records: LocalStorage) -> None:
        whole_file = path_of(records, f"{FIRST}_records").read_bytes()
        file = self.tear(records)
        torn = file.read_bytes()
        adopted(records, repair=True)
        assert file.read_bytes() == whole_file
        assert records.read(f"runs/import-1/original/{FIRST}_records") == torn

    def test_a_whole_record_without_index_entry_is_kept(self, records: LocalStorage) -> None:
        index = path_of(records, f"{FIRST}_index")
        whole_index = index.read_bytes()
        index.write_bytes(whole_index[:-24])
        self.tear(records)
        state = adopted(records, repair=True)
        (entry,) = state.segments[topic_id(records.uri, "orders"), 0]
        assert entry.records == len(ORDERS_OFFSETS)
        assert index.read_bytes() == whole_index

    def test_damage_that_an_index_entry_knows_of_is_no_tail(self, records: LocalStorage) -> None:
        file = path_of(records, f"{FIRST}_records")
        file.write_bytes(file.read_bytes()[:-3])
        for repair in (False, True):
            message = refused(records, repair=repair)
            assert f"{FIRST}_records: " in message
            assert "torn tail" not in message
            assert "logkeep log recover" in message

    @pytest.mark.parametrize("repair", [False, True])
    @pytest.mark.parametrize("size", [0, 1])
    def test_an_empty_segment_whose_index_names_records_is_refused(
        self, records: LocalStorage, size: int, repair: bool
    ) -> None:
        path_of(records, f"{FIRST}_records").write_bytes(b"\x01"[:size])
        message = refused(records, repair=repair)
        assert f"{FIRST}_records: it has no record, and its index names {len(ORDERS_OFFSETS)} more" in message
        assert "--repair" not in message

    @pytest.mark.parametrize("index", [b"", b"\x01", b"\x01" + bytes(23)])
    def test_an_empty_segment_whose_index_names_no_record_is_left_out(
        self, records: LocalStorage, index: bytes
    ) -> None:
        segment = "orders/segment_partition_000_from_offset_0000000099"
        path_of(records, f"{segment}_records").write_bytes(b"")
        path_of(records, f"{segment}_index").write_bytes(index)
        state = adopted(records)
        assert [entry.base_offset for entry in state.segments[topic_id(records.uri, "orders"), 0]] == [0]

    @pytest.mark.parametrize("repair", [False, True])
    @pytest.mark.parametrize("lost", [1, 10])
    def test_records_that_only_an_index_knows_of_are_not_given_up(
        self, records: LocalStorage, lost: int, repair: bool
    ) -> None:
        file = path_of(records, f"{FIRST}_records")
        (position,) = struct.unpack_from(">q", path_of(records, f"{FIRST}_index").read_bytes()[-24 * lost :], 8)
        file.write_bytes(file.read_bytes()[:position])
        message = refused(records, repair=repair)
        last = ORDERS_OFFSETS[-lost - 1]
        assert f"{FIRST}_records: its last record has offset {last}, and its index names {lost} more" in message
        assert "--repair" not in message

    def test_a_torn_index_entry_is_cut_off_if_that_is_asked_for(self, records: LocalStorage) -> None:
        index = path_of(records, f"{FIRST}_index")
        right = index.read_bytes()
        index.write_bytes(right + bytes(23))
        assert "--repair" in refused(records)
        adopted(records, repair=True)
        assert index.read_bytes() == right

    def test_it_is_left_out_where_the_source_must_stay(
        self, original: LocalStorage, records: LocalStorage, tmp_path: Path
    ) -> None:
        self.tear(records)
        before = snapshot(records)
        done = import_into(records, folder(tmp_path / "refused"), "Kafka")
        assert done.result.exit_code == 2
        assert folder(tmp_path / "refused").list() == []
        target = folder(tmp_path / "target")
        done = import_into(records, target, "Kafka", repair=True)
        assert done.result.outcome == "Succeeded", done.result.message
        assert any("torn tail of 10 bytes" in warning for warning in done.result.warnings)
        assert whole(contents(target)) == whole(contents(original))
        assert snapshot(records) == before

    def test_a_wrong_index_is_made_again_only_if_that_is_asked_for(self, records: LocalStorage) -> None:
        index = path_of(records, f"{FIRST}_index")
        right = index.read_bytes()
        index.write_bytes(right[:1] + pack_entries([5], [1, 9]) + right[25:])
        wrong = index.read_bytes()
        message = refused(records)
        assert f"{FIRST}_index: Entry 0 of the index says offset 5" in message
        adopted(records, repair=True)
        assert index.read_bytes() == right
        assert records.read(f"runs/import-1/original/{FIRST}_index") == wrong


def test_the_small_files_of_partitions_are_read_side_by_side(records: LocalStorage) -> None:
    """There are two for each partition, and each takes an object store some hundredths of a second."""
    distant = Distant(records.uri)
    files = [info.path for info in records.list() if "consumer_offsets" in info.path or "index_part" in info.path]
    assert _contents(distant, files) == {path: records.read(path) for path in files}
    assert distant.most > 1


class StillWritten(LocalStorage):
    """A folder to which its tool adds a record just before the index is read."""

    def read(self, path: str, *, most: int = WHOLE_BYTES) -> bytes:
        if path == f"{FIRST}_index":
            with RecordsFolder(path_of(self, "orders"), 0, segment_bytes=1 << 20) as made:
                made.append([PlainRecord(99, 1000, 0, b"k", b"v", ())])
        return super().read(path, most=most)


def test_a_record_that_comes_while_its_segment_is_read_is_not_missed(records: LocalStorage) -> None:
    assert warnings(StillWritten(records.uri)) == []


class TestIndexesOfPartitions:
    """`index_partition_NNN` tells of segments that are not there."""

    INDEX = "orders/index_partition_000"
    """Names segments 0, 2, 4, and 6."""

    @pytest.fixture
    def segments(self, tmp_path: Path) -> LocalStorage:
        storage = folder(tmp_path / "segments")
        with RecordsFolder(path_of(storage, "orders"), 0, segment_bytes=40) as made:
            made.append([PlainRecord(offset, 1000, 0, b"k", b"v", ()) for offset in range(8)])
        named = read_partition_index(storage.read(self.INDEX))
        assert [segment.start_offset for segment in named] == [0, 2, 4, 6]
        return storage

    def lose(self, storage: LocalStorage, *starts: int) -> None:
        for name in (RecordsName(0, start) for start in starts):
            storage.delete([f"orders/{name.records}", f"orders/{name.index}"])

    @pytest.mark.parametrize("repair", [False, True])
    def test_a_segment_that_is_missing_between_others_is_a_fault(self, segments: LocalStorage, repair: bool) -> None:
        self.lose(segments, 2, 4)
        message = refused(segments, faults=2, repair=repair)
        assert "orders/segment_partition_000_from_offset_0000000002_records is missing: index_partition_000" in message
        assert "And 1 more fault." in message
        segments.delete([self.INDEX])
        assert whole_offsets(segments) == [0, 1, 6, 7]

    def test_what_is_missing_before_the_first_went_by_retention(self, segments: LocalStorage) -> None:
        self.lose(segments, 0, 2)
        assert warnings(segments) == []
        assert whole_offsets(segments) == [4, 5, 6, 7]

    def test_what_is_missing_after_the_last_is_reported(self, segments: LocalStorage) -> None:
        self.lose(segments, 4, 6)
        (warning,) = warnings(segments)
        assert f"{self.INDEX} names segment_partition_000_from_offset_0000000004 and 1 more, after all" in warning
        assert whole_offsets(segments) == [0, 1, 2, 3]

    def test_an_index_that_cannot_be_read_is_only_reported(self, segments: LocalStorage) -> None:
        whole_index = segments.read(self.INDEX)
        self.lose(segments, 2)
        for content, why in [
            (whole_index[:-1], "is cut short after 3 entries"),
            (b"", "is empty"),
            (pack_partition_index([RecordsName(3, 0)]), "names segments of partition 3"),
        ]:
            segments.put(self.INDEX, content)
            (warning,) = warnings(segments)
            assert warning.startswith(f"{self.INDEX}: ")
            assert why in warning
        assert whole_offsets(segments) == [0, 1, 4, 5, 6, 7]


def stray(storage: LocalStorage, path: str) -> None:
    path_of(storage, path).parent.mkdir(parents=True, exist_ok=True)
    path_of(storage, path).write_bytes(b"\x01")


def warnings(storage: LocalStorage) -> list[str]:
    """Those of an import that would succeed."""
    done = adopt("import-1", storage, HereRunner, Reporter("import-1"), dry_run=True)
    assert done.result.outcome == "Succeeded", done.result.message
    return list(done.result.warnings)


def whole_offsets(storage: LocalStorage) -> list[int]:
    """The offsets of `orders` after an import."""
    adopted(storage)
    return [record[0] for record in contents(storage)["orders", 0]]


class TestRefusals:
    def test_another_version(self, records: LocalStorage) -> None:
        file = path_of(records, f"{FIRST}_records")
        file.write_bytes(b"\x02" + file.read_bytes()[1:])
        for repair in (False, True):
            message = refused(records, repair=repair)
            assert f"{FIRST}_records: The segment begins with 0x02, which is version 2" in message

    def test_all_faults_are_reported_at_once(self, records: LocalStorage) -> None:
        path_of(records, f"{FIRST}_records").write_bytes(b"\x02 nothing")
        path_of(records, "notes/segment_partition_000_from_offset_0000000008_records").write_bytes(b"PK")
        assert "And 1 more fault." in refused(records, faults=2)

    def test_a_name_that_does_not_fit_the_content(self, records: LocalStorage) -> None:
        renamed(records, FIRST, "orders/segment_partition_000_from_offset_0000000003")
        assert "its first record has offset 0, which is below that of its name" in refused(records)

    def test_segments_that_overlap(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        first = next(path_of(storage, "topics/orders/partition=0").iterdir())
        shutil.copy(first, first.with_name("orders+0-1.data"))
        message = refused(storage)
        assert "topics/orders/partition=0/orders+0-" in message
        assert "already" in message

    def test_an_avro_object_in_the_folder_of_another_partition(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        first = next(path_of(storage, "topics/orders/partition=0").iterdir())
        other = path_of(storage, "topics/orders/partition=7/orders+7-0.data")
        other.parent.mkdir()
        first.rename(other)
        assert "topics/orders/partition=7/orders+7-0.data: " in refused(storage)

    def test_an_avro_object_that_is_cut(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        first = next(path_of(storage, "topics/orders/partition=0").iterdir())
        first.write_bytes(first.read_bytes()[:-5])
        for repair in (False, True):
            assert first.name in refused(storage, repair=repair)

    def test_an_index_without_its_segment(self, records: LocalStorage) -> None:
        path_of(records, f"{FIRST}_records").unlink()
        assert f"{FIRST}_index is the index of a missing segment" in refused(records)

    @pytest.mark.parametrize("topic", ["catalog", "runs", "archive.json"])
    def test_topics_named_as_folders_of_the_archive(self, records: LocalStorage, topic: str) -> None:
        path_of(records, "orders").rename(path_of(records, topic))
        assert f"a topic named {topic!r} cannot be adopted where it is" in refused(records)

    @pytest.mark.parametrize("topic", ["archive.json.old", "archive.jsonl", "catalog-2", "runs.old"])
    def test_topics_named_almost_as_the_archive_s_own_are_taken(self, records: LocalStorage, topic: str) -> None:
        path_of(records, "orders").rename(path_of(records, topic))
        assert {found.name for found in adopted(records).topics.values()} == {"notes", topic}
        assert [record[0] for record in contents(records)[topic, 0]] == ORDERS_OFFSETS

    @pytest.mark.parametrize("last", [2**63 - 2, 2**63 - 1])
    def test_the_largest_offset_of_all(self, tmp_path: Path, last: int) -> None:
        storage = folder(tmp_path / "huge")
        with RecordsFolder(path_of(storage, "orders"), 0, segment_bytes=1000) as made:
            made.append([PlainRecord(last, 1000, 0, b"k", b"v", ())])
        if last < 2**63 - 1:
            assert whole_offsets(storage) == [last]
            return
        assert f"{FIRST}_records: it has a record of offset {last}" in refused(storage)
        target = folder(tmp_path / "target")
        assert import_into(storage, target, "Kafka").result.exit_code == 2
        assert target.list() == []

    def test_a_topic_that_cannot_be_one(self, records: LocalStorage) -> None:
        path_of(records, "orders").rename(path_of(records, "or ders"))
        assert "'or ders' is not a topic name" in refused(records)

    @pytest.mark.parametrize(
        "name", ["segment_partition_0000_from_offset_0000000000_records", "segment_partition_00_from_offset_5_records"]
    )
    def test_names_with_too_many_or_too_few_digits(self, records: LocalStorage, name: str) -> None:
        path_of(records, f"{FIRST}_records").rename(path_of(records, f"orders/{name}"))
        assert f"orders/{name} looks like a segment but is not named or placed as one" in refused(records)

    @pytest.mark.parametrize("name", ["other+0-1.data", "orders+1-1.data", "orders+0-.data", "orders+0-1x.data"])
    def test_names_of_avro_objects_that_do_not_fit(self, original: LocalStorage, tmp_path: Path, name: str) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        path_of(storage, f"topics/orders/partition=0/{name}").write_bytes(b"")
        assert f"{name} is not named as an object of topic 'orders' partition 0" in refused(storage)

    @pytest.mark.parametrize(
        ("layout", "path"),
        [
            (Layout.RECORDS_AT_ROOT, "orders/segment_partition_2000000000_from_offset_0000000000_records"),
            (Layout.RECORDS_AT_ROOT, "orders/consumer_offsets_partition_100000"),
            (Layout.AVRO, "topics/orders/partition=100000/orders+100000-0.data"),
        ],
    )
    def test_a_partition_that_no_topic_has(
        self, original: LocalStorage, tmp_path: Path, layout: Layout, path: str
    ) -> None:
        storage = written(original, tmp_path / "foreign", layout)
        stray(storage, path)
        assert f"{path}: it would be of partition" in refused(storage)

    @pytest.mark.parametrize(
        ("layout", "path", "message"),
        [
            (Layout.AVRO, "topics/other/other+0-0.data", "like an object of the Avro format"),
            (Layout.AVRO, "other/partition=0/other+0-0.data", "like an object of the Avro format"),
            (Layout.AVRO, "topics/orders/partition=0/orders+0-50.avro", "like an object of the Avro format"),
            (Layout.AVRO, "topics/orders/0/orders-0-50.avro", "like an object of the Avro format"),
            (Layout.AVRO, "topics/orders/consumer_offsets_partition_000", "like a file of the Records format"),
            (Layout.RECORDS, "orders/consumer_offsets_partition_000", "like a file of the Records format"),
            (Layout.RECORDS_AT_ROOT, "deep/more/index_partition_000", "like a file of the Records format"),
            (Layout.RECORDS_AT_ROOT, "topics/orders/orders+0-0.data", "like an object of the Avro format"),
        ],
    )
    def test_data_that_lies_elsewhere(
        self, original: LocalStorage, tmp_path: Path, layout: Layout, path: str, message: str
    ) -> None:
        """It would be left out, and perhaps with it a topic."""
        storage = written(original, tmp_path / "foreign", layout)
        stray(storage, path)
        assert f"{path} is named {message}" in refused(storage)

    def test_two_formats_in_one_folder(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        shutil.copytree(
            path_of(written(original, tmp_path / "more", Layout.RECORDS), "topics/notes"),
            path_of(storage, "topics/notes"),
            dirs_exist_ok=True,
        )
        assert "an archive has one format" in refused(storage)

    def test_nothing_to_import(self, tmp_path: Path) -> None:
        storage = folder(tmp_path / "empty")
        assert "holds nothing of a format that can be imported" in refused(storage)
        storage.put("readme.txt", b"hello")
        assert "holds 1 object, none of them a segment" in refused(storage)

    def test_the_folder_of_topics_of_the_avro_format(self, original: LocalStorage, tmp_path: Path) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        assert "import the folder above it" in refused(folder(tmp_path / "foreign" / "topics"))
        assert storage.list()

    def test_positions_of_groups_that_are_none(self, records: LocalStorage) -> None:
        path_of(records, "orders/consumer_offsets_partition_000").write_text('{"g": -4}')
        assert "consumer_offsets_partition_000: The committed offset of consumer group 'g' is -4" in refused(records)

    def test_what_is_an_archive_already(self, original: LocalStorage, records: LocalStorage, tmp_path: Path) -> None:
        assert "is an archive already: Logkeep made it" in refused(original)
        adopted(records)
        assert "is an archive already: it was imported before" in refused(records)
        done = import_into(records, folder(tmp_path / "target"), "Kafka")
        assert "is an archive already" in done.result.message


class TestIntoAnother:
    @pytest.mark.parametrize(
        "layout", [Layout.RECORDS, Layout.RECORDS_AT_ROOT, Layout.AVRO], ids=lambda layout: layout.name
    )
    @pytest.mark.parametrize("name", ["Kafka", "Records", "Avro"])
    def test_a_folder_is_converted_and_stays_as_it_was(
        self, original: LocalStorage, tmp_path: Path, layout: Layout, name: str
    ) -> None:
        source, target = written(original, tmp_path / "foreign", layout), folder(tmp_path / "target")
        before = snapshot(source)
        done = import_into(source, target, name)
        assert done.result.outcome == "Succeeded", done.result.message
        assert [str(fault) for fault in verify(Archive.open(target)).faults] == []
        assert whole(contents(target)) == whole(contents(original))
        assert snapshot(source) == before
        assert Archive.open(target).load().runs["import-1"].outcome is RunOutcome.SUCCEEDED

    def test_doing_it_again_adds_what_is_new(self, tmp_path: Path) -> None:
        original, target = folder(tmp_path / "original"), folder(tmp_path / "target")
        archive_of(original, chunk(original, 0, 100), chunk(original, 100, 200))
        source = written(original, tmp_path / "foreign", Layout.RECORDS_AT_ROOT, chunk_bytes=1)
        later = "orders/segment_partition_000_from_offset_0000000100"
        kept = {suffix: path_of(source, later + suffix).read_bytes() for suffix in ("_records", "_index")}
        for suffix in kept:
            path_of(source, later + suffix).unlink()
        assert import_into(source, target, "Kafka").result.records == 100
        for suffix, data in kept.items():
            path_of(source, later + suffix).write_bytes(data)
        done = import_into(source, target, "Kafka", run_id="import-2")
        assert (done.result.outcome, done.result.records) == ("Succeeded", 100)
        assert contents(target)["orders", 0] == contents(original)["orders", 0]

    @pytest.mark.parametrize("name", ["Kafka", "Records", "Avro"])
    def test_doing_it_again_adds_what_a_segment_has_grown_by(self, tmp_path: Path, name: str) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        for number, (end, added) in enumerate([(100, 100), (200, 100), (200, 0), (250, 50)]):
            grow(tmp_path, source, end)
            done = import_into(source, target, name, run_id=f"import-{number}")
            assert (done.result.outcome, done.result.records) == ("Succeeded", added), done.result.message
        assert contents(target) == contents(longer_archive(tmp_path, 250))
        assert verify(Archive.open(target)).faults == []

    @pytest.mark.parametrize("plans", [True, False], ids=["with plans", "without plans"])
    @pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO], ids=lambda layout: layout.name)
    def test_a_segment_that_came_late_is_refused_by_name(self, tmp_path: Path, layout: Layout, plans: bool) -> None:
        original, target = folder(tmp_path / "original"), folder(tmp_path / "target")
        archive_of(original, *(chunk(original, at, at + 100) for at in (0, 100, 200)))
        source = written(original, tmp_path / "foreign", layout, chunk_bytes=1)
        late = [info.path for info in source.list("topics/orders/") if "0000000100" in info.path]
        kept = {path: source.read(path) for path in late}
        source.delete([*late, "topics/orders/index_partition_000"])
        assert import_into(source, target, "Kafka").result.records == 200
        if not plans:
            path_of(target, "runs/import-1/convert-plan.json").unlink()
        for path, data in kept.items():
            source.put(path, data)
        before = Archive.open(target).load()
        for dry_run in (True, False):
            done = import_into(source, target, "Kafka", run_id="import-2", dry_run=dry_run)
            assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveMismatch")
            offsets = "100 to 199" if plans else "0 to 99"
            assert f" holds offsets {offsets} of topic 'orders' partition 0" in done.result.message
            assert not plans or late[-1] in done.result.message
            assert "Import into a new folder" in done.result.message
        assert Archive.open(target).load().coverage == before.coverage
        assert import_into(source, folder(tmp_path / "new"), "Kafka").result.records == 300

    def test_a_segment_that_came_in_front_is_imported(self, tmp_path: Path) -> None:
        original, target = folder(tmp_path / "original"), folder(tmp_path / "target")
        archive_of(original, *(chunk(original, at, at + 100) for at in (0, 100, 200)))
        source = written(original, tmp_path / "foreign", Layout.RECORDS_AT_ROOT, chunk_bytes=1)
        first = {suffix: source.read(FIRST + suffix) for suffix in ("_records", "_index")}
        source.delete(FIRST + suffix for suffix in first)
        assert import_into(source, target, "Records").result.records == 200
        for suffix, data in first.items():
            source.put(FIRST + suffix, data)
        assert import_into(source, target, "Records", run_id="import-2").result.records == 100
        assert contents(target) == contents(original)

    def test_what_a_killed_run_has_planned_is_what_it_continues_with(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        grow(tmp_path, source, 100)
        with pytest.raises(Killed):
            import_into(source, target, "Kafka", runner=kill_before(1))
        grow(tmp_path, source, 200)
        assert import_into(source, target, "Kafka").result.records == 100
        assert import_into(source, target, "Kafka", run_id="import-2").result.records == 100
        assert contents(target) == contents(longer_archive(tmp_path, 200))
        assert verify(Archive.open(target)).faults == []


def longer_archive(tmp_path: Path, end: int) -> LocalStorage:
    """An archive of `orders` up to offset `end`."""
    storage = folder(tmp_path / f"archive-{end}")
    if not storage.list():
        archive_of(storage, *(chunk(storage, at, at + 50) for at in range(0, end, 50)))
    return storage


def grow(tmp_path: Path, storage: LocalStorage, end: int) -> None:
    """Let the tool of the Records format come to offset `end` in the one segment that a folder has."""
    made = tmp_path / f"folder-{end}"
    if not made.exists():
        written(longer_archive(tmp_path, end), made, Layout.RECORDS_AT_ROOT)
    shutil.copytree(made, path_of(storage, ""), dirs_exist_ok=True)


def tool_archive(root: Path, compression: int = ZSTD, backup_id: str = "nightly") -> OsoArchive:
    """A backup with all that its format can hold."""
    made = OsoArchive(root, backup_id, compression, counts={"orders": 3})
    header = ((b"h", b"1"), (b"h", b""))
    made.add("orders", 0, [Written(n, 1_700_000_000_000 + n, b"k%d" % n, b"v" * n, header, True) for n in range(50)])
    made.add("orders", 0, [Written(n, -1, None, None) for n in range(60, 70)])
    made.gap("orders", 1, 0, 40)
    made.add("orders", 1, [Written(n, 5, b"", b"") for n in range(40, 43)])
    made.gap("notes", 0, 0, 9)
    return made


class TestKafkaBackupOfOso:
    @pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])
    @pytest.mark.parametrize("name", ["Kafka", "Records", "Avro"])
    def test_its_backup_becomes_an_archive(self, tmp_path: Path, compression: int, name: str) -> None:
        tool_archive(tmp_path, compression).finish({"billing": {"orders": {0: 55}, "gone": {0: 1}}})
        target = folder(tmp_path / "target")
        done = import_into(folder(tmp_path / "nightly"), target, name)
        assert done.result.outcome == "Succeeded", done.result.message
        assert (done.result.records, done.result.topics, done.result.partitions) == (63, 2, 4)
        archive = Archive.open(target)
        assert [str(fault) for fault in verify(archive).faults] == []
        found = contents(target)
        assert [record[0] for record in found["orders", 0]] == [*range(50), *range(60, 70)]
        assert found["orders", 0][7] == (7, 1_700_000_000_007, 0, b"k7", b"v" * 7, [("h", b"1"), ("h", b"")])
        assert found["orders", 0][55][1:5] == (-1, 0, None, None)
        state = archive.load()
        orders = topic_id(folder(tmp_path / "nightly").uri, "orders")
        assert state.coverage[orders, 0] == [(0, 70)]
        assert state.coverage[orders, 1] == [(40, 43)]
        assert [(gap.start, gap.end, gap.reason) for gap in state.gaps[orders, 1]] == [(0, 40, "offset out of range")]
        assert state.groups == (GroupEntry("billing", "orders", orders, 0, 55),)
        assert any("transaction markers" in warning for warning in done.result.warnings)

    def test_the_folder_above_is_taken_if_it_holds_one_backup(self, tmp_path: Path) -> None:
        tool_archive(tmp_path / "backups").finish()
        target = folder(tmp_path / "target")
        done = import_into(folder(tmp_path / "backups"), target, "Kafka")
        assert done.result.records == 63
        tool_archive(tmp_path / "backups", backup_id="weekly").finish()
        done = import_into(folder(tmp_path / "backups"), folder(tmp_path / "other"), "Kafka")
        assert done.result.exit_code == 2
        assert "holds 2 backups of osodevops/kafka-backup: nightly, weekly" in done.result.message

    def test_doing_it_again_adds_what_is_new_and_refuses_what_came_between(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        made.finish()
        source, target = folder(tmp_path / "nightly"), folder(tmp_path / "target")
        assert import_into(source, target, "Avro").result.records == 63
        made.add("orders", 0, [Written(n, 1) for n in range(70, 75)])
        made.finish()
        assert import_into(source, target, "Avro", run_id="import-2").result.records == 5
        file = made.add("orders", 0, [Written(n, 1) for n in range(50, 55)])
        made.finish()
        done = import_into(source, target, "Avro", run_id="import-3")
        assert done.result.exit_code == 2
        assert f"{file.name} holds offsets 50 to 54 of topic 'orders' partition 0" in done.result.message

    def test_it_cannot_be_adopted_where_it_is(self, tmp_path: Path) -> None:
        tool_archive(tmp_path).finish()
        message = refused(folder(tmp_path / "nightly"))
        assert "manifest.json is of osodevops/kafka-backup" in message
        assert "logkeep import SRC DST --format Kafka" in message

    def test_a_segment_that_is_damaged_is_named(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        file = made.add("notes", 0, [Written(20, 1, b"k", b"v")])
        made.finish()
        data = bytearray(file.read_bytes())
        data[-12] ^= 1
        file.write_bytes(data)
        target = folder(tmp_path / "target")
        done = import_into(folder(tmp_path / "nightly"), target, "Records")
        assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveDamaged")
        assert (
            "topics/notes/partition=0/segment-00000000000000000020.bin.zst (topic notes partition 0"
            in done.result.message
        )
        notes = topic_id(folder(tmp_path / "nightly").uri, "notes")
        assert (notes, 0) not in Archive.open(target).load().segments

    def test_a_segment_that_is_missing_is_named(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        made.add("notes", 0, [Written(20, 1, b"k", b"v")]).unlink()
        made.finish()
        done = import_into(folder(tmp_path / "nightly"), folder(tmp_path / "target"), "Kafka")
        assert done.result.exit_code == 2
        assert "segment-00000000000000000020.bin.zst" in done.result.message
        assert "the object is missing" in done.result.message

    def test_a_segment_of_another_version_is_refused_by_name(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        file = made.add("notes", 0, [Written(20, 1, b"k", b"v")])
        made.finish()
        file.write_bytes(file.read_bytes()[:4] + b"\x02" + file.read_bytes()[5:])
        done = import_into(folder(tmp_path / "nightly"), folder(tmp_path / "target"), "Kafka")
        assert "CRC-32" in done.result.message or "version 2" in done.result.message
        assert file.name in done.result.message

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"start_offset": 45, "end_offset": 69}, "holds them up to 49 already"),
            ({"record_count": 9}, "the manifest says 9 up to 69"),
            ({"end_offset": 71}, "it holds 10 records up to offset 69, the manifest says 10 up to 71"),
            ({"start_offset": 59}, "its first record has offset 60, the manifest says 59"),
            ({"start_offset": "60"}, "it is not a manifest of a backup: '60' is not a number"),
        ],
    )
    def test_a_manifest_that_does_not_fit_is_refused(
        self, tmp_path: Path, change: dict[str, Any], message: str
    ) -> None:
        made = tool_archive(tmp_path)
        made.topics["orders"][0][1].update(change)
        made.finish()
        done = import_into(folder(tmp_path / "nightly"), folder(tmp_path / "target"), "Kafka")
        assert done.result.exit_code == 2
        assert message in done.result.message

    def test_the_largest_offset_of_all_is_refused(self, tmp_path: Path) -> None:
        made = OsoArchive(tmp_path, "nightly", NONE)
        made.add("orders", 0, [Written(2**63 - 1, 5, b"k", b"v")])
        made.finish()
        done = import_into(folder(tmp_path / "nightly"), folder(tmp_path / "target"), "Kafka")
        assert done.result.exit_code == 2
        assert "it has a record of offset 9223372036854775807" in done.result.message
        assert folder(tmp_path / "target").list() == []

    def test_a_gap_where_records_are_is_refused(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        made.gap("orders", 0, 40, 60)
        made.finish()
        done = import_into(folder(tmp_path / "nightly"), folder(tmp_path / "target"), "Kafka")
        assert "offsets [40, 60) are said to be lost" in done.result.message

    def test_a_gap_between_segments_is_a_gap_of_the_archive(self, tmp_path: Path) -> None:
        made = tool_archive(tmp_path)
        made.gap("orders", 0, 52, 60)
        made.finish()
        target = folder(tmp_path / "target")
        import_into(folder(tmp_path / "nightly"), target, "Kafka")
        state = Archive.open(target).load()
        orders = topic_id(folder(tmp_path / "nightly").uri, "orders")
        assert state.coverage[orders, 0] == [(0, 52), (60, 70)]
        assert [(gap.start, gap.end) for gap in state.gaps[orders, 0]] == [(52, 60)]
        assert json.loads(target.read("archive.json"))["imported"] is True


def test_a_conversion_of_an_import_and_back_loses_nothing(tmp_path: Path) -> None:
    tool_archive(tmp_path).finish()
    first, second = folder(tmp_path / "first"), folder(tmp_path / "second")
    import_into(folder(tmp_path / "nightly"), first, "Avro")
    done = convert(first, second, "Kafka")
    assert done.result.outcome == "Succeeded", done.result.message
    assert whole(contents(second)) == whole(contents(first))
