"""When runs of a resource start by themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import CronExpression, TimeZoneName

# A CronJob looks every ten seconds, and Kubernetes warns of shorter deadlines. A year is longer than any outage.
MIN_STARTING_DEADLINE_SECONDS = 10
MAX_STARTING_DEADLINE_SECONDS = 366 * 86400
MAX_JITTER_SECONDS = 3600


class ScheduleSpec(Model):
    """A run starts at each time of `cron` in `timeZone`, later by up to `jitterSeconds`. Without
    `startingDeadlineSeconds` a missed run is caught up however late.
    """

    cron: CronExpression
    """Times as in a CronJob: minute, hour, day of month, month, day of week, such as 0 2 * * *. Also @hourly, @daily,
    @weekly, @monthly and @yearly."""
    time_zone: TimeZoneName = "UTC"
    """Time zone of the cron expression, by its name in the IANA database, such as Europe/Berlin. A night in which the
    clock changes has one run at a fixed hour, too."""
    starting_deadline_seconds: (
        Annotated[int, Field(ge=MIN_STARTING_DEADLINE_SECONDS, le=MAX_STARTING_DEADLINE_SECONDS)] | None
    ) = None
    """How late a run, or a drill, may start that was missed because the operator was down, another one was still
    running, or the resource was suspended. Later it is left out. By default it is caught up however late."""
    jitter_seconds: Annotated[int, Field(ge=0, le=MAX_JITTER_SECONDS)] = 60
    """Each run, or drill, starts less than this many seconds after its time, always the same number of seconds, so that
    many resources of one time do not start at once."""
