"""Every record at its source offset (`offsets: Same`): how far a partition reaches, and batches without gaps. Pure.

A broker numbers records as they come, so a record has its source offset when the log ends there before it is sent.
Offsets that hold no record of the restore (markers, what was aborted, compacted, lost or removed) are filled before it
is sent, see `sending.padding`. So batches must not reach over a gap.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import BrokerRefused, TargetUnsuitable
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.rows import listed_rows, packed_batch
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing

MOST_IN_FRONT = 100_000_000_000
"""The highest log start that a restore makes. A broker takes some million offsets a second: it is a matter of hours."""

MOST_INSIDE = 10_000_000_000
"""The most offsets without a record between those of a partition: some hours, and 6 GB that stay in the log."""

_WORTH_TELLING = 10_000_000
_FILLED_A_MINUTE = 36_000_000
_BYTES_OF_TEN_OFFSETS = 6  # a batch of 100,000 empty records has 59 kB


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets of a partition: its log starts at `start` and ends at `end`. Both are equal if it holds no record."""

    start: int
    end: int

    @property
    def offsets(self) -> int:
        """How many there are."""
        return self.end - self.start

    def nearest(self, position: int) -> int:
        """Return the position of a consumer group, or the nearest to it that a consumer can read from."""
        return min(max(position, self.start), self.end)


class Extents:
    """The extents of archived partitions, as far as the archive knows them. `ends`: where they end earlier, at a point
    in time.
    """

    def __init__(self, state: ArchiveState, ends: Mapping[Partition, int] = MappingProxyType({})) -> None:
        self._state = state
        self._ends = ends
        self._positions: dict[Partition, int] = {}
        for group in state.groups:
            key = (group.topic_id, group.partition)
            self._positions[key] = max(group.offset, self._positions.get(key, 0))

    def of(self, topic_id: str, partition: int) -> Extent:
        """Return the log starts with what the archive still has, and ends where the archive ends.

        No archived position of a group lies past the archived end, so of a partition that never had a record to archive
        the highest one tells how far its log had come.
        """
        accounted = self._state.accounted_for(topic_id, partition)
        end = accounted[-1][1] if accounted else self._positions.get((topic_id, partition), 0)
        kept = self._state.kept(topic_id, partition)
        end = min(end, self._ends.get((topic_id, partition), end))
        return Extent(min(kept[0][0], end) if kept else end, end)


def transactional_id(producer_id: int) -> str:
    """Return the name of the transactions in the partition whose records are written with `producer_id`. Producer ids
    are never given twice, so it is of one run alone.
    """
    return f"logkeep-{producer_id}"


@dataclass(frozen=True, slots=True)
class Filling:
    """The offsets of a partition that must be filled: in `front` of its log start, where they are removed again, and
    `inside`, where they stay. The catalog counts aborted records too, so `inside` is the least.
    """

    front: int
    inside: int

    @property
    def offsets(self) -> int:
        return self.front + self.inside


def filling_of(extent: Extent, segments: Iterable[SegmentEntry]) -> Filling:
    """Return the offsets to fill in a partition that reaches so far and has these segments."""
    records = sum(max(0, min(entry.records, extent.end - entry.base_offset)) for entry in segments)
    return Filling(extent.start, max(0, extent.offsets - records))


def refuse_far(topic: str, partition: int, extent: Extent, filling: Filling) -> None:
    """Raises TargetUnsuitable for a log that would take too long to fill, or too much room."""
    if extent.start > MOST_IN_FRONT:
        raise TargetUnsuitable(
            f"topic {topic} partition {partition} starts at offset {extent.start}: to let the log of a new topic start "
            f"there takes too long, the most is {MOST_IN_FRONT}; nothing was written",
            hint="Restore it with spec.offsets: Any.",
        )
    if filling.inside > MOST_INSIDE:
        raise TargetUnsuitable(
            f"topic {topic} partition {partition} has at least {filling.inside} offsets without a record between "
            f"{extent.start} and {extent.end}: to fill them takes too long and too much room, the most is "
            f"{MOST_INSIDE}; nothing was written",
            hint="Restore it with spec.offsets: Any, or choose the other topics with spec.topics.",
        )


def describe_filling(fillings: Mapping[tuple[str, int], Filling]) -> list[str]:
    """Return the warning about offsets whose filling takes a while."""
    total = sum(item.offsets for item in fillings.values())
    if total < _WORTH_TELLING:
        return []
    (topic, partition), most = max(fillings.items(), key=lambda item: item[1].offsets)
    stays = sum(item.inside for item in fillings.values()) * _BYTES_OF_TEN_OFFSETS // 10
    return [
        f"at least {total} offsets hold no record and must be filled (spec.offsets: Same), {most.offsets} of them in "
        f"topic {topic} partition {partition}: that takes up to {-(-total // _FILLED_A_MINUTE)} minutes (measured: "
        f"{_FILLED_A_MINUTE // 60} a second), and some {stays >> 20} MiB of padding stay in the logs"
    ]


def deletion_refused(topic: str) -> BrokerRefused:
    """Return the error of a user who may not let the log of a new topic start above offset 0."""
    return BrokerRefused(
        f"Topic {topic!r} must start above offset 0 (spec.offsets: Same), and the user may not remove records of it; "
        "nothing was written.",
        hint=f"Give the user the ACL DELETE on topic {topic!r}, or set spec.offsets to Any.",
    )


def without_gaps(stream: Iterable[Outgoing], producer_id: int) -> Generator[Outgoing, None, None]:
    """Yield the batches of a stream, those with gaps between their source offsets taken apart at the gaps.

    The bounds follow from the stream alone, as they must (see `filter`).
    """
    for item in stream:
        if len(item.source) == 1:
            yield item
        else:
            yield from _taken_apart(item, producer_id)


def _taken_apart(item: Outgoing, producer_id: int) -> Iterator[Outgoing]:
    batch = memoryview(b"".join(item.data or ()))
    header = parse_header(batch)
    rows = listed_rows(batch, header)
    at = 0
    for first, count in item.source:
        index = item.index + at
        data, _, _ = packed_batch(
            [rows[at : at + count]],
            codec=header.codec,
            producer_id=producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=index % SEQUENCE_SPACE,
        )
        at += count
        yield replace(
            item,
            index=index,
            count=count,
            size=len(data),
            data=(data,),
            source=((first, count),),
            append_times=min(count, max(0, item.append_times - at + count)),
        )
