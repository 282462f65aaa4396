"""The tables of the catalog's documents: topics, groups, runs and segments, in commits and in checkpoints. No I/O.

Each kind of fact says once which column holds which attribute; writing and reading follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Generic, TypeVar

from logkeep_kernel import SegmentTableReader

from logkeep_engine.archive.catalog import fields
from logkeep_engine.archive.catalog.documents import NEWER, parse, rows_of
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Coverage,
    Gap,
    GenerationChange,
    GenerationStep,
    GroupEntry,
    Partition,
    PurgedPack,
    RemovedSegment,
    ReplacedSegment,
    RunEntry,
    RunOutcome,
    TopicEntry,
)
from logkeep_engine.archive.catalog.fields import CODECS, DIGEST_NUMBERS, FIELDS, FLAGS, LAYOUT_NAMES
from logkeep_engine.archive.catalog.holds import Hold, HoldKind, HoldOrigin
from logkeep_engine.archive.catalog.kinds import LIST, PARTITION, check_rows
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.packed import ROW_BYTES, SegmentBatch, pack_facts
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.archive.names import check_run_id
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """The facts of one kind as a table. `columns` says which attribute each column holds; `make` takes the values of a
    row in this order. `written` says what a document has in place of an attribute."""

    make: Callable[..., T]
    columns: Mapping[str, str]
    written: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)

    def out(self, items: Iterable[T]) -> dict[str, Any]:
        """Return the table as a document has it."""
        values = attrgetter(*self.columns.values())
        rows = [list(values(item)) for item in items]
        for at, written in [(list(self.columns).index(name), written) for name, written in self.written.items()]:
            for row in rows:
                row[at] = written(row[at])
        return {"columns": list(self.columns), "rows": rows}

    def read(self, document: Mapping[str, Any], key: str, name: str) -> Iterable[T]:
        """Return the facts of the table `key`, none if it is not there. Messages name the object as `name`. Raises
        ArchiveMismatch for other columns, TypeError and ValueError for a row that is not such a fact."""
        rows = rows_of(document, key, list(self.columns), name)
        check_rows(rows, list(self.columns))
        return (self.make(*row) for row in rows)


def tables_out(tables: Mapping[str, tuple[Table[Any], Sequence[Any]]]) -> dict[str, Any]:
    """Return the tables of a document by their keys. One without rows is not written: readers take it for empty."""
    return {key: table.out(items) for key, (table, items) in tables.items() if len(items)}


def _run(*values: Any) -> RunEntry:
    run = RunEntry(*values)
    check_run_id(run.run_id)
    return replace(run, outcome=RunOutcome(run.outcome))


def _generation(topic_id: str, partition: int, number: int, step: str, start: int, end: int) -> GenerationChange:
    return GenerationChange(topic_id, partition, number, GenerationStep(step), start, end)


def _removed(topic_id: str, partition: int, line: int, base_offset: int) -> RemovedSegment:
    return RemovedSegment(topic_id, partition, base_offset, line)


def _removed_snapshot(topic_id: str, partition: int, line: int, end: int) -> RemovedSnapshot:
    return RemovedSnapshot(topic_id, partition, end, line)


def _hold(kind: str, name: str, origin: str) -> Hold:
    return Hold(HoldKind(kind), name, HoldOrigin(origin))


_PARTITION = {"topicId": "topic_id", "partition": "partition"}
_RANGE = {**_PARTITION, "start": "start", "end": "end"}
_LEADER = {**_PARTITION, "leaderEpoch": "epoch"}
_LINE = {**_PARTITION, "line": "line"}

COVERAGE = Table(Coverage, _RANGE)
GAPS = Table(Gap, {**_RANGE, "reason": "reason"})
REMOVED = Table(_removed, {**_LINE, "baseOffset": "base_offset"})
PURGED_PACKS = Table(PurgedPack, {name: name for name in PurgedPack._fields})
HOLDS = Table(_hold, {"kind": "kind", "name": "name", "origin": "origin"})
REPLACED = Table(ReplacedSegment, {**_LINE, "baseOffset": "base_offset", "by": "by", "snapshotEnd": "snapshot"})
BRANCHES = Table(Branching, {**_PARTITION, "branchId": "branch_id", "offset": "offset"})
GENERATIONS = Table(_generation, {**_PARTITION, "generation": "number", "step": "step", "start": "start", "end": "end"})
LEADERS = Table(LeaderSeen, _LEADER)
REMOVED_SNAPSHOTS = Table(_removed_snapshot, {**_LINE, "end": "end"})
EPOCHS = Table(LeaderEpoch, {**_LEADER, "start": "start"})
GROUPS = Table(
    GroupEntry,
    {
        "groupId": "group_id",
        "topic": "topic",
        **_PARTITION,
        "offset": "offset",
        "leaderEpoch": "leader_epoch",
        "metadata": "metadata",
        "share": "share",
    },
)
RUNS = Table(
    _run,
    {
        "runId": "run_id",
        "epoch": "epoch",
        "kind": "kind",
        "beginTime": "begin_time",
        "endTime": "end_time",
        "outcome": "outcome",
        "message": "message",
        "records": "records",
        "bytes": "bytes",
        "segments": "segments",
        "attempts": "attempts",
        "succeededEpoch": "succeeded_epoch",
        "succeededTime": "succeeded_time",
    },
)


def _sorted(items: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(items.items()))


TOPICS = Table(
    TopicEntry,
    {
        "name": "name",
        "topicId": "topic_id",
        "partitions": "partitions",
        "replicationFactor": "replication_factor",
        "configs": "configs",
        "compactedUntil": "compacted_until",
        "cleanedUntil": "cleaned_until",
    },
    {"configs": _sorted},
)

_SHA256, _BLAKE3 = DIGEST_NUMBERS[DigestAlgorithm.SHA256], DIGEST_NUMBERS[DigestAlgorithm.BLAKE3]
_COLUMNS = [field.column for field in FIELDS]
_LAYOUT_AT, _BLAKE3_AT = map(_COLUMNS.index, ("layout", "blake3"))
_FLAG_BITS = {name: 1 << bit for bit, name in enumerate(FLAGS.values())}
_LAYOUTS = {name: layout for layout, name in LAYOUT_NAMES.items()}
_NUMBERS = [
    itemgetter(*(_COLUMNS.index(field.column) for field in fields.numbers(layout))) for layout in sorted(Layout)
]
_SEGMENTS = SegmentTableReader(
    fields.packed_columns(), list(CODECS), list(FLAGS.values()), list(LAYOUT_NAMES.values()), ROW_BYTES
)
_CHECKED = itemgetter(
    *map(
        _COLUMNS.index,
        ("baseOffset", "nextOffset", "batches", "bytes", "codecs", "flags", "sha256", "txnindexSha256"),
    )
)


@cache
def _names_of(flags: tuple[bool, ...]) -> list[str]:
    """Return the names of the flags that are set."""
    return [name for name, is_set in zip(FLAGS.values(), flags, strict=True) if is_set]


class CommitSegments(Table[SegmentEntry]):
    """The tables of segments. `read_document` may have packed the rows of one already."""

    def read(self, document: Mapping[str, Any], key: str, name: str) -> SegmentBatch:
        """Read the segments of a commit's document; see `Table.read`."""
        found: Any = rows_of(document, key, list(self.columns), name)
        if isinstance(found, SegmentBatch):
            PARTITION.check({partition for _, partition in found.keys}, "the partition of a segment")
            return found
        LIST.check(found, "a segment")
        keys: list[Partition] = []
        rows = bytearray()
        for topic_id, partition, *row in found:
            if not isinstance(topic_id, str):
                raise ValueError(f"segment of topic id {topic_id!r} partition {partition!r}")
            PARTITION.check((partition,), "the partition of a segment")
            keys.append((topic_id, partition))
            rows += packed_segment(row)
        return SegmentBatch(keys, rows)


