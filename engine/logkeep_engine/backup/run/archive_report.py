"""Describes the archive after a backup: how large it is, what a restore brings back, and when the cluster may delete
records that are not archived.

Everything but the last comes from the state that the run has in memory. For the last the brokers are asked. If they do
not answer, the report has nothing about it, and no run fails for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import Generation
from logkeep_engine.archive.catalog.held_tables import removed_tables
from logkeep_engine.archive.catalog.snapshots import NO_TIME
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import SegmentTotals
from logkeep_engine.archive.history.compacted import ExactFrom, first_exact
from logkeep_engine.archive.maintenance.growth import NamedObjects, growth
from logkeep_engine.archive.maintenance.points import kept_points
from logkeep_engine.archive.maintenance.retaining import RetentionDone, RetentionRules
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading.completeness import complete_until
from logkeep_engine.backup.recoverability.coverage import protected_topics
from logkeep_engine.backup.recoverability.watch import EndedBackup, HeldBack, ask_brokers
from logkeep_engine.contract.facts.archive import (
    MAX_PATH,
    ArchiveReport,
    ArchiveSize,
    Locked,
    PointKept,
    Recoverable,
    Retained,
    TopicBehind,
    TopicGenerations,
    TopicSnapshots,
)
from logkeep_engine.contract.facts.values import MAX_TIME, time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.contract.values import human_bytes
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.storage import LockedObject

# The longest that brokers let a transaction take by default (transaction.max.timeout.ms). One that is open for longer
# may stay so: its topics are named.
HELD_MS = 900_000


def archive_report(backup: EndedBackup, connection: KafkaConnection, retained: Retained | None = None) -> ArchiveReport:
    """Return the report of a run that has tried everything, with what `retained_by` tells of it. Raises storage
    errors."""
    by_topic = topic_totals(backup.state)
    whole = SegmentTotals()
    for totals in by_topic.values():
        whole.add(totals)
    now = time.time_ns() // 1_000_000
    grown = growth(backup.state.runs.values(), now)
    named = NamedObjects.of(backup.state, grown)
    reported = ask_brokers(backup, connection)
    return ArchiveReport(
        size=ArchiveSize(
            topics=len(by_topic),
            segments=whole.segments,
            objects=whole.objects,
            records=whole.records,
            bytes=whole.bytes,
            stored_bytes=whole.stored_bytes,
            size=human_bytes(whole.stored_bytes),
            bytes_per_day=None if grown is None else grown.bytes_per_day,
            growth=None if grown is None else f"{human_bytes(grown.bytes_per_day)}/day",
            object_bytes=named.bytes,
            object_bytes_per_day=named.per_day,
        ),
        recovery=recovery(backup, by_topic, whole.first, reported.held),
        retention=reported.deadlines,
        snapshots=snapshots_of(backup.state),
        generations=generations_of(backup.state),
        retained=None if retained is None else replace(retained, run_id=backup.run_id),
    )


def snapshots_of(state: ArchiveState) -> tuple[TopicSnapshots, ...]:
    """Return the newest snapshots, and since when topics with generations are exact, by topic: those with partitions of
    which no point is exact first, then those of most bytes."""
    exact = {key: first_exact(state, key) for key in {*state.snapshots, *state.removed, *state.next_generations}}
    by_topic: dict[str, list[Partition]] = {}
    for key, first in exact.items():
        if first is None or key in state.snapshots or key in state.next_generations:
            by_topic.setdefault(key[0], []).append(key)
    reported = (_snapshots(state, topic_id, keys, exact) for topic_id, keys in by_topic.items())
    return tuple(sorted(reported, key=lambda item: (not item.exact_nowhere, -item.bytes, item.topic))[:MAX_LIST])


def _snapshots(
    state: ArchiveState, topic_id: str, keys: Sequence[Partition], exact: Mapping[Partition, ExactFrom | None]
) -> TopicSnapshots:
    totals, made = SegmentTotals(), [key for key in keys if key in state.snapshots]
    for key in made:
        totals.add_rows(state.snapshots[key][-1].rows)
    times = [first.time for key in keys if (first := exact[key]) is not None]
    return TopicSnapshots(
        topic=state.topics[topic_id].name,
        partitions=len(made),
        records=totals.records,
        bytes=totals.bytes,
        exact_after=None if max(times, default=NO_TIME) == NO_TIME else _time(max(times)),
        exact_nowhere=sum(exact[key] is None for key in keys) or None,
    )


def generations_of(state: ArchiveState) -> tuple[TopicGenerations, ...]:
    """Return the generations, by topic, those that were begun first before the others."""
    found: dict[str, list[Generation]] = {}
    for key, known in state.generations.items():
        found.setdefault(key[0], []).append(known)
    oldest = sorted((min(known.began for known in some), topic_id) for topic_id, some in found.items())
    return tuple(_generations(state, topic_id, found[topic_id]) for _, topic_id in oldest[:MAX_LIST])


def _generations(state: ArchiveState, topic_id: str, found: Sequence[Generation]) -> TopicGenerations:
    return TopicGenerations(
        topic=state.topics[topic_id].name,
        partitions=len(found),
        number=min(known.number for known in found),
        reading=sum(known.passive is not None for known in found),
        began=_time(min(known.began for known in found)),
    )


def retained_by(state: ArchiveState, rules: RetentionRules, done: RetentionDone | None) -> Retained | None:
    """Return the retention of a run, after it; None if it has come to none, or had nothing to do and nothing to
    keep."""
    if done is None or not (rules.is_set or state.retention_holds or state.unpurged or done.purged.segments):
        return None
    points = kept_points(state, rules.keep)
    waiting = [entry for table in removed_tables(state) for entry in table.segments]
    return Retained(
        removed_segments=done.removed.segments,
        removed_snapshots=done.removed.snapshots,
        removed_bytes=done.removed.bytes,
        deleted_segments=done.purged.segments,
        deleted_bytes=done.purged.bytes,
        waiting_segments=len(waiting),
        waiting_bytes=sum(map(object_bytes, waiting)),
        holds=len(state.retention_holds),
        locked=_locked(done.purged.locked),
        points=len(points),
        kept=tuple(
            PointKept(run_id=point.run_id, end_time=_time(point.time), rules=point.rules)
            for point in points[: -MAX_LIST - 1 : -1]
        ),
    )


def _locked(found: Sequence[LockedObject]) -> Locked | None:
    if not found:
        return None
    until = [item.until for item in found if item.until is not None]
    return Locked(
        objects=len(found),
        until=None if not until else time_of(min(max(until), MAX_TIME)),
        legal_holds=sum(item.legal_hold for item in found),
        first=found[0].path[:MAX_PATH],
    )


def topic_totals(state: ArchiveState) -> dict[str, SegmentTotals]:
    """Return the sums of each topic id, of all partitions."""
    found: dict[str, SegmentTotals] = {}
    for key in state.segments:
        found.setdefault(key[0], SegmentTotals()).add_rows(state.segments.rows(key))
    return found


def recovery(
    backup: EndedBackup,
    by_topic: Mapping[str, SegmentTotals],
    first: int,
    held: Mapping[str, HeldBack] = MappingProxyType({}),
) -> Recoverable:
    """Return the times and topics that a restore brings back. Topics that are `held` for long are behind; the others
    put off the time for all. Raises storage errors, if a topic is behind."""
    plan, state = backup.plan, backup.state
    gone = {topic.topic_id for topic in plan.gone}
    topics = {topic.name: topic for topic in plan.topics if topic.topic_id not in gone}
    names = topics.keys() | {name for name, _ in plan.unavailable}
    whole = {topic.name for topic in protected_topics(plan, state, backup.not_archived)}
    behind = sorted(names - whole)
    reported = _behind(backup, topics, behind, by_topic) if behind else []
    until = backup.begun
    for name in sorted(whole & held.keys()):
        offsets, oldest = held[name].offsets, held[name].oldest
        if oldest is not None and backup.begun - oldest < HELD_MS:
            until = min(until, oldest)
            continue
        totals = by_topic.get(topics[name].topic_id)
        first_time = _time(totals.first) if totals is not None else None
        reported.append(TopicBehind(topic=name, first_time=first_time, last_time=_ms(oldest), offsets=offsets))
    return Recoverable(
        first_time=_time(first),
        last_time=time_of(until / 1000),
        topics=len(names),
        topics_behind=len(reported),
        behind=tuple(sorted(reported, key=lambda topic: (topic.last_time or "", topic.topic))[:MAX_LIST]),
    )


def _behind(
    backup: EndedBackup, topics: Mapping[str, TopicEntry], names: Sequence[str], by_topic: Mapping[str, SegmentTotals]
) -> list[TopicBehind]:
    plan, state = backup.plan, backup.state
    left: dict[str, int] = {}
    for topic_id, _, start, end in backup.left_open():
        left[topic_id] = left.get(topic_id, 0) + end - start
    silent = {name for name, _ in plan.unavailable}
    refused = {fork.topic_id for fork in plan.forks if not fork.branch_id}
    refused |= {topic_id for topic_id, _ in backup.not_archived}
    known = {topic.name: topic for topic in (*state.topics.values(), *topics.values())}
    ids = {name: known[name].topic_id for name in names if name in known}
    until = complete_until(backup.archive, state, ids.values())
    return [
        TopicBehind(
            topic=name,
            first_time=_time(by_topic[topic_id].first) if topic_id in by_topic else None,
            last_time=_time(until[topic_id]) if topic_id in until else None,
            offsets=None if name in silent or topic_id in refused else left.get(topic_id),
        )
        for name in names
        for topic_id in [ids.get(name, "")]
    ]


def _ms(ms: int | None) -> str | None:
    return _time(ms) if ms is not None else None


def _time(ms: int) -> str | None:
    return time_of(ms / 1000) if moment(ms) else None
