"""Which answers without records prove that a log has none there."""

import asyncio
import struct
from dataclasses import dataclass
from typing import Any, cast

import pytest

from logkeep_engine.errors import RecordsWithheld
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.kafka.emptiness import EmptyAnswers
from logkeep_engine.kafka.fetch import Fetcher
from logkeep_engine.kafka.fetched import Fetched
from tests.kafka.raw import batch

AT, END = 40, 100


@dataclass
class Leader:
    """The leader's log: it begins on the leader's disk at `local` (None: its version has no tiered storage), `batches`
    are the first offsets of batches of one record that it gives, and the high watermark is 120.
    """

    local: int | None
    batches: tuple[int, ...]
    epoch: int = 7

    async def local_start(self, topic: str, partition: int) -> tuple[int, int] | None:
        return None if self.local is None else (self.local, self.epoch)

    async def fetch(self, topic: str, partition: int, offset: int, *, committed: bool, **_: Any) -> Fetched:
        assert not committed
        assert self.local is None or self.local <= offset  # a slow remote store is not asked for what proves nothing
        data = b""
        for base in sorted(self.batches):
            if base >= offset:
                data = struct.pack(">q", base) + batch([b"x"])[8:]
                break
        return Fetched(memoryview(data), offset, 120, END, 0, leader_epoch=self.epoch)


def judge(leader: Leader) -> EmptyAnswers:
    return EmptyAnswers(cast(Fetcher, leader), Limits(outage=0.2, pause=0.01), "orders", 3)


def is_proved(leader: Leader) -> bool:
    answer = Fetched(memoryview(b""), AT, 120, END, 0, leader_epoch=7)
    return asyncio.run(judge(leader).proved(answer, AT, END))


@pytest.mark.parametrize(
    ("leader", "proved"),
    [
        pytest.param(Leader(0, (10, 110)), True, id="next-batch-behind-the-range"),
        pytest.param(Leader(0, (10, END)), True, id="next-batch-at-its-end"),
        pytest.param(Leader(None, (10, 110)), True, id="next-batch-of-an-old-broker"),
        pytest.param(Leader(0, (10, 60, 110)), False, id="next-batch-inside"),
        pytest.param(Leader(AT, ()), True, id="local-log-without-batches-up-to-its-end"),
        pytest.param(Leader(None, ()), True, id="old-broker-without-batches-up-to-the-end"),
        pytest.param(Leader(AT + 1, (110,)), False, id="remote"),
        pytest.param(Leader(0, (), epoch=8), False, id="another-leader"),
    ],
)
def test_only_the_log_itself_proves_that_it_has_no_records(leader: Leader, proved: bool) -> None:
    assert is_proved(leader) == proved


def test_a_batch_at_the_logs_end_shows_that_the_answers_lie() -> None:
    class Lying(Leader):
        async def fetch(self, topic: str, partition: int, offset: int, *, committed: bool, **more: Any) -> Fetched:
            given = self if offset > AT else Leader(self.local, ())
            return await Leader.fetch(given, topic, partition, offset, committed=committed)

    assert not is_proved(Lying(0, (119,)))


def test_waiting_ends_with_an_error_that_says_where() -> None:
    async def work(leader: Leader) -> None:
        answers = judge(leader)
        await answers.proved(Fetched(memoryview(b""), AT, 120, END, 0, leader_epoch=7), AT, END)
        while True:
            await answers.wait(AT, END)

    with pytest.raises(RecordsWithheld, match=r"topic 'orders' partition 3 from offset 40.*offset 100") as caught:
        asyncio.run(work(Leader(0, (60,))))
    assert "remote" not in str(caught.value)
    with pytest.raises(RecordsWithheld, match="the local log begins at 70"):
        asyncio.run(work(Leader(70, ())))


def test_records_begin_a_new_patience() -> None:
    async def work() -> None:
        answers = judge(Leader(0, (60,)))
        for _ in range(20):
            await answers.wait(AT, END)
            answers.over()

    asyncio.run(work())
