"""Conversions between the formats: what comes out, what is lost, what is refused, and what a kill leaves."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state, state_path
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Receipt,
    RemovedSegment,
    RunOutcome,
    TopicEntry,
    branch_id,
)
from logkeep_engine.archive.catalog.lineage import Fork, LeaderEpoch, LeaderSeen, Lineage
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance.removal import purge
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.backup.run.archiving import branch_off
from logkeep_engine.contract.archive_format import Compatibility, Compression, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.convert.run import ConvertOptions, Prepare, run_convert
from logkeep_engine.convert.source import archive_source, select
from logkeep_engine.errors import BrokerUnavailable, SpecError
from logkeep_engine.formats.base import LossKind
from logkeep_engine.formats.records_names import read_partition_index
from logkeep_engine.log.batch import walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model import point as points
from logkeep_engine.storage import LocalStorage
from tests.runners import HereRunner
from tests.unit.archive.build import FAST, ORDERS, TIME, Batch, archive_of, begin, chunk, write_segment
from tests.unit.convert.converting import (
    ORDERS_OFFSETS,
    DiesWithItsResult,
    contents,
    convert,
    converted,
    entries,
    folder,
    logs,
    tricky,
)
from tests.unit.erasure.erasing import Killed
from tests.unit.log.batches import batch, marker, with_header

FORMATS = ["Kafka", "Records", "Avro"]
STRICT = FormatOptions(compatibility=Compatibility.STRICT)


@pytest.fixture
def source(tmp_path: Path) -> LocalStorage:
    """An archive of Kafka's batches with everything in it."""
    storage = folder(tmp_path / "source")
    tricky(storage)
    return storage


def files(storage: LocalStorage, suffix: str = "") -> dict[str, bytes]:
    return {info.path: storage.read(info.path) for info in storage.list() if info.path.endswith(suffix)}


def kill_before(number: int) -> HereRunner:
    """A runner that dies before its task of this number."""
    runner = HereRunner()

    def count(_: object) -> None:
        if len(runner.ran) == number:
            raise Killed

    runner.before = count
    return runner


