"""The right to read what was restored. It is looked for before the first record is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.restore.selection import shown


def refuse_unreadable(connection: KafkaConnection, targets: Sequence[str]) -> None:
    """Raises BrokerRefused for a user who may not read all of these topics, whether they exist or not: a verification
    reads them back."""

    async def ask() -> list[str]:
        async with RawClient(connection) as client:
            return await client.unreadable(targets)

    if topics := asyncio.run(ask()):
        one = len(topics) == 1
        raise BrokerRefused(
            f"The verification reads what was restored, and the user may not read "
            f"{'topic' if one else f'{len(topics)} topics:'} {shown(topics)}; nothing was written.",
            hint=f"Give the user the ACL READ on {'it' if one else 'them'}. verify: Counts does without.",
        )
