"""The plan of a conversion: which range of a source each task converts. It is pure, and stored before the first task,
so a run that starts again does the same.

A chunk is a range of offsets of one partition that begins where an archived range or a segment begins; its segments are
the slices that lie in it. Ranges that the target has already are left out, so converting again adds what the source has
gained, and nothing else: also of a part of a snapshot, or a segment that was read again, across their bounds.

A source without a catalog is known by its segments alone, so the plan keeps them too. The tool that wrote them may add
to the last one: a chunk then has the slice of it that is new. A new segment in a range that the target already has is
refused, since no chunk would ever have it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry, Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import NOWHERE
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import CONVERT_PLAN, row_out, topic_in, topic_out
from logkeep_engine.archive.ranges import Range, together
from logkeep_engine.convert.source import ConvertSource, SourceSegment, WholeSegment, cut_segment, path_of
from logkeep_engine.errors import ArchiveMismatch
from logkeep_engine.stored import reading

CHUNK_BYTES = 128 << 20


@dataclass(frozen=True, slots=True)
class ConvertChunk:
    """Offsets [start, end) of a partition, and how many bytes of segments they are in the source."""

    number: int
    topic_id: str
    partition: int
    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SeenSegment:
    """A segment as a run has seen it."""

    base_offset: int
    next_offset: int
    records: int


@dataclass(frozen=True, slots=True)
class ConvertPlan:
    """The plan of a run. `options` are those that change the bytes that are written, as text. `seen` are all segments
    of a source without a catalog, by topic id and partition, in the order of their offsets.

    `begins` has the intended first offset of each partition whose beginning the source misses
    (`archive.reading.beginnings` reads it). For `begun` see `archiving.check_beginning`.
    """

    run_id: str
    source: str
    target: str
    options: Mapping[str, str]
    topics: tuple[TopicEntry, ...]
    gaps: tuple[Gap, ...]
    groups: tuple[GroupEntry, ...]
    chunks: tuple[ConvertChunk, ...]
    seen: Mapping[Partition, tuple[SeenSegment, ...]] = field(default_factory=dict)
    begins: Mapping[Partition, int] = field(default_factory=dict)
    begun: int = 0

    def to_json(self) -> bytes:
        """Return the document that is stored in the target."""
        return CONVERT_PLAN.dumps(
            {
                "runId": self.run_id,
                "source": self.source,
                "target": self.target,
                "options": dict(self.options),
                "topics": [
                    {
                        **topic_out(topic),
                        "compactedUntil": topic.compacted_until,
                        "cleanedUntil": topic.cleaned_until,
                    }
                    for topic in self.topics
                ],
                "gaps": [row_out(gap) for gap in self.gaps],
                "groups": [row_out(group) for group in self.groups],
                "pieces": [
                    [chunk.topic_id, chunk.partition, chunk.start, chunk.end, chunk.bytes] for chunk in self.chunks
                ],
                "seen": [
                    [*key, [[item.base_offset, item.next_offset, item.records] for item in self.seen[key]]]
                    for key in self.seen
                ],
                "begins": [[*key, self.begins[key]] for key in self.begins],
                "begun": self.begun,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, name: str) -> ConvertPlan:
        """Read a stored plan; `name` is the object's. Raises ArchiveMismatch for another version's, and ArchiveDamaged
        for what is not a plan."""
        with reading(CONVERT_PLAN, data, name, hint="Start a run with another --run-id.") as body:
            return cls(
                run_id=body["runId"],
                source=body["source"],
                target=body["target"],
                options=body["options"],
                topics=tuple(map(topic_in, body["topics"])),
                gaps=tuple(Gap(*row) for row in body["gaps"]),
                groups=tuple(GroupEntry(*row) for row in body["groups"]),
                chunks=tuple(ConvertChunk(number, *row) for number, row in enumerate(body["pieces"])),
                seen={
                    (topic_id, partition): tuple(SeenSegment(*row) for row in rows)
                    for topic_id, partition, rows in body["seen"]
                },
                begins={(topic_id, partition): begins for topic_id, partition, begins in body["begins"]},
                begun=body["begun"],
            )


def make_plan(
    run_id: str,
    source: ConvertSource,
    target: str,
    options: Mapping[str, str],
    state: ArchiveState,
    chunk_bytes: int = CHUNK_BYTES,
) -> ConvertPlan:
    """Plan all that the target at `state` lacks of `source`."""
    parts = _lacking(source, sorted(source.coverage), state, chunk_bytes)
    gaps = [
        replace(gap, start=start, end=end)
        for gap in source.gaps
        for start, end in state.uncovered(gap.topic_id, gap.partition, gap.start, gap.end)
    ]
    return ConvertPlan(
        run_id=run_id,
        source=source.identity,
        target=target,
        options=dict(options),
        topics=source.topics,
        gaps=tuple(gaps),
        groups=source.groups,
        chunks=tuple(ConvertChunk(number, *part) for number, part in enumerate(parts)),
        seen={} if source.catalogued else {key: tuple(map(_seen, source.segments[key])) for key in source.segments},
        begins=source.begins,
    )


def _lacking(
    source: ConvertSource, keys: Iterable[Partition], state: ArchiveState, chunk_bytes: int
) -> Iterator[tuple[str, int, int, int, int]]:
    """Yield the chunks of what these partitions of the source have and an archive at `state` has not."""
    for key in keys:
        segments = source.segments.get(key, ())
        for covered in source.coverage.get(key, ()):
            for start, end in state.uncovered(*key, *covered):
                for part in cut(clipped(segments, start, end), start, end, chunk_bytes):
                    yield *key, *part


def up_to_exact(
    plan: ConvertPlan, source: ConvertSource, state: ArchiveState, chunk_bytes: int = CHUNK_BYTES
) -> ConvertPlan:
    """Return the plan of a run that is started again, and what else of its partitions the target at `state` must have
    to be exact. If a snapshot or a new generation stands for the planned part of the log since, that has no records
    which were overwritten after it. So the part after it is converted, too."""
    ends: dict[Partition, int] = {}
    for chunk in plan.chunks:
        key = (chunk.topic_id, chunk.partition)
        ends[key] = max(chunk.end, ends.get(key, 0))
    wider = [key for key, end in sorted(ends.items()) if end < source.exact.get(key, 0) < NOWHERE]
    if not wider:
        return plan
    done = state.shared()  # only the coverage is replaced: the rest may be large, and is not copied
    done.coverage = {key: together(state.coverage.get(key, ()), _done(plan.chunks).coverage[key]) for key in wider}
    parts = _lacking(source, wider, done, chunk_bytes)
    more = (ConvertChunk(number, *part) for number, part in enumerate(parts, len(plan.chunks)))
    return replace(plan, chunks=(*plan.chunks, *more))


def cut(segments: Iterable[SourceSegment], start: int, end: int, chunk_bytes: int) -> list[tuple[int, int, int]]:
    """Divide [start, end), which has these segments, into chunks: (start, end, bytes) of each. A chunk has whole
    segments, until they are `chunk_bytes` together."""
    chunks: list[tuple[int, int, int]] = []
    begin, size = start, 0
    for segment in segments:
        if size >= chunk_bytes:
            chunks.append((begin, segment.base_offset, size))
            begin, size = segment.base_offset, 0
        size += segment.bytes
    chunks.append((begin, end, size))
    return chunks


def clipped(segments: Sequence[WholeSegment], start: int, end: int) -> Iterator[SourceSegment]:
    """Yield the segments, or slices of them, that lie in [start, end)."""
    # One earlier: it may reach beyond `start`.
    for at in range(max(0, bisect_right(segments, start, key=_base) - 1), len(segments)):
        segment = segments[at]
        if segment.base_offset >= end:
            return
        if segment.next_offset > start:
            yield cut_segment(segment, start, end)


def _base(segment: WholeSegment) -> int:
    return segment.base_offset


def _seen(segment: WholeSegment) -> SeenSegment:
    return SeenSegment(segment.base_offset, segment.next_offset, segment.records)


def segments_of(source: ConvertSource, chunks: Sequence[ConvertChunk]) -> dict[int, tuple[SourceSegment, ...]]:
    """Return the segments of each chunk by its number. Each partition of the source is read once."""
    found: dict[int, tuple[SourceSegment, ...]] = {}
    by_partition: dict[Partition, list[ConvertChunk]] = {}
    for chunk in chunks:
        by_partition.setdefault((chunk.topic_id, chunk.partition), []).append(chunk)
    for key, parts in by_partition.items():
        segments = list(source.segments.get(key, ()))
        for chunk in parts:
            found[chunk.number] = tuple(clipped(segments, chunk.start, chunk.end))
    return found


def open_chunks(plan: ConvertPlan, state: ArchiveState) -> list[ConvertChunk]:
    """Return the chunks that the target does not have yet: a chunk is committed whole."""
    return [chunk for chunk in plan.chunks if state.uncovered(chunk.topic_id, chunk.partition, chunk.start, chunk.end)]


def check_covers(source: ConvertSource, plan: ConvertPlan) -> None:
    """Raises ArchiveMismatch if the source no longer holds something that was planned when the run began."""
    for chunk in plan.chunks:
        ranges: Sequence[Range] = source.coverage.get((chunk.topic_id, chunk.partition), ())
        if not any(start <= chunk.start and chunk.end <= end for start, end in ranges):
            raise _gone(source, plan, (chunk.topic_id, chunk.partition), chunk.start, chunk.end)
    planned = _done(plan.chunks)
    for key, seen in plan.seen.items():
        held = {segment.base_offset: segment.next_offset for segment in source.segments.get(key, ())}
        for item in seen:
            start, end = item.base_offset, item.next_offset
            if held.get(start, 0) < end and not _is_free(planned, key, start, end):
                raise _gone(source, plan, key, start, end)


def _gone(source: ConvertSource, plan: ConvertPlan, key: Partition, start: int, end: int) -> ArchiveMismatch:
    name = next(topic.name for topic in plan.topics if topic.topic_id == key[0])
    old_ends = source.leaders[key].old_ends if key in source.leaders else ()
    cut_off = max((offset for _, offset in old_ends if offset < end), default=None)
    why = "Retention may have removed them"
    if cut_off is not None:
        why = f"Its log was cut off in the cluster at offset {cut_off}, or retention has removed them"
    return ArchiveMismatch(
        f"The source no longer holds offsets {start} to {end - 1} of topic {name!r} partition {key[1]}, "
        f"which run {plan.run_id} was started to convert.",
        hint=f"{why}: convert with a new --run-id into a new folder.",
    )


def check_additions(
    source: ConvertSource, earlier: Iterable[ConvertPlan], state: ArchiveState, chunks: Sequence[ConvertChunk] = ()
) -> None:
    """Raises ArchiveMismatch, which names the segment, if a segment of a source without a catalog has records that no
    run has seen in a range that the target already has at `state`, or will have with `chunks`: these records would
    never be converted.

    `earlier` are the plans of the target's runs, the last one first, which knows what was there. Earlier plans are
    asked only about partitions that it has not seen. Without any plan nothing is known.
    """
    if source.catalogued:
        return
    known: dict[Partition, tuple[SeenSegment, ...]] = {}
    for plan in earlier:
        known = {**plan.seen, **known}
        if known.keys() >= source.segments.keys():  # each plan costs a request: older ones would add nothing
            break
    planned = _done(chunks)
    for key in sorted(source.segments):
        before = {item.base_offset: item for item in known.get(key, ())}
        for segment in source.segments[key]:
            start, end = _unseen(_seen(segment), before.get(segment.base_offset))
            if start < end and not (_is_free(state, key, start, end) and _is_free(planned, key, start, end)):
                raise _late(source, key, segment, start, end)


def _unseen(now: SeenSegment, before: SeenSegment | None) -> Range:
    """Return the range in which the segment has records that were not seen: its end if it has grown, all of it if it is
    new or another."""
    if before == now:
        return now.next_offset, now.next_offset
    if before is not None and before.next_offset < now.next_offset and before.records < now.records:
        return before.next_offset, now.next_offset
    return now.base_offset, now.next_offset


def _done(chunks: Iterable[ConvertChunk]) -> ArchiveState:
    """Return the state of an archive that has these chunks and nothing else."""
    state = ArchiveState()
    state.add_facts((), (Coverage(item.topic_id, item.partition, item.start, item.end) for item in chunks), (), ())
    return state


def _is_free(state: ArchiveState, key: Partition, start: int, end: int) -> bool:
    return state.uncovered(*key, start, end) == [(start, end)]


def _late(source: ConvertSource, key: Partition, segment: WholeSegment, start: int, end: int) -> ArchiveMismatch:
    topic = source.topic_names[key[0]]
    return ArchiveMismatch(
        f"{source.storage.uri}/{path_of(segment, topic)} holds offsets {start} to {end - 1} of topic {topic!r} "
        f"partition {key[1]}. The target was made past them, and no plan of its runs knows the segment as it is now.",
        hint="Import into a new folder: nothing can be added between what was imported.",
    )
