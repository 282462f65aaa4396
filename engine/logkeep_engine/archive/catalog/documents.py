"""The catalog's documents as bytes: `archive.json` and commits. Format 1. No I/O. `checkpoint` has the checkpoints.

A commit is one line of JSON for people and programs. Its last key `sha256` is the hash of the document without that
key, so that an altered commit is never mistaken for another:

    {"format":1,"archiveId":…,"commit":42,"kind":"Data","runId":…,"epoch":3,"time":…,"token":…,
     "topics":[{"name":…,"topicId":…,"partitions":…,"replicationFactor":…,"configs":{…}}],
     "coverage":{"columns":["topicId","partition","start","end"],"rows":[[…]]},
     "segments":{"columns":[…],"rows":[[…]]},"gaps":{…},"removed":{…},"purged":true,"epochs":{…},
     "leaders":{…},"branches":{…},"removedFromBranches":{…},"groups":{…},"sha256":…}

A document of another format, or with keys or columns this version does not know, is refused with ArchiveMismatch: what
a newer version added may change what the rest means. One that is cut short or altered is ArchiveDamaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Commit,
    CommitKind,
    Coverage,
    Gap,
    GroupEntry,
    Outcome,
    Partition,
    RemovedSegment,
    RunEntry,
    TopicEntry,
)
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.packed import HAS_TXNINDEX_SHA256, LAYOUT_BIT, SegmentBatch, pack_facts
from logkeep_engine.contract.spec import FormatName
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, LogkeepError

FORMAT = 1

T = TypeVar("T")

_RANGE_COLUMNS = ["topicId", "partition", "start", "end"]
_GAP_COLUMNS = [*_RANGE_COLUMNS, "reason"]
_REMOVED_COLUMNS = ["topicId", "partition", "baseOffset"]
_BRANCH_REMOVED_COLUMNS = ["topicId", "partition", "branchId", "baseOffset"]
_BRANCH_COLUMNS = ["topicId", "partition", "branchId", "offset"]
_LEADER_COLUMNS = ["topicId", "partition", "leaderEpoch"]
_EPOCH_COLUMNS = [*_LEADER_COLUMNS, "start"]
GROUP_COLUMNS = ["groupId", "topic", "topicId", "partition", "offset", "leaderEpoch", "metadata"]
RUN_COLUMNS = [
    "runId",
    "epoch",
    "kind",
    "beginTime",
    "endTime",
    "outcome",
    "message",
    "records",
    "bytes",
    "segments",
    "attempts",
]
_SEGMENT_COLUMNS = [
    "epoch",
    "attempt",
    "baseOffset",
    "nextOffset",
    "records",
    "batches",
    "bytes",
    "minBaseTimestamp",
    "maxTimestamp",
    "sha256",
    "codecs",
    "flags",
    "maxBatchBytes",
    "indexBytes",
    "timeindexBytes",
    "txnindexBytes",
    "txnindexSha256",
]
# Only in tables that have a compressed segment: what has none stays readable to versions that do not know the column.
_STORED = "storedBytes"
# Only in tables that have a segment of another layout than Kafka's: name of the layout, and of an Avro object the
# number in its name and how many digits that has at least.
_LAYOUT = ["layout", "sequence", "sequenceWidth"]
_LAYOUTS = {
    "kafka": Layout.KAFKA,
    "records": Layout.RECORDS,
    "avro": Layout.AVRO,
    "recordsAtRoot": Layout.RECORDS_AT_ROOT,
}
_LAYOUT_NAMES = {layout: name for name, layout in _LAYOUTS.items()}
_FLAGS = ("transactional", "control", "gaps", "appendTime", "legacy")  # in the order of their bits in a packed row

_HEAD_KEYS = {"format", "archiveId", "commit", "kind", "runId", "epoch", "time", "token", "sha256"}
_KIND_KEYS = {
    CommitKind.BEGIN: {"runKind", "takenOver"},
    CommitKind.DATA: {
        "topics",
        "coverage",
        "segments",
        "gaps",
        "removed",
        "purged",
        "epochs",
        "leaders",
        "branches",
        "removedFromBranches",
    },
    CommitKind.END: {"outcome", "message", "groups", "partial"},
}
_SHA_KEY = b',"sha256":"'
_SHA_TAIL = len(_SHA_KEY) + 64 + 2  # the key, 64 hex digits, `"}`


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What `archive.json` says. `created_at` is ISO 8601 in UTC.

    `segments` is the format of the archive's segments: Kafka, Records or Avro. `imported`: the archive was made from
    something that another tool wrote; it has no cluster (`cluster_id` is "-"), and no backup goes on in it.
    """

    archive_id: str
    cluster_id: str
    created_at: str
    created_by: str
    format: int = FORMAT
    segments: FormatName = FormatName.KAFKA
    imported: bool = False


