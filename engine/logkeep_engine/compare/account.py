"""Does an archive have what the live log has? For `logkeep verify --against`.

What the archive says it covers is read from the cluster, batch by batch, and each record is looked for in the catalog:
a record at an offset that is covered, but in no segment, or in a segment that holds fewer than the log has there, is
missing in the archive. That is proved by the log itself. The other direction proves nothing: retention, compaction and
DeleteRecords take records out of a log that the archive keeps.

Only what both have now is compared; the rest is named with its reason.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.lineage import EpochStart
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.compare.sources import MAY_HAPPEN_TO_ONE, LiveRecords
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import (
    ArchiveMismatch,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.log.batch import BatchHeader, walk_checked
from logkeep_engine.log.cleanup import is_compacted
from logkeep_engine.log.rows import listed_rows

PARTITIONS_AT_ONCE = 4
FETCH_BYTES = 4 << 20
MAX_SHOWN = 20


@dataclass(slots=True)
class Missing:
    """`records` of the live log at the offsets [start, end), which the archive covers, are not in it."""

    start: int
    end: int
    records: int


@dataclass(slots=True)
class ComparedPartition:
    """A partition of the archive next to the live one.

    `ranges`: the offsets that were compared. `live`: the records that the log has there, `archived`: those in segments
    that lie wholly there. `missing`: what the archive lacks, at most MAX_SHOWN; `missing_records` counts all.
    `not_compared`: why something was left out, in sentences. `failed`: the cluster did not let it be read to its end.
    """

    topic: str
    topic_id: str
    partition: int
    ranges: list[Range] = field(default_factory=list)
    live: int = 0
    archived: int = 0
    missing_records: int = 0
    missing: list[Missing] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def whole(self) -> bool:
        return not self.missing_records and not self.failed


@dataclass(frozen=True, slots=True)
class AgainstReport:
    bootstrap: tuple[str, ...]
    partitions: list[ComparedPartition]

    @property
    def whole(self) -> bool:
        """Nothing is missing as far as it could be compared, and all of that could be read."""
        return all(item.whole for item in self.partitions)

    def to_json(self) -> dict[str, Any]:
        return {
            "whole": self.whole,
            "bootstrap_servers": list(self.bootstrap),
            "partitions": [asdict(item) for item in self.partitions],
        }


def compare(archive: Archive, connection: KafkaConnection) -> AgainstReport:
    """Raises ArchiveMismatch if the archive is of another cluster, and what the cluster's control plane raises."""
    state = archive.load()
    with ControlPlane(connection) as control:
        cluster_id = control.cluster_id()
        if cluster_id != archive.info.cluster_id:
            raise ArchiveMismatch(
                f"{archive.storage.uri} is an archive of cluster {archive.info.cluster_id}, but "
                f"{', '.join(connection.bootstrap)} is cluster {cluster_id}: offsets mean nothing there.",
                hint="`logkeep log diff` compares records of restored topics.",
            )
        live = {topic.topic_id: topic for topic in control.topics()}
        here = {topic_id: topic for topic_id, topic in state.topics.items() if topic_id in live}
        configs = control.topic_configs([topic.name for topic in here.values()])
    compacted = {topic_id for topic_id, topic in here.items() if is_compacted(configs.get(topic.name, {}))}
    led = {(topic_id, part.id): part.leader >= 0 for topic_id, topic in live.items() for part in topic.partitions}
    partitions: list[ComparedPartition] = []
    wanted: list[ComparedPartition] = []
    for topic_id, number in state.partitions():
        if topic_id not in state.topics or not state.kept(topic_id, number):
            continue
        item = ComparedPartition(state.topics[topic_id].name, topic_id, number)
        partitions.append(item)
        if (topic_id, number) not in led:
            item.not_compared.append(
                f"the cluster shows no topic with the id {topic_id}: it was deleted, or created again since, or the "
                "user lacks the ACL DESCRIBE on it"
            )
        elif not led[topic_id, number]:
            item.failed = "the partition has no leader"
        else:
            wanted.append(item)
    asyncio.run(_compare(connection, state, wanted, compacted))
    return AgainstReport(connection.bootstrap, partitions)


async def _compare(
    connection: KafkaConnection, state: ArchiveState, wanted: Iterable[ComparedPartition], compacted: set[str]
) -> None:
    gate = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    async with RawClient(connection) as client:

        async def one(item: ComparedPartition) -> None:
            async with gate:
                try:
                    await _partition(client, state, item, item.topic_id in compacted)
                except MAY_HAPPEN_TO_ONE as error:
                    item.failed = str(error)

        await asyncio.gather(*(one(item) for item in wanted))


async def _partition(client: RawClient, state: ArchiveState, item: ComparedPartition, compacted: bool) -> None:
    key: Partition = (item.topic_id, item.partition)
    log = LiveRecords(client, item.topic, item.partition, topic_id=item.topic_id)
    start, end = await log.start(), await log.stable_end()
    covered = state.kept(*key)
    item.ranges = [(max(low, start), min(high, end)) for low, high in covered if low < end and start < high]
    if covered[0][0] < start:
        item.not_compared.append(f"offsets below {start} are gone from the live log (retention or DeleteRecords)")
    if end < covered[-1][1]:
        item.not_compared.append(
            f"the live log ends at offset {end}, the archive reaches to {covered[-1][1]}: the cluster has lost records"
        )
    erased = erased_ranges(state, key, covered[-1][1])
    search = Search(item, state.segments.get(key, ()), state.epochs.get(key, ()), compacted, erased)
    for low, high in item.ranges:
        async with aclosing(log.fetched(low, high, FETCH_BYTES)) as answers:
            async for fetched in answers:
                await asyncio.to_thread(search.take, fetched.data, low, high)
    search.finish()


