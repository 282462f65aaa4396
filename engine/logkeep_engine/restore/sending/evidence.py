"""The least that a target holds when a restore into it was done: what bears out a note that says so.

Notes in place of the state (`result.json`, `counted.json`, offset maps) are claims, so each is held to the archive
and to the brokers: every partition of the target must reach as far as the records of the archive take it. Ends of logs
never fall, whatever retention or compaction removes, and others may only add to them. Where transactions, times or
damage leave the number of records open, a partition may hold fewer, and nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Collection

from logkeep_engine.errors import StateAltered
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.model.context import Planned
from logkeep_engine.restore.model.offset_map import PartitionSummary
from logkeep_engine.restore.model.plan import TopicPlan
from logkeep_engine.restore.model.point_preview import previewed
from logkeep_engine.restore.model.state import ALTERED, RestoreState
from logkeep_engine.restore.sending.work import with_task

Where = tuple[str, int]


def lacking(planned: Planned, control: ControlPlane) -> str:
    """Tell what the brokers lack of a restore that is said to be done: empty if they lack nothing that is known for
    sure."""
    plan = planned.plan
    starts = {(topic.target, part.target): part.start for topic in plan.topics for part in topic.partitions}
    ends = control.latest_offsets(starts)
    for topic in plan.topics:
        sure = _sure(planned, topic)
        if topic.divided:
            held = sum(ends.get(where, 0) - start for where, start in starts.items() if where[0] == topic.target)
            if held < sum(sure.values()):
                return f"topic {topic.target!r} holds {held} of the {sum(sure.values())} records"
            continue
        for part in topic.partitions:
            least = part.extent.end if part.extent is not None else part.start + sure.get(part.partition, 0)
            end = ends.get((topic.target, part.target), 0)
            if end < least:
                return f"topic {topic.target!r} partition {part.target} ends at offset {end}, not at {least} or later"
    return ""


def _sure(planned: Planned, topic: TopicPlan) -> dict[int, int]:
    """Return the records that each archived partition of a topic gives, where their number is known for sure."""
    entry = planned.archived.topics[topic.topic_id]
    return {
        part.partition: part.records
        for part in previewed(planned.archived, [entry], planned.plan.point)
        if part.exact and (topic.topic_id, part.partition) not in planned.surveys
    }


def refuse_other_maps(planned: Planned, done: Collection[PartitionSummary], state: RestoreState) -> None:
    """Raises StateAltered for notes about partitions that are done which are not of this plan, or count other records
    than the archive has."""
    work = {(topic.target, part.partition): topic for topic, part in with_task(planned)}
    known = {target for target, _ in work}
    sure = {topic.target: _sure(planned, topic) for topic in planned.plan.topics}
    for item in done:
        where = (item.target_topic, item.source_partition)
        topic = work.get(where)
        if item.target_topic in known and (topic is None or _source(item) != (topic.source, topic.topic_id)):
            raise _altered(state, where, "and it is of another archived partition")
        parts = () if topic is None else topic.partitions
        if topic is None or [part.target for part in parts] != [outlet.partition for outlet in item.outlets]:
            strange = {outlet.partition for outlet in item.outlets}.difference(part.target for part in parts)
            where = where[0], min(strange, default=where[1])
            raise _altered(state, where, "which the restore does not write to")
        records = sure[topic.target].get(item.source_partition)
        if records is not None and item.records != records:
            raise _altered(state, where, f"and says that {item.records} records went there: the archive has {records}")
        for part, outlet in zip(parts, item.outlets, strict=True):
            if outlet.start != part.start or outlet.end < outlet.start:
                raise _altered(state, where, f"and it begins at offset {outlet.start}, not at {part.start}")


def _source(item: PartitionSummary) -> tuple[str, str]:
    return item.source_topic, item.source_topic_id


def _altered(state: RestoreState, where: Where, what: str) -> StateAltered:
    return StateAltered(
        f"{state.storage.uri}/{state.folder}: an offset map is of topic {where[0]!r} partition {where[1]}, {what}; it "
        "was not used",
        hint=ALTERED,
    )
