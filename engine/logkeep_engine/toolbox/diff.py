"""The sides that `logkeep log diff` compares: an archive or log folders, and the topics of a live cluster.

    with live_side(connection, topics) as live:
        for difference in StreamComparison(ArchiveSide(source), live): ...

Of a log nothing is compared from the first transaction on that nothing has decided; of an archive only such
transactions are left out, as a restore leaves them out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from logkeep_engine.archive import names
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import PartitionReader, open_damaged
from logkeep_engine.compare.streams import Partition
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch, CorruptIndex, CorruptSegment, Refused
from logkeep_engine.log.rows import Rows, as_rows
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource
from logkeep_engine.toolbox.transactions import LogOutcomes, outcomes

if TYPE_CHECKING:
    from logkeep_engine.kafka.client import RawClient
    from logkeep_engine.kafka.connection import KafkaConnection


class ArchiveSide:
    """An archive, or log folders. If a topic was deleted and made again, this side has the one that a restore would
    take."""

    def __init__(self, source: LogSource) -> None:
        self._state = source.state
        self._partitions: dict[Partition, list[ToolboxSegment]] = {}
        self._opened: tuple[Partition, Callable[[int], Iterator[Rows]]] | None = None
        taken = source.taken()
        # A snapshot lies in a folder of its own, and is in the source where the log is gone.
        found = taken.partitions(checkpoints=self._state is not None)
        for log in found:
            other = self._partitions.get((log.topic, log.partition))
            if other and self._state is not None:
                other += found[log]
                other.sort(key=lambda segment: segment.entry.base_offset if segment.entry is not None else -1)
                continue
            if other:
                folders = " and ".join(display(source.storage, folder) for folder in (other[0].folder, log.folder))
                raise Refused(
                    f"partition {log.partition} of topic {log.topic} is in {folders}.",
                    hint="Name a folder that has each partition once, such as the data folder of one broker.",
                )
            self._partitions[log.topic, log.partition] = found[log]
        self.topics = {topic.name for topic in taken.topics} | {log.topic for log in found}
        """Also those without a segment, which only a catalog knows."""

    def partitions(self) -> Sequence[Partition]:
        return sorted(self._partitions)

    def rows(self, topic: str, partition: int, start: int = 0) -> Iterator[Rows]:
        """Raises ArchiveDamaged where they cannot be read."""
        try:
            if self._opened is None or self._opened[0] != (topic, partition):
                self._opened = (topic, partition), self._open(topic, partition)
            yield from self._opened[1](start)
        except BatchTooLarge as error:
            raise error.within(f"topic {topic} partition {partition}") from error
        except (CorruptBatch, CorruptSegment, CorruptIndex) as error:
            archived = self._state is not None
            hint = "`logkeep verify` names all damage." if archived else "`logkeep log dump` shows what is left."
            raise ArchiveDamaged(f"topic {topic} partition {partition}: {error.message}", hint=hint) from error

    def _open(self, topic: str, partition: int) -> Callable[[int], Iterator[Rows]]:
        """Find out how the transactions of a partition ended. Returns what reads its records from an offset on."""
        segments = self._partitions[topic, partition]
        entries = [segment.entry for segment in segments if segment.entry is not None]
        if self._state is None or len(entries) < len(segments):
            return partial(_in_folders, segments, outcomes(segments, self._state))
        kept = self._state.kept(entries[0].topic_id, partition)
        return partial(_archived, segments[0].storage, open_damaged(segments[0].storage, topic, entries, kept))


def _in_folders(segments: Sequence[ToolboxSegment], ended: LogOutcomes, start: int) -> Iterator[Rows]:
    for number, segment in enumerate(segments, 1):
        if number < len(segments) and segments[number].base_offset <= start:
            continue
        for where, records in segment.placed(start):
            if isinstance(where, Batch):
                if where.header.base_offset >= ended.stable:
                    return
                if where.header in ended.aborted or where.header in ended.undecided:
                    continue
            yield as_rows(records)


def _archived(storage: Storage, reader: PartitionReader[Damage], start: int) -> Iterator[Rows]:
    """Yield the committed records of an archived partition. Raises CorruptSegment at the first damage."""
    wrong = (damage for damage in reader.transactions.damage if damage.object.endswith(names.TXNINDEX))
    for item in chain(wrong, reader.records(start)):
        if isinstance(item, Damage):
            raise CorruptSegment(f"{display(storage, item.object.removeprefix(f'{storage.uri}/'))}: {item.what}.")
        yield as_rows(item)


@contextmanager
def live_side(
    connection: KafkaConnection, topics: Collection[str], partitions: Sequence[int] = ()
) -> Iterator[LiveSide]:
    """Topics of a cluster, all of their partitions or only these. Raises what the control plane raises."""
    from logkeep_engine.kafka.client import RawClient
    from logkeep_engine.kafka.control import ControlPlane

    with ControlPlane(connection) as control:
        there = [(info.name, part.id) for info in control.topics() if info.name in topics for part in info.partitions]
    chosen = sorted(item for item in there if not partitions or item[1] in partitions)
    with asyncio.Runner() as runner:
        client = RawClient(connection)
        runner.run(client.__aenter__())
        try:
            yield LiveSide(client, runner, chosen)
        finally:
            runner.run(client.__aexit__(None, None, None))


class LiveSide:
    """Topics of a cluster, up to the last stable offset of the moment at which a partition's turn comes."""

    def __init__(self, client: RawClient, runner: asyncio.Runner, partitions: Sequence[Partition]) -> None:
        self._client = client
        self._runner = runner
        self._partitions = partitions

    def partitions(self) -> Sequence[Partition]:
        return self._partitions

    def rows(self, topic: str, partition: int, start: int = 0) -> Iterator[Rows]:
        """Raises the errors of the data plane."""
        from logkeep_engine.compare.sources import LiveRecords

        log, run = LiveRecords(self._client, topic, partition), self._runner.run
        found = log.rows(max(start, run(log.start())), run(log.stable_end()))
        try:
            while (rows := run(_next(found))) is not None:
                yield rows
        finally:
            run(found.aclose())


async def _next(found: AsyncGenerator[Rows, None]) -> Rows | None:
    return await anext(found, None)