def dump_info(info: ArchiveInfo) -> bytes:
    """`archive.json`, in lines for people."""
    document: dict[str, Any] = {
        "format": info.format,
        "archiveId": info.archive_id,
        "clusterId": info.cluster_id,
        "createdAt": info.created_at,
        "createdBy": info.created_by,
    }
    # Only where they say something: what has them is refused by versions that do not know them.
    if info.segments is not FormatName.KAFKA:
        document["segments"] = info.segments.value
    if info.imported:
        document["imported"] = True
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def load_info(data: bytes, name: str) -> ArchiveInfo:
    """`name` is the object's, for messages."""
    document = parse(data, name)
    know(document, {"format", "archiveId", "clusterId", "createdAt", "createdBy", "segments", "imported"}, name)
    try:
        fields = [document[key] for key in ("archiveId", "clusterId", "createdAt", "createdBy")]
    except KeyError as error:
        raise damaged(name, f"key {error} is missing") from error
    if not all(isinstance(value, str) and value for value in fields):
        raise damaged(name, "a value is not a string")
    segments, imported = document.get("segments", FormatName.KAFKA.value), document.get("imported", False)
    if segments not in list(FormatName) or not isinstance(imported, bool):
        raise ArchiveMismatch(f"{name}: segments {segments!r}, imported {imported!r}.", hint=NEWER)
    archive_id, cluster_id, created_at, created_by = fields
    return ArchiveInfo(archive_id, cluster_id, created_at, created_by, segments=FormatName(segments), imported=imported)


