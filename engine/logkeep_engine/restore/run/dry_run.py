"""The dry run of a restore: it plans as every restore does, with all checks, and reports instead of writing.

`RestorePlanner` makes the plan and finds what refuses it. This module adds what a run finds out only when it creates
topics and sends the first batch: whether the controller takes the topics and whether the user has the rights. It asks
with requests that change nothing. The report says how much there is to do and how long it may take.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import GroupEntry, Partition
from logkeep_engine.archive.maintenance import rates
from logkeep_engine.archive.maintenance.cost.requests import requests_of
from logkeep_engine.archive.maintenance.rates import MeasuredRun, expected_time
from logkeep_engine.archive.names import RUNS
from logkeep_engine.contract.facts.dry_run import (
    EXACT,
    EXISTS,
    NEW,
    REPLACED,
    DryRunReport,
    PlannedClusterState,
    PlannedGroup,
    PlannedPosition,
    PlannedTopic,
    counts_of,
)
from logkeep_engine.contract.facts.outcome import EmittedFacts
from logkeep_engine.contract.facts.values import time_if_any
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import RESTORE
from logkeep_engine.contract.restore_spec import RestoreOffsets, RestoreVerification
from logkeep_engine.contract.restored_topics import TopicRetention
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BrokerRefused, ObjectCold, ObjectMissing
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.kafka.transactions import id_refused
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.cluster_state.step import check_everything, plan_cluster_state
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan, TopicPlan
from logkeep_engine.restore.model.point_preview import PreviewedPartition, of_restore, previewed
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import RESULT, RestoreState
from logkeep_engine.restore.model.topics import describe_refused_key
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.planning.resuming import begun_run
from logkeep_engine.restore.positions import groups
from logkeep_engine.restore.positions.moves import select_and_rename
from logkeep_engine.restore.positions.preview import PreviewedPosition, predicted_maps, preview_groups
from logkeep_engine.restore.positions.report import nothing_to_move
from logkeep_engine.restore.sending.partitions import done_partitions
from logkeep_engine.restore.sending.work import restore_task, with_task
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.left_out import AbortedRecords, LeftOut
from logkeep_engine.restore.streams.same import deletion_refused, transactional_id
from logkeep_engine.restore.topics.held_topics import describe_held, held_topics
from logkeep_engine.restore.topics.kafka_topics import emit
from logkeep_engine.restore.topics.targets import CreatedTopics

# ---- aborted preview

# Counts the records of aborted transactions that a restore will leave out, for its dry run.


@dataclass(frozen=True, slots=True)
class AbortedPreview:
    """The numbers of records by archived partition; None: to count them, `bytes` of the archive are to be read, which
    is too much."""

    counts: Mapping[Partition, int] | None
    bytes: int


def preview_aborted(partitions: Iterable[ArchivedPartition], most: int) -> AbortedPreview:
    """Count the records of aborted transactions in the segments that have some, if these have at most this many bytes.
    Raises ArchiveDamaged."""
    found: dict[Partition, int] = {}
    work: list[tuple[ArchivedPartition, Spans, list[SegmentEntry]]] = []
    for archived in partitions:
        found[archived.key] = 0
        aborted = Spans.of(archived.aborted()) if any(entry.transactional for entry in archived.segments) else Spans()
        reached = AbortedRecords(aborted, archived.clip, LeftOut())
        wanted = [entry for entry in archived.segments if archived.clip is None or archived.clip.reaches(entry)]
        wanted = [entry for entry in wanted if reached.reach(entry.base_offset, entry.next_offset)]
        if wanted:
            work.append((archived, aborted, wanted))
    size = sum(entry.bytes for _, _, wanted in work for entry in wanted)
    if size > most:
        return AbortedPreview(None, size)
    for archived, aborted, wanted in work:
        left_out = LeftOut()
        counted = AbortedRecords(aborted, archived.clip, left_out)
        for entry in wanted:
            for _ in archived.stretches(entry, counted):
                pass
        found[archived.key] = left_out.aborted
    return AbortedPreview(found, size)


# ---- rates

# The rate of earlier restores. Each keeps its result next to its plan: bytes, and the time from beginning to end.
#
# The newest that has moved enough to be meaningful counts, one into the same cluster before one into another.


_RESULTS_READ = 50


def measured_restore(state: RestoreState, cluster_id: str) -> MeasuredRun | None:
    """Return the restore that says most about one into the cluster, None if there is none."""
    found = [
        result
        for result in _results(state)
        if result.kind == RESTORE
        and result.outcome == "Succeeded"
        and result.earlier_run is None
        and result.bytes >= rates.LEAST_BYTES
        and result.end_time > result.start_time
    ]
    reported = max(found, key=lambda result: (result.cluster_id == cluster_id, result.end_time), default=None)
    if reported is None:
        return None
    what = "into this cluster" if reported.cluster_id == cluster_id else f"into cluster {reported.cluster_id}"
    return MeasuredRun(
        reported.run_id, what, reported.bytes, reported.end_time - reported.start_time, int(reported.end_time * 1000)
    )


def _results(state: RestoreState) -> Iterator[RunResult]:
    """Yield the newest results of runs. What cannot be read says nothing."""
    there = [info for info in state.storage.list(RUNS) if info.path.endswith(f"/{RESULT}")]
    for info in sorted(there, key=lambda info: info.modified, reverse=True)[:_RESULTS_READ]:
        try:
            yield RunResult.from_json(state.storage.read(info.path))
        except (ObjectMissing, DocumentRefused):
            continue


_OWN_OBJECTS = 8  # that a restore writes besides its offset maps
_MOST_POSITIONS = 10_000  # that are looked up one by one
_MOST_READ = 256 << 20  # bytes of the archive that are read for it
_SOME_PRODUCER_ID = 0  # rights are given for the prefix of transactional ids


@dataclass(frozen=True)
class DryRunFindings:
    """The report about a restore, without the refusals, and the warnings that it would give. `emitted`: KafkaTopics,
    if they are requested.
    """

    report: DryRunReport
    warnings: Sequence[str]
    emitted: EmittedFacts | None = None


def find_out(context: RestoreContext) -> DryRunFindings:
    """Return the findings about the restore. Refusals are noted in `context.refusals`.

    Raises the refusal that leaves nothing to look at, and what keeps a dry run from finding out: brokers or a storage
    that do not answer.
    """
    planned = RestorePlanner(context).load_or_make()
    plan = planned.plan
    there = context.control.topic_ids(topic.target for topic in plan.topics)
    created = CreatedTopics(context.control, planned.archived, context.spec.topics)
    warnings = [*plan.warnings, *_check_creation(context, planned, created, there)]
    if reported := describe_held(held_topics(context, plan), context.spec.topics.hold_for, would=True):
        warnings.insert(0, reported)
    if not planned.fresh:
        with context.refusals:
            check_everything(context, planned.archived)
    _check_rights(context, plan)
    aborted = _aborted(context, planned)
    report = _amounts(context, planned, created, there, aborted)
    chosen, describe_groups = _chosen_groups(context, planned)
    warnings += describe_groups
    moved = _counted(chosen)
    positions, unknown = _positions(context, planned, chosen)
    at_point = of_restore(context, planned)
    cluster_state: PlannedClusterState | None = None
    untried: list[str] = []
    with context.refusals:
        cluster_state, more, untried = plan_cluster_state(context, planned.archived)
        warnings += more
    report = replace(
        report,
        groups=len(moved),
        positions=sum(group.positions for group in moved),
        group_list=tuple(moved),
        position_list=tuple(positions),
        point=None if at_point is None else str(at_point),
        cluster_state=cluster_state,
        not_checked=(*unknown, *_not_checked(context, moved, aborted), *untried),
    )
    emitted = None
    with context.refusals:
        emitted = emit(context, planned)
    return DryRunFindings(report, warnings, emitted)


# ---- what only the cluster knows


def _check_creation(
    context: RestoreContext, planned: Planned, created: CreatedTopics, there: Mapping[str, str]
) -> list[str]:
    """Note the topics that the controller would not create. Returns warnings about configurations that it would not
    take at the end."""
    control, refusals = context.control, context.refusals
    if not planned.fresh:
        with refusals:
            created.missing(created.wanted(topic for topic in planned.plan.topics if not topic.replaces))
    new = [topic for topic in planned.plan.topics if topic.created and topic.target not in there]
    refused = control.refused_topics(created.wanted(new))
    for error in refused.values():
        refusals.add(error)
    whole = [
        NewTopicPlan(topic.target, topic.partition_count, topic.replication_factor, created.own(topic))
        for topic in new
        if topic.target not in refused
    ]
    warnings = []
    for name in control.refused_topics(whole):
        (one,) = (item for item in whole if item.name == name)
        for key, value in sorted(one.configs.items()):
            for error in control.refused_topics([replace(one, configs={key: value})]).values():
                warnings.append(describe_refused_key(name, key, one.configs, error.message))
    return warnings


def _check_rights(context: RestoreContext, plan: RestorePlan) -> None:
    """Note what the user may not do, as far as a cluster reports that without a change."""
    targets = [topic.target for topic in plan.topics]
    starting_later = sorted({topic.target for topic in plan.topics for part in topic.partitions if part.log_start > 0})

    async def ask() -> None:
        async with RawClient(context.connection) as client:
            unwritable = await client.unwritable(targets)
            if unwritable:
                context.refusals.add(_may_not("write to", unwritable, "WRITE"))
            if context.spec.offsets is not RestoreOffsets.SAME:
                return
            some = transactional_id(_SOME_PRODUCER_ID)
            if not await client.may_use_transaction(some):
                context.refusals.add(id_refused(some))
            for target in starting_later:
                if not await client.may_delete_records(target):
                    context.refusals.add(deletion_refused(target))

    asyncio.run(ask())
    held = context.spec.topics.retention is TopicRetention.HOLD
    fixed = context.control.unconfigurable([topic.target for topic in plan.topics if topic.created or held])
    if fixed:
        context.refusals.add(_may_not("change the configuration of", fixed, "ALTER_CONFIGS"))


def _may_not(what: str, topics: Sequence[str], operation: str) -> BrokerRefused:
    word = "topic" if len(topics) == 1 else f"{len(topics)} topics:"
    return BrokerRefused(
        f"The user may not {what} {word} {shown(sorted(topics))}.",
        hint=f"Give the user the ACL {operation} on {'it' if len(topics) == 1 else 'them'}.",
    )


# ---- how much there is to do


def _amounts(
    context: RestoreContext,
    planned: Planned,
    created: CreatedTopics,
    there: Mapping[str, str],
    aborted: AbortedPreview,
) -> DryRunReport:
    plan = planned.plan
    by_topic: dict[str, list[PreviewedPartition]] = {}
    entries = [planned.archived.topics[topic.topic_id] for topic in plan.topics]
    done = _done_already(context, planned)
    for part in previewed(planned.archived, entries, plan.point):
        if (part.topic_id, part.partition) not in done:
            by_topic.setdefault(part.topic_id, []).append(_without_aborted(part, aborted, whole=plan.point is None))
    damaged = {survey.topic_id for survey in plan.surveys}
    topics = tuple(
        _topic(
            topic,
            by_topic.get(topic.topic_id, ()),
            exact=topic.topic_id not in damaged and (planned.fresh or not by_topic.get(topic.topic_id)),
            state=REPLACED if topic.replaces else EXISTS if topic.target in there else NEW,
            configs=created.own(topic) if topic.created else {},
        )
        for topic in plan.topics
    )
    size = sum(topic.bytes for topic in topics)
    limit = context.spec.limits.bytes_per_second_int
    measured = measured_restore(context.state, context.cluster_id)
    expected = expected_time(size, measured, limit, context.state.storage.uri)
    verified = context.spec.verify is RestoreVerification.FULL
    return DryRunReport(
        topics=len(topics),
        topics_created=sum(topic.state != EXISTS for topic in topics),
        partitions=sum(topic.partitions for topic in topics),
        records=sum(topic.records for topic in topics),
        bytes=size,
        counts=counts_of(exact=all(topic.counts == EXACT for topic in topics)),
        aborted_records=None if aborted.counts is None else sum(aborted.counts.values()),
        requests=sum(_batches(plan, part) for parts in by_topic.values() for part in parts),
        storage_requests=_storage_requests(planned),
        seconds=expected.seconds,
        bytes_per_second=expected.rate,
        rate=expected.source + ("; spec.verify: Full also reads the target back" if verified else ""),
        topic_list=topics,
    )


def _aborted(context: RestoreContext, planned: Planned) -> AbortedPreview:
    """Return the records of aborted transactions in all that is still to be restored."""
    done = _done_already(context, planned)
    left = [(topic, part) for topic, part in with_task(planned) if (topic.topic_id, part.partition) not in done]
    try:
        return preview_aborted((restore_task(context, planned, *item).archived for item in left), _MOST_READ)
    except ObjectCold:  # the plan has named the objects
        size = sum(entry.bytes for topic, part in left for entry in planned.segments(topic, part.partition))
        return AbortedPreview(None, size)


def _without_aborted(part: PreviewedPartition, aborted: AbortedPreview, *, whole: bool) -> PreviewedPartition:
    """Return the partition without its aborted records, as far as these were counted. If it has none, and all of it is
    restored, the numbers are exact."""
    if aborted.counts is None:
        return part
    count = aborted.counts.get((part.topic_id, part.partition), 0)
    return replace(part, records=max(0, part.records - count), exact=part.exact or (whole and not count))


def _done_already(context: RestoreContext, planned: Planned) -> set[Partition]:
    """Return the archived partitions that the run which would be resumed has finished. Of others it may have written a
    part."""
    begun = None if planned.fresh else begun_run(context)
    if begun is None:
        return set()
    done = done_partitions(begun)
    return {
        (topic.topic_id, part.partition) for topic, part in with_task(planned) if (topic.target, part.partition) in done
    }


def _topic(
    topic: TopicPlan, parts: Iterable[PreviewedPartition], *, exact: bool, state: str, configs: Mapping[str, str]
) -> PlannedTopic:
    found = list(parts)
    return PlannedTopic(
        topic=topic.target,
        source=topic.source,
        state=state,
        partitions=topic.partition_count,
        replicas=None if state == EXISTS else topic.replication_factor,
        config=", ".join(f"{key}={value}" for key, value in sorted(configs.items())) or None,
        records=sum(part.records for part in found),
        bytes=sum(part.bytes for part in found),
        counts=counts_of(exact=exact and all(part.exact for part in found)),
    )


def _batches(plan: RestorePlan, part: PreviewedPartition) -> int:
    """About this many batches, each of which is a request: batches as they are archived, or made of records."""
    if plan.batching is None:
        return part.batches
    by_count, by_size = -(-part.records // plan.batching.max_records), -(-part.bytes // plan.batching.max_bytes)
    return max(by_count, by_size)


def _storage_requests(planned: Planned) -> int:
    """About this many requests to the archive: every object is read for the check, and logs once more to send them."""
    tasks = list(with_task(planned))
    entries = ((topic.source, entry) for topic, part in tasks for entry in planned.segments(topic, part.partition))
    return (
        sum(requests_of(*item).restore.get for item in entries) + len(planned.plan.topics) + len(tasks) + _OWN_OBJECTS
    )


def _chosen_groups(context: RestoreContext, planned: Planned) -> tuple[list[GroupEntry], list[str]]:
    """Return the archived positions that would be set, under the names that their groups would get; and a warning if
    there is none."""
    if not groups.moves_groups(context.spec):
        return [], []
    restored = {topic.topic_id: topic.partition_count for topic in planned.plan.topics}
    with context.refusals:
        archived, wanted = planned.archived.groups, context.spec.consumer_groups
        chosen = select_and_rename(archived, wanted)
        found = [entry for entry in chosen if 0 <= entry.partition < restored.get(entry.topic_id, 0)]
        at_point = planned.plan.point is not None
        return found, [] if found else [nothing_to_move(archived, wanted, at_point=at_point, would=True)]
    return [], []


def _counted(chosen: Iterable[GroupEntry]) -> list[PlannedGroup]:
    """Return the groups, with the number of their positions."""
    counts = Counter(entry.group_id for entry in chosen)
    return [PlannedGroup(group=group, positions=count) for group, count in sorted(counts.items())]


def _positions(
    context: RestoreContext, planned: Planned, chosen: Sequence[GroupEntry]
) -> tuple[list[PlannedPosition], list[str]]:
    """Each position, the record before which its group would stand, and the position in the target; or why they were
    not looked up."""
    if not chosen or context.refusals.found:
        return [], []
    size = _bytes_below(planned, chosen)
    if len(chosen) > _MOST_POSITIONS or size > _MOST_READ:
        text = (
            f"where {len(chosen)} positions of consumer groups would be, for which {size} bytes of the archive are to "
            "be read: `logkeep groups plan` shows it"
        )
        return [], [text]
    try:
        maps = predicted_maps(context, planned)
        found = preview_groups(context, planned, context.spec.consumer_groups, maps, target=False)
    except ObjectCold as error:
        return [], [f"where {so_many(len(chosen), 'position')} of consumer groups would be: {error.message}"]
    return [_planned_position(item) for item in found], []


def _bytes_below(planned: Planned, chosen: Sequence[GroupEntry]) -> int:
    """Return the bytes of the segments that hold what lies below the positions, and the records at them."""
    furthest: dict[tuple[str, int], int] = {}
    for entry in chosen:
        key = (entry.topic_id, entry.partition)
        furthest[key] = max(furthest.get(key, 0), entry.offset)
    return sum(
        segment.bytes
        for topic, part in with_task(planned)
        if (topic.topic_id, part.partition) in furthest
        for segment in planned.segments(topic, part.partition)
        if segment.base_offset <= furthest[topic.topic_id, part.partition]
    )


def _planned_position(item: PreviewedPosition) -> PlannedPosition:
    time = None if item.record is None else item.record.timestamp
    return PlannedPosition(
        group=item.move.group.group_id,
        topic=item.move.topic,
        partition=item.move.position.partition,
        source_offset=item.move.group.offset,
        record=None if item.record is None else item.record.offset,
        time=None if time is None else time_if_any(time),
        target_offset=item.move.offset,
    )


def _not_checked(context: RestoreContext, moved: Sequence[PlannedGroup], aborted: AbortedPreview) -> Iterator[str]:
    yield f"whether the state of the restore can be written to {context.state.storage.uri}"
    if aborted.counts is None:
        yield (
            "how many of the records belong to aborted transactions and are left out, for which "
            f"{aborted.bytes} bytes of the archive are to be read"
        )
    if moved:
        yield "whether consumer groups have members when their positions are set, and the ACL READ on them"
    if context.spec.offsets is RestoreOffsets.SAME:
        yield "whether a coordinator serves transactions, and takes their time-out (transaction.max.timeout.ms)"
