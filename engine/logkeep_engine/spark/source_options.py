"""The options of `spark.read.format("logkeep")`, and the filters of the query that Spark pushes down.

Pure. An option that does not exist is refused by its name, a wrong value with the name of its option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import urlsplit

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.parsing import parse_s3_options
from logkeep_engine.contract.patterns import Pattern, PatternInvalid
from logkeep_engine.contract.s3_options import S3Options
from logkeep_engine.contract.storage import SCHEMES, SCHEMES_WITH, where_with
from logkeep_engine.contract.values import parse_quantity
from logkeep_engine.errors import SpecError
from logkeep_engine.log.batch import MAX_OFFSET

COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "compression": "string",
    "producerId": "bigint",
    "transactional": "boolean",
}
"""Names and types of the columns, as `simpleString` has them. The columns up to `headers` are those of Spark's Kafka
source."""

DEFAULT_PARTITION_BYTES = 128 << 20

_OPTIONS = (
    "path",
    "endpoint",
    "region",
    "s3",
    "topics",
    "topicPattern",
    "topicId",
    "partitions",
    "startingOffset",
    "endingOffset",
    "startingTimestamp",
    "endingTimestamp",
    "format",
    "columns",
    "maxPartitionBytes",
    "minPartitions",
)
_SPELLING = {name.lower(): name for name in _OPTIONS}
_SECRETS = re.compile(r"secret|password|token|access.?key|credential", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read. Offsets are [starting, ending), None: no bound; times are ms since the epoch.

    `topics` and `topic_pattern` are not both given; with neither, all topics are read. `partitions` are ranges [first,
    end), None: all. `columns` are in the order of the data frame.
    """

    uri: str
    endpoint: str | None = None
    region: str | None = None
    s3: S3Options | None = None
    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = None
    topic_id: str | None = None
    partitions: tuple[Range, ...] | None = None
    starting_offset: int | None = None
    ending_offset: int | None = None
    starting_timestamp: int | None = None
    ending_timestamp: int | None = None
    format: FormatName | None = None
    columns: tuple[str, ...] = tuple(COLUMNS)
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    min_partitions: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Self:
        """Read the options, with names as users write them, in any case. Raises SpecError, which names the option."""
        given = _known(options)
        uri = given.get("path", "")
        if not uri:
            raise SpecError("Option path: the archive's URI is missing.", hint='Write .load("s3://bucket/prefix").')
        if "topics" in given and "topicPattern" in given:
            raise SpecError("Options topics and topicPattern: only one of them can be given.")
        parsed = cls(
            uri=uri,
            endpoint=_of_store("endpoint", given),
            region=_of_store("region", given),
            s3=_s3_options(given),
            topics=_names("topics", given),
            topic_pattern=_pattern(given),
            topic_id=_filled("topicId", given),
            partitions=_ranges(given),
            starting_offset=_number("startingOffset", given),
            ending_offset=_number("endingOffset", given),
            starting_timestamp=_time("startingTimestamp", given),
            ending_timestamp=_time("endingTimestamp", given),
            format=_format(given),
            columns=_columns(given),
            max_partition_bytes=_size(given),
            min_partitions=_count(given),
        )
        _check_order("Offset", parsed.starting_offset, parsed.ending_offset)
        _check_order("Timestamp", parsed.starting_timestamp, parsed.ending_timestamp)
        return parsed

    def with_schema(self, names: Sequence[str]) -> Self:
        """Return the options for a data frame with these columns, which a schema of the user names."""
        return replace(self, columns=check_columns("schema", names))


