"""The part of the status about the archive, as the last run has told of it: how large it is, what a restore brings
back, what it keeps and removes, and when the cluster may delete records that are not archived."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from logkeep_engine.contract.archive import (
    ArchiveSize,
    Deadlines,
    Locked,
    Recoverable,
    Retained,
    TopicGenerations,
    TopicSnapshots,
)
from logkeep_engine.contract.facts.values import MAX_LISTED, MAX_TOPIC, time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.values import human_bytes
from logkeep_operator.api import ArchiveStatus, Status, StatusOutcome
from logkeep_operator.api.archive_status import (
    BehindStatus,
    DeadlineStatus,
    GenerationStatus,
    LockedStatus,
    PointStatus,
    RecoveryStatus,
    RetainedStatus,
    RetentionStatus,
    SnapshotStatus,
)

T = TypeVar("T")


def with_archive(status: Status, result: RunResult, uri: str) -> Status:
    """The status with the archive as the run has left it. What the run has not told stays as it was, but a run that
    succeeded ends what it had to find out and has not: the deadlines, if it could not ask the brokers, and the
    retention, if it had none. After a run that failed both stand, since it has not changed them."""
    if result.archive_id:
        before = status.archive if status.archive is not None else ArchiveStatus()
        status = replace(status, archive=_identified(before, result, uri))
    if result.archive is None:
        return status
    told, retained = result.archive.retention, result.archive.retained
    before = status.archive if status.archive is not None else ArchiveStatus()
    failed = result.outcome == StatusOutcome.FAILED
    kept, retained_before = (status.retention, before.retention) if failed else (None, None)
    return replace(
        status,
        archive=replace(
            _sized(before, result.archive.size),
            snapshots=_snapshots(result.archive.snapshots),
            generations=_generations(result.archive.generations),
            retention=_retained(result.run_id, retained) if retained is not None else retained_before,
        ),
        recovery=_recovery(result.archive.recovery),
        retention=_retention(told) if told is not None else kept,
    )


def goes_back(before: ArchiveStatus | None, result: RunResult, uri: str) -> bool:
    """Whether the result tells of an archive that lacks the newest commit that is known of it. A run that begins is
    refused then; if one was not, its result changes nothing of what is known. A consent of the user does."""
    if before is None or before.commit is None or before.uri != uri or result.taken_over is not None:
        return False
    return result.commit < before.commit or result.archive_id != before.id


def _identified(before: ArchiveStatus, result: RunResult, uri: str) -> ArchiveStatus:
    if goes_back(before, result, uri):
        return before
    wrote = result.commit >= 0
    return replace(
        before,
        id=result.archive_id,
        uri=uri,
        cluster_id=result.cluster_id or None,
        epoch=result.epoch,
        commit=result.commit if wrote else None,
        anchor=result.anchor or before.anchor_at(uri),
        write_time=_time(result.end_time) if wrote else before.write_time,
        taken_over=result.taken_over or before.taken_over,
    )


def _sized(archive: ArchiveStatus, size: ArchiveSize) -> ArchiveStatus:
    return replace(
        archive,
        topics=size.topics,
        segments=size.segments,
        objects=size.objects,
        records=size.records,
        bytes=size.bytes,
        stored_bytes=size.stored_bytes,
        size=human_bytes(size.stored_bytes),
        bytes_per_day=size.bytes_per_day,
        growth=f"{human_bytes(size.bytes_per_day)}/day" if size.bytes_per_day is not None else None,
    )


def _snapshots(told: Iterable[TopicSnapshots]) -> tuple[SnapshotStatus, ...]:
    return tuple(
        SnapshotStatus(
            topic=item.topic[:MAX_TOPIC],
            partitions=item.partitions,
            records=item.records,
            bytes=item.bytes,
            exact_after=_time(item.exact_after),
            exact_nowhere=item.exact_nowhere or None,
        )
        for item in _listed(told)
    )


def _generations(told: Iterable[TopicGenerations]) -> tuple[GenerationStatus, ...]:
    return tuple(
        GenerationStatus(
            topic=item.topic[:MAX_TOPIC],
            partitions=item.partitions,
            number=item.number,
            reading=item.reading,
            began=_time(item.began),
        )
        for item in _listed(told)
    )


def _retained(run_id: str, told: Retained) -> RetainedStatus:
    return RetainedStatus(
        run_id=run_id,
        removed_segments=told.removed_segments,
        removed_snapshots=told.removed_snapshots,
        removed_bytes=told.removed_bytes,
        deleted_segments=told.deleted_segments,
        deleted_bytes=told.deleted_bytes,
        waiting_segments=told.waiting_segments,
        waiting_bytes=told.waiting_bytes,
        holds=told.holds,
        locked=_locked(told.locked) if told.locked is not None else None,
        points=told.points,
        kept=tuple(
            PointStatus(run_id=item.run_id, end_time=_time(item.end_time), rules=item.rules)
            for item in _listed(told.kept)
        ),
    )


def _locked(told: Locked) -> LockedStatus:
    return LockedStatus(objects=told.objects, until=_time(told.until), legal_holds=told.legal_holds, first=told.first)


def _recovery(told: Recoverable) -> RecoveryStatus:
    return RecoveryStatus(
        first_time=_time(told.first_time),
        last_time=_time(told.last_time),
        topics=told.topics,
        topics_behind=told.topics_behind,
        behind=tuple(
            BehindStatus(
                topic=topic.topic[:MAX_TOPIC],
                first_time=_time(topic.first_time),
                last_time=_time(topic.last_time),
                offsets=topic.offsets,
            )
            for topic in _listed(told.behind)
        ),
    )


def _retention(told: Deadlines) -> RetentionStatus:
    return RetentionStatus(
        check_time=_time(told.check_time),
        deadline=_time(told.deadline),
        unknown_topics=told.unknown_topics,
        topics=tuple(
            DeadlineStatus(
                topic=topic.topic[:MAX_TOPIC],
                partition=topic.partition,
                deadline=_time(topic.deadline),
                oldest_time=_time(topic.oldest_time),
                window_seconds=topic.window_seconds,
                cause=topic.cause,
            )
            for topic in _listed(told.topics)
        ),
    )


def _listed(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(items)[:MAX_LISTED]


def _time(seconds: float | None) -> str | None:
    return time_of(seconds) if seconds is not None else None
