"""The part of the driver's documents that the status shows. It is small whatever the number of partitions."""

from __future__ import annotations

import heapq
from typing import Any

from logkeep_engine.contract.dry_run import PlannedClusterState, PlannedPosition, PlannedRetention, PlannedTopic
from logkeep_engine.contract.facts.progress import PartitionProgress
from logkeep_engine.contract.facts.values import MAX_LISTED, time_if_any, time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_MOVING, Progress, RunResult
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Lagging, ProgressStatus
from logkeep_operator.api.dry_run_status import (
    DryRunStatus,
    PlannedGroupStatus,
    PlannedPositionStatus,
    PlannedRefusalStatus,
    PlannedRemovalStatus,
    PlannedRetentionStatus,
    PlannedStateStatus,
    PlannedTopicStatus,
)
from logkeep_operator.api.status import (
    HeldTopicsStatus,
)

_WARNINGS_MAX = 6000  # characters of all together
# A run that has ended has no rate, and nothing moves.
_AT_REST: dict[str, Any] = {"bytes_per_second": None, "seconds_left": None, "moving": ()}


def progress_status(progress: Progress) -> ProgressStatus:
    """Return the status of a run that is still running."""

    def left(partition: PartitionProgress) -> int:
        return partition.end - partition.at

    behind = heapq.nlargest(MAX_LISTED, (p for p in progress.partitions_shown if left(p) > 0), key=left)
    return ProgressStatus(
        phase=progress.phase,
        update_time=time_of(progress.update_time),
        topics=progress.topics,
        partitions=progress.partitions,
        partitions_done=progress.partitions_done,
        display=f"{progress.partitions_done}/{progress.partitions}",
        records=progress.records,
        bytes=progress.bytes,
        percent=progress.percent,
        bytes_per_second=progress.bytes_per_second,
        seconds_left=progress.seconds_left,
        executors=progress.executors,
        point=None if progress.point is None else cut(progress.point),
        moving=progress.moving[:MAX_MOVING],
        lagging=tuple(
            Lagging(topic=p.topic, partition=p.partition, done=max(0, p.at - p.start), total=max(0, p.end - p.start))
            for p in behind
        ),
    )


def final_progress(progress: Progress | None, result: RunResult | None, succeeded: bool) -> ProgressStatus | None:
    """Return the progress of a run that has ended: everything is done if it succeeded, else it stays where the run had
    come to."""
    shown = replace(progress_status(progress), **_AT_REST) if progress is not None else None
    if not succeeded:
        return shown
    shown = shown or ProgressStatus()
    if result is not None:
        shown = replace(
            shown, topics=result.topics, partitions=result.partitions, records=result.records, bytes=result.bytes
        )
    return replace(
        shown,
        phase="Finishing",
        partitions_done=shown.partitions,
        display=f"{shown.partitions}/{shown.partitions}",
        percent=100,
        lagging=(),
        **_AT_REST,
    )


def warnings_of(result: RunResult | None) -> tuple[str, ...]:
    """Return the warnings of a run, none if its report was lost. Those that a status has no room for are counted."""
    warnings = () if result is None else result.warnings
    lines, left = list[str](), _WARNINGS_MAX
    for warning in map(cut, warnings[:MAX_LISTED]):
        left -= len(warning)
        if left < 0:
            break
        lines.append(warning)
    if len(lines) == len(warnings):
        return tuple(lines)
    lines = lines[: MAX_LISTED - 1]
    return (*lines, f"and {len(warnings) - len(lines)} more")


def held_topics_status(result: RunResult) -> HeldTopicsStatus | None:
    """Return the topics that the run holds, None if it holds none."""
    return None if result.held_topics is None else HeldTopicsStatus(**dict(result.held_topics))


def dry_run_status(result: RunResult) -> DryRunStatus | None:
    """Return the findings of a dry run, with the first items of each list; None if the run was none."""
    if result.dry_run is None:
        return None
    found = result.dry_run.bounded()
    return DryRunStatus(
        end_time=time_of(result.end_time),
        refused=found.refused,
        refusals=tuple(PlannedRefusalStatus(reason=item.code, message=cut(item.message)) for item in found.refusals),
        topics=found.topics,
        topics_created=found.topics_created,
        partitions=found.partitions,
        records=found.records,
        bytes=found.bytes,
        counts=_counts(exact=found.exact),
        requests=found.requests,
        storage_requests=found.storage_requests,
        seconds=found.seconds,
        bytes_per_second=found.bytes_per_second,
        rate=cut(found.rate) or None,
        groups=found.groups,
        positions=found.positions,
        point=cut(found.point) or None,
        topic_list=tuple(_planned_topic(topic) for topic in found.topics_shown),
        group_list=tuple(
            PlannedGroupStatus(group=cut(item.group), positions=item.positions) for item in found.groups_shown
        ),
        position_list=tuple(_planned_position(item) for item in found.positions_shown),
        cluster_state=None if found.cluster_state is None else _planned_state(found.cluster_state),
        retention=None if found.retention is None else _planned_retention(found.retention),
        not_checked=tuple(cut(note) for note in found.not_checked),
    )


def _planned_position(item: PlannedPosition) -> PlannedPositionStatus:
    return PlannedPositionStatus(
        group=cut(item.group),
        topic=item.topic,
        partition=item.partition,
        source_offset=item.source_offset,
        record=item.record,
        time=None if item.timestamp is None else time_if_any(item.timestamp),
        target_offset=item.target_offset,
    )


def _planned_retention(found: PlannedRetention) -> PlannedRetentionStatus:
    return PlannedRetentionStatus(
        topics=found.topics,
        partitions=found.partitions,
        segments=found.segments,
        snapshots=found.snapshots,
        bytes=found.bytes,
        topics_unchosen=found.topics_unchosen,
        topic_list=tuple(
            PlannedRemovalStatus(
                topic=item.topic,
                why=cut(item.why),
                partitions=item.partitions,
                segments=item.segments,
                snapshots=item.snapshots,
                bytes=item.bytes,
            )
            for item in found.topics_shown
        ),
    )


def _planned_state(state: PlannedClusterState) -> PlannedStateStatus:
    return PlannedStateStatus(
        source_run=cut(state.source_run),
        acls=state.acls,
        acls_to_add=state.acls_to_add,
        acls_held_back=state.acls_held_back,
        quotas=state.quotas,
        quotas_to_add=state.quotas_to_add,
        quotas_kept=state.quotas_kept,
        users=state.users,
        users_to_create=state.users_to_create,
        acl_list=tuple(cut(acl) for acl in state.acls_shown),
        held_back_list=tuple(cut(acl) for acl in state.held_back_shown),
        quota_list=tuple(cut(quota) for quota in state.quotas_shown),
        user_list=tuple(cut(user) for user in state.users_shown),
    )


def _planned_topic(topic: PlannedTopic) -> PlannedTopicStatus:
    return PlannedTopicStatus(
        topic=topic.topic,
        source=topic.source,
        state="Exists" if topic.exists else "Replaced" if topic.replaced else "New",
        partitions=topic.partitions,
        replicas=None if topic.exists else topic.replicas,
        records=topic.records,
        bytes=topic.bytes,
        counts=_counts(exact=topic.exact),
        config=cut(", ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))) or None,
    )


def _counts(*, exact: bool) -> str:
    return "Exact" if exact else "AtMost"
