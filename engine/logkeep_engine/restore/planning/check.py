"""Finds out which records of an archive can be restored: it looks at every object before the first record is
written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.segment_check import check_segment, missing_or_short
from logkeep_engine.archive.reading.beginnings import NOT_ACCOUNTED_FOR, holes, missing_beginnings
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import (
    NeighbouringReads,
    facts_in,
    is_batched,
    left_at,
    open_partition,
)
from logkeep_engine.archive.reading.salvage import (
    DamageSurvey,
    SurveyTask,
    UnreadableRange,
    survey_partition,
    survey_records,
    with_transactions,
)
from logkeep_engine.archive.reading.transactions import TransactionOutcomes, fold
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import OnDamagedArchive
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import PartitionSurvey
from logkeep_engine.restore.model.selection import Choice
from logkeep_engine.restore.planning.cold_objects import Used, cold_of, listed_in, refuse_cold
from logkeep_engine.storage import ObjectInfo, Storage
from logkeep_engine.tasks import TaskContext, in_groups

DAMAGE = "damage.json"

_CHECK_BYTES = 256 << 20  # archived bytes one task of the check reads
_CHECK_SEGMENTS = 500
_CHECKS_PER_SLOT = 4  # tasks of the check for an executor core, so that none waits long for the last one
_FAULTS_SHOWN = 3

_Key = tuple[str, int, int]  # topic id, partition, base offset of a segment


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Segments to verify: (topic name, entry). Pickles without secrets."""

    storage: Storage
    segments: tuple[tuple[str, SegmentEntry], ...]


@dataclass(frozen=True, slots=True)
class CheckedSegments:
    """All damage of a task's segments, and what each that has transactions says of them."""

    faults: tuple[Damage, ...]
    transactions: tuple[tuple[int, SegmentTransactions], ...]
    """The transactions of segments, with the segments' places in the task."""


