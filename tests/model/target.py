"""The brokers to which the model's restores write: logs in memory, after what a restore's tasks ask of a client."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Self, cast

from logkeep_engine.kafka.batch_queue import BatchQueue
from logkeep_engine.kafka.brokers import Leader
from logkeep_engine.kafka.queries import EpochEnd
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.records import Record, decode

_EPOCH = 3
"""The leader epoch of all partitions."""


@dataclass
class TargetLog:
    """A partition of the target."""

    batches: list[bytes] = field(default_factory=list)
    end: int = 0

    def append(self, data: bytes) -> int:
        """Append a batch where the log ends, as a leader does. Returns its offset."""
        at = self.end
        self.batches.append(struct.pack(">q", at) + data[8:12] + struct.pack(">i", _EPOCH) + data[16:])
        self.end += parse_header(data).last_offset_delta + 1
        return at

    def records(self) -> Iterator[Record]:
        """All records that were written."""
        for data in self.batches:
            yield from decode(data)


@dataclass
class TargetCluster:
    """The brokers of one restore. `step` is called before each append."""

    step: Callable[[], None]
    logs: dict[tuple[str, int], TargetLog] = field(default_factory=dict)

    def log(self, topic: str, partition: int) -> TargetLog:
        """The log of a partition."""
        return self.logs.setdefault((topic, partition), TargetLog())

    def client(self, _: Any) -> _Client:
        """A client of these brokers."""
        return _Client(self)


class _Client:
    """Stands in for `kafka.client.RawClient`."""

    def __init__(self, cluster: TargetCluster) -> None:
        self._cluster = cluster
        self._permit: Callable[[], Awaitable[None]] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def patience(self, _: str) -> None:
        """Nothing fails that would be waited for."""

    def only_while(self, permit: Callable[[], Awaitable[None]]) -> None:
        """Ask `permit` before each batch is appended."""
        self._permit = permit

    async def log_end(self, topic: str, partition: int) -> int:
        return self._cluster.log(topic, partition).end

    async def epoch_end(self, topic: str, partition: int, epoch: int, *, at_least: int) -> EpochEnd:
        return EpochEnd(0, epoch, self._cluster.log(topic, partition).end)

    async def fetch(self, topic: str, partition: int, offset: int, **_: Any) -> SimpleNamespace:
        """The batch that holds an offset."""
        found = [
            data for data in self._cluster.log(topic, partition).batches if parse_header(data).base_offset <= offset
        ]
        return SimpleNamespace(data=memoryview(found[-1]))

    async def produce_many(
        self,
        topic: str,
        partition: int,
        batches: BatchQueue,
        *,
        confirm: Callable[[Leader], Awaitable[None]],
        **_: Any,
    ) -> AsyncIterator[int]:
        """Append batches, and give their offsets."""
        await confirm(Leader(0, _EPOCH))
        while not batches.over:
            if not batches.ready:
                await batches.wait(None)
                continue
            if self._permit is not None:
                await self._permit()
            data = batches.ready.popleft()
            self._cluster.step()
            yield self._cluster.log(topic, partition).append(b"".join(cast(Any, data)))
