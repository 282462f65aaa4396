"""The survey of a damaged partition: which offsets a restore leaves out.

A survey is made before the plan is stored and is part of it. Later the tasks read damaged segments with the same reader
(`partition.open_damaged`) and refuse to continue if they see anything else than the survey did, so that the stream of
records stays the same in every attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.archive.reading.transactions import TransactionOutcomes
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """A restore leaves out source offsets [start, end), because of damage or of an undecided transaction."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class DamageSurvey:
    """The ranges that a restore leaves out of one archived partition. `damaged` are base offsets of damaged segments:
    tasks read them with `open_damaged`, or, if they hold records, not at all.

    `aborted` replaces the transaction indexes; None: the indexes can be read.
    """

    damaged: tuple[int, ...]
    lost: tuple[UnreadableRange, ...]
    aborted: tuple[AbortedTxn, ...] | None = None


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A partition to look through, see `survey`. Pickles without secrets."""

    storage: Storage
    topic: str
    segments: tuple[SegmentEntry, ...]


def survey_partition(task: SurveyTask, context: TaskContext) -> DamageSurvey:
    """Runs on an executor."""
    return survey(task.storage, task.topic, task.segments)


def survey_records(topic: str, segments: Sequence[SegmentEntry], damage: Sequence[Damage]) -> DamageSurvey:
    """Return the survey of a partition whose segments hold records, from the `damage` of its objects alone. Pure.

    A damaged segment is left out as a whole. In these formats only the digest of the whole object protects a record, so
    it is unknown which records of an altered object are as they were. A damaged index costs no record.
    """
    what = {found.object: found.what for found in reversed(damage)}
    lost: dict[int, UnreadableRange] = {}
    for item in segments:
        path = f"{item.stem(topic)}{item.log_suffix}"
        if path in what:
            reason = f"{what[path]}; it is unknown which records of the object are intact"
            lost[item.base_offset] = UnreadableRange(item.base_offset, item.next_offset, reason)
    return DamageSurvey(tuple(lost), tuple(lost.values()))


def survey(storage: Storage, topic: str, segments: Sequence[SegmentEntry]) -> DamageSurvey:
    """Look at every batch of the damaged segments of one partition. Raises only what the storage does."""
    lost = [
        UnreadableRange(*item.lost, item.what)
        for item in open_damaged(storage, topic, segments).batches()
        if isinstance(item, Damage) and item.lost is not None
    ]
    return DamageSurvey(tuple(segment.base_offset for segment in segments), tuple(lost))


def with_transactions(survey: DamageSurvey, outcomes: TransactionOutcomes, index: Sequence[AbortedTxn]) -> DamageSurvey:
    """Return the survey with the partition's transactions. `index`: the entries of all its transaction indexes that can
    be read."""
    undecided = (
        UnreadableRange(
            txn.first_offset,
            txn.last_offset + 1,
            f"outcome of a transaction of producer {txn.producer_id} is not archived",
        )
        for txn in outcomes.undecided
    )
    return DamageSurvey(survey.damaged, (*survey.lost, *undecided), tuple(outcomes.aborted(index)))
