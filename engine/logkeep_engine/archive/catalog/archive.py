"""The archive's history: numbered commits, the checkpoints that fold them, and the one writer at a time that adds to
them.

    archive = Archive.create_or_open(storage, cluster_id)
    with archive.begin_run(run_id) as writer:
        writer.commit(topics=topics, receipts=receipts)     # as tasks end
        writer.end(Outcome.SUCCEEDED, groups=groups)

A commit is one conditional create of the next number, and the only thing that makes anything visible. A crash before it
leaves objects that no commit names; a crash after it loses nothing. A crash while a checkpoint is written leaves the
commits, from which it can be made again. `docs/design/0001` says how runs tell each other apart.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from types import TracebackType
from typing import Self

import logkeep_engine
from logkeep_engine import collector
from logkeep_engine.archive import names
from logkeep_engine.archive.catalog import checkpoint, commits, documents
from logkeep_engine.archive.catalog.documents import ArchiveInfo
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Commit,
    CommitKind,
    GroupEntry,
    Outcome,
    Partition,
    Receipt,
    RemovedSegment,
    RunEntry,
    TopicEntry,
)
from logkeep_engine.archive.catalog.heartbeat import HEARTBEAT, Heartbeat
from logkeep_engine.archive.catalog.lineage import UNKNOWN, LeaderEpoch, LeaderSeen, news
from logkeep_engine.archive.catalog.lost_tail import FoundTails, LostTail, find_lost_tails, store_record
from logkeep_engine.archive.catalog.state import ArchiveState, ReceiptCheck
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveFenced,
    ArchiveMismatch,
    ArchiveMissing,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    ReceiptRefused,
    StorageRefused,
    StorageUnavailable,
)
from logkeep_engine.storage import ObjectInfo, Storage

log = logging.getLogger(__name__)

_READERS = 16  # commits are small: latency, not bandwidth, decides how long loading takes
_READ_AHEAD = 2 * _READERS
_BEGIN_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. A run overwrites its heartbeat every `heartbeat`; another watches it for `watch`, looking every
    `poll`."""

    heartbeat: float = 5.0
    watch: float = 15.0
    poll: float = 1.0


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """A checkpoint is due after `commits` commits if they are an eighth of the last checkpoint, once they are as large
    as it, or after `most_commits` whatever their size: each is an object that opening the archive reads.

    Small archives are not below `min_bytes` in the second rule. KIP-630 does the same with
    `metadata.log.max.record.bytes.between.snapshots`.
    """

    commits: int = 64
    min_bytes: int = 4 << 20
    most_commits: int = 1000

    def due(self, commits: int, size: int, last_checkpoint: int) -> bool:
        if commits == 0:
            return False
        if size >= max(self.min_bytes, last_checkpoint) or commits >= self.most_commits:
            return True
        return commits >= self.commits and size * 8 >= last_checkpoint