def check_segments(task: CheckTask, context: TaskContext) -> CheckedSegments:
    """Runs on an executor."""
    faults: list[Damage] = []
    transactions: list[tuple[int, SegmentTransactions]] = []
    storage = NeighbouringReads(task.storage)
    for at, (topic, entry) in enumerate(task.segments):
        checked = check_segment(storage, topic, entry)
        faults += checked.damage
        if checked.transactions is not None and (entry.transactional or checked.transactions.holed):
            transactions.append((at, checked.transactions))
    return CheckedSegments(tuple(faults), tuple(transactions))


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of the check of an archive, when it may continue. `cold`: nothing was read, since a dry run does not
    wait for cold objects."""

    surveys: tuple[PartitionSurvey, ...] = ()
    loss: tuple[LossFact, ...] = ()
    warnings: tuple[str, ...] = ()
    cold: bool = False


class ArchiveCheck:
    """The check of one run. It notes all damage in the run's folder."""

    def __init__(self, context: RestoreContext) -> None:
        self._context = context
        self._storage = context.archive.storage
        self._run_tasks = context.run_tasks

    def check(self, state: ArchiveState, choices: Sequence[Choice]) -> Findings:
        """Check all that will be restored. Raises ObjectCold if some of it cannot be read now, and ArchiveDamaged if
        something is damaged, unless the spec says to skip it.
        """
        partitions = [(choice.source, partition) for choice in choices for partition in range(choice.source.partitions)]
        used = used_of(state, choices)
        refuse = self._context.spec.on_damaged_archive is OnDamagedArchive.REFUSE
        faults = self._missing_or_short(used)
        if faults and refuse and not self._context.dry_run:  # which looks at the rest, too
            self._refuse(faults)
        bad = {fault.object for fault in faults}
        found, transactions = self._verify(used)
        faults += [fault for fault in found if fault.object not in bad]
        if faults and refuse:
            self._refuse(faults)
        if faults:
            self._note(faults)
        outcomes = {
            (topic.topic_id, partition): self._outcomes(state, topic, partition, transactions)
            for topic, partition in partitions
        }
        surveys = self._survey(state, partitions, faults, outcomes)
        loss = self._loss(state, partitions, surveys)
        warnings = [*_archive_warnings(state, choices, faults), *_transaction_warnings(state, outcomes)]
        return Findings(surveys, tuple(loss), tuple(warnings))

    def _outcomes(
        self, state: ArchiveState, topic: TopicEntry, partition: int, transactions: Mapping[_Key, SegmentTransactions]
    ) -> TransactionOutcomes:
        """Return the outcomes of transactions that the transaction indexes of a partition do not show."""
        entries = state.segments.get((topic.topic_id, partition), ())
        if not any(entry.transactional for entry in entries):
            return TransactionOutcomes()

        def said(at: int) -> SegmentTransactions:
            entry = entries[at]
            found = transactions.get(_key(entry))
            if found is None and not entry.transactional:
                return SegmentTransactions.without(entry)
            if found is None or left_at(entries, at) is not None:  # the check follows none of a snapshot
                return facts_in(
                    self._storage, topic.name, entries, at, lambda damage: None
                )  # the check has reported it
            return found

        return fold(map(said, range(len(entries))), state.kept(topic.topic_id, partition))

    def _loss(
        self, state: ArchiveState, partitions: Sequence[tuple[TopicEntry, int]], surveys: Sequence[PartitionSurvey]
    ) -> list[LossFact]:
        surveyed = {(found.topic_id, found.partition): found.survey.lost for found in surveys}
        beginnings = missing_beginnings(self._context.archive, state)
        loss = []
        for topic, partition in partitions:
            key = (topic.topic_id, partition)
            never = (UnreadableRange(start, end, NOT_ACCOUNTED_FOR) for start, end in holes(state, key, beginnings))
            for lost in (*surveyed.get(key, ()), *never):
                loss.append(
                    LossFact(topic=topic.name, partition=partition, start=lost.start, end=lost.end, reason=lost.reason)
                )
        return loss

    def _missing_or_short(self, used: Used) -> list[Damage]:
        """Return the objects that are missing or have another size, found by one listing of each topic. Raises
        ObjectCold."""
        sizes: dict[str, int] = {}
        classed: list[ObjectInfo] = []
        for info in listed_in(self._storage, used):
            sizes[info.path] = info.size
            if info.storage_class:
                classed.append(info)
        refuse_cold(self._storage, cold_of(self._storage, used, classed))
        return [fault for topic, entry in used for fault in missing_or_short(self._storage, topic, entry, sizes)]

    def _verify(self, used: Used) -> tuple[list[Damage], dict[_Key, SegmentTransactions]]:
        most = _CHECK_BYTES
        if used:
            size = sum(entry.bytes for _, entry in used)
            most = min(most, size // (_CHECKS_PER_SLOT * self._context.slots(len(used), size, limited=False)))
        groups = in_groups(used, lambda item: item[1].bytes, most, _CHECK_SEGMENTS)
        work = [CheckTask(self._storage, tuple(group)) for group in groups]
        found: dict[int, CheckedSegments] = {}
        self._run_tasks(work, check_segments, found.__setitem__)
        transactions = {
            _key(work[index].segments[at][1]): said
            for index, checked in found.items()
            for at, said in checked.transactions
        }
        return [fault for index in sorted(found) for fault in found[index].faults], transactions

    def _survey(
        self,
        state: ArchiveState,
        partitions: Sequence[tuple[TopicEntry, int]],
        faults: Sequence[Damage],
        outcomes: Mapping[Partition, TransactionOutcomes],
    ) -> tuple[PartitionSurvey, ...]:
        """Return the surveys of the partitions that their indexes do not describe as they are."""
        faulty: dict[tuple[str, int], list[Damage]] = {}
        for fault in faults:
            path = fault.object.removeprefix(f"{self._storage.uri}/")
            faulty.setdefault((fault.topic, fault.partition), []).append(replace(fault, object=path))
        work, keys = [], []
        surveys: dict[Partition, DamageSurvey] = {}
        for topic, partition in partitions:
            key = (topic.topic_id, partition)
            segments: Sequence[SegmentEntry] = state.segments.get(key, ())
            found = faulty.get((topic.name, partition), [])
            if found and not is_batched(segments[0].layout):
                surveys[key] = survey_records(topic.name, segments, found)
                continue
            objects = {fault.object for fault in found}
            if found or not outcomes[key].indexes_suffice:
                surveys[key] = DamageSurvey((), ())
            damaged = [entry for entry in segments if entry.stem(topic.name) + entry.log_suffix in objects]
            if damaged:
                work.append(SurveyTask(self._storage, topic.name, tuple(damaged)))
                keys.append(key)
        done: dict[int, DamageSurvey] = {}
        self._run_tasks(work, survey_partition, done.__setitem__)
        surveys.update((keys[index], done[index]) for index in done)
        topics = {topic.topic_id: topic.name for topic, _ in partitions}
        return tuple(
            PartitionSurvey(*key, self._with_transactions(state, topics[key[0]], key, surveys[key], faulty, outcomes))
            for key in sorted(surveys)
        )

    def _with_transactions(
        self,
        state: ArchiveState,
        topic: str,
        key: Partition,
        survey: DamageSurvey,
        faulty: Mapping[tuple[str, int], Sequence[Damage]],
        outcomes: Mapping[Partition, TransactionOutcomes],
    ) -> DamageSurvey:
        objects = {fault.object for fault in faulty.get((topic, key[1]), ())}
        indexed = [entry for entry in state.segments.get(key, ()) if entry.files.txnindex_bytes]
        readable = [entry for entry in indexed if entry.stem(topic) + names.TXNINDEX not in objects]
        if outcomes[key].indexes_suffice and len(readable) == len(indexed):
            return survey
        index = list(open_partition(self._storage, topic, readable).transaction_index())
        return with_transactions(survey, outcomes[key], index)

    def _note(self, faults: Sequence[Damage]) -> None:
        if self._context.dry_run:
            return
        body = {"format": 1, "runId": self._context.run_id, "faults": [fault.to_json() for fault in faults]}
        state = self._context.state
        state.storage.put(state.file(DAMAGE), json.dumps(body, ensure_ascii=False, indent=1).encode())

    def _refuse(self, faults: Sequence[Damage]) -> None:
        self._note(faults)
        shown = "; ".join(str(fault) for fault in faults[:_FAULTS_SHOWN])
        more = f"; and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        noted = (
            "`logkeep verify` lists all" if self._context.dry_run else f"All are in {self._context.state.name(DAMAGE)}"
        )
        raise ArchiveDamaged(
            f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'} in the archive, nothing was written to "
            f"Kafka: {shown}{more}",
            hint=f"{noted}. Repair the objects from a copy of the archive, or restore everything "
            "intact with spec.onDamagedArchive: Skip.",
            faults=tuple(str(fault) for fault in faults),
        )


