"""Asks brokers when they may delete records that a backup has not archived.

The question comes after the run has ended in the archive. If brokers do not answer, nothing is known, and no run fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition, RunOutcome
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.deadlines import NO_LIMITS, RunTimes, WatchedPartition, deadlines, limits_of
from logkeep_engine.backup.plan import ALL_PARTITIONS, BackupPlan, TopicPartition, open_gaps, open_pieces
from logkeep_engine.contract.archive import Deadlines
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import Bounds, ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs

log = logging.getLogger(__name__)

QUESTION_SECONDS = 10.0


@dataclass(frozen=True)
class EndedBackup:
    """A backup that has ended: its archive and plan, and the partitions that it had to leave out."""

    run_id: str
    archive: Archive
    state: ArchiveState
    plan: BackupPlan
    not_archived: Collection[Partition] = ()

    @property
    def begun(self) -> int:
        """When it began, in ms since the epoch."""
        return self.state.runs[self.run_id].begin_time

    def left_open(self) -> Iterator[tuple[str, int, int, int]]:
        """Topic id, partition, start and end of the ranges of the plan for which the archive does not account."""
        for piece in open_pieces(self.plan, self.state):
            yield piece.topic_id, piece.partition, piece.start, piece.end
        for gap in open_gaps(self.plan, self.state):
            yield gap.topic_id, gap.partition, gap.start, gap.end


def ask_deadlines(backup: EndedBackup, connection: KafkaConnection) -> Deadlines | None:
    """The deadlines of the topics of a run that has tried everything; None if the brokers do not tell."""
    started = time.monotonic()
    patience = min(QUESTION_SECONDS, connection.limits.control)
    try:
        with ControlPlane(connection, timeout=patience) as control:
            found = _deadlines(backup, control)
    except LogkeepError as error:
        log.warning("when the cluster deletes records is not known: %s", error.message)
        return None
    log.info("asked for the limits of %d topics in %.1f s", len(backup.plan.topics), time.monotonic() - started)
    return found


def _deadlines(backup: EndedBackup, control: ControlPlane) -> Deadlines:
    plan = backup.plan
    gone = {topic.topic_id for topic in plan.gone}
    topics = {topic.name: topic for topic in plan.topics if topic.topic_id not in gone}
    now = time.time_ns() // 1_000_000
    told = {name: limits_of(values) for name, values in effective_topic_configs(control, topics).items()}
    limits = {name: found for name, found in told.items() if found is not None}
    unknown = (topics.keys() | {name for name, _ in plan.unavailable}) - limits.keys()
    keys = {
        (name, number): (topics[name].topic_id, number)
        for name, found in limits.items()
        if found != NO_LIMITS
        for number in range(topics[name].partitions)
    }
    bounds = control.bounds(keys).found if keys else {}
    oldest = _oldest(backup, control, keys, bounds, now)
    watched = [
        WatchedPartition(where[0], keys[where], limits[where[0]], at, bounds[where].start if where in bounds else None)
        for where, at in oldest.items()
    ]
    soonest = deadlines(watched, backup.state, _times(backup, now))
    return Deadlines(
        check_time=now / 1000,
        deadline=soonest[0].deadline if soonest else None,
        unknown_topics=len(unknown | {name for name, _ in keys.keys() - oldest.keys()}),
        topics=tuple(soonest[:MAX_LIST]),
    )


def _oldest(
    backup: EndedBackup,
    control: ControlPlane,
    keys: Mapping[TopicPartition, Partition],
    bounds: Mapping[TopicPartition, Bounds],
    now: int,
) -> dict[TopicPartition, int]:
    """The time in ms since the epoch that no record of a partition is older than which is not archived. Partitions of
    which nobody knows it are absent.

    If the run has archived the whole partition, such a record was appended after the run began. Otherwise the leader
    tells the time of the first record behind the archived ones.
    """
    state, missing = backup.state, _first_missing(backup)
    behind = {
        where: _last_time(state, keys[where], offset) + 1
        for where, offset in missing.items()
        if where in keys and where in bounds
    }
    times = control.record_times(behind).found if behind else {}
    found = {where: now if told is None else told for where, told in times.items()}
    for where in keys.keys() - missing.keys():
        all_archived = where in bounds and bounds[where].end <= _end(state, keys[where])
        found[where] = now if all_archived else backup.begun
    return found


def _first_missing(backup: EndedBackup) -> dict[TopicPartition, int]:
    """The first offset that is missing of each partition that the run could not archive whole."""
    names = backup.plan.topic_names
    found: dict[TopicPartition, int] = {}
    for key, offset in _missing(backup):
        where = (names[key[0]], key[1])
        found[where] = min(offset, found.get(where, offset))
    return found


def _missing(backup: EndedBackup) -> Iterator[tuple[Partition, int]]:
    plan, state = backup.plan, backup.state
    for topic_id, partition, start, _ in backup.left_open():
        yield (topic_id, partition), start
    for fork in plan.forks:
        if not fork.branch_id:
            yield (fork.topic_id, fork.partition), fork.offset
    for key in (*backup.not_archived, *_silent(plan)):
        yield key, _end(state, key)


def _silent(plan: BackupPlan) -> Iterator[Partition]:
    """The partitions that gave no answer, as far as their topics are known."""
    unavailable = set(plan.unavailable)
    for topic in plan.topics:
        for number in range(topic.partitions):
            if not {(topic.name, number), (topic.name, ALL_PARTITIONS)}.isdisjoint(unavailable):
                yield topic.topic_id, number


def _end(state: ArchiveState, key: Partition) -> int:
    accounted = state.accounted_for(*key)
    return accounted[-1][1] if accounted else 0


def _last_time(state: ArchiveState, key: Partition, offset: int) -> int:
    """The time of the last record that is archived before an offset, -1 if there is none."""
    entry = state.last_before(*key, offset)
    return entry.times.max_timestamp if entry is not None else -1


def _times(backup: EndedBackup, now: int) -> RunTimes:
    earlier = [
        run
        for run in backup.state.runs.values()
        if run.outcome is RunOutcome.SUCCEEDED and run.kind == BACKUP and run.run_id != backup.run_id
    ]
    if not earlier:
        return RunTimes(now, backup.begun)
    return RunTimes(now, backup.begun, earlier[-1].begin_time, earlier[-1].epoch)
