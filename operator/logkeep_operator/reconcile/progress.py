"""The part of the driver's documents that the status shows. It is small whatever the number of partitions."""

from __future__ import annotations

import heapq
from dataclasses import replace
from datetime import UTC, datetime

from logkeep_engine.contract.run import PartitionProgress, Progress, RunResult
from logkeep_operator.api import ArchiveStatus, Lagging, LossEntry, ProgressStatus
from logkeep_operator.api.status import MAX_LISTED, timestamp
from logkeep_operator.reconcile.conditions import cut


def progress_status(progress: Progress) -> ProgressStatus:
    """The status of a run that goes on."""

    def left(partition: PartitionProgress) -> int:
        return partition.end - partition.at

    behind = heapq.nlargest(MAX_LISTED, (p for p in progress.partitions_shown if left(p) > 0), key=left)
    return ProgressStatus(
        phase=progress.phase,
        update_time=timestamp(datetime.fromtimestamp(progress.update_time, UTC)),
        topics=progress.topics,
        partitions=progress.partitions,
        partitions_done=progress.partitions_done,
        display=f"{progress.partitions_done}/{progress.partitions}",
        records=progress.records,
        bytes=progress.bytes,
        percent=progress.percent,
        lagging=tuple(Lagging(p.topic, p.partition, p.at - p.start, p.end - p.start) for p in behind),
    )


def final_progress(progress: Progress | None, result: RunResult | None, succeeded: bool) -> ProgressStatus | None:
    """The progress of a run that has ended: everything is done if it succeeded, else it stays where the run had come
    to."""
    shown = progress_status(progress) if progress is not None else None
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
    )


def archive_status(result: RunResult, uri: str) -> ArchiveStatus | None:
    """The archive as the run has left it, None if the run has not told."""
    if not result.archive_id:
        return None
    return ArchiveStatus(
        id=result.archive_id,
        uri=uri,
        cluster_id=result.cluster_id or None,
        epoch=result.epoch,
        commit=result.commit if result.commit >= 0 else None,
    )


def loss_entries(result: RunResult) -> tuple[LossEntry, ...]:
    """The first entries of the loss that the result tells."""
    return tuple(LossEntry(f.topic, f.partition, f.start, f.end, cut(f.reason)) for f in result.loss[:MAX_LISTED])
