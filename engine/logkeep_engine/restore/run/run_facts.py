"""The facts of a run about what it has restored, and what its user should know of the records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_LIST, RunResult
from logkeep_engine.errors import BrokerRefused, BrokerUnavailable
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import PartitionSummary
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import ALL_BUT_USERS, OFFSET_MAPS
from logkeep_engine.restore.positions.moves import Moved, PositionOutcome
from logkeep_engine.restore.sending.count import check_counted
from logkeep_engine.restore.sending.partitions import Summaries, done_partitions
from logkeep_engine.restore.sending.without_records import describe_outside
from logkeep_engine.restore.sending.work import with_task


def facts_of_run(
    begun: RunResult, context: RestoreContext, planned: Planned, summaries: Summaries, moved: Sequence[Moved] = ()
) -> RunResult:
    """Return the result of a run that has begun, with the facts about what it has restored."""
    plan = planned.plan
    return replace(
        begun,
        archive_id=context.archive.info.archive_id,
        cluster_id=context.cluster_id,
        commit=plan.commit,
        topics=len(plan.topics),
        partitions=sum(topic.partition_count for topic in plan.topics),
        records=sum(summary.records for summary in summaries.values()),
        bytes=sum(summary.bytes for summary in summaries.values()),
        aborted_records=sum(summary.aborted_records for summary in summaries.values()),
        segments=sum(len(planned.segments(topic, partition.partition)) for topic, partition in with_task(planned)),
        groups=sum(item.outcome is PositionOutcome.SET for item in moved),
        loss_total=len(plan.loss),
        loss_offsets=sum(fact.end - fact.start for fact in plan.loss),
        loss=plan.loss[:MAX_LIST],
        offset_map="" if all(topic.divided for topic in plan.topics) else context.state.name(OFFSET_MAPS),
    )


def note_restored(context: RestoreContext, done: RunResult) -> None:
    """Note that topics and groups are restored, in a restore that continues with quotas and ACLs. These may take the
    right to look at topics and groups from the very user who restores."""
    if context.spec.everything:
        context.state.storage.put(context.state.file(ALL_BUT_USERS), done.to_json().encode())


def noted_before(context: RestoreContext, planned: Planned, begun: RunResult) -> RunResult | None:
    """Return the facts and warnings that an earlier start has noted when it had restored topics and groups; None if
    none has come so far.

    Raises TargetChanged and TopicGone if the topics are not those any more, BrokerUnavailable where brokers do not
    report it though the user may ask, and ArchiveMismatch.
    """
    noted = context.state.result_in(ALL_BUT_USERS)
    if noted is None:
        return None
    warnings = list(noted.warnings)
    try:
        check_counted(context, planned, done_partitions(context.state))
    except (BrokerRefused, BrokerUnavailable) as error:
        created = [topic.target for topic in planned.plan.topics if topic.created]
        if isinstance(error, BrokerUnavailable) and not context.control.undescribable(created):
            raise
        warnings.insert(
            0,
            "it is no longer known whether the topics are those that an earlier start has restored: "
            f"{error.message} ACLs of topics may have taken this right from the user who restores",
        )
    return replace(
        noted,
        run_id=begun.run_id,
        start_time=begun.start_time,
        offset_map=noted.offset_map and context.state.name(OFFSET_MAPS),
        warnings=tuple(warnings),
    )


def describe_records(plan: RestorePlan, summaries: Summaries) -> Iterator[str]:
    """Yield the warnings about records that were restored otherwise than they were, and about topics without any."""
    yield from _describe_append_times(summaries.values())
    yield from _describe_filled(plan, summaries)
    yield from describe_outside(plan, summaries)


def _describe_append_times(summaries: Iterable[PartitionSummary]) -> Iterator[str]:
    topics = sorted({summary.target_topic for summary in summaries if summary.append_time_records})
    if topics:
        yield (
            f"records of {shown(topics)} had append times: they keep the times, but the type of the timestamp is now "
            "CreateTime"
        )


def _describe_filled(plan: RestorePlan, summaries: Summaries) -> Iterator[str]:
    """Yield the warning about offsets that were filled so that records keep theirs."""
    filled: dict[str, int] = {}
    for topic in plan.topics:
        for part in topic.partitions:
            summary = summaries.get((topic.target, part.partition))
            if part.extent is not None and summary is not None and summary.records < part.extent.offsets:
                more = part.extent.offsets - summary.records
                filled[topic.target] = filled.get(topic.target, 0) + more
    if filled:
        yield (
            f"{sum(filled.values())} offsets of {shown(sorted(filled))} hold no record of the source and were filled "
            "with transactions: consumers that read uncommitted records see records without key and value there where "
            "several follow one another, and searches by time may find a marker, which has the time of the restore"
        )
