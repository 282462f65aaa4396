"""Runs that write an archive share this: when receipts are committed, and how a run ends."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from logkeep_engine import archiving
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import Receipt, RunOutcome
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archiving import ArchivingRun, Committer
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced, BrokerUnavailable, StorageRefused
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage
from tests.unit.archive.build import ORDERS, begin, chunk
from tests.unit.archive.maintenance import test_leftovers as leftovers

GONE = BrokerUnavailable("Nobody there.", hint="Look.")
FENCED = ArchiveFenced("Run run-2 has taken over.", hint="Let it finish.")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path.as_uri())


@pytest.fixture
def writer(storage: LocalStorage) -> Writer:
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS])
    return writer


def add_and_raise(writer: Writer, receipt: Receipt, error: BaseException) -> None:
    with Committer(writer) as committer:
        committer.add(receipt)
        raise error


class TestCommitter:
    def test_gathers_what_comes_within_a_second(
        self, storage: LocalStorage, writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(archiving, "COMMIT_SECONDS", 3600)
        begun = writer.state.commit
        with Committer(writer) as committer:
            for start in (0, 10, 20):
                committer.add(chunk(storage, start, start + 10))
                committer.commit_if_due()
                assert writer.state.commit == begun + 1, "the first is not kept waiting"
        assert writer.state.commit == begun + 2
        assert writer.state.coverage[ORDERS.topic_id, 0] == [(0, 30)]

    def test_commits_nothing_where_nothing_was_done(self, writer: Writer) -> None:
        begun = writer.state.commit
        with Committer(writer) as committer:
            committer.commit_if_due()
        assert writer.state.commit == begun

    @pytest.mark.parametrize(
        ("error", "committed"),
        [
            (GONE, True),
            (KeyboardInterrupt(), True),
            (FENCED, False),
            (SystemExit(), False),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_keeps_what_was_done_before_an_error(
        self, storage: LocalStorage, writer: Writer, error: BaseException, committed: bool
    ) -> None:
        with pytest.raises(type(error)):
            add_and_raise(writer, chunk(storage, 0, 10), error)
        assert ((ORDERS.topic_id, 0) in writer.state.coverage) is committed

    def test_trouble_at_the_end_does_not_hide_the_error(
        self, storage: LocalStorage, writer: Writer, caplog: pytest.LogCaptureFixture
    ) -> None:
        begin(storage).close()  # the same run, started again
        with pytest.raises(BrokerUnavailable):
            add_and_raise(writer, chunk(storage, 0, 10), GONE)
        assert "the last work could not be committed: " in caplog.text


class Run(ArchivingRun):
    """Archives offsets 0 to 9, and then does `act`."""

    def __init__(self, storage: LocalStorage, act: Callable[[], None]) -> None:
        super().__init__("run-1", "KafkaBackup", Reporter("run-1"))
        self._storage = storage
        self._act = act

    def execute(self) -> None:
        writer = self._writer = begin(self._storage)
        self._archive = writer.archive
        writer.commit(topics=[ORDERS], receipts=[chunk(self._storage, 0, 10)])
        self._act()
        writer.end(RunOutcome.SUCCEEDED)


class TestRun:
    def test_that_succeeds(self, storage: LocalStorage) -> None:
        result = Run(storage, lambda: None).perform()
        archive = Archive.open(storage)
        state = archive.load()
        assert (result.outcome, result.exit_code, result.records, result.segments) == ("Succeeded", 0, 10, 1)
        assert (result.archive_id, result.epoch, result.commit) == (archive.info.archive_id, 1, state.commit)
        assert result.start_time <= result.end_time

    @pytest.mark.parametrize(
        ("error", "code", "faults"),
        [
            (ArchiveDamaged("Two faults.", hint="Look.", faults=("a", "b")), ExitCode.REFUSED, ("a", "b")),
            (KeyError("bug"), ExitCode.FAILED, ()),
            (KeyboardInterrupt(), ExitCode.INTERRUPTED, ()),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_that_fails_is_noted(
        self, storage: LocalStorage, error: BaseException, code: ExitCode, faults: tuple[str, ...]
    ) -> None:
        def fail() -> None:
            raise error

        run = Run(storage, fail)
        result = run.perform()
        state = Archive.open(storage).load()
        assert (result.outcome, result.exit_code, run.faults) == ("Failed", int(code), faults)
        assert (result.records, result.commit) == (10, state.commit)
        assert (state.runs["run-1"].outcome, state.runs["run-1"].message) == (RunOutcome.FAILED, result.message)

    def test_that_cannot_remove_what_lies_beside_its_segments_has_succeeded(self, tmp_path: Path) -> None:
        storage = KeepsAll(tmp_path.as_uri())
        left = leftovers.killed(storage, Layout.AVRO, (50, 100))
        run = Tidying(storage, lambda: None)
        result = run.perform()
        assert (result.outcome, run.notes) == (
            "Succeeded",
            ["objects that no commit names could not be removed: Folder f: no."],
        )
        leftovers.assert_whole(storage, orphans=left)


class KeepsAll(LocalStorage):
    def delete(self, paths: Iterable[str]) -> None:
        raise StorageRefused("Folder f: no.", hint="Ask for access.")


class Tidying(Run):
    """Archives offsets 0 to 199 of an Avro archive."""

    def execute(self) -> None:
        writer = self._writer = leftovers.begin(self._storage, Layout.AVRO, "run-1")
        leftovers.succeed(writer, Layout.AVRO, (0, 200))
        self._tidy(writer, [leftovers.KEY])

    @property
    def notes(self) -> list[str]:
        return self._notes
