"""The catalog's documents as bytes: `archive.json`, commits, checkpoints. Format 1. No I/O.

A commit is one line of JSON for people and programs. Its last key `sha256` is the hash of the document without that
key, so that an altered commit is never mistaken for another:

    {"format":1,"archiveId":…,"commit":42,"kind":"Data","runId":…,"epoch":3,"time":…,"token":…,
     "topics":[{"name":…,"topicId":…,"partitions":…,"replicationFactor":…,"configs":{…}}],
     "coverage":{"columns":["topicId","partition","start","end"],"rows":[[…]]},
     "segments":{"columns":[…],"rows":[[…]]},"gaps":{…},"groups":{…},"sha256":…}

A checkpoint is a line of JSON (format, archive, commit, epoch, hash of the rest), then a zstd frame of JSON: rows
grouped by partition.

A document of another format, or with keys or columns this version does not know, is refused with ArchiveMismatch: what
a newer version added may change what the rest means. One that is cut short or altered is ArchiveDamaged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cramjam

from logkeep_engine.archive.model import (
    ArchiveState,
    Commit,
    CommitKind,
    Coverage,
    Gap,
    GroupEntry,
    Outcome,
    RunEntry,
    SegmentEntry,
    TopicEntry,
)
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, LogkeepError

FORMAT = 1

T = TypeVar("T")

_RANGE_COLUMNS = ["topicId", "partition", "start", "end"]
_GAP_COLUMNS = [*_RANGE_COLUMNS, "reason"]
_GROUP_COLUMNS = ["groupId", "topic", "topicId", "partition", "offset", "leaderEpoch", "metadata"]
_RUN_COLUMNS = [
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
_FLAGS = ("transactional", "control", "gaps", "appendTime", "legacy")

_HEAD_KEYS = {"format", "archiveId", "commit", "kind", "runId", "epoch", "time", "token", "sha256"}
_KIND_KEYS = {
    CommitKind.BEGIN: {"runKind", "takenOver"},
    CommitKind.DATA: {"topics", "coverage", "segments", "gaps"},
    CommitKind.END: {"outcome", "message", "groups"},
}
_SHA_KEY = b',"sha256":"'
_SHA_TAIL = len(_SHA_KEY) + 64 + 2  # the key, 64 hex digits, `"}`


@dataclass(frozen=True, slots=True)
class ArchiveInfo:
    """What `archive.json` says. `created_at` is ISO 8601 in UTC."""

    archive_id: str
    cluster_id: str
    created_at: str
    created_by: str
    format: int = FORMAT


def dump_info(info: ArchiveInfo) -> bytes:
    """`archive.json`, in lines for people."""
    document = {
        "format": info.format,
        "archiveId": info.archive_id,
        "clusterId": info.cluster_id,
        "createdAt": info.created_at,
        "createdBy": info.created_by,
    }
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def load_info(data: bytes, name: str) -> ArchiveInfo:
    """`name` is the object's, for messages."""
    document = _parse(data, name)
    _know(document, {"format", "archiveId", "clusterId", "createdAt", "createdBy"}, name)
    try:
        fields = [document[key] for key in ("archiveId", "clusterId", "createdAt", "createdBy")]
    except KeyError as error:
        raise _damaged(name, f"key {error} is missing") from error
    if not all(isinstance(value, str) and value for value in fields):
        raise _damaged(name, "a value is not a string")
    return ArchiveInfo(*fields)


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
        document["topics"] = [_topic_out(topic) for topic in commit.topics]
        document["coverage"] = _table(_RANGE_COLUMNS, map(_coverage_row, commit.coverage))
        stored = any(entry.stored_bytes for entry in commit.segments)
        document["segments"] = _table(
            ["topicId", "partition", *_segment_columns(stored)],
            ([entry.topic_id, entry.partition, *_segment_row(entry, stored)] for entry in commit.segments),
        )
        document["gaps"] = _table(_GAP_COLUMNS, map(_gap_row, commit.gaps))
    else:
        document["outcome"] = commit.outcome.value
        document["message"] = commit.message
        document["groups"] = _table(_GROUP_COLUMNS, map(_group_row, commit.groups))
    body = _dumps(document)
    return body[:-1] + _SHA_KEY + hashlib.sha256(body).hexdigest().encode() + b'"}'


