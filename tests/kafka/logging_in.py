"""Connections and clients for the tests of logins."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.kafka.brokers import LANES
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from logkeep_engine.kafka.wire import Wire
from tests.kafka.raw import batch

SOON = Limits(connect=5, outage=3, control=3, renewal=3)


def connect(address: str, protocol: str, environ: Mapping[str, str], **security: Any) -> KafkaConnection:
    """A connection that gives up soon."""
    spec = {"bootstrapServers": [address], "security": {"protocol": protocol, **security}}
    return replace(connection_from(ClusterSpec.model_validate(spec), environ), limits=SOON)


def put(path: Path, text: str) -> str:
    """Replace a file as the kubelet does, at one moment; returns its path."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)
    return str(path)


def wires(client: RawClient) -> list[Wire]:
    """The open connections for producing."""
    return [wire for (_, lane), wire in client._pool._open.items() if lane > LANES]


async def write_for(client: RawClient, topic: str, seconds: float) -> int:
    """Write records one after another for a while; returns their number."""
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        await client.produce(topic, 0, batch([b"%d" % count]))
        count += 1
    return count


async def until(check: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Ask until it is so."""
    ends = time.monotonic() + seconds
    while not await check():
        assert time.monotonic() < ends
