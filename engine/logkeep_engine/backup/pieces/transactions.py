"""Tells which batches of a piece belong to aborted transactions, by the lists that fetches bring and by the markers.

A list comes before the records, and a marker after them. A broker's list may be incomplete: a replica that has just
become the leader was seen to leave transactions out. So the marker decides, and a disagreement between the two is
noted. The writer corrects what it has taken by the list until then: it writes the index when the segment ends, and it
reads a piece in a format of records once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from logkeep_engine.log.batch import MAX_OFFSET, BatchHeader
from logkeep_engine.log.transactions import Ending, Span, Spans, TransactionFollower, TransactionPart


@dataclass(frozen=True, slots=True)
class ListDisagreement:
    """The list of a fetch was wrong about a transaction that ends with a marker at offset `marker`. `aborted` is
    what the marker says.
    """

    producer_id: int
    first: int
    marker: int
    aborted: bool

    def __str__(self) -> str:
        transaction = f"the transaction of producer {self.producer_id} with offsets {self.first} to {self.marker}"
        if self.aborted:
            return f"the broker did not name {transaction} as aborted, but its ABORT marker does"
        return f"the broker named {transaction} as aborted, but its COMMIT marker does not"


class TransactionNotes(Protocol):
    """Takes notes of the transactions that come by."""

    def aborted_data(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """Note a batch of a transaction that a list calls aborted, and whose marker has not come by yet."""

    def abort_marker(self, producer_id: int, first_offset: int, offset: int) -> None:
        """Note the end of an aborted transaction."""

    def commit_marker(self, producer_id: int) -> None:
        """Note the end of a transaction that was committed."""


class PieceTransactions:
    """Follows the transactions of one piece.

    `before` is an earlier pass over the same piece. Its markers are known in this pass before their records come by.
    """

    def __init__(self, before: PieceTransactions | None = None) -> None:
        self._found: list[ListDisagreement] = []
        self._before: tuple[ListDisagreement, ...] = ()
        self._first: dict[int, set[int]] = {}  # producer id -> first offsets of its aborted transactions not ended yet
        self._marker: dict[int, int] = {}  # producer id -> offset of its last marker
        self._follower = TransactionFollower()
        self._kept: set[int] = set()  # producers of which batches were taken since their last marker
        self._left: set[int] = set()  # producers of which batches were left out since their last marker
        self._aborted: list[Span] = []
        self._known = Spans()
        self._known_until: dict[int, int] = {}  # producer id -> the offset up to which earlier passes know all
        if before is not None:
            self._before = before.disagreements
            self._aborted = before._aborted
            self._known = Spans(self._aborted)
            self._known_until = {
                producer_id: max(before._marker.get(producer_id, -1), before._known_until.get(producer_id, -1))
                for producer_id in before._marker.keys() | before._known_until.keys()
            }

    @property
    def disagreements(self) -> tuple[ListDisagreement, ...]:
        """The disagreements of markers and lists, in all passes so far."""
        return (*self._before, *self._found)

    @property
    def open_producers(self) -> frozenset[int]:
        """The producers whose last batch with records has no known marker after it."""
        return frozenset(part.producer_id for part in self._open())

    @property
    def open_from(self) -> int:
        """The offset at which the first open transaction begins; without one, an offset that no log reaches."""
        return min((part.first for part in self._open()), default=MAX_OFFSET)

    @property
    def wrongly_taken(self) -> bool:
        """Whether this pass has taken or left out a batch against its marker."""
        return bool(self._found)

    def expect(self, aborted: Sequence[tuple[int, int]]) -> None:
        for producer_id, first_offset in aborted:
            if first_offset > self._marker.get(producer_id, -1):
                self._first.setdefault(producer_id, set()).add(first_offset)

    def observe(
        self, data: memoryview, position: int, header: BatchHeader, notes: TransactionNotes | None = None
    ) -> bool:
        """Note a control batch or a transactional batch, in the order of the log; True if its records were aborted."""
        if not header.is_transactional:
            return False
        part = self._follower.observe(data, position, header)
        if part is not None:
            self._end(part, notes)
            return False
        return not header.is_control and self._is_aborted(header, notes)

    def end_after(self, producer_id: int, aborted: bool, marker: int) -> None:
        """Note that the marker of a producer's open transaction lies after the piece."""
        part = self._follower.open_part(producer_id)
        if part is not None:
            self._compare(part, marker, aborted)
            self._marker[producer_id] = marker

    def cut(self) -> None:
        """Note that the next offsets cannot be read. They may hold the markers of open transactions, so the lists
        decide about these.
        """
        self._aborted += (
            (part.producer_id, part.first, part.last) for part in self._follower.cut() if part.producer_id in self._left
        )
        self._kept.clear()
        self._left.clear()

    def _open(self) -> Iterator[TransactionPart]:
        for part in self._follower.open_parts():
            if part.has_data and part.first > self._known_until.get(part.producer_id, -1):
                yield part

    def _is_aborted(self, header: BatchHeader, notes: TransactionNotes | None) -> bool:
        producer_id, base_offset = header.producer_id, header.base_offset
        first = self._listed(producer_id, base_offset)
        aborted = first is not None
        if base_offset <= self._known_until.get(producer_id, -1):
            aborted = self._known.holds(producer_id, base_offset)
        (self._left if aborted else self._kept).add(producer_id)
        if notes is not None and first is not None:
            notes.aborted_data(producer_id, first, header.last_offset)
        return aborted

    def _end(self, part: TransactionPart, notes: TransactionNotes | None) -> None:
        producer_id, marker = part.producer_id, part.marker
        first = self._listed(producer_id, marker)
        if part.ending is not Ending.HIDDEN:
            self._compare(part, marker, part.ending is Ending.ABORT)
        elif producer_id in self._left:
            self._aborted.append((producer_id, part.first, part.last))
        if notes is not None and part.ending is Ending.COMMIT:
            notes.commit_marker(producer_id)
        elif notes is not None and part.ending is Ending.ABORT:
            begins = first if first is not None else part.first
            if begins >= 0:
                notes.abort_marker(producer_id, begins, marker)
        self._kept.discard(producer_id)
        self._left.discard(producer_id)
        self._marker[producer_id] = marker
        if producer_id in self._first:
            self._first[producer_id] = {later for later in self._first[producer_id] if later > marker}

    def _compare(self, part: TransactionPart, marker: int, aborted: bool) -> None:
        if not part.has_data:
            return
        if aborted and part.first > self._known_until.get(part.producer_id, -1):
            self._aborted.append((part.producer_id, part.first, part.last))
        if part.producer_id in (self._kept if aborted else self._left):
            self._found.append(ListDisagreement(part.producer_id, part.first, marker, aborted))

    def _listed(self, producer_id: int, offset: int) -> int | None:
        firsts = self._first.get(producer_id)
        return max((first for first in firsts if first <= offset), default=None) if firsts else None
