"""The answers to producers, and whether a topic keeps to them: each acknowledged committed record once, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import zip_longest
from typing import NamedTuple, TypeVar

from tests.data.murmur2 import target_of

Header = tuple[str, bytes | None]


class Fate(Enum):
    """The known fate of a record. UNKNOWN may be there or not: nobody was told. ABORTED must not be there."""

    UNKNOWN = "unknown"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class Sent:
    """A record as it was handed to a producer; `number` counts the records of the producer. `offset` is what the broker
    told, and `acknowledged` when (ms), -1 before. `transaction` counts those of the producer, -1 is none. The key names
    producer and number, so no two records are equal."""

    producer: str
    number: int
    partition: int
    value: bytes
    timestamp: int
    fate: Fate = Fate.UNKNOWN
    offset: int = -1
    acknowledged: int = -1
    transaction: int = -1

    @property
    def key(self) -> bytes:
        return f"{self.producer}:{self.number}".encode()

    @property
    def headers(self) -> list[Header]:
        return [("number", b"%d" % self.number), ("nothing", None)]


@dataclass(frozen=True, slots=True)
class Found:
    """A record as a committed consumer of the restored topic gets it."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[Header, ...]
    offset: int = field(default=-1, compare=False)


class Pair(NamedTuple):
    """A partition of the source and one of the target, where records are divided among another number of partitions."""

    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.target} out of {self.source}"


Place = TypeVar("Place", int, Pair)
"""A partition, or the part of one that comes from a partition of the source. Records keep their order in it."""


def divided(source: Mapping[int, Sequence[Found]], partitions: int) -> dict[Pair, list[Found]]:
    """The records of the source by the pairs to which their keys bring them, if the target has so many partitions."""
    found: dict[Pair, list[Found]] = {}
    for partition, records in source.items():
        for record in records:
            target = target_of(record.key, record.offset, partitions)
            found.setdefault(Pair(partition, target), []).append(record)
    return found


def by_pairs(ledger: Iterable[Sent], found: Mapping[int, Sequence[Found]]) -> dict[Pair, list[Found]]:
    """The records that were found in a target by pairs. The ledger tells to which partition of the source each was
    sent; -1 where it does not know."""
    origin = {item.key: item.partition for item in ledger}
    pairs: dict[Pair, list[Found]] = {}
    for target, records in found.items():
        for record in records:
            pairs.setdefault(Pair(origin.get(record.key or b"", -1), target), []).append(record)
    return pairs


def differences(
    source: Mapping[Place, Sequence[Found]], found: Mapping[Place, Sequence[Found]], *, offsets: bool = False
) -> Iterator[str]:
    """Say where `found`, records by partition, differs from what a consumer of committed records gets of the source;
    with `offsets` also where a record has another one."""
    for partition in {**source, **found}:
        for place, (here, there) in enumerate(zip_longest(source.get(partition, ()), found.get(partition, ()))):
            if here != there:
                keys = [None if side is None else side.key for side in (here, there)]
                yield f"partition {partition} record {place} was {keys[0]!r} and is {keys[1]!r}, or its content differs"
                break
            if offsets and here is not None and there is not None and here.offset != there.offset:
                yield f"partition {partition} record {place} was at offset {here.offset} and is at {there.offset}"
                break


def doubled(source: Mapping[int, Sequence[Found]]) -> frozenset[bytes]:
    """Records of plain producers that the source itself has more than once: a leader that loses its place answers
    NOT_LEADER_OR_FOLLOWER for what it has written and others have taken, and the producer sends it again."""
    keys = Counter(record.key or b"" for records in source.values() for record in records)
    return frozenset(key for key, count in keys.items() if count > 1 and key.startswith(b"plain-"))


def problems(
    ledger: Iterable[Sent],
    found: Mapping[Place, Sequence[Found]],
    again: frozenset[bytes] = frozenset(),
    promised: frozenset[bytes] | None = None,
) -> Iterator[str]:
    """The problems of `found`, records by partition or pair, if the ledger is right. `again`: keys that may be there
    more than once, and so in no order. `promised`: keys that must be there, by default those of all committed records.
    """
    sent = {item.key: item for item in ledger}
    there: set[bytes] = set()
    for partition, records in found.items():
        last_offset = -1
        last_number: dict[str, int] = {}
        for place, record in enumerate(records):
            name = f"partition {partition} record {place} ({record.key!r})"
            known = sent.get(record.key or b"")
            if known is None:
                yield f"{name} was never sent"
                continue
            if known.key in there and known.key not in again:
                yield f"{name} appears twice"
                continue
            there.add(known.key)
            if known.fate is Fate.ABORTED:
                yield f"{name} is of an aborted transaction"
            if known.partition != (partition.source if isinstance(partition, Pair) else partition):
                yield f"{name} was sent to partition {known.partition}"
            if (known.value, known.timestamp, tuple(known.headers)) != (record.value, record.timestamp, record.headers):
                yield f"{name} has another value, time or headers than were sent"
            if known.key in again:
                continue
            if known.number <= last_number.get(known.producer, -1):
                yield f"{name} comes behind record {last_number[known.producer]} of its producer"
            last_number[known.producer] = known.number
            if known.offset >= 0:
                if known.offset <= last_offset:
                    yield f"{name} had offset {known.offset}, and comes behind offset {last_offset}"
                last_offset = known.offset
    for item in sent.values():
        wanted = item.fate is Fate.COMMITTED if promised is None else item.key in promised
        if wanted and item.key not in there:
            yield f"partition {item.partition} offset {item.offset} ({item.key!r}) was acknowledged and is not there"
