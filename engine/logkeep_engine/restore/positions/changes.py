"""Remembers which positions consumer groups had before a command or a restore has changed them.

Each change of positions is a document `runs/<run id>/group-changes/<number>.json` in place of the restore's state:
0000 is that of the restore itself, later ones are those of `logkeep groups reset`. It is written before the first
position is set, and has what each group had before. What it says is never replaced by something later: a run that is
started again adds what is new, and leaves the other rows as they are. `made` says that all of it was set; before that
it is unknown which of its positions were. A change that was taken back has an object `<number>.rolled-back.json` next
to it. If a later start of the run changes positions again, its rows stand in place of those that were taken back, and
that object goes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import ArchiveMismatch, ObjectExists, ObjectMissing
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.stored import reading

FOLDER = "group-changes"
OF_RESTORE = 0
_DIGITS = 4
_ROLLED_BACK = ".rolled-back.json"
_CHANGES = StoredDocument(
    "change of positions",
    1,
    {
        "runId": str,
        "clusterId": str,
        "made": bool,
        # group, topic, partition, share; of before: offset, leader epoch, metadata; of after: offset, metadata
        "rows": [(str, str, int, bool, int | None, int, str, int | None, str)],
    },
)
_ROLLBACK = StoredDocument("note of a rollback", 1, {"time": int})

PositionKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class PositionChange:
    """A position that gets another offset. `before` None: the group had no position; `after` None: it gets none."""

    before: GroupPosition | None
    after: GroupPosition | None

    @property
    def position(self) -> GroupPosition:
        """The position of before or after: both are of the same group, topic and partition."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def key(self) -> PositionKey:
        """The group, topic and partition."""
        return key_of(self.position)

    def undone(self) -> PositionChange:
        """Return the change that takes this one back."""
        return PositionChange(self.after, self.before)


def key_of(position: GroupPosition) -> PositionKey:
    """Return the group, topic and partition of a position."""
    return position.group_id, position.topic, position.partition


@dataclass(frozen=True, slots=True)
class KeptChange:
    """A change as it was written down. Unless it was `made`, some of it may not have been set."""

    number: int
    changes: tuple[PositionChange, ...]
    made: bool


def copy_changes(earlier: RestoreState, own: RestoreState) -> None:
    """Take over the changes that an earlier run of the same restore has made, in place of own ones. Those that were
    taken back are left out: the groups have again what they had before."""
    storage, folder, from_folder = own.storage, f"{own.file(FOLDER)}/", f"{earlier.file(FOLDER)}/"
    storage.delete([info.path for info in storage.list(folder)])
    names = {info.path.removeprefix(from_folder) for info in storage.list(from_folder)}
    for name in sorted(names):
        if not name.endswith(_ROLLED_BACK) and name.removesuffix(".json") + _ROLLED_BACK not in names:
            storage.put(folder + name, storage.read(from_folder + name))


