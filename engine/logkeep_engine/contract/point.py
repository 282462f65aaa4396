"""The point of a restore: which state of the archived topics it brings back, as written in `spec.point`."""

from __future__ import annotations

import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from logkeep_engine.contract.model import Model, map_of, meant, rules, schema
from logkeep_engine.contract.values import INT32

MOMENT = meant(
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,3})?(Z|[+-][0-9]{2}:[0-5][0-9])$",
    "a time with its zone such as 2026-11-17T14:05:00Z, to the millisecond",
)
_MOMENT = re.compile(MOMENT)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)


def parse_moment(text: str) -> int:
    """Return the ms since the epoch of a time such as `2026-11-17T14:05:00Z`. Raises ValueError."""
    if _MOMENT.match(text) is not None:
        try:
            found = (datetime.fromisoformat(text) - _EPOCH) // _MS
        except (ValueError, OverflowError):
            found = -1
        if found >= 0:
            return found
    raise ValueError(f"{text!r} is not a time with its zone such as 2026-11-17T14:05:00Z, to the millisecond")


def _moment(text: str) -> str:
    parse_moment(text)
    return text


def _as_text(value: object) -> object:
    """YAML makes a time of a text that looks like one, if it is not quoted."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return value
    return value.isoformat() if value.microsecond % 1000 else value.isoformat(timespec="milliseconds")


Moment = Annotated[str, BeforeValidator(_as_text), AfterValidator(_moment), schema(maxLength=32, pattern=MOMENT)]
RunName = Annotated[str, Field(min_length=1, max_length=128)]


class OffsetPoint(Model):
    """The first offset of a partition that is not restored. `topic` is the archived name."""

    topic: Annotated[str, Field(min_length=1, max_length=249)]
    """The archived name of the topic."""
    partition: Annotated[int, Field(ge=0), INT32]
    """The partition."""
    offset: Annotated[int, Field(ge=0)]
    """The first offset that is not restored."""


class TimeWindow(Model):
    """Records of a time from `from` on and before `to`."""

    model_config = rules(
        (
            "has(self.from) || has(self.to)",
            "from or to must be set",
        ),
    )

    from_: Annotated[Moment | None, Field(alias="from")] = None
    """A time as for asOf. Records of an earlier time are left out."""
    to: Moment | None = None
    """A time as for asOf. Records of this time or a later one are left out."""

    @model_validator(mode="after")
    def _holds_something(self) -> TimeWindow:
        if self.from_ is None and self.to is None:
            raise ValueError("from or to must be set")
        if self.from_ is not None and self.to is not None and parse_moment(self.from_) >= parse_moment(self.to):
            raise ValueError("from must be before to")
        return self


class PointSpec(Model):
    """`run`: the state at the end of that run. `asOf`: of each partition what lies before the first record of that time
    or later. `timestamp`: the records of an earlier time, wherever they lie. `offsets`: of these partitions what lies
    before an offset. `window`: the records of the times in it.
    """

    model_config = rules(
        (
            "[has(self.run), has(self.asOf), has(self.timestamp), has(self.offsets), has(self.window)].filter(given, "
            "given).size() == 1",
            "exactly one of run, asOf, timestamp, offsets and window must be set",
        ),
    )

    run: RunName | None = None
    """The state at the end of this run of the backup. The command logkeep inspect shows the runs."""
    as_of: Moment | None = None
    """A time such as 2026-11-17T14:05:00Z, to the millisecond. Each partition is restored up to its first record of
    that time or later, as Kafka finds offsets for times. What lies after that record is left out, whatever its
    time."""
    timestamp: Moment | None = None
    """A time as for asOf. Records of an earlier time are restored, wherever they lie, and no others. A record without a
    time is earlier than all. Every batch whose highest time is not earlier is taken apart."""
    offsets: (
        Annotated[tuple[OffsetPoint, ...], Field(min_length=1), map_of("topic", "partition"), schema(maxItems=10_000)]
        | None
    ) = None
    """Partitions, each with the first offset that is not restored. Partitions that are not named are restored as a
    whole."""
    window: TimeWindow | None = None
    """The records of the times from one time on and before another, wherever they lie."""

    @model_validator(mode="after")
    def _one(self) -> PointSpec:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("exactly one of run, asOf, timestamp, offsets and window must be set")
        places = Counter((item.topic, item.partition) for item in self.offsets or ())
        for (topic, partition), count in places.items():
            if count > 1:
                raise ValueError(f"offsets: topic {topic} partition {partition} appears twice")
        return self

    @property
    def before(self) -> int | None:
        """The time (ms) from which on records are left out by their own time."""
        text = self.timestamp if self.window is None else self.window.to
        return None if text is None else parse_moment(text)

    @property
    def since(self) -> int | None:
        """The time (ms) before which records are left out by their own time."""
        return None if self.window is None or self.window.from_ is None else parse_moment(self.window.from_)

    @property
    def time(self) -> int | None:
        """The time (ms) of the point, if it has one."""
        return self.before if self.as_of is None else parse_moment(self.as_of)