def check_columns(what: str, names: Sequence[str]) -> tuple[str, ...]:
    """Raises SpecError, which begins with `what`, for a column that does not exist, or exists twice."""
    for name in names:
        if name not in COLUMNS:
            raise SpecError(f"{what}: there is no column {name!r}.", hint=f"There are {', '.join(COLUMNS)}.")
    if len(set(names)) < len(names):
        raise SpecError(f"{what}: a column is named twice.")
    if not names:
        raise SpecError(f"{what}: no column is named.", hint=f"There are {', '.join(COLUMNS)}.")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class WantedRecords:
    """The records that the filters of a query leave. `scalars` must hold for topic and partition. Offsets are in
    [start, end). Times (ms) are from `since` to `until`: here the reader leaves out only what it cheaply can."""

    scalars: tuple[Filter, ...] = ()
    start: int = 0
    end: int = MAX_OFFSET
    since: int | None = None
    until: int | None = None

    def topic(self, name: str) -> bool:
        return self._holds("topic", name)

    def partition(self, number: int) -> bool:
        return self._holds("partition", number)

    def _holds(self, column: str, value: Any) -> bool:
        return all(_matches(item, value) for item in self.scalars if _column(item) == column)

    def narrowed(self, item: Filter) -> tuple[WantedRecords, bool]:
        """Add one more filter. False: Spark must still apply the filter itself, since it is not taken, or not
        wholly."""
        match _column(item):
            case "topic" if _is_plain(item, str):
                return replace(self, scalars=(*self.scalars, item)), True
            case "partition" if _is_plain(item, int):
                return replace(self, scalars=(*self.scalars, item)), True
            case "offset" if isinstance(item, IsNotNull):
                return self, True
            case "offset" if _is_plain(item, int):
                return self._with_offsets(item)
            case "timestamp":
                return self._with_times(item), False
        return self, False

    def _with_offsets(self, item: Filter) -> tuple[WantedRecords, bool]:
        match item:
            case EqualTo(_, value) | EqualNullSafe(_, value):
                low, high = value, value + 1
            case GreaterThan(_, value):
                low, high = value + 1, MAX_OFFSET
            case GreaterThanOrEqual(_, value):
                low, high = value, MAX_OFFSET
            case LessThan(_, value):
                low, high = 0, value
            case LessThanOrEqual(_, value):
                low, high = 0, value + 1
            case In(_, values):
                low, high = min(values), max(values) + 1
                return self._between(low, high), len(set(values)) == high - low
            case _:
                return self, False
        return self._between(low, high), True

    def _between(self, low: int, high: int) -> WantedRecords:
        return replace(self, start=max(self.start, low), end=min(self.end, high))

    def _with_times(self, item: Filter) -> WantedRecords:
        low = high = None
        match item:
            case EqualTo(_, value) | EqualNullSafe(_, value):
                low = high = _milliseconds(value)
            case GreaterThan(_, value) | GreaterThanOrEqual(_, value):
                low = _milliseconds(value)
            case LessThan(_, value) | LessThanOrEqual(_, value):
                high = _milliseconds(value)
            case In(_, values):
                times = [_milliseconds(value) for value in values]
                known = [time for time in times if time is not None]
                if known and len(known) == len(times):
                    low, high = min(known), max(known)
        return replace(self, since=_tighter(max, self.since, low), until=_tighter(min, self.until, high))


