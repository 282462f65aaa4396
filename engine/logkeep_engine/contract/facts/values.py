"""The values that facts have: numbers, times and texts within bounds.

A driver may be of another version, out of memory or not ours. What it reports goes into a status that the API server
must be able to store. So a text that could be anything is made whole and short here; a name, a number or a time that
cannot be is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from logkeep_engine.contract.model import Model, schema
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, RESTORE
from logkeep_engine.contract.visible import cut

T = TypeVar("T")
M = TypeVar("M", bound=Model)

MAX_LISTED = 20  # items of a list that a status shows
MAX_INTEGER = 2**63 - 1
MAX_TIME = 253402300799  # the end of the year 9999: later times have no name
MAX_TOPIC = 249  # Kafka's own limit
RFC_3339 = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as Kubernetes writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(seconds: float) -> datetime:
    """Return the time in UTC, of seconds since the epoch as drivers report them."""
    return datetime.fromtimestamp(seconds, UTC)


def time_of(seconds: float) -> str:
    """RFC 3339, of seconds since the epoch."""
    return timestamp(moment_of(seconds))


def time_if_any(ms: int) -> str | None:
    """Return RFC 3339, of ms since the epoch; None for a time that has no name there, as producers may write one."""
    return time_of(ms / 1000) if 0 <= ms <= MAX_TIME * 1000 else None


class Facts(Model):
    """Facts that a status shows as they are."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, without None and empty lists."""
        written: dict[str, Any] = _without_nothing(self.model_dump(by_alias=True))
        return written


def _without_nothing(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = ((key, _without_nothing(item)) for key, item in value.items())
        return {key: item for key, item in items if item is not None and item != []}
    return list(map(_without_nothing, value)) if isinstance(value, tuple) else value


def _whole(text: Any) -> Any:
    """Return a text without half characters: errors repeat what others have written."""
    return text.encode(errors="replace").decode() if isinstance(text, str) else text


def _sound(name: str) -> str:
    """Refuse half characters: the API server stores none."""
    name.encode()
    return name


def _moment(text: str) -> str:
    """Refuse a time that no calendar has: the API server would refuse the whole status for it."""
    datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    return text


class _Bounds(NamedTuple):
    """The most items of a list, and the most characters of a text."""

    items: int
    characters: int


def shortened(value: M, items: int, characters: int) -> M:
    """Return facts with the first items of each list and the beginning of each text. Names, numbers, words and times
    stay as they are."""
    return type(value).model_validate(value.model_dump(), context=_Bounds(items, characters))


def _beginning(text: str, info: ValidationInfo) -> str:
    return text if info.context is None else cut(text, info.context.characters)


def _first_if_bounded(items: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    return items if info.context is None else items[: info.context.items]


def _first(items: tuple[T, ...], info: ValidationInfo) -> tuple[T, ...]:
    return _first_if_bounded(items[:MAX_LISTED], info)


def _short(name: str) -> str:
    return name[:MAX_TOPIC]


Count = Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)]
Count32 = Annotated[Count, schema(format="int32")]
Whole = Annotated[int, Field(strict=True, ge=-MAX_INTEGER, le=MAX_INTEGER)]
Seconds = Annotated[float, Field(strict=True, ge=0, le=MAX_TIME, allow_inf_nan=False)]
Timestamp = Annotated[str, schema(format="date-time")]
FactTime = Annotated[Timestamp, Field(pattern=RFC_3339), AfterValidator(_moment)]
Listed = Annotated[tuple[T, ...], AfterValidator(_first), schema(maxItems=MAX_LISTED)]
# A command prints the whole list, `shortened` makes it one for a status.
Items = Annotated[tuple[T, ...], AfterValidator(_first_if_bounded), schema(maxItems=MAX_LISTED)]
Text = Annotated[str, BeforeValidator(_whole), AfterValidator(_beginning)]
Said = Annotated[Text, AfterValidator(cut)]
Name = Annotated[str, AfterValidator(_sound)]
Id = Annotated[Name, Field(max_length=256)]
Uri = Annotated[Name, Field(max_length=4096)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]{0,63}$")]
TopicName = Annotated[Name, Field(max_length=MAX_TOPIC)]
ShownName = Annotated[Name, AfterValidator(_short)]  # a pattern may be longer than the name of a topic


class Only:
    """Marks a field that only some kinds of resources have."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds


OnlyBackup, OnlyRestore = Only(BACKUP, KAFKA_ARCHIVE), Only(RESTORE)
