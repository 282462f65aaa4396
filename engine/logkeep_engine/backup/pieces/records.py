"""The writers of pieces in the formats of records: they take batches apart, and write the records that a consumer of
committed records sees.

A record belongs to the piece that holds its own offset, whatever batch it came in. So any division of a partition gives
the same records, and each segment lies inside of its receipt's coverage. Two pieces that share a batch both take it
apart. They need not agree on it, even if compaction or DeleteRecords changes it between their fetches. Control batches
and the records of aborted transactions are left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from logkeep_engine.archive.catalog.entry import LAYOUTS
from logkeep_engine.archive.writing.record_writer import RecordSegments, RecordSink
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.writer import BackupSetting, PieceWriter
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import BatchTooLarge
from logkeep_engine.formats.base import Loss, LossKind
from logkeep_engine.log.batch import BatchHeader, walk_checked
from logkeep_engine.log.memory import SMALL_BYTES, SMALL_RECORDS, alone
from logkeep_engine.log.rows import Rows, rows_of_batch
from logkeep_engine.log.transactions import TRANSACTIONAL_OR_CONTROL


class RecordReader(PieceWriter):
    """The committed records of a piece, in order, batch by batch.

    Only markers show for certain which records were committed, and they come after the records. A piece that has taken
    records wrongly by the list of a fetch is read once more. Markers that lie after the piece are looked up there.
    """

    @property
    def undecided(self) -> frozenset[int]:
        return self._transactions.open_producers

    @property
    def must_restart(self) -> bool:
        return self._transactions.wrongly_taken

    @property
    def dense(self) -> bool:
        return not self._sparse

    def __init__(self, setting: BackupSetting, piece: Piece, attempt: int) -> None:
        super().__init__(setting, piece, attempt)
        self._sparse = False

    def reach_end(self) -> None:
        self._sparse |= self.at < self.piece.end
        super().reach_end()

    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        self._transactions.expect(aborted)
        for position, header in walk_checked(data, self.piece.end):
            if header.base_offset < self.at:
                if header.next_offset <= self.at:
                    continue  # the batch lies wholly before the offset that was asked for
                self._check_overlap(header)
            missing = header.record_count < header.next_offset - header.base_offset
            self._sparse |= missing or header.base_offset > self.at
            if header.leader_epoch != self._epoch:
                self._note_epoch(header.leader_epoch, max(header.base_offset, self.at))
            self._take_batch(data, position, header)
            self._passed = header.next_offset
            self.at = min(header.next_offset, self.piece.end)

    def _take_batch(self, data: memoryview, position: int, header: BatchHeader) -> None:
        if header.attributes & TRANSACTIONAL_OR_CONTROL:
            gone = self._transactions.observe(data, position, header)
            if gone or header.is_control:
                return
        batch = data[position : position + header.size]
        if header.record_count <= SMALL_RECORDS:
            try:
                self._take_apart(batch, header, limit=SMALL_BYTES)
                return
            except BatchTooLarge:
                pass  # too large to unpack several of this size at once
        with alone():
            self._take_apart(batch, header)

    def _take_apart(self, batch: memoryview, header: BatchHeader, limit: int | None = None) -> None:
        """Take the records of a batch that belong to this piece."""
        within = self.at <= header.base_offset and header.next_offset <= self.piece.end
        for found in rows_of_batch(batch, header, limit=limit):
            rows = found if within else found.between(self.at, self.piece.end)
            if rows:
                self._take(rows)
                self.records += len(rows)

    @abstractmethod
    def _take(self, records: Rows) -> None:
        """Take records, at least one; their offsets rise."""


class RecordChunkWriter(RecordReader):
    """The segments of one piece in the Records or the Avro format. `bytes` are those of their data objects."""

    def __init__(self, setting: BackupSetting, piece: Piece, attempt: int) -> None:
        super().__init__(setting, piece, attempt)
        self._written = self._open_segments()

    def _take(self, records: Rows) -> None:
        self._written.append(records)
        self.bytes = self._written.size

    def _close_segment(self) -> None:
        self._segments = list(self._written.finish())
        self.bytes = self._written.size

    def _drop_segment(self) -> None:
        self._written.abort()

    def _begin(self) -> None:
        super()._begin()
        self._written = self._open_segments()

    def _open_segments(self) -> RecordSegments:
        return RecordSegments(self._open_sink)

    def _open_sink(self) -> RecordSink:
        setting, piece = self._setting, self.piece
        return RecordSink(
            setting.storage,
            LAYOUTS[setting.format],
            piece.topic,
            piece.topic_id,
            piece.partition,
            setting.epoch,
            self._attempt,
            setting.segment_bytes,
            setting.options,
            setting.digest,
        ).within(piece.generation)


class LossChecker(RecordReader):
    """Writes nothing: reports what the format cannot hold of the records of one piece. `bytes` stay 0."""

    def __init__(self, setting: BackupSetting, piece: Piece, attempt: int) -> None:
        from logkeep_engine.formats.avro import losses  # slow to import; backups that lose nothing do without

        super().__init__(setting, piece, attempt)
        self._count = losses
        self._losses: dict[LossKind, Loss] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(self._losses.values())

    def finish(self, end: int) -> None:
        """End the piece. There is no receipt, since nothing was archived."""
        self.at = min(end, self.piece.end)

    def _take(self, records: Rows) -> None:
        for kind, (count, offset) in self._count(records).items():
            before = self._losses.get(kind)
            if before is None:
                self._losses[kind] = Loss(kind, self.piece.topic, self.piece.partition, count, offset)
            else:
                self._losses[kind] = replace(before, count=before.count + count)

    def _begin(self) -> None:
        super()._begin()
        self._losses = {}

    def _close_segment(self) -> None:
        """Do nothing: there is no segment."""

    def _drop_segment(self) -> None:
        """Do nothing: there is no segment."""