SEGMENTS = CommitSegments(
    SegmentEntry,
    {**_PARTITION, **{field.column: field.path for field in FIELDS}},
    {"flags": _names_of, "codecs": _sorted, "layout": LAYOUT_NAMES.__getitem__},
)
SNAPSHOTS = Table(SnapshotEntry, {**_PARTITION, "end": "end", "leaderEpoch": "leader_epoch", "time": "time"})


def snapshots_in(document: dict[str, Any], name: str) -> tuple[SnapshotEntry, ...]:
    """Read the snapshots of a commit's document. Raises ValueError for parts that are of none of them."""
    parts: dict[tuple[str, int, int], list[SegmentEntry]] = {}
    for part in SEGMENTS.read(document, "snapshotParts", name):
        parts.setdefault((part.topic_id, part.partition, part.files.end), []).append(part)

    def with_parts(topic_id: str, partition: int, end: int, leader_epoch: int, time: int) -> SnapshotEntry:
        own = tuple(parts.pop((topic_id, partition, end), ()))
        return SnapshotEntry(topic_id, partition, end, leader_epoch, time, own)

    found = tuple(replace(SNAPSHOTS, make=with_parts).read(document, "snapshots", name))
    if parts:
        raise ValueError(f"parts of a snapshot that is not there: {', '.join(map(str, parts))}")
    return found


def read_document(data: bytes, name: str) -> dict[str, Any]:
    """Return a commit's document. Messages name the object as `name`. Raises ArchiveDamaged and ArchiveMismatch.

    The kernel packs the rows of `segments`: of a million, none is made an object on its way into the state. Where it
    finds anything that no writer writes, `SEGMENTS` reads them and says what is wrong.
    """
    packed = _SEGMENTS.read(data)
    if packed is not None:
        start, end, width, keys, rows = packed
        with suppress(ArchiveDamaged):
            document = parse(b"%b%d%b" % (data[:start], width, data[end:]), name)
            table = document.get("segments")
            # Else it was the table of something else.
            if isinstance(table, dict) and table.get("rows") == width == len(table["columns"]):
                table["rows"] = SegmentBatch(keys, rows)
                return document
    return parse(data, name)


def packed_segment(row: list[Any]) -> bytes:
    """Return the packed row of a row of a commit's table. Raises TypeError and ValueError for what is not a segment."""
    if len(row) != len(_COLUMNS):
        raise ValueError(f"segment of {len(row)} columns")
    layout = _layout_of(row[_LAYOUT_AT])
    start, end, batches, size, codecs, names, sha256, txnindex_sha256 = _CHECKED(row)
    if not 0 <= start < end or batches < 1 or size < 1:
        raise ValueError(f"segment with offsets [{start}, {end}), {batches} batches, {size} bytes")
    flags = 0
    for name in names:
        flags |= _FLAG_BITS[name]
    digest = _digest_of(sha256, row[_BLAKE3_AT])
    return pack_facts(_NUMBERS[layout](row), codecs, digest, txnindex_sha256, flags, layout)


def _digest_of(sha256: str, blake3: str) -> tuple[str, int]:
    """Return the one digest that the row of a segment has, and the number of its algorithm."""
    if sha256 and blake3:
        raise ValueError(f"segment with SHA-256 {sha256} and BLAKE3 {blake3}")
    return (blake3, _BLAKE3) if blake3 else (sha256, _SHA256)


def _layout_of(name: str) -> Layout:
    if name not in _LAYOUTS:
        raise ArchiveMismatch(f"A segment has layout {name!r}.", hint=NEWER)
    return _LAYOUTS[name]
