"""Finds out what a point would give, from the catalog and few bytes of the archive: nothing is written to Kafka for it.

Numbers of records are bounds. The catalog counts records of aborted transactions too, and only the records themselves
show how many of a batch lie within a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.moments import moment
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.restore.model import point as points
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import PointPlan, clip_of
from logkeep_engine.restore.model.point import PointGroups
from logkeep_engine.restore.streams.clip import Clip

FORMAT = 1
POINT = "point.json"


@dataclass(frozen=True, slots=True)
class PreviewedPartition:
    """The part of a partition that would be restored: offsets from `start` on and below `end`, of those that are
    archived up to `archived_end`, and at most this many `records` in `batches` and `bytes`. `exact`: these are the
    numbers, and no bounds."""

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    archived_end: int
    records: int
    batches: int = 0
    bytes: int = 0
    exact: bool = False


@dataclass(frozen=True)
class PointPreview:
    """All that a point would give. `groups` says whose positions consumer groups would get."""

    partitions: tuple[PreviewedPartition, ...]
    groups: PointGroups
    warnings: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """The most records that would be restored."""
        return sum(item.records for item in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return the document, whose partitions are rows."""
        columns = ["topic", "topicId", "partition", "start", "end", "archivedEnd", "recordsAtMost"]
        return {
            "format": FORMAT,
            "recordsAtMost": self.records,
            "groups": {
                "runId": self.groups.run_id,
                "time": self.groups.time,
                "positions": len(self.groups.groups),
            },
            "warnings": list(self.warnings),
            "columns": columns,
            "partitions": [
                [item.topic, item.topic_id, item.partition, item.start, item.end, item.archived_end, item.records]
                for item in self.partitions
            ],
        }

    def __str__(self) -> str:
        cut = sum(item.end < item.archived_end for item in self.partitions)
        ends = f"{cut} of {so_many(len(self.partitions), 'partition')} end before their archived end"
        return f"at most {so_many(self.records, 'record')}; {ends}; {describe_groups(self.groups)}"


def describe_groups(groups: PointGroups) -> str:
    """Whose positions consumer groups would get."""
    if groups.run_id:
        return f"consumer groups as run {groups.run_id} has archived them, which ended at {moment(groups.time)}"
    if groups.groups:
        return "consumer groups as they were archived last before these offsets"
    return "no positions of consumer groups were archived before the point"


def preview(archive: Archive, archived: ArchiveState, topics: Sequence[TopicEntry], point: PointSpec) -> PointPreview:
    """Find out what a restore of these topics to the point would give. Raises SpecError for offsets that the archive
    does not have, and ArchiveDamaged for damage on the way."""
    made = points.plan_point(archive, archived, topics, point)
    assert made.plan is not None
    view = points.state_at_point(archive, archived, point, made.plan)
    groups = points.groups_at(archive, archived, point, made.plan)
    return PointPreview(tuple(previewed(view, topics, made.plan)), groups, made.warnings)


def tell(context: RestoreContext, planned: Planned) -> None:
    """Write down what the point of a restore gives, and report it, before the first record is written to Kafka."""
    found = of_restore(context, planned)
    if found is None:
        return
    context.state.storage.put(context.state.file(POINT), json.dumps(found.to_json(), ensure_ascii=False).encode())
    context.reporter.point(str(found))


def of_restore(context: RestoreContext, planned: Planned) -> PointPreview | None:
    """Return the part of the archive that the point of a restore gives, None if it has no point."""
    spec, plan = context.spec.point, planned.plan.point
    if spec is None or plan is None:
        return None
    topics = [planned.archived.topics[topic.topic_id] for topic in planned.plan.topics]
    groups = points.groups_at(context.archive, planned.archived, spec, plan)
    return PointPreview(tuple(previewed(planned.archived, topics, plan)), groups)


def previewed(
    archived: ArchiveState, topics: Iterable[TopicEntry], plan: PointPlan | None
) -> Iterator[PreviewedPartition]:
    """Yield the parts of all partitions of these topics that would be restored. Without a plan of a point it is all."""
    for topic in topics:
        for partition in range(topic.partitions):
            key = (topic.topic_id, partition)
            kept = archived.kept(*key)
            start, end = (kept[0][0], kept[-1][1]) if kept else (0, 0)
            clip = clip_of(plan, key)
            wanted = [entry for entry in archived.segments.get(key, ()) if clip.reaches(entry)]
            wanted_end = min(clip.stop, end)
            yield PreviewedPartition(
                topic.name,
                topic.topic_id,
                partition,
                min(start, wanted_end),
                wanted_end,
                end,
                sum(clip.most_of(entry) for entry in wanted),
                batches=sum(entry.batches for entry in wanted),
                bytes=sum(entry.bytes for entry in wanted),
                exact=all(_is_whole(entry, clip) for entry in wanted),
            )


def _is_whole(entry: SegmentEntry, clip: Clip) -> bool:
    """Return whether every record of a segment is needed, by the catalog alone. Of transactions some may have been
    aborted."""
    return not (clip.timed or entry.transactional) and entry.next_offset <= clip.stop
