"""Conversions again, and those that were interrupted, of an archive that has changed meanwhile: what the first has not
is added exactly, also out of a snapshot's part or a new generation's segment across its bound."""

from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, GenerationChange, GenerationStep, Receipt, RunOutcome
from logkeep_engine.archive.maintenance.points import KeepRules
from logkeep_engine.archive.maintenance.retaining import RetentionRules, retain
from logkeep_engine.archive.maintenance.retention import RetentionLimits
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.convert.run import ConvertResult
from logkeep_engine.errors import StorageUnavailable
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import LocalStorage
from tests.runners import Context, Job, Runner
from tests.unit.archive.build import write_segment
from tests.unit.backup.compacted_topic import KEY, CompactedTopic
from tests.unit.convert.converting import contents, convert

FORMATS = ["Kafka", "Records", "Avro"]


class Source:
    """A compacted topic whose runs archive ten records each, and its conversions."""

    def __init__(self, tmp_path: Path, target_format: str) -> None:
        self.topic = CompactedTopic(LocalStorage((tmp_path / "source").as_uri()))
        self.target = LocalStorage((tmp_path / "target").as_uri())
        self.every: list[bytes] = []
        self._format = target_format
        self._runs = 0

    def run(self, *, snapshot: bool = False) -> None:
        """A run; with `snapshot` it also makes a snapshot, and retention takes the log below."""
        for _ in range(5):
            self.topic.write([(b"key %d" % self.topic.end, b"v"), (b"key %d" % (self.topic.end + 1), b"v")])
        self.archive(snapshot=snapshot)

    def archive(self, *, snapshot: bool = False) -> None:
        self._runs += 1
        self.every += self.topic.waiting
        with self.topic.begin(f"run-{self._runs}") as writer:
            self.topic.archive(writer)
            writer.end(RunOutcome.SUCCEEDED)
            if snapshot:
                self.topic.make(writer)
                assert retain(writer, RetentionRules(RetentionLimits(), KeepRules(runs=1), 0)).removed.segments

    def read_again(self, aborted: tuple[AbortedTxn, ...] = ()) -> None:
        """A new generation becomes active: the whole log in one segment."""
        end = self.topic.end
        with self.topic.begin("run-again") as writer:
            writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.BEGIN, 0, end)])
            entry = write_segment(self.topic.storage, self.every, epoch=writer.epoch, aborted=aborted)
            writer.commit(receipts=[Receipt((Coverage(*KEY, 0, end),), (entry,), generation=2)])
            writer.change_generations([GenerationChange(*KEY, 2, GenerationStep.ACTIVATE, 0, end)])
            writer.end(RunOutcome.SUCCEEDED)

    def convert(self, run_id: str, runner: Runner | None = None, chunk_bytes: int = 1 << 20) -> ConvertResult:
        sizes: dict[str, Any] = {"chunk_bytes": chunk_bytes, "segment_bytes": 1 << 20}
        return convert(self.topic.storage, self.target, self._format, run_id=run_id, runner=runner, **sizes)

    def converted(self) -> list[int]:
        assert [str(fault) for fault in verify(Archive.open(self.target)).faults] == []
        return [offset for offset, *_ in contents(self.target)["orders", 0]]


class AllButTheFirst(Runner):
    """Works on all tasks but the first, and then the storage is gone."""

    def perform(self, job: Job) -> None:
        for index in range(1, len(job.work)):
            job.on_result(index, job.function(job.work[index], Context()))
        raise StorageUnavailable("the storage is gone")


@pytest.mark.parametrize("target_format", FORMATS)
def test_what_lies_in_a_snapshot_that_begins_before_it_is_added(tmp_path: Path, target_format: str) -> None:
    source = Source(tmp_path, target_format)
    source.run()
    assert source.convert("convert-1").result.outcome == "Succeeded"
    source.run(snapshot=True)
    source.run()
    assert source.convert("convert-2").result.outcome == "Succeeded"
    assert source.converted() == [*range(30)]
    assert contents(source.target) == contents(source.topic.storage)


