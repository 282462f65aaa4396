"""What is whole in a damaged partition: a reader that steps over damage, and the survey that says what will be left
out.

A survey is made before the plan is stored and is part of it. Later the tasks read damaged segments with the same reader
and refuse to go on if they see anything else than the survey did, so that the stream of records stays the same in every
attempt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.model import Range, SegmentEntry
from logkeep_engine.archive.segments import Fault, read_segment, read_transactions
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class Whole:
    """A batch whose CRC holds. `batch` is valid until the next one is asked for."""

    batch: memoryview
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class Lost:
    """Source offsets [start, end) cannot be read."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Survey:
    """What is left out of one archived partition. `damaged` are base offsets of segments to be read with `salvage`, or,
    if they hold records, not to be read at all.

    `aborted` replaces the transaction indexes; None: they can be read.
    """

    damaged: tuple[int, ...]
    lost: tuple[Lost, ...]
    aborted: tuple[AbortedTxn, ...] | None = None


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A partition to look through, see `survey`. Pickles without secrets."""

    storage: Storage
    topic: str
    segments: tuple[SegmentEntry, ...]
    kept: tuple[Range, ...]
    faulty: tuple[str, ...]
    undecided: bool


def survey_partition(task: SurveyTask, context: TaskContext) -> Survey:
    """Runs on an executor."""
    return survey(task.storage, task.topic, task.segments, task.kept, task.faulty, task.undecided)


def salvage(storage: Storage, topic: str, entry: SegmentEntry) -> Iterator[Whole | Lost]:
    """Every whole batch of a segment in order, and the offsets between them that are damaged. Damage never raises."""
    lost: list[Lost] = []

    def note(fault: Fault, offsets: tuple[int, int] | None) -> None:
        if offsets is not None:
            lost.append(Lost(*offsets, fault.what))

    for run, headers in read_segment(storage, topic, entry, on_fault=note):
        yield from lost
        lost.clear()
        for at, header in headers:
            yield Whole(run[at : at + header.size], header)
    yield from lost


def survey_records(topic: str, segments: Sequence[SegmentEntry], faults: Sequence[Fault]) -> Survey:
    """As `survey`, of a partition whose segments hold records, from the `faults` of its objects alone. Pure.

    A damaged segment is left out as a whole: nothing but the SHA-256 of all of it protects a record in these formats,
    so of an altered object nobody knows which records are as they were. An index that is damaged costs nothing.
    """
    what = {fault.object: fault.what for fault in reversed(faults)}
    lost: dict[int, Lost] = {}
    for item in segments:
        path = f"{item.stem(topic)}{item.log_suffix}"
        if path in what:
            reason = f"{what[path]}; nothing tells which records of the object are whole"
            lost[item.base_offset] = Lost(item.base_offset, item.next_offset, reason)
    return Survey(tuple(lost), tuple(lost.values()))


def survey(
    storage: Storage,
    topic: str,
    segments: Sequence[SegmentEntry],
    kept: Sequence[Range],
    faulty: Sequence[str],
    undecided: bool,
) -> Survey:
    """Look at every batch of one partition. `kept` are the ranges of offsets that its segments stand for: between two
    of them records may be missing, inside of one only what compaction has removed. `faulty` are the paths of its
    objects with faults.

    `undecided`: it is not certain that all its transactions are decided; those that are not will be left out. Raises
    only what the storage does.
    """
    names_of_faulty = set(faulty)
    damaged = {item.base_offset for item in segments if item.stem(topic) + item.log_suffix in names_of_faulty}
    indexes_damaged = any(segment.stem(topic) + names.TXNINDEX in names_of_faulty for segment in segments)
    follow = _Transactions() if indexes_damaged or undecided else None
    lost: list[Lost] = []
    expected: int | None = None
    for segment in segments:
        if follow is not None and expected is not None and not _is_within(expected, segment.base_offset, kept):
            follow.hole(expected)
        expected = segment.next_offset
        if follow is None and segment.base_offset not in damaged:
            continue
        for item in salvage(storage, topic, segment):
            if isinstance(item, Lost):
                damaged.add(segment.base_offset)
                lost.append(item)
                if follow is not None:
                    follow.hole(item.start)
            elif follow is not None:
                follow.observe(item)
    if follow is None:
        return Survey(tuple(sorted(damaged)), tuple(lost))
    known = _indexed(storage, topic, segments, names_of_faulty)
    follow.end(expected if expected is not None else 0)
    covered = {(txn.producer_id, txn.first_offset) for txn in known}
    for txn in follow.unknown:
        if (txn.producer_id, txn.first_offset) not in covered:
            lost.append(
                Lost(
                    txn.first_offset,
                    txn.last_offset + 1,
                    f"outcome of a transaction of producer {txn.producer_id} is not archived",
                )
            )
    aborted = {*known, *follow.aborted, *follow.unknown}
    return Survey(
        tuple(sorted(damaged)),
        tuple(lost),
        tuple(sorted(aborted, key=lambda txn: (txn.last_offset, txn.producer_id))),
    )


def _is_within(start: int, end: int, ranges: Sequence[Range]) -> bool:
    """Whether [start, end), which may be empty, lies in one of these ranges."""
    return start >= end or any(low <= start and end <= high for low, high in ranges)


def _indexed(storage: Storage, topic: str, segments: Sequence[SegmentEntry], faulty: set[str]) -> list[AbortedTxn]:
    found: list[AbortedTxn] = []
    for segment in segments:
        if segment.stem(topic) + names.TXNINDEX not in faulty:
            found += read_transactions(storage, topic, segment)
    return found


class _Transactions:
    """Follows a partition's transactions; a hole leaves those open at it undecided, since their markers may have been
    in it.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}
        self.aborted: list[AbortedTxn] = []
        self.unknown: list[AbortedTxn] = []

    def observe(self, item: Whole) -> None:
        header = item.header
        if header.magic < 2 or not header.is_transactional:
            return
        if not header.is_control:
            if header.record_count:  # else compaction has emptied it: nothing is left to decide
                self._open.setdefault(header.producer_id, header.base_offset)
            return
        first = self._open.pop(header.producer_id, None)
        if first is None:
            return
        kind = control_type(item.batch)
        if kind is ControlType.ABORT:
            self.aborted.append(AbortedTxn(header.producer_id, first, header.last_offset, header.last_offset + 1))
        elif kind is not ControlType.COMMIT:
            self.unknown.append(AbortedTxn(header.producer_id, first, header.last_offset, header.last_offset + 1))

    def hole(self, start: int) -> None:
        """Offsets from `start` on cannot be read, for a while."""
        for producer, first in self._open.items():
            self.unknown.append(AbortedTxn(producer, first, start - 1, start))
        self._open.clear()

    def end(self, offset: int) -> None:
        self.hole(offset)
