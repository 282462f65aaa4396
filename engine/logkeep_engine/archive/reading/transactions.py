"""How the transactions of an archived partition ended, by both witnesses: markers in the logs, and indexes. Pure.

    found = fold(facts, kept)      # of a partition: what each of its segments says, in order
    for txn in found.aborted(index_entries): ...

The marker decides wherever it is archived. Where it is not, the index decides: what is archived was below the last
stable offset when it was fetched, so its transaction was decided then, and the fetch named it if it was aborted. Where
the two disagree the marker wins, and `fold` says so. A transaction is undecided only if the index of a segment
with its records is damaged, and its marker is not there either.

A marker belongs to the last transaction of its producer before it. Across offsets that are not archived this is not
certain: the marker of the first transaction, and the beginning of a second one, may have been there. So at such a hole
the index decides the transactions that are open. A broker's compaction removes offsets too, but it keeps a marker as
long as a batch of its transaction. So missing offsets matter only between segments that were fetched in different runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from logkeep_engine.archive.catalog.segment_transactions import UNKNOWN, KnownPart, SegmentTransactions
from logkeep_engine.archive.ranges import Range
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Ending, Spans, TransactionPart


@dataclass(frozen=True, slots=True)
class MarkerDisagreement:
    """The index and the marker of a transaction say different things. `aborted` is what the marker says."""

    producer_id: int
    first_offset: int
    marker: int
    aborted: bool

    def __str__(self) -> str:
        if self.aborted:
            what = "ends with an ABORT marker, but the transaction index has it as committed"
        else:
            what = "ends with a COMMIT marker, but the transaction index has it as aborted"
        return (
            f"the transaction of producer {self.producer_id} with offsets {self.first_offset} to {self.marker} {what}: "
            "the marker holds"
        )


@dataclass(frozen=True, slots=True)
class TransactionOutcomes:
    """Facts that the indexes of a partition do not say. `added` transactions were aborted. `dropped` ones were not,
    although an index names them. It is unknown whether `undecided` ones were. `open` ones have begun at these offsets
    and have no marker below the end, by producer id; one whose marker compaction may have taken is none of them.
    """

    added: tuple[AbortedTxn, ...] = ()
    dropped: tuple[AbortedTxn, ...] = ()
    undecided: tuple[AbortedTxn, ...] = ()
    disagreements: tuple[MarkerDisagreement, ...] = ()
    open: Mapping[int, int] = field(default_factory=dict)

    @property
    def indexes_suffice(self) -> bool:
        return not (self.added or self.dropped or self.undecided)

    def aborted(self, index: Iterable[AbortedTxn]) -> list[AbortedTxn]:
        """Return all whose records no consumer of committed records may see, from the entries of all indexes that can
        be read: those that were aborted, and those that are undecided."""
        wrong = Spans.of(self.dropped)
        found = {
            txn
            for txn in index
            if not (wrong.holds(txn.producer_id, txn.first_offset) or wrong.holds(txn.producer_id, txn.last_offset))
        }
        return sorted({*found, *self.added, *self.undecided}, key=_by_end)


def fold(segments: Iterable[SegmentTransactions], kept: Sequence[Range]) -> TransactionOutcomes:
    """Join what the segments of a partition say, in the order of their offsets. `kept` are the ranges of offsets that
    they stand for: between two of them records may be missing, inside of one only what compaction has removed."""
    joined = _Fold()
    begun: dict[int, _Begun] = {}
    at: int | None = None
    for segment in segments:
        apart = at is not None and at < segment.base_offset
        if at is not None and apart:
            if is_hole(at, segment.base_offset, kept):
                joined.hole()
                begun = {}
            joined.missing()
        joined.add(segment)
        begun = _surely_open(begun, segment, apart=apart)
        at = segment.next_offset
    joined.hole()
    return replace(joined.outcomes(), open={producer: item.first for producer, item in begun.items()})


def is_hole(start: int, end: int, kept: Sequence[Range]) -> bool:
    """Tell whether records may be missing at offsets [start, end), and markers."""
    return start < end and not any(low <= start and end <= high for low, high in kept)


def open_after(begun: Mapping[int, int], facts: SegmentTransactions) -> dict[int, int]:
    """Return the transactions that are open after a segment, from those before it: the offset at which each begins,
    by producer id."""
    ended = {known.part.producer_id: known.part for known in facts.parts}  # the last part of each decides
    left = {producer: first for producer, first in begun.items() if producer not in ended and not facts.holed}
    for producer_id, part in ended.items():
        if part.ending is Ending.OPEN:
            first = begun.get(producer_id)
            left[producer_id] = first if part.begun and first is not None else part.first
    return left


class _Begun(NamedTuple):
    """The first offset of a transaction, and the epoch of the last segment with a batch of it."""

    first: int
    epoch: int


def _surely_open(before: Mapping[int, _Begun], facts: SegmentTransactions, *, apart: bool) -> dict[int, _Begun]:
    """Return the transactions that are open after a segment. Where an offset is missing since the run that fetched
    the last batch of one, compaction may have taken its marker, and with it all that the transaction had: then it is
    none of them. `apart`: one is missing before the segment."""
    parts = {known.part.producer_id: known.part for known in facts.parts}

    def is_sure(producer_id: int, epoch: int) -> bool:
        part = parts.get(producer_id)
        return epoch == facts.epoch or (not apart and (facts.dense if part is None else part.dense))

    sure = {producer_id: item.first for producer_id, item in before.items() if is_sure(producer_id, item.epoch)}
    return {
        producer_id: _Begun(first, facts.epoch if producer_id in parts else before[producer_id].epoch)
        for producer_id, first in open_after(sure, facts).items()
    }


@dataclass(slots=True)
class _Transaction:
    """One that is open so far. `epoch` is that of the last segment with a batch of it; `sparse`: an offset is missing
    after that segment."""

    parts: list[KnownPart] = field(default_factory=list)
    epoch: int = 0
    sparse: bool = False


class _Fold:
    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}
        self._added: list[AbortedTxn] = []
        self._dropped: list[AbortedTxn] = []
        self._undecided: list[AbortedTxn] = []
        self._disagreements: list[MarkerDisagreement] = []

    def missing(self) -> None:
        """Offsets are missing here."""
        for transaction in self._open.values():
            transaction.sparse = True

    def hole(self) -> None:
        """Records may be missing here, and markers: what is open ends as the indexes say."""
        for transaction in self._open.values():
            self._by_index(transaction.parts)
        self._open.clear()

    def add(self, segment: SegmentTransactions) -> None:
        before, self._open = self._open, {}
        for known in segment.parts:
            part = known.part
            transaction = _Transaction()
            earlier = before.pop(part.producer_id, None)
            if earlier is not None:
                if part.begun and (earlier.epoch == segment.epoch or (part.dense and not earlier.sparse)):
                    transaction = earlier
                else:
                    self._by_index(earlier.parts)
            transaction.parts.append(known)
            self._close(transaction, part, segment)
        if segment.holed:
            for transaction in before.values():
                self._by_index(transaction.parts)
            return
        for producer_id, transaction in before.items():
            transaction.sparse = transaction.sparse or not segment.dense
            self._open[producer_id] = transaction

    def _close(self, transaction: _Transaction, part: TransactionPart, segment: SegmentTransactions) -> None:
        if part.ending is Ending.OPEN:
            transaction.epoch, transaction.sparse = segment.epoch, False
            self._open[part.producer_id] = transaction
        elif part.ending is Ending.HIDDEN:
            self._by_index(transaction.parts)
        else:
            self._by_marker(transaction.parts, part)

    def _by_marker(self, parts: Sequence[KnownPart], last: TransactionPart) -> None:
        data = [known for known in parts if known.part.has_data]
        if not data:
            return
        first = data[0].part.first
        span = AbortedTxn(last.producer_id, first, last.marker, first)
        named = list(_named(parts))
        if last.ending is Ending.ABORT:
            if all(named):
                return
            self._added.append(span)
            disagree = any(not item and known.since != UNKNOWN for item, known in zip(named, data, strict=True))
        else:
            disagree = any(known.since >= 0 for known in data)
            if disagree:
                self._dropped.append(span)
        if disagree:
            aborted = last.ending is Ending.ABORT
            self._disagreements.append(MarkerDisagreement(last.producer_id, first, last.marker, aborted))

    def _by_index(self, parts: Sequence[KnownPart]) -> None:
        data = [known for known in parts if known.part.has_data]
        if not data:
            return
        first, last = data[0].part, data[-1].part
        span = AbortedTxn(first.producer_id, first.first, last.end, first.first)
        named = list(_named(parts))
        if any(known.since >= 0 for known in data):
            if not all(named):
                self._added.append(span)
        elif any(known.since == UNKNOWN for known in data):
            self._undecided.append(span)

    def outcomes(self) -> TransactionOutcomes:
        return TransactionOutcomes(
            tuple(sorted(self._added, key=_by_end)),
            tuple(sorted(self._dropped, key=_by_end)),
            tuple(sorted(self._undecided, key=_by_end)),
            tuple(sorted(self._disagreements, key=lambda item: (item.marker, item.producer_id))),
        )


def _named(parts: Sequence[KnownPart]) -> Iterator[bool]:
    """For each part with data: does an index, its own or that of a later part, call all of it aborted?"""
    since = [known.since for known in parts]
    for at, known in enumerate(parts):
        if known.part.has_data:
            yield any(0 <= later <= known.part.first for later in since[at:])


def _by_end(txn: AbortedTxn) -> tuple[int, int, int]:
    return txn.last_offset, txn.producer_id, txn.first_offset
