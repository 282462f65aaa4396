"""The erasure of the records of some keys from the archived segments of a topic.

    result = erase(run_id, storage, asked, runner_factory, reporter)

What a kill leaves: docs/archive/crashes.md. In short: nothing names what was written before a commit does; what a
commit has replaced is deleted by the next run.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import NO_CLAIM, Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.facts import (
    ErasureEntry,
    GenerationChange,
    GenerationStep,
    RunEntry,
    RunOutcome,
)
from logkeep_engine.archive.catalog.generations import passive_of
from logkeep_engine.archive.catalog.held_tables import TableKind, held_tables, removed_tables
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, topic_hold
from logkeep_engine.archive.catalog.packed import PackId
from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.maintenance.moving import MoveDone, move_task
from logkeep_engine.archive.maintenance.moving import works_of as moves_in_tasks
from logkeep_engine.archive.maintenance.removal import purge, write_indexes
from logkeep_engine.archive.maintenance.rewriting import RewritePlace
from logkeep_engine.archiving import ArchivingRun
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ERASURE
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import so_many
from logkeep_engine.erasure.moving import dropped, moves_out_of, packs_with
from logkeep_engine.erasure.purging import drop_digests, originals, unnamed, unnamed_packs, unseen
from logkeep_engine.erasure.work import ErasureDone, ErasureSetting, ErasureWork, erase_task, works_of
from logkeep_engine.errors import (
    ArchiveBusy,
    ArchiveDamaged,
    ArchiveFenced,
    NoTopicMatches,
    SpecError,
    StorageRefused,
)
from logkeep_engine.log.keys import WantedKeys
from logkeep_engine.report import ProgressRange, Reporter, bounded_warnings
from logkeep_engine.storage import LockedObject, Storage, UnseenObject
from logkeep_engine.tasks import TaskRunner, no_update


def hold_on(state: ArchiveState, topic_id: str, *, removed: bool = False) -> Hold | None:
    """Return a hold on a topic: on its name, or on a run that has, or may have, records of it. `removed`: also records
    that no commit names any more, and whose objects are there."""
    if not state.retention_holds:
        return None
    hold = topic_hold(state.retention_holds, state.topics[topic_id].name)
    if hold is not None:
        return hold
    first = min(_epochs(state, topic_id, removed=removed), default=None)
    for item in state.retention_holds:
        run = state.runs.get(item.name) if item.kind is HoldKind.RUN else None
        if run is not None and first is not None and first <= run.epoch:
            return item
    return None


def _epochs(state: ArchiveState, topic_id: str, *, removed: bool) -> Iterator[int]:
    """Yield the epochs at which what the archive has of a topic was archived. No run shows a generation that is being
    read."""
    gone = removed_tables(state, {topic_id}) if removed else ()
    for table in chain(held_tables(state, {topic_id}), gone):
        if table.kind is not TableKind.PASSIVE:
            yield from (entry.archived_first for entry in table.segments)


log = logging.getLogger(__name__)

AUDIT_FILE = "erasure.json"
FORMAT = 1
COMMIT_SEGMENTS = 500
COMMIT_SECONDS = 5.0
READERS_SECONDS = 600.0
"""So long an erasure waits for runs that read what it has replaced."""
POLL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ErasureAsked:
    """The keys that are to be erased from a topic. `asked_by` is kept in the audit entry; "": not known."""

    topic: str
    keys: tuple[bytes, ...] = field(repr=False)
    asked_by: str = ""


def erase(
    run_id: str,
    storage: Storage,
    asked: ErasureAsked,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    claim: ArchiveClaim = NO_CLAIM,
) -> RunResult:
    """Take the records of the keys out of all segments of the topic, of all its incarnations and branches, and delete
    what held them.

    Never raises for what happens in a run: every error becomes a result with its exit code. The same `run_id` again
    continues where the run stopped; of a run that has succeeded it gives the result once more.
    """
    return _ErasureRun(run_id, storage, asked, runner_factory, reporter, claim).perform()


class _ErasureRun(ArchivingRun):
    def __init__(
        self,
        run_id: str,
        storage: Storage,
        asked: ErasureAsked,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
        claim: ArchiveClaim,
    ) -> None:
        super().__init__(run_id, ERASURE, reporter)
        self._claim = claim
        self._storage = storage
        self._asked = asked
        self._runner_factory = runner_factory
        self._earlier: RunEntry | None = None
        self._partitions = 0
        self._waiting: list[Exchange] = []
        self._packs: set[PackId] = set()  # that hold what was erased
        self._committed = time.monotonic()

    def execute(self) -> None:
        self._reporter.phase("Planning")
        if not self._asked.keys:
            raise SpecError("there is no key to erase", hint="Name at least one.")
        self._storage.check()
        archive = self._archive = Archive.open(self._storage, self._claim)
        self._storage = archive.storage
        state = archive.load()
        earlier = state.runs.get(self._run_id)
        if earlier is not None and earlier.kind != ERASURE:
            raise SpecError(
                f"run {self._run_id} of the archive is not an erasure, but a {earlier.kind}",
                hint="Give the erasure another name.",
            )
        if earlier is not None and earlier.outcome is RunOutcome.SUCCEEDED:
            self._earlier = earlier
            return
        topic_ids = topic_ids_of(archive, state, self._asked.topic)
        refuse(archive, state, topic_ids)  # before the run begins, so that a refused one leaves nothing in the archive
        writer = self._writer = begin_run(archive, self._run_id, kind=ERASURE)
        refuse(archive, writer.state, topic_ids)  # once more: another run may have committed since, a hold among others
        faults = self._rewrite(writer, topic_ids)
        left = self._move(writer, topic_ids)
        self._reporter.phase("Finishing")
        # Before the errors below: whatever else is damaged, what was replaced goes.
        self._purge(writer, topic_ids, wait=not left)
        if left:
            raise ArchiveDamaged(
                f"{so_many(len(left), 'segment')} cannot be copied out of packs that hold records of the keys, so "
                f"these packs are still there: {left[0]}",
                hint="Restore these objects from a copy, and erase again: everything else has been erased.",
                faults=left,
            )
        if faults:
            raise ArchiveDamaged(
                f"{so_many(len(faults), 'segment')} of topic {self._asked.topic!r} cannot be read to the end, so "
                f"it is unknown whether the keys are in there: {faults[0]}",
                hint="Restore these objects from a copy, and erase again: everything else has been erased.",
                faults=faults,
            )
        self._delete_unseen(writer, topic_ids)
        run = writer.state.runs[self._run_id]
        audit = self._audit(archive, run, topic_ids)
        # Before the commit with its hash: the proof is there whenever the archive says so.
        archive.storage.put(names.run_file(self._run_id, AUDIT_FILE), audit)
        entry = ErasureEntry(hashlib.sha256(audit).hexdigest(), run.records, run.segments)
        writer.end(RunOutcome.SUCCEEDED, erasure=entry)

    def _rewrite(self, writer: Writer, topic_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Rewrite the segments that hold a key. Returns the faults of those that cannot be read."""
        writer.change_generations(_dropped(writer.state, topic_ids))
        works = works_of(writer.state, self._asked.topic, topic_ids)
        self._partitions = len({work.key for work in works})
        if not works:
            return ()
        self._reporter.planned([range_of(work) for work in works], topics=1)
        self._reporter.phase("Running")
        faults: list[str] = []

        def on_result(index: int, done: ErasureDone) -> None:
            work = works[index]
            faults.extend(done.faults)
            self._waiting += (Exchange(item.entry, item.left, work.line) for item in done.rewritten)
            records, size = work.segments.sums()
            self._reporter.done(work.number, records, size)
            late = time.monotonic() - self._committed > COMMIT_SECONDS
            if late or len(self._waiting) >= COMMIT_SEGMENTS:
                self._commit(writer)

        setting = ErasureSetting(RewritePlace(self._storage, writer.epoch), WantedKeys.of(self._asked.keys))
        self._runner_factory().run(works, partial(erase_task, setting), on_result, self._reporter.update)
        self._commit(writer)
        return tuple(faults)

    def _move(self, writer: Writer, topic_ids: tuple[str, ...]) -> tuple[str, ...]:
        """Copy what stays out of the packs that hold what was erased. Returns the faults of what is not whole."""
        packs = self._packs = packs_with(self._storage, writer.state, self._asked.topic, topic_ids)
        writer.change_generations(dropped(writer.state, packs))
        works = moves_in_tasks(moves_out_of(writer.state, packs), below=0)
        if not works:
            return ()
        faults: list[str] = []

        def on_result(index: int, done: MoveDone) -> None:
            faults.extend(done.faults)
            self._waiting += done.exchanges
            late = time.monotonic() - self._committed > COMMIT_SECONDS
            if late or len(self._waiting) >= COMMIT_SEGMENTS:
                self._commit(writer)

        log.info("copying %d segments out of %d packs", sum(len(work.moves) for work in works), len(packs))
        setting = RewritePlace(self._storage, writer.epoch)
        self._runner_factory().run(works, partial(move_task, setting), on_result, no_update)
        self._commit(writer)
        return tuple(faults)

    def _commit(self, writer: Writer) -> None:
        if self._waiting:
            writer.exchange(self._waiting)
        self._waiting = []
        self._committed = time.monotonic()

    def _purge(self, writer: Writer, topic_ids: tuple[str, ...], *, wait: bool) -> None:
        """Delete what held the records. After a kill the next erasure, or the next run that removes, does it. Without
        `wait`, what others still need stays."""
        state, storage = writer.state, writer.archive.storage
        # Before the objects go: who finds segments by these files finds none that is gone.
        write_indexes(writer, {key for key in state.replaced if key[0] in topic_ids})
        if wait:
            self._wait_and_purge(writer, topic_ids)
        else:
            purge(writer, topic_ids=topic_ids, packs=self._packs)
        drop_digests(storage, state, {key for key in state.replaced if key[0] in topic_ids})
        left = unnamed(writer, self._asked.topic, topic_ids) + unnamed_packs(writer)
        # After the list: what a newer run has written has no commit yet, and would be deleted.
        self._require_no_other(writer)
        if writer.archive.info.imported:  # only imports keep originals
            left += originals(storage, self._asked.topic)
        if left:
            storage.delete(left)
            log.info("deleted %d objects that no commit names", len(left))

    def _wait_and_purge(self, writer: Writer, topic_ids: tuple[str, ...]) -> None:
        """Delete the objects that were replaced, and others of the topic that were removed before, once no run reads
        them. Raises ArchiveBusy if one still does after a while."""
        deadline = time.monotonic() + READERS_SECONDS
        while (purged := purge(writer, topic_ids=topic_ids, packs=self._packs)).waiting:
            self._require_unlocked(purged.locked)  # no waiting ends a lock
            if time.monotonic() > deadline:
                readers = ", ".join(purged.readers)
                raise ArchiveBusy(
                    f"The archive at {self._storage.uri} no longer names the records of the keys. But run "
                    f"{readers} still reads {so_many(purged.waiting, 'segment')} that had them: the objects still "
                    "exist.",
                    hint="Erase the same keys again when these runs have ended: the erasure continues. A run that "
                    "was killed counts as ended an hour after its last sign of life.",
                )
            time.sleep(POLL_SECONDS)

    def _delete_unseen(self, writer: Writer, topic_ids: tuple[str, ...]) -> None:
        """Delete what no list shows, once all segments of the topic were read: before, older versions may be the only
        copy of one that is damaged."""
        left: list[UnseenObject] = []
        try:
            left = unseen(writer, self._asked.topic, topic_ids)
            self._require_no_other(writer)  # after the list, as in `_purge`
            locked = self._storage.delete_unseen(left)
        except StorageRefused as error:
            known = so_many(len(left), "older version") if left else "older versions"
            raise StorageRefused(
                f"The archive at {self._storage.uri} no longer names the records of the keys. But there may be "
                f"{known} of its objects that have them: {error.message}",
                hint=f"{error.hint} Then erase the same keys again: the erasure continues.",
            ) from error
        self._require_unlocked(locked)
        if left:
            log.info("deleted %d older versions and unfinished objects of the topic", len(left))

    def _require_unlocked(self, locked: Sequence[LockedObject]) -> None:
        if locked:
            raise StorageRefused(
                f"The archive at {self._storage.uri} no longer names the records of the keys. But the store "
                f"keeps {so_many(len(locked), 'object')} locked that had them: first {locked[0]}.",
                hint="Erase the same keys again when their retention or legal hold has ended: the erasure continues.",
            )

    def _require_no_other(self, writer: Writer) -> None:
        if writer.archive.continues_after(writer.state.commit):
            raise ArchiveFenced(f"Another run has taken over the archive at {self._storage.uri}.")

    def _audit(self, archive: Archive, run: RunEntry, topic_ids: tuple[str, ...]) -> bytes:
        """Return the proof of the erasure, which stays. The keys are not in it, nor anything that is made of them."""
        entry = {
            "format": FORMAT,
            "archiveId": archive.info.archive_id,
            "runId": self._run_id,
            "begun": run.begin_time,
            "ended": time.time_ns() // 1_000_000,
            "askedBy": self._asked.asked_by,
            "topic": self._asked.topic,
            "topicIds": list(topic_ids),
            "keys": len(self._asked.keys),
            "records": run.records,
            "bytes": run.bytes,
            "segments": run.segments,
        }
        return json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode()

    def result(self) -> RunResult:
        """Return the facts so far. `records`, `bytes` and `segments` are those that were erased and replaced."""
        result = replace(
            super().result(), topics=1, partitions=self._partitions, warnings=bounded_warnings(self._notes)
        )
        if self._earlier is None:
            return result
        run = self._earlier
        return replace(result, epoch=run.epoch, records=run.records, bytes=run.bytes, segments=run.segments)


