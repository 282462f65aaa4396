"""The rights of the user that a restore needs besides those that each write asks for. They are looked for before the
first record is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.model.plan import NO_TASK, RestorePlan
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.streams.same import deletion_refused, transactional_id


def refuse_unreadable(connection: KafkaConnection, targets: Sequence[str], *, drill: bool) -> None:
    """Raises BrokerRefused for a user who may not read all of these topics, whether they exist or not: a verification
    reads them back. A `drill` is always verified."""

    async def ask() -> list[str]:
        async with RawClient(connection) as client:
            return await client.unreadable(targets)

    if topics := asyncio.run(ask()):
        one = len(topics) == 1
        raise BrokerRefused(
            f"The verification reads what was restored, and the user may not read "
            f"{'topic' if one else f'{len(topics)} topics:'} {shown(topics)}; nothing was written.",
            hint=f"Give the user the ACL READ on {'it' if one else 'them'}."
            + ("" if drill else " verify: Counts does not need it."),
        )


def refuse_without_rights(connection: KafkaConnection, plan: RestorePlan) -> None:
    """Raises BrokerRefused for a user who may not do what records at their offsets need: now, not in the middle."""
    work = [(topic.target, part) for topic in plan.topics for part in topic.partitions if part.producer_id != NO_TASK]
    starting_later = sorted({target for target, part in work if part.log_start > 0})

    async def check() -> None:
        async with RawClient(connection) as client:
            for target, part in work[:1]:
                name = transactional_id(part.producer_id)
                await client.transactions(name, target, part.target).fence()
            for target in starting_later:
                if not await client.may_delete_records(target):
                    raise deletion_refused(target)

    asyncio.run(check())


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
