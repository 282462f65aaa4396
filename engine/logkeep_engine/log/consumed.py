"""Records as a consumer sees them. The compiled codec, the segment formats and the tools exchange them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import NamedTuple, Protocol

from logkeep_kernel import Rows, records_are

__all__ = ["LogRecord", "PlainRecord", "differing_fields", "index_since", "time_of"]


class LogRecord(Protocol):
    """One record as a consumer sees it. Structural, so that the compiled codec's own records can pass as they are.

    `timestamp` is ms since the epoch; None or -1 if there is none. `timestamp_type` is 0 (create time), 1 (log append
    time) or None (magic 0). Header keys are text; bytes of a key that are not UTF-8 are surrogate-escaped.
    """

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def timestamp_type(self) -> int | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class PlainRecord(NamedTuple):
    """A `LogRecord` of our own: what readers of other formats make, and what the compiled record cannot say."""

    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


records_are(PlainRecord)


def time_of(record: LogRecord) -> int:
    """Return the time of a record in ms since the epoch, -1 if it has none."""
    return -1 if record.timestamp is None else record.timestamp


def differing_fields(one: LogRecord, other: LogRecord, ignore: Container[str] = ()) -> tuple[str, ...]:
    """Return the fields in which two records differ: key, value, headers, timestamp. Offsets are not compared."""
    equal = {
        "key": one.key == other.key,
        "value": one.value == other.value,
        "headers": list(one.headers) == list(other.headers),
        "timestamp": time_of(one) == time_of(other),
    }
    return tuple(name for name, same in equal.items() if not same and name not in ignore)


def index_since(records: Sequence[LogRecord], time: int) -> int:
    """Return the index of the first record of that time (ms) or later; the number of records if there is none."""
    if isinstance(records, Rows):
        found = records.first_since(time)
        return len(records) if found is None else found
    for at, record in enumerate(records):
        if time_of(record) >= time:
            return at
    return len(records)
