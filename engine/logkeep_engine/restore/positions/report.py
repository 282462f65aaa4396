"""Tells what became of the positions of consumer groups: a document with all of them, and warnings for the user."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from logkeep_engine.archive.catalog.facts import GroupEntry
from logkeep_engine.contract.spec import ConsumerGroups
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import PositionsDiffer
from logkeep_engine.kafka.groups import SHARE_OFF
from logkeep_engine.restore.model.offset_map import OffsetPlace
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.positions.changes import key_of
from logkeep_engine.restore.positions.moves import Moved, PositionOutcome, select

FORMAT = 1
GROUPS = "consumer-groups.json"
_GROUPS_SHOWN = 5
_ARCHIVED_SHOWN = 20
_RESET = "`logkeep groups reset` sets them"


def report(moved: Sequence[Moved]) -> Iterator[bytes]:
    """Yield the document `consumer-groups.json`, row by row: one for every position."""
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
    """Return the warnings for the user; `document` is the object with all positions."""
    found = _by_group(
        (item for item in moved if item.members),
        f"the group has members, and only they may commit for it; when its consumers are stopped, {_RESET}",
        document,
    )
    refused = [item for item in moved if item.outcome is PositionOutcome.REFUSED and not item.members]
    found += _by_group(
        (item for item in refused if item.reason == SHARE_OFF),
        f"switch them on with `kafka-features.sh upgrade --feature share.version=1`; then {_RESET}",
        document,
    )
    found += _by_group(
        (item for item in refused if item.reason != SHARE_OFF),
        f"the cluster refuses it; once the user has the right, {_RESET}",
        document,
    )
    found += _by_group(
        (item for item in moved if item.outcome is PositionOutcome.KEPT),
        f"the group has other positions there already, which were left as they are; {_RESET}",
        document,
    )
    gaps = sum(item.outcome is PositionOutcome.SET and item.move.place is OffsetPlace.GAP for item in moved)
    if gaps:
        found.append(
            f"{so_many(gaps, 'position')} of consumer groups pointed to an offset without a record (a transaction "
            "marker, or a removed or lost record): the next record was taken"
        )
    beyond = [item.move for item in moved if item.outcome is PositionOutcome.SET and item.move.beyond]
    if beyond:
        first = beyond[0]
        found.append(
            f"{so_many(len(beyond), 'position')} of consumer groups pointed past the archived end: the end of the "
            f"restored records was taken, first for group {first.group.group_id!r} in topic {first.topic} partition "
            f"{first.group.partition}, {first.offset} for {first.group.offset} ({document})"
        )
    return found


def nothing_to_move(
    archived: Iterable[GroupEntry], wanted: ConsumerGroups, *, at_point: bool = False, would: bool = False
) -> str:
    """Return the warning of a restore that was to move groups and has found no position to move; `would`: of a dry
    run."""
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
    verb = "would be" if would else "was"
    warning = f"no consumer group {verb} moved, its consumers begin where auto.offset.reset says: {why}"
    return f"{warning}; archived are {shown([*map(repr, names)], _ARCHIVED_SHOWN)}" if names else warning


def _by_group(moved: Iterable[Moved], why: str, document: str) -> list[str]:
    groups: dict[str, list[Moved]] = {}
    for item in moved:
        groups.setdefault(item.move.group.group_id, []).append(item)
    names = sorted(groups)
    found = []
    for name in names[:_GROUPS_SHOWN]:
        first = groups[name][0]
        kind = "share" if first.move.group.share else "consumer"
        at = f"topic {first.move.topic} partition {first.move.group.partition}"
        found.append(
            f"{kind} group {name!r}: {so_many(len(groups[name]), 'position')} not set, first {at} ({first.reason}): "
            f"{why} ({document})"
        )
    if len(names) > _GROUPS_SHOWN:
        found.append(f"{len(names) - _GROUPS_SHOWN} more consumer groups like the one before: see {document}")
    return found


def raise_if_different(moved: Sequence[Moved], document: str) -> None:
    """Raises PositionsDiffer for a position that was set, and that the cluster has otherwise."""
    different = [item for item in moved if item.outcome is PositionOutcome.DIFFERENT]
    if different:
        first = different[0]
        raise PositionsDiffer.of(key_of(first.move.position), first.reason, len(different) - 1, document)
