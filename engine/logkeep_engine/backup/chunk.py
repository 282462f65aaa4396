"""What becomes of the fetched batches of one piece, whatever the format: offsets that are settled, gaps, transactions.

`task.ChunkWriter` writes batches as they are, `records.RecordChunkWriter` takes them apart.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from logkeep_engine.archive.lineage import UNKNOWN, LeaderEpoch
from logkeep_engine.archive.model import Coverage, Gap, Receipt, SegmentEntry
from logkeep_engine.backup.plan import Piece
from logkeep_engine.contract.spec import Compression, FormatName, FormatOptions
from logkeep_engine.errors import CorruptBatch, LogDiverged
from logkeep_engine.formats.base import Loss
from logkeep_engine.kafka.connection import Connection
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.storage import Storage

TRANSACTIONAL_OR_CONTROL = 0x30
"""Bits of a batch's attributes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all tasks of a run share. Pickles without secrets; a task takes its own from its environment.

    `checking`: nothing is written, tasks only say what the format would lose.
    """

    connection: Connection
    storage: Storage
    epoch: int
    segment_bytes: int
    compression: Compression = Compression.PASSTHROUGH
    format: FormatName = FormatName.KAFKA
    options: FormatOptions = field(default_factory=FormatOptions)
    checking: bool = False


class PieceWriter(ABC):
    """The segments of one piece, from fetched bytes. Synchronous and without Kafka; one thread at a time.

    `at` is the offset up to which everything is settled or in the open segment; `records` and `bytes` count what was
    taken.
    """

    def __init__(self, setting: Setting, piece: Piece, attempt: int) -> None:
        self.piece = piece
        self.at = min(max(piece.start, piece.done_below), piece.end)
        self.records = 0
        self.bytes = 0
        self._setting = setting
        self._attempt = attempt
        self._from = piece.start  # where the range begins that is covered without a gap up to `at`
        self._passed = -1  # one past the last batch that was taken or skipped
        self._lock = threading.Lock()  # `abort` may come while a cancelled task's thread still works
        self._aborted = False
        self._coverage: list[Coverage] = []
        self._gaps: list[Gap] = []
        self._segments: list[SegmentEntry] = []
        self._epochs: list[LeaderEpoch] = []
        self._epoch = UNKNOWN  # of the batch that came last
        self._transactions = AbortedTransactions()

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What the format cannot hold of the records so far, if this is what was asked for."""
        return ()

    def absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        """Take the batches of one fetch that belong to this piece.

        `aborted` are (producer id, first offset) of the aborted transactions that reach into `data`. Raises
        CorruptBatch; everything before the damaged batch is taken then, and `at` is where it would begin.
        """
        with self._lock:
            if not self._aborted:
                self._absorb(data, aborted)

    def skip_to(self, offset: int, reason: str) -> None:
        """Record [at, offset) as gone, at most to the piece's end, and go on from there; the log starts there now."""
        offset = min(offset, self.piece.end)
        if offset <= self.at:
            return
        self._close_segment()
        self._cover()
        self._gaps.append(Gap(self.piece.topic_id, self.piece.partition, self.at, offset, reason))
        self.at = self._from = offset

    def reach_end(self) -> None:
        """Everything up to the piece's end was handed over; the last batch may reach past it, or compaction left none
        there.
        """
        self.at = max(self.at, self.piece.end)

    def finish(self, end: int) -> Receipt | None:
        """Close the segment and say what was done up to `end`, or to where the last batch ends; None if it is
        nothing."""
        self._close_segment()
        self.at = max(self.at, end)
        self._cover()
        if not self._coverage and not self._gaps:
            return None
        return Receipt(tuple(self._coverage), tuple(self._segments), tuple(self._gaps), tuple(self._epochs))

    def abort(self) -> None:
        """Drop the open segment, if any; what is absorbed from now on is ignored."""
        with self._lock:
            self._aborted = True
            self._drop_segment()

    @abstractmethod
    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        """See `absorb`."""

    @abstractmethod
    def _close_segment(self) -> None:
        """Finish the open segment, if any, and add its entry."""

    @abstractmethod
    def _drop_segment(self) -> None:
        """Forget the open segment, if any."""

    def _check_overlap(self, header: BatchHeader) -> None:
        """Raises CorruptBatch for a batch that begins before the one before it has ended."""
        if header.base_offset < self._passed:
            raise CorruptBatch(
                f"The batch at offset {header.base_offset} reaches past offset {self._passed - 1}, "
                "where the one before it ended.",
                hint="The log on the broker is damaged; move the leadership to a replica that is whole.",
            )

    def _note_epoch(self, epoch: int, offset: int) -> None:
        """Note that the batch at `offset` is of another leader epoch than the one before it.

        Raises LogDiverged for an epoch above that of the leader whose log the run has planned to archive: all below the
        planned end was there already, so a later leader cannot have written it unless the log was cut off since.
        """
        self._epoch = epoch
        if epoch < 0:
            return
        piece = self.piece
        if 0 <= piece.leader_epoch < epoch:
            raise LogDiverged(
                f"T{piece.where[1:]} was cut off while it was archived (unclean leader election): its log reached to "
                f"offset {piece.end} under leader epoch {piece.leader_epoch}, the batch at offset {offset} is of "
                f"epoch {epoch} now.",
                hint="Nothing of it was archived in this attempt. Start a new run, which finds where the logs part.",
            )
        self._epochs.append(LeaderEpoch(piece.topic_id, piece.partition, epoch, offset))

    def _cover(self) -> None:
        if self.at > self._from:
            self._coverage.append(Coverage(self.piece.topic_id, self.piece.partition, self._from, self.at))
            self._from = self.at

    def _leave_below(self, offset: int) -> None:
        """Settle nothing below `offset`, and go on from there."""
        self._coverage.clear()
        self._gaps.clear()
        self.at = self._from = offset


