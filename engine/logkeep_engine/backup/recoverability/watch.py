"""Asks brokers when they may delete records that a backup has not archived, and what open transactions hold back.

The questions come after the run has ended in the archive. If brokers do not answer, nothing is known, and no run fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import ALL_PARTITIONS, BackupPlan, TopicPartition, open_gaps, open_pieces
from logkeep_engine.backup.recoverability.deadlines import RunTimes, WatchedPartition, deadlines
from logkeep_engine.contract.facts.archive import Deadlines
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import Bounds, ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.log.cleanup import NO_LIMITS, limits_of

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


@dataclass(frozen=True, slots=True)
class HeldBack:
    """The records of a topic that lie after an open transaction: no backup gets them before it has ended. `oldest`
    is the time in ms since the epoch of the first of them, None if unknown."""

    offsets: int
    oldest: int | None


@dataclass(frozen=True)
class BrokerRetentionLimits:
    """The answers of the brokers. `deadlines` None: they did not report them. `held` are topics by name."""

    deadlines: Deadlines | None = None
    held: Mapping[str, HeldBack] = field(default_factory=dict)


def ask_brokers(backup: EndedBackup, connection: KafkaConnection) -> BrokerRetentionLimits:
    """Ask brokers about the topics of a run that has tried everything. Nothing is reported if they do not answer."""
    started = time.monotonic()
    patience = min(QUESTION_SECONDS, connection.limits.control)
    try:
        with ControlPlane(connection, timeout=patience) as control:
            found = _ask(backup, control)
    except LogkeepError as error:
        log.warning("it is unknown when the cluster deletes records: %s", error.message)
        return BrokerRetentionLimits()
    log.info("asked for the limits of %d topics in %.1f s", len(backup.plan.topics), time.monotonic() - started)
    return found


def _ask(backup: EndedBackup, control: ControlPlane) -> BrokerRetentionLimits:
    plan = backup.plan
    gone = {topic.topic_id for topic in plan.gone}
    topics = {topic.name: topic for topic in plan.topics if topic.topic_id not in gone}
    now = time.time_ns() // 1_000_000
    reported = {name: limits_of(values) for name, values in effective_topic_configs(control, topics).items()}
    limits = {name: found for name, found in reported.items() if found is not None}
    unknown = (topics.keys() | {name for name, _ in plan.unavailable}) - limits.keys()
    keys = {
        (name, number): (topic.topic_id, number) for name, topic in topics.items() for number in range(topic.partitions)
    }
    logs = _Logs.of(backup, control, keys)
    oldest = logs.oldest(now)
    limited = {where for where in keys if limits.get(where[0], NO_LIMITS) != NO_LIMITS}
    watched = [
        WatchedPartition(where[0], keys[where], limits[where[0]], at, logs.start(where))
        for where, at in oldest.items()
        if where in limited
    ]
    # How long a limit by size keeps records follows from where the log starts.
    blind = {where for where in limited if limits[where[0]].bytes is not None and logs.start(where) is None}
    unknown |= {name for name, _ in blind | (limited - oldest.keys())}
    soonest = deadlines(watched, backup.state, _times(backup, now))
    found = Deadlines(
        check_time=time_of(now / 1000),
        deadline=soonest[0].deadline if soonest else None,
        unknown_topics=len(unknown),
        topics=tuple(soonest[:MAX_LIST]),
    )
    return BrokerRetentionLimits(found, logs.held_back())


@dataclass(frozen=True)
class _Logs:
    """The logs of a run's partitions as their leaders show them after it. `behind` has the first offset that is missing
    of each partition that is not archived whole, `held` those of them that wait for an open transaction. `times` are
    those of the records at these offsets, in ms since the epoch."""

    backup: EndedBackup
    keys: Mapping[TopicPartition, Partition]
    bounds: Mapping[TopicPartition, Bounds]
    ends: Mapping[TopicPartition, int]
    behind: Mapping[TopicPartition, int]
    held: Collection[TopicPartition]
    times: Mapping[TopicPartition, int | None]

    @classmethod
    def of(cls, backup: EndedBackup, control: ControlPlane, keys: Mapping[TopicPartition, Partition]) -> _Logs:
        """Ask the leaders. The ends of the logs come first: what is above the last stable offset after that, an open
        transaction holds back."""
        ends = control.high_watermarks(keys).found if keys else {}
        bounds = control.bounds(keys).found if keys else {}
        behind = {where: offset for where, offset in _first_missing(backup).items() if where in keys}
        archived = {
            where: max(_end(backup.state, keys[where]), bounds[where].start)
            for where in bounds.keys() & ends.keys() - behind.keys()
        }
        held = {where: at for where, at in archived.items() if bounds[where].end <= at < ends[where]}
        behind |= held
        asked = {
            where: _last_time(backup.state, keys[where], offset) + 1
            for where, offset in behind.items()
            if where in bounds
        }
        times = control.record_times(asked).found if asked else {}
        return cls(backup, keys, bounds, ends, behind, held.keys(), times)

    def start(self, where: TopicPartition) -> int | None:
        """Return the log start of a partition, if that is known."""
        return self.bounds[where].start if where in self.bounds else None

    def oldest(self, now: int) -> dict[TopicPartition, int]:
        """Return the time in ms since the epoch that no record of a partition is older than which is not archived.
        Partitions where this is unknown are absent.

        If the run has archived the whole partition, such a record was appended after the run began. Otherwise the
        leader reports the time of the first record after the archived ones.
        """
        found = {}
        for where, reported in self.times.items():
            if reported is not None:
                found[where] = reported
            elif max(self.bounds[where].end, self.ends.get(where, 0)) <= self.behind[where]:
                found[where] = now  # there is none
        for where in self.keys.keys() - self.behind.keys():
            archived = where in self.bounds and self.bounds[where].end <= _end(self.backup.state, self.keys[where])
            found[where] = now if archived else self.backup.begun
        return found

    def held_back(self) -> dict[str, HeldBack]:
        """Return the topics whose records open transactions hold back since before the run began."""
        found: dict[str, HeldBack] = {}
        for where in self.held:
            at, offsets = self.times.get(where), self.ends[where] - self.behind[where]
            if at is not None and at >= self.backup.begun:
                continue
            before = found.get(where[0], HeldBack(0, at))
            known = None if at is None or before.oldest is None else min(at, before.oldest)
            found[where[0]] = HeldBack(before.offsets + offsets, known)
        return found


def _first_missing(backup: EndedBackup) -> dict[TopicPartition, int]:
    """Return the first offset that is missing of each partition that the run could not archive whole."""
    names = backup.plan.topic_names
    found: dict[TopicPartition, int] = {}
    for key, offset in _missing(backup):
        if key[0] not in names:
            continue  # what is missing of a topic that was deleted, no run brings
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
    """Yield the partitions that gave no answer, as far as their topics are known."""
    unavailable = set(plan.unavailable)
    for topic in plan.topics:
        for number in range(topic.partitions):
            if not {(topic.name, number), (topic.name, ALL_PARTITIONS)}.isdisjoint(unavailable):
                yield topic.topic_id, number


def _end(state: ArchiveState, key: Partition) -> int:
    accounted = state.accounted_for(*key)
    return accounted[-1][1] if accounted else 0


def _last_time(state: ArchiveState, key: Partition, offset: int) -> int:
    """Return the time of the last record that is archived before an offset, -1 if there is none."""
    entry = state.last_before(*key, offset)
    return entry.times.max_timestamp if entry is not None else -1


def _times(backup: EndedBackup, now: int) -> RunTimes:
    earlier = [run for run in backup.state.successes() if run.kind == BACKUP and run.run_id != backup.run_id]
    if not earlier:
        return RunTimes(now, backup.begun)
    return RunTimes(now, backup.begun, earlier[-1].begin_time, earlier[-1].epoch)