def _tighter(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return choose(one, other) if one is not None and other is not None else other if one is None else one


def _column(item: Filter) -> str:
    """Return the column of the filter, "" if it is not a filter on one column."""
    if isinstance(item, Not):
        return _column(item.child)
    path: tuple[str, ...] = getattr(item, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _is_plain(item: Filter, kind: type) -> bool:
    """Return whether all literals of the filter are of the column's type and none is null: then Python compares as SQL
    does."""
    if isinstance(item, Not):
        return _is_plain(item.child, kind)
    if isinstance(item, IsNotNull):
        return True
    if isinstance(item, In):
        return bool(item.value) and all(type(value) is kind for value in item.value)
    return type(getattr(item, "value", None)) is kind


def _matches(item: Filter, found: Any) -> bool:
    match item:
        case Not(child):
            return not _matches(child, found)
        case IsNotNull():
            return True
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return bool(found == value)
        case GreaterThan(_, value):
            return bool(found > value)
        case GreaterThanOrEqual(_, value):
            return bool(found >= value)
        case LessThan(_, value):
            return bool(found < value)
        case LessThanOrEqual(_, value):
            return bool(found <= value)
        case In(_, values):
            return found in values
        case StringStartsWith(_, value):
            return bool(found.startswith(value))
        case StringEndsWith(_, value):
            return bool(found.endswith(value))
        case StringContains(_, value):
            return value in found
    raise TypeError(f"filter {item!r}")


def _milliseconds(value: Any) -> int | None:
    """Return the time in milliseconds, rounded down; None for what is not a time."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names in `_OPTIONS`."""
    given = {}
    for name, value in options.items():
        known = _SPELLING.get(name.lower())
        if known is None:
            hint = f"There are {', '.join(_OPTIONS)}."
            if _SECRETS.search(name):
                hint = "Credentials come from the environment of the driver and the executors, never from options."
            raise SpecError(f"Option {name}: there is no such option.", hint=hint)
        given[known] = value
    return given


def _filled(option: str, given: Mapping[str, str]) -> str | None:
    text = given.get(option)
    if text is not None and not text.strip():
        raise SpecError(f"Option {option}: it is empty.", hint="Leave it out, or give it a value.")
    return text


def _of_store(option: str, given: Mapping[str, str]) -> str | None:
    text = _filled(option, given)
    scheme = urlsplit(given["path"]).scheme
    if text is not None and scheme in SCHEMES and scheme not in SCHEMES_WITH[option]:
        raise SpecError(  # the path may hold a password
            f"Option {option}: it has no effect on {where_with(option, [scheme])}.",
            hint="Leave it out, or name an archive in an object store: s3://bucket/prefix.",
        )
    return text


def _s3_options(given: Mapping[str, str]) -> S3Options | None:
    text = _of_store("s3", given)
    try:
        return None if text is None else parse_s3_options(text)
    except ValueError as error:
        raise SpecError(f"Option s3: {error}.", hint="Write NAME=VALUE,NAME=VALUE, as requesterPays=true.") from error


def _names(option: str, given: Mapping[str, str]) -> tuple[str, ...] | None:
    if option not in given:
        return None
    names = tuple(part.strip() for part in given[option].split(","))
    if not all(names):
        raise SpecError(f"Option {option}: {given[option]!r} has an empty name.", hint="Write names with commas.")
    return names


def _pattern(given: Mapping[str, str]) -> str | None:
    pattern = given.get("topicPattern")
    if pattern is not None:
        try:
            Pattern(pattern)
        except PatternInvalid as error:
            raise SpecError(f"Option topicPattern: {pattern!r} is not a valid regular expression: {error}.") from error
    return pattern


def _ranges(given: Mapping[str, str]) -> tuple[Range, ...] | None:
    if "partitions" not in given:
        return None
    ranges = []
    for part in given["partitions"].split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise SpecError(f"Option partitions: {part.strip()!r} is not a partition.", hint='Write them as "0,4-7".')
        ranges.append((first, last + 1))
    return tuple(ranges)


def _number(option: str, given: Mapping[str, str]) -> int | None:
    if option not in given:
        return None
    text = given[option]
    if not re.fullmatch(r"\d{1,18}", text):
        raise SpecError(f"Option {option}: {text!r} is not an offset.", hint="Write a number of 0 or more.")
    return int(text)


def _time(option: str, given: Mapping[str, str]) -> int | None:
    """Return the time of an option: as in Spark's Kafka source, ms since the epoch, or else ISO 8601 with a time
    zone."""
    if option not in given:
        return None
    text = given[option]
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    try:
        moment = _milliseconds(datetime.fromisoformat(text))
    except ValueError:
        moment = None
    if moment is None:
        hint = "Write ms since the epoch, or a time with its zone: 2013-07-04T00:00:00Z."
        raise SpecError(f"Option {option}: {text!r} is not a time.", hint=hint)
    return moment


def _format(given: Mapping[str, str]) -> FormatName | None:
    if "format" not in given:
        return None
    for name in FormatName:
        if name.lower() == given["format"].lower():
            return name
    raise SpecError(f"Option format: {given['format']!r} is not a format.", hint=f"There are {', '.join(FormatName)}.")


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    names = _names("columns", given)
    return tuple(COLUMNS) if names is None else check_columns("Option columns", names)


def _size(given: Mapping[str, str]) -> int:
    text = given.get("maxPartitionBytes")
    if text is None:
        return DEFAULT_PARTITION_BYTES
    try:
        size = parse_quantity(text)
    except ValueError:
        size = 0
    if size < 1:
        raise SpecError(f"Option maxPartitionBytes: {text!r} is not a size.", hint='Write bytes, or "64Mi".')
    return size


def _count(given: Mapping[str, str]) -> int | None:
    text = given.get("minPartitions")
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,9}", text) or int(text) < 1:
        raise SpecError(
            f"Option minPartitions: {text!r} is not a number of partitions.", hint="Write a number of 1 or more."
        )
    return int(text)


def _check_order(what: str, start: int | None, end: int | None) -> None:
    if start is not None and end is not None and start >= end:
        raise SpecError(f"Option ending{what}: {end} is not after starting{what} {start}.")
