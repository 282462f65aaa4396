"""The follower of transactions: which part of a log belongs to which transaction, and how each ended.

    follower = TransactionFollower()
    part = follower.observe(data, position, header)     # for each transactional batch, in the order of the log

Everything in the engine that asks after transactions asks here. The marker of a transaction is a control batch of its
producer after its last batch. Where the marker lies in another segment, `archive.reading.transactions` joins the
parts.

Source of facts: apache/kafka `ProducerAppendInfo.java`, `ProducerStateManager.java` (lastStableOffset),
`CleanedTransactionMetadata.java` (a marker stays as long as a batch of its transaction does).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum

from logkeep_engine.log.batch import MAX_OFFSET, BatchHeader, Buffer, Headers
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.segment import AbortedTxn

TRANSACTIONAL_OR_CONTROL = 0x30
"""Bits of a batch's attributes."""

TRANSACTIONAL = 0x10
"""The bit of a batch's attributes that markers have too."""


class Ending(IntEnum):
    """How a part of a transaction ends where it was looked at."""

    OPEN = 0
    """The stretch that was looked at ends before the marker."""
    ABORT = 1
    COMMIT = 2
    HIDDEN = 3
    """The marker may lie in what cannot be read, or it is there and compaction has emptied it."""


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """The batches of one transaction in a stretch of the log, and its end, if it is there too.

    `first`: base offset of its first batch, `last`: last offset of its last batch; both are -1 if only the marker is
    here, which lies at offset `marker` (-1: it is not here). `begun`: it may have begun before the stretch. `dense`: no
    offset is missing between the beginning of the stretch and the first that is here of it. `records`: a batch of it
    holds a record; compaction may have emptied all of them.
    """

    producer_id: int
    first: int
    last: int
    ending: Ending
    marker: int = -1
    begun: bool = False
    dense: bool = True
    records: bool = True

    @property
    def has_data(self) -> bool:
        return self.first >= 0 and self.records

    @property
    def end(self) -> int:
        """The last offset of this part."""
        return max(self.last, self.marker)


@dataclass(slots=True)
class _Open:
    first: int
    last: int
    begun: bool
    dense: bool
    records: bool

    def part(self, producer_id: int, ending: Ending, marker: int = -1) -> TransactionPart:
        return TransactionPart(producer_id, self.first, self.last, ending, marker, self.begun, self.dense, self.records)


class TransactionFollower:
    """Follows the transactional batches of a stretch of a partition's log, in the order of the log.

    `dense` is True until the caller says that an offset is missing. `holed`: a part of the stretch cannot be read.
    """

    def __init__(self) -> None:
        self.dense = True
        self.holed = False
        self._open: dict[int, _Open] = {}
        self._ended: set[int] = set()  # producers of which an end has come by: the next batch begins a transaction

    def observe(self, buf: Buffer, pos: int, header: BatchHeader) -> TransactionPart | None:
        """Take note of the transactional batch at `pos`; the part that ends with it, if it is a marker.

        Raises CorruptBatch for a control batch that cannot be read.
        """
        if header.is_control:
            return self._end(header.producer_id, header.last_offset, control_type(buf, pos))
        known = self._open.get(header.producer_id)
        if known is not None:
            known.last = header.last_offset
            known.records = known.records or header.record_count > 0
            return None
        # A producer's sequence continues in a transaction: with the first of all, the transaction begins as well.
        begun = not (self.holed or header.base_sequence == 0 or header.producer_id in self._ended)
        self._open[header.producer_id] = _Open(
            header.base_offset, header.last_offset, begun, self.dense, header.record_count > 0
        )
        return None

    def note(self, stretch: memoryview, headers: Headers, at: int) -> list[TransactionPart]:
        """Like `observe` for all batches of a stretch that follows offset `at` - 1. Returns parts that end there."""
        ended: list[TransactionPart] = []
        gap = headers.first_gap(at)
        for number in headers.with_bits(TRANSACTIONAL):
            if number >= gap:
                self.dense = False
            position, header = headers[number]
            part = self.observe(stretch, position, header)
            if part is not None:
                ended.append(part)
        if gap < len(headers):
            self.dense = False
        return ended

    def cut(self) -> list[TransactionPart]:
        """Note that the next offsets cannot be read, and may hold any marker. Returns the parts that were open."""
        parts = [found.part(producer_id, Ending.HIDDEN) for producer_id, found in self._open.items()]
        self._open.clear()
        self.holed = True
        return parts

    def open_parts(self) -> list[TransactionPart]:
        """Return the parts without an end so far."""
        return [found.part(producer_id, Ending.OPEN) for producer_id, found in self._open.items()]

    def open_part(self, producer_id: int) -> TransactionPart | None:
        found = self._open.get(producer_id)
        return found.part(producer_id, Ending.OPEN) if found is not None else None

    def _end(self, producer_id: int, offset: int, kind: ControlType) -> TransactionPart | None:
        ending = _ENDINGS.get(kind)
        if ending is None:
            return None  # not of a transaction
        found = self._open.pop(producer_id, None)
        if found is not None:
            part = found.part(producer_id, ending, offset)
        else:
            begun = not self.holed and producer_id not in self._ended
            part = TransactionPart(producer_id, -1, -1, ending, offset, begun, self.dense)
        self._ended.add(producer_id)
        return part


