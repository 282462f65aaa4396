"""The part of the driver's documents that the status shows. It is small whatever the number of partitions."""

from __future__ import annotations

import heapq
from typing import Any

from logkeep_engine.contract.facts.progress import PartitionProgress
from logkeep_engine.contract.facts.values import MAX_LISTED, time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import MAX_MOVING, Progress, RunResult
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Lagging, ProgressStatus
from logkeep_operator.api.status import HeldTopicsStatus

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
