"""The part of the status about the archive, as the last run has left it."""

from __future__ import annotations

from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_operator.api import ArchiveStatus, Status, StatusOutcome


def with_archive(status: Status, result: RunResult, uri: str) -> Status:
    """Return the status with the archive as the run has left it. What the run has not reported stays as it was, but a
    run that succeeded ends what it had to find out and has not: the deadlines, if it could not ask the brokers, and the
    retention, if it had none. After a run that failed both stand, since it has not changed them."""
    if result.archive_id:
        before = status.archive if status.archive is not None else ArchiveStatus()
        status = replace(status, archive=_identified(before, result, uri))
    found = result.archive
    if found is None:
        return status
    before = status.archive if status.archive is not None else ArchiveStatus()
    failed = result.outcome == StatusOutcome.FAILED
    archive = replace(
        before,
        **dict(found.size),
        snapshots=found.snapshots,
        generations=found.generations,
        retention=found.retained or (before.retention if failed else None),
    )
    deadlines = found.retention or (status.retention if failed else None)
    return replace(status, archive=archive, recovery=found.recovery, retention=deadlines)


def goes_back(before: ArchiveStatus | None, result: RunResult, uri: str) -> bool:
    """Return whether the result shows an archive that lacks the newest commit that is known of it. A run that begins is
    refused then; if one was not, its result changes nothing of what is known. A consent of the user does."""
    if before is None or before.commit is None or not before.is_at(uri) or result.taken_over is not None:
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
        write_time=time_of(result.end_time) if wrote else before.write_time,
        taken_over=result.taken_over or before.taken_over,
    )
