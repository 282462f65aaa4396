"""What is converted: an archive, or what another tool wrote, as facts of the same shape.

    source = archive_source(storage)
    source.segments[topic_id, partition]      # in the order of their offsets

The conversion knows nothing else of where records come from; `read.read_records` knows how to read each segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog import Archive
from logkeep_engine.archive.entry import Layout, SegmentEntry
from logkeep_engine.archive.model import ArchiveState, Gap, GroupEntry, Partition, Range, TopicEntry
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.storage import Storage

NO_CLUSTER = "-"
"""The cluster id of an archive that was made from what another tool wrote."""


@dataclass(frozen=True, slots=True)
class ForeignSegment:
    """A segment of another tool that the catalog cannot describe, of which its manifest says where it is. Offsets in
    [base_offset, next_offset); `bytes` is the object's size as far as it is known."""

    path: str
    base_offset: int
    next_offset: int
    records: int
    bytes: int


SourceSegment = SegmentEntry | ForeignSegment


@dataclass(frozen=True)
class Source:
    """`identity` tells one source from another, in all runs: an archive's id, or where the other tool's files lie.

    `format` is the archive's, None for a tool's own. `notes` are to be said of the source in the result.
    """

    storage: Storage
    identity: str
    format: FormatName | None
    cluster_id: str
    imported: bool
    topics: tuple[TopicEntry, ...]
    segments: Mapping[Partition, Sequence[SourceSegment]]
    coverage: Mapping[Partition, Sequence[Range]]
    gaps: tuple[Gap, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def topic_names(self) -> dict[str, str]:
        """Name by topic id."""
        return {topic.topic_id: topic.name for topic in self.topics}


def archive_source(storage: Storage) -> Source:
    """The archive at `storage` as it is now. Raises ArchiveMissing, ArchiveDamaged, ArchiveMismatch."""
    archive = Archive.open(storage)
    state = archive.load()
    if not state.topics:
        raise ArchiveMismatch(
            f"The archive at {storage.uri} holds no topic: there is nothing to convert.",
            hint="Look at it with `logkeep inspect`.",
        )
    return Source(
        storage=storage,
        identity=archive.info.archive_id,
        format=archive.info.segments,
        cluster_id=archive.info.cluster_id,
        imported=archive.info.imported,
        topics=tuple(state.topics.values()),
        segments=state.segments,
        coverage=held_ranges(state),
        gaps=tuple(gap for gaps in state.gaps.values() for gap in gaps),
        groups=state.groups,
    )


def held_ranges(state: ArchiveState) -> dict[Partition, list[Range]]:
    """What is archived of each partition and was not removed by retention since."""
    held: dict[Partition, list[Range]] = {}
    for key, ranges in state.coverage.items():
        left = [part for start, end in ranges for part in _without(start, end, state.removed.get(key, ()))]
        if left:
            held[key] = left
    return held


def _without(start: int, end: int, removed: Sequence[Range]) -> Iterator[Range]:
    at = start
    for low, high in removed:
        if high <= at or low >= end:
            continue
        if low > at:
            yield at, low
        at = high
    if at < end:
        yield at, end


def check_one_incarnation(source: Source, target: FormatName) -> None:
    """Raises ArchiveMismatch if two incarnations of a topic would come to lie in one folder."""
    if target is FormatName.KAFKA:
        return
    seen: dict[str, str] = {}
    for topic in source.topics:
        other = seen.setdefault(topic.name, topic.topic_id)
        if other != topic.topic_id:
            raise ArchiveMismatch(
                f"Topic {topic.name!r} was deleted and created again: the source holds it with topic ids {other} and "
                f"{topic.topic_id}, and format {target} has one folder for both.",
                hint="Convert with --format Kafka, which keeps them apart, or leave the topic out with --exclude.",
            )


def select(source: Source, names: frozenset[str]) -> Source:
    """The source with these topics only."""
    ids = {topic.topic_id for topic in source.topics if topic.name in names}
    return Source(
        storage=source.storage,
        identity=source.identity,
        format=source.format,
        cluster_id=source.cluster_id,
        imported=source.imported,
        topics=tuple(topic for topic in source.topics if topic.topic_id in ids),
        segments={key: source.segments[key] for key in source.segments if key[0] in ids},
        coverage={key: source.coverage[key] for key in source.coverage if key[0] in ids},
        gaps=tuple(gap for gap in source.gaps if gap.topic_id in ids),
        groups=tuple(group for group in source.groups if group.topic_id in ids),
        notes=source.notes,
    )


def is_kafka(segment: SourceSegment) -> bool:
    """Whether the segment holds record batches as Kafka has them."""
    return isinstance(segment, SegmentEntry) and segment.layout is Layout.KAFKA
