"""Looks in the log for batches whose answers were lost, before they are sent again.

A broker that remembers a producer id recognises a batch that comes once more. It forgets the id when
`producer.id.expiration.ms` have gone since the time of its last record, and not since that came: records that are
restored are old, so it may forget at its next check, or with a restart. From then on it takes every batch of that id
for a new one.
"""

from __future__ import annotations

from logkeep_engine.errors import OffsetOutOfRange, RecordsWithheld, TargetChanged
from logkeep_engine.kafka.fetch import Fetcher
from logkeep_engine.kafka.queries import Where
from logkeep_engine.kafka.retry import RetriableError


class WrittenLaterError(Exception):
    """The log holds batches that must come after the one that was looked for, and not that one."""


class ReadBack:
    """Reads through a `Fetcher`, from the end of the last acknowledged batch on."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    async def find(self, where: Where, producer: tuple[int, int, int], floor: int) -> int | None:
        """Return the base offset of the batch of a producer (id, epoch, base sequence) in the leader's log from offset
        `floor` on, None if that has none. It reads to the end of the log, which is behind the high watermark while
        followers lag: what is found is in all of them.

        Raises WrittenLaterError, RetriableError, and what `Fetcher.written_by` raises.
        """
        producer_id, epoch, sequence = producer
        if producer_id < 0:
            return None
        end = (await self._fetcher.epoch_end(*where)).end_offset
        if end <= floor:
            return None
        try:
            written = await self._fetcher.written_by(*where, producer_id, start=floor, end=end)
        except (OffsetOutOfRange, RecordsWithheld) as error:  # cut off in the meantime, or followers still lag
            raise RetriableError(error.message) from error
        if not written:
            return None
        first = written[0]
        if (first.producer_epoch, first.base_sequence) != (epoch, sequence):
            raise WrittenLaterError(f"sequence {first.base_sequence} of the producer is at offset {first.base_offset}")
        return first.base_offset

    async def look(self, where: Where, producer: tuple[int, int, int], floor: int) -> int | None:
        """Return the base offset of the batch of a producer from offset `floor` on, below the high watermark. Raises
        what `Fetcher.written_by` does.
        """
        for found in await self._fetcher.written_by(*where, producer[0], start=floor):
            if (found.producer_epoch, found.base_sequence) == producer[1:]:
                return found.base_offset
        return None

    async def check_none(self, where: Where, producer_id: int, start: int, end: int) -> None:
        """Check that a producer id has written nothing in [start, end), where its next batch could have been. Raises
        TargetChanged: that batch was taken twice.
        """
        written = await self._fetcher.written_by(*where, producer_id, start=start, end=end)
        if written:
            topic, partition = where
            raise TargetChanged(
                f"topic {topic!r} partition {partition}: the records at offset {written[0].base_offset} were taken "
                "twice. A broker that had forgotten the producer id (producer.id.expiration.ms) got them from two "
                "attempts of this run.",
                hint="Delete what this run has written, and start a new restore under another run id.",
            )
