"""The one writer at a time that adds to an archive: commits, and the checkpoints that fold them.

    archive = Archive.create_or_open(storage, cluster_id)
    with begin_run(archive, run_id) as writer:
        writer.commit(topics=topics, receipts=receipts)     # as tasks end
        writer.end(RunOutcome.SUCCEEDED, groups=groups)

A commit is one conditional create of the next number, and the only thing that makes anything visible. A crash before it
leaves objects that no commit names; a crash after it loses nothing. After it the writer looks for a bundle of that
number: if there is one with another commit, another run took over long ago. A crash while a checkpoint is written
leaves the commits, from which it can be made again. `docs/design/0001` says how runs tell each other apart, and `0012`
why the look suffices.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint, commits
from logkeep_engine.archive.catalog.archive import Archive, SinceCheckpoint
from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
from logkeep_engine.archive.catalog.facts import (
    NO_COMMIT,
    Branching,
    ClusterStateEntry,
    Commit,
    CommitKind,
    ErasureEntry,
    GenerationChange,
    GroupEntry,
    PurgedPack,
    Receipt,
    RemovedSegment,
    RunEntry,
    RunOutcome,
    TopicEntry,
)
from logkeep_engine.archive.catalog.generations import checked
from logkeep_engine.archive.catalog.holds import Hold
from logkeep_engine.archive.catalog.lineage import UNKNOWN, LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.lost_tail import FoundTails, store_record
from logkeep_engine.archive.catalog.owner import check_owner, check_signs, confirm_owner, take
from logkeep_engine.archive.catalog.packed import PackId
from logkeep_engine.archive.catalog.receipts import (
    ReceiptCheck,
    check_removal,
    check_snapshot,
    new_epochs,
    partition_of,
    read_aside,
)
from logkeep_engine.archive.catalog.replacements import Exchange, drafted
from logkeep_engine.archive.catalog.run_note import HEARTBEAT, RunNote, watch
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import without_purged
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP, HOLD, RECONCILIATION, RETENTION
from logkeep_engine.errors import (
    ArchiveBusy,
    ArchiveFenced,
    ArchiveOwned,
    LogkeepError,
    ObjectExists,
    ReceiptRefused,
    StorageUnavailable,
)

log = logging.getLogger(__name__)

_BEGIN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of heartbeats, in seconds. A run overwrites its heartbeat every `heartbeat`. Another run watches it for
    `watch` and looks every `poll`."""

    heartbeat: float = 5.0
    watch: float = 15.0
    poll: float = 1.0


@dataclass(frozen=True, slots=True)
class Committed:
    """`number` is the commit's, or None if there was nothing to commit. `ignored`: receipts that were not committed,
    and why."""

    number: int | None
    ignored: tuple[tuple[Receipt, str], ...] = ()


def begin_run(
    archive: Archive,
    run_id: str,
    *,
    kind: str = BACKUP,
    wait: Timing | None = None,
    checkpoints: CheckpointPolicy | None = None,
) -> Writer:
    """Become the archive's writer, at the next epoch.

    A run of the same id that was begun and not ended is taken over at once. One of another id is watched for
    `wait.watch` seconds: raises ArchiveBusy if its heartbeat changes, else it is taken over. Raises ArchiveOwned,
    ArchiveRolledBack and ArchiveUnsigned before it writes, see `owner`. If commits are gone from the catalog's end (see
    `lost_tail`), the epoch is above theirs, and `writer.warnings` say so."""
    names.check_run_id(run_id)
    timing = wait or Timing()
    for _ in range(_BEGIN_ATTEMPTS):
        state, since = archive.load_and_count()
        check_owner(archive, state)
        check_signs(archive, state)
        others = [run for run in state.running if run.run_id != run_id]
        for run in others:
            _watch(archive, run, timing)
        take(archive, state, kind)
        if kind == BACKUP or state.signed_since == NO_COMMIT:  # others may have a key of their own, for once
            archive.sign_documents(state)
        tails = archive.find_lost_tails(state, since)
        writer = Writer(archive, state, run_id, timing, checkpoints or CheckpointPolicy(), since, tails)
        try:
            writer._begin(kind, tuple(run.run_id for run in others))
        except ArchiveFenced:
            archive.read_info()
            continue  # another run has written in the meantime: look at the archive again
        return writer
    raise ArchiveBusy(
        f"The archive at {archive.storage.uri} is being written by other runs.", hint="Wait until they end."
    )