def dump_commit(commit: Commit) -> bytes:
    """One line of JSON, its own hash last."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "archiveId": commit.archive_id,
        "commit": commit.number,
        "kind": commit.kind.value,
        "runId": commit.run_id,
        "epoch": commit.epoch,
        "time": commit.time,
        "token": commit.token,
    }
    if commit.kind is CommitKind.BEGIN:
        document["runKind"] = commit.run_kind
        document["takenOver"] = list(commit.taken_over)
    elif commit.kind is CommitKind.DATA:
        document["topics"] = [topic_out(topic) for topic in commit.topics]
        document["coverage"] = table_of(_RANGE_COLUMNS, map(_coverage_row, commit.coverage))
        optional = _Optional.of(commit.segments)
        document["segments"] = table_of(
            ["topicId", "partition", *segment_columns(optional.stored, optional.layouts)],
            ([entry.topic_id, entry.partition, *_segment_row(entry, optional)] for entry in commit.segments),
        )
        document["gaps"] = table_of(_GAP_COLUMNS, map(_gap_row, commit.gaps))
        # Only where retention has removed something: what has them is refused by versions that do not know them.
        newest = [item for item in commit.removed if not item.branch_id]
        branches = [item for item in commit.removed if item.branch_id]
        if newest:
            document["removed"] = table_of(_REMOVED_COLUMNS, map(_removed_row, newest))
        if branches:
            rows = ([item.topic_id, item.partition, item.branch_id, item.base_offset] for item in branches)
            document["removedFromBranches"] = table_of(_BRANCH_REMOVED_COLUMNS, rows)
        if commit.purged:
            document["purged"] = True
        # Only where there is something new to say: versions that do not know them would mix lineages, and refuse.
        if commit.epochs:
            document["epochs"] = table_of(_EPOCH_COLUMNS, map(_epoch_row, commit.epochs))
        if commit.leaders:
            document["leaders"] = table_of(_LEADER_COLUMNS, map(_leader_row, commit.leaders))
        if commit.branchings:
            document["branches"] = table_of(_BRANCH_COLUMNS, map(_branch_row, commit.branchings))
    else:
        document["outcome"] = commit.outcome.value
        document["message"] = commit.message
        document["groups"] = table_of(GROUP_COLUMNS, map(group_row, commit.groups))
        if commit.partial:  # versions that do not know it would restore an older state, and refuse
            document["partial"] = True
    body = dumps(document)
    return body[:-1] + _SHA_KEY + hashlib.sha256(body).hexdigest().encode() + b'"}'


def load_commit(data: bytes, name: str) -> Commit:
    """The commit in `data`; `name` is the object's, for messages."""
    # The format first: what the hash covers is a matter of the format.
    document = parse(data, name)
    if data[-_SHA_TAIL : len(_SHA_KEY) - _SHA_TAIL] != _SHA_KEY:
        raise damaged(name, "its own SHA-256 is missing")
    if hashlib.sha256(data[:-_SHA_TAIL] + b"}").hexdigest().encode() != data[-66:-2]:
        raise damaged(name, "its SHA-256 does not fit its content")
    try:
        kind = CommitKind(document["kind"])
    except (KeyError, ValueError) as error:
        raise ArchiveMismatch(
            f"{name}: a commit of kind {document.get('kind')!r}, which this version does not know.", hint=NEWER
        ) from error
    know(document, _HEAD_KEYS | _KIND_KEYS[kind], name)

    def build() -> Commit:
        return Commit(
            number=document["commit"],
            archive_id=document["archiveId"],
            token=document["token"],
            kind=kind,
            run_id=document["runId"],
            epoch=document["epoch"],
            time=document["time"],
            run_kind=document.get("runKind", ""),
            taken_over=tuple(document.get("takenOver", ())),
            topics=tuple(map(topic_in, document.get("topics", ()))),
            coverage=tuple(Coverage(*row) for row in rows_of(document, "coverage", _RANGE_COLUMNS, name)),
            segments=_segments(document, name),
            gaps=tuple(Gap(*row) for row in rows_of(document, "gaps", _GAP_COLUMNS, name)),
            groups=tuple(GroupEntry(*row) for row in rows_of(document, "groups", GROUP_COLUMNS, name)),
            outcome=Outcome(document.get("outcome", Outcome.RUNNING)),
            message=document.get("message", ""),
            removed=tuple(_removed(document, name)),
            purged=document.get("purged", False),
            epochs=tuple(LeaderEpoch(*row) for row in rows_of(document, "epochs", _EPOCH_COLUMNS, name)),
            leaders=tuple(LeaderSeen(*row) for row in rows_of(document, "leaders", _LEADER_COLUMNS, name)),
            branchings=tuple(Branching(*row) for row in rows_of(document, "branches", _BRANCH_COLUMNS, name)),
            partial=document.get("partial", False),
        )

    return building(build, name)


NEWER = "It was written by a newer Logkeep: use that version or a later one."