class Search:
    """Looks for live records in the segments of a partition, in the order of the log."""

    def __init__(
        self,
        item: ComparedPartition,
        segments: Sequence[SegmentEntry],
        epochs: Sequence[EpochStart],
        compacted: bool,
        erased: Sequence[Range] = (),
    ) -> None:
        self._item = item
        self._segments = segments
        # A history that begins after the first segment may have holes.
        self._epochs = epochs if epochs and segments and epochs[0][1] <= segments[0].base_offset else ()
        self._compacted = compacted
        self._erased = erased
        self._not_compared = 0  # records where an erasure has taken some
        self._at = 0  # the segment that was looked at last
        self._live = [0] * len(self._segments)
        self._undecided = False
        self._open: Missing | None = None

    def take(self, data: memoryview, low: int, high: int) -> None:
        """The batches of a fetch, with their records in [low, high). The log's start, or the end of a gap, may lie
        inside the first.
        """
        for position, header in walk_checked(data, high):
            if self._item.failed or header.is_control:
                continue
            self._item.failed = self._parted(header, max(header.base_offset, low))
            if self._item.failed:
                return
            for start, end, records in self._parts(data, position, header, low, high):
                self._look_for(start, end, records, transactional=header.is_transactional)

    def finish(self) -> None:
        """Compare counts: all batches have come by."""
        item = self._item
        fewer = 0
        for entry, live in zip(self._segments, self._live, strict=True):
            inside = any(low <= entry.base_offset and entry.next_offset <= high for low, high in item.ranges)
            if inside:
                item.archived += entry.records
                fewer += max(0, entry.records - live)
            if live > entry.records and self._is_erased(entry.base_offset):
                self._not_compared += live - entry.records
            elif live > entry.records:
                self._add(Missing(entry.base_offset, entry.next_offset, live - entry.records))
        if fewer and not self._undecided and not item.failed:
            why = ": it is compacted" if self._compacted else ""
            item.not_compared.append(
                f"{so_many(fewer, 'archived record')} {'is' if fewer == 1 else 'are'} no longer in the live log{why}"
            )
        if self._not_compared:
            item.not_compared.append(
                f"{self._not_compared} records of the live log are not in segments from which an erasure has taken some"
            )
        if self._undecided:
            item.not_compared.append("records of transactions: this format keeps only the committed ones")
        item.missing.sort(key=lambda found: found.start)

    def _parted(self, header: BatchHeader, offset: int) -> str:
        """Return why the batch cannot be the one that is archived at `offset`: another leader has written it. Counts
        alone do not show it."""
        at = bisect_right(self._epochs, offset, key=lambda item: item[1]) - 1
        live = header.leader_epoch
        if at < 0 or live < 0 or live == self._epochs[at][0] or self._segment_of(offset) is None:
            return ""
        return (
            f"from offset {offset} on the live log is no longer the archived one (leader epoch {live}, archived is "
            f"{self._epochs[at][0]}): the cluster has cut off what is archived. See onDivergence of the backup."
        )

    def _parts(
        self, data: memoryview, position: int, header: BatchHeader, low: int, high: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the offsets and the number of the batch's records, in parts each of which is in one segment or in
        none."""
        entry = self._segment_of(header.base_offset)
        in_one = not self._begins_within(header) if entry is None else header.next_offset <= entry.next_offset
        if header.base_offset >= low and in_one:
            yield header.base_offset, header.next_offset, header.record_count
            return
        # In the record-shaped formats a batch may lie in several segments.
        for offset in listed_rows(data[position : position + header.size], header).offsets():
            if low <= offset < high:
                yield offset, offset + 1, 1

    def _look_for(self, start: int, end: int, records: int, *, transactional: bool) -> None:
        """Look for records of the log, which lie in one segment or in none."""
        entry = self._segment_of(start)
        like = entry or next(iter(self._segments), None)
        if entry is not None:
            self._open = None
        if transactional and like is not None and not is_batched(like.layout):
            self._undecided = True
            return
        self._item.live += records
        if entry is not None:
            self._live[self._at] += records
        elif self._is_erased(start):
            self._not_compared += records
        elif records:
            if self._open is None:
                self._open = Missing(start, end, 0)
                self._add(self._open)
            self._open.end = end
            self._open.records += records
            self._item.missing_records += records

    def _add(self, missing: Missing) -> None:
        self._item.missing_records += missing.records
        if len(self._item.missing) < MAX_SHOWN:
            self._item.missing.append(missing)

    def _is_erased(self, offset: int) -> bool:
        at = bisect_right(self._erased, offset, key=lambda found: found[0]) - 1
        return at >= 0 and offset < self._erased[at][1]

    def _segment_of(self, offset: int) -> SegmentEntry | None:
        """Return the segment that holds the offset; offsets come in rising order."""
        while self._at + 1 < len(self._segments) and self._segments[self._at + 1].base_offset <= offset:
            self._at += 1
        if not self._segments:
            return None
        entry = self._segments[self._at]
        return entry if entry.base_offset <= offset < entry.next_offset else None

    def _begins_within(self, header: BatchHeader) -> bool:
        """A segment begins inside of the batch."""
        following = self._segments[self._at : self._at + 2]
        return any(header.base_offset < entry.base_offset <= header.last_offset for entry in following)