class TransactionNotes(Protocol):
    """Who wants to know of the aborted transactions that come by."""

    def aborted_data(self, producer_id: int, first_offset: int, last_offset: int) -> None:
        """A batch of an aborted transaction whose marker has not come by yet."""

    def abort_marker(self, producer_id: int, first_offset: int, offset: int) -> None:
        """The end of an aborted transaction."""


class AbortedTransactions:
    """Tells which batches belong to aborted transactions, from the lists that fetches bring and from the markers."""

    def __init__(self) -> None:
        self._first: dict[int, set[int]] = {}  # producer id -> first offsets of its aborted transactions not ended yet
        self._marker: dict[int, int] = {}  # producer id -> offset of its last marker

    def expect(self, aborted: Sequence[tuple[int, int]]) -> None:
        for producer_id, first_offset in aborted:
            if first_offset > self._marker.get(producer_id, -1):
                self._first.setdefault(producer_id, set()).add(first_offset)

    def observe(
        self, data: memoryview, position: int, header: BatchHeader, notes: TransactionNotes | None = None
    ) -> bool:
        """Note a control batch or a transactional batch, in the order of the log; True if its records were aborted."""
        producer_id = header.producer_id
        if not header.is_control:
            first = self._open(producer_id, header.base_offset)
            if first is not None and notes is not None:
                notes.aborted_data(producer_id, first, header.last_offset)
            return first is not None
        kind = control_type(data, position)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return False
        first = self._open(producer_id, header.base_offset)
        if kind is ControlType.ABORT and first is not None and notes is not None:
            notes.abort_marker(producer_id, first, header.last_offset)
        self._marker[producer_id] = header.last_offset
        if producer_id in self._first:
            self._first[producer_id] = {later for later in self._first[producer_id] if later > header.last_offset}
        return False

    def _open(self, producer_id: int, offset: int) -> int | None:
        return max((first for first in self._first.get(producer_id, ()) if first <= offset), default=None)