class TestWhatComesOut:
    @pytest.mark.parametrize(
        "chain",
        [
            ["Kafka"],
            ["Records"],
            ["Avro"],
            ["Records", "Avro", "Kafka"],
            ["Avro", "Records", "Avro", "Kafka", "Records"],
        ],
        ids="-".join,
    )
    def test_every_chain_ends_with_the_same_records(
        self, source: LocalStorage, tmp_path: Path, chain: list[str]
    ) -> None:
        wanted = contents(source)
        here = source
        for number, name in enumerate(chain):
            there = folder(tmp_path / f"{number}")
            converted(here, there, name)
            assert Archive.open(there).info.segments is FormatName(name)
            here = there
        found = contents(here)
        assert {key: value for key, value in found.items() if value} == {
            key: value for key, value in wanted.items() if value
        }
        assert [record[0] for record in found["orders", 0]] == ORDERS_OFFSETS

    @pytest.mark.parametrize("name", FORMATS)
    def test_the_facts_of_the_source_are_carried_over(self, source: LocalStorage, tmp_path: Path, name: str) -> None:
        target = folder(tmp_path / "target")
        state = converted(source, target, name)
        origin = Archive.open(source)
        before = origin.load()
        assert Archive.open(target).info.cluster_id == origin.info.cluster_id
        assert state.topics == before.topics
        assert state.coverage == before.coverage
        assert state.gaps == before.gaps
        assert state.groups == before.groups

    def test_batches_stay_what_they_are_between_archives_of_kafka(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        converted(source, target, "Kafka")
        assert logs(target) == logs(source)
        assert any(aborted for _, aborted in logs(target).values())

    def test_segments_can_be_compressed_on_the_way(self, source: LocalStorage, tmp_path: Path) -> None:
        packed, plain = folder(tmp_path / "packed"), folder(tmp_path / "plain")
        converted(source, packed, "Kafka", compression=Compression.ZSTD)
        assert {entry.log_suffix for entry in entries(packed)} == {".log.zst"}
        converted(packed, plain, "Kafka")
        assert {entry.log_suffix for entry in entries(plain)} == {".log"}
        assert logs(plain) == logs(packed) == logs(source)

    def test_append_times_come_back_as_append_times(self, source: LocalStorage, tmp_path: Path) -> None:
        records, back = folder(tmp_path / "records"), folder(tmp_path / "back")
        converted(source, records, "Records")
        converted(records, back, "Kafka")
        headers = [header for log, _ in logs(back).values() for _, header in walk(log)]
        (stamped,) = [header for header in headers if header.is_log_append_time]
        assert (stamped.base_offset, stamped.record_count, stamped.max_timestamp) == (10, 3, TIME + 500)

    def test_gaps_between_records_stay(self, source: LocalStorage, tmp_path: Path) -> None:
        records, back = folder(tmp_path / "records"), folder(tmp_path / "back")
        converted(source, records, "Records")
        state = converted(records, back, "Kafka", codec=Codec.LZ4)
        (entry,) = state.segments[ORDERS.topic_id, 0]
        assert (entry.base_offset, entry.next_offset, entry.records, entry.gaps) == (0, 32, len(ORDERS_OFFSETS), True)
        assert set(entry.codecs) == {"lz4"}

    def test_segments_end_where_the_option_says(self, tmp_path: Path) -> None:
        source, target, back = (folder(tmp_path / name) for name in ("source", "target", "back"))
        archive_of(source, chunk(source, 0, 3000))
        state = converted(source, target, "Records", segment_bytes=20_000)
        entries = list(state.segments[ORDERS.topic_id, 0])
        assert len(entries) > 3
        assert all(entry.bytes > 20_000 for entry in entries[:-1])
        index = target.read("topics/orders/index_partition_000")
        assert [name.start_offset for name in read_partition_index(index)] == [entry.base_offset for entry in entries]
        state = converted(target, back, "Kafka", segment_bytes=20_000, codec=Codec.NONE)
        assert contents(back) == contents(source)

    def test_groups_lie_beside_the_segments_of_the_records_format(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        converted(source, target, "Records")
        assert json.loads(target.read("topics/orders/consumer_offsets_partition_000")) == {"billing": 40}

    def test_a_partition_is_cut_into_chunks_and_comes_out_the_same(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 500, 50)))
        runner = HereRunner()
        state = converted(source, target, "Records", runner=runner, chunk_bytes=2000)
        assert len(runner.ran) > 3
        assert contents(target) == contents(source)
        assert state.coverage[ORDERS.topic_id, 0] == [(0, 500)]

    @pytest.mark.parametrize("name", ["Records", "Avro"])
    @pytest.mark.parametrize("segment_bytes", [200, 1 << 20])
    def test_a_batch_that_reaches_over_the_end_is_converted_up_to_there_and_on_from_there(
        self, tmp_path: Path, name: str, segment_bytes: int
    ) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        with begin(storage) as writer:
            entry = write_segment(storage, [Batch(0).encode(), Batch(10).encode()])
            writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 0, 15),), (entry,))])
            writer.end(RunOutcome.FAILED)
        first = converted(storage, target, name, segment_bytes=segment_bytes)
        assert [entry.next_offset for entry in first.segments[ORDERS.topic_id, 0]][-1] == 15
        with begin(storage, "run-2") as writer:
            entry = write_segment(storage, [Batch(20).encode()], epoch=writer.epoch)
            writer.commit(receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 15, 30),), (entry,))])
            writer.end(RunOutcome.SUCCEEDED)
        converted(storage, target, name, run_id="convert-2", segment_bytes=segment_bytes)
        assert [offset for offset, *_ in contents(target)["orders", 0]] == list(range(30))

    def test_what_a_killed_run_has_left_is_removed_by_the_next(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logkeep_engine.archive.catalog.writer.Timing", lambda: FAST)
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(storage, *(chunk(storage, at, at + 50) for at in range(0, 200, 50)))
        with pytest.raises(Killed):
            convert(storage, target, "Avro", runner=DiesWithItsResult(), chunk_bytes=1)
        assert verify(Archive.open(target)).orphans != []
        converted(storage, target, "Avro", run_id="convert-2")
        assert verify(Archive.open(target)).orphans == []

    def test_records_archives_have_an_index_of_partitions_without_records(self, tmp_path: Path) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(storage, chunk(storage, 0, 10))
        converted(storage, target, "Records")
        assert [name for name in files(target) if "index_partition" in name] == [
            f"topics/orders/index_partition_00{number}" for number in range(ORDERS.partitions)
        ]

    def test_what_retention_has_removed_is_not_claimed(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 200, 50)))
        remove_first(source)
        state = converted(source, target, "Records")
        assert state.coverage[ORDERS.topic_id, 0] == [(50, 200)]
        assert contents(target) == contents(source)

    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("removed", [[0], [50], [150], [0, 100], [0, 50, 100, 150]])
    def test_what_retention_has_removed_anywhere_is_a_gap_and_none_is_to_fetch_it_again(
        self, tmp_path: Path, name: str, removed: list[int]
    ) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 200, 50)))
        remove(source, *removed)
        state = converted(source, target, name)
        assert [(gap.start, gap.reason) for gap in state.gaps[ORDERS.topic_id, 0]] == [
            (base, "removed by retention from the archive that was converted")
            for base in removed
            if base - 50 not in removed
        ]
        assert state.accounted_for(ORDERS.topic_id, 0) == [(0, 200)]
        assert contents(target) == contents(source)

    def test_what_retention_removes_after_it_was_converted_stays(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 200, 50)))
        remove(source, 50)
        converted(source, target, "Records")
        remove(source, 100, run_id="run-3")
        state = converted(source, target, "Records", run_id="convert-2")
        assert state.coverage[ORDERS.topic_id, 0] == [(0, 50), (100, 200)]
        assert [(gap.start, gap.end) for gap in state.gaps[ORDERS.topic_id, 0]] == [(50, 100)]


