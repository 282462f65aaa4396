"""Conversions to format Kafka put small segments into packs: which ones, who reads them, and what a kill leaves."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout, PackFiles
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import Timing
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.cli import app
from logkeep_engine.contract.archive_format import Compression
from logkeep_engine.contract.model import replace
from logkeep_engine.spark.source import LogkeepReader, SegmentReads
from logkeep_engine.spark.source_options import SourceOptions
from logkeep_engine.spark.source_rows import read_rows
from logkeep_engine.storage import LocalStorage
from tests.model.asking import Asked
from tests.model.restoring import restored
from tests.runners import HereRunner
from tests.unit.archive.build import ORDERS, Batch, archive_of, begin, chunk, write_segment
from tests.unit.archive.packing import AUDIT, pack_paths, packed
from tests.unit.convert.converting import (
    DiesWithItsResult,
    contents,
    convert,
    converted,
    entries,
    folder,
    logs,
    tricky,
)
from tests.unit.erasure.erasing import GONE, Inside, Killed, Mortal, batch_of, erased, seen
from tests.unit.log.batches import batch, marker

MANY = replace(ORDERS, partitions=300)
OPEN = batch(10, 2, producer_id=5, transactional=True)
LOG = [Batch(0).encode(), OPEN, marker(12, 5, commit=True)]


def objects(storage: LocalStorage) -> list[str]:
    """The objects of segments."""
    return [info.path for info in storage.list() if info.path.startswith(("topics/", "packs/"))]


def many(storage: LocalStorage) -> None:
    """An archive of 300 small partitions, each with objects of its own."""
    with begin(storage) as writer:
        writer.commit(topics=[MANY], receipts=[chunk(storage, 0, 10, partition=number) for number in range(300)])
        writer.end(RunOutcome.SUCCEEDED)


class Counting(LocalStorage):
    """Counts reads of packs."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.reads = 0

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        self.reads += path.startswith("packs/")
        return super().read_range(path, start, end)


class TestSmallSegments:
    def test_of_300_partitions_share_few_objects(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        many(source)
        runner = HereRunner()
        converted(source, target, "Kafka", runner=runner)
        assert len(objects(source)) == 900
        assert objects(target) == [f"packs/0000000001-{number}-0-0.pack" for number in range(5)]
        assert runner.ran == ["convert_chunks"] * 5
        assert len(entries(target)) == 300
        assert logs(target) == logs(source)

    def test_that_lie_in_packs_are_read_with_their_neighbours(self, tmp_path: Path) -> None:
        source, target, again = folder(tmp_path / "source"), folder(tmp_path / "target"), folder(tmp_path / "again")
        many(source)
        converted(source, target, "Kafka")
        for name in ("Kafka", "Records"):
            counting = Counting(target.uri)
            converted(counting, folder(tmp_path / f"from packs to {name}"), name, runner=Inside())
            assert counting.reads < 20
        converted(target, again, "Kafka")
        assert logs(again) == logs(source)

    @pytest.mark.parametrize("compression", list(Compression))
    def test_that_are_copied_keep_batches_and_transactions(self, tmp_path: Path, compression: Compression) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        packed(source, (ORDERS, 0, LOG), (AUDIT, 0, LOG), own=[(ORDERS, 1, LOG)], compression=compression)
        state = converted(source, target, "Kafka")
        assert logs(target) == logs(source)
        assert {entry.layout for entry in entries(target)} == {Layout.PACK}
        assert all(entry.transactional for entry in entries(target))
        assert state.unpurged == ()

    @pytest.mark.parametrize("name", ["Records", "Avro"])
    def test_made_of_records_share_an_object(self, tmp_path: Path, name: str) -> None:
        source, records, target = (folder(tmp_path / name) for name in ("source", "records", "target"))
        tricky(source)
        converted(source, records, name)
        assert pack_paths(records) == []
        converted(records, target, "Kafka")
        assert objects(target) == ["packs/0000000001-0-0-0.pack"]
        assert contents(target) == {key: found for key, found in contents(source).items() if found}

    @pytest.mark.parametrize("compression", list(Compression))
    def test_are_those_below_8_mib_as_they_are_stored(self, tmp_path: Path, compression: Compression) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        value = b"x" * (1 << 20)
        large = [batch(at, 1, value=value) for at in range(9)]
        packed(source, (ORDERS, 0, [Batch(0).encode()]), own=[(ORDERS, 1, large)])
        state = converted(source, target, "Kafka", compression=compression)
        small, big = (state.segments[ORDERS.topic_id, number][0] for number in (0, 1))
        assert small.layout is Layout.PACK
        assert big.layout is (Layout.PACK if compression is Compression.ZSTD else Layout.KAFKA)
        assert logs(target) == logs(source)

    def test_of_a_chunk_that_fills_a_task_have_a_pack_of_their_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logkeep_engine.convert.task.TASK_BYTES", 1000)
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, chunk(source, 0, 30), chunk(source, 0, 10, partition=1), chunk(source, 0, 10, partition=2))
        runner = HereRunner()
        converted(source, target, "Kafka", runner=runner)
        assert runner.ran == ["convert_chunks"] * 2
        assert len(pack_paths(target)) == 2


