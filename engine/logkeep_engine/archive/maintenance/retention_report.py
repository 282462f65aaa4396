"""Tells what retention would remove from an archive, by which rule, what stays and why, and which runs can be restored
whole. Nothing is written."""

from __future__ import annotations

import time
from dataclasses import dataclass

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Commit, CommitKind, PurgedPack, RemovedSegment
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import exact_by_snapshots
from logkeep_engine.archive.history.earlier import last_with_generations, without_gone
from logkeep_engine.archive.maintenance.as_json import AsJson
from logkeep_engine.archive.maintenance.points import KeptPoint, kept_points
from logkeep_engine.archive.maintenance.removal import deletable
from logkeep_engine.archive.maintenance.retaining import RetentionRules, empty_holds, refuse_unfinished, with_spec_holds
from logkeep_engine.archive.maintenance.retention import RetentionDecision, judged
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading import view
from logkeep_engine.contract.facts.dry_run import PlannedRemoval, PlannedRetention
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.retention import RetentionHold
from logkeep_engine.errors import BackupUnfinished

_NO_TIME = -1


@dataclass(frozen=True)
class TopicDecision(AsJson):
    """The segments and snapshots of a topic that go, or stay, by one rule or reason. `first_time` and
    `last_time`: the oldest and the youngest of them."""

    topic: str
    goes: bool
    why: str
    segments: int
    snapshots: int
    bytes: int
    first_time: str
    last_time: str


@dataclass(frozen=True)
class RemovalItem(AsJson):
    """A segment (by its base offset) or a snapshot (by its end) that would go. `line`: the number of
    the line on which it lies."""

    topic: str
    topic_id: str
    partition: int
    line: int
    offset: int
    snapshot: bool
    bytes: int
    why: str


@dataclass(frozen=True)
class RestorablePoint(AsJson):
    """A kept point. `restorable`: spec.point.run can name it with all topics. `whole`: nothing of it was removed. Else
    it has every record that is younger than `since`, or lacks records whose time is unknown ("")."""

    run_id: str
    end_time: str
    rules: tuple[str, ...]
    restorable: bool
    whole: bool
    since: str


@dataclass(frozen=True)
class WaitingRemoval(AsJson):
    """Segments that a commit has removed, and whose objects are there still."""

    commit: int
    time: str
    segments: int
    bytes: int


@dataclass(frozen=True)
class RetentionPreview(AsJson):
    """Tells what retention would do now. The points are as they would be after it, if no reader and no lock hinders the
    deletion of objects. `refused`: why it would be refused now, "" if it would not. `notes`: holds that keep
    nothing."""

    time: str
    refused: str
    topics: tuple[TopicDecision, ...]
    points: tuple[RestorablePoint, ...]
    waiting: tuple[WaitingRemoval, ...]
    holds: tuple[str, ...]
    goes: tuple[RemovalItem, ...]
    notes: tuple[str, ...]


def preview(archive: Archive, rules: RetentionRules, hold: RetentionHold) -> RetentionPreview:
    """Find out what retention by these rules and holds would do to the archive now. Raises ArchiveDamaged, and storage
    errors."""
    now = time.time_ns() // 1_000_000
    state = archive.load()
    state.retention_holds = tuple(sorted(set(with_spec_holds(state.retention_holds, hold))))
    found = judged(state, rules.limits, now, rules.keep, rules.spared(state))
    points = kept_points(state, rules.keep)
    after = _after(archive, state, found, rules.grace, now)
    return RetentionPreview(
        moment(now),
        _refused(state, archive.storage.uri),
        tuple(_by_topic(state, found)),
        tuple(_point(archive, state, after, point) for point in points),
        tuple(
            WaitingRemoval(
                item.commit,
                moment(item.time),
                item.segments.count,
                sum(object_bytes(entry) for entries in item.segments.values() for entry in entries),
            )
            for item in state.unpurged
        ),
        tuple(map(str, state.retention_holds)),
        tuple(_going(state, item) for item in found if item.goes),
        tuple(empty_holds(state)),
    )


def _refused(state: ArchiveState, uri: str) -> str:
    try:
        refuse_unfinished(state, uri)
    except BackupUnfinished as error:
        return error.message
    return ""


def _after(archive: Archive, state: ArchiveState, found: list[RetentionDecision], grace: int, now: int) -> ArchiveState:
    """Return the state in which retention would leave the archive."""
    after = archive.load_at(state.commit)
    gone = [one.item.to_remove() for one in found if one.goes]
    if gone:
        segments = tuple(item for item in gone if isinstance(item, RemovedSegment))
        snapshots = tuple(item for item in gone if isinstance(item, RemovedSnapshot))
        after.apply(replace(_next_commit(after, now), removed=segments, removed_snapshots=snapshots))
    commits, packs = deletable(after, grace, now)
    if commits or packs:
        purged_packs = tuple(PurgedPack(*pack) for pack in sorted(packs))
        after.apply(replace(_next_commit(after, now), purged=tuple(commits), purged_packs=purged_packs))
    return after


