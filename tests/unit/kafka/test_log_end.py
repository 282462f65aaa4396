"""The end of a leader's log is an offset that the leader has given for its own epoch, and nothing else."""

import asyncio
from typing import Any, cast

import pytest

from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka.brokers import BrokerPool, Leader
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.queries import EpochEnd, EpochEnds


class Pool:
    """A leader of epoch 5 that gives these answers, the last one again and again."""

    limits = Limits(outage=0.2, pause=0.01, longest_pause=0.02)
    ask_leader = BrokerPool.ask_leader

    def __init__(self, *answers: EpochEnd) -> None:
        self.answers = list(answers)

    async def leader(self, topic: str, partition: int, *, newer_than: float) -> Leader:
        return Leader(1, 5)

    async def send(self, node: int, lane: int, call: Any) -> EpochEnds:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return EpochEnds(0, {("orders", 0): answer})

    def name(self, node: int) -> str:
        return f"broker {node}"


def client(*answers: EpochEnd) -> RawClient:
    made = RawClient(KafkaConnection(("127.0.0.1:1",)))
    made._fetcher._pool = cast(BrokerPool, Pool(*answers))
    return made


NONE = EpochEnd(Code.NONE, -1, -1)
BEFORE = EpochEnd(Code.NONE, 4, 70)
OWN = EpochEnd(Code.NONE, 5, 90)


@pytest.mark.parametrize("first", [NONE, BEFORE])
def test_what_is_no_end_of_the_leaders_own_epoch_is_asked_for_again(first: EpochEnd) -> None:
    """A restore took -1 for the target's end and refused for good."""
    assert asyncio.run(client(first, OWN).log_end("orders", 0)) == 90


def test_leader_that_never_says_it_is_out_of_reach() -> None:
    with pytest.raises(BrokerUnavailable, match="broker 1 does not say where its log ends"):
        asyncio.run(client(NONE).log_end("orders", 0))


def test_log_that_does_not_know_another_epoch_says_so() -> None:
    assert asyncio.run(client(NONE).epoch_end("orders", 0, 3)) == NONE