@pytest.mark.parametrize("target_format", FORMATS)
def test_what_lies_in_a_segment_that_was_read_again_is_added(tmp_path: Path, target_format: str) -> None:
    source = Source(tmp_path, target_format)
    source.run()
    assert source.convert("convert-1").result.outcome == "Succeeded"
    source.run()
    source.read_again()
    assert source.convert("convert-2").result.outcome == "Succeeded"
    assert source.converted() == [*range(20)]


@pytest.mark.parametrize("target_format", FORMATS)
def test_an_interrupted_conversion_continues_when_a_snapshot_stands_for_the_log(
    tmp_path: Path, target_format: str
) -> None:
    source = Source(tmp_path, target_format)
    source.run()
    source.run()
    assert source.convert("convert-1", AllButTheFirst(), chunk_bytes=1).result.outcome == "Failed"
    source.run(snapshot=True)
    assert source.convert("convert-1", AllButTheFirst(), chunk_bytes=1).result.outcome == "Failed"
    assert [offset for offset, *_ in contents(source.target)["orders", 0]] == [*range(10, 30)]
    assert source.convert("convert-1", chunk_bytes=1).result.outcome == "Succeeded"
    assert source.converted() == [*range(30)]
    assert source.convert("convert-2", chunk_bytes=1).result.outcome == "Succeeded"
    assert source.converted() == [*range(30)]


@pytest.mark.parametrize("target_format", FORMATS)
def test_what_the_snapshot_has_left_out_is_converted_with_what_has_overwritten_it(
    tmp_path: Path, target_format: str
) -> None:
    """Offset 0 is overwritten after what the run was started to convert: the snapshot has the later record only."""
    source = Source(tmp_path, target_format)
    source.run()
    source.run()
    assert source.convert("convert-1", AllButTheFirst(), chunk_bytes=1).result.outcome == "Failed"
    source.topic.write([(b"key 0", b"later")])
    source.archive(snapshot=True)
    assert source.convert("convert-1", chunk_bytes=1).result.outcome == "Succeeded"
    assert source.converted() == [*range(1, 21)]


@pytest.mark.parametrize("target_format", FORMATS)
def test_of_transactions_across_a_bound_only_what_was_committed_is_added(tmp_path: Path, target_format: str) -> None:
    """The first conversion ends in the midst of two transactions. The second reads them in one segment."""
    source = Source(tmp_path, target_format)
    source.topic.write([(b"a", b"v"), (b"b", b"v")])
    source.archive()
    assert source.convert("convert-1").result.outcome == "Succeeded"
    source.topic.write([(b"c", b"v"), (b"d", b"v")], producer_id=7, commits=True)
    source.topic.write([(b"e", b"v")], producer_id=8, commits=False)
    source.topic.write([(b"f", b"v")])
    aborted = tuple(source.topic.aborted)
    source.archive()
    source.read_again(aborted)
    assert source.convert("convert-2").result.outcome == "Succeeded"
    assert source.converted() == [0, 1, 2, 3, 7]


def test_after_a_snapshot_batches_are_copied_as_they_are(tmp_path: Path) -> None:
    source = Source(tmp_path, "Kafka")
    source.run(snapshot=False)
    source.run(snapshot=True)
    source.topic.write([(b"c", b"v")], producer_id=7, commits=True)
    source.topic.write([(b"e", b"v")], producer_id=8, commits=False)
    source.archive()
    assert source.convert("convert-1").result.outcome == "Succeeded"
    state = Archive.open(source.target).load()
    copied = list(Archive.open(source.topic.storage).load().segments[KEY])[-1]
    made = list(state.segments[KEY])
    assert [(entry.base_offset, entry.next_offset) for entry in made] == [(0, 20), (20, 24)]
    assert (made[-1].digest, made[-1].transactional) == (copied.digest, True)
    assert source.converted() == [*range(21)]