class TestReaders:
    @pytest.fixture
    def target(self, tmp_path: Path) -> LocalStorage:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        packed(source, (ORDERS, 0, LOG), (ORDERS, 1, [Batch(0).encode()]))
        converted(source, target, "Kafka")
        assert len(objects(target)) == 1
        return target

    def test_restore_sends_what_the_source_has(self, target: LocalStorage, tmp_path: Path) -> None:
        newest = Asked("the newest", {})
        found = restored(target, newest).rows
        assert found == restored(folder(tmp_path / "source"), newest).rows
        assert [offset for offset, *_ in found[ORDERS.topic_id, 0]] == [*range(12)]

    def test_spark_reads_what_the_source_has(self, target: LocalStorage) -> None:
        schema: Any = None
        reader = LogkeepReader(SourceOptions.parse({"path": target.uri}), schema)
        found = []
        for group in reader.partitions():
            assert isinstance(group, SegmentReads)
            for read in group.reads:
                found += [(read.entry.partition, row.offset) for rows in read_rows(target, read) for row in rows[0]]
        assert sorted(found) == [(0, at) for at in range(12)] + [(1, at) for at in range(10)]

    def test_log_extract_writes_the_files_of_the_source(self, target: LocalStorage, tmp_path: Path) -> None:
        for name in ("source", "target"):
            where = [folder(tmp_path / name).uri, str(tmp_path / f"{name} log")]
            done = CliRunner().invoke(app, ["log", "extract", *where])
            assert done.exit_code == 0, done.output
        written = [
            {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
            for root in (tmp_path / "source log", tmp_path / "target log")
        ]
        assert written[0] == written[1]
        assert written[0]["orders-0/00000000000000000000.log"] == b"".join(LOG)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits come after each task, of which there are several. Segments are small below 600 bytes."""
    monkeypatch.setattr("logkeep_engine.archiving.COMMIT_SECONDS", 0)
    monkeypatch.setattr("logkeep_engine.archiving.COMMIT_SHARE", 0)
    monkeypatch.setattr("logkeep_engine.archive.catalog.writer.Timing", lambda: Timing(3600, 0, 0))  # nobody is alive
    monkeypatch.setattr("logkeep_engine.convert.task.TASK_CHUNKS", 2)
    monkeypatch.setattr("logkeep_engine.convert.task.DEFAULT_PACK_BELOW", "600")


def listed(storage: LocalStorage) -> set[str]:
    """The objects that `verify` finds to be named by no commit. Everything else is whole."""
    report = verify(Archive.open(storage))
    assert [str(fault) for fault in report.faults] == []
    return set(report.orphans)


@pytest.mark.usefixtures("quick")
class TestKills:
    @pytest.fixture
    def source(self, tmp_path: Path) -> LocalStorage:
        source = folder(tmp_path / "source")
        with begin(source) as writer:
            small = [chunk(source, 0, 10, partition=number) for number in range(3)]
            large = [chunk(source, 0, 50, partition=number) for number in (3, 4)]
            entry = write_segment(source, LOG, partition=5)
            open_one = Receipt((Coverage(ORDERS.topic_id, 5, 0, 13),), (entry,))
            writer.commit(topics=[replace(ORDERS, partitions=6)], receipts=[*small, *large, open_one])
            writer.end(RunOutcome.SUCCEEDED)
        return source

    @pytest.mark.parametrize("run_id", ["convert-1", "convert-2"])
    def test_before_any_write_leave_what_verify_lists_and_the_next_run_completes(
        self, source: LocalStorage, tmp_path: Path, run_id: str
    ) -> None:
        wanted, left_behind = logs(source), 0
        for left in count():
            target = folder(tmp_path / f"target-{left}")
            try:
                convert(source, Mortal(target.uri, left), "Kafka", runner=Inside())
            except Killed:
                pass
            else:
                assert {entry.layout for entry in entries(target)} == {Layout.PACK, Layout.KAFKA}
                break
            before = set() if target.version("archive.json") is None else listed(target)
            named = {path for entry in entries(target) for path in entry.objects("orders")} if before else set()
            assert not named & before
            converted(source, target, "Kafka", run_id=run_id)
            assert logs(target) == wanted
            assert listed(target) == before
            left_behind += any(path.startswith("packs/") for path in before)
        assert left > 20
        assert left_behind >= 3  # one after each pack

    def test_between_a_pack_and_its_commit_leave_a_pack_that_an_erasure_deletes(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        packed(source, (ORDERS, 0, [batch_of(0, [GONE, b"stays"])]), (ORDERS, 1, [batch_of(0, [b"stays"])]))
        with pytest.raises(Killed):
            convert(source, target, "Kafka", runner=DiesWithItsResult())
        (left,) = pack_paths(target)
        assert listed(target) == {left}
        converted(source, target, "Kafka")
        assert listed(target) == {left}
        assert GONE in target.read(left)
        result = erased(target, GONE)
        assert (result.outcome, result.records) == ("Succeeded", 1)
        assert listed(target) == set()
        assert all(GONE not in target.read(path) for path in objects(target))
        assert [key for _, _, key, _ in seen(target, (ORDERS.topic_id, 0))] == [b"stays"]


class TestAgain:
    def test_what_the_source_has_gained_comes_into_packs_of_its_own(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        packed(source, (ORDERS, 0, [Batch(0).encode()]), (ORDERS, 1, [Batch(0).encode()]))
        converted(source, target, "Kafka")
        (first,) = pack_paths(target)
        before = target.read(first)
        packed(source, (ORDERS, 1, [Batch(10).encode()]), (AUDIT, 0, [Batch(0).encode()]), run_id="run-2")
        converted(source, target, "Kafka", run_id="convert-2")
        assert pack_paths(target) == [first, "packs/0000000002-0-0-0.pack"]
        assert target.read(first) == before
        assert logs(target) == logs(source)
        converted(source, target, "Kafka", run_id="convert-3")
        assert len(pack_paths(target)) == 2

    def test_task_with_a_damaged_segment_commits_nothing_and_is_done_when_that_is_whole(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        packed(source, (ORDERS, 0, [Batch(0).encode()]), (ORDERS, 1, [Batch(0).encode()]))
        damaged = entries(source)[1]
        assert isinstance(damaged.files, PackFiles)
        (path,) = pack_paths(source)
        whole = source.read(path)
        altered = bytearray(whole)
        altered[damaged.files.position + 70] ^= 1
        source.put(path, bytes(altered))
        done = convert(source, target, "Kafka").result
        assert (done.outcome, done.error_code) == ("Failed", "ArchiveDamaged")
        assert f"{path}:{damaged.files.position}.log" in done.message
        assert entries(target) == []
        assert objects(target) == []
        source.put(path, whole)
        converted(source, target, "Kafka")
        assert logs(target) == logs(source)
