"""The step of a restore that sets the positions of consumer groups, and the one door to changing positions.

    moved, warnings = move_groups(context, planned)

A position that is changed is written down before (`changes`), set, read back, and compared. A restore commits
nothing over a position that the group has in the target already, and nothing for a group with members. `logkeep groups`
changes positions through the same door (`run.group_commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract.restore_spec import GroupRestore, KafkaRestoreSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import GroupsHaveMembers, StateAltered
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition, GroupPositions, NotSet
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import FoundOffset, OffsetMap
from logkeep_engine.restore.model.plan import PartitionPlan, TopicPlan
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import ALTERED, OFFSET_MAPS, RestoreState
from logkeep_engine.restore.positions.changes import ChangeLog, PositionChange, PositionKey, key_of
from logkeep_engine.restore.positions.moves import Move, Moved, PositionOutcome, select_and_rename, translate
from logkeep_engine.restore.positions.offset_lookup import OffsetFinder, StoredOffsetMap, open_offset_map
from logkeep_engine.restore.positions.report import GROUPS, nothing_to_move, raise_if_different, report, warnings
from logkeep_engine.restore.positions.resource_configs import bring_group_configs

MEMBERS = "the group has members"


def moves_groups(spec: KafkaRestoreSpec) -> bool:
    """Return whether a restore sets the positions of consumer groups."""
    return spec.everything or spec.consumer_groups.restore is GroupRestore.TRANSLATE


def check_groups(
    control: ControlPlane, chosen: Collection[GroupEntry], topic_ids: Collection[str], *, unseen: bool
) -> list[str]:
    """Look at the groups whose positions are to be set: those that may not even be looked at stop the restore now, not
    when all records are there. Returns the warning about share groups of these topics that the cluster does not take.

    `unseen`: the cluster has never had a group, and must not make a topic for them now. Raises BrokerRefused.
    """
    shared = sorted({entry.group_id for entry in chosen if entry.share and entry.topic_id in topic_ids})
    if unseen:
        why, lacking = (control.share_groups_off(), shared) if shared else ("", [])
    else:
        control.group_offsets(entry.group_id for entry in chosen if not entry.share)
        reported = control.share_starts(shared) if shared else GroupPositions(())
        why, lacking = reported.why, list(reported.unreported)
    if not why:
        return []
    names = shown([*map(repr, lacking)])
    return [f"{so_many(len(lacking), 'share group')} would get no start offset: {names}: {why}"]


def move_groups(context: RestoreContext, planned: Planned) -> tuple[list[Moved], list[str]]:
    """Set the configurations and positions of groups if the spec says so, and report them; returns the positions with
    the warnings.

    Raises PositionsDiffer if the cluster has other positions than were set.
    """
    if not moves_groups(context.spec):
        return [], []
    state, archived, wanted = context.state, planned.archived, context.spec.consumer_groups
    entries = select_and_rename(archived.groups, wanted)
    moves = translate(entries, planned.plan.topics, opener(state, planned.plan.topics), archived_end(planned))
    reported = bring_group_configs(context, archived, {topic.topic_id for topic in planned.plan.topics})
    log = ChangeLog(state, context.cluster_id)
    moved = commit(moves, context.control, log.keep_for_restore, log.note_made)
    state.storage.put(state.file(GROUPS), b"".join(report(moved)))
    raise_if_different(moved, state.name(GROUPS))
    found = [*reported, *warnings(moved, state.name(GROUPS))]
    if moved:
        return moved, found
    return moved, [*found, nothing_to_move(archived.groups, wanted, at_point=planned.plan.point is not None)]


def opener(state: RestoreState, topics: Sequence[TopicPlan]) -> Callable[[str, int], OffsetFinder]:
    """Opens the offset maps of a run, held to the topics of its plan."""
    starts = {(topic.target, part.target): (topic, part) for topic in topics for part in topic.partitions}

    def held(topic: str, partition: int) -> OffsetFinder:
        found = open_offset_map(state.storage, state.map_path(topic, partition))
        return HeldMap(found, *starts[topic, partition], state.name(f"{OFFSET_MAPS}/{topic}/{partition}.json"))

    return held


class HeldMap:
    """An offset map whose answers lie within what the run has restored: positions go where it says, so a
    forged object must not lead them elsewhere."""

    def __init__(self, found: OffsetMap | StoredOffsetMap, topic: TopicPlan, part: PartitionPlan, name: str) -> None:
        """Raises StateAltered for a map of another partition."""
        summary = found.summary
        self._find, self._name = found.find, name
        said = (summary.source_topic_id, summary.source_partition, summary.target_topic)
        places = [(outlet.partition, outlet.start) for outlet in summary.outlets]
        if said != (topic.topic_id, part.partition, topic.target) or places != [(part.target, part.start)]:
            raise StateAltered(f"{name}: it is the offset map of another partition; no position was set", hint=ALTERED)
        self._start, self._end = part.start, summary.target_end

    def find(self, source_offset: int) -> FoundOffset:
        """Do what `OffsetMap.find` does. Raises StateAltered for an offset that the run has not restored."""
        found = self._find(source_offset)
        if not self._start <= found.target <= self._end:
            raise StateAltered(
                f"{self._name}: it maps offset {source_offset} to {found.target}, outside of what was restored "
                f"({self._start} to {self._end}); no position was set",
                hint=ALTERED,
            )
        return found


def archived_end(planned: Planned) -> Callable[[str, int], int]:
    """Tells where what is archived of a topic id's partition ends."""

    def end(topic_id: str, partition: int) -> int:
        accounted = planned.archived.accounted_for(topic_id, partition)
        return accounted[-1][1] if accounted else 0

    return end


