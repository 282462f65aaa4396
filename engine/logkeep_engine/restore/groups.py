"""Sets the positions of consumer groups after a restore: a group goes on with the record before which it stood.

    moves = translate(select(state.groups, spec.consumer_groups), plan.topics, read_map, archived_end)
    moved = commit(moves, control)

A position is the offset of the next record to read. If that record was restored, the group goes on with it. If there is
no record at the position (a transaction marker, a record that compaction removed, or a lost one), the group goes on
with the next record; behind the last record, with the end of the restored ones. Nothing is committed over a position
that the group has in the target already, and nothing for a group with members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.spec import ConsumerGroups, GroupRestore, KafkaRestoreSpec
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition, NotSet
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.offset_map import OffsetMap, OffsetPlace, read_offset_map
from logkeep_engine.restore.plan import NO_TASK, TopicPlan
from logkeep_engine.restore.same import Extent

FORMAT = 1
GROUPS = "consumer-groups.json"
_MAPS_AT_ONCE = 4  # one may be large, see `offset_map`
_GROUPS_SHOWN = 5
_ARCHIVED_SHOWN = 20


def moves_groups(spec: KafkaRestoreSpec) -> bool:
    """Whether a restore sets the positions of consumer groups."""
    return spec.everything or spec.consumer_groups.restore is GroupRestore.TRANSLATE


def move_groups(context: RestoreContext, planned: Planned) -> tuple[list[Moved], list[str]]:
    """Set the positions of groups if the spec says so, and report them; returns them with the warnings."""
    if not moves_groups(context.spec):
        return [], []
    state, archived, wanted = context.state, planned.archived, context.spec.consumer_groups

    def read_map(topic: str, partition: int) -> OffsetMap:
        path = state.map_path(topic, partition)
        return read_offset_map(state.storage.read(path), f"{state.storage.uri}/{path}")

    def archived_end(topic_id: str, partition: int) -> int:
        accounted = archived.accounted_for(topic_id, partition)
        return accounted[-1][1] if accounted else 0

    moves = translate(select(archived.groups, wanted), planned.plan.topics, read_map, archived_end)
    moved = commit(moves, context.control)
    state.storage.put(state.file(GROUPS), b"".join(report(moved)))
    found = warnings(moved, state.name(GROUPS))
    if moved:
        return moved, found
    return moved, [*found, nothing_to_move(archived.groups, wanted, at_point=planned.plan.point is not None)]


class PositionOutcome(StrEnum):
    """The outcome of setting a position."""

    SET = "set"
    KEPT = "kept"  # the group has another position in the target, which stays
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Move:
    """An archived position and its target. `beyond`: it lay past everything that was archived."""

    group: GroupEntry
    topic: str
    offset: int
    place: OffsetPlace
    beyond: bool

    @property
    def position(self) -> GroupPosition:
        """The position to commit. The archived leader epoch is one of the source, and means nothing in the target."""
        return GroupPosition(
            self.group.group_id, self.topic, self.group.partition, self.offset, -1, self.group.metadata
        )


@dataclass(frozen=True, slots=True)
class Moved:
    """The outcome of a move. `reason` tells why the position was not set; `members`: because the group has members."""

    move: Move
    outcome: PositionOutcome
    reason: str = ""
    members: bool = False


def translate(
    groups: Iterable[GroupEntry],
    topics: Sequence[TopicPlan],
    read_map: Callable[[str, int], OffsetMap],
    archived_end: Callable[[str, int], int],
) -> list[Move]:
    """The positions of restored topics, each with its target offset, in the order of `groups`.

    `read_map` gives the offset map of a target topic's partition, `archived_end` the end of what is archived of a topic
    id's partition. Every map is read once, and a few are held at a time.
    """
    plans = {topic.topic_id: topic for topic in topics}
    by_partition: dict[tuple[str, int], list[tuple[int, GroupEntry]]] = {}
    for number, entry in enumerate(groups):
        topic = plans.get(entry.topic_id)
        if topic is not None and 0 <= entry.partition < topic.partition_count:
            by_partition.setdefault((entry.topic_id, entry.partition), []).append((number, entry))

    def moves(key: tuple[str, int]) -> list[tuple[int, Move]]:
        topic = plans[key[0]]
        part = topic.partitions[key[1]]
        end = archived_end(*key)
        made = []
        if part.extent is not None:
            return [(number, _kept(entry, topic.target, part.extent)) for number, entry in by_partition[key]]
        found = None if part.producer_id == NO_TASK else read_map(topic.target, part.partition)
        for number, entry in by_partition[key]:
            offset, place = (part.start, OffsetPlace.END) if found is None else found.find(entry.offset)
            made.append((number, Move(entry, topic.target, offset, place, entry.offset > end)))
        return made

    with ThreadPoolExecutor(_MAPS_AT_ONCE, thread_name_prefix="logkeep-groups") as pool:
        numbered = [item for part in pool.map(moves, by_partition) for item in part]
    return [move for _, move in sorted(numbered, key=lambda item: item[0])]


def _kept(entry: GroupEntry, target: str, extent: Extent) -> Move:
    """The position of a group whose records have their source offsets: it stays what it is."""
    offset = extent.nearest(entry.offset)
    place = OffsetPlace.RECORD if offset == entry.offset else OffsetPlace.GAP
    return Move(entry, target, offset, place, entry.offset > extent.end)


def commit(moves: Sequence[Move], control: ControlPlane) -> list[Moved]:
    """Set the positions that may be set, and read them back. Safe to repeat: what was set before is as it should be.

    Raises what the control plane does if coordinators cannot be reached.
    """
    there = _offsets(moves, control)
    free = [move for move in moves if _key(move.position) not in there]
    refused = {_key(item.position): item for item in control.set_group_offsets(move.position for move in free)}
    moved = [_moved(move, there.get(_key(move.position)), refused.get(_key(move.position))) for move in moves]
    now = _offsets(free, control)
    new = {_key(move.position) for move in free}
    return [_compared(item, now) if _key(item.move.position) in new else item for item in moved]


def _offsets(moves: Sequence[Move], control: ControlPlane) -> dict[tuple[str, str, int], int]:
    """The positions that these groups have now."""
    found = control.group_offsets(move.group.group_id for move in moves).offsets
    return {(item.group_id, item.topic, item.partition): item.offset for item in found}


def _compared(item: Moved, now: Mapping[tuple[str, str, int], int]) -> Moved:
    """The outcome of a position that was set, by what the cluster says of it now."""
    offset = now.get(_key(item.move.position))
    if item.outcome is not PositionOutcome.SET or offset == item.move.offset:
        return item
    said = "no position" if offset is None else f"offset {offset}"
    return Moved(item.move, PositionOutcome.REFUSED, f"it was set to {item.move.offset}, and the cluster has {said}")


def _key(position: GroupPosition) -> tuple[str, str, int]:
    return position.group_id, position.topic, position.partition


def _moved(move: Move, before: int | None, refused: NotSet | None) -> Moved:
    if refused is not None:
        return Moved(move, PositionOutcome.REFUSED, refused.error, refused.has_members)
    if before is not None and before != move.offset:
        return Moved(move, PositionOutcome.KEPT, f"the group has offset {before} in the target")
    return Moved(move, PositionOutcome.SET)


def report(moved: Sequence[Moved]) -> Iterator[bytes]:
    """The document `consumer-groups.json`, row by row: one for every position."""
    columns = ["group", "topic", "partition", "sourceOffset", "targetOffset", "at", "outcome", "reason"]
    yield (json.dumps({"format": FORMAT, "columns": columns}, separators=(",", ":"))[:-1] + ',"rows":[').encode()
    for number, item in enumerate(moved):
        move = item.move
        row = [
            move.group.group_id,
            move.topic,
            move.group.partition,
            move.group.offset,
            move.offset,
            move.place.value,
            item.outcome.value,
            item.reason,
        ]
        yield ((",\n" if number else "\n") + json.dumps(row, separators=(",", ":"), ensure_ascii=False)).encode()
    yield b"\n]}\n"


def warnings(moved: Sequence[Moved], document: str) -> list[str]:
    """The warnings for the user; `document` is the object with all positions."""
    found = _by_group(
        (item for item in moved if item.members),
        "the group has members, and only they may commit for it; stop its consumers and set the offsets by hand",
        document,
    )
    found += _by_group(
        (item for item in moved if item.outcome is PositionOutcome.REFUSED and not item.members),
        "the cluster refuses it; set the offsets by hand",
        document,
    )
    found += _by_group(
        (item for item in moved if item.outcome is PositionOutcome.KEPT),
        "the group has other positions there already, which were left as they are",
        document,
    )
    gaps = sum(item.outcome is PositionOutcome.SET and item.move.place is OffsetPlace.GAP for item in moved)
    if gaps:
        found.append(
            f"{_positions(gaps)} of consumer groups stood where no record is (a transaction marker, or what was "
            "removed or lost): the next record was taken"
        )
    beyond = sum(item.outcome is PositionOutcome.SET and item.move.beyond for item in moved)
    if beyond:
        found.append(
            f"{_positions(beyond)} of consumer groups stood past the archived end: the end of the restored records was "
            "taken"
        )
    return found


def nothing_to_move(archived: Iterable[GroupEntry], wanted: ConsumerGroups, *, at_point: bool = False) -> str:
    """The warning of a restore that was to move groups and has found no position to move."""
    entries = list(archived)
    names = sorted({entry.group_id for entry in entries})
    if not names:
        why = "the archive holds no positions of consumer groups"
        if at_point:
            why += " of the time before spec.point"
    elif select(entries, wanted):
        why = "no archived group that spec.consumerGroups chooses has a position in a restored topic"
    else:
        why = "no archived group matches spec.consumerGroups.include and is not excluded"
    warning = f"no consumer group was moved, its consumers begin where auto.offset.reset says: {why}"
    return f"{warning}; archived are {_first(names)}" if names else warning


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _ARCHIVED_SHOWN} more" if len(names) > _ARCHIVED_SHOWN else ""
    return ", ".join(names[:_ARCHIVED_SHOWN]) + more


def _by_group(moved: Iterable[Moved], why: str, document: str) -> list[str]:
    groups: dict[str, list[Moved]] = {}
    for item in moved:
        groups.setdefault(item.move.group.group_id, []).append(item)
    names = sorted(groups)
    found = []
    for name in names[:_GROUPS_SHOWN]:
        first = groups[name][0]
        at = f"topic {first.move.topic} partition {first.move.group.partition}"
        found.append(
            f"consumer group {name}: {_positions(len(groups[name]))} not set, first {at} ({first.reason}): {why} "
            f"({document})"
        )
    if len(names) > _GROUPS_SHOWN:
        found.append(f"{len(names) - _GROUPS_SHOWN} more consumer groups like the one before: see {document}")
    return found


def _positions(count: int) -> str:
    return "1 position" if count == 1 else f"{count} positions"


def select(groups: Iterable[GroupEntry], wanted: ConsumerGroups) -> list[GroupEntry]:
    """The archived positions of the groups that are wanted; there may be none."""
    found = list(groups)
    patterns = NamePatterns(wanted.include, wanted.exclude)
    ids = {group_id for group_id in {entry.group_id for entry in found} if patterns.chooses(group_id)}
    return [entry for entry in found if entry.group_id in ids]
