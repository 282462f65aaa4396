"""The shared half of all runs that write an archive: their end, when receipts are committed, what is tidied up.

    with Committer(writer) as committer:
        ...
        committer.add(receipt)
        committer.commit_if_due()

`backup.run.backup_run`, `convert.run` and `convert.imported` are such runs; `frame` says how any run is performed.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from types import TracebackType
from typing import Self

from logkeep_engine.archive.catalog.anchor import newest
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition, Receipt
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.bundling import bundle_old_commits
from logkeep_engine.archive.maintenance.clock import checked_now
from logkeep_engine.archive.maintenance.leftovers import may_have_leftovers, remove_leftovers
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, ArchiveFenced, LogkeepError
from logkeep_engine.frame import DriverRun
from logkeep_engine.report import Reporter

log = logging.getLogger(__name__)

COMMIT_SECONDS = 1.0
COMMIT_SHARE = 10  # a run spends at most a tenth of its time committing


class ArchivingRun(DriverRun):
    """A run that writes an archive. `faults`: all of an archive or a folder that was refused."""

    def __init__(self, run_id: str, kind: str, reporter: Reporter, requested_by: str | None = None) -> None:
        super().__init__(run_id, kind, reporter.start_time, requested_by)
        self.faults: tuple[str, ...] = ()
        self._reporter = reporter
        self._archive: Archive | None = None
        self._writer: Writer | None = None
        self._notes: list[str] = []
        self._tried_all = False

    @property
    def _had_succeeded(self) -> bool:
        """Whether an earlier attempt of the run has succeeded, and was killed after its end or failed there."""
        before = self._writer.before if self._writer is not None else None
        return before is not None and before.success is not None

    def perform(self) -> RunResult:
        """Do the run, as any; a failure says what an earlier attempt has left."""
        result = super().perform()
        if result.outcome == "Succeeded" or not self._had_succeeded:
            return result
        return replace(
            result,
            message=f"{result.message} The run had succeeded before it was started again: what it archived then can "
            "be restored as before.",
        )

    def perform_or_raise(self) -> RunResult:
        """Do the run, as any; its heartbeat stops at the end."""
        try:
            return super().perform_or_raise()
        finally:
            if self._writer is not None:
                self._writer.close()

    @abstractmethod
    def execute(self) -> None:
        """Do the work of the run.

        Sets `_archive` and `_writer` as soon as they are there, and `_tried_all` once nothing is left to archive but
        what has failed.
        """

    def result(self) -> RunResult:
        """Return the facts so far; outcome and exit code are those of a failed run."""
        result = super().result()
        if self._archive is not None:
            info = self._archive.info
            result = replace(result, archive_id=info.archive_id, cluster_id=info.cluster_id)
        if self._writer is not None:
            state = self._writer.state
            run, anchor = state.runs[self._run_id], newest(state)
            result = replace(
                result,
                epoch=self._writer.epoch,
                commit=state.commit,
                anchor=str(anchor) if anchor is not None else None,
                taken_over=self._writer.archive.claim.said,
                records=run.records,
                bytes=run.bytes,
                segments=run.segments,
            )
        return result

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note in the archive, if the run had begun there, that it has failed."""
        self.faults = error.faults if isinstance(error, ArchiveDamaged) else ()
        if self._writer is not None:
            self._writer.give_up(error, result.message, partial=self._tried_all)

    def _tidy(self, writer: Writer, partitions: Iterable[Partition], *, repeated: bool = False) -> None:
        """Remove the objects that earlier attempts have left next to the segments of this run, which has written
        `partitions`. `repeated`: tasks of this attempt have written something twice.
        """
        if not repeated and not may_have_leftovers(writer):
            return
        try:
            remove_leftovers(writer, set(partitions))
        except LogkeepError as error:
            self._note("objects that no commit names could not be removed", error)

    def _bundle(self, writer: Writer) -> None:
        """Move old commits into bundles, if some are due."""
        try:
            bundle_old_commits(writer, partial(checked_now, writer))
        except LogkeepError as error:
            self._note("old commits could not be moved into bundles, the next run continues it", error)

    def _note(self, what: str, error: LogkeepError) -> None:
        """Make a warning of the error, since everything is in the archive."""
        log.warning("%s", error)
        self._notes.append(f"{what}: {error.message}")


def check_beginning(state: ArchiveState, run_id: str, begun: int) -> None:
    """Raises ArchiveDamaged if a run had `begun`, by its plan, at another time than by the catalog (ms since the
    epoch).

    The catalog has lost its last commits then, and the plan leaves out the offsets for which they accounted.
    """
    if begun == state.runs[run_id].begin_time:
        return
    raise ArchiveDamaged(
        f"Run {run_id} has a plan from a start that the catalog does not know: commits at its end are lost, and "
        "the plan leaves out what they had archived.",
        hint="Restore the lost commits from a copy, or start a run under another id: it makes a new plan.",
    )


class Committer:
    """Gathers receipts and commits them about once a second, and the rest at the end.

    It commits them also if an error ends the run, so that the work of other tasks need not be done again.
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
                log.warning("the last work could not be committed: %s", problem)

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
        """Return the receipts that wait to be committed."""
        return self._waiting