class ChangeLog:
    """The changes that a run of a restore, and commands after it, have made."""

    def __init__(self, state: RestoreState, cluster_id: str) -> None:
        self._state = state
        self._cluster_id = cluster_id

    def name(self, number: int) -> str:
        """Return the name of a change's document, for messages."""
        return self._state.name(_path(number))

    def keep_for_restore(self, changes: Sequence[PositionChange]) -> int:
        """Write down the changes of the restore itself, before they are made. Rows that an earlier start of the run has
        written stay as they are. If these were taken back since, the new ones stand in their place: what the groups
        have done by themselves after that is not the restore's to take back."""
        if not changes:
            return OF_RESTORE
        try:
            self._create(OF_RESTORE, changes)
        except ObjectExists:
            note = self._state.file(_rolled_back_path(OF_RESTORE))
            if self._state.storage.list(note):
                self._put(OF_RESTORE, changes)
                self._state.storage.delete([note])
                return OF_RESTORE
            kept = self._read(OF_RESTORE)
            known = {} if kept is None else {item.key: item for item in kept.changes}
            new = [item for item in changes if item.key not in known]
            if new:
                self._put(OF_RESTORE, [*known.values(), *new])
        return OF_RESTORE

    def keep(self, changes: Sequence[PositionChange]) -> int:
        """Write down changes before they are made, as the newest; returns their number."""
        number = max([OF_RESTORE, *self._numbers()]) + 1
        while True:
            try:
                self._create(number, changes)
                return number
            except ObjectExists:  # another command has changed positions meanwhile
                number += 1

    def note_made(self, number: int, without: Iterable[PositionKey]) -> None:
        """Note that a change was made, but for these positions: a rollback must leave them alone."""
        kept, dropped = self._read(number), set(without)
        if kept is None:
            return
        left = [item for item in kept.changes if item.key not in dropped]
        if not kept.made or len(left) < len(kept.changes):
            self._put(number, left, made=True)

    def newest(self) -> KeptChange | None:
        """Return the newest change that was not taken back; None if there is none. Raises ArchiveMismatch,
        ArchiveDamaged."""
        folder = f"{self._state.file(FOLDER)}/"
        names = {info.path.removeprefix(folder) for info in self._state.storage.list(folder)}
        open_ = [number for number in self._numbers() if f"{number:0{_DIGITS}d}{_ROLLED_BACK}" not in names]
        return self._read(open_[-1]) if open_ else None

    def note_rolled_back(self, number: int) -> None:
        """Note that a change was taken back."""
        note = _ROLLBACK.dumps({"time": int(time.time())})
        self._state.storage.put(self._state.file(_rolled_back_path(number)), note)

    def _numbers(self) -> list[int]:
        folder = f"{self._state.file(FOLDER)}/"
        names = [info.path.removeprefix(folder) for info in self._state.storage.list(folder)]
        stems = [name.removesuffix(".json") for name in names]
        return sorted(int(stem) for stem in stems if len(stem) == _DIGITS and stem.isdecimal())

    def _create(self, number: int, changes: Sequence[PositionChange]) -> None:
        self._state.storage.create(self._state.file(_path(number)), self._document(changes, made=False))

    def _put(self, number: int, changes: Sequence[PositionChange], *, made: bool = False) -> None:
        self._state.storage.put(self._state.file(_path(number)), self._document(changes, made=made))

    def _document(self, changes: Sequence[PositionChange], *, made: bool) -> bytes:
        return _CHANGES.dumps(
            {
                "runId": self._state.run_id,
                "clusterId": self._cluster_id,
                "made": made,
                "rows": [_row(change) for change in changes],
            }
        )

    def _read(self, number: int) -> KeptChange | None:
        path = self._state.file(_path(number))
        name = self._state.name(_path(number))
        try:
            data = self._state.storage.read(path)
        except ObjectMissing:
            return None
        hint = "The object was altered; the earlier positions are unknown."
        with reading(_CHANGES, data, name, hint=hint) as body:
            if body["clusterId"] != self._cluster_id:
                raise ArchiveMismatch(
                    f"{name}: positions of Kafka cluster {body['clusterId']}, not of {self._cluster_id}",
                    hint="Name the cluster that the run has restored to in spec.cluster.",
                )
            return KeptChange(number, tuple(map(_change, body["rows"])), body["made"])


def _path(number: int) -> str:
    return f"{FOLDER}/{number:0{_DIGITS}d}.json"


def _rolled_back_path(number: int) -> str:
    return f"{FOLDER}/{number:0{_DIGITS}d}{_ROLLED_BACK}"


def _row(change: PositionChange) -> list[Any]:
    before, after = change.before, change.after
    return [
        *change.key,
        change.position.share,
        None if before is None else before.offset,
        -1 if before is None else before.leader_epoch,
        "" if before is None else before.metadata,
        None if after is None else after.offset,
        "" if after is None else after.metadata,
    ]


def _change(row: Sequence[Any]) -> PositionChange:
    group, topic, partition, share, before, epoch, metadata, after, after_metadata = row

    def position(offset: int, leader_epoch: int, noted: str) -> GroupPosition:
        return GroupPosition(group, topic, partition, offset, leader_epoch, noted, share)

    return PositionChange(
        None if before is None else position(before, epoch, metadata),
        None if after is None else position(after, -1, after_metadata),
    )