def load_commit(data: bytes, name: str) -> Commit:
    """The commit in `data`; `name` is the object's, for messages."""
    # The format first: what the hash covers is a matter of the format.
    document = _parse(data, name)
    if data[-_SHA_TAIL : len(_SHA_KEY) - _SHA_TAIL] != _SHA_KEY:
        raise _damaged(name, "its own SHA-256 is missing")
    if hashlib.sha256(data[:-_SHA_TAIL] + b"}").hexdigest().encode() != data[-66:-2]:
        raise _damaged(name, "its SHA-256 does not fit its content")
    try:
        kind = CommitKind(document["kind"])
    except (KeyError, ValueError) as error:
        raise ArchiveMismatch(
            f"{name}: a commit of kind {document.get('kind')!r}, which this version does not know.", hint=_NEWER
        ) from error
    _know(document, _HEAD_KEYS | _KIND_KEYS[kind], name)

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
            topics=tuple(map(_topic_in, document.get("topics", ()))),
            coverage=tuple(Coverage(*row) for row in _rows(document, "coverage", _RANGE_COLUMNS, name)),
            segments=tuple(
                _segment_in(*row)
                for row in _segment_rows(document, name)
            ),
            gaps=tuple(Gap(*row) for row in _rows(document, "gaps", _GAP_COLUMNS, name)),
            groups=tuple(GroupEntry(*row) for row in _rows(document, "groups", _GROUP_COLUMNS, name)),
            outcome=Outcome(document.get("outcome", Outcome.RUNNING)),
            message=document.get("message", ""),
        )

    return _building(build, name)


def checkpoint_document(state: ArchiveState) -> dict[str, Any]:
    """The body of a checkpoint: two states are the same if theirs are."""
    stored = any(entry.stored_bytes for entries in state.segments.values() for entry in entries)
    return {
        "epoch": state.epoch,
        "topics": [_topic_out(topic) for topic in state.topics.values()],
        "segmentColumns": _segment_columns(stored),
        "partitions": [
            [
                *key,
                [list(item) for item in state.coverage.get(key, ())],
                [[gap.start, gap.end, gap.reason] for gap in state.gaps.get(key, ())],
                [_segment_row(entry, stored) for entry in state.segments.get(key, ())],
            ]
            for key in state.partitions()
        ],
        "groups": _table(_GROUP_COLUMNS, map(_group_row, state.groups)),
        "runs": _table(_RUN_COLUMNS, map(_run_row, state.runs.values())),
    }


def dump_checkpoint(state: ArchiveState, archive_id: str) -> bytes:
    """The state as of `state.commit`."""
    packed = bytes(cramjam.zstd.compress(_dumps(checkpoint_document(state)), level=3))
    head = {
        "format": FORMAT,
        "archiveId": archive_id,
        "commit": state.commit,
        "epoch": state.epoch,
        "sha256": hashlib.sha256(packed).hexdigest(),
    }
    return _dumps(head) + b"\n" + packed


def load_checkpoint(data: bytes, name: str) -> tuple[str, ArchiveState]:
    """(archive id, state) of a checkpoint; `name` is the object's, for messages."""
    line, _, packed = data.partition(b"\n")
    head = _parse(line, name)
    _know(head, {"format", "archiveId", "commit", "epoch", "sha256"}, name)
    if hashlib.sha256(packed).hexdigest() != head.get("sha256"):
        raise _damaged(name, "its SHA-256 does not fit its content")
    body = json.loads(bytes(cramjam.zstd.decompress(packed)))
    _know(body, {"epoch", "topics", "segmentColumns", "partitions", "groups", "runs"}, name)
    if body.get("segmentColumns") not in (_segment_columns(False), _segment_columns(True)):
        raise ArchiveMismatch(f"{name}: unknown columns {body.get('segmentColumns')}.", hint=_NEWER)

    def build() -> tuple[str, ArchiveState]:
        state = ArchiveState()
        state.commit, state.epoch = head["commit"], body["epoch"]
        for topic in map(_topic_in, body["topics"]):
            state.topics[topic.topic_id] = topic
        for topic_id, partition, coverage, gaps, segments in body["partitions"]:
            key = (topic_id, partition)
            if coverage:
                state.coverage[key] = [(start, end) for start, end in coverage]
            if gaps:
                state.gaps[key] = [Gap(topic_id, partition, *row) for row in gaps]
            if segments:
                state.segments[key] = [_segment_in(topic_id, partition, *row) for row in segments]
        state.groups = tuple(GroupEntry(*row) for row in _rows(body, "groups", _GROUP_COLUMNS, name))
        for row in _rows(body, "runs", _RUN_COLUMNS, name):
            run = _run_in(*row)
            state.runs[run.run_id] = run
        return head["archiveId"], state

    return _building(build, name)


