"""The kinds of values in the catalog's documents. They are checked where a document is read, since a writer of the
bucket may write anything there: what is of another kind would end a run much later, and not by its name. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.log.batch import MAX_OFFSET

MOST_PARTITIONS = 1 << 20
"""The most partitions of a topic, far above what Kafka can hold. Much is done for each, also if nothing is in it."""
MOST_OF_ALL_TOPICS = 1 << 23
_LAST_TIME = 253_402_300_799_999  # ms since the epoch: the end of the year 9999, and of Python's calendar
_SHOWN = 60
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ValueKind:
    """Values of these types. Numbers lie between `least` and `most`."""

    name: str
    types: frozenset[type]
    least: int = 0
    most: int = 0

    def check(self, values: Collection[Any], what: str) -> None:
        """Raises TypeError and ValueError for values of another kind. `what` they are is in the message."""
        if not set(map(type, values)) <= self.types:
            wrong = next(value for value in values if type(value) not in self.types)
            raise TypeError(f"{what} is {ascii(wrong)[:_SHOWN]}, which is not a valid {self.name}")
        if self.most:
            numbers = [value for value in values if value is not None] if type(None) in self.types else values
            if numbers and (min(numbers) < self.least or max(numbers) > self.most):
                wrong = next(value for value in numbers if not self.least <= value <= self.most)
                raise ValueError(f"{what} is {ascii(wrong)[:_SHOWN]}, which is not a valid {self.name}")


_NONE = type(None)
TEXT = ValueKind("text", frozenset({str}))
FLAG = ValueKind("true or false", frozenset({bool}))
NUMBER = ValueKind("number of 64 bits", frozenset({int}), -MAX_OFFSET - 1, MAX_OFFSET)
COUNT = ValueKind("count", frozenset({int}), 0, MAX_OFFSET)
COUNT_IF_KNOWN = ValueKind("count", frozenset({int, _NONE}), 0, MAX_OFFSET)
PARTITION = ValueKind("partition", frozenset({int}), 0, MOST_PARTITIONS - 1)
EPOCH = ValueKind("epoch", frozenset({int}), 0, names.MAX_EPOCH)
TIME = ValueKind("time", frozenset({int}), -1, _LAST_TIME)
TIME_IF_KNOWN = ValueKind("time", frozenset({int, _NONE}), -1, _LAST_TIME)
LIST = ValueKind("list", frozenset({list}))
OBJECT = ValueKind("object", frozenset({dict}))

_TEXTS = ("topicId", "groupId", "topic", "reason", "kind", "name", "origin", "step", "branchId", "runId")
_COLUMNS = {
    **dict.fromkeys((*_TEXTS, "outcome", "message", "metadata"), TEXT),
    "partition": PARTITION,
    "configs": OBJECT,
    "compactedUntil": EPOCH,
    "cleanedUntil": EPOCH,
    **dict.fromkeys(("task", "attempt", "number"), COUNT),
    "share": FLAG,
    "time": TIME,
    "beginTime": TIME,
    "endTime": TIME_IF_KNOWN,
}


def check_hash(value: object, what: str) -> str:
    """Return the SHA-256 of a commit in hex digits, or "" where there is no commit. Raises ValueError for anything
    else."""
    if not isinstance(value, str) or (value and _HASH.fullmatch(value) is None):
        raise ValueError(f"{what} is {ascii(value)[:_SHOWN]}, which is not a SHA-256")
    return value


def check_rows(rows: Sequence[Any], columns: Sequence[str]) -> None:
    """Raises TypeError and ValueError for rows of a table that have other values than its columns hold."""
    if rows == []:
        return  # as most tables of a commit
    if type(rows) is not list or not set(map(type, rows)) <= {list} or not set(map(len, rows)) <= {len(columns)}:
        raise TypeError(f"it is not a table of rows of {len(columns)} columns")
    for at, column in enumerate(columns):
        _COLUMNS.get(column, NUMBER).check(list(map(itemgetter(at), rows)), column)


def check_values(document: Mapping[str, Any], kinds: Mapping[str, ValueKind]) -> None:
    """Raises TypeError and ValueError for a value of another kind. Keys that are not there are none."""
    for key, kind in kinds.items():
        if key in document:
            kind.check((document[key],), key)


def ranges_of(items: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges of a checkpoint. Raises TypeError and ValueError for anything else."""
    found = [(start, end) for start, end in items]
    for start, end in found:
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= MAX_OFFSET:
            raise ValueError(f"[{ascii(start)[:_SHOWN]}, {ascii(end)[:_SHOWN]}) is not a range of offsets")
    return found


def epochs_of(items: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the leader epochs of a checkpoint, and where they begin. Raises TypeError and ValueError for anything
    else."""
    found = [(epoch, start) for epoch, start in items]
    for epoch, start in found:
        if type(epoch) is not int or type(start) is not int:  # a check of all in one call costs more: most have one
            raise TypeError(f"{ascii((epoch, start))[:_SHOWN]} is not a leader epoch and its first offset")
    return found
