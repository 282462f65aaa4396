"""The condition RetentionRisk: does the next run come before the cluster deletes what it has to archive?

The last run has reported the deadline: from then on records that are not archived may be deleted. The next run must
have ended by then. It is expected at the next time of the schedule, or else after the longest pause between the last
successful runs. What is due and has not begun is overdue. Then only the time that is left counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from logkeep_engine.contract.facts.archive import TopicDeadline
from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.values import human_duration, parse_timestamp, so_many
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Resource, Status, StatusOutcome

CONDITION = "RetentionRisk"
NEAR = 5  # a deadline is near if less than this part of the time until it is left

_CAUSES = {
    "Time": "retention.ms keeps records for {}",
    "Size": "retention.bytes keeps records for {} at the rate at which records arrive",
    "Deleted": "archived records were deleted when they were {} old",
}


@dataclass(frozen=True)
class _Forecast:
    """The deadline, when it was found out, the start of the next run if one is expected, and how long runs take."""

    deadline: datetime
    checked: datetime
    start: datetime | None
    duration: timedelta

    @property
    def near_from(self) -> datetime:
        """The time from which on the deadline is near."""
        margin = max((self.deadline - self.checked) / NEAR, self.duration)
        return self.deadline - margin


def risk_condition(resource: Resource, status: Status, now: datetime) -> Condition | None:
    """Return the condition at the moment, with this status of the resource; None before a run has reported on the
    archive."""
    retention = status.retention
    if retention is None:
        if status.recovery is None:
            return None
        return _unknown("The last run could not find out when the cluster deletes records.")
    forecast = _forecast(resource, status)
    if forecast is None:
        if retention.unknown_topics:
            return _unknown(f"The brokers do not report the limits of {so_many(retention.unknown_topics, 'topic')}.")
        return Condition(
            type=CONDITION,
            status="False",
            reason="NoLimit",
            message="The cluster deletes nothing of the topics of this backup.",
        )
    reason = _reason(forecast, now)
    if reason == "KeptLongEnough":
        return Condition(type=CONDITION, status="False", reason=reason, message=cut(_safe(status, forecast, now)))
    return Condition(type=CONDITION, status="True", reason=reason, message=cut(_danger(status, forecast, reason)))


def risk_changes_after(resource: Resource, status: Status, now: datetime) -> float | None:
    """Seconds until the condition may change by time alone; None if it does not."""
    forecast = _forecast(resource, status)
    if forecast is None:
        return None
    moments = (forecast.start, forecast.near_from, forecast.deadline)
    ahead = [(moment - now).total_seconds() for moment in moments if moment is not None and moment > now]
    return min(ahead, default=None)


def risk_has_turned(resource: Resource, now: datetime) -> bool:
    """Return whether the condition is another one than the status has."""
    found, before = risk_condition(resource, resource.status, now), resource.status.condition(CONDITION)
    return found is not None and (before is None or (before.status, before.reason) != (found.status, found.reason))


def _forecast(resource: Resource, status: Status) -> _Forecast | None:
    retention = status.retention
    deadline = parse_timestamp(retention.deadline) if retention is not None else None
    if retention is None or deadline is None:
        return None
    checked = parse_timestamp(retention.check_time) or deadline
    start = None if resource.suspended else _expected_start(resource, status)
    return _Forecast(deadline, min(checked, deadline), start, _duration(status))


def _reason(forecast: _Forecast, now: datetime) -> str:
    if now >= forecast.deadline:
        return "DeadlinePassed"
    if forecast.start is not None and forecast.start > now:
        return "NextRunTooLate" if forecast.start + forecast.duration > forecast.deadline else "KeptLongEnough"
    return "DeadlineNear" if now >= forecast.near_from else "KeptLongEnough"


def _expected_start(resource: Resource, status: Status) -> datetime | None:
    """Return the start of the next run, which may have passed; None if unknown."""
    scheduled = parse_timestamp(status.next_schedule_time)
    if scheduled is not None:
        return scheduled + resource.max_jitter
    starts = sorted(
        start
        for entry in status.history
        if entry.outcome == StatusOutcome.SUCCEEDED and (start := parse_timestamp(entry.start_time)) is not None
    )
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    return starts[-1] + max(pauses) if pauses else None


def _duration(status: Status) -> timedelta:
    """Return the longest time that a successful run of the history took."""
    took = [entry.duration_seconds or 0 for entry in status.history if entry.outcome == StatusOutcome.SUCCEEDED]
    return timedelta(seconds=max(took, default=0))


def _safe(status: Status, forecast: _Forecast, now: datetime) -> str:
    what = "no next run is expected"
    if forecast.start is not None:
        word = "has been due since" if forecast.start <= now else "is expected at"
        what = f"the next run {word} {timestamp(forecast.start)}"
    return f"Records that are not archived are kept until {timestamp(forecast.deadline)}; {what}.{_more(status)}"


def _danger(status: Status, forecast: _Forecast, reason: str) -> str:
    found = status.retention
    first = found.topics[0] if found is not None and found.topics else None
    deadline = timestamp(forecast.deadline)
    if reason == "DeadlinePassed":
        what = f"Since {deadline} the cluster may have deleted records that are not archived"
    elif reason == "NextRunTooLate" and forecast.start is not None:
        what = (
            f"From {deadline} on the cluster may delete records that are not archived, and the next run is expected at "
            f"{timestamp(forecast.start)} and to take {human_duration(forecast.duration.total_seconds())}"
        )
    else:
        what = f"From {deadline} on the cluster may delete records that are not archived, and no run has come so far"
    return f"{what}{_first(first)}. Run more often, or keep records longer.{_more(status)}"


def _first(topic: TopicDeadline | None) -> str:
    if topic is None:
        return ""
    why = _CAUSES.get(topic.cause, "").format(human_duration(topic.window_seconds))
    return f". First topic {topic.topic} partition {topic.partition}" + (f": {why}" if why else "")


def _more(status: Status) -> str:
    unknown = status.retention.unknown_topics if status.retention is not None else 0
    return f" Not known of {so_many(unknown, 'topic')}." if unknown else ""


def _unknown(message: str) -> Condition:
    return Condition(type=CONDITION, status="Unknown", reason="NotKnown", message=message)
