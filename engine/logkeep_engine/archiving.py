"""What all runs that write an archive share: how they end, when receipts are committed, what is tidied up afterwards.

    result = run.perform()      # `run` is an `ArchivingRun`

    with Committer(writer) as committer:
        ...
        committer.add(receipt)
        committer.commit_if_due()

`backup.run`, `convert.run` and `convert.imported` say what a run does in between.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from logkeep_engine.archive.care.leftovers import may_have_leftovers, remove_leftovers
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition, Receipt
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced, LogkeepError
from logkeep_engine.report import Reporter, failed

log = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
COMMIT_SHARE = 10  # of the time between commits, at most one part in ten is spent committing


class ArchivingRun(ABC):
    """One run, with what is known of it so far. `faults`: all of an archive or a folder that was refused."""

    def __init__(self, run_id: str, kind: str, reporter: Reporter) -> None:
        self.faults: tuple[str, ...] = ()
        self._run_id = run_id
        self._kind = kind
        self._reporter = reporter
        self._archive: Archive | None = None
        self._writer: Writer | None = None
        self._notes: list[str] = []
        self._tried_all = False

    def perform(self) -> RunResult:
        """Do it, and say how it went.

        Never raises for what happens in a run: every error becomes a result with its exit code, and is noted in the
        archive if the run had begun there.
        """
        try:
            self.execute()
            result = replace(self.result(), outcome="Succeeded", exit_code=int(ExitCode.OK))
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, Exception) and not isinstance(error, LogkeepError):
                log.exception("unexpected error")
            result = failed(self.result(), error)
            self.faults = error.faults if isinstance(error, ArchiveDamaged) else ()
            if self._writer is not None:
                self._writer.give_up(error, result.message, partial=self._tried_all)
                result = replace(result, commit=self._writer.state.commit)
        finally:
            if self._writer is not None:
                self._writer.close()
        return replace(result, end_time=time.time())

    @abstractmethod
    def execute(self) -> None:
        """The run itself.

        Sets `_archive` and `_writer` as soon as they are there, and `_tried_all` once nothing is left to archive but
        what has failed.
        """

    def result(self) -> RunResult:
        """The facts so far; outcome and exit code are those of a failed run."""
        result = RunResult(
            run_id=self._run_id,
            kind=self._kind,
            outcome="Failed",
            exit_code=int(ExitCode.FAILED),
            start_time=self._reporter.start_time,
            end_time=time.time(),
        )
        if self._archive is not None:
            info = self._archive.info
            result = replace(result, archive_id=info.archive_id, cluster_id=info.cluster_id)
        if self._writer is not None:
            run = self._writer.state.runs[self._run_id]
            result = replace(
                result,
                epoch=self._writer.epoch,
                commit=self._writer.state.commit,
                records=run.records,
                bytes=run.bytes,
                segments=run.segments,
            )
        return result

    def _tidy(self, writer: Writer, partitions: Iterable[Partition], *, repeated: bool = False) -> None:
        """Remove what earlier attempts have left beside the segments of this run, which has written `partitions`.
        `repeated`: tasks of this attempt have written something twice."""
        if not repeated and not may_have_leftovers(writer):
            return
        try:
            remove_leftovers(writer, set(partitions))
        except LogkeepError as error:
            self._note("objects that no commit names could not be removed", error)

    def _note(self, what: str, error: LogkeepError) -> None:
        """Everything is in the archive, so trouble is a warning."""
        log.warning("%s", error)
        self._notes.append(f"{what}: {error.message}")


def check_beginning(state: ArchiveState, run_id: str, begun: int) -> None:
    """Raises ArchiveDamaged if the plan of a run was made when the run had `begun` at another time than the catalog
    says (ms since the epoch; 0: plans of earlier versions do not tell): the catalog has lost its last commits since,
    and the plan leaves out what they had settled.
    """
    if begun in (0, state.runs[run_id].begin_time):
        return
    raise ArchiveDamaged(
        f"Run {run_id} has a plan of a beginning that the catalog does not know: commits are lost from its end, and "
        "the plan leaves out what they had settled.",
        hint="Put the lost commits back from a copy, or begin a run under another id: it plans anew.",
    )


class Committer:
    """Gathers receipts and commits them about once a second, and what is left of them at the end.

    Another error on its way changes nothing in that: what other tasks have done need not be done again.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: list[Receipt] = []
        self._due = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        elif isinstance(error, (Exception, KeyboardInterrupt)) and not isinstance(error, ArchiveFenced):
            try:
                self.commit()
            except Exception as problem:
                log.warning("what was done last could not be committed: %s", problem)

    def add(self, receipt: Receipt) -> None:
        self._waiting.append(receipt)

    def commit_if_due(self) -> None:
        if time.monotonic() >= self._due:
            self.commit()

    def commit(self) -> None:
        started = time.monotonic()
        receipts = self._receipts()
        if not receipts:
            return
        self._writer.commit(receipts=receipts)
        self._waiting = []
        now = time.monotonic()
        self._due = now + max(COMMIT_SECONDS, COMMIT_SHARE * (now - started))

    def _receipts(self) -> list[Receipt]:
        """All that wait."""
        return self._waiting
