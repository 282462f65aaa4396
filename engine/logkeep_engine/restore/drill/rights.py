"""The rights that a drill needs beyond those of a restore."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection


def check_may_delete(connection: KafkaConnection, topics: Sequence[str]) -> None:
    """Raises BrokerRefused for a user who could create these topics and not delete them: before the first is
    created. A broker that is asked to remove records of a topic looks for the same right first."""

    async def check() -> None:
        async with RawClient(connection) as client:
            for topic in topics[:1]:  # the names begin alike, and so do the patterns of ACLs
                if not await client.may_delete_records(topic):
                    raise BrokerRefused(
                        f"A drill deletes its topics again, and the user may not delete topic {topic!r}; nothing was "
                        "written.",
                        hint="Give the user the ACL DELETE on the topics that begin with spec.drill.prefix.",
                    )

    asyncio.run(check())
