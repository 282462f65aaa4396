"""Gives the partitions of a restore producer ids of their own."""

from __future__ import annotations

import asyncio

from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.model.plan import NEEDS_PRODUCER_ID, RestorePlan

_AT_ONCE = 32


def with_producer_ids(connection: KafkaConnection, plan: RestorePlan) -> RestorePlan:
    """Return the plan with a producer id of its own for each partition that has something to restore."""
    wanted = sum(partition.producer_id == NEEDS_PRODUCER_ID for topic in plan.topics for partition in topic.partitions)
    return plan.with_producer_ids(asyncio.run(_ask(connection, wanted)) if wanted else [])


async def _ask(connection: KafkaConnection, wanted: int) -> list[int]:
    slots = asyncio.Semaphore(_AT_ONCE)
    async with RawClient(connection) as client:

        async def one() -> int:
            async with slots:
                producer_id, _ = await client.init_producer_id()
                return producer_id

        return list(await asyncio.gather(*(one() for _ in range(wanted))))
