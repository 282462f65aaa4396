"""The fields that say which segments a run that succeeded removes, and when it deletes their objects."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.pattern_lists import READABLE, PatternText
from logkeep_engine.contract.values import ArchiveBytes, Duration, parse_duration, parse_quantity

AT_ONCE = "0s"
MAX_KEPT = 10_000
MAX_HOLDS = 100
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


def _grace(text: str) -> str:
    if text != AT_ONCE:
        parse_duration(text)
    return text


Kept = Annotated[int, Field(ge=1, le=MAX_KEPT)]


class KeepFor(Model):
    """Numbers of days, weeks and months: of each of the last that have one, the newest run that succeeded stays
    restorable."""

    daily: Kept | None = None
    weekly: Kept | None = None
    monthly: Kept | None = None


class RetainedTopics(StrEnum):
    """`Chosen`: nothing of topics is removed that `spec.topics` does not choose. `All`: the limits are those of the
    whole archive, whoever has archived a topic.
    """

    CHOSEN = "Chosen"
    ALL = "All"


class RetentionHold(Model):
    """Topics, by regular expressions for their whole names, and runs of which nothing may be removed."""

    topics: Annotated[tuple[PatternText, ...], Field(max_length=MAX_HOLDS), READABLE] = ()
    runs: Annotated[tuple[RunId, ...], Field(max_length=MAX_HOLDS)] = ()


class Retention(Model):
    """Limits of the archive: a run that succeeded removes at its end what lies beyond them. No limit removes nothing.

    `topics`: those that may lose something. `maxAge`: segments whose newest record is older. `maxBytes`: the oldest
    segments, until the rest is not larger. `keepRuns`, `keepFor` and `hold`: runs whose states stay restorable, and
    what may not be removed at all. `grace`: so long after the removal objects are deleted.
    """

    topics: RetainedTopics = RetainedTopics.CHOSEN
    max_age: Duration | None = None
    max_bytes: ArchiveBytes | None = None
    keep_runs: Kept | None = None
    keep_for: KeepFor = KeepFor()
    hold: RetentionHold = RetentionHold()
    grace: Annotated[str, AfterValidator(_grace)] = "1d"

    @property
    def max_age_seconds(self) -> int | None:
        return None if self.max_age is None else parse_duration(self.max_age)

    @property
    def max_bytes_int(self) -> int | None:
        return None if self.max_bytes is None else parse_quantity(self.max_bytes)

    @property
    def grace_seconds(self) -> int:
        return 0 if self.grace == AT_ONCE else parse_duration(self.grace)