def dumps(document: Any) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def parse(data: bytes, name: str) -> dict[str, Any]:
    """A JSON object of this format. Raises ArchiveDamaged, ArchiveMismatch; `name` is the object's."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise damaged(name, f"it is not whole JSON ({len(data)} bytes)") from error
    if not isinstance(document, dict):
        raise damaged(name, "it is not a JSON object")
    found = document.get("format")
    if found != FORMAT:
        raise ArchiveMismatch(
            f"{name}: archive format {found!r}, this version of Logkeep reads and writes format {FORMAT}.", hint=NEWER
        )
    return document


def know(document: dict[str, Any], known: set[str], name: str) -> None:
    """Raises ArchiveMismatch for keys that this version does not know."""
    unknown = sorted(set(document) - known)
    if unknown:
        raise ArchiveMismatch(f"{name}: unknown keys {', '.join(unknown)}.", hint=NEWER)


def rows_of(document: dict[str, Any], key: str, columns: Sequence[str], name: str) -> list[list[Any]]:
    """The rows of a table, none if it is not there. Raises ArchiveMismatch for other columns."""
    if key not in document:
        return []
    table = document[key]
    if table["columns"] != columns:
        raise ArchiveMismatch(f"{name}: unknown columns {table['columns']} of {key}.", hint=NEWER)
    rows: list[list[Any]] = table["rows"]
    return rows


def building(build: Callable[[], T], name: str) -> T:
    """What `build` makes; what it finds missing or impossible is ArchiveDamaged."""
    try:
        return build()
    except LogkeepError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(name, f"{type(error).__name__}: {error}") from error


def damaged(name: str, what: str) -> ArchiveDamaged:
    """The error of an object of the catalog."""
    return ArchiveDamaged(f"{name}: {what}.", hint="Restore this object from a copy of the archive.")


def table_of(columns: Sequence[str], rows: Iterable[list[Any]]) -> dict[str, Any]:
    """A table as a document has it."""
    return {"columns": list(columns), "rows": list(rows)}


def topic_out(topic: TopicEntry) -> dict[str, Any]:
    """The reverse of `topic_in`."""
    return {
        "name": topic.name,
        "topicId": topic.topic_id,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
        "configs": dict(sorted(topic.configs.items())),
    }


def topic_in(item: dict[str, Any]) -> TopicEntry:
    """Raises KeyError and ValueError for what is not a topic."""
    if len(item) != 5:
        raise ValueError(f"topic with keys {', '.join(item)}")
    return TopicEntry(
        item["name"], item["topicId"], item["partitions"], item["replicationFactor"], dict(item["configs"])
    )


def _coverage_row(item: Coverage) -> list[Any]:
    return [item.topic_id, item.partition, item.start, item.end]


def _gap_row(item: Gap) -> list[Any]:
    return [item.topic_id, item.partition, item.start, item.end, item.reason]


def _removed_row(item: RemovedSegment) -> list[Any]:
    return [item.topic_id, item.partition, item.base_offset]


def _removed(document: dict[str, Any], name: str) -> Iterator[RemovedSegment]:
    for row in rows_of(document, "removed", _REMOVED_COLUMNS, name):
        yield RemovedSegment(*row)
    for topic_id, partition, branch_id, base in rows_of(document, "removedFromBranches", _BRANCH_REMOVED_COLUMNS, name):
        yield RemovedSegment(topic_id, partition, base, branch_id)


def _branch_row(item: Branching) -> list[Any]:
    return [item.topic_id, item.partition, item.branch_id, item.offset]


def _epoch_row(item: LeaderEpoch) -> list[Any]:
    return [item.topic_id, item.partition, item.epoch, item.start]


def _leader_row(item: LeaderSeen) -> list[Any]:
    return [item.topic_id, item.partition, item.epoch]


def group_row(item: GroupEntry) -> list[Any]:
    """In the order of GROUP_COLUMNS."""
    return [item.group_id, item.topic, item.topic_id, item.partition, item.offset, item.leader_epoch, item.metadata]


def run_row(run: RunEntry) -> list[Any]:
    """In the order of RUN_COLUMNS."""
    return [
        run.run_id,
        run.epoch,
        run.kind,
        run.begin_time,
        run.end_time,
        run.outcome.value,
        run.message,
        run.records,
        run.bytes,
        run.segments,
        run.attempts,
    ]


def run_in(
    run_id: str,
    epoch: int,
    kind: str,
    begin_time: int,
    end_time: int | None,
    outcome: str,
    message: str,
    records: int,
    size: int,
    segments: int,
    attempts: int,
) -> RunEntry:
    """The run of a row of RUN_COLUMNS."""
    return RunEntry(
        run_id, epoch, kind, begin_time, end_time, Outcome(outcome), message, records, size, segments, attempts
    )


@dataclass(frozen=True, slots=True)
class _Optional:
    """Which of the columns that not every table has a table needs."""

    stored: bool
    layouts: bool

    @classmethod
    def of(cls, segments: Sequence[SegmentEntry]) -> _Optional:
        stored = layouts = False
        for entry in segments:
            stored = stored or entry.stored_bytes > 0
            layouts = layouts or entry.layout is not Layout.KAFKA
        return cls(stored or layouts, layouts)


def segment_columns(stored: bool, layouts: bool = False) -> list[str]:
    """Of a table with or without compressed segments, and segments of other layouts than Kafka's; tables of commits
    have topic id and partition before them."""
    return [*_SEGMENT_COLUMNS, *([_STORED] if stored else []), *(_LAYOUT if layouts else [])]


def _segment_rows(document: dict[str, Any], name: str) -> list[list[Any]]:
    columns = document.get("segments", {}).get("columns", ())
    expected = segment_columns(_STORED in columns, _LAYOUT[0] in columns)
    return rows_of(document, "segments", ["topicId", "partition", *expected], name)


def _segment_row(entry: SegmentEntry, optional: _Optional) -> list[Any]:
    flags = (entry.transactional, entry.control, entry.gaps, entry.append_time, entry.legacy)
    row = [
        entry.epoch,
        entry.attempt,
        entry.base_offset,
        entry.next_offset,
        entry.records,
        entry.batches,
        entry.bytes,
        entry.min_base_timestamp,
        entry.max_timestamp,
        entry.sha256,
        dict(sorted(entry.codecs.items())),
        [name for name, is_set in zip(_FLAGS, flags, strict=True) if is_set],
        entry.max_batch_bytes,
        entry.index_bytes,
        entry.timeindex_bytes,
        entry.txnindex_bytes,
        entry.txnindex_sha256,
    ]
    if optional.stored:
        row.append(entry.stored_bytes)
    if optional.layouts:
        row += [_LAYOUT_NAMES[entry.layout], entry.sequence, entry.sequence_width]
    return row


def _segments(document: dict[str, Any], name: str) -> SegmentBatch:
    # A million segments are read as a million rows: none is made an object on its way into the state.
    keys: list[Partition] = []
    rows = bytearray()
    for topic_id, partition, *row in _segment_rows(document, name):
        if not isinstance(topic_id, str) or not isinstance(partition, int) or partition < 0:
            raise ValueError(f"segment of topic id {topic_id!r} partition {partition!r}")
        keys.append((topic_id, partition))
        rows += packed_segment(*row)
    return SegmentBatch(keys, rows)


def packed_segment(
    epoch: int,
    attempt: int,
    base_offset: int,
    next_offset: int,
    records: int,
    batches: int,
    size: int,
    min_base_timestamp: int,
    max_timestamp: int,
    sha256: str,
    codecs: dict[str, int],
    flags: list[str],
    max_batch_bytes: int,
    index_bytes: int,
    timeindex_bytes: int,
    txnindex_bytes: int,
    txnindex_sha256: str,
    stored_bytes: int = 0,
    layout: str = "kafka",
    sequence: int = 0,
    sequence_width: int = 0,
) -> bytes:
    """The packed row of a row of `segment_columns`. Raises TypeError and ValueError for what is not a segment."""
    if not 0 <= base_offset < next_offset or batches < 1 or size < 1:
        raise ValueError(f"segment with offsets [{base_offset}, {next_offset}), {batches} batches, {size} bytes")
    bits = HAS_TXNINDEX_SHA256 if txnindex_sha256 else 0
    for flag in flags:
        bits |= 1 << _FLAGS.index(flag)
    if layout not in _LAYOUTS:
        raise ArchiveMismatch(f"A segment has layout {layout!r}.", hint=NEWER)
    bits |= _LAYOUTS[layout] << LAYOUT_BIT
    avro = _LAYOUTS[layout] is Layout.AVRO
    numbers = (
        base_offset,
        next_offset,
        epoch,
        records,
        batches,
        size,
        min_base_timestamp,
        max_timestamp,
        sequence if avro else stored_bytes,
        attempt,
        max_batch_bytes,
        index_bytes,
        sequence_width if avro else timeindex_bytes,
        txnindex_bytes,
    )
    return pack_facts(numbers, codecs, sha256, txnindex_sha256, bits)
