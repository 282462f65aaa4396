"""Runs that a resource's children show and its status does not know.

The operator makes a Job before the status names its run. Before the status is written, the resource may be changed, so
that the API refuses the status; another operator may write first; the status may be deleted. The Job runs on all
the same, and its end and its loss must be reported. Its children say what the status would have said of the run
(`RunOrigin`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from logkeep_engine.contract.facts.values import timestamp
from logkeep_operator.api import HistoryEntry, RunStatus, Status
from logkeep_operator.api.status import MAX_HISTORY
from logkeep_operator.reconcile.observed import JobState, Observed, RunOrigin

_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class FoundRun:
    """A run known from its Job. ConfigMaps alone prove none: a user who may create them could invent runs."""

    id: str
    origin: RunOrigin
    job: JobState
    created: datetime | None

    @property
    def live(self) -> bool:
        """Whether the run's Job may still have a driver."""
        return not self.job.finished

    def status(self, now: datetime) -> RunStatus:
        """Return the run as the status would have named it. A run without a key belongs to no spec."""
        return RunStatus(
            id=self.id,
            key=self.origin.key or self.id,
            job=self.job.name,
            requested_by=self.origin.requested_by,
            start_time=timestamp(self.created or now),
        )


def unknown_runs(observed: Observed) -> list[FoundRun]:
    """Return the runs that the status does not know, the newest first. A run that has left the history long ago is not
    among them, even if its Job is still there: the run before it has left the history, too."""
    status = observed.resource.status
    known = {entry.run_id for entry in status.history} | ({status.run.id} if status.run is not None else set())
    followed = known | ({""} if len(status.history) < MAX_HISTORY else set())
    found = []
    for run_id in observed.jobs.keys() - known - {""}:
        job = observed.jobs[run_id]
        run = FoundRun(run_id, job.origin, job, job.created)
        if run.live or status.run is None or job.origin.previous in followed:
            found.append(run)
    return sorted(found, key=lambda run: (run.created or _LONG_AGO, run.id), reverse=True)


def to_be_adopted(observed: Observed, found: FoundRun) -> bool:
    """Return whether the run becomes the run of the status: no other one is running, and this one is not an older than
    the last."""
    last = observed.resource.status.run
    if last is None:
        return True
    return last.outcome is not None and (found.live or found.origin.previous == last.id)


def with_entry(status: Status, entry: HistoryEntry) -> tuple[HistoryEntry, ...]:
    """Return the history with the entry at the place that its start gives, the newest first. The entry is always in the
    answer."""
    later = [old for old in status.history if (old.start_time or "") > (entry.start_time or "")][: MAX_HISTORY - 1]
    return (*later, entry, *(old for old in status.history if old not in later))[:MAX_HISTORY]
