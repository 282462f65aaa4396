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
    time_zone: TimeZoneName = "UTC"
    starting_deadline_seconds: (
        Annotated[int, Field(ge=MIN_STARTING_DEADLINE_SECONDS, le=MAX_STARTING_DEADLINE_SECONDS)] | None
    ) = None
    jitter_seconds: Annotated[int, Field(ge=0, le=MAX_JITTER_SECONDS)] = 60
