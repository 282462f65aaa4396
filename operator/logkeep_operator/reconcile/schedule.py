"""The schedule of a KafkaBackup, or of a drill: for which time a run is due, and when the operator must look again.

Two times in the status are all that is remembered. `nextScheduleTime` is the first time for which no run was started
yet. Once it has passed, one run makes up for it and for all times that have passed since, however long the operator was
down. `lastScheduleTime` is the time for which the last such run was started; no run is started for it again when the
clock goes back. Both are times of the cron expression. A resource is late by its jitter, which is always the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from logkeep_engine.contract.cron import CronTimes, parse_zone
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, parse_restore
from logkeep_engine.contract.schedule import ScheduleSpec
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.contract.values import parse_timestamp
from logkeep_operator.api import Phase, Resource, Status

# A last time that is further ahead comes from a clock that was wrong. One that is less far ahead was handled just
# before the clock was set back a little.
CLOCK_SET_BACK = timedelta(hours=1)


@dataclass(frozen=True)
class ScheduledTimes:
    """The times that matter now. A run is to be started for `due`. `missed` is a time that has passed by more than
    startingDeadlineSeconds. `next` is the first time for which no run was started yet, and `following` is the next once
    a run was started for `due`."""

    due: datetime | None = None
    missed: datetime | None = None
    next: datetime | None = None
    following: datetime | None = None

    @property
    def after_start(self) -> datetime | None:
        """The next time if a run is started now, for whatever reason."""
        return self.following if self.due is not None else self.next


def scheduled_times(resource: Resource, spec: KafkaBackupSpec | KafkaRestoreSpec, now: datetime) -> ScheduledTimes:
    """Return the times of a resource at the moment. While a run lasts or the resource is suspended, none is due and
    none is missed."""
    schedule, status = schedule_of(spec), resource.status
    if schedule is None:
        return ScheduledTimes()
    times = CronTimes.parse(schedule.cron, parse_zone(schedule.time_zone))
    at = now - _own_jitter(resource.uid, schedule)
    last = _last(status, at)
    following = times.after(max(at, last) if last is not None else at)
    first = parse_timestamp(status.next_schedule_time)
    newest = times.latest(first, at) if first is not None and first <= at else None
    if newest is None or (last is not None and newest <= last):
        return ScheduledTimes(next=following)
    if spec.suspend or goes_on(status):
        return ScheduledTimes(next=first)
    deadline = schedule.starting_deadline_seconds
    if deadline is not None and at - newest > timedelta(seconds=deadline):
        return ScheduledTimes(missed=newest, next=following)
    return ScheduledTimes(due=newest, next=first, following=following)


def wake_after(resource: Resource, now: datetime, status: Status | None = None) -> float | None:
    """Seconds until a run is due, with this status or the resource's own. None if the schedule asks for nothing, or if
    something else comes first: the end of the run that is still running, or of the suspension."""
    status = status if status is not None else resource.status
    first = parse_timestamp(status.next_schedule_time)
    if first is None or status.phase is Phase.INVALID:
        return None
    spec: KafkaBackupSpec | KafkaRestoreSpec
    try:
        spec = parse_backup(resource.spec) if resource.key.is_backup else parse_restore(resource.spec)
    except SpecInvalid:
        return None
    schedule = schedule_of(spec)
    if schedule is None or spec.suspend or goes_on(status):
        return None
    return max((first + _own_jitter(resource.uid, schedule) - now).total_seconds(), 0.0)


def schedule_of(spec: KafkaBackupSpec | KafkaRestoreSpec) -> ScheduleSpec | None:
    """Return the schedule of a backup, or that of a drill."""
    if isinstance(spec, KafkaBackupSpec):
        return spec.schedule
    return spec.drill.schedule if spec.drill is not None else None


def with_times(status: Status, scheduled: str | None, following: datetime | None) -> Status:
    """Return the status with the time for which the last run was started, and with the first that none was started
    for."""
    next_time = timestamp(following) if following is not None else None
    return replace(status, last_schedule_time=scheduled, next_schedule_time=next_time)


def _last(status: Status, at: datetime) -> datetime | None:
    last = parse_timestamp(status.last_schedule_time)
    return last if last is not None and last <= at + CLOCK_SET_BACK else None


def goes_on(status: Status) -> bool:
    """Return whether the run of the status has not ended."""
    return status.run is not None and status.run.outcome is None


def _own_jitter(uid: str, schedule: ScheduleSpec) -> timedelta:
    """Return the part of jitterSeconds that falls to the resource of this uid."""
    drawn = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8], "big")
    return timedelta(seconds=drawn % max(schedule.jitter_seconds, 1))
