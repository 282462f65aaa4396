"""Reading back what a run has written, from a leader that does not give it at once."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from logkeep_engine.errors import BrokerUnavailable, LogkeepError, TargetChanged, TopicExists
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.fetched import Fetched
from logkeep_engine.kafka.retry import Patience
from logkeep_engine.limits import UNLIMITED
from logkeep_engine.restore.sending.written import Look, Mark, TargetPartition, WrittenRecords, look
from tests.unit.log.batches import batch
from tests.unit.restore.test_written import ours

CREATED = TargetPartition("orders", 0, producer_id=9, start=0, created=True, compacts=False)
LIMITS = Limits(outage=0.3, pause=0.01, longest_pause=0.02)


@dataclass
class Leader:
    """Gives its last batch only after `silent` empty answers, as a new one does until followers have confirmed its high
    watermark.
    """

    end: int
    last: bytes
    silent: int = 0
    asked: list[int] = field(default_factory=list)

    async def log_end(self, topic: str, partition: int) -> int:
        return self.end

    async def fetch(self, topic: str, partition: int, offset: int, **options: object) -> Fetched:
        self.asked.append(offset)
        data = memoryview(self.last if len(self.asked) > self.silent else b"")
        return Fetched(data, self.end if data else offset, self.end, self.end, 0)

    def patience(self, what: str) -> Patience:
        return Patience(LIMITS, what)


def seen(leader: Leader, target: TargetPartition = CREATED) -> WrittenRecords:
    ours = frozenset({9}) if target.created else None
    wanted = Look(KafkaConnection(("localhost:1",)), target, (9,), ours, rows=True)
    return asyncio.run(look(cast(RawClient, leader), wanted, UNLIMITED))[9]


def test_an_empty_answer_of_a_new_leader_is_waited_out() -> None:
    """It was taken for a topic that somebody else has written to, and the restore refused for good."""
    leader = Leader(10, ours(7, 7, 3), silent=3)
    landed = seen(leader)
    assert (landed.records, list(landed.rows or ()), landed.mark) == (10, [(0, 0, 10)], Mark(3, 10))
    assert leader.asked == [9, 9, 9, 9]


def test_a_leader_that_never_gives_the_last_batch_is_no_proof_of_anything() -> None:
    with pytest.raises(BrokerUnavailable, match="does not give the batch at offset 9"):
        seen(Leader(10, b"", silent=1_000_000))


@pytest.mark.parametrize(
    ("end", "last", "error", "what"),
    [
        (10, batch(7, 3), TopicExists, "holds records that this restore has not written"),
        (10, ours(7, 17, 3), TargetChanged, "has 10 records, but the last one was sent as number 20"),
    ],
)
def test_a_foreign_batch_that_was_seen_is_refused(end: int, last: bytes, error: type[LogkeepError], what: str) -> None:
    with pytest.raises(error, match=what):
        seen(Leader(end, last))


def test_a_target_that_ends_before_it_did_when_the_restore_was_planned_is_reported() -> None:
    target = TargetPartition("orders", 0, producer_id=9, start=20, created=False, compacts=False)
    with pytest.raises(TargetChanged, match="ends at offset 10, it had ended at 20 when the restore was planned"):
        seen(Leader(10, b""), target)
