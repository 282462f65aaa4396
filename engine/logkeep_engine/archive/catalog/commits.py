"""Commits as bytes. Format 1. No I/O.

A commit is one line of JSON for people and programs. Its last key `sha256` is the hash of the document without that
key, so that an altered commit is never mistaken for another. `previous` is the `sha256` of the commit before, so that
the hash of a commit is that of all before it. `signer` names the key that has signed it, "" if none has: then
`signature` stands behind the hash, which does not cover it.

    {"format":1,"archiveId":…,"commit":42,"kind":"Data","runId":…,"epoch":3,"time":…,"token":…,"previous":…,"signer":…,
     "topics":[{"name":…,"topicId":…,"partitions":…,"replicationFactor":…,"configs":{…},"compactedUntil":…}],
     "coverage":{"columns":["topicId","partition","start","end"],"rows":[[…]]},
     "segments":{"columns":[…],"rows":[[…]]},"gaps":{…},"removed":{…},"purged":true,
     "purgedCommits":[…],"purgedUpTo":…,"epochs":{…},"leaders":{…},"branches":{…},"removedFromBranches":{…},
     "snapshots":{…},"snapshotParts":{…},"removedSnapshots":{…},"replaced":{…},"holds":{…},
     "generations":{…},"passive":{"coverage":{…},"segments":{…},"epochs":{…}},"groups":{…},
     "clusterState":{"sha256":…,"acls":…,"quotas":…,"users":…},"erasure":{"sha256":…,"records":…,"segments":…},
     "care":true,"sha256":…,"signature":…}
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from logkeep_engine.archive.catalog import tables
from logkeep_engine.archive.catalog.documents import (
    FORMAT,
    NEWER,
    building,
    damaged,
    dumps,
    know,
)
from logkeep_engine.archive.catalog.facts import (
    NO_COMMIT,
    ClusterStateEntry,
    Commit,
    CommitKind,
    ErasureEntry,
    PassiveFacts,
    RunOutcome,
)
from logkeep_engine.archive.catalog.kinds import (
    COUNT,
    COUNT_IF_KNOWN,
    EPOCH,
    FLAG,
    LIST,
    TEXT,
    TIME,
    ValueKind,
    check_hash,
    check_values,
)
from logkeep_engine.archive.catalog.signing import NO_KEYS, UNSIGNED, SigningKeys, of_commit
from logkeep_engine.archive.names import check_run_id
from logkeep_engine.errors import ArchiveMismatch, ObjectTooLarge
from logkeep_engine.storage import WHOLE_BYTES

_HEAD = {  # the keys that every commit has, and their attributes
    "archiveId": "archive_id",
    "commit": "number",
    "kind": "kind",
    "runId": "run_id",
    "epoch": "epoch",
    "time": "time",
    "token": "token",
    "previous": "previous",
    "signer": "signer",
}
_HEAD_KEYS = {"format", *_HEAD, "sha256", "signature"}
_KIND_KEYS = {
    CommitKind.BEGIN: {"runKind", "takenOver"},
    CommitKind.DATA: {
        "topics",
        "coverage",
        "segments",
        "gaps",
        "removed",
        "purged",
        "purgedCommits",
        "purgedUpTo",
        "holds",
        "epochs",
        "leaders",
        "branches",
        "removedFromBranches",
        "generations",
        "passive",
        "snapshots",
        "snapshotParts",
        "removedSnapshots",
        "replaced",
    },
    CommitKind.END: {"outcome", "message", "groups", "partial", "clusterState", "erasure", "care"},
}
_KINDS = {
    **dict.fromkeys(("archiveId", "runId", "token", "runKind", "message", "signer"), TEXT),
    **dict.fromkeys(("purged", "partial", "care"), FLAG),
    **dict.fromkeys(("takenOver", "purgedCommits", "topics"), LIST),
    "commit": COUNT,
    "epoch": EPOCH,
    "time": TIME,
    "purgedUpTo": COUNT,
}
_CLUSTER_STATE = ("sha256", "acls", "quotas", "users")
_ERASURE = ("sha256", "records", "segments")
_END = re.compile(rb',"sha256":"([0-9a-f]{64})"(?:,"signature":"([A-Za-z0-9+/]{86}==)")?\}\Z')
_END_BYTES = 200  # more than it has


def dump_commit(commit: Commit, keys: SigningKeys = NO_KEYS) -> bytes:
    """The commit as one line of JSON. It ends with its own hash, and behind it the signature of its `signer`, whose
    `keys` these are."""
    document: dict[str, Any] = {"format": FORMAT} | {key: getattr(commit, path) for key, path in _HEAD.items()}
    if commit.kind is CommitKind.BEGIN:
        document["runKind"] = commit.run_kind
        document["takenOver"] = list(commit.taken_over)
    elif commit.kind is CommitKind.DATA:
        document["topics"] = [tables.topic_out(topic) for topic in commit.topics]
        document["coverage"] = tables.COVERAGE.out(commit.coverage)
        document["segments"] = tables.segments_out(commit.segments)
        document["gaps"] = tables.GAPS.out(commit.gaps)
        document |= _extensions(commit)
    else:
        document["outcome"] = commit.outcome
        document["message"] = commit.message
        document["groups"] = tables.GROUPS.out(commit.groups)
        if commit.partial:  # versions that do not know it would restore an older state, and refuse
            document["partial"] = True
        if commit.care:  # versions that do not know it would take it for a backup
            document["care"] = True
        if commit.cluster_state is not None:
            document["clusterState"] = {key: getattr(commit.cluster_state, key) for key in _CLUSTER_STATE}
        if commit.erasure is not None:  # versions that do not know it would take the groups for gone
            document["erasure"] = {key: getattr(commit.erasure, key) for key in _ERASURE}
    body = dumps(document)
    sha256 = hashlib.sha256(body).hexdigest()
    signature = keys.sign(of_commit(commit.number, sha256))
    signed = b',"signature":"%b"' % signature.encode() if signature else b""
    return b'%b,"sha256":"%b"%b}' % (body[:-1], sha256.encode(), signed)


def check_size(data: bytes, name: str) -> None:
    """Raises ObjectTooLarge for a commit that no reader would read."""
    if len(data) > WHOLE_BYTES:
        raise ObjectTooLarge(
            f"{name} would have {len(data)} bytes; a commit has at most {WHOLE_BYTES}. It was not written.",
            hint="Divide the topics and consumer groups among several KafkaBackups, each with an archive of its own.",
        )


def _extensions(commit: Commit) -> dict[str, Any]:
    """The keys that a commit has only where there is something to say: versions that do not know one of them would
    misread the archive, and refuse it."""
    newest = [item for item in commit.removed if not item.branch_id]
    branches = [item for item in commit.removed if item.branch_id]
    gone = commit.removed_snapshots
    found = {
        "removed": tables.REMOVED.out(newest) if newest else None,
        "removedFromBranches": tables.REMOVED_FROM_BRANCHES.out(branches) if branches else None,
        "purged": commit.purged or None,
        "purgedCommits": list(commit.purged_commits) or None,
        "purgedUpTo": None if commit.purged_up_to == NO_COMMIT else commit.purged_up_to,
        "holds": None if commit.holds is None else tables.HOLDS.out(commit.holds),
        "epochs": tables.EPOCHS.out(commit.epochs) if commit.epochs else None,
        "leaders": tables.LEADERS.out(commit.leaders) if commit.leaders else None,
        "branches": tables.BRANCHES.out(commit.branchings) if commit.branchings else None,
        "generations": tables.GENERATIONS.out(commit.generations) if commit.generations else None,
        "passive": _passive_out(commit.passive) if commit.passive else None,
        **(tables.snapshots_out(commit.snapshots) if commit.snapshots else {}),
        "removedSnapshots": tables.REMOVED_SNAPSHOTS.out(gone) if gone else None,
        "replaced": tables.REPLACED.out(commit.replaced) if commit.replaced else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _passive_out(facts: PassiveFacts) -> dict[str, Any]:
    return {
        "coverage": tables.COVERAGE.out(facts.coverage),
        "segments": tables.segments_out(facts.segments),
        "epochs": tables.EPOCHS.out(facts.epochs),
    }


def _passive_in(document: dict[str, Any], name: str) -> PassiveFacts:
    found = document.get("passive", {})
    know(found, {"coverage", "segments", "epochs"}, name)
    return PassiveFacts(
        tuple(tables.COVERAGE.read(found, "coverage", name)),
        tables.segments_in(found, name),
        tuple(tables.EPOCHS.read(found, "epochs", name)),
    )


def sha256_of(data: bytes) -> str:
    """The hash with which a commit ends that was just written."""
    end = _END.search(data, max(0, len(data) - _END_BYTES))
    assert end is not None
    return end[1].decode()


def load_commit(data: bytes, name: str) -> Commit:
    """Read the commit in `data`. Messages name the object as `name`."""
    # The format is checked first: it decides what the hash covers.
    document = tables.read_document(data, name)
    end = _END.search(data, max(0, len(data) - _END_BYTES))
    if end is None:
        raise damaged(name, "its own SHA-256 is missing")
    hashed = hashlib.sha256(memoryview(data)[: end.start()])
    hashed.update(b"}")
    if hashed.hexdigest().encode() != end[1]:
        raise damaged(name, "its SHA-256 does not fit its content")
    try:
        kind = CommitKind(document["kind"])
    except (KeyError, ValueError) as error:
        raise ArchiveMismatch(
            f"{name}: a commit of kind {document.get('kind')!r}, which this version does not know.", hint=NEWER
        ) from error
    know(document, _HEAD_KEYS | _KIND_KEYS[kind], name)

    def build() -> Commit:
        _check(document)
        return Commit(
            number=document["commit"],
            archive_id=document["archiveId"],
            token=document["token"],
            kind=kind,
            run_id=document["runId"],
            epoch=document["epoch"],
            time=document["time"],
            previous=document["previous"],
            run_kind=document.get("runKind", ""),
            taken_over=_all(TEXT, document, "takenOver"),
            topics=tuple(map(tables.topic_in, document.get("topics", ()))),
            coverage=tuple(tables.COVERAGE.read(document, "coverage", name)),
            segments=tables.segments_in(document, name),
            gaps=tuple(tables.GAPS.read(document, "gaps", name)),
            groups=tuple(tables.GROUPS.read(document, "groups", name)),
            outcome=RunOutcome(document.get("outcome", RunOutcome.RUNNING)),
            message=document.get("message", ""),
            removed=(
                *tables.REMOVED.read(document, "removed", name),
                *tables.REMOVED_FROM_BRANCHES.read(document, "removedFromBranches", name),
            ),
            purged=document.get("purged", False),
            purged_commits=_all(COUNT, document, "purgedCommits"),
            purged_up_to=document.get("purgedUpTo", NO_COMMIT),
            holds=tuple(tables.HOLDS.read(document, "holds", name)) if "holds" in document else None,
            epochs=tuple(tables.EPOCHS.read(document, "epochs", name)),
            leaders=tuple(tables.LEADERS.read(document, "leaders", name)),
            branchings=tuple(tables.BRANCHES.read(document, "branches", name)),
            partial=document.get("partial", False),
            care=document.get("care", False),
            cluster_state=_cluster_state(document, name),
            generations=tuple(tables.GENERATIONS.read(document, "generations", name)),
            passive=_passive_in(document, name),
            snapshots=tables.snapshots_in(document, name),
            removed_snapshots=tuple(tables.REMOVED_SNAPSHOTS.read(document, "removedSnapshots", name)),
            replaced=tuple(tables.REPLACED.read(document, "replaced", name)),
            erasure=_erasure(document, name),
            signer=document["signer"],
            sha256=document["sha256"],
            signature=document.get("signature", UNSIGNED),
        )

    return building(build, name)


def _check(document: dict[str, Any]) -> None:
    check_values(document, _KINDS)
    check_hash(document["previous"], "previous")
    if bool(document["signer"]) != ("signature" in document):
        raise ValueError(
            f"signer {ascii(document['signer'])[:60]}, and {'no' if document['signer'] else 'a'} signature"
        )
    check_run_id(document["runId"])


def _all(kind: ValueKind, document: dict[str, Any], key: str) -> tuple[Any, ...]:
    found = document.get(key, ())
    kind.check(found, key)
    return tuple(found)


def _cluster_state(document: dict[str, Any], name: str) -> ClusterStateEntry | None:
    found = document.get("clusterState")
    if found is None:
        return None
    know(found, set(_CLUSTER_STATE), name)
    check_values(found, {"sha256": TEXT, **dict.fromkeys(_CLUSTER_STATE[1:], COUNT_IF_KNOWN)})
    return ClusterStateEntry(*(found[key] for key in _CLUSTER_STATE))


def _erasure(document: dict[str, Any], name: str) -> ErasureEntry | None:
    found = document.get("erasure")
    if found is None:
        return None
    know(found, set(_ERASURE), name)
    check_values(found, {"sha256": TEXT, **dict.fromkeys(_ERASURE[1:], COUNT)})
    return ErasureEntry(*(found[key] for key in _ERASURE))
