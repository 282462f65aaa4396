"""The part of a KafkaRestore that makes a drill of it: what it restores is verified, and deleted again."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import Model, meant, rule, schema
from logkeep_engine.contract.schedule import ScheduleSpec

DRILL_PREFIX = "logkeep-drill-"
MAX_PREFIX = 100


def parse_share(text: str) -> float:
    """Return the share that a percentage says, above 0 and at most 1. Raises ValueError."""
    share = float(text.removesuffix("%")) / 100
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} must be above 0% and at most 100%")
    return share


def _share(text: str) -> str:
    parse_share(text)
    return text


SHARE = meant(r"^[0-9]{1,3}(\.[0-9]{1,2})?%$", "a percentage such as 5% or 0.5%")
Share = Annotated[
    str,
    Field(pattern=SHARE),
    AfterValidator(_share),
    schema(maxLength=8),
    rule(
        "double(self.substring(0, self.size() - 1)) > 0.0 && double(self.substring(0, self.size() - 1)) <= 100.0",
        "share must be above 0% and at most 100%",
    ),
]


PREFIX = meant(rf"^[a-zA-Z0-9._-]{{1,{MAX_PREFIX}}}$", f"1 to {MAX_PREFIX} of letters, digits, '.', '_' and '-'")


class DrillSpec(Model):
    """`prefix`: how the names of the topics begin that a drill creates. After it each attempt has a random part of its
    own. Without `schedule` there is one drill. `share`: how many of the partitions a drill takes, each time others."""

    prefix: Annotated[str, Field(pattern=PREFIX), schema(maxLength=MAX_PREFIX)] = DRILL_PREFIX
    """How the names of the drill's topics begin. A random part follows, and the archived name."""
    schedule: ScheduleSpec | None = None
    """When drills start by themselves, in the words of a CronJob; the first starts at once. Two drills of a resource
    never continue at the same time. Drills that were missed are caught up by one."""
    share: Share | None = None
    """How many of the partitions a drill takes, such as 5%. Each drill takes others, until all were drilled. By default
    a drill takes all."""

    @property
    def part(self) -> float | None:
        """The share of the partitions, None for all."""
        return None if self.share is None else parse_share(self.share)
