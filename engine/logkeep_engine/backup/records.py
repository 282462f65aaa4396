"""Pieces in the record-shaped formats: batches are taken apart, and what a consumer of committed records sees is
written.

Who owns a batch is decided as in Kafka's format, by its base offset, so any split of a partition gives the same
records. Left out are control batches and the records of aborted transactions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from logkeep_engine.archive.entry import LAYOUTS
from logkeep_engine.archive.model import ArchiveState, Outcome
from logkeep_engine.archive.record_files import (
    positions_by_partition,
    write_consumer_offsets,
    write_partition_indexes,
)
from logkeep_engine.archive.record_segments import RecordSink, open_sink
from logkeep_engine.backup.chunk import TRANSACTIONAL_OR_CONTROL, PieceWriter, Setting
from logkeep_engine.backup.plan import BackupPlan, Piece
from logkeep_engine.formats.base import LogRecord, Loss, LossKind
from logkeep_engine.log.batch import BatchHeader, walk_checked
from logkeep_engine.log.codec import check_offsets, decode_records
from logkeep_engine.storage import Storage


class RecordReader(PieceWriter):
    """The committed records of a piece, in order, batch by batch."""

    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]], log_start: int) -> None:
        self._transactions.expect(aborted)
        for position, header in walk_checked(data, self.piece.end):
            if header.base_offset < self.at:
                if header.next_offset <= self.at:
                    continue  # lies wholly before the offset that was asked for
                self._check_overlap(header)
                # Unless the log starts inside of it, it belongs to the chunk before.
                if header.base_offset < log_start:
                    self._take_batch(data, position, header)
            else:
                self._take_batch(data, position, header)
            self.at = self._passed = header.next_offset

    def _take_batch(self, data: memoryview, position: int, header: BatchHeader) -> None:
        if header.attributes & TRANSACTIONAL_OR_CONTROL:
            gone = self._transactions.observe(data, position, header)
            if gone or header.is_control:
                return
        records = decode_records(data[position : position + header.size], header)
        check_offsets(records, header)
        if header.base_offset < self.at:
            records = [record for record in records if record.offset >= self.at]
        if records:
            self._take(records)
            self.records += len(records)

    @abstractmethod
    def _take(self, records: Sequence[LogRecord]) -> None:
        """Records whose offsets rise, at least one."""


class RecordChunkWriter(RecordReader):
    """The segments of one piece in the Records or the Avro format. `bytes` are those of their data objects."""

    _sink: RecordSink | None = None
    _closed_bytes = 0

    def _take(self, records: Sequence[LogRecord]) -> None:
        at = 0
        while at < len(records):
            if self._sink is None:
                self._sink = self._open_sink()
            at += self._sink.append(records, at)
            self.bytes = self._closed_bytes + self._sink.size
            if self._sink.full:
                self._close_segment()

    def _open_sink(self) -> RecordSink:
        setting, piece = self._setting, self.piece
        return open_sink(
            setting.storage,
            LAYOUTS[setting.format],
            piece.topic,
            piece.topic_id,
            piece.partition,
            setting.epoch,
            self._attempt,
            setting.segment_bytes,
            setting.options,
        )

    def _close_segment(self) -> None:
        if self._sink is None:
            return
        entry = self._sink.finish()
        self._sink = None
        self._segments.append(entry)
        self._closed_bytes += entry.bytes
        self.bytes = self._closed_bytes

    def _drop_segment(self) -> None:
        if self._sink is not None:
            self._sink.abort()
            self._sink = None


class LossChecker(RecordReader):
    """Writes nothing: says what the format cannot hold of the records of one piece. `bytes` stay 0."""

    def __init__(self, setting: Setting, piece: Piece, attempt: int) -> None:
        from logkeep_engine.formats.avro import losses  # slow to import; backups that lose nothing do without

        super().__init__(setting, piece, attempt)
        self._count = losses
        self._losses: dict[LossKind, Loss] = {}

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(self._losses.values())

    def finish(self, end: int) -> None:
        """Nothing is settled."""
        self.at = min(end, self.piece.end)

    def _take(self, records: Sequence[LogRecord]) -> None:
        for kind, (count, offset) in self._count(records).items():
            before = self._losses.get(kind)
            if before is None:
                self._losses[kind] = Loss(kind, self.piece.topic, self.piece.partition, count, offset)
            else:
                self._losses[kind] = replace(before, count=before.count + count)

    def _close_segment(self) -> None:
        """There is none."""

    def _drop_segment(self) -> None:
        """There is none."""


def write_record_files(storage: Storage, state: ArchiveState, plan: BackupPlan) -> None:
    """Bring the files beside the segments up to date (see `archive.record_files`), at the end of a run of the Records
    format: those of partitions that the run has read, or where a group stands elsewhere now, and all of them if the run
    before did not come to its end.
    """
    archived = set(state.segments)
    changed = {(chunk.topic_id, chunk.partition) for chunk in plan.chunks} & archived
    earlier = [run.outcome for run in state.runs.values() if run.run_id != plan.run_id]
    if earlier and earlier[-1] is not Outcome.SUCCEEDED:
        changed = archived
    before, after = positions_by_partition(state.groups), positions_by_partition(plan.groups)
    moved = {key for key in archived if before.get(key) != after.get(key)}
    write_partition_indexes(storage, state, sorted(changed))
    write_consumer_offsets(storage, state, sorted(changed | moved), plan.groups)
