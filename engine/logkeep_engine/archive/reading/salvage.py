"""The survey of a damaged partition: which offsets a restore leaves out.

A survey is made before the plan is stored and is part of it. Later the tasks read damaged segments with the same reader
(`partition.open_damaged`) and refuse to go on if they see anything else than the survey did, so that the stream of
records stays the same in every attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.archive.reading.transactions import Outcomes
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """Source offsets [start, end) cannot be read."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """The survey says what is left out of one archived partition. `damaged` are base offsets of segments to be read
    with `open_damaged`, or, if they hold records, not to be read at all.

    `aborted` replaces the transaction indexes; None: they can be read.
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


def survey_partition(task: SurveyTask, context: TaskContext) -> Survey:
    """Runs on an executor."""
    return survey(task.storage, task.topic, task.segments)


def survey_records(topic: str, segments: Sequence[SegmentEntry], damage: Sequence[Damage]) -> Survey:
    """As `survey`, of a partition whose segments hold records, from the `damage` of its objects alone. Pure.

    A damaged segment is left out as a whole: nothing but the SHA-256 of all of it protects a record in these formats,
    so of an altered object nobody knows which records are as they were. An index that is damaged costs nothing.
    """
    what = {found.object: found.what for found in reversed(damage)}
    lost: dict[int, UnreadableRange] = {}
    for item in segments:
        path = f"{item.stem(topic)}{item.log_suffix}"
        if path in what:
            reason = f"{what[path]}; nothing tells which records of the object are whole"
            lost[item.base_offset] = UnreadableRange(item.base_offset, item.next_offset, reason)
    return Survey(tuple(lost), tuple(lost.values()))


def survey(storage: Storage, topic: str, segments: Sequence[SegmentEntry]) -> Survey:
    """Look at every batch of the damaged segments of one partition. Raises only what the storage does."""
    lost = [
        UnreadableRange(*item.lost, item.what)
        for item in open_damaged(storage, topic, segments).batches()
        if isinstance(item, Damage) and item.lost is not None
    ]
    return Survey(tuple(segment.base_offset for segment in segments), tuple(lost))


def with_transactions(survey: Survey, outcomes: Outcomes, index: Sequence[AbortedTxn]) -> Survey:
    """The survey with what is known of the partition's transactions. `index`: the entries of all its transaction
    indexes that can be read."""
    undecided = (
        UnreadableRange(
            txn.first_offset,
            txn.last_offset + 1,
            f"outcome of a transaction of producer {txn.producer_id} is not archived",
        )
        for txn in outcomes.undecided
    )
    return Survey(survey.damaged, (*survey.lost, *undecided), tuple(outcomes.aborted(index)))