def used_of(state: ArchiveState, choices: Sequence[Choice]) -> Used:
    """Return the segments of the topics, each with the name of its topic."""
    return [
        (choice.source.name, entry)
        for choice in choices
        for partition in range(choice.source.partitions)
        for entry in state.segments.get((choice.source.topic_id, partition), ())
    ]


def _key(entry: SegmentEntry) -> _Key:
    return entry.topic_id, entry.partition, entry.base_offset


def _archive_warnings(state: ArchiveState, choices: Sequence[Choice], faults: Sequence[Damage]) -> list[str]:
    warnings = []
    for choice in choices:
        topic = choice.source
        gaps = [gap for partition in range(topic.partitions) for gap in state.gaps.get((topic.topic_id, partition), ())]
        if gaps:
            first = gaps[0]
            warnings.append(
                f"topic {topic.name}: {sum(gap.end - gap.start for gap in gaps)} offsets are not in the "
                "archive, first "
                f"partition {first.partition} offsets {first.start} to {first.end - 1}: {first.reason}"
            )
        removed = [
            (partition, *offsets)
            for partition in range(topic.partitions)
            for offsets in state.removed_between(topic.topic_id, partition)
        ]
        if removed:
            partition, start, end = removed[0]
            warnings.append(
                f"topic {topic.name}: {sum(end - start for _, start, end in removed)} offsets between others were "
                f"removed by retention, first partition {partition} offsets {start} to {end - 1}"
            )
    if faults:
        word = "fault" if len(faults) == 1 else "faults"
        warnings.append(f"the archive has {len(faults)} {word}, first: {faults[0]}")
    return warnings


def _transaction_warnings(state: ArchiveState, outcomes: Mapping[Partition, TransactionOutcomes]) -> list[str]:
    """Return the warnings for transaction indexes that markers contradict."""
    warnings = []
    for (topic_id, partition), found in outcomes.items():
        if found.disagreements:
            more = len(found.disagreements) - 1
            warnings.append(
                f"topic {state.topics[topic_id].name} partition {partition}: {found.disagreements[0]}"
                + (f"; and {more} more transactions" if more else "")
            )
    return warnings
