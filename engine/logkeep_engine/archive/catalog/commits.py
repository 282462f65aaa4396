"""Commits as bytes. Format 1. No I/O.

A commit is one line of JSON for people and programs. Its last key `sha256` is the hash of the document without that
key, so that an altered commit is never mistaken for another:

    {"format":1,"archiveId":…,"commit":42,"kind":"Data","runId":…,"epoch":3,"time":…,"token":…,
     "topics":[{"name":…,"topicId":…,"partitions":…,"replicationFactor":…,"configs":{…}}],
     "coverage":{"columns":["topicId","partition","start","end"],"rows":[[…]]},
     "segments":{"columns":[…],"rows":[[…]]},"gaps":{…},"removed":{…},"purged":true,"epochs":{…},
     "leaders":{…},"branches":{…},"removedFromBranches":{…},"groups":{…},"sha256":…}
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from logkeep_engine.archive.catalog.documents import (
    FORMAT,
    NEWER,
    building,
    damaged,
    dumps,
    know,
    parse,
    rows_of,
    table_of,
)
from logkeep_engine.archive.catalog.facts import (
    Branching,
    Commit,
    CommitKind,
    Coverage,
    Gap,
    GroupEntry,
    Outcome,
    RemovedSegment,
)
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.tables import (
    GROUP_COLUMNS,
    group_row,
    segments_in,
    segments_out,
    topic_in,
    topic_out,
)
from logkeep_engine.errors import ArchiveMismatch

_RANGE_COLUMNS = ["topicId", "partition", "start", "end"]
_GAP_COLUMNS = [*_RANGE_COLUMNS, "reason"]
_REMOVED_COLUMNS = ["topicId", "partition", "baseOffset"]
_BRANCH_REMOVED_COLUMNS = ["topicId", "partition", "branchId", "baseOffset"]
_BRANCH_COLUMNS = ["topicId", "partition", "branchId", "offset"]
_LEADER_COLUMNS = ["topicId", "partition", "leaderEpoch"]
_EPOCH_COLUMNS = [*_LEADER_COLUMNS, "start"]
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
        document["segments"] = segments_out(commit.segments)
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
            segments=segments_in(document, name),
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
