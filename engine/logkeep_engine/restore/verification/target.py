"""Reads the records of a target partition that a verification compares, and counts those of others."""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.compare.sources import LiveRecords
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Throttle
from logkeep_engine.log.batch import Headers


class TargetReader(LiveRecords):
    """Reads one partition. In a topic that the run has created (`created`), all records are compared, and those of
    other producers are counted beside that: there are `others`, from offset `others_from` on. In a topic that was there
    before, only the run's own are compared.

    `stable` is the last stable offset, where a transaction of others may be open. No restored record is part of one. So
    the run's own records are read after it, too; what others have there is not compared, since nobody knows yet
    whether it will be seen.
    """

    def __init__(
        self, client: RawClient, topic: str, partition: int, producer_id: int, throttle: Throttle, *, created: bool
    ) -> None:
        super().__init__(client, topic, partition, throttle)
        self._producer_id = producer_id
        self._created = created
        self.others = 0
        self.others_from = -1
        self._seen_until = -1

    def compared(self, headers: Headers, start: int, *, committed: bool) -> Iterator[Headers]:
        """The batches that are compared, with those of others or without. Those are counted, once."""
        at = 0
        for number, (_, header) in enumerate(headers):
            if header.next_offset <= start:
                at = number + 1
            elif header.magic < 2 or header.producer_id != self._producer_id:
                if header.base_offset > self._seen_until:
                    self.others_from = max(header.base_offset, start) if not self.others else self.others_from
                    self.others += max(header.record_count, 1)
                    self._seen_until = header.last_offset
                if not (self._created and committed):
                    if number > at:
                        yield headers[at:number]
                    at = number + 1
        if at < len(headers):
            yield headers[at:]
