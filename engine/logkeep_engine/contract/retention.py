"""The fields that say which segments a run that succeeded removes, and when it deletes their objects."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import Model, meant, schema, usual
from logkeep_engine.contract.pattern_lists import READABLE, PatternText
from logkeep_engine.contract.values import DURATION, INT32, ArchiveBytes, Duration, parse_duration, parse_quantity

AT_ONCE = "0s"
MAX_KEPT = 10_000
MAX_HOLDS = 100
GRACE = meant(f"^(0s|{DURATION})$", "0s, or a duration such as 12h or 30d, in s, m, h, d or w")
RUN_ID = meant(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", "the id of a run: at most 128 letters, digits, '.', '_' and '-'")
RunId = Annotated[str, Field(pattern=RUN_ID), schema(maxLength=128)]


def _grace(text: str) -> str:
    if text != AT_ONCE:
        parse_duration(text)
    return text


Kept = Annotated[int, Field(ge=1, le=MAX_KEPT), INT32]


class KeepFor(Model):
    """Numbers of days, weeks and months: of each of the last that have one, the newest run that succeeded stays
    restorable."""

    daily: Kept | None = None
    """Number of days for which the newest run of each is kept."""
    weekly: Kept | None = None
    """Number of weeks, from Monday, for which the newest run of each is kept."""
    monthly: Kept | None = None
    """Number of months for which the newest run of each is kept."""


class RetainedTopics(StrEnum):
    """`Chosen`: nothing of topics is removed that `spec.topics` does not choose. `All`: the limits apply to the whole
    archive, no matter which KafkaBackup archived a topic.
    """

    CHOSEN = "Chosen"
    ALL = "All"


class RetentionHold(Model):
    """Topics, by regular expressions for their whole names, and runs of which nothing may be removed."""

    topics: Annotated[tuple[PatternText, ...], Field(max_length=MAX_HOLDS), READABLE] = ()
    """Regular expressions, each for the whole name of a topic."""
    runs: Annotated[tuple[RunId, ...], Field(max_length=MAX_HOLDS)] = ()
    """Ids of runs. All that the archive held when such a run had ended stays."""


class Retention(Model):
    """Limits of the archive: a run that succeeded removes at its end what lies beyond them. No limit removes nothing.

    `topics`: those that may lose something. `maxAge`: segments whose newest record is older. `maxBytes`: the oldest
    segments, until the rest is not larger. `keepRuns`, `keepFor` and `hold`: runs whose states stay restorable, and
    what may not be removed at all. `grace`: this long after the removal objects are deleted.
    """

    topics: RetainedTopics = RetainedTopics.CHOSEN
    """Chosen: nothing is removed of topics that spec.topics does not choose, no matter which KafkaBackup archived them.
    A topic that has left the cluster is chosen by its name. All: the limits are those of the whole archive."""
    max_age: Duration | None = None
    """Removes segments whose newest record is older than this, such as 12h, 30d or 52w."""
    max_bytes: ArchiveBytes | None = None
    """If all segments of these topics together are larger than this, removes the oldest until they are not. No segment
    counts as younger than the run that archived it. At least 1Mi."""
    keep_runs: Kept | None = None
    """Keeps the archive as it was at the ends of the last N runs that succeeded: what the limits left then stays,
    and each of them can be restored (spec.point.run). The last run is always kept."""
    keep_for: KeepFor = usual(KeepFor)
    """Keeps in the same way the newest run that succeeded of each of the last N days, weeks and months that have
    one, by the end of the run in UTC."""
    hold: RetentionHold = usual(RetentionHold)
    """Topics and runs that are on hold: no limit and no erasure removes anything of them. Each run notes
    them in the archive when it begins. logkeep hold does it at once."""
    grace: Annotated[
        str,
        AfterValidator(_grace),
        schema(maxLength=10, pattern=GRACE),
    ] = "1d"
    """How long the objects of what was removed stay, such as 12h or 7d. They are deleted by the first run that succeeds
    after it, by the clock of the store, and not while a restore or a conversion reads the archive that may need them. A
    restore with spec.state writes nothing next to the archive, so only the grace protects it. 0s deletes at once."""

    @property
    def max_age_seconds(self) -> int | None:
        return None if self.max_age is None else parse_duration(self.max_age)

    @property
    def max_bytes_int(self) -> int | None:
        return None if self.max_bytes is None else parse_quantity(self.max_bytes)

    @property
    def grace_seconds(self) -> int:
        return 0 if self.grace == AT_ONCE else parse_duration(self.grace)
