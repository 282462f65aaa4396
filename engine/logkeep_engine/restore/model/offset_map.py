"""The map from source offsets to target offsets: rows of (source offset, target offset, count).

A task tells an `OffsetMapBuilder` the source offsets in the order in which it sends the records, and the target offsets
in the order in which the broker acknowledges them. The n-th record of one side is the n-th record of the other. The
finished map is one JSON object, `runs/<run id>/offset-maps/<target topic>/<partition>.json`. Its first line holds
everything but the rows: a driver that starts again learns how many records a partition has without reading a map that
may be large (a compacted topic has a row after every record that compaction removed). Memory is bounded: rows that are
complete go to a temporary file.
"""

from __future__ import annotations

import tempfile
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import IO, NamedTuple, Self

from logkeep_engine.contract.nesting import WRONG, loads
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.storage import Storage
from logkeep_engine.stored import reading

OFFSET_MAP = StoredDocument(
    "offset map",
    1,
    {
        "source": {"topic": str, "topicId": str, "partition": int},
        "target": {"topic": str, "partitions": [(int, int, int, int, int)]},  # partition, records, start, end, epoch
        "records": int,
        "bytes": int,
        "appendTimeRecords": int,
        "abortedRecords": int,
        "rows": [(int, int, int)],  # source offset, target offset, count; none if the topic is divided
    },
)
_ALTERED = "The object was altered; it cannot be used."
HEADER_MAX_BYTES = 4096  # topic names are at most 249 bytes, so the first line of a map with rows is well below this
_DIVIDED_HEADER_MAX_BYTES = 16 << 20  # a row for each target partition, of at most 110 bytes
_SPOOL_BYTES = 4 << 20
_BLOCK = 1 << 20
_GONE = -1


@dataclass(frozen=True, slots=True)
class OutletSummary:
    """The part of an archived partition that went to the target partition `partition`: this many `records`, from offset
    `start`, where the log ended before the run, up to `end`, one past the last of them (equal to `start` when nothing
    was restored).

    `epoch` is the leader epoch in which the last record was written: as long as the leader's log has this epoch up to
    `end`, everything is there. -1: not known, or nothing was restored.
    """

    partition: int
    records: int
    start: int
    end: int
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """The facts of an archived partition that is done: those of an offset map without its rows. `outlets` has a row for
    each target partition: several if the topic is divided. Then there are no rows, of which each record would have one.

    `bytes` are those of the batches as sent. `append_time_records` lost their timestamp type (not their timestamp).
    `aborted_records` are of aborted transactions, and were left out.
    """

    source_topic: str
    source_topic_id: str
    source_partition: int
    target_topic: str
    records: int
    bytes: int
    outlets: tuple[OutletSummary, ...]
    append_time_records: int = 0
    aborted_records: int = 0

    @property
    def target_end(self) -> int:
        """One past the last record of the only outlet."""
        return self.outlets[0].end


class OffsetMapBuilder:
    """Joins source offsets and target offsets into rows. Not thread-safe."""

    def __init__(self) -> None:
        self._sources: deque[tuple[int, int]] = deque()
        self._targets: deque[tuple[int, int]] = deque()
        self._row: tuple[int, int, int] | None = None
        self._source_end = 0  # one past the highest source offset that has a row
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 (closed by close)
        self._rows = 0
        self.source_records = 0
        self.target_records = 0

    def source(self, offset: int, count: int) -> None:
        """Note that the next `count` records of the stream have the source offsets from `offset` on."""
        self.source_records += count
        self._push(self._sources, offset, count)

    def target(self, offset: int, count: int) -> None:
        """Note that the next `count` records of the stream have the target offsets from `offset` on."""
        self.target_records += count
        self._push(self._targets, offset, count)

    def gone(self, count: int) -> None:
        """Note that the next `count` records of the stream were in the target, and that its retention or compaction has
        removed them since.
        """
        self.target_records += count
        self._push(self._targets, _GONE, count)

    def _push(self, side: deque[tuple[int, int]], offset: int, count: int) -> None:
        # Else -1 and one record would seem to be followed by offset 0.
        if side and side[-1][0] != _GONE and side[-1][0] + side[-1][1] == offset:
            first, before = side.pop()
            side.append((first, before + count))
        elif count:
            side.append((offset, count))
        while self._sources and self._targets:
            source, left = self._sources.popleft()
            target, right = self._targets.popleft()
            taken = min(left, right)
            if target != _GONE:
                self._add(source, target, taken)
            if left > taken:
                self._sources.appendleft((source + taken, left - taken))
            if right > taken:
                self._targets.appendleft((target if target == _GONE else target + taken, right - taken))

    def _add(self, source: int, target: int, count: int) -> None:
        """Add a row, or the part of it whose source offsets rise.

        A broker stores uncompressed batches as a producer numbered the records, also where offsets repeat or fall. Of
        these the first record has the row: a consumer group reads such records again rather than passing over one.
        """
        known = min(max(0, self._source_end - source), count)
        if known == count:
            return
        source, target, count = source + known, target + known, count - known
        self._source_end = source + count
        if self._row is not None:
            first, at, before = self._row
            if first + before == source and at + before == target:
                self._row = (first, at, before + count)
                return
            self._write(self._row)
        self._row = (source, target, count)

    def _write(self, row: tuple[int, int, int]) -> None:
        self._spool.write((",\n" if self._rows else "\n").encode() + b"[%d,%d,%d]" % row)
        self._rows += 1

    def rows(self, summary: PartitionSummary) -> Iterator[bytes]:
        """Yield the rows of the document, block by block. Every source offset must have met its target offset."""
        if self._sources or self._targets or self.source_records != summary.records:
            raise AssertionError(
                f"offset map of {summary.target_topic}-{summary.outlets[0].partition}: {self.source_records} source "
                f"records, {self.target_records} target records, {summary.records} expected"
            )
        if self._row is not None:
            self._write(self._row)
            self._row = None
        self._spool.seek(0)
        while block := self._spool.read(_BLOCK):
            yield block

    def close(self) -> None:
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def map_blocks(summary: PartitionSummary, offsets: OffsetMapBuilder | None) -> Iterator[bytes]:
    """Yield the finished document, block by block, with the rows of `offsets`."""
    outlets = [[item.partition, item.records, item.start, item.end, item.epoch] for item in summary.outlets]
    source = {"topic": summary.source_topic, "topicId": summary.source_topic_id, "partition": summary.source_partition}
    head = OFFSET_MAP.head(
        {
            "source": source,
            "target": {"topic": summary.target_topic, "partitions": outlets},
            "records": summary.records,
            "bytes": summary.bytes,
            "appendTimeRecords": summary.append_time_records,
            "abortedRecords": summary.aborted_records,
        }
    )
    yield head + b',"rows":['
    if offsets is not None:
        yield from offsets.rows(summary)
    yield b"\n]}\n"


