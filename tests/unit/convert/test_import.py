"""Folders that other tools wrote: adopted where they are, or converted; what does not fit is refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog import Archive
from logkeep_engine.archive.entry import Layout
from logkeep_engine.archive.model import ArchiveState, GroupEntry, Outcome
from logkeep_engine.archive.verify import verify
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.convert.foreign import topic_id
from logkeep_engine.convert.imported import adopt, foreign_source
from logkeep_engine.convert.run import ConvertOptions, ConvertResult, run_convert
from logkeep_engine.formats.records_index import pack_entries
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import archive_of, chunk
from tests.unit.convert.converting import (
    ORDERS_OFFSETS,
    HereRunner,
    contents,
    convert,
    converted,
    folder,
    tricky,
)
from tests.unit.formats.osodevops_archive import LZ4, NONE, ZSTD, OsoArchive, Written

FIRST = "orders/segment_partition_000_from_offset_0000000000"


@pytest.fixture
def original(tmp_path: Path) -> LocalStorage:
    """The archive that all folders of these tests come from."""
    storage = folder(tmp_path / "original")
    tricky(storage)
    return storage


def written(original: LocalStorage, root: Path, layout: Layout, **options: Any) -> LocalStorage:
    """What another tool would have left: the topics' folders, and nothing of Logkeep's."""
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
    source: LocalStorage, target: LocalStorage, name: str, run_id: str = "import-1", **options: Any
) -> ConvertResult:
    return run_convert(
        run_id,
        foreign_source(source, **options),
        target,
        ConvertOptions(FormatName(name)),
        HereRunner,
        Reporter(run_id),
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

    def test_an_import_that_was_killed_goes_on(
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


class TestRefusals:
    def test_another_version(self, records: LocalStorage) -> None:
        file = path_of(records, f"{FIRST}_records")
        file.write_bytes(b"\x02" + file.read_bytes()[1:])
        for repair in (False, True):
            message = refused(records, repair=repair)
            assert f"{FIRST}_records: The segment begins with 0x02, which is version 2" in message

    def test_all_faults_are_told_at_once(self, records: LocalStorage) -> None:
        path_of(records, f"{FIRST}_records").write_bytes(b"\x02 nothing")
        path_of(records, "notes/segment_partition_000_from_offset_0000000008_records").write_bytes(b"PK")
        assert "And 1 more faults." in refused(records, faults=2)

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
        assert f"{FIRST}_index is the index of a segment that is not there" in refused(records)

    @pytest.mark.parametrize("topic", ["catalog", "runs"])
    def test_topics_named_as_folders_of_the_archive(self, records: LocalStorage, topic: str) -> None:
        path_of(records, "orders").rename(path_of(records, topic))
        assert f"a topic named {topic!r} cannot be adopted where it is" in refused(records)

    def test_a_topic_that_cannot_be_one(self, records: LocalStorage) -> None:
        path_of(records, "orders").rename(path_of(records, "or ders"))
        assert "'or ders' is not a topic name" in refused(records)

    @pytest.mark.parametrize(
        "name", ["segment_partition_0000_from_offset_0000000000_records", "segment_partition_00_from_offset_5_records"]
    )
    def test_names_with_too_many_or_too_few_digits(self, records: LocalStorage, name: str) -> None:
        path_of(records, f"{FIRST}_records").rename(path_of(records, f"orders/{name}"))
        assert f"orders/{name} looks like a segment and is not named or placed as one" in refused(records)

    @pytest.mark.parametrize("name", ["other+0-1.data", "orders+1-1.data", "orders+0-.data", "orders+0-1x.data"])
    def test_names_of_avro_objects_that_do_not_fit(self, original: LocalStorage, tmp_path: Path, name: str) -> None:
        storage = written(original, tmp_path / "foreign", Layout.AVRO)
        path_of(storage, f"topics/orders/partition=0/{name}").write_bytes(b"")
        assert f"{name} is not named as an object of topic 'orders' partition 0" in refused(storage)

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
        assert "holds 1 objects, none of them a segment" in refused(storage)

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
        assert Archive.open(target).load().runs["import-1"].outcome is Outcome.SUCCEEDED

    def test_doing_it_again_adds_what_is_new(self, tmp_path: Path) -> None:
        original, target = folder(tmp_path / "original"), folder(tmp_path / "target")
        archive_of(original, chunk(original, 0, 100), chunk(original, 100, 200))
        source = written(original, tmp_path / "foreign", Layout.RECORDS_AT_ROOT, piece_bytes=1)
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
            ({"start_offset": "60"}, "it is no manifest of a backup: '60' is not a number"),
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
