"""Logs with transactions that are made up, with the true end of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from logkeep_engine.log.batch import parse_header
from tests.unit.log.batches import batch, marker


@dataclass(frozen=True)
class Item:
    """A batch of the log. `transaction` is the number of the one that it belongs to, -1: none."""

    offset: int
    data: bytes
    producer: int
    transaction: int

    @property
    def next_offset(self) -> int:
        return parse_header(self.data).next_offset


@dataclass
class Log:
    """`aborted` and `markers` by number of the transaction; `first` its first offset."""

    items: list[Item] = field(default_factory=list)
    aborted: dict[int, bool] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.items[-1].next_offset

    def named(self, start: int, end: int) -> list[tuple[int, int]]:
        """The transactions that a broker lists for a fetch of these offsets: (producer id, first offset)."""
        return [
            (self.producers[number], self.first[number])
            for number, aborted in self.aborted.items()
            if aborted and self.first[number] < end and self.markers[number] >= start
        ]


def make_log(random: Random) -> Log:
    """Several producers side by side; every transaction ends."""
    log, opened, at, number = Log(), dict[int, int](), 0, 0
    sequences: dict[int, int] = {}
    for step in range(random.randint(10, 50)):
        producer = random.randint(1, 4)
        if producer in opened and (random.random() < 0.4 or step > 45):
            data, transaction = _end(log, opened, producer, at, random), -1
        elif random.random() < 0.15:
            data, transaction = batch(at, random.randint(1, 3)), -1
        else:
            if producer not in opened:
                opened[producer] = number
                log.first[number], log.producers[number] = at, producer
                number += 1
            count = random.randint(1, 3)
            data = batch(
                at, count, producer_id=producer, transactional=True, base_sequence=sequences.setdefault(producer, 0)
            )
            sequences[producer] += count
            transaction = opened[producer]
        log.items.append(Item(at, data, producer, transaction))
        at = log.items[-1].next_offset
    for producer in sorted(opened):
        log.items.append(Item(at, _end(log, opened, producer, at, random), producer, -1))
        at += 1
    return log


def _end(log: Log, opened: dict[int, int], producer: int, at: int, random: Random) -> bytes:
    number = opened.pop(producer)
    log.aborted[number], log.markers[number] = random.random() < 0.5, at
    return marker(at, producer, commit=not log.aborted[number])
