"""The source of a conversion: an archive, or what another tool wrote, as facts of the same shape.

    source = archive_source(storage)
    source.segments[topic_id, partition]      # in the order of their offsets

The conversion knows nothing else of the place that records come from; `read.read_records` knows how to read each
segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, Partition, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import inexact_below, with_snapshots
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.convert.lineage import Leaders, leaders_of
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage

NO_CLUSTER = "-"
"""The cluster id of an archive that was made from what another tool wrote."""

REASON_REMOVED = "removed by retention from the archive that was converted"


@dataclass(frozen=True, slots=True)
class ForeignSegment:
    """A segment of another tool that the catalog cannot describe; the tool's manifest says where it is. Its offsets are
    in [base_offset, next_offset); `bytes` is the object's size as far as it is known."""

    path: str
    base_offset: int
    next_offset: int
    records: int
    bytes: int


WholeSegment = SegmentEntry | ForeignSegment


@dataclass(frozen=True, slots=True)
class ForeignSlice:
    """The slice of another tool's segment with offsets in [start, end). `bytes` is the size of the whole segment, since
    all of it is read."""

    segment: ForeignSegment
    start: int
    end: int

    @property
    def base_offset(self) -> int:
        return max(self.start, self.segment.base_offset)

    @property
    def next_offset(self) -> int:
        return min(self.end, self.segment.next_offset)

    @property
    def bytes(self) -> int:
        return self.segment.bytes


SourceSegment = WholeSegment | ForeignSlice


def cut_segment(segment: WholeSegment, start: int, end: int) -> SourceSegment:
    """Return the part of a segment that lies in [start, end), which has an offset of it."""
    if isinstance(segment, SegmentEntry):
        return segment.cut(start, end)
    is_whole = start <= segment.base_offset and segment.next_offset <= end
    return segment if is_whole else ForeignSlice(segment, start, end)


@dataclass(frozen=True)
class ConvertSource:
    """The source of a conversion. `identity` tells it from other sources, in all runs: it is an archive's id, or the
    place of the other tool's files.

    `format` is the archive's, None for a tool's own. The result of a run repeats `notes`. `catalogued`: a catalog says
    what is covered, and segments never change. Without a catalog a segment may be longer the next time, or come to lie
    between others.

    `exact` has the offsets below which partitions are not exact, see `history.compacted.inexact_below`.

    `begins` has the intended first offset of partitions whose first offsets are missing, see
    `archive.reading.beginnings`. `transactions.look_through` finds the `aborted` transactions. `cluster_state` is what
    the last run has archived of the cluster's users. `commit` is the last one of an archive's catalog that the
    conversion knows.
    """

    storage: Storage
    identity: str
    format: FormatName | None
    cluster_id: str
    imported: bool
    topics: tuple[TopicEntry, ...]
    segments: Mapping[Partition, Sequence[WholeSegment]]
    coverage: Mapping[Partition, Sequence[Range]]
    gaps: tuple[Gap, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    notes: tuple[str, ...] = ()
    catalogued: bool = True
    begins: Mapping[Partition, int] = field(default_factory=dict)
    aborted: Mapping[Partition, Sequence[AbortedTxn]] = field(default_factory=dict)
    leaders: Mapping[Partition, Leaders] = field(default_factory=dict)
    exact: Mapping[Partition, int] = field(default_factory=dict)
    cluster_state: ClusterState | None = None
    commit: int | None = None

    @property
    def topic_names(self) -> dict[str, str]:
        """The names of the topics by topic id."""
        return {topic.topic_id: topic.name for topic in self.topics}


def archive_source(storage: Storage) -> ConvertSource:
    """Return the archive at `storage` as the last successful run has left it, with the whole log where that is there.
    Raises ArchiveMissing, ArchiveDamaged, ArchiveMismatch."""
    archive = Archive.open(storage)
    chosen = view.choose(archive)
    state = with_snapshots(chosen.state, where_needed=True)
    end = next(view.ends_of_runs(archive, state.commit), None)
    if not state.topics:
        raise ArchiveMismatch(
            f"The archive at {storage.uri} holds no topic: there is nothing to convert.",
            hint="Look at it with `logkeep inspect`.",
        )
    return ConvertSource(
        storage=archive.storage,
        identity=archive.info.archive_id,
        format=archive.info.segments,
        cluster_id=archive.info.cluster_id,
        imported=archive.info.imported,
        topics=tuple(state.topics.values()),
        segments=state.segments,
        coverage=held_ranges(state),
        gaps=(*(gap for gaps in state.gaps.values() for gap in gaps), *removed_gaps(state)),
        groups=state.groups,
        notes=chosen.warnings,
        begins=missing_beginnings(archive, state),
        leaders=leaders_of(state),
        exact=inexact_below(chosen.state),
        cluster_state=None if end is None else read_cluster_state(archive, end),
        commit=state.commit,
    )


def held_ranges(state: ArchiveState) -> dict[Partition, list[Range]]:
    """Return the ranges of each partition that are archived and were not removed by retention since."""
    return {key: kept for key in state.coverage if (kept := state.kept(*key))}


def removed_gaps(state: ArchiveState) -> Iterator[Gap]:
    """Gaps for what was archived and then removed by retention: the new archive never has it, and no run may fetch it
    again."""
    for key, removed in state.removed.items():
        for covered in state.coverage.get(key, ()):
            for low, high in removed:
                start, end = max(low, covered[0]), min(high, covered[1])
                if start < end:
                    yield Gap(*key, start, end, REASON_REMOVED)


def check_one_incarnation(source: ConvertSource, target: FormatName) -> None:
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


def select(source: ConvertSource, names: frozenset[str]) -> ConvertSource:
    """Return the source with these topics only."""
    ids = {topic.topic_id for topic in source.topics if topic.name in names}
    return replace(
        source,
        topics=tuple(topic for topic in source.topics if topic.topic_id in ids),
        segments={key: source.segments[key] for key in source.segments if key[0] in ids},
        coverage={key: source.coverage[key] for key in source.coverage if key[0] in ids},
        gaps=tuple(gap for gap in source.gaps if gap.topic_id in ids),
        groups=tuple(group for group in source.groups if group.topic_id in ids),
        begins={key: source.begins[key] for key in source.begins if key[0] in ids},
        leaders={key: source.leaders[key] for key in source.leaders if key[0] in ids},
        exact={key: source.exact[key] for key in source.exact if key[0] in ids},
    )


def is_kafka(segment: SourceSegment) -> bool:
    """Return whether the segment holds record batches as Kafka has them."""
    return isinstance(segment, SegmentEntry) and is_batched(segment.layout)


def path_of(segment: WholeSegment, topic: str) -> str:
    """Return where the records of a segment lie in the source. `topic` is the name."""
    return segment.path if isinstance(segment, ForeignSegment) else segment.stem(topic) + segment.log_suffix
