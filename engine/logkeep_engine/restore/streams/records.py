"""The stream of batches of one partition whose archive holds records (formats Records and Avro). Pure.

The archived records have no batches any more, so this module makes batches. The plan says how many records and how many
bytes go into one. Their bounds follow from the archived records and the plan alone (see `filter`), never from how the
records were read: neither the end of a segment nor the end of a block ends a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.rows import Rows, as_rows, packed_batch
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing
from logkeep_engine.restore.streams.merge import packed_limit

MAX_RECORDS = 10_000
# The bytes of records before compression. A topic with the default max.message.bytes takes such a batch, whatever its
# records compress to.
MAX_BYTES = 900_000
CODEC = Codec.LZ4


@dataclass(frozen=True, slots=True)
class Batching:
    """The size of batches that are made of records: at most `max_records`, of together about `max_bytes` before they
    are compressed with `codec`. A record larger than that is a batch of its own.
    """

    max_records: int = MAX_RECORDS
    max_bytes: int = MAX_BYTES
    codec: Codec = CODEC


class RecordStream:
    """Turns records into the batches to send. `add` and, at the end, `finish` give them in order.

    `limit` are the bytes of the largest batch that the target topic takes. The first `done` records come without data,
    with source offsets and sizes only. `source` and `target` name partitions, for errors. Records outside of `clip` are
    left out.
    """

    def __init__(
        self,
        batching: Batching,
        *,
        source: str,
        target: str,
        producer_id: int,
        limit: int,
        done: int = 0,
        clip: Clip | None = None,
    ) -> None:
        self._batching = batching
        self._clip = clip
        self._most = min(batching.max_bytes, packed_limit(limit))
        self._source = source
        self._target = target
        self._producer_id = producer_id
        self._limit = limit
        self._done = done
        self._index = 0
        self._group: list[Rows] = []
        self._count = 0
        self._bytes = 0

    def add(self, records: Sequence[LogRecord]) -> Iterator[Outgoing]:
        """Yield the batches that are full when these records are known. Raises TargetUnsuitable for a record that the
        target cannot take."""
        rows = as_rows(records)
        if self._clip is not None:
            rows = self._clip.of_rows(rows)
        while rows:
            room = self._most - self._bytes
            taken, size = rows.fitting(max(0, room), self._batching.max_records - self._count)
            if not taken:
                if self._group:
                    yield from self.finish()
                    continue
                taken, size = 1, self._most + 1  # it is a batch of its own, whatever comes
            self._group.append(rows[:taken])
            self._count += taken
            self._bytes += size
            rows = rows[taken:]

    def finish(self) -> Iterator[Outgoing]:
        """Yield the batch that was kept back for more records to come."""
        group = self._group
        if group:
            self._group = []
            self._count = self._bytes = 0
            yield self._batch(group)

    def _batch(self, group: Sequence[Rows]) -> Outgoing:
        count, index = sum(map(len, group)), self._index
        data, source, append_times = packed_batch(
            group,
            codec=self._batching.codec,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=index % SEQUENCE_SPACE,
        )
        if len(data) > self._limit:
            raise TargetUnsuitable(
                f"{self._target}: the record at offset {group[0].first_offset} of {self._source} is a batch of "
                f"{len(data)} bytes, the topic takes at most {self._limit}",
                hint=f"Raise max.message.bytes (and segment.bytes, if that is lower) of the topic to {len(data)} or "
                "more and begin a new restore, under another run id.",
            )
        self._index += count
        wanted = self._index > self._done
        return Outgoing(index, count, len(data), (data,) if wanted else None, tuple(source), append_times)