def only(source: LocalStorage, topic: str) -> Prepare:
    """The source that `--topic` makes of a source."""
    return lambda runner_factory, reporter: select(archive_source(source), frozenset([topic]))


def remove_first(storage: LocalStorage) -> None:
    remove(storage, 0)


def remove(storage: LocalStorage, *bases: int, run_id: str = "run-2") -> None:
    """Take segments out of the archive, as retention does."""
    with begin_run(Archive.open(storage), run_id, wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
        writer.remove([RemovedSegment(ORDERS.topic_id, 0, base) for base in bases])
        purge(writer)


def committed(storage: LocalStorage, run_id: str, start: int, end: int, *batches: bytes, outcome: RunOutcome) -> None:
    """A run that archives [start, end) of partition 0."""
    with begin(storage, run_id) as writer:
        entry = write_segment(storage, batches, epoch=writer.epoch)
        coverage = Coverage(ORDERS.topic_id, 0, start, end)
        writer.commit(topics=[ORDERS], receipts=[Receipt((coverage,), (entry,))])
        writer.end(outcome, groups=[GroupEntry("g", "orders", ORDERS.topic_id, 0, end)])


class TestLogsThatWereCutOff:
    """Leader epochs come along; what the source has gained after a cut never follows the old end."""

    def grown(self, storage: LocalStorage) -> None:
        """Leader 3 has written [0, 20), and [10, 20) of that is cut off; leader 5 has written [10, 40)."""
        with begin(storage) as writer:
            first = replace(chunk(storage, 0, 20), epochs=(LeaderEpoch(ORDERS.topic_id, 0, 3, 0),))
            writer.commit(topics=[ORDERS], receipts=[first], leaders=[LeaderSeen(ORDERS.topic_id, 0, 3)])
            writer.end(RunOutcome.SUCCEEDED)

    def cut(self, storage: LocalStorage) -> None:
        fork = Fork(ORDERS.topic_id, 0, 10, 20, branch_id(ORDERS.topic_id, 1))
        with begin(storage, "run-2") as writer:
            branch_off(writer, [fork])
            second = chunk(storage, 10, 40, epoch=writer.epoch)
            second = replace(second, epochs=(LeaderEpoch(ORDERS.topic_id, 0, 5, 10),))
            writer.commit(receipts=[second], leaders=[LeaderSeen(ORDERS.topic_id, 0, 5)])
            writer.end(RunOutcome.SUCCEEDED)

    @pytest.mark.parametrize("name", FORMATS)
    def test_target_with_the_old_end_is_refused_and_a_new_one_has_the_newest_log(
        self, tmp_path: Path, name: str
    ) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        self.grown(storage)
        assert convert(storage, target, name).result.outcome == "Succeeded"
        before = files(target)
        assert Archive.open(target).load().lineage(ORDERS.topic_id, 0) == Lineage(((3, 0),), 20, 20, 3)
        self.cut(storage)
        refused = convert(storage, target, name, run_id="again").result
        assert (refused.error_code, refused.exit_code) == ("ArchiveMismatch", 2)
        assert "'orders' partition 0 was cut off in the cluster at offset 10" in refused.message
        assert files(target) == before
        fresh = folder(tmp_path / "fresh")
        done = convert(storage, fresh, name).result
        assert done.outcome == "Succeeded"
        assert [note for note in done.warnings if "only the newest log is converted" in note] == [
            "topic 'orders' partition 0 was cut off in the cluster at offset 10: only the newest log is converted, the "
            "source alone has the earlier branches"
        ]
        assert Archive.open(fresh).load().lineage(ORDERS.topic_id, 0) == Lineage(((3, 0), (5, 10)), 40, 40, 5)
        assert convert(storage, fresh, name, run_id="again").result.outcome == "Succeeded"


class TestWhatIsTaken:
    """A conversion takes what a restore would see of the source."""

    @pytest.mark.parametrize("outcome", [RunOutcome.FAILED, RunOutcome.RUNNING])
    @pytest.mark.parametrize("name", FORMATS)
    def test_what_a_run_has_added_that_has_not_succeeded_is_left_out(
        self, tmp_path: Path, name: str, outcome: RunOutcome
    ) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        committed(storage, "run-1", 0, 5, batch(0, 5), outcome=RunOutcome.SUCCEEDED)
        if outcome is RunOutcome.FAILED:
            open_ended = batch(20, 5, producer_id=7, transactional=True)
            committed(storage, "run-2", 20, 30, open_ended, batch(25, 5), outcome=RunOutcome.FAILED)
        else:
            with begin(storage, "run-2") as writer:
                writer.commit(receipts=[chunk(storage, 20, 30, epoch=writer.epoch)])
        seen = view.choose(Archive.open(storage))
        done = convert(storage, target, name)
        assert done.result.outcome == "Succeeded", done.result.message
        assert done.result.warnings[-1:] == seen.warnings
        assert seen.warnings[0].startswith("run run-2 has not succeeded (")
        state = Archive.open(target).load()
        assert state.coverage == seen.state.coverage == {(ORDERS.topic_id, 0): [(0, 5)]}
        assert state.groups == seen.state.groups
        assert [record[0] for record in contents(target)["orders", 0]] == list(range(5))

    def open_ended(self, storage: LocalStorage) -> None:
        """An archive in which no run has succeeded. It ends before the marker of a transaction."""
        committed(
            storage,
            "run-1",
            0,
            9,
            batch(0, 2),
            batch(2, 5, producer_id=7, transactional=True),
            batch(7, 2, producer_id=8),
            outcome=RunOutcome.FAILED,
        )

    @pytest.mark.parametrize("name", ["Records", "Avro", "Kafka"])
    def test_a_transaction_whose_marker_is_not_archived_yet_is_as_the_index_says(
        self, tmp_path: Path, name: str
    ) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        self.open_ended(storage)
        done = convert(storage, target, name)
        assert done.result.outcome == "Succeeded", done.result.message
        assert done.result.warnings[-1:] == (
            "no backup of this archive has succeeded yet: what has been archived so far is used",
        )
        assert [record[0] for record in contents(target)["orders", 0]] == [*range(9)]
        committed(storage, "run-2", 9, 12, marker(9, 7, commit=True), batch(10, 2), outcome=RunOutcome.SUCCEEDED)
        assert convert(storage, target, name, run_id="convert-2").result.outcome == "Succeeded"
        assert [record[0] for record in contents(target)["orders", 0]] == [*range(9), 10, 11]

    @pytest.mark.parametrize("name", ["Records", "Avro", "Kafka"])
    def test_a_marker_says_more_than_the_index_and_it_is_reported(self, tmp_path: Path, name: str) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        self.open_ended(storage)
        committed(storage, "run-2", 9, 12, marker(9, 7, commit=False), batch(10, 2), outcome=RunOutcome.SUCCEEDED)
        done = convert(storage, target, name)
        assert done.result.outcome == "Succeeded", done.result.message
        assert [record[0] for record in contents(target)["orders", 0]] == [0, 1, 7, 8, 10, 11]
        text = (
            "topic 'orders' partition 0: the transaction of producer 7 with offsets 2 to 9 ends with an ABORT marker, "
            "but the transaction index has it as committed: the marker holds"
        )
        assert (text in done.result.warnings) is (name != "Kafka")

    @pytest.mark.parametrize("name", ["Records", "Kafka"])
    def test_damage_is_refused_and_can_be_repaired(self, tmp_path: Path, name: str) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        log = (batch(0, 2), batch(2, 3, producer_id=7, transactional=True), marker(5, 7, commit=True))
        committed(storage, "run-1", 0, 6, *log, outcome=RunOutcome.FAILED)
        (path,) = [item.path for item in storage.list("topics/") if item.path.endswith(".log")]
        whole = storage.read(path)
        torn = bytearray(whole)
        torn[len(log[0]) + 70] ^= 0xFF
        storage.put(path, bytes(torn))
        done = convert(storage, target, name)
        assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveDamaged")
        assert "(topic orders partition 0 offset 2): The batch at offset 2 is damaged" in done.result.message
        storage.put(path, whole)
        for run_id in ("convert-1", "convert-2"):
            done = convert(storage, target, name, run_id=run_id)
            assert done.result.outcome == "Succeeded", done.result.message
        assert [record[0] for record in contents(target)["orders", 0]] == list(range(5))

    def test_a_partition_whose_transactions_are_decided_is_copied(self, tmp_path: Path) -> None:
        storage, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        batches = (batch(0, 2, producer_id=7, transactional=True), marker(2, 7, commit=True))
        committed(storage, "run-1", 0, 3, *batches, outcome=RunOutcome.FAILED)
        converted(storage, target, "Kafka")
        assert [record[0] for record in contents(target)["orders", 0]] == [0, 1]


class TestHoles:
    """A conversion lacks what its source lacks, and says so."""

    @pytest.fixture
    def source(self, tmp_path: Path) -> LocalStorage:
        """Chunks [10, 20) and [30, 40) of a run from 0 to 40."""
        storage = folder(tmp_path / "source")
        with begin(storage) as writer:
            chunks = tuple(Chunk("orders", ORDERS.topic_id, 0, at, at + 10, 1, 100) for at in range(0, 40, 10))
            storage.put("runs/run-1/plan.json", BackupPlan("run-1", (ORDERS,), chunks).to_json())
            writer.commit(topics=[ORDERS], receipts=[chunk(storage, 10, 20), chunk(storage, 30, 40)])
            writer.end(RunOutcome.FAILED)
        return storage

    def holes(self, storage: LocalStorage) -> list[str]:
        return [fault.what.partition(" are ")[0] for fault in verify(Archive.open(storage)).faults]

    def test_they_are_carried_over_also_in_front_of_a_partition(self, source: LocalStorage, tmp_path: Path) -> None:
        assert self.holes(source) == ["offsets [0, 10)", "offsets [20, 30)"]
        here = source
        for name in FORMATS:
            there = folder(tmp_path / name)
            for number in range(3):  # the third knows of it from its own plan, and so does the next archive
                done = convert(here, there, name, run_id=f"convert-{number}")
                assert done.result.outcome == "Succeeded", done.result.message
            assert self.holes(there) == self.holes(source)
            here = there

    def test_they_are_filled_when_the_source_has_filled_them(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        convert(source, target, "Records")
        with begin(source, "run-2") as writer:
            lost = Gap(ORDERS.topic_id, 0, 20, 30, "deleted by retention")
            receipts = [chunk(source, 0, 10, epoch=writer.epoch), Receipt(gaps=(lost,))]
            writer.commit(receipts=receipts)
            writer.end(RunOutcome.SUCCEEDED)
        state = converted(source, target, "Records", run_id="convert-2")
        assert state.accounted_for(ORDERS.topic_id, 0) == [(0, 40)]

    def test_a_topic_that_is_not_converted_again_still_misses_its_beginning(
        self, source: LocalStorage, tmp_path: Path
    ) -> None:
        target = folder(tmp_path / "target")
        convert(source, target, "Records")
        notes = TopicEntry("notes", "n" * 22, 1, 1, {})
        with begin(source, "run-2") as writer:
            writer.commit(topics=[notes], receipts=[chunk(source, 0, 10, topic=notes, epoch=writer.epoch)])
            writer.end(RunOutcome.SUCCEEDED)
        done = run_convert(
            "convert-2", only(source, "notes"), target, ConvertOptions(FormatName.RECORDS), HereRunner, Reporter("c")
        )
        assert done.result.outcome == "Succeeded", done.result.message
        assert self.holes(target) == self.holes(source)


class TestLoss:
    def test_what_batches_have_and_records_have_not_is_counted(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        done = convert(source, target, "Records")
        found = {(loss.kind, loss.topic, loss.partition): (loss.count, loss.offset) for loss in done.losses.losses}
        assert found[LossKind.BATCH_BOUNDS, "orders", 0] == (9, 0)
        assert found[LossKind.COMPRESSION, "orders", 0] == (4, 2)
        assert found[LossKind.PRODUCER, "orders", 0] == (3, 20)
        assert found[LossKind.TRANSACTIONS, "orders", 0] == (4, 20)
        stored = json.loads(target.read("runs/convert-1/format-loss.json"))
        assert len(stored["losses"]) == len(done.losses.losses)
        assert any("4 compressed batches" in warning for warning in done.result.warnings)

    def test_between_archives_of_kafka_nothing_is_lost(self, source: LocalStorage, tmp_path: Path) -> None:
        done = convert(source, folder(tmp_path / "target"), "Kafka")
        assert done.losses.losses == ()

    def test_a_loss_of_records_is_refused_before_anything_is_written(
        self, source: LocalStorage, tmp_path: Path
    ) -> None:
        target = folder(tmp_path / "target")
        done = convert(source, target, "Avro", format_options=STRICT)
        assert (done.result.exit_code, done.result.error_code) == (2, "FormatLoss")
        assert "null value in 1 record of topic 'orders' partition 0, first at offset 1" in done.result.message
        assert "--allow-loss" in done.result.message
        assert target.list() == []

    def test_a_loss_that_is_allowed_is_reported(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        allowed = FormatOptions(compatibility=Compatibility.STRICT, allow_loss=True)
        done = convert(source, target, "Avro", format_options=allowed)
        assert done.result.outcome == "Succeeded"
        kinds = {loss.kind for loss in done.losses.of_records}
        assert {LossKind.TOMBSTONE, LossKind.HEADER_DUPLICATE, LossKind.TIMESTAMP_TYPE} <= kinds
        stored = json.loads(target.read("runs/convert-1/format-loss.json"))["losses"]
        assert {row["what"] for row in stored} >= {kind.value for kind in kinds}

    def test_a_dry_run_tells_and_writes_nothing(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        done = convert(source, target, "Avro", format_options=STRICT, dry_run=True)
        assert done.result.outcome == "Succeeded"
        assert {loss.kind for loss in done.losses.losses} >= {LossKind.TOMBSTONE, LossKind.COMPRESSION}
        assert target.list() == []

    def test_the_counts_are_whole_after_a_kill(self, source: LocalStorage, tmp_path: Path) -> None:
        once = convert(source, folder(tmp_path / "once"), "Records", chunk_bytes=1)
        target = folder(tmp_path / "target")
        with pytest.raises(Killed):
            convert(source, target, "Records", chunk_bytes=1, runner=kill_before(2))
        again = convert(source, target, "Records", chunk_bytes=1)
        assert (once.result.outcome, again.result.outcome) == ("Succeeded", "Succeeded")
        assert again.losses.losses == once.losses.losses


class TestGoingOn:
    @pytest.mark.parametrize("name", FORMATS)
    @pytest.mark.parametrize("killed", [0, 1, 3, 5])
    def test_a_killed_run_continues_and_ends_the_same(
        self, tmp_path: Path, name: str, killed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logkeep_engine.archiving.COMMIT_SECONDS", 0)
        monkeypatch.setattr("logkeep_engine.archiving.COMMIT_SHARE", 0)
        source, target, whole = (folder(tmp_path / name) for name in ("source", "target", "whole"))
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 300, 50)))
        with pytest.raises(Killed):
            convert(source, target, name, chunk_bytes=1, runner=kill_before(killed))
        runner = HereRunner()
        state = converted(source, target, name, chunk_bytes=1, runner=runner)
        converted(source, whole, name, chunk_bytes=1)
        assert contents(target) == contents(source)
        assert runner.ran.count("convert_chunks") == 6 - killed
        assert state.runs["convert-1"].attempts == 2
        if name != "Kafka":  # names have no epoch: the very same objects
            assert files(target, "_records") == files(whole, "_records")

    def test_converting_again_adds_what_is_new(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, chunk(source, 0, 100))
        converted(source, target, "Records")
        with begin_run(Archive.open(source), "run-2", wait=FAST) as writer:
            writer.commit(receipts=[chunk(source, 100, 200, epoch=writer.epoch)])
            writer.end(RunOutcome.SUCCEEDED)
        before = files(target, "_records")
        done = convert(source, target, "Records", run_id="convert-2")
        assert (done.result.outcome, done.result.records) == ("Succeeded", 100)
        assert contents(target) == contents(source)
        assert before.items() <= files(target, "_records").items()

    @pytest.mark.parametrize("name", ["Kafka", "Records"])
    def test_positions_of_topics_that_were_converted_before_stay(
        self, source: LocalStorage, tmp_path: Path, name: str
    ) -> None:
        target = folder(tmp_path / "target")
        for number, topic in enumerate(["orders", "notes", "orders"]):
            done = run_convert(
                f"convert-{number}",
                only(source, topic),
                target,
                ConvertOptions(FormatName(name)),
                HereRunner,
                Reporter("convert"),
            )
            assert done.result.outcome == "Succeeded", done.result.message
        assert set(Archive.open(target).load().groups) == set(Archive.open(source).load().groups)
        if name == "Records":
            assert json.loads(target.read("topics/orders/consumer_offsets_partition_000")) == {"billing": 40}
            assert json.loads(target.read("topics/notes/consumer_offsets_partition_000")) == {"billing": 12}

    def test_nothing_new_is_nothing_done(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        converted(source, target, "Avro")
        done = convert(source, target, "Avro", run_id="convert-2")
        assert (done.result.outcome, done.result.records, done.result.segments) == ("Succeeded", 0, 0)

    def test_a_run_continues_only_with_its_own_options(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, chunk(source, 0, 100))
        with pytest.raises(Killed):
            convert(source, target, "Records", runner=kill_before(0))
        done = convert(source, target, "Records", segment_bytes=1 << 20)
        assert done.result.exit_code == 2
        assert "Run convert-1 was started with other options: segmentBytes." in done.result.message


class TestRefusals:
    def test_a_folder_that_is_not_empty(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        target.put("something/else", b"x")
        done = convert(source, target, "Records")
        assert done.result.exit_code == 2
        assert "is not empty: it holds something/else" in done.result.message
        assert [info.path for info in target.list()] == ["something/else"]

    def test_an_archive_of_a_backup(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        tricky(target)
        done = convert(source, target, "Kafka")
        assert done.result.exit_code == 2
        assert "was written by run run-1 (KafkaBackup)" in done.result.message

    def test_an_archive_of_another_format(self, source: LocalStorage, tmp_path: Path) -> None:
        target = folder(tmp_path / "target")
        converted(source, target, "Avro")
        done = convert(source, target, "Records", run_id="convert-2")
        assert done.result.exit_code == 2
        assert "is an archive of format Avro" in done.result.message

    def test_what_was_made_of_another_source(self, source: LocalStorage, tmp_path: Path) -> None:
        other, target = folder(tmp_path / "other"), folder(tmp_path / "target")
        tricky(other)
        converted(other, target, "Records")
        done = convert(source, target, "Records", run_id="convert-2")
        assert done.result.exit_code == 2
        assert "was written by a conversion of" in done.result.message

    @pytest.mark.parametrize("place", ["source", "source/inside", "."])
    def test_source_and_target_in_one_another(self, source: LocalStorage, tmp_path: Path, place: str) -> None:
        done = convert(source, folder((tmp_path / place).resolve()), "Records")
        assert done.result.exit_code == 2
        assert "are the same folder, or one is inside the other" in done.result.message

    def test_the_source_by_another_name(self, source: LocalStorage, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "source")
        done = convert(source, folder(tmp_path / "link"), "Kafka")
        assert done.result.exit_code == 2
        assert "is the source itself, by another name" in done.result.message

    def test_no_archive(self, tmp_path: Path) -> None:
        done = convert(folder(tmp_path / "source"), folder(tmp_path / "target"), "Kafka")
        assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveMissing")

    def test_two_incarnations_do_not_fit_into_one_folder(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        second = replace(ORDERS, topic_id="ccccccccccccccccccccc_")
        with begin(source) as writer:
            receipts = [chunk(source, 0, 10), chunk(source, 0, 20, topic=second)]
            writer.commit(topics=[ORDERS, second], receipts=receipts)
            writer.end(RunOutcome.SUCCEEDED)
        done = convert(source, target, "Records")
        assert done.result.exit_code == 2
        assert ORDERS.topic_id in done.result.message
        assert second.topic_id in done.result.message
        converted(source, target, "Kafka")

    @pytest.mark.parametrize("name", FORMATS)
    def test_a_damaged_source_is_named_and_nothing_of_the_chunk_is_committed(
        self, source: LocalStorage, tmp_path: Path, name: str
    ) -> None:
        (path, *_) = [
            path for path in files(source, ".log") if path.startswith("topics/orders") and "partition=0" in path
        ]
        damaged = tmp_path / "source" / path
        data = bytearray(damaged.read_bytes())
        data[100] ^= 0xFF
        damaged.write_bytes(data)
        target = folder(tmp_path / "target")
        done = convert(source, target, name)
        assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveDamaged")
        assert path in done.result.message
        state = Archive.open(target).load()
        assert (ORDERS.topic_id, 0) not in state.segments
        assert state.runs["convert-1"].outcome is RunOutcome.FAILED

    @pytest.mark.parametrize(
        ("batch_of", "message"),
        [
            (with_header(batch(0, 3), base_offset=0, record_count=5), "The batch at offset 0 is damaged"),
            (
                with_header(batch(0, 3), base_offset=0, last_offset_delta=1),
                "its records do not have rising offsets from 0 to 1",
            ),
        ],
        ids=["cut", "offsets"],
    )
    def test_a_batch_whose_records_do_not_fit_its_header_is_named(
        self, tmp_path: Path, batch_of: bytes, message: str
    ) -> None:
        source = folder(tmp_path / "source")
        entry = write_segment(source, [batch_of])
        archive_of(source, Receipt((Coverage(ORDERS.topic_id, 0, 0, 9),), (entry,)))
        done = convert(source, folder(tmp_path / "target"), "Records")
        assert (done.result.exit_code, done.result.error_code) == (2, "ArchiveDamaged")
        assert message in done.result.message
        assert ".log (topic orders partition 0 offset 0)" in done.result.message

    def test_a_source_that_has_lost_what_was_planned(self, tmp_path: Path) -> None:
        source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
        archive_of(source, *(chunk(source, at, at + 50) for at in range(0, 200, 50)))
        with pytest.raises(Killed):
            convert(source, target, "Records", runner=kill_before(0))
        remove_first(source)
        done = convert(source, target, "Records")
        assert done.result.exit_code == 2
        assert "The source no longer holds offsets 0 to 199 of topic 'orders' partition 0" in done.result.message


def test_a_plan_whose_beginning_the_target_has_lost_is_not_gone_on_with(tmp_path: Path) -> None:
    """The plan leaves out the offsets for which lost commits had accounted."""
    source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
    tricky(source)
    assert convert(source, target, "Records", run_id="one").result.outcome == "Succeeded"
    assert convert(source, target, "Records", run_id="two").result.outcome == "Succeeded"
    target.delete(info.path for info in target.list(names.CATALOG))
    for _ in range(2):
        result = convert(source, target, "Records", run_id="two").result
        assert (result.outcome, result.error_code) == ("Failed", "ArchiveDamaged"), result
    assert convert(source, target, "Records", run_id="three").result.outcome == "Succeeded"
    assert contents(target) == {key: seen for key, seen in contents(source).items() if seen}


def test_the_state_of_the_cluster_is_converted_too(source: LocalStorage, tmp_path: Path) -> None:
    state = ClusterState("run-2", TIME, acls=(("TOPIC", "orders", "LITERAL", "User:a", "*", "READ", "ALLOW"),))
    data = state.to_json()
    with begin(source, "run-2") as writer:
        source.put(state_path("run-2"), data)
        writer.end(RunOutcome.SUCCEEDED, cluster_state=state.entry(data))
    target = folder(tmp_path / "target")
    commit = converted(source, target, "Avro").commit
    archive = Archive.open(target)
    found = read_cluster_state(archive, next(view.ends_of_runs(archive, commit)))
    assert found == replace(state, run_id="convert-1")


def compacted_source(storage: LocalStorage) -> None:
    """Generation 1 of a compacted partition, of which offsets are missing, is exact from offset 40 on."""
    topic = replace(ORDERS, configs={"cleanup.policy": "compact"})
    key = (ORDERS.topic_id, 0)
    with begin(storage) as writer:
        sparse = write_segment(storage, [Batch(0, 5).encode(), Batch(20, 20).encode()], epoch=writer.epoch)
        writer.commit(topics=[topic], receipts=[Receipt((Coverage(*key, 0, 40),), (sparse,))])
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.BEGIN)])
        writer.change_generations([GenerationChange(*key, 2, GenerationStep.ACTIVATE, end=40)])
        writer.end(RunOutcome.SUCCEEDED)
    grow(storage, "run-2", 40)


def grow(storage: LocalStorage, run_id: str, start: int) -> None:
    with begin(storage, run_id) as writer:
        writer.commit(receipts=[chunk(storage, start, start + 20, epoch=writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)


def refuses(storage: LocalStorage, offset: int) -> bool:
    archive = Archive.open(storage)
    state = view.choose(archive).state
    topics = list(state.topics.values())
    wanted = PointSpec.model_validate({"offsets": [{"topic": "orders", "partition": 0, "offset": offset}]})
    try:
        points.plan_point(archive, state, topics, wanted)
    except SpecError:
        return True
    return False


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_converted_archive_refuses_the_points_that_its_source_refuses(tmp_path: Path, format_name: str) -> None:
    source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
    compacted_source(source)
    converted(source, target, format_name)
    for storage in (source, target):
        assert [refuses(storage, offset) for offset in (1, 39, 40, 50)] == [True, True, False, False]
    grow(source, "run-3", 60)
    commits = converted(source, target, format_name, run_id="convert-2").commit
    assert [refuses(target, offset) for offset in (39, 40, 70)] == [True, False, False]
    assert converted(source, target, format_name, run_id="convert-3").commit == commits + 2, "begin and end"
    again = folder(tmp_path / "again")
    converted(target, again, "Kafka")
    assert [refuses(again, offset) for offset in (39, 40)] == [True, False]


def test_a_kill_between_the_commits_that_say_from_where_on_points_are_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
    compacted_source(source)
    change = Writer.change_generations

    def killed(self: Writer, changes: Iterable[GenerationChange]) -> None:
        wanted = list(changes)
        if any(item.step is GenerationStep.ACTIVATE for item in wanted):
            raise BrokerUnavailable("killed")
        change(self, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "change_generations", killed)
        assert convert(source, target, "Kafka").result.outcome == "Failed"
    assert Archive.open(target).load().generations[ORDERS.topic_id, 0].passive is not None
    converted(source, target, "Kafka")
    assert [refuses(target, offset) for offset in (39, 40)] == [True, False]


@pytest.mark.parametrize("branched", [False, True])
def test_a_source_without_an_exact_point_says_so_of_the_target(tmp_path: Path, branched: bool) -> None:
    source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
    compacted_source(source)
    if branched:
        with begin(source, "run-3") as writer:
            writer.branch([Branching(ORDERS.topic_id, 0, branch_id(ORDERS.topic_id, 1), 30)])
            writer.commit(receipts=[chunk(source, 30, 60, epoch=writer.epoch)])
            writer.end(RunOutcome.SUCCEEDED)
    else:
        remove(source, 0, run_id="run-3")
    done = convert(source, target, "Kafka").result
    assert (done.outcome, "no point of the source is exact" in " ".join(done.warnings)) == ("Succeeded", True)
    assert [refuses(storage, 45) for storage in (source, target)] == [True, True]
