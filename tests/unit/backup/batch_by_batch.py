"""The writer of pieces in Kafka's format as a loop over single batches: slow and plain. The product must write the
same."""

from collections.abc import Sequence

from logkeep_engine.backup.pieces.batches import ChunkWriter
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import BatchHeader, headers_of
from logkeep_engine.log.compression import Codec
from tests.unit.log.oracle import walk_checked


class BatchByBatch(ChunkWriter):
    """Decides about each batch alone, and writes it alone."""

    def _absorb(self, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        self._transactions.expect(aborted)
        for position, header in walk_checked(bytes(data), self.piece.end):
            if header.base_offset < self.at:
                self._overlapping(data, position, header)
            else:
                self._take_one(data, position, header)

    def _take_one(self, data: memoryview, position: int, header: BatchHeader) -> None:
        codec = header.attributes & 7
        if codec > max(Codec):
            raise CorruptBatch(f"The batch at offset {header.base_offset} has a codec that does not exist: {codec}.")
        if header.leader_epoch != self._epoch:
            self._note_epoch(header.leader_epoch, header.base_offset)
        space, end_offset = self._space_left()
        if header.size > space or header.next_offset > end_offset:
            self._close_segment()
            self._segment = self._open_segment(header.base_offset)
        if header.is_transactional or header.is_control:
            self._stretch_transactional = True
            self._observe(data, position, header)
        self.at = self._passed = header.next_offset
        self._flush(data, headers_of([(position, header)]))
