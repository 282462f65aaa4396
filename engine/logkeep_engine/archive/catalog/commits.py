"""Commits as bytes. Format 1. No I/O.

A commit is one line of JSON for people and programs. Its last key `sha256` is the hash of the document without that
key, so that an altered commit is never mistaken for another. `previous` is the `sha256` of the commit before, so that
the hash of a commit is that of all before it. `signer` names the key that has signed it, "" if none has. A signed
commit has its `signature` after the hash, which does not cover it.

    {"format":1,"archiveId":…,"commit":42,"kind":"Data","runId":…,"epoch":3,"time":…,"token":…,"previous":…,"signer":…,
     "purged":[],"holds":null,"topics":{"columns":["name","topicId",…],"rows":[[…]]},"segments":{…},…,"sha256":…,"signature":…}

A commit has all keys of its kind, and a table all its columns. Only a table without rows is not written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from operator import attrgetter
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
from logkeep_engine.archive.catalog.packed import SegmentBatch
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
_KEYS = {  # besides these, by kind
    CommitKind.BEGIN: {"runKind": "run_kind", "takenOver": "taken_over"},
    CommitKind.DATA: {"purged": "purged", "holds": "holds"},
    CommitKind.END: {
        "outcome": "outcome",
        "message": "message",
        "partial": "partial",
        "maintenance": "maintenance",
        "clusterState": "cluster_state",
        "erasure": "erasure",
    },
}
_TABLES: Mapping[CommitKind, Mapping[str, tuple[tables.Table[Any], str]]] = {
    CommitKind.BEGIN: {},
    CommitKind.DATA: {
        "topics": (tables.TOPICS, "topics"),
        "coverage": (tables.COVERAGE, "coverage"),
        "segments": (tables.SEGMENTS, "segments"),
        "gaps": (tables.GAPS, "gaps"),
        "removed": (tables.REMOVED, "removed"),
        "epochs": (tables.EPOCHS, "epochs"),
        "leaders": (tables.LEADERS, "leaders"),
        "branches": (tables.BRANCHES, "branchings"),
        "generations": (tables.GENERATIONS, "generations"),
        "passiveCoverage": (tables.COVERAGE, "passive.coverage"),
        "passiveSegments": (tables.SEGMENTS, "passive.segments"),
        "passiveEpochs": (tables.EPOCHS, "passive.epochs"),
        "snapshots": (tables.SNAPSHOTS, "snapshots"),
        "snapshotParts": (tables.SEGMENTS, "snapshot_parts"),
        "removedSnapshots": (tables.REMOVED_SNAPSHOTS, "removed_snapshots"),
        "replaced": (tables.REPLACED, "replaced"),
        "purgedPacks": (tables.PURGED_PACKS, "purged_packs"),
    },
    CommitKind.END: {"groups": (tables.GROUPS, "groups")},
}
_KINDS = {
    **dict.fromkeys(("archiveId", "runId", "token", "runKind", "message", "signer"), TEXT),
    **dict.fromkeys(("partial", "maintenance"), FLAG),
    **dict.fromkeys(("takenOver", "purged"), LIST),
    "commit": COUNT,
    "epoch": EPOCH,
    "time": TIME,
}
_OF_SNAPSHOTS = ("snapshots", "snapshotParts")
_CLUSTER_STATE = ("sha256", "acls", "quotas", "users")
_ERASURE = ("sha256", "records", "segments")
_END = re.compile(rb',"sha256":"([0-9a-f]{64})"(?:,"signature":"([A-Za-z0-9+/]{86}==)")?\}\Z')
_END_BYTES = 200  # more than it has


def dump_commit(commit: Commit, signing: SigningKeys = NO_KEYS) -> bytes:
    """Return the commit as one line of JSON. It ends with its own hash, and after it the signature of its `signer`,
    whose keys are `signing`."""
    own = {"holds": None if commit.holds is None else tables.HOLDS.out(commit.holds)}
    own |= {
        "clusterState": _part_out(commit.cluster_state, _CLUSTER_STATE),
        "erasure": _part_out(commit.erasure, _ERASURE),
    }
    keys = {**_HEAD, **_KEYS[commit.kind]}
    found = {key: (table, attrgetter(path)(commit)) for key, (table, path) in _TABLES[commit.kind].items()}
    body = dumps(
        {
            "format": FORMAT,
            **{key: own[key] if key in own else getattr(commit, path) for key, path in keys.items()},
            **tables.tables_out(found),
        }
    )
    sha256 = hashlib.sha256(body).hexdigest()
    signature = signing.sign(of_commit(commit.number, sha256))
    signed = b',"signature":"%b"' % signature.encode() if signature else b""
    return b'%b,"sha256":"%b"%b}' % (body[:-1], sha256.encode(), signed)


def _part_out(part: object | None, keys: Iterable[str]) -> dict[str, Any] | None:
    return None if part is None else {key: getattr(part, key) for key in keys}


def check_size(data: bytes, name: str) -> None:
    """Raises ObjectTooLarge for a commit that no reader would read."""
    if len(data) > WHOLE_BYTES:
        raise ObjectTooLarge(
            f"{name} would have {len(data)} bytes; a commit has at most {WHOLE_BYTES}. It was not written.",
            hint="Divide the topics and consumer groups among several KafkaBackups, each with its own archive.",
        )


def sha256_of(data: bytes) -> str:
    """Return the hash with which a commit ends that was just written."""
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
        raise damaged(name, "its SHA-256 does not match its content")
    try:
        kind = CommitKind(document["kind"])
    except (KeyError, ValueError) as error:
        raise ArchiveMismatch(
            f"{name}: a commit of kind {document.get('kind')!r}, which this version does not know.", hint=NEWER
        ) from error
    know(document, {*_HEAD_KEYS, *_KEYS[kind], *_TABLES[kind]}, name)
    return building(lambda: _commit_of(document, kind, name), name)


def _commit_of(document: dict[str, Any], kind: CommitKind, name: str) -> Commit:
    check_values(document, _KINDS)
    check_hash(document["previous"], "previous")
    if bool(document["signer"]) != ("signature" in document):
        raise ValueError(
            f"signer {ascii(document['signer'])[:60]}, and {'no' if document['signer'] else 'a'} signature"
        )
    check_run_id(document["runId"])
    values = {path: document[key] for key, path in (_HEAD | _KEYS[kind]).items()}
    values |= _parts(kind, values, name)
    facts: dict[str, Any] = {}
    for key, (table, path) in _TABLES[kind].items():
        if key not in _OF_SNAPSHOTS:
            found = table.read(document, key, name)
            facts[path] = found if isinstance(found, SegmentBatch) else tuple(found)
    if kind is CommitKind.DATA:
        facts["snapshots"] = tables.snapshots_in(document, name)
        facts["passive"] = PassiveFacts(*(facts.pop(f"passive.{part}") for part in ("coverage", "segments", "epochs")))
    end = {"sha256": document["sha256"], "signature": document.get("signature", UNSIGNED)}
    return Commit(**{**values, **facts, **end, "kind": kind})


def _parts(kind: CommitKind, values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the values of a commit that are more than numbers and texts in its document."""
    if kind is CommitKind.BEGIN:
        return {"taken_over": _all(TEXT, values["taken_over"], "takenOver")}
    if kind is CommitKind.DATA:
        holds = None if values["holds"] is None else tuple(tables.HOLDS.read(values, "holds", name))
        return {"purged": _all(COUNT, values["purged"], "purged"), "holds": holds}
    return {
        "outcome": RunOutcome(values["outcome"]),
        "cluster_state": _cluster_state(values["cluster_state"], name),
        "erasure": _erasure(values["erasure"], name),
    }


def _all(kind: ValueKind, found: list[Any], key: str) -> tuple[Any, ...]:
    kind.check(found, key)
    return tuple(found)


def _cluster_state(found: Any, name: str) -> ClusterStateEntry | None:
    if found is None:
        return None
    know(found, set(_CLUSTER_STATE), name)
    check_values(found, {"sha256": TEXT, **dict.fromkeys(_CLUSTER_STATE[1:], COUNT_IF_KNOWN)})
    return ClusterStateEntry(*(found[key] for key in _CLUSTER_STATE))


def _erasure(found: Any, name: str) -> ErasureEntry | None:
    if found is None:
        return None
    know(found, set(_ERASURE), name)
    check_values(found, {"sha256": TEXT, **dict.fromkeys(_ERASURE[1:], COUNT)})
    return ErasureEntry(*(found[key] for key in _ERASURE))
