"""The half of a piece's writer that all formats share: archived ranges, gaps, transactions.

`batches.ChunkWriter` writes batches as they are, `records.RecordChunkWriter` takes them apart.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Gap, Receipt
from logkeep_engine.archive.catalog.lineage import UNKNOWN, LeaderEpoch
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.transactions import ListDisagreement, PieceTransactions
from logkeep_engine.contract.archive_format import (
    DEFAULT_DIGEST,
    Compression,
    DigestAlgorithm,
    FormatName,
    FormatOptions,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import CorruptBatch, LogDiverged
from logkeep_engine.formats.base import Loss
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class BackupSetting:
    """The settings that all tasks of a run share. They pickle without secrets; a task takes those from its environment.

    `checking`: tasks write nothing, they only report what the format would lose. Segments of less than `pack_below`
    bytes share objects; 0: none does.
    """

    connection: KafkaConnection
    storage: Storage
    epoch: int
    segment_bytes: int
    compression: Compression = Compression.PASSTHROUGH
    format: FormatName = FormatName.KAFKA
    options: FormatOptions = field(default_factory=FormatOptions)
    checking: bool = False
    digest: DigestAlgorithm = DEFAULT_DIGEST
    pack_below: int = 0


def setting_of(spec: KafkaBackupSpec, storage: Storage, connection: KafkaConnection, epoch: int) -> BackupSetting:
    """Return the settings of the tasks of a run at this epoch."""
    return BackupSetting(
        connection,
        storage,
        epoch,
        spec.segment.max_bytes_int,
        spec.segment.compression,
        spec.format,
        spec.format_options,
        digest=spec.segment.digest,
        pack_below=spec.segment.pack_below_int,
    )


class PieceWriter(ABC):
    """The segments of one piece, from fetched bytes. Synchronous and without Kafka; one thread at a time.

    Below offset `at`, everything is in the receipt to come or in the open segment. `records` and `bytes` count what was
    taken.
    """

    def __init__(self, setting: BackupSetting, piece: Piece, attempt: int) -> None:
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
        self._transactions = PieceTransactions()

    @property
    def limits(self) -> Limits:
        return self._setting.connection.limits

    @property
    def looked_until(self) -> int:
        """One past the last batch that came by."""
        return max(self.at, self._passed)

    @property
    def disagreements(self) -> tuple[ListDisagreement, ...]:
        """The transactions about which markers and lists of fetches contradict each other, in all passes."""
        return self._transactions.disagreements

    @property
    def undecided(self) -> frozenset[int]:
        """The producers whose markers lie after the piece, and must be known before this writer can finish."""
        return frozenset()

    @property
    def must_restart(self) -> bool:
        """Whether records were taken, or left out, wrongly, so that the piece must be read once more."""
        return False

    @property
    def dense(self) -> bool:
        """Whether the broker had a record, or a marker, at every offset of the piece, so that compaction has removed
        none. It is asked when the piece is finished."""
        reached = [self.piece.start, *(entry.next_offset for entry in self._segments)]
        bases = [entry.base_offset for entry in self._segments]
        return bases == reached[:-1] and reached[-1] >= self.at and not any(entry.gaps for entry in self._segments)

    @property
    def decided_until(self) -> int:
        """The offset at which the first open transaction begins; without one, the offset at which the writer stands."""
        return min(self.at, self._transactions.open_from)

    def restart(self, until: int) -> None:
        """Forget the records that were taken, but not the markers. The piece now ends at offset `until`."""
        with self._lock:
            self._drop_segment()
            self.piece = replace(self.piece, end=until)
            self._transactions = PieceTransactions(self._transactions)
            self._begin()

    def end_after(self, producer_id: int, aborted: bool, marker: int) -> None:
        """Note that the marker of a producer in `undecided` lies at offset `marker`."""
        self._transactions.end_after(producer_id, aborted, marker)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The losses of the format in the records so far, if the writer was only to look for them."""
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
        """Note [at, offset) as a gap, at most to the piece's end, and continue after it."""
        offset = min(offset, self.piece.end)
        if offset <= self.at:
            return
        self._close_segment()
        self._transactions.cut()
        self._cover()
        self._gaps.append(Gap(self.piece.topic_id, self.piece.partition, self.at, offset, reason))
        self.at = self._from = offset

    def reach_end(self) -> None:
        """Note that everything up to the piece's end was handed over. The last batch may reach past the end, or
        compaction may have left none there.
        """
        self.at = max(self.at, self.piece.end)

    def finish(self, end: int) -> Receipt | None:
        """Close the segment; returns the receipt up to `end`, or to the end of the last batch, and None if it would be
        empty.
        """
        self._close_segment()
        self.at = max(self.at, end)
        self._cover()
        if not self._coverage and not self._gaps:
            return None
        facts = tuple(self._coverage), tuple(self._segments), tuple(self._gaps), tuple(self._epochs)
        return Receipt(*facts, generation=self.piece.generation)

    def abort(self) -> None:
        """Drop the open segment, if any. Batches that come from now on are ignored."""
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
                hint="The log on the broker is damaged; move the leadership to an intact replica.",
            )

    def _note_epoch(self, epoch: int, offset: int) -> None:
        """Note that the batch at `offset` is of another leader epoch than the one before it.

        Raises LogDiverged for an epoch above that of the leader whose log the run has planned to archive. All batches
        below the planned end were there already, so a later leader cannot have written one unless the log was cut off.
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
                hint="Nothing of it was archived in this attempt. Start a new run, which finds where the logs diverge.",
            )
        self._epochs.append(LeaderEpoch(piece.topic_id, piece.partition, epoch, offset))

    def _begin(self) -> None:
        """Go back to the beginning of the piece."""
        self.at = min(max(self.piece.start, self.piece.done_below), self.piece.end)
        self.records = self.bytes = 0
        self._from = self.piece.start
        self._passed = -1
        self._coverage, self._gaps, self._segments = [], [], []
        self._epochs, self._epoch = [], UNKNOWN

    def _cover(self) -> None:
        if self.at > self._from:
            self._coverage.append(Coverage(self.piece.topic_id, self.piece.partition, self._from, self.at))
            self._from = self.at

    def _leave_below(self, offset: int) -> None:
        """Account for nothing below `offset`, and continue from there."""
        self._coverage.clear()
        self._gaps.clear()
        self.at = self._from = offset