def commit(
    moves: Sequence[Move],
    control: ControlPlane,
    keep: Callable[[Sequence[PositionChange]], int],
    note_made: Callable[[int, Iterable[PositionKey]], None],
) -> list[Moved]:
    """Set the positions that may be set, and read them back. Safe to repeat: what was set before is as it should be.

    No position of a group with members is changed. `keep` writes the changes down before the first is made, `note_made`
    notes that all were made but for some. Raises what the control plane does if coordinators cannot be reached.
    """
    there = positions_of(control, (move.position for move in moves))
    absent = [move for move in moves if key_of(move.position) not in there]
    members = with_members(control, {move.group.group_id for move in absent})
    changes = {
        key_of(move.position): PositionChange(None, move.position)
        for move in absent
        if move.group.group_id not in members
    }
    number = keep(list(changes.values()))
    refused, different = change_positions(list(changes.values()), control)

    def outcome(move: Move) -> Moved:
        key = key_of(move.position)
        before = there.get(key)
        if before is not None and before.offset != move.offset:
            return Moved(move, PositionOutcome.KEPT, f"the group has offset {before.offset} in the target")
        if before is None and move.group.group_id in members:
            return Moved(move, PositionOutcome.REFUSED, MEMBERS, members=True)
        if key in refused:
            return Moved(move, PositionOutcome.REFUSED, refused[key].error, refused[key].has_members)
        if key in different:
            return Moved(move, PositionOutcome.DIFFERENT, different[key])
        return Moved(move, PositionOutcome.SET)

    moved = [outcome(move) for move in moves]
    # An earlier start may have written a change down without making it. What the group has by itself since then is not
    # the restore's to take back.
    left = (PositionOutcome.KEPT, PositionOutcome.REFUSED)
    note_made(number, [key_of(item.move.position) for item in moved if item.outcome in left])
    return moved


def positions_of(control: ControlPlane, of: Iterable[GroupPosition]) -> dict[PositionKey, GroupPosition]:
    """Return all positions that the groups of these positions have now."""
    ids: dict[bool, set[str]] = {False: set(), True: set()}
    for item in of:
        ids[item.share].add(item.group_id)
    found = list(control.group_offsets(ids[False]).offsets) if ids[False] else []
    if ids[True]:
        found += control.share_starts(ids[True]).offsets
    return {key_of(item): item for item in found}


def with_members(control: ControlPlane, group_ids: Collection[str]) -> list[str]:
    """Return the groups that have members, of these; sorted."""
    if not group_ids:
        return []
    listed = control.listed_groups()
    return sorted(group for group in group_ids if group in listed and listed[group].has_members)


def refuse_members(control: ControlPlane, group_ids: Collection[str]) -> None:
    """Raises GroupsHaveMembers if one of these groups has members; it names them."""
    found = with_members(control, group_ids)
    if found:
        raise GroupsHaveMembers(
            f"consumer groups have members, and no position was changed: {shown([*map(repr, found)])}",
            hint="Stop their consumers, or leave these groups out.",
        )


def change_positions(
    changes: Sequence[PositionChange], control: ControlPlane
) -> tuple[dict[PositionKey, NotSet], dict[PositionKey, str]]:
    """Make the changes, read the positions back, and compare: what was refused, and what differs from what was
    requested.

    What was before must be written down by then.
    """
    after = [item.after for item in changes if item.after is not None]
    # A start offset of a share group may take those of other partitions along, so they are set after that.
    refused = control.delete_group_offsets((item.position for item in changes if item.after is None), after)
    refused += control.set_group_offsets(after)
    by_key = {key_of(item.position): item for item in refused}
    made = [item for item in changes if item.key not in by_key]
    now = positions_of(control, (item.position for item in made))
    return by_key, _different(made, now)


def _different(made: Iterable[PositionChange], now: Mapping[PositionKey, GroupPosition]) -> dict[PositionKey, str]:
    """Tell what the cluster has where it does not have what was requested."""
    found: dict[PositionKey, str] = {}
    for change in made:
        wanted = None if change.after is None else change.after.offset
        has = now.get(change.key)
        offset = None if has is None else has.offset
        if offset != wanted:
            found[change.key] = f"{_position(wanted)} was set, but the cluster has {_position(offset)}"
    return found


def _position(offset: int | None) -> str:
    return "no position" if offset is None else f"offset {offset}"