def _watch(archive: Archive, run: RunEntry, timing: Timing) -> None:
    """Watch a run: return if it shows no life, raise ArchiveBusy if it does."""
    path = names.run_file(run.run_id, HEARTBEAT)
    first = archive.read_or_none(path)
    log.warning("run %s started and never ended; watching for %s s whether it is alive", run.run_id, timing.watch)
    if watch(lambda: archive.read_or_none(path), first, timing.watch, timing.poll) != first:
        raise ArchiveBusy(
            (
                f"The archive at {archive.storage.uri} is being written by run {run.run_id}, started at "
                f"{iso(run.begin_time)}."
            ),
            hint="Wait until it ends, or stop it.",
        )


class Writer:
    """The archive's writer while its run lasts. Made by `begin_run`. Safe for several threads.

    `state` is what the archive holds, this run's commits included; `epoch` is in the names of all objects of this run.
    `before` is the run as its earlier attempts have left it, None if there were none. `read_back` is the last commit of
    the checkpoint from which the state was read, -1 if there was none. After ArchiveFenced every call raises it again.
    Leaving the context without `end` stops the heartbeat and leaves the run unended, as a crash does: the next start of
    the same run continues."""

    def __init__(
        self,
        archive: Archive,
        state: ArchiveState,
        run_id: str,
        timing: Timing,
        policy: CheckpointPolicy,
        since: SinceCheckpoint,
        tails: FoundTails,
    ) -> None:
        self.archive = archive
        self.state = state
        self.run_id = run_id
        self.epoch = tails.epoch + 1
        self._lost = tails.new
        self.before = state.runs.get(run_id)
        self.read_back = since.read_back
        self._policy = policy
        self._since = since
        self._lock = threading.RLock()
        self._pending: Commit | None = None
        self._fenced: ArchiveFenced | None = None
        self._ended = False
        self._note = RunNote(
            archive.storage,
            run_id,
            name=HEARTBEAT,
            interval=timing.heartbeat,
            archive_id=archive.info.archive_id,
            epoch=self.epoch,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The lost commits that the run has found when it began, and that no run has reported before."""
        return tuple(f"the catalog has lost its last commits: {tail}" for tail in self._lost)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit(
        self,
        *,
        topics: Iterable[TopicEntry] = (),
        receipts: Iterable[Receipt] = (),
        leaders: Iterable[LeaderSeen] = (),
        epochs: Iterable[LeaderEpoch] = (),
    ) -> Committed:
        """Make topics, receipts and the leaders on whose logs the run begins part of the archive, in one commit.
        `epochs` are leader epochs in addition to those of the receipts.

        A receipt is left out and named in the answer if the archive accounts for its offsets already (its task was
        repeated). Raises ReceiptRefused for one that contradicts the archive, ArchiveFenced if another run has taken
        over, and StorageUnavailable if the store did not answer: then it is not known whether the commit is there, and
        the next call finds out first.
        """
        with self._lock:
            self._confirm_last()
            all_known = (self.state.with_known_facts(topic) for topic in topics)
            changed = [topic for topic in all_known if self.state.topics.get(topic.topic_id) != topic]
            trial = ReceiptCheck(self.state, changed)
            ignored: list[tuple[Receipt, str]] = []
            for receipt in receipts:
                if trial.holds(receipt):
                    ignored.append((receipt, "its offsets are archived already"))
                    continue
                why = trial.why_not(receipt, self.epoch)
                if why is not None:
                    raise ReceiptRefused(
                        f"A task's receipt cannot be committed: {why}.", hint="This is a bug; please report it."
                    )
                trial.add(receipt)
            seen = tuple(item for item in leaders if item.epoch > self.state.leaders.get(partition_of(item), UNKNOWN))
            accepted, passive = trial.taken, trial.taken_aside
            history = tuple(new_epochs(self.state, accepted, epochs))
            if not changed and not accepted and not seen and not history and not passive:
                return Committed(None, tuple(ignored))
            number = self._append(
                replace(
                    self._draft(CommitKind.DATA),
                    topics=tuple(changed),
                    coverage=tuple(item for receipt in accepted for item in receipt.coverage),
                    segments=tuple(item for receipt in accepted for item in receipt.segments),
                    gaps=tuple(item for receipt in accepted for item in receipt.gaps),
                    epochs=history,
                    leaders=seen,
                    passive=read_aside(self.state, passive),
                )
            )
            self._checkpoint_if_due()
            return Committed(number, tuple(ignored))

    def change_generations(self, changes: Iterable[GenerationChange]) -> None:
        """Commit steps of generations, if there are any. After the end of the run they may only say that generations
        are due. Raises what `commit` does, and ValueError for a step that cannot follow."""
        with self._lock:
            self._confirm_last()
            if wanted := checked(self.state, changes):
                self._append(replace(self._draft(CommitKind.DATA), generations=wanted))
                self._checkpoint_if_due()

    def branch(self, branchings: Iterable[Branching], due: Iterable[GenerationChange] = ()) -> int:
        """Continue the logs of partitions as new lines, in one commit, and return its number. `due`: the generations
        that are due for it.

        Raises what `commit` does, and ValueError for a branch that there is already.
        """
        with self._lock:
            self._confirm_last()
            wanted = tuple(branchings)
            for item in wanted:
                if self.state.has_branch((item.topic_id, item.partition), item.branch_id):
                    raise ValueError(f"there is a branch {item.branch_id} of {item} already")
            number = self._append(replace(self._draft(CommitKind.DATA), branchings=wanted, generations=tuple(due)))
            self._checkpoint_if_due()
            return number

    def exchange(self, exchanges: Iterable[Exchange]) -> int:
        """Put segments in place of others, in one commit, and return its number. The objects of the others are
        deleted after the commit: they are in `state.unpurged` until `purged` is called. Raises what `commit` does, and
        ValueError for a segment that is not there."""
        with self._lock:
            self._confirm_last()
            replaced, segments = drafted(self.state, exchanges)
            number = self._append(replace(self._draft(CommitKind.DATA), segments=segments, replaced=replaced))
            self._checkpoint_if_due()
            return number

    def end(
        self,
        outcome: RunOutcome,
        message: str = "",
        groups: Iterable[GroupEntry] = (),
        *,
        partial: bool = False,
        cluster_state: ClusterStateEntry | None = None,
        erasure: ErasureEntry | None = None,
    ) -> int:
        """End the run; returns the number of its last commit. `groups` and `cluster_state` become visible if it
        succeeded. `partial`: it failed after it had tried everything, so restores may take what it has archived.
        `erasure`: the run has erased records, and groups stay as they were. Stops the heartbeat. Afterwards only
        `snapshot`, `remove`, `purged` and `change_generations` may be called."""
        if outcome not in (RunOutcome.SUCCEEDED, RunOutcome.FAILED):
            raise ValueError(f"a run cannot end as {outcome}")
        with self._lock:
            self._confirm_last()
            if not self._ended:  # an earlier call that did not know its own success
                self._append(
                    replace(
                        self._draft(CommitKind.END),
                        outcome=outcome,
                        message=message,
                        groups=tuple(groups) if outcome is RunOutcome.SUCCEEDED else (),
                        partial=partial and outcome is RunOutcome.FAILED,
                        cluster_state=cluster_state if outcome is RunOutcome.SUCCEEDED else None,
                        erasure=erasure if outcome is RunOutcome.SUCCEEDED else None,
                        maintenance=self.state.runs[self.run_id].kind in (RETENTION, HOLD, RECONCILIATION),
                    )
                )
            self._checkpoint_if_due()
        self._note.end()
        return self.state.commit

    def give_up(self, error: BaseException, message: str, *, partial: bool = False) -> None:
        """End the run as failed for `error`, if that can be noted; a fenced run has no business there any more.
        `partial`: see `end`."""
        if isinstance(error, ArchiveFenced):
            return
        try:
            self.end(RunOutcome.FAILED, message, partial=partial)
        except (LogkeepError, ValueError) as problem:
            log.warning("the end of the run could not be noted in the archive: %s", problem)

    def remove(self, segments: Iterable[RemovedSegment], snapshots: Iterable[RemovedSnapshot] = ()) -> int:
        """Take segments and snapshots out of the archive, in one commit, and return its number.

        Only after `end` of a run that succeeded: readers see the archive as the last successful run has left it, so
        what is removed must follow the end of one. The objects are deleted some time after the commit: the segments are
        in `state.unpurged` until `purged` is called. Raises what `commit` does, and ValueError for segments that are
        not there.
        """
        with self._lock:
            self._confirm_last()
            self._refuse_before_end()
            wanted, gone = tuple(segments), tuple(snapshots)
            check_removal(self.state, wanted, gone)
            number = self._append(replace(self._draft(CommitKind.DATA), removed=wanted, removed_snapshots=gone))
            self._checkpoint_if_due()
            return number

    def snapshot(self, snapshots: Iterable[SnapshotEntry]) -> int:
        """Make snapshots part of the archive, in one commit, and return its number.

        Only after `end` of a run that succeeded, and for ends that the archive of their partitions has now, so that a
        point of the archive lies there. Raises what `commit` does, and ValueError for a snapshot that is not of such an
        end, or of offsets for which the archive does not account.
        """
        with self._lock:
            self._confirm_last()
            self._refuse_before_end()
            wanted = tuple(snapshots)
            for item in wanted:
                check_snapshot(self.state, item, self.epoch)
            number = self._append(replace(self._draft(CommitKind.DATA), snapshots=wanted))
            self._checkpoint_if_due()
            return number

    def hold(self, holds: Iterable[Hold]) -> None:
        """Make these all the holds that there are, in one commit, unless they are. Raises what `commit` does."""
        with self._lock:
            self._confirm_last()
            wanted = tuple(sorted(set(holds)))
            if wanted != self.state.retention_holds:
                self._append(replace(self._draft(CommitKind.DATA), holds=wanted))

    def _refuse_before_end(self) -> None:
        run = self.state.runs[self.run_id]
        if not run.is_maintenance and run.outcome is not RunOutcome.SUCCEEDED:
            raise ValueError(f"run {self.run_id} has not ended with success")

    def purged(self, commits: Collection[int], packs: Collection[PackId] = ()) -> None:
        """Note that these packs are deleted, and all that segments had as objects of their own which these commits have
        removed. Raises what `commit` does, and ValueError for what `state.unpurged` does not have."""
        with self._lock:
            self._confirm_last()
            # Raises for what is not there, before anything is written.
            without_purged(self.state.unpurged, commits, packs)
            if commits or packs:
                gone = tuple(PurgedPack(*pack) for pack in sorted(packs))
                draft = self._draft(CommitKind.DATA)
                self._append(replace(draft, purged=tuple(sorted(set(commits))), purged_packs=gone))
                self._checkpoint_if_due()

    def checkpoint(self) -> None:
        """Write a checkpoint of the state now."""
        with self._lock:
            self._confirm_last()
            data = checkpoint.dump(self.state, self.archive.info.archive_id, self.archive.keys)
            self.archive.storage.put(names.checkpoint_path(self.state.commit, self.epoch), data)
            self._since = SinceCheckpoint(checkpoint_bytes=len(data))

    def store_time(self) -> int:
        """Return the time by the store's clock, in ms since the epoch: the time of an object that is written for
        that."""
        return self._note.store_time()

    def close(self) -> None:
        """Stop the heartbeat. Safe to call twice."""
        self._note.stop()

    def _begin(self, kind: str, taken_over: tuple[str, ...]) -> None:
        for warning in self.warnings:
            log.warning("%s", warning)
        # The witness may be the heartbeat that this run overwrites now, if an earlier attempt of the run wrote it.
        store_record(self.archive.storage, self.run_id, self.epoch, self._lost)
        # The heartbeat beats before the commit is visible: a reader that sees the commit can watch it from then on.
        self._note.begin()
        try:
            first = self._append(replace(self._draft(CommitKind.BEGIN), run_kind=kind, taken_over=taken_over))
            if 0 < first == self.state.signed_since:  # a writer with keys begins with none of the checkpoints before
                self._checkpoint_or_warn()
            confirm_owner(self.archive)
        except ArchiveOwned as error:
            self.give_up(error, error.message)
            raise
        except BaseException:
            self.close()
            raise

    def _draft(self, kind: CommitKind) -> Commit:
        return Commit(
            number=self.state.commit + 1,
            archive_id=self.archive.info.archive_id,
            token=secrets.token_hex(8),
            kind=kind,
            run_id=self.run_id,
            epoch=self.epoch,
            time=time.time_ns() // 1_000_000,
            previous=self.state.sha256,
            signer=self.archive.keys.signer,
        )

    def _append(self, commit: Commit) -> int:
        """Create the commit's object and add it to the state; see `commit` for errors."""
        if self._ended and not commit.is_maintenance:
            raise ValueError(f"run {self.run_id} has ended")
        path = names.commit_path(commit.number)
        data = commits.dump_commit(commit, self.archive.keys)
        commits.check_size(data, f"{self.archive.storage.uri}/{path}")
        commit = replace(commit, sha256=commits.sha256_of(data))
        self._pending = commit
        try:
            self.archive.storage.create(path, data)
            there = commit
        except ObjectExists:
            there = None
        except StorageUnavailable:
            raise  # the commit may be there or not: `_confirm_last` finds out
        except LogkeepError:
            self._pending = None
            raise
        # A number is free again once its commit is in a bundle: a writer that was suspended for weeks may create it a
        # second time. A bundle is there before the objects of its commits go, so it is looked for after the create.
        other = self.archive.bundled_commit(commit.number) or there or self.archive.read_commit(commit.number)
        if other.token != commit.token:
            self._pending = None
            self._fenced = ArchiveFenced(
                f"Run {other.run_id} has taken over the archive at {self.archive.storage.uri}: it wrote commit "
                f"{commit.number} at epoch {other.epoch}, run {self.run_id} is at epoch {self.epoch}.",
            )
            raise self._fenced
        # It is this commit, also if an earlier attempt of this very call wrote it and its answer was lost.
        # The order matters: an interrupt between the two leaves a commit that `_confirm_last` knows to be done.
        self.state.apply(commit)
        self._pending = None
        self._ended = self._ended or commit.kind is CommitKind.END
        self._note.committed(commit.number)
        self._since.count(len(data))
        return commit.number

    def _confirm_last(self) -> None:
        """If the last commit's outcome is unknown, write it again."""
        if self._fenced is not None:
            raise self._fenced
        if self._pending is not None and self._pending.number > self.state.commit:
            self._append(self._pending)
        self._pending = None

    def _checkpoint_if_due(self) -> None:
        since = self._since
        if self._policy.due(since.commits, since.bytes, since.checkpoint_bytes):
            self._checkpoint_or_warn()

    def _checkpoint_or_warn(self) -> None:
        try:
            self.checkpoint()
        except LogkeepError as error:
            log.warning("no checkpoint after commit %d, the commits hold the same: %s", self.state.commit, error)
