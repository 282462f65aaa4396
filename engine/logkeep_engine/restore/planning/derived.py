"""Holds a stored plan to what the spec, the archive and the cluster say: the plan is a claim.

A user who may write to the place of a restore's state could have put a plan there, or altered one. A run therefore
derives its plan again and refuses a stored one that says otherwise: which topics go where, which partitions have
something to restore, what is created and what is deleted, up to which point. It takes from the stored plan only what a
later start cannot find out: producer ids, and the ends and limits of topics that were there before.

    planned, erased = derived(context, plan, name)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.archive.catalog.held_tables import deleted
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading import view
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.restore_spec import IfTopicExists, KafkaRestoreSpec, OnDamagedArchive, RestoreOffsets
from logkeep_engine.errors import ArchiveDamaged, ObjectCold, SegmentsRemoved, StateAltered
from logkeep_engine.restore.claim.stored_plan import overtaken
from logkeep_engine.restore.model import point as points
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import (
    NEEDS_PRODUCER_ID,
    NO_TASK,
    PartitionPlan,
    PointPlan,
    RestorePlan,
    TopicPlan,
)
from logkeep_engine.restore.model.selection import Choice, only_chosen, shown
from logkeep_engine.restore.model.state import ALTERED
from logkeep_engine.restore.model.topics import ExistingTopic, extents_of, plan_topic, with_contents
from logkeep_engine.restore.streams.same import Extent
from logkeep_engine.storage import Storage


def derived(context: RestoreContext, known: RestorePlan, name: str, *, done: bool = False) -> tuple[Planned, bool]:
    """Return the stored plan with the archive for which it was made, and whether an erasure has taken records of what
    it restores out of the archive since: then only the topics themselves are compared. `name` is the object of the
    plan. `done`: all is restored, so its point is not compared if the objects that show it are cold again.

    Raises StateAltered for a plan that does not follow from the spec and the archive, SegmentsRemoved if that cannot be
    known any more, and ArchiveMismatch if an erasure has left nothing of an incarnation that the plan has.
    """
    archive, spec = context.archive, context.spec
    refuse_other_ways(known, spec, name)
    newest = archive.load()
    seen_then = view.state_at(archive, known.commit, newest)
    archived, selection = points.choose_topics(archive, seen_then, spec)
    archived = only_chosen(archived, spec.topics.partitions)
    topics = [choice.source for choice in selection.choices]
    seen, whole = points.at_point(archive, archived, spec.point, known.point)
    seen, whole = (only_chosen(state, spec.topics.partitions) for state in (seen, whole))
    extents = extents_of(spec.offsets, seen, selection.choices, known.point)
    replicas = spec.topics.replication_factor
    wanted = derive_topics(known, selection.choices, seen, whole, replicas=replicas, extents=extents)
    _refuse_unknowable(known, wanted, seen_then, newest)
    erased = _has_others(known, wanted) and _erased_since(archive, known, newest)
    if erased and _other_incarnations(known, wanted):  # the erasure has left nothing of those that were taken
        raise overtaken(known)
    if not erased:
        try:
            bounds = _bounds(archive.storage, archived, topics, spec.point, known)
            erased = bounds != known.point and _erased_since(archive, known, newest)  # also what showed its point
            if not erased:
                refuse_other_point(known, bounds, name)
        except ObjectCold:
            if not done:
                raise
        except ArchiveDamaged:  # a reader of what was deleted gets the error when it is read
            if not _deleted_since(archived, topics, newest):
                raise
    refuse_other_topics(known, wanted, name, whole=not erased)
    return Planned(known, seen, fresh=False), erased


def _has_others(known: RestorePlan, wanted: Mapping[str, TopicPlan]) -> bool:
    """Return whether other segments are found of a topic than when the plan was made."""
    return any(topic.target in wanted and topic.segments != wanted[topic.target].segments for topic in known.topics)


def _erased_since(archive: Archive, known: RestorePlan, newest: ArchiveState) -> bool:
    """Return whether an erasure has replaced segments of the topics since the plan was made."""
    topic_ids = [topic.topic_id for topic in known.topics]
    return archive.load_at(known.known_commit).replaced_in(topic_ids) != newest.replaced_in(topic_ids)


def _other_incarnations(known: RestorePlan, wanted: Mapping[str, TopicPlan]) -> set[str]:
    """Return the topics of which another incarnation is found than the plan has."""
    return {
        topic.source
        for topic in known.topics
        if topic.target in wanted and topic.topic_id != wanted[topic.target].topic_id
    }


def _refuse_unknowable(
    known: RestorePlan, wanted: Mapping[str, TopicPlan], seen_then: ArchiveState, newest: ArchiveState
) -> None:
    """Raises SegmentsRemoved where another incarnation is found than the plan has, and objects are deleted that show
    which has records at the point."""
    names = _other_incarnations(known, wanted)
    topics = [topic for topic in seen_then.topics.values() if topic.name in names]
    if _deleted_since(seen_then, topics, newest):
        raise SegmentsRemoved(
            f"Retention has deleted segments of {shown(sorted(names))} since run {known.run_id} began, so it is "
            "unknown which incarnation has records at the point: the restore cannot continue.",
            hint="Start another restore, and name the incarnation in spec.source.topicIds.",
        )


def _deleted_since(archived: ArchiveState, topics: Sequence[TopicEntry], newest: ArchiveState) -> bool:
    """Return whether retention, or a new generation, has taken objects of these topics out of the archive."""
    keys = ((topic.topic_id, number) for topic in topics for number in range(topic.partitions))
    return any(deleted(newest, key, archived.segments.get(key, ())) for key in keys)


def _bounds(
    storage: Storage, archived: ArchiveState, topics: Sequence[TopicEntry], point: PointSpec | None, known: RestorePlan
) -> PointPlan | None:
    """Return the point of the spec in these topics, None if it has none."""
    if point is None:
        return None
    if point.run is not None and known.point is not None:  # when the plan was made, only the plan knows
        return PointPlan(known.point.seen, newest=known.point.newest)
    return points.bounds_of_point(storage, archived, topics, point, seen=known.commit)


def derive_topics(
    plan: RestorePlan,
    choices: Sequence[Choice],
    archived: ArchiveState,
    whole: ArchiveState,
    *,
    replicas: int | None,
    extents: Mapping[str, Mapping[int, Extent]],
) -> dict[str, TopicPlan]:
    """Return the topics as a new plan would have them, by target, with what only the stored one knows. `archived` and
    `whole` are those of `point.at_point`. Pure."""
    known = {topic.target: topic for topic in plan.topics}
    made = (_derived(choice, known.get(choice.target), archived, replicas, extents) for choice in choices)
    return {topic.target: topic for topic in with_contents(made, whole, plan.point)}


def _derived(
    choice: Choice,
    known: TopicPlan | None,
    archived: ArchiveState,
    replicas: int | None,
    extents: Mapping[str, Mapping[int, Extent]],
) -> TopicPlan:
    there = known is not None and known.created is False
    topic = plan_topic(
        choice,
        {
            partition: archived.segments.get((choice.source.topic_id, partition), [])
            for partition in range(choice.source.partitions)
        },
        existing=ExistingTopic(choice.target, 0, {}) if there else None,
        end_offsets={part.target: part.start for part in known.partitions} if there and known is not None else {},
        replicas=replicas,
        extents=dict(found) if (found := extents.get(choice.target)) is not None else None,
        replaces="" if known is None else known.replaces,
    )
    cut = (archived.segments.cuts((choice.source.topic_id, number)) for number in range(choice.source.partitions))
    if known is not None and any(cut):  # segments that were merged since tell the largest batch of all that they have
        topic = replace(topic, max_batch_bytes=min(topic.max_batch_bytes, known.max_batch_bytes))
    if known is not None and topic.divided:  # `sending.division.partitioners` looks at what the records say of it
        topic = replace(topic, partitioner=known.partitioner)
    if known is None or not there:
        return topic
    return replace(topic, max_batch_bytes=known.max_batch_bytes, compacts=known.compacts, target_id=known.target_id)


def refuse_other_topics(plan: RestorePlan, derived: Mapping[str, TopicPlan], name: str, *, whole: bool) -> None:
    """Raises StateAltered for topics that the spec does not choose or name so, topics that the plan leaves out, and
    whatever else it says of a topic that does not follow from the spec and the archive. `name` is the stored plan's.
    Unless the archive is `whole` as it was then, only the topics themselves are compared."""
    targets = [topic.target for topic in plan.topics]
    strange = sorted(set(targets) - set(derived))
    missing = sorted(set(derived) - set(targets))
    if strange or len(set(targets)) < len(targets):
        raise _altered(name, f"it restores {shown(strange or targets)}, which the spec does not choose like this")
    if missing:
        raise _altered(name, f"it leaves out {shown(missing)}, which the spec chooses")
    for topic in plan.topics:
        wanted = derived[topic.target]
        known = replace(topic, partitions=tuple(map(_without_id, topic.partitions)))
        for field in fields(TopicPlan):
            if not whole and field.name not in _OF_THE_SPEC:
                continue
            said, own = getattr(known, field.name), getattr(wanted, field.name)
            if said != own:
                text = "" if field.name == "partitions" else f": {said!r} instead of {own!r}"
                raise _altered(
                    name, f"of topic {topic.target!r} it has another {_WORDS.get(field.name, field.name)}{text}"
                )


def _without_id(part: PartitionPlan) -> PartitionPlan:
    return part if part.producer_id == NO_TASK else replace(part, producer_id=NEEDS_PRODUCER_ID)


_OF_THE_SPEC = {"source", "topic_id", "target", "created", "partition_count", "divided"}
_WORDS = {
    "source": "archived topic",
    "topic_id": "topic id",
    "partition_count": "number of partitions",
    "replication_factor": "number of replicas",
    "max_batch_bytes": "largest batch",
    "partitions": "list of what goes to which partition",
    "segments": "digest of archived segments",
}


def refuse_other_point(plan: RestorePlan, derived: PointPlan | None, name: str) -> None:
    """Raises StateAltered for a plan up to another point than that of the spec, which is `derived` again."""
    if plan.point != derived:
        raise _altered(name, "it restores up to another point than spec.point says")


def refuse_other_ways(plan: RestorePlan, spec: KafkaRestoreSpec, name: str) -> None:
    """Raises StateAltered for a plan that appends, replaces, or leaves records out, where the spec does not say so."""
    how = spec.if_topic_exists
    written = sorted(topic.target for topic in plan.topics if not topic.created)
    if written and how in (IfTopicExists.FAIL, IfTopicExists.REPLACE):
        raise _altered(name, f"it appends to {shown(written)}, but spec.ifTopicExists is {how.value}")
    if written and spec.offsets is RestoreOffsets.SAME:  # it would remove what lies in front of the archived records
        raise _altered(name, f"it writes to {shown(written)}, which it has not created, but spec.offsets is Same")
    if how in (IfTopicExists.FAIL, IfTopicExists.APPEND):
        replaced = sorted(topic.target for topic in plan.topics if topic.replaces)
        if replaced:
            raise _altered(name, f"it replaces {shown(replaced)}, but spec.ifTopicExists is {how.value}")
    if spec.on_damaged_archive is OnDamagedArchive.REFUSE:
        damaged = sorted({item.topic_id for item in plan.surveys if item.survey.damaged or item.survey.lost})
        if damaged:
            raise _altered(name, f"it leaves out records of {shown(damaged)}, but spec.onDamagedArchive is Refuse")


def _altered(name: str, what: str) -> StateAltered:
    return StateAltered(f"{name}: {what}; it was not used", hint=ALTERED)