_ENDINGS = {
    ControlType.ABORT: Ending.ABORT,
    ControlType.COMMIT: Ending.COMMIT,
    ControlType.OTHER: Ending.HIDDEN,
}


class TransactionTracker:
    """The transaction index of a partition's log as a broker makes it.

    `open_transactions` (producer id to the first offset of its open transaction) is what was open where the log
    starts. Without it a transaction that began earlier seems to begin with its first batch seen, or, if only its
    marker is seen, not to exist.
    """

    def __init__(self, open_transactions: Mapping[int, int] | None = None) -> None:
        self._follower = TransactionFollower()
        self._before = dict(open_transactions or {})

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """Producer id to the base offset of the first batch of its open transaction."""
        return {**{part.producer_id: part.first for part in self._follower.open_parts()}, **self._before}

    def observe(self, buf: Buffer, pos: int, header: BatchHeader) -> AbortedTxn | None:
        """Take note of the batch at `pos`; the aborted transaction, if it is the abort marker of one that wrote to
        this partition.
        """
        if not header.is_transactional:
            return None
        part = self._follower.observe(buf, pos, header)
        if part is None or part.ending is Ending.HIDDEN:
            return None
        first_offset = self._before.pop(header.producer_id, part.first)
        if part.ending is Ending.COMMIT or first_offset < 0:
            return None
        stable = min(self.open_transactions.values(), default=part.marker + 1)
        return AbortedTxn(header.producer_id, first_offset, part.marker, stable)


Span = tuple[int, int, int]
"""Producer id, first and last offset."""


class Spans:
    """Transactions of a partition, by producer. Spans of one producer that share an offset are of one transaction: an
    index may know only a part of it."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for producer, first, last in sorted(spans):
            known = self._spans.setdefault(producer, [])
            if known and first <= known[-1][1]:
                known[-1] = (known[-1][0], max(last, known[-1][1]))
            else:
                known.append((first, last))

    @classmethod
    def of(cls, aborted: Iterable[AbortedTxn]) -> Spans:
        """Return the transactions that the entries of transaction indexes name."""
        return cls((txn.producer_id, txn.first_offset, txn.last_offset) for txn in aborted)

    def rows(self) -> list[Span]:
        """Return all of them, those of one producer in their order."""
        return [(producer, first, last) for producer, spans in self._spans.items() for first, last in spans]

    def holds(self, producer_id: int, offset: int) -> bool:
        """Return whether a batch of this producer that begins at this offset belongs to one of the transactions."""
        return self.since(producer_id, offset) >= 0

    def since(self, producer_id: int, offset: int) -> int:
        """Return the offset at which the transaction begins that has a batch of this producer at `offset`; -1 if none
        has."""
        spans = self._spans.get(producer_id)
        if spans is None:
            return -1
        at = bisect_right(spans, (offset, MAX_OFFSET)) - 1
        return spans[at][0] if at >= 0 and offset <= spans[at][1] else -1

    def __contains__(self, header: BatchHeader) -> bool:
        """Return whether this batch was written in one of the transactions."""
        return (
            header.is_transactional
            and not header.is_control
            and self.since(header.producer_id, header.base_offset) >= 0
        )


class Unseen(Enum):
    """Why consumers of committed records never see a batch."""

    CONTROL = "control batch"
    ABORTED = "aborted transaction"
    EMPTY = "emptied by compaction"


def unseen(header: BatchHeader, aborted: Spans) -> Unseen | None:
    """Return why consumers of committed records never see this batch; None if they see it. `aborted` are the
    transactions that were aborted.
    """
    if header.magic < 2:
        return None
    if header.is_control:
        return Unseen.CONTROL
    if header in aborted:
        return Unseen.ABORTED
    return None if header.record_count > 0 else Unseen.EMPTY
