"""Questions for the rights of the user that change nothing: requests which a broker refuses for another reason, after
it has looked at the rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from logkeep_engine.kafka import protocol, transactions
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.retry import Patience, RetriableError
from logkeep_engine.kafka.survey import in_parts

T = TypeVar("T")

_TOPICS_A_REQUEST = 500
_REQUESTS_AT_ONCE = 32
_NO_PARTITION = (1 << 31) - 1  # no topic has this many, and the request holds no batch either
_NO_TIME = 0  # a time-out that is refused before anything is looked up


async def unwritable(pool: BrokerPool, topics: Sequence[str]) -> list[str]:
    """Return the topics among these, whether they exist or not, to which the user may not write. Raises
    BrokerUnavailable."""
    found: list[str] = []
    for part in in_parts(topics, _TOPICS_A_REQUEST):
        wanted = [(topic, _NO_PARTITION, ()) for topic in part]

        async def ask(wanted: Sequence[tuple[str, int, tuple[()]]] = wanted) -> protocol.ProduceAnswers:
            return await pool.send(pool.any_node(), 0, protocol.produce(wanted, acks=-1, timeout_ms=1000))

        answers = (await _patiently(pool, "ask for the right to write", ask)).partitions
        found += [topic for (topic, _), answer in answers.items() if answer.code == Code.TOPIC_AUTHORIZATION_FAILED]
    return sorted(found)


async def unreadable(pool: BrokerPool, topics: Sequence[str]) -> list[str]:
    """Return the topics among these, whether they exist or not, that the user may not read. Raises
    BrokerUnavailable."""

    async def ask(topic: str) -> protocol.FetchAnswer:
        call = protocol.fetch(
            topic, None, _NO_PARTITION, -1, 0, max_bytes=1, max_wait_ms=0, min_bytes=0, committed=True
        )
        return await _patiently(pool, "ask for the right to read", lambda: pool.send(pool.any_node(), 0, call))

    found: list[str] = []
    for part in in_parts(topics, _REQUESTS_AT_ONCE):
        answers = await asyncio.gather(*map(ask, part))
        found += [
            topic for topic, answer in zip(part, answers, strict=True) if answer.code == Code.TOPIC_AUTHORIZATION_FAILED
        ]
    return sorted(found)


async def may_use_transaction(pool: BrokerPool, transactional_id: str) -> bool:
    """Return whether the user may write transactions of this id. Raises BrokerUnavailable."""

    async def ask() -> protocol.ProducerIdAnswer:
        return await pool.send(pool.any_node(), 0, transactions.init_producer_id(transactional_id, _NO_TIME))

    answer = await _patiently(pool, "ask for the right to write transactions", ask)
    return answer.code != Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def _patiently(pool: BrokerPool, what: str, ask: Callable[[], Awaitable[T]]) -> T:
    patience = Patience(pool.limits, what)
    while True:
        try:
            return await ask()
        except RetriableError as trouble:
            await patience.wait(trouble)