def _next_commit(state: ArchiveState, now: int) -> Commit:
    """Return a commit of the last run that could follow, as far as a state asks."""
    last = next(run for run in state.runs.values() if run.epoch == state.epoch)
    following = Commit(state.commit + 1, "", "", CommitKind.DATA, last.run_id, last.epoch, now)
    signer = "nobody" if state.signed_since >= 0 else ""
    return replace(following, previous=state.sha256, sha256=state.sha256, signer=signer)


def planned_retention(state: ArchiveState, rules: RetentionRules, hold: RetentionHold) -> PlannedRetention | None:
    """Find out what retention would remove from the archive as it is now; None if there are no rules. The state gets
    the holds of the spec."""
    if not rules.is_set:
        return None
    state.retention_holds = tuple(sorted(set(with_spec_holds(state.retention_holds, hold))))
    found = judged(state, rules.limits, time.time_ns() // 1_000_000, rules.keep, rules.spared(state))
    groups: dict[tuple[str, str], list[RetentionDecision]] = {}
    for one in found:
        if one.goes:
            groups.setdefault((state.topics[one.item.topic_id].name, one.why), []).append(one)
    going = [one.item for some in groups.values() for one in some]
    snapshots = sum(item.is_snapshot for item in going)
    return PlannedRetention(
        topics=len({item.topic_id for item in going}),
        partitions=len({(item.topic_id, item.partition) for item in going}),
        segments=len(going) - snapshots,
        snapshots=snapshots,
        bytes=sum(item.bytes for item in going),
        topics_unchosen=len(rules.unchosen(state)),
        topic_list=tuple(_planned(*group, some) for group, some in sorted(groups.items())),
    )


def _planned(topic: str, why: str, some: list[RetentionDecision]) -> PlannedRemoval:
    snapshots = sum(one.item.is_snapshot for one in some)
    return PlannedRemoval(
        topic=topic,
        why=why,
        partitions=len({(one.item.topic_id, one.item.partition) for one in some}),
        segments=len(some) - snapshots,
        snapshots=snapshots,
        bytes=sum(one.item.bytes for one in some),
    )


def _by_topic(state: ArchiveState, found: list[RetentionDecision]) -> list[TopicDecision]:
    groups: dict[tuple[str, bool, str], list[RetentionDecision]] = {}
    for one in found:
        topic = state.topics[one.item.topic_id].name
        groups.setdefault((topic, not one.goes, one.why), []).append(one)
    return [
        TopicDecision(
            topic,
            not stays,
            why,
            sum(not one.item.is_snapshot for one in some),
            sum(one.item.is_snapshot for one in some),
            sum(one.item.bytes for one in some),
            moment(min(one.item.time for one in some)),
            moment(max(one.item.time for one in some)),
        )
        for (topic, stays, why), some in sorted(groups.items())
    ]


def _going(state: ArchiveState, found: RetentionDecision) -> RemovalItem:
    item = found.item
    topic = state.topics[item.topic_id].name
    return RemovalItem(
        topic, item.topic_id, item.partition, item.line, item.offset, item.is_snapshot, item.bytes, found.why
    )


def _point(archive: Archive, newest: ArchiveState, after: ArchiveState, point: KeptPoint) -> RestorablePoint:
    run = newest.runs[point.run_id]
    end = view.end_of(archive, run.success or run, newest.commit)
    if end is None:
        return RestorablePoint(point.run_id, moment(point.time), point.rules, False, False, "")
    left = view.with_care(archive, end, newest, of_others=False)  # what the run itself has removed it has not left
    then = view.state_at(archive, left, newest)
    last, gone = last_with_generations(then, after)
    if gone:
        return RestorablePoint(point.run_id, moment(point.time), point.rules, False, False, "")
    there = after if last == after.commit else view.state_at(archive, min(last, newest.commit), newest)
    lacks = _lacks(then, without_gone(then, there, after))
    return RestorablePoint(
        point.run_id, moment(point.time), point.rules, True, lacks is None, "" if lacks is None else moment(lacks)
    )


def _lacks(then: ArchiveState, now: ArchiveState) -> int | None:
    """Return the time of the youngest record that a point has had and that is removed `now`; None if nothing is. -1:
    the time is unknown."""
    found: list[int] = []
    for key, entries in then.segments.items():
        if now.segments.rows(key) == then.segments.rows(key):
            continue
        if now.topics[key[0]].is_compacted_only:
            exact, accounted = exact_by_snapshots(now, key), then.accounted_for(*key)
            if exact is None or not accounted or exact.offset > accounted[-1][1]:
                found.append(_NO_TIME if exact is None else exact.time)
            continue
        there = {entry.base_offset for entry in now.segments.get(key, ())}
        found += [entry.times.max_timestamp for entry in entries if entry.base_offset not in there]
    return max(found, default=None)
