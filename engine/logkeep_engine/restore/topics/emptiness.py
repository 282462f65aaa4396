"""A restore that would bring nothing is not a success: it is refused before the first topic is created.

An archive in which no backup has come to its end holds whatever that backup has got to. `onDamagedArchive: Skip`
restores it, for a cluster that was lost during its first backup. Topics may have no record because they had none,
because retention has removed them all, because transactions were aborted, or because nothing of them is whole;
`allowEmpty` allows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range, add_range, without
from logkeep_engine.archive.reading.view import ArchiveView
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec, OnDamagedArchive
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BackupUnfinished, NothingToRestore
from logkeep_engine.restore.model.plan import PartitionSurvey
from logkeep_engine.restore.model.selection import Choice, shown
from logkeep_engine.storage import Storage

OUTSIDE = "everything in it is outside of spec.point"
_HINT = "Check {} and spec.topics. spec.allowEmpty: true creates the topics without records."


def refuse_unfinished(seen: ArchiveView, uri: str, spec: KafkaRestoreSpec) -> None:
    """Raises BackupUnfinished for an archive in which no run has ended, unless the spec takes what there is."""
    if seen.finished or spec.on_damaged_archive is OnDamagedArchive.SKIP:
        return
    records = sum(run.records for run in seen.state.runs.values())
    runs = "; ".join(
        f"run {run.run_id} is {run.outcome.value}" + (f": {run.message}" if run.message else "")
        for run in list(seen.state.runs.values())[-3:]
    )
    raise BackupUnfinished(
        f"no backup of the archive at {uri} has succeeded yet, it holds {so_many(records, 'record')} of only some of "
        f"the topics: {runs or 'none has started'}; nothing was written",
        hint="Restore after a backup has succeeded. spec.onDamagedArchive: Skip restores what is there.",
    )


def describe_empty(state: ArchiveState, choices: Sequence[Choice], whole: ArchiveState) -> list[str]:
    """Return the warnings for topics of which the archive holds no record. `state` is the part of the `whole` archive
    that lies within the point of the restore."""
    found: dict[str, list[str]] = {}
    for choice in choices:
        if not any(_with_records(state, choice.source)):
            found.setdefault(_why_empty(state, choice.source, whole), []).append(choice.source.name)
    return [
        f"the restore brings no record of {so_many(len(names), 'topic')} ({why}): {shown(names)}"
        for why, names in found.items()
    ]


def refuse_empty(storage: Storage, state: ArchiveState, choices: Sequence[Choice], whole: ArchiveState) -> None:
    """Raises NothingToRestore if none of the topics has a record that a consumer of committed records sees."""
    # Consumers see every record outside of transactions. Only without such records, outcomes must be looked up.
    if any(not entry.transactional for choice in choices for entry in _with_records(state, choice.source)):
        return
    seen = shows(storage, state)
    why = {}
    for choice in choices:
        topic = choice.source
        if not any(_with_records(state, topic)):
            why[topic.name] = _why_empty(state, topic, whole)
        elif seen(topic):
            return
        else:
            why[topic.name] = "all its records are of aborted transactions"
    raise nothing_there(why)


def refuse_damaged(state: ArchiveState, choices: Sequence[Choice], surveys: Iterable[PartitionSurvey]) -> None:
    """Raises NothingToRestore if nothing of the topics is whole."""
    lost: dict[Partition, list[Range]] = {}
    for item in surveys:
        for part in item.survey.lost:
            add_range(lost.setdefault((item.topic_id, item.partition), []), part.start, part.end)
    if lost and not any(_is_left(entry, lost) for choice in choices for entry in _with_records(state, choice.source)):
        raise nothing_there({choice.source.name: "everything in it is damaged" for choice in choices})


def nothing_there(why: Mapping[str, str]) -> NothingToRestore:
    """Return the error of a restore that would bring no record, with the reason for each topic."""
    lines = [f"{name} ({reason})" for name, reason in why.items()]
    what = "spec.point, spec.source" if OUTSIDE in why.values() else "spec.source"
    return NothingToRestore(
        f"the archive holds no record of what spec.topics chooses: {shown(lines)}; nothing was written",
        hint=_HINT.format(what),
    )


def _is_left(entry: SegmentEntry, lost: Mapping[Partition, Sequence[Range]]) -> bool:
    ranges = lost.get((entry.topic_id, entry.partition), ())
    return bool(without(entry.base_offset, entry.next_offset, ranges))


def _with_records(state: ArchiveState, topic: TopicEntry) -> Iterator[SegmentEntry]:
    """Yield the segments of a topic that hold records, also those of aborted transactions."""
    for partition in range(topic.partitions):
        yield from (entry for entry in state.segments.get((topic.topic_id, partition), ()) if entry.records)


def _why_empty(state: ArchiveState, topic: TopicEntry, whole: ArchiveState) -> str:
    keys = [(topic.topic_id, partition) for partition in range(topic.partitions)]
    if any(_with_records(whole, topic)) and all(state.removed.get(key) == whole.removed.get(key) for key in keys):
        return OUTSIDE
    if any(state.removed.get(key) for key in keys):
        return "retention has removed all of it"
    if any(state.gaps.get(key) for key in keys):
        return "it was lost before it could be archived"
    return "it was empty, or nothing of it has been archived yet"
