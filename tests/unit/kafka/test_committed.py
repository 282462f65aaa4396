"""A reader of a live log sees the batches that a consumer of committed records sees, however the log is cut."""

import random

import pytest

from logkeep_engine.kafka.committed import CommittedBatches
from logkeep_engine.kafka.fetched import Fetched
from tests.unit.log.batches import batch, marker

PLAIN = -1


class Log:
    """Batches of one record each, and the transactions that were aborted: producer, first and last offset."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.committed: set[int] = set()
        self._open: dict[int, list[int]] = {}

    def add(self, producer: int) -> None:
        offset = len(self.batches)
        self.batches.append(batch(offset, producer_id=producer, transactional=producer != PLAIN))
        if producer == PLAIN:
            self.committed.add(offset)
        else:
            self._open.setdefault(producer, []).append(offset)

    def end(self, producer: int, *, commit: bool) -> None:
        offsets = self._open.pop(producer, [])
        if commit:
            self.committed.update(offsets)
        elif offsets:
            self.aborted.append((producer, offsets[0], len(self.batches)))
        self.batches.append(marker(len(self.batches), producer, commit=commit))

    def answers(self, bounds: list[int]) -> list[Fetched]:
        """The log in answers that begin at these offsets, each with the aborted transactions that reach into it."""
        found = []
        for start, end in zip(bounds, [*bounds[1:], len(self.batches)], strict=True):
            lines = [(producer, first) for producer, first, last in self.aborted if first < end and last >= start]
            data = memoryview(bytearray(b"".join(self.batches[start:end])))
            found.append(Fetched(data, end, end, end, 0, tuple(lines)))
        return found


def seen(answers: list[Fetched], committed: CommittedBatches) -> list[int]:
    return [
        header.base_offset
        for fetched in answers
        for headers in committed.of(fetched, fetched.next_offset)
        for _, header in headers
    ]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_aborted_is_left_out_however_the_log_is_cut(seed: int) -> None:
    chance, log = random.Random(seed), Log()
    for _ in range(200):
        producer = chance.choice([PLAIN, 1, 2, 3])
        if producer == PLAIN or chance.random() < 0.7:
            log.add(producer)
        else:
            log.end(producer, commit=chance.random() < 0.4)
    for producer in (1, 2, 3):
        log.end(producer, commit=True)
    bounds = sorted({0, *chance.sample(range(1, len(log.batches)), 12)})
    assert seen(log.answers(bounds), CommittedBatches()) == sorted(log.committed)
    later = bounds[5:]
    assert seen(log.answers(later), CommittedBatches()) == sorted(at for at in log.committed if at >= later[0])


def test_very_many_aborted_transactions_of_a_producer_are_not_kept() -> None:
    log = Log()
    for _ in range(300):
        log.add(1)
        log.end(1, commit=False)
    log.add(PLAIN)
    committed = CommittedBatches()
    assert seen(log.answers(list(range(0, 601, 3))), committed) == [600]
    kept = [value for value in vars(committed).values() if len(value) > 1]
    assert not kept
