"""The point of a restore: which state of the archive it sees, and where each partition ends.

    seen = choose(archive, spec.point)
    archived, selection = choose_topics(archive, seen.state, spec)
    made = plan_point(archive, archived, topics, spec.point)  # topics of the selection
    archived = state_at_point(archive, archived, spec.point, made.plan)

The plan keeps the point as offsets and times, so a later start has the same. Records of a time are those before it: a
record with exactly the time of the point is left out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state
from logkeep_engine.archive.catalog.facts import Commit, GroupEntry, Partition, TopicEntry
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.snapshots import NO_TIME
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import exact_by_snapshots, not_exact, with_snapshots
from logkeep_engine.archive.history.earlier import without_gone
from logkeep_engine.archive.moments import iso
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.reading.completeness import complete_until
from logkeep_engine.archive.reading.incarnations import Shows, taken_topics
from logkeep_engine.archive.reading.partition import first_since, open_partition
from logkeep_engine.archive.reading.view import ArchiveView
from logkeep_engine.archive.reading.visible import may_be_aborted, shows
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.point import PointSpec
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveDamaged, CorruptBatch, SpecError
from logkeep_engine.restore.model.inexact import (
    exact_nowhere,
    last_with,
    refuse_exact_nowhere,
    refuse_inexact,
    refuse_unsettled,
)
from logkeep_engine.restore.model.plan import PointPlan
from logkeep_engine.restore.model.selection import Choice, TopicSelection, select_topics, shown, with_branches
from logkeep_engine.restore.streams.clip import clipped
from logkeep_engine.storage import Storage


def source_state(archive: Archive, archived: ArchiveState, point: PointSpec | None) -> ClusterState | None:
    """Return the state of the cluster that the last run before the point has archived, None if there is none. Raises
    ArchiveDamaged."""
    end = end_before(archive, archived, point)
    return None if end is None else read_cluster_state(archive, end)


_READERS = 16
_RUNS_SHOWN = 5


def choose(archive: Archive, point: PointSpec | None) -> ArchiveView:
    """Return the state of the archive that a restore to the point sees. Raises SpecError for a run that has no such
    state."""
    if point is None or point.run is None:
        return view.choose(archive)
    newest = archive.load()
    run = newest.runs.get(point.run)
    if run is None:
        names = [run.run_id for run in newest.successes()[-_RUNS_SHOWN:]]
        raise SpecError(
            f"spec.point.run: the archive has no run {point.run!r}",
            hint=f"The last that succeeded are {', '.join(names) or 'none'}; logkeep inspect shows all.",
        )
    found = view.at_end_of(archive, newest, point.run)
    if found is None:
        raise SpecError(
            f"spec.point.run: run {point.run} is {run.outcome.value}, so the archive has no state at its end",
            hint="Choose a run that has succeeded, or a time with spec.point.asOf.",
        )
    return found


def choose_topics(archive: Archive, seen: ArchiveState, spec: KafkaRestoreSpec) -> tuple[ArchiveState, TopicSelection]:
    """Return the archive with the branches that the spec names, and the topics that it restores. Raises as
    `select_topics`."""
    archived = with_branches(seen, spec.source.topic_ids)
    sees = sees_at(archive.storage, archived, spec.point)
    return archived, select_topics(_counted_at(archived, spec.point), spec.topics, spec.source.topic_ids, sees)


def taken_at(archive: Archive, seen: ArchiveState, point: PointSpec) -> list[TopicEntry]:
    """Return the incarnations that a restore to the point takes by default."""
    shows_record = sees_at(archive.storage, seen, point)
    return list(taken_topics(_counted_at(seen, point), shows=shows_record).values())


def _counted_at(archived: ArchiveState, point: PointSpec | None) -> ArchiveState:
    """Return the state by which incarnations with records are reported. The newest snapshot lacks what was deleted
    since the time of a point: there the log says which records there were."""
    return with_snapshots(archived, where_needed=point is not None and point.time is not None)


@dataclass(frozen=True)
class PlannedPoint:
    """The point as the plan has it; `warnings` say what of it the archive does not have."""

    plan: PointPlan | None
    warnings: tuple[str, ...] = ()


def plan_point(
    archive: Archive, archived: ArchiveState, topics: Sequence[TopicEntry], point: PointSpec | None
) -> PlannedPoint:
    """Return the point in these topics. Raises SpecError for offsets that the archive does not have, or does not have
    any more. Without a point, what is missing is reported."""
    if point is None:
        lines = (*_not_exact(archived, topics, PointPlan(archived.commit)), *exact_nowhere(archived, topics))
        return PlannedPoint(None, lines)
    if point.run is not None:
        newest = archive.load()
        plan = PointPlan(last_with(archived, newest, topics, point.run), newest=newest.commit)
        refuse_exact_nowhere(archived, topics)
        _refuse_not_exact(_as_of(archive, archived, plan.seen, newest), topics, plan, newest)
        return PlannedPoint(plan)
    warnings = [] if point.time is None else _describe_incomplete(archive, archived, topics, point.time)
    if point.as_of is None:
        warnings += _describe_divided(archived, topics)
    plan = bounds_of_point(archive.storage, archived, topics, point, seen=archived.commit)
    refuse_inexact(archived, topics, plan.ends, plan.before)
    _refuse_not_exact(archived, topics, plan)
    refuse_unsettled(archive.storage, archived, topics, plan)
    return PlannedPoint(plan, tuple(warnings))


def bounds_of_point(
    storage: Storage, archived: ArchiveState, topics: Sequence[TopicEntry], point: PointSpec, *, seen: int
) -> PointPlan:
    """Return the offsets and times that a point means in these topics, whenever it is asked for the same state of the
    archive.

    Raises SpecError for offsets that the archive does not have, and what `ends_as_of` raises.
    """
    if point.run is not None:
        return PointPlan(seen)
    if point.as_of is not None:
        assert point.time is not None
        return PointPlan(seen, ends_as_of(storage, archived, topics, point.time))
    if point.offsets is not None:
        return PointPlan(seen, _ends(archived, topics, point))
    return PointPlan(seen, since=point.since, before=point.before)


def _as_of(archive: Archive, archived: ArchiveState, seen: int, newest: ArchiveState) -> ArchiveState:
    """Return an earlier state with what of it was there at commit `seen`, and is still there."""
    return without_gone(archived, view.state_at(archive, seen, newest), newest)


def _refuse_not_exact(
    archived: ArchiveState, topics: Iterable[TopicEntry], plan: PointPlan, later: ArchiveState | None = None
) -> None:
    for reason in _not_exact(archived, topics, plan, later):
        raise SpecError(f"spec.point: {reason}", hint="Choose a later point, or leave spec.point out.")


def _not_exact(
    archived: ArchiveState, topics: Iterable[TopicEntry], plan: PointPlan, later: ArchiveState | None = None
) -> Iterator[str]:
    """Partitions of compacted topics of which the archive does not have the state at the point any more."""
    names = {topic.topic_id: topic.name for topic in topics}
    for key in not_exact(archived, plan.ends, plan.before, later):
        if key[0] in names:
            yield _describe_not_exact(archived, key, names[key[0]])


def _describe_not_exact(archived: ArchiveState, key: Partition, name: str) -> str:
    first, removed = exact_by_snapshots(archived, key), archived.removed[key][-1][1]
    if first is None or first.time == NO_TIME:
        since = f"after offset {removed} only, and no older snapshot has what was written to its keys before"
    else:
        since = f"at offset {first.offset} and later, which is later than {iso(first.time)}"
    return f"topic {name} partition {key[1]}: retention has removed the log, and its state is kept {since}"


def ends_as_of(
    storage: Storage, archived: ArchiveState, topics: Iterable[TopicEntry], moment: int
) -> dict[Partition, int]:
    """Return the offset of the first record of that time (ms) or later, as a broker would find it, of each partition
    that has one. Raises ArchiveDamaged for damage on the way, and SpecError for a time of which retention has left
    nothing of a compacted topic."""

    def end(item: tuple[TopicEntry, int]) -> int | None:
        topic, partition = item
        key = (topic.topic_id, partition)
        found = first_in(topic, key)
        first = exact_by_snapshots(archived, key)
        is_later = first is not None and first.time != NO_TIME and first.time >= moment
        # Retention has not touched a point below all that it removed.
        if is_later and (found is None or found > archived.removed[key][0][0]):
            text = _describe_not_exact(archived, key, topic.name)
            raise SpecError(f"spec.point: {text}", hint="Choose a later point, or leave spec.point out.")
        return found

    def first_in(topic: TopicEntry, key: Partition) -> int | None:
        for entry in archived.segments.get(key, ()):
            if entry.times.max_timestamp >= moment:
                found = first_since(storage, topic.name, entry, moment)
                if found is not None:
                    return found
        return None

    places = [(topic, partition) for topic in topics for partition in range(topic.partitions)]
    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-point") as pool:
        ends = pool.map(end, places)
        return {
            (topic.topic_id, partition): found
            for (topic, partition), found in zip(places, ends, strict=True)
            if found is not None
        }


def _ends(archived: ArchiveState, topics: Sequence[TopicEntry], point: PointSpec) -> dict[Partition, int]:
    by_name = {topic.name: topic for topic in topics}
    ends = {}
    for item in point.offsets or ():
        topic = by_name.get(item.topic)
        if topic is None:
            raise SpecError(
                f"spec.point.offsets: topic {item.topic!r} is not restored",
                hint=f"Write the archived name of a topic that spec.topics chooses: {shown(sorted(by_name))}.",
            )
        where = f"spec.point.offsets: topic {item.topic} partition {item.partition}"
        if item.partition >= topic.partitions:
            raise SpecError(
                f"{where}: the archived topic has {so_many(topic.partitions, 'partition')}",
                hint=f"They are 0 to {topic.partitions - 1}.",
            )
        key = (topic.topic_id, item.partition)
        accounted = archived.accounted_for(*key)
        archived_end = accounted[-1][1] if accounted else 0
        if item.offset > archived_end:
            raise SpecError(
                f"{where}: offset {item.offset} is after the archived end {archived_end}",
                hint="Write an offset up to the archived end, or leave the partition out to restore all of it.",
            )
        if item.offset < archived_end:
            ends[key] = item.offset
    return ends


def _describe_incomplete(
    archive: Archive, archived: ArchiveState, topics: Sequence[TopicEntry], moment: int
) -> list[str]:
    """Return the warning for topics of which the archive does not have everything up to a time."""
    complete = complete_until(archive, archived, [topic.topic_id for topic in topics])
    short = {topic.name: complete[topic.topic_id] for topic in topics if complete.get(topic.topic_id, moment) < moment}
    if not short:
        return []
    least = min(short.values())
    return [
        f"the archive does not reach the point {iso(moment)}: what was written after {iso(least)} is not archived for "
        f"{shown(sorted(short))}"
    ]


def _describe_divided(archived: ArchiveState, topics: Iterable[TopicEntry]) -> list[str]:
    """Return the warning for transactions that may have written to several partitions."""
    with_some = [
        f"topic {topic.name} partition {partition}"
        for topic in topics
        for partition in range(topic.partitions)
        if any(entry.transactional for entry in archived.segments.get((topic.topic_id, partition), ()))
    ]
    if len(with_some) < 2:
        return []
    return [
        f"{len(with_some)} partitions hold transactions, {with_some[0]} among them: a transaction over several "
        "partitions may be inside spec.point in one and outside in another, since each partition is cut "
        "separately; asOf divides such a transaction only between its markers"
    ]


def sees_at(storage: Storage, archived: ArchiveState, point: PointSpec | None) -> Shows:
    """Ask if consumers see a record of an incarnation at the point: a topic that was created again later is not the one
    that is asked for. `archived` is without snapshots: which of them the point has differs from the newest.

    An incarnation that cannot be seen at the point counts as seen: its user learns why, and no older one is taken
    instead. Raises what the storage raises.
    """
    if point is None or point.time is None:
        return shows(storage, with_snapshots(archived))
    wanted, limit = point, point.time

    def ask(topic: TopicEntry) -> bool:
        try:
            plan = bounds_of_point(storage, archived, [topic], wanted, seen=archived.commit)
            # What a log that was read again had before is gone. What it had before the first backup may be nothing.
            if any(generation_of(archived, (topic.topic_id, at)).number > 1 for at in range(topic.partitions)):
                refuse_inexact(archived, [topic], plan.ends, plan.before)
        except (SpecError, ArchiveDamaged):
            return True
        if any(_not_exact(archived, [topic], plan)):
            return True
        state = clipped(with_snapshots(archived, plan.ends, plan.before), plan.clip)
        try:
            return any(
                _shows_before(storage, state, topic, number, limit, plan.ends.get((topic.topic_id, number)))
                for number in range(topic.partitions)
            )
        except (ArchiveDamaged, CorruptBatch):
            return True

    return ask


def _shows_before(
    storage: Storage, state: ArchiveState, topic: TopicEntry, partition: int, moment: int, end: int | None
) -> bool:
    """Return whether consumers see a record of a partition of before a time (ms), and below an end. Batches whose first
    records were erased or compacted keep the time of these: of such segments the records are read."""
    key = (topic.topic_id, partition)
    early = [
        entry
        for entry in state.segments.get(key, ())
        if entry.records and entry.times.min_base_timestamp < moment and (end is None or entry.base_offset < end)
    ]
    if any(not entry.gaps and not may_be_aborted(entry) for entry in early):
        return True
    if not early:
        return False
    return any(
        (end is None or record.offset < end) and (record.timestamp is None or record.timestamp < moment)
        for records in open_partition(storage, topic.name, early, state.kept(*key)).records()
        for record in records
    )


def within(plan: PointPlan | None, choices: Iterable[Choice], loss: Iterable[LossFact]) -> Iterator[LossFact]:
    """Yield the losses of what a restore to the point needs."""
    ids = {choice.source.name: choice.source.topic_id for choice in choices}
    for fact in loss:
        clip = None if plan is None else plan.clip((ids[fact.topic], fact.partition))
        if clip is None or clip.end is None or fact.end <= clip.end:
            yield fact
        elif fact.start < clip.end:
            yield replace(fact, end=clip.end)


def state_at_point(
    archive: Archive, archived: ArchiveState, point: PointSpec | None, plan: PointPlan | None
) -> ArchiveState:
    """Return the archive as a restore to the point sees it: with snapshots, without segments of which nothing is
    needed, and those that retention has removed when the plan was made, and with the consumer groups of the point."""
    return at_point(archive, archived, point, plan)[0]


def at_point(
    archive: Archive, archived: ArchiveState, point: PointSpec | None, plan: PointPlan | None
) -> tuple[ArchiveState, ArchiveState]:
    """Return the state of `state_at_point`, and the same one with the segments of which nothing is needed: a merge
    since may have put one of these and a wanted one into one."""
    if point is None or plan is None:
        found = with_snapshots(archived)
        return found, found
    if plan.seen > archived.commit:
        # What was deleted since the plan was made is in the plan: a run that continues with it must miss it.
        newest = view.state_at(archive, plan.newest, archive.load())
        archived = _as_of(archive, archived, plan.seen, newest)
    whole = with_snapshots(archived, plan.ends, plan.before)
    found = clipped(whole, plan.clip)
    found.groups = groups_at(archive, archived, point, plan).groups
    return found, whole


@dataclass(frozen=True)
class PointGroups:
    """The positions of consumer groups at a point. `run_id` is the run that has archived them, and `time` (ms) when it
    ended; empty if there is no such run, or not one for all."""

    groups: tuple[GroupEntry, ...] = ()
    run_id: str = ""
    time: int = -1


def groups_at(archive: Archive, archived: ArchiveState, point: PointSpec, plan: PointPlan) -> PointGroups:
    """Return the newest archived positions at or before the point: those of the last run that had ended by then. With
    offsets, of each partition the newest position that does not lie after its offset."""
    end = end_before(archive, archived, point)
    if point.time is not None:
        return PointGroups() if end is None else PointGroups(archived.in_branches(end.groups), end.run_id, end.time)
    if plan.ends:
        return PointGroups(tuple(_within_point(archive, archived, plan)))
    return PointGroups(archived.groups) if end is None else PointGroups(archived.groups, end.run_id, end.time)


def end_before(archive: Archive, archived: ArchiveState, point: PointSpec | None) -> Commit | None:
    """Return the end of the last run that succeeded, and had ended by the time of the point if it has one: a run
    archives groups and the state of the cluster when it is planned."""
    moment = None if point is None else point.time
    if moment is None:
        return next(iter(view.ends_of_runs(archive, archived.commit)), None)
    ended = [run for run in archived.successes() if run.end_time is not None and run.end_time <= moment]
    last = ended[-1] if ended else None
    return None if last is None else view.end_of(archive, last, archived.commit)


def _within_point(archive: Archive, archived: ArchiveState, plan: PointPlan) -> list[GroupEntry]:
    wanted = {(entry.group_id, entry.topic_id, entry.partition): entry for entry in archived.groups}
    ends = {where: plan.ends.get(where[1:]) for where in wanted}
    found = {where: entry for where, entry in wanted.items() if (end := ends[where]) is None or entry.offset <= end}
    if len(found) < len(wanted):
        for commit in view.ends_of_runs(archive, archived.commit):
            for entry in archived.in_branches(commit.groups):
                where = (entry.group_id, entry.topic_id, entry.partition)
                end = ends.get(where)
                if where not in found and end is not None and entry.offset <= end:
                    found[where] = entry
            if len(found) == len(wanted):
                break
    return [found[where] for where in wanted if where in found]


def refuse_future(point: PointSpec | None) -> None:
    """Raises SpecError for archive order at a time that has not come yet."""
    if point is not None and point.as_of is not None and point.time is not None and point.time > time.time() * 1000:
        raise SpecError(f"spec.point.asOf: {point.as_of} is in the future", hint="Leave spec.point out.")
