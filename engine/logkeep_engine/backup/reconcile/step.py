"""The driver's part: which partitions are compared, the tasks, the report.

A reconciliation writes one object, its report. If it is to heal what it finds, it writes a commit before that: see
`healing`. A kill at any moment leaves the archive as it was, or with that commit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import NO_CLAIM, Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.facts import Partition, RunOutcome
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer, begin_run
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.maintenance.leases import reading
from logkeep_engine.archive.ranges import Range, add_range, without
from logkeep_engine.archive.reading.view import choose
from logkeep_engine.archive.reports import create_report
from logkeep_engine.backup.model.selection import added_topics, select_topics
from logkeep_engine.backup.planning.divergence import standings_of
from logkeep_engine.backup.reconcile.report import MOST_OFFSETS, ReconcileReport, make_due, to_heal
from logkeep_engine.backup.reconcile.task import ReconciledPartition, ReconcileTask, reconcile_partitions
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import RECONCILIATION
from logkeep_engine.contract.patterns import Pattern
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import ArchiveMismatch, BackupUnfinished, LogkeepError, SpecError
from logkeep_engine.kafka.connection import KafkaConnection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.kafka.topics import TopicInfo
from logkeep_engine.limits import RunLimits
from logkeep_engine.log.cleanup import is_compacted
from logkeep_engine.report import ProgressRange, Reporter
from logkeep_engine.storage import open_storage
from logkeep_engine.tasks import Demand, Expect, TaskRunner, in_groups

log = logging.getLogger(__name__)

DOCUMENT = "reconcile.json"
_PER_SLOT = 4
_MOST_TOGETHER = 64

Found = tuple[ReconciledPartition, ...]
Heal = Callable[[ReconcileReport], ReconcileReport]


@dataclass(frozen=True)
class Reconciliation:
    """One reconciliation: the run, the archive's state at the end of a backup, the cluster, and how tasks are run.
    `log` is the state as it lies in the archive, `state` the same with snapshots in place of older segments.
    `only`: the topics alone that one of these patterns matches. Of each partition at most `most` offsets are found.
    `heal` makes new generations due of the partitions with stale keys, and returns the report that says so."""

    run_id: str
    spec: KafkaBackupSpec
    archive: Archive
    log: ArchiveState
    state: ArchiveState
    connection: KafkaConnection
    control: ControlPlane
    runner_factory: Callable[[], TaskRunner]
    reporter: Reporter
    expect: Expect | None = None
    only: Collection[str] = ()
    most: int = MOST_OFFSETS
    heal: Heal | None = None

    def perform(self) -> ReconcileReport:
        """Compare all compacted topics of the backup, heal them on request, and keep the report. Raises
        SpecError for a topic of `only` that is not compared, and what the cluster, the storage, tasks and `heal`
        raise."""
        report = self._compared()
        try:
            if self.heal is not None and to_heal(report.partitions):
                report = self.heal(report)
        finally:
            report = self._kept(report)
        log.info("reconciliation: %s, %s", report.outcome, report.message)
        return report

    def _kept(self, report: ReconcileReport) -> ReconcileReport:
        """Return the report with its place. Earlier ones of the run stay."""
        storage = self.archive.storage
        name = create_report(storage, self.run_id, DOCUMENT, report.content())
        return replace(report, document=f"{storage.uri}/{names.run_file(self.run_id, name)}")

    def _compared(self) -> ReconcileReport:
        began = time.time()
        self.reporter.phase("Verifying")
        topics, not_archived = self._topics()
        standing = self._standing(topics)
        failed = [self._failed(where, key, standing[where]) for where, key in _partitions(topics) if where in standing]
        with reading(self.archive.storage, self.run_id, self.state.commit):
            found = self._run(list(self._tasks(topics, standing.keys())))
        return ReconcileReport(
            run_id=self.run_id,
            archive_id=self.archive.info.archive_id,
            cluster_id=self.archive.info.cluster_id,
            start_time=began,
            end_time=time.time(),
            partitions=tuple(sorted([*found, *failed], key=lambda item: (item.topic, item.partition))),
            not_archived=not_archived,
        )

    def _topics(self) -> tuple[list[TopicInfo], tuple[str, ...]]:
        """Return the compacted topics of the backup that are archived, and the names of those that are not."""
        chosen = select_topics(self.control.topics(), self.spec.topics, also=added_topics(self.spec))
        patterns = [Pattern(text) for text in self.only]
        chosen = [topic for topic in chosen if not patterns or any(one.matches(topic.name) for one in patterns)]
        configs = effective_topic_configs(self.control, [topic.name for topic in chosen])
        compacted = [topic for topic in chosen if is_compacted(configs.get(topic.name, {}))]
        archived = [topic for topic in compacted if topic.topic_id in self.state.topics]
        self._refuse_others(chosen, compacted, archived)
        return archived, tuple(topic.name for topic in compacted if topic not in archived)

    def _refuse_others(self, chosen: list[TopicInfo], compacted: list[TopicInfo], archived: list[TopicInfo]) -> None:
        for some, why in (
            (chosen, "matches none of the topics that spec.topics chooses and the cluster has"),
            (compacted, "matches no compacted topic: a log whose records go by age or size is not a state of keys"),
            (archived, "matches nothing that is archived, or only earlier topics of that name: run a backup first"),
        ):
            for text in sorted(self.only):
                if not any(map(Pattern(text).matches, (topic.name for topic in some))):
                    hint = "Leave --topic out to compare all compacted topics."
                    raise SpecError(f"--topic {text!r} {why}", hint=hint)

    def _standing(self, topics: Sequence[TopicInfo]) -> Mapping[tuple[str, int], str]:
        """Return the partitions that cannot be compared, with the reason."""
        led = {(topic.name, part.id) for topic in topics for part in topic.partitions if part.leader >= 0}
        partitions = dict(_partitions(topics))
        asked = {where: key for where, key in partitions.items() if where in led and self._end(key)}
        standings = standings_of(self.state, asked, self.control.epoch_ends)
        reasons = {where: "it has no leader" for where, key in partitions.items() if where not in led}
        for where, standing in standings.found.items():
            if standing.fork is not None:
                reasons[where] = (
                    f"its log was cut off at offset {standing.fork}, below the end of the archive: see onDivergence"
                )
        return {**reasons, **standings.unanswered}

    def _tasks(self, topics: Sequence[TopicInfo], left_out: Collection[tuple[str, int]]) -> Iterator[ReconcileTask]:
        number = 0
        for (topic, partition), key in _partitions(topics):
            end = self._end(key)
            if not end or (topic, partition) in left_out:
                continue
            yield ReconcileTask(
                number=number,
                connection=self.connection,
                storage=self.archive.storage,
                topic=topic,
                topic_id=key[0],
                partition=partition,
                segments=tuple(self.state.segments.get(key, ())),
                kept=tuple(self.state.kept(*key)),
                accounted=tuple(self._accounted(key)),
                end=end,
                most=self.most,
            )
            number += 1

    def _end(self, key: Partition) -> int:
        """Return the offset at which the archive ends; 0 if it accounts for nothing."""
        ranges = self.state.accounted_for(*key)
        return ranges[-1][1] if ranges else 0

    def _accounted(self, key: Partition) -> Iterator[Range]:
        """Yield the ranges for which the archive accounts, without what its retention has removed, and without segments
        from which an erasure has taken records."""
        gone = list(self.state.removed.get(key, ()))
        for start, end in erased_ranges(self.log, key, self._end(key)):
            add_range(gone, start, end)
        for start, end in self.state.accounted_for(*key):
            yield from without(start, end, gone)

    def _failed(self, where: tuple[str, int], key: Partition, why: str) -> ReconciledPartition:
        return ReconciledPartition(where[0], key[0], where[1], self._end(key), failed=why)

    def _run(self, tasks: Sequence[ReconcileTask]) -> list[ReconciledPartition]:
        found: list[ReconciledPartition] = []
        if not tasks:
            return found
        numbers = {(task.topic, task.partition): task for task in tasks}
        self.reporter.planned(
            (ProgressRange(task.number, task.topic, task.partition, 0, task.end) for task in tasks),
            topics=len({task.topic for task in tasks}),
        )

        def on_result(_: int, partitions: Found) -> None:
            for item in partitions:
                task = numbers[item.topic, item.partition]
                self.reporter.done(task.number, item.counts.keys, task.bytes)
            found.extend(partitions)

        size, limit = sum(task.bytes for task in tasks), self.spec.limits.bytes_per_second_int
        slots = self.spec.spark.executor.slots
        if self.expect is not None:
            slots = self.expect(Demand(len(tasks), 2 * size, limit))
        largest_first = sorted(tasks, key=lambda task: -task.bytes)
        work = [
            tuple(group)
            for group in in_groups(
                largest_first, lambda task: task.bytes, size // (slots * _PER_SLOT) + 1, _MOST_TOGETHER
            )
        ]
        limits = RunLimits(limit, self.spec.limits.readers_per_broker)
        self.runner_factory().run(work, reconcile_partitions, on_result, self.reporter.update, limits)
        return found


def _partitions(topics: Iterable[TopicInfo]) -> Iterator[tuple[tuple[str, int], Partition]]:
    """Yield all partitions by topic and number, with their keys in the catalog."""
    for topic in topics:
        for part in topic.partitions:
            yield (topic.name, part.id), (topic.topic_id, part.id)


def reconcile_archive(
    run_id: str,
    spec: KafkaBackupSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: Mapping[str, str],
    *,
    only: Collection[str] = (),
    most: int = MOST_OFFSETS,
    heal: bool = False,
    claim: ArchiveClaim = NO_CLAIM,
) -> tuple[ReconcileReport, Archive, ArchiveState]:
    """Compare the archive of a backup as its last run has left it. Returns the report, and what was compared. With
    `heal` it becomes the archive's writer for a moment, if there is something to heal.
    Raises as `Reconciliation.perform`, ArchiveMissing, ArchiveMismatch, ArchiveBusy, and BackupUnfinished where no
    backup has ended."""
    storage = open_storage(spec.place, environ)
    storage.check()
    archive = Archive.open(storage, claim)
    seen = choose(archive)
    if not seen.finished:
        raise BackupUnfinished(
            f"no backup of the archive at {storage.uri} has succeeded yet: there is nothing to compare",
            hint="Compare again once a backup has succeeded.",
        )
    state, connection = with_snapshots(seen.state), connection_from(spec.cluster, environ)
    with ControlPlane(connection) as control:
        cluster_id = control.cluster_id()
        if cluster_id != archive.info.cluster_id:
            raise ArchiveMismatch(
                f"{storage.uri} is an archive of cluster {archive.info.cluster_id}, but spec.cluster is cluster "
                f"{cluster_id}.",
                hint="Name the cluster that the archive was made from.",
            )
        control.only(cluster_id)
        connection = replace(connection, cluster_id=cluster_id)
        work = Reconciliation(
            run_id, spec, archive, seen.state, state, connection, control, runner_factory, reporter,
            only=only, most=most, heal=partial(_heal_archive, archive, run_id, state) if heal else None,
        )  # fmt: skip
        return work.perform(), archive, state


def _heal_archive(archive: Archive, run_id: str, compared: ArchiveState, report: ReconcileReport) -> ReconcileReport:
    """Heal in a separate run, whose end is not a point."""
    with begin_run(archive, run_id, kind=RECONCILIATION) as writer:
        try:
            report = make_due(writer, report, compared)
        except LogkeepError as error:
            writer.give_up(error, error.message)
            raise
        writer.end(RunOutcome.SUCCEEDED, report.message)
        return report


def reconcile_backup(
    writer: Writer,
    spec: KafkaBackupSpec,
    connection: KafkaConnection,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    expect: Expect | None,
) -> ReconcileReport:
    """Compare the archive as the writer's run has left it when it has ended, and heal it if `spec` says so. Raises as
    `Reconciliation.perform`."""
    run_id, archive, state = writer.run_id, writer.archive, with_snapshots(writer.state)
    heals = spec.reconcile is not None and spec.reconcile.heal
    with ControlPlane(connection) as control:
        work = Reconciliation(
            run_id, spec, archive, writer.state, state, connection, control, runner_factory, reporter, expect=expect,
            heal=partial(make_due, writer, compared=state) if heals else None,
        )  # fmt: skip
        return work.perform()