def range_of(work: ErasureWork) -> ProgressRange:
    """Return what the progress shows of a task."""
    segments = work.segments
    return ProgressRange(
        work.number, work.topic, work.key[1], segments[0].base_offset, max(entry.next_offset for entry in segments)
    )


def _dropped(state: ArchiveState, topic_ids: Collection[str]) -> Iterator[GenerationChange]:
    """Yield the end of each generation of the topic that is being read: it may hold the keys, and a backup begins it
    again from a log without them."""
    for key in sorted(state.next_generations):
        passive = passive_of(state, key)
        if passive is not None and key[0] in topic_ids:
            yield GenerationChange(*key, passive.number, GenerationStep.DROP)


def topic_ids_of(archive: Archive, state: ArchiveState, topic: str) -> tuple[str, ...]:
    """Return the incarnations of the topic of this name. Raises NoTopicMatches if there is none."""
    found = tuple(entry.topic_id for entry in state.topics.values() if entry.name == topic)
    if not found:
        raise NoTopicMatches(
            f"The archive at {archive.storage.uri} has no topic {topic!r}.",
            hint="logkeep inspect lists its topics; the name is taken literally, not as a pattern.",
        )
    return found


def refuse(archive: Archive, state: ArchiveState, topic_ids: tuple[str, ...]) -> None:
    """Raises if the archive is in no state in which records can be erased."""
    lost = archive.lost_tails(state, thorough=True)
    if lost:
        raise ArchiveDamaged(
            f"The catalog at {archive.storage.uri} has lost its last commits ({lost[0]}): objects that they named may "
            "hold records of the keys, and be the only copy of others.",
            hint="Restore the lost commits, or delete the witnesses that logkeep verify names, then erase again.",
        )
    for topic_id in topic_ids:
        if (hold := hold_on(state, topic_id, removed=True)) is not None:
            raise SpecError(
                f"There is a {hold} in the archive at {archive.storage.uri}, so nothing of topic "
                f"{state.topics[topic_id].name!r} is erased",
                hint="Release the hold first: `logkeep hold URI` lists all.",
            )