@dataclass(frozen=True, slots=True)
class Committed:
    """`number` is the commit's, or None if there was nothing to commit. `ignored`: receipts that were not committed,
    and why."""

    number: int | None
    ignored: tuple[tuple[Receipt, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CatalogListing:
    """The catalog's objects. `commits`: number to size in bytes; `checkpoints`: newest first."""

    commits: dict[int, int]
    checkpoints: list[tuple[int, int, ObjectInfo]]


class Archive:
    """An archive at a storage. Readers `open` it and `load`; a backup `create_or_open`s it and `begin_run`s."""

    def __init__(self, storage: Storage, info: ArchiveInfo) -> None:
        self.storage = storage
        self.info = info

    @classmethod
    def open(cls, storage: Storage) -> Self:
        """Raises ArchiveMissing if there is none, ArchiveMismatch if its format is another."""
        try:
            data = storage.read(names.ARCHIVE)
        except ObjectMissing as error:
            storage.check()  # a missing bucket is another error than an empty one
            raise ArchiveMissing(
                f"There is no archive at {storage.uri}: {names.ARCHIVE} does not exist.",
                hint="Check the URI; the archive is made by the first backup.",
            ) from error
        return cls(storage, documents.load_info(data, f"{storage.uri}/{names.ARCHIVE}"))

    @classmethod
    def create_or_open(
        cls,
        storage: Storage,
        cluster_id: str,
        segments: FormatName = FormatName.KAFKA,
        *,
        imported: bool = False,
    ) -> Self:
        """The archive of Kafka cluster `cluster_id` in format `segments`, made if there is none. For those who are
        going to write. `imported`: it is made from what another tool wrote.

        Raises ArchiveMismatch if it is another cluster's, or of another format, and StorageRefused if the store does
        not honour conditional creates, since then two runs could overwrite each other's commits.
        """
        try:
            archive = cls.open(storage)
        except ArchiveMissing:
            if storage.list(names.CATALOG):
                raise ArchiveDamaged(
                    f"{storage.uri}/{names.ARCHIVE} is missing, but {names.CATALOG} has objects.",
                    hint="Restore it from a copy of the archive, or use another URI.",
                ) from None
            info = ArchiveInfo(
                str(uuid.uuid4()),
                cluster_id,
                iso(time.time_ns() // 1_000_000),
                f"logkeep {logkeep_engine.__version__}",
                segments=segments,
                imported=imported,
            )
            try:
                storage.create(names.ARCHIVE, documents.dump_info(info))
            except ObjectExists:
                log.info("%s was made by another run at the same time", storage.uri)
            archive = cls.open(storage)
        if archive.info.imported and not imported:
            raise ArchiveMismatch(
                f"The archive at {storage.uri} was imported from what another tool wrote: no backup goes on in it.",
                hint="Use another storage.uri for the backup.",
            )
        if archive.info.segments is not segments:
            raise ArchiveMismatch(
                f"The archive at {storage.uri} is of format {archive.info.segments}, not {segments}.",
                hint="An archive has one format: use another storage.uri, or `logkeep convert` to make another archive "
                "of this one.",
            )
        found = archive.info.cluster_id
        if found != cluster_id:
            raise ArchiveMismatch(
                f"The archive at {storage.uri} belongs to Kafka cluster {found}, not to {cluster_id}.",
                hint="Use another storage.uri for this cluster, or correct cluster.bootstrapServers.",
            )
        try:
            storage.create(names.ARCHIVE, documents.dump_info(archive.info))
        except ObjectExists:
            return archive
        raise StorageRefused(
            f"{storage.uri} replaces an object where it was asked to create one: "
            "two runs could overwrite each other's commits.",
            hint="Use an object store with conditional writes (If-None-Match: *).",
        )

    def run_file(self, run_id: str, name: str) -> str:
        """The path of a file of a run."""
        return names.run_file(run_id, name)

    def load(self) -> ArchiveState:
        """The state now: the newest checkpoint that can be read, and all later commits.

        Raises ArchiveDamaged naming the first commit that is missing or unreadable.
        """
        return self._load()[0]

    def listing(self) -> CatalogListing:
        """What lies in the catalog."""
        commits: dict[int, int] = {}
        checkpoints: list[tuple[int, int, ObjectInfo]] = []
        for info in self.storage.list(names.CATALOG):
            number = names.parse_commit(info.path)
            if number is not None:
                commits[number] = info.size
                continue
            checkpoint = names.parse_checkpoint(info.path)
            if checkpoint is not None:
                checkpoints.append((*checkpoint, info))
        checkpoints.sort(key=lambda item: item[:2], reverse=True)
        return CatalogListing(commits, checkpoints)

    def read_commit(self, number: int) -> Commit:
        """Commit `number`. Raises ArchiveDamaged if it is not there, cut short, altered or another archive's."""
        path = names.commit_path(number)
        name = f"{self.storage.uri}/{path}"
        try:
            data = self.storage.read(path)
        except ObjectMissing as error:
            raise ArchiveDamaged(
                f"Commit {number} is missing: {name} does not exist.", hint="Restore it from a copy of the archive."
            ) from error
        return self._parse_commit(number, data)

    def _parse_commit(self, number: int, data: bytes) -> Commit:
        name = f"{self.storage.uri}/{names.commit_path(number)}"
        commit = commits.load_commit(data, name)
        if commit.number != number or commit.archive_id != self.info.archive_id:
            raise ArchiveDamaged(
                f"{name} holds commit {commit.number} of archive {commit.archive_id}, "
                f"not commit {number} of {self.info.archive_id}.",
                hint="Restore it from a copy of the archive.",
            )
        return commit

    def read_checkpoint(self, path: str) -> ArchiveState:
        """The state in a checkpoint. Raises ArchiveDamaged if it is cut short, altered, misnamed or another
        archive's."""
        name = f"{self.storage.uri}/{path}"
        archive_id, state = checkpoint.load(self.storage.read(path), name)
        named = names.parse_checkpoint(path)
        if archive_id != self.info.archive_id or named is None or named[0] != state.commit:
            raise ArchiveDamaged(
                f"{name} holds the state after commit {state.commit} of archive {archive_id}.",
                hint="Delete it: the commits hold the same.",
            )
        return state

    def begin_run(
        self,
        run_id: str,
        *,
        kind: str = "KafkaBackup",
        wait: Timing | None = None,
        checkpoints: CheckpointPolicy | None = None,
    ) -> Writer:
        """Become the archive's writer, at the next epoch.

        A run of the same id that was begun and not ended is taken over at once. One of another id is watched for
        `wait.watch` seconds: raises ArchiveBusy if its heartbeat changes, else it is taken over. If commits are gone
        from the catalog's end (see `lost_tail`), the epoch is above theirs, and `writer.warnings` tell it.
        """
        names.check_run_id(run_id)
        timing = wait or Timing()
        for _ in range(_BEGIN_ATTEMPTS):
            state, since = self._load()
            others = [run for run in state.running if run.run_id != run_id]
            for run in others:
                self._watch(run, timing)
            tails = self._find_lost_tails(state, since)
            writer = Writer(self, state, run_id, timing, checkpoints or CheckpointPolicy(), since, tails)
            try:
                writer._begin(kind, tuple(run.run_id for run in others))
            except ArchiveFenced:
                continue  # another run has written meanwhile: look at the archive again
            return writer
        raise ArchiveBusy(
            f"The archive at {self.storage.uri} is being written by other runs.", hint="Wait until they end."
        )

    def lost_tails(self, state: ArchiveState, *, thorough: bool = False) -> tuple[LostTail, ...]:
        """All that is known of commits that are gone from the catalog's end, by `state` that was loaded before.
        `thorough`: every heartbeat is read."""
        since = _SinceCheckpoint(checkpoints=self.listing().checkpoints)
        return self._find_lost_tails(state, since, thorough=thorough).lost

    def _find_lost_tails(self, state: ArchiveState, since: _SinceCheckpoint, *, thorough: bool = False) -> FoundTails:
        return find_lost_tails(
            self.storage, self.info.archive_id, state, since.checkpoints, self.load, thorough=thorough
        )

    def _load(self) -> tuple[ArchiveState, _SinceCheckpoint]:
        with collector.paused():
            return self._fold()

    def _fold(self) -> tuple[ArchiveState, _SinceCheckpoint]:
        listing = self.listing()
        state, since = ArchiveState(), _SinceCheckpoint()
        for number, _, info in listing.checkpoints:
            try:
                state = self.read_checkpoint(info.path)
            except (ArchiveDamaged, ObjectMissing) as error:
                log.warning("%s is left out, the commits hold the same: %s", info.path, error)
                continue
            since.checkpoint_bytes = info.size
            log.debug("%s: state after commit %d from its checkpoint", self.storage.uri, number)
            break
        since.checkpoints = listing.checkpoints
        last = max(listing.commits, default=-1)
        for commit in self.read_commits(range(state.commit + 1, last + 1)):
            self._apply(state, commit)
            since.commits += 1
            since.bytes += listing.commits.get(commit.number, 0)
        # A store may list late what it already reads.
        while (data := self._read_or_none(names.commit_path(state.commit + 1))) is not None:
            self._apply(state, self._parse_commit(state.commit + 1, data))
            since.commits += 1
            since.bytes += len(data)
        return state, since

    def _apply(self, state: ArchiveState, commit: Commit) -> None:
        try:
            state.apply(commit)
        except (ValueError, KeyError) as error:
            name = f"{self.storage.uri}/{names.commit_path(commit.number)}"
            raise ArchiveDamaged(f"{name}: {error}.", hint="Restore it from a copy of the archive.") from error

    def read_commits(self, numbers: Sequence[int]) -> Iterable[Commit]:
        """Commits in order, read concurrently, with bounded memory. Raises what `read_commit` does."""
        if not numbers:
            return
        waiting: deque[Future[Commit]] = deque()
        with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-catalog") as pool:
            try:
                for number in numbers:
                    waiting.append(pool.submit(self.read_commit, number))
                    if len(waiting) >= _READ_AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _watch(self, run: RunEntry, timing: Timing) -> None:
        """Returns if the run shows no life; raises ArchiveBusy if it does. No clock of another machine is compared."""
        path = names.run_file(run.run_id, HEARTBEAT)
        first = self._read_or_none(path)
        log.warning("run %s was begun and never ended; watching for %s s whether it is alive", run.run_id, timing.watch)
        deadline = time.monotonic() + timing.watch
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(timing.poll, left))
            if self._read_or_none(path) != first:
                raise ArchiveBusy(
                    f"The archive at {self.storage.uri} is being written by run {run.run_id}, "
                    f"begun {iso(run.begin_time)}.",
                    hint="Wait until it ends, or stop it.",
                )

    def _read_or_none(self, path: str) -> bytes | None:
        try:
            return self.storage.read(path)
        except ObjectMissing:
            return None


@dataclass(slots=True)
class _SinceCheckpoint:
    """What has gathered since the last checkpoint."""

    commits: int = 0
    bytes: int = 0
    checkpoint_bytes: int = 0
    checkpoints: list[tuple[int, int, ObjectInfo]] = field(default_factory=list)
    """All that were listed."""


class Writer:
    """The archive's writer while its run goes on. Made by `Archive.begin_run`. Safe for several threads.

    `state` is what the archive holds, this run's commits included; `epoch` is in the names of all objects of this run.
    `before` is the run as its earlier attempts have left it, None if there were none. After ArchiveFenced every call
    raises it again. Leaving the context without `end` stops the heartbeat and leaves the
    run unended, as a crash does: the next start of the same run goes on.
    """

    def __init__(
        self,
        archive: Archive,
        state: ArchiveState,
        run_id: str,
        timing: Timing,
        policy: CheckpointPolicy,
        since: _SinceCheckpoint,
        tails: FoundTails,
    ) -> None:
        self.archive = archive
        self.state = state
        self.run_id = run_id
        self.epoch = tails.epoch + 1
        self._lost = tails.new
        self.before = state.runs.get(run_id)
        self._policy = policy
        self._since = since
        self._lock = threading.RLock()
        self._pending: Commit | None = None
        self._fenced: ArchiveFenced | None = None
        self._ended = False
        self._heartbeat = Heartbeat(archive.storage, archive.info.archive_id, run_id, self.epoch, timing.heartbeat)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Commits that the run has found lost when it began, and that nobody has told of yet."""
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
        `epochs` are more than the receipts say.

        A receipt whose offsets are settled already (its task was repeated) is left out and named in the answer. Raises
        ReceiptRefused for one that contradicts the archive, ArchiveFenced if another run has taken over, and
        StorageUnavailable if the store did not answer: then it is not known whether the commit is there, and the next
        call finds out first.
        """
        with self._lock:
            self._settle()
            changed = [topic for topic in map(self._grown, topics) if self.state.topics.get(topic.topic_id) != topic]
            trial = ReceiptCheck(self.state, changed)
            accepted: list[Receipt] = []
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
                accepted.append(receipt)
            seen = tuple(item for item in leaders if item.epoch > self.state.leaders.get(_partition_of(item), UNKNOWN))
            history = tuple(_new_epochs(self.state, accepted, epochs))
            if not changed and not accepted and not seen and not history:
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
                )
            )
            self._checkpoint_if_due()
            return Committed(number, tuple(ignored))

    def branch(self, branchings: Iterable[Branching], copies: Iterable[SegmentEntry]) -> int:
        """Make old ends of partitions branches, in one commit, and return its number. `copies` are segments of what
        stays of a segment across the offset where a branch begins.

        Raises what `commit` does, and ValueError for a branch that there is already, or a copy that is not needed.
        """
        with self._lock:
            self._settle()
            wanted, entries = tuple(branchings), tuple(copies)
            for item in wanted:
                key = (item.topic_id, item.partition)
                if any(branch.id == item.branch_id for branch in self.state.branches.get(key, ())):
                    raise ValueError(f"there is a branch {item.branch_id} of {key} already")
            offsets = {(item.topic_id, item.partition): item.offset for item in wanted}
            for entry in entries:
                key = (entry.topic_id, entry.partition)
                across = self.state.last_before(*key, offsets.get(key, 0))
                if across is None or entry.base_offset != across.base_offset or entry.next_offset > offsets[key]:
                    raise ValueError(f"segment {entry.base_offset} of {key} is no copy of the begin of another")
            number = self._append(replace(self._draft(CommitKind.DATA), branchings=wanted, segments=entries))
            self._checkpoint_if_due()
            return number

    def end(
        self, outcome: Outcome, message: str = "", groups: Iterable[GroupEntry] = (), *, partial: bool = False
    ) -> int:
        """End the run; returns the number of its last commit. `groups` become visible if it succeeded. `partial`: it
        failed after it had tried everything, so restores may take what it has archived. Stops the heartbeat. Afterwards
        only `remove` and `purged` may be called."""
        if outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):
            raise ValueError(f"a run cannot end as {outcome}")
        with self._lock:
            self._settle()
            if not self._ended:  # an earlier call that did not know its own success
                self._append(
                    replace(
                        self._draft(CommitKind.END),
                        outcome=outcome,
                        message=message,
                        groups=tuple(groups) if outcome is Outcome.SUCCEEDED else (),
                        partial=partial and outcome is Outcome.FAILED,
                    )
                )
            self._checkpoint_if_due()
        self.close()
        self._heartbeat.beat_last()
        return self.state.commit

    def give_up(self, error: BaseException, message: str, *, partial: bool = False) -> None:
        """End the run as failed for `error`, if that can be noted; a fenced run has no business there any more.
        `partial`: see `end`."""
        if isinstance(error, ArchiveFenced):
            return
        try:
            self.end(Outcome.FAILED, message, partial=partial)
        except (LogkeepError, ValueError) as problem:
            log.warning("the end of the run could not be noted in the archive: %s", problem)

    def remove(self, segments: Iterable[RemovedSegment]) -> int:
        """Take segments out of the archive, in one commit, and return its number.

        Only after `end` of a run that succeeded: readers see the archive as the last successful run has left it, so
        what is removed must follow the end of one. The objects are deleted after the commit: the segments are in
        `state.unpurged` until `purged` is called. Raises what `commit` does, ValueError for segments that are not
        there, and while objects of others may be there still.
        """
        with self._lock:
            self._settle()
            if self.state.runs[self.run_id].outcome is not Outcome.SUCCEEDED:
                raise ValueError(f"run {self.run_id} has not ended with success")
            if self.state.unpurged:
                raise ValueError("segments that were removed before are not purged yet")
            wanted = tuple(segments)
            for item in wanted:
                key = (item.topic_id, item.partition)
                branch = self.state.branch(key, item.branch_id) if item.branch_id else None
                entries = self.state.segments.get(key) if branch is None else branch.segments
                at = entries.position(item.base_offset) if entries is not None else 0
                if entries is None or at == len(entries) or entries[at].base_offset != item.base_offset:
                    raise ValueError(f"there is no segment {item}")
            number = self._append(replace(self._draft(CommitKind.DATA), removed=wanted))
            self._checkpoint_if_due()
            return number

    def purged(self) -> None:
        """Note that no object of a removed segment is there any more. Raises what `commit` does."""
        with self._lock:
            self._settle()
            if self.state.unpurged:
                self._append(replace(self._draft(CommitKind.DATA), purged=True))
                self._checkpoint_if_due()

    def checkpoint(self) -> None:
        """Write a checkpoint of the state now."""
        with self._lock:
            self._settle()
            data = checkpoint.dump(self.state, self.archive.info.archive_id)
            self.archive.storage.put(names.checkpoint_path(self.state.commit, self.epoch), data)
            self._since = _SinceCheckpoint(checkpoint_bytes=len(data))

    def store_time(self) -> int:
        """The time by the store's clock, in ms since the epoch: the time of an object that is written for that."""
        return self._heartbeat.time_written()

    def close(self) -> None:
        """Stop the heartbeat. Safe to call twice."""
        self._heartbeat.stop()

    def _begin(self, kind: str, taken_over: tuple[str, ...]) -> None:
        for warning in self.warnings:
            log.warning("%s", warning)
        # What it has found may be in the heartbeat that it overwrites now, if it is of the same run.
        store_record(self.archive.storage, self.run_id, self.epoch, self._lost)
        # The heartbeat beats before the commit is visible: whoever sees the commit can watch it from then on.
        self._heartbeat.start()
        try:
            self._append(replace(self._draft(CommitKind.BEGIN), run_kind=kind, taken_over=taken_over))
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
        )

    def _append(self, commit: Commit) -> int:
        """Create the commit's object and add it to the state; see `commit` for errors."""
        if self._ended and not commit.is_removal:
            raise ValueError(f"run {self.run_id} has ended")
        path = names.commit_path(commit.number)
        data = commits.dump_commit(commit)
        self._pending = commit
        try:
            self.archive.storage.create(path, data)
        except ObjectExists:
            other = self.archive.read_commit(commit.number)
            if other.token != commit.token:
                self._pending = None
                self._fenced = ArchiveFenced(
                    f"Run {other.run_id} has taken over the archive at {self.archive.storage.uri}: it wrote commit "
                    f"{commit.number} at epoch {other.epoch}, run {self.run_id} is at epoch {self.epoch}.",
                    hint="What this run committed before is kept. Let the other run finish.",
                )
                raise self._fenced from None
            # An earlier attempt of this very call wrote it, and its answer was lost.
        except StorageUnavailable:
            raise  # it may be there or not: `_settle` finds out
        except LogkeepError:
            self._pending = None
            raise
        # In this order: an interrupt between the two leaves a commit that `_settle` knows to be done.
        self.state.apply(commit)
        self._pending = None
        self._ended = self._ended or commit.kind is CommitKind.END
        self._heartbeat.committed(commit.number)
        self._since.commits += 1
        self._since.bytes += len(data)
        return commit.number

    def _grown(self, topic: TopicEntry) -> TopicEntry:
        """The topic with all partitions that the archive knows of it. Kafka takes none away, but who says it may know
        an old state: a plan that was stored before another run, or a broker that is late. Readers look no further."""
        known = self.state.topics.get(topic.topic_id)
        return topic if known is None else replace(topic, partitions=max(topic.partitions, known.partitions))

    def _settle(self) -> None:
        """Finish the commit of which it is not known whether it is there."""
        if self._fenced is not None:
            raise self._fenced
        if self._pending is not None and self._pending.number > self.state.commit:
            self._append(self._pending)
        self._pending = None

    def _checkpoint_if_due(self) -> None:
        since = self._since
        if not self._policy.due(since.commits, since.bytes, since.checkpoint_bytes):
            return
        try:
            self.checkpoint()
        except LogkeepError as error:
            log.warning("no checkpoint after commit %d, the commits hold the same: %s", self.state.commit, error)


def _partition_of(item: LeaderEpoch | LeaderSeen) -> Partition:
    return item.topic_id, item.partition


def _new_epochs(
    state: ArchiveState, receipts: Iterable[Receipt], epochs: Iterable[LeaderEpoch]
) -> Iterator[LeaderEpoch]:
    """The leader epochs, of those in the receipts and in `epochs`, that the archive does not know yet."""
    found: dict[Partition, list[LeaderEpoch]] = {}
    for item in chain(epochs, *(receipt.epochs for receipt in receipts)):
        found.setdefault(_partition_of(item), []).append(item)
    for key, items in found.items():
        yield from news(state.epochs.get(key, ()), sorted(items, key=attrgetter("epoch", "start")))
