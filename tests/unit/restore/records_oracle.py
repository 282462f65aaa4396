"""The stream of batches of archived records, made in Python: the oracle of what the kernel does."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.formats.base import LogRecord, TimestampKind
from logkeep_engine.log.codec import encode_records
from logkeep_engine.restore.streams.filter import PRODUCER_EPOCH, SEQUENCE_SPACE, Outgoing, source_rows
from logkeep_engine.restore.streams.merge import packed_limit
from logkeep_engine.restore.streams.records import Batching


class OldRecordStream:
    """Turns records into the batches to send. `add` and, at the end, `finish` give them in order.

    `limit` are the bytes of the largest batch that the target topic takes. The first `done` records come without data,
    with source offsets and sizes only. `source` and `target` name partitions, for errors.
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
    ) -> None:
        self._batching = batching
        self._most = min(batching.max_bytes, packed_limit(limit))
        self._source = source
        self._target = target
        self._producer_id = producer_id
        self._limit = limit
        self._done = done
        self._index = 0
        self._group: list[LogRecord] = []
        self._bytes = 0

    def add(self, records: Sequence[LogRecord]) -> Iterator[Outgoing]:
        """The batches that are full when these records are known. Raises TargetUnsuitable for a record that the target
        cannot take."""
        ends = list(accumulate(map(_largest, records), initial=0))
        at = 0
        while at < len(records):
            fit = bisect_right(ends, ends[at] + self._most - self._bytes) - 1
            cut = min(fit, at + self._batching.max_records - len(self._group))
            if cut <= at:
                if self._group:
                    yield from self.finish()
                    continue
                cut = at + 1
            self._group += records[at:cut]
            self._bytes += ends[cut] - ends[at]
            at = cut

    def finish(self) -> Iterator[Outgoing]:
        """The batches that were kept back for more records to come."""
        group = self._group
        if group:
            self._group = []
            self._bytes = 0
            yield self._batch(group)

    def _batch(self, records: Sequence[LogRecord]) -> Outgoing:
        data = encode_records(
            records,
            codec=self._batching.codec,
            base_offset=0,
            producer_id=self._producer_id,
            producer_epoch=PRODUCER_EPOCH,
            base_sequence=self._index % SEQUENCE_SPACE,
            dense=True,
        )
        if len(data) > self._limit:
            raise TargetUnsuitable(
                f"{self._target}: the record at offset {records[0].offset} of {self._source} is a batch of {len(data)} "
                f"bytes, the topic takes at most {self._limit}",
                hint=f"Raise max.message.bytes (and segment.bytes, if that is lower) of the topic to {len(data)} or "
                "more and begin a new restore, under another run id.",
            )
        return self._outgoing(records, data)

    def _outgoing(self, records: Sequence[LogRecord], data: bytes) -> Outgoing:
        index, count = self._index, len(records)
        self._index += count
        return Outgoing(
            index=index,
            count=count,
            size=len(data),
            data=(data,) if self._index > self._done else None,
            source=tuple(source_rows([record.offset for record in records])),
            append_times=sum(record.timestamp_type == TimestampKind.APPEND for record in records),
        )


def _largest(record: LogRecord) -> int:
    """The most bytes that a record takes in a batch before compression, wherever in the batch it is."""
    key, value, headers = record.key, record.value, record.headers
    size = _LARGEST_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        # A name as text may have four bytes a character.
        size += 2 * _LONGEST_LENGTH + (4 * len(name) if isinstance(name, str) else len(name)) + len(content or b"")
    return size


_LONGEST_LENGTH = 5
_LARGEST_OVERHEAD = 1 + 10 + 5 * _LONGEST_LENGTH  # attributes; time; offset and the lengths of record, key and value