_NEWER = "It was written by a newer Logkeep: use that version or a later one."


def _dumps(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _parse(data: bytes, name: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as error:
        raise _damaged(name, f"it is not whole JSON ({len(data)} bytes)") from error
    if not isinstance(document, dict):
        raise _damaged(name, "it is not a JSON object")
    found = document.get("format")
    if found != FORMAT:
        raise ArchiveMismatch(
            f"{name}: archive format {found!r}, this version of Logkeep reads and writes format {FORMAT}.", hint=_NEWER
        )
    return document


def _know(document: dict[str, Any], known: set[str], name: str) -> None:
    unknown = sorted(set(document) - known)
    if unknown:
        raise ArchiveMismatch(f"{name}: unknown keys {', '.join(unknown)}.", hint=_NEWER)


def _rows(document: dict[str, Any], key: str, columns: Sequence[str], name: str) -> list[list[Any]]:
    if key not in document:
        return []
    table = document[key]
    if table["columns"] != columns:
        raise ArchiveMismatch(f"{name}: unknown columns {table['columns']} of {key}.", hint=_NEWER)
    rows: list[list[Any]] = table["rows"]
    return rows


def _building(build: Callable[[], T], name: str) -> T:
    try:
        return build()
    except LogkeepError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(name, f"{type(error).__name__}: {error}") from error


def _damaged(name: str, what: str) -> ArchiveDamaged:
    return ArchiveDamaged(f"{name}: {what}.", hint="Restore this object from a copy of the archive.")


def _table(columns: Sequence[str], rows: Iterable[list[Any]]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": list(rows)}


def _topic_out(topic: TopicEntry) -> dict[str, Any]:
    return {
        "name": topic.name,
        "topicId": topic.topic_id,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
        "configs": dict(sorted(topic.configs.items())),
    }


def _topic_in(item: dict[str, Any]) -> TopicEntry:
    if len(item) != 5:
        raise ValueError(f"topic with keys {', '.join(item)}")
    return TopicEntry(
        item["name"], item["topicId"], item["partitions"], item["replicationFactor"], dict(item["configs"])
    )


def _coverage_row(item: Coverage) -> list[Any]:
    return [item.topic_id, item.partition, item.start, item.end]


def _gap_row(item: Gap) -> list[Any]:
    return [item.topic_id, item.partition, item.start, item.end, item.reason]


def _group_row(item: GroupEntry) -> list[Any]:
    return [item.group_id, item.topic, item.topic_id, item.partition, item.offset, item.leader_epoch, item.metadata]


def _run_row(run: RunEntry) -> list[Any]:
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


def _run_in(
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
    return RunEntry(
        run_id, epoch, kind, begin_time, end_time, Outcome(outcome), message, records, size, segments, attempts
    )


def _segment_columns(stored: bool) -> list[str]:
    return [*_SEGMENT_COLUMNS, _STORED] if stored else _SEGMENT_COLUMNS


def _segment_rows(document: dict[str, Any], name: str) -> list[list[Any]]:
    stored = _STORED in document.get("segments", {}).get("columns", ())
    return _rows(document, "segments", ["topicId", "partition", *_segment_columns(stored)], name)


def _segment_row(entry: SegmentEntry, stored: bool) -> list[Any]:
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
    if stored:
        row.append(entry.stored_bytes)
    return row


def _segment_in(
    topic_id: str,
    partition: int,
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
) -> SegmentEntry:
    if flags and not set(flags) <= set(_FLAGS):
        raise ValueError(f"segment with flags {flags}")
    return SegmentEntry(
        topic_id,
        partition,
        epoch,
        attempt,
        base_offset,
        next_offset,
        records,
        batches,
        size,
        min_base_timestamp,
        max_timestamp,
        sha256,
        codecs,
        "transactional" in flags,
        "control" in flags,
        "gaps" in flags,
        "appendTime" in flags,
        "legacy" in flags,
        max_batch_bytes,
        index_bytes,
        timeindex_bytes,
        txnindex_bytes,
        txnindex_sha256,
        stored_bytes,
    )