class OffsetPlace(Enum):
    """The restored record that stands for a source offset."""

    RECORD = "record"  # the record at this offset
    GAP = "gap"  # the next one: no record of this offset was restored
    END = "end"  # none: no record of this offset, or after it, was restored


class FoundOffset(NamedTuple):
    """The target offset that stands for a source offset. `source`: the source offset of the record there; None where
    there is none."""

    target: int
    place: OffsetPlace
    source: int | None


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """A finished map. `sources`, `targets` and `counts` are columns of equal length, rising in both offsets."""

    summary: PartitionSummary
    sources: Sequence[int]
    targets: Sequence[int]
    counts: Sequence[int]

    def find(self, source_offset: int) -> FoundOffset:
        """Return the target offset of the first restored record at or after `source_offset`, and that record; past the
        last record, the end of the restored ones.

        That is what a consumer group's position means: the next record to read.
        """
        at = bisect_right(self.sources, source_offset) - 1
        if at >= 0 and source_offset < self.sources[at] + self.counts[at]:
            target = self.targets[at] + source_offset - self.sources[at]
            return FoundOffset(target, OffsetPlace.RECORD, source_offset)
        if at + 1 < len(self.sources):
            return FoundOffset(self.targets[at + 1], OffsetPlace.GAP, self.sources[at + 1])
        return FoundOffset(self.summary.target_end, OffsetPlace.END, None)

    @property
    def rows(self) -> list[tuple[int, int, int]]:
        return list(zip(self.sources, self.targets, self.counts, strict=True))


def stored_summary(storage: Storage, path: str) -> PartitionSummary:
    """Read the summary of the offset map at this path. Raises ObjectMissing, ArchiveMismatch, ArchiveDamaged."""
    head = storage.read_range(path, 0, HEADER_MAX_BYTES)
    if b"\n" not in head:
        head = storage.read_range(path, 0, _DIVIDED_HEADER_MAX_BYTES)
    return read_summary(head, f"{storage.uri}/{path}")


def read_summary(head: bytes, name: str) -> PartitionSummary:
    """Read the summary from the beginning of the object `name`. Raises ArchiveMismatch, ArchiveDamaged."""
    line, found, _ = head.partition(b"\n")
    if not found:
        raise ArchiveDamaged(f"{name}: not an offset map", hint=_ALTERED)
    return _summary(line + b"]}", name)


def read_offset_map(data: bytes, name: str) -> OffsetMap:
    """Return the whole object `name`. Raises ArchiveMismatch (newer format) or ArchiveDamaged."""
    line, _, rows = data.partition(b"\n")
    summary = _summary(line + b"]}", name)
    columns = [array("q"), array("q"), array("q")]
    try:
        for row in _rows(rows):
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    except WRONG as error:
        raise damaged_map(name, error) from error
    if sum(columns[2]) > summary.records:
        raise ArchiveDamaged(
            f"{name}: rows of {sum(columns[2])} records, the header says {summary.records}",
            hint=_ALTERED,
        )
    return OffsetMap(summary, *columns)


def _rows(text: bytes) -> Iterator[Sequence[int]]:
    """Yield the rows. They are lines, and this many are parsed at once that they take no more memory than the text.
    Raises ValueError.
    """
    if not text.endswith(b"]}\n"):
        raise ValueError("the end is missing")
    at, end = 0, len(text) - 3
    while at < end:
        cut = text.find(b"\n", min(at + _BLOCK, end) - 1) + 1 or end
        cut = min(cut, end)
        yield from loads(b"[" + text[at:cut].rstrip(b",\n") + b"]")
        at = cut


def damaged_map(name: str, error: Exception) -> ArchiveDamaged:
    """Return the error for an offset map that was altered."""
    return ArchiveDamaged(f"{name}: not an offset map: {error!r}", hint=_ALTERED)


def _summary(data: bytes, name: str) -> PartitionSummary:
    with reading(OFFSET_MAP, data, name, hint=_ALTERED) as body:
        source, target = body["source"], body["target"]
        if not target["partitions"]:
            raise ValueError("no target partition")
        return PartitionSummary(
            source_topic=source["topic"],
            source_topic_id=source["topicId"],
            source_partition=source["partition"],
            target_topic=target["topic"],
            records=body["records"],
            bytes=body["bytes"],
            outlets=tuple(OutletSummary(*row) for row in target["partitions"]),
            append_time_records=body["appendTimeRecords"],
            aborted_records=body["abortedRecords"],
        )
