"""Records of whole batches gathered into one batch, without unpacking keys and values. The kernel does the work."""

from __future__ import annotations

from logkeep_kernel import Merger, Packed

from logkeep_engine.log.batch import BatchHeader, pack_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import damage_of, made_batch

__all__ = ["Made", "Merger", "Packer", "repacked_size"]

Made = tuple[int, int, int, bytes | None, tuple[tuple[int, int], ...], int, int | None]
"""A batch that a `Merger` has made. Its stub says what is in it."""

_GROWTH = 16  # time, offset and length may grow from one byte each to 10, 5 and 5


class Packer:
    """Gathers the records of batches of magic 2 into one batch of create time, without gaps, in the order of `add`.

    Only the length, time and offset of a record are rewritten. Keys, values and headers are copied as they are, packed.
    Every record keeps the time that a consumer sees, which is the batch's max timestamp in a log-append-time batch.
    """

    def __init__(self) -> None:
        self._packed = Packed()

    def add(self, packed: bytes | memoryview, header: BatchHeader) -> None:
        """Take the records of a batch over.

        `packed` is what `unpack` gives. Raises `CorruptBatch` if it does not hold as many records as `header` says, one
        after the other, whose offsets lie in the batch. Then the packer is of no use any more.
        """
        if not self._packed.add(pack_header(header), packed):
            raise damage_of(packed, header)

    @property
    def count(self) -> int:
        """The records taken over."""
        return self._packed.count

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Their offsets as ranges (first source offset, count)."""
        return self._packed.rows

    def batch(self, codec: Codec, *, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
        """Return all records taken over, at least one, as one batch from offset 0."""
        return made_batch(
            codec,
            self._packed.body,
            count=self.count,
            times=self._packed.times,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        )


def repacked_size(packed_bytes: int, count: int) -> int:
    """Return the most that this many packed records take when they are packed again: their times and offsets may
    grow."""
    return packed_bytes + _GROWTH * count
