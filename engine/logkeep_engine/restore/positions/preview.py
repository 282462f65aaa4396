"""Shows where consumer groups would stand after a restore, before any position is changed.

    for item in preview_groups(context, planned, wanted, predicted_maps(context, planned)): ...

The target offsets of a restore that has not begun are counted from the archive: by the code that makes its batches,
which sends none here. So all records before the positions are read. Of a restore that has ended the offset maps say
them (`groups.opener`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged, open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import RestoreGroups
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.offset_map import FoundOffset, OffsetPlace
from logkeep_engine.restore.positions.changes import key_of
from logkeep_engine.restore.positions.groups import archived_end, positions_of, with_members
from logkeep_engine.restore.positions.moves import Move, PositionOutcome, select_and_rename, translate
from logkeep_engine.restore.positions.offset_lookup import OffsetFinder
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.sending.work import restore_task, with_task

_NOTHING_SENT = 1 << 62  # records whose data is not needed
Maps = Callable[[str, int], OffsetFinder]


@dataclass(frozen=True, slots=True)
class PreviewedRecord:
    """The record that a group reads next: its source offset, its time (ms; None if it has none), its key."""

    offset: int
    timestamp: int | None
    key: bytes | None


@dataclass(frozen=True, slots=True)
class PreviewedPosition:
    """A position and what would become of it. `now` is the one that the group has in the target, None if it has none.
    `record` None: there is none at or after the position."""

    move: Move
    record: PreviewedRecord | None
    now: int | None
    outcome: PositionOutcome

    def to_json(self) -> dict[str, Any]:
        """Return the row of a document. Of a key that is not UTF-8 the other bytes are escaped."""
        record = self.record
        return {
            "group": self.move.group.group_id,
            "share": self.move.group.share,
            "sourceTopic": self.move.group.topic,
            "topic": self.move.topic,
            "partition": self.move.group.partition,
            "sourceOffset": self.move.group.offset,
            "at": self.move.place.value,
            "record": record and {"offset": record.offset, "timestamp": record.timestamp, "key": shown_key(record)},
            "targetOffset": self.move.offset,
            "now": self.now,
            "outcome": self.outcome.value,
        }


def shown_key(record: PreviewedRecord) -> str | None:
    """Return the key of a record as text."""
    return None if record.key is None else record.key.decode(errors="backslashreplace")


def preview_groups(
    context: RestoreContext,
    planned: Planned,
    wanted: RestoreGroups,
    maps: Maps,
    *,
    records: bool = True,
    target: bool = True,
) -> list[PreviewedPosition]:
    """Return the positions of the groups that are `wanted`, and what a restore would make of them. Nothing is changed.

    Without `records`, the records before which they stand are not read. Without `target`, the cluster is not asked
    where the groups stand now, nor whether they have members: a cluster that never had a group makes a topic for that
    question. Raises SpecError for a rename that cannot be, and what storage and control plane raise.
    """
    entries = select_and_rename(planned.archived.groups, wanted)
    moves = translate(entries, planned.plan.topics, maps, archived_end(planned))
    names = {move.group.group_id for move in moves}
    there = positions_of(context.control, (move.position for move in moves)) if target else {}
    refusing = set(with_members(context.control, names)) if target else set()
    shared = {move.group.group_id for move in moves if move.group.share}
    if target and shared:
        refusing.update(context.control.share_starts(shared).unreported)
    reader = _RecordReader(_tasks(context, planned)) if records else None
    found = []
    for move in moves:
        now = there.get(key_of(move.position))
        outcome = _outcome(move, None if now is None else now.offset, refused=move.group.group_id in refusing)
        record = None if reader is None else reader.at(move)
        found.append(PreviewedPosition(move, record, None if now is None else now.offset, outcome))
    return found


def _outcome(move: Move, now: int | None, *, refused: bool) -> PositionOutcome:
    if now is not None:
        return PositionOutcome.SET if now == move.offset else PositionOutcome.KEPT
    return PositionOutcome.REFUSED if refused else PositionOutcome.SET


Tasks = dict[tuple[str, int], RestoreTask]


def _tasks(context: RestoreContext, planned: Planned) -> Tasks:
    return {
        (topic.target, partition.target): restore_task(context, planned, topic, partition)
        for topic, partition in with_task(planned)
    }


def predicted_maps(context: RestoreContext, planned: Planned) -> Maps:
    """Return the offsets that a restore by this plan would give, for `preview_groups`."""
    tasks = _tasks(context, planned)

    def predicted(topic: str, partition: int) -> PredictedOffsets:
        task = tasks[topic, partition]
        archived = task.archived
        if planned.fresh and archived.survey is None and archived.batching is None:  # the archive was not checked
            opened = open_partition(archived.storage, archived.topic, archived.segments, archived.kept)
            survey = DamageSurvey((), (), tuple(opened.transactions.aborted))
            task = replace(task, archived=replace(archived, survey=survey))
        return PredictedOffsets(task)

    return predicted


class PredictedOffsets:
    """The offset map that a partition would get. It must be asked for offsets that rise: it reads the archive once, as
    far as it is asked."""

    def __init__(self, task: RestoreTask) -> None:
        self._rows = _rows(task)
        self._end = task.part.start
        self._row: tuple[int, int, int] | None = None
        self._next()

    def find(self, source_offset: int) -> FoundOffset:
        """Do what `OffsetMap.find` does."""
        while self._row is not None and self._row[0] + self._row[2] <= source_offset:
            self._next()
        if self._row is None:
            return FoundOffset(self._end, OffsetPlace.END, None)
        source, target, _ = self._row
        if source > source_offset:
            return FoundOffset(target, OffsetPlace.GAP, source)
        return FoundOffset(target + source_offset - source, OffsetPlace.RECORD, source_offset)

    def _next(self) -> None:
        self._row = next(self._rows, None)
        if self._row is not None:
            self._end = self._row[1] + self._row[2]


def _rows(task: RestoreTask) -> Iterator[tuple[int, int, int]]:
    """Yield the rows of the map. Where source offsets do not rise, the first record counts, as in
    `OffsetMapBuilder`."""
    target, known_end = task.part.start, 0
    for item in stream_of(task, _NOTHING_SENT):
        for source, count in item.source:
            known = min(max(0, known_end - source), count)
            if known < count:
                known_end = source + count
                yield source + known, target + known, count - known
            target += count


class _RecordReader:
    """Reads the records before which groups stand; the last one is kept, since groups of one topic stand together."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._last: tuple[tuple[str, int, int], PreviewedRecord | None] | None = None

    def at(self, move: Move) -> PreviewedRecord | None:
        task = self._tasks.get((move.topic, move.group.partition))
        if task is None or move.place is OffsetPlace.END:
            return None
        offset = move.offset if move.record is None else move.record
        key = (move.topic, move.group.partition, offset)
        if self._last is None or self._last[0] != key:
            self._last = key, _record(task, offset, exact=move.record is not None)
        return self._last[1]


def _record(task: RestoreTask, offset: int, *, exact: bool) -> PreviewedRecord | None:
    """Return the first committed record from `offset` on; it lies at the offset if that is `exact`."""
    archived = task.archived
    aborted: Sequence[Any] = () if exact else archived.aborted()
    for part in open_damaged(archived.storage, archived.topic, archived.segments, aborted=aborted).records(offset):
        if isinstance(part, Damage):
            continue
        for record in part:
            if record.offset >= offset:
                time = record.timestamp
                return PreviewedRecord(record.offset, None if time in (None, -1) else time, record.key)
    return None
