"""The state of a cluster as a run has archived it: its ACLs, client quotas and names of SCRAM users. Format 1.

It is one object of the run, `runs/<run id>/cluster-state.json`, written while the run is planned. The commit that ends
the run has its SHA-256; without that it is not in the archive.

    {"format":1,"runId":…,"time":…,"authorizer":true,
     "acls":{"columns":["resource","name","pattern","principal","host","operation","permission"],"rows":[[…]]},
     "quotas":{"columns":["entity","key","value"],"rows":[[[["user","alice"]],"producer_byte_rate",1000000.0]]},
     "scramUsers":{"columns":["name","mechanism","iterations"],"rows":[[…]]},
     "topicDefaults":{"cleanup.policy":"delete","retention.bytes":"-1","retention.ms":"604800000"},
     "notArchived":{"quotas":"CLUSTER_AUTHORIZATION_FAILED: …"}}

A kind that the cluster did not give is absent, and its reason is under `notArchived`. `topicDefaults` is what topics
have by the configuration of the brokers, of the keys that say which records Kafka deletes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.documents import FORMAT, building, damaged, dumps, know, parse, rows_of
from logkeep_engine.archive.catalog.facts import ClusterStateEntry, Commit
from logkeep_engine.archive.names import run_file
from logkeep_engine.errors import ArchiveDamaged, ObjectMissing
from logkeep_engine.log.cleanup import POLICY, RETENTION_BYTES, RETENTION_KEYS, RETENTION_MS, limits_of

CLUSTER_STATE = "cluster-state.json"
KINDS = {
    "acls": "ACLs",
    "quotas": "client quotas",
    "scramUsers": "names of SCRAM users",
    "topicDefaults": "the brokers' defaults of retention",
}
"""The kinds by their keys in the object, in words for people."""

_MOST_BYTES = 2**15 - 1  # of a string in Kafka's protocol
_ACLS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]
_QUOTAS = ["entity", "key", "value"]
_USERS = ["name", "mechanism", "iterations"]
_ANY = {RETENTION_MS: "-1", RETENTION_BYTES: "-1", POLICY: "delete"}
_KEYS = {"format", "runId", "time", "authorizer", "acls", "quotas", "scramUsers", "topicDefaults", "notArchived"}

AclRow = tuple[str, str, str, str, str, str, str]
"""An ACL in the words of Kafka's own tools: resource, name, pattern, principal, host, operation, permission."""
QuotaRow = tuple[tuple[tuple[str, str | None], ...], str, float]
"""(types and names of the entity, key, value); the name None is the default."""
UserRow = tuple[str, str, int]
"""(name, mechanism, iterations)"""


@dataclass(frozen=True)
class ClusterState:
    """The users of a cluster at `time` (ms since the epoch). A kind is None if the cluster did not tell it: `reasons`
    has the reason by its key. Without an `authorizer` a cluster has no ACLs. `defaults` are values of RETENTION_KEYS.
    """

    run_id: str
    time: int
    acls: tuple[AclRow, ...] | None = None
    quotas: tuple[QuotaRow, ...] | None = None
    users: tuple[UserRow, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    authorizer: bool = True
    defaults: Mapping[str, str] | None = None

    def entry(self, data: bytes) -> ClusterStateEntry:
        """The fact of the commit that ends the run. `data` is the object."""
        counts = (None if kind is None else len(kind) for kind in (self.acls, self.quotas, self.users))
        return ClusterStateEntry(hashlib.sha256(data).hexdigest(), *counts)

    def to_json(self) -> bytes:
        """The object."""
        document: dict[str, Any] = {"format": FORMAT, "runId": self.run_id, "time": self.time}
        document["authorizer"] = self.authorizer
        tables = (("acls", _ACLS, self.acls), ("quotas", _QUOTAS, self.quotas), ("scramUsers", _USERS, self.users))
        for key, columns, rows in tables:
            if rows is not None:
                document[key] = {"columns": columns, "rows": rows}
        if self.defaults is not None:
            document["topicDefaults"] = dict(sorted(self.defaults.items()))
        return dumps(document | {"notArchived": dict(self.reasons)})

    @classmethod
    def from_json(cls, data: bytes, name: str) -> ClusterState:
        """The state in the object `name`. Raises ArchiveDamaged, and ArchiveMismatch for another format."""
        document = parse(data, name)
        know(document, _KEYS, name)

        def rows(key: str, columns: list[str]) -> list[list[Any]] | None:
            return rows_of(document, key, columns, name) if key in document else None

        def build() -> ClusterState:
            acls, quotas, users = rows("acls", _ACLS), rows("quotas", _QUOTAS), rows("scramUsers", _USERS)
            return cls(
                run_id=document["runId"],
                time=document["time"],
                acls=None if acls is None else tuple(_acl(*row) for row in acls),
                quotas=None if quotas is None else tuple(_quota(*row) for row in quotas),
                users=None if users is None else tuple((str(row[0]), str(row[1]), int(row[2])) for row in users),
                reasons=document["notArchived"],
                authorizer=document["authorizer"],
                defaults=_defaults(document["topicDefaults"]) if "topicDefaults" in document else None,
            )

        return building(build, name)


def _check_words(words: Sequence[Any]) -> None:
    """Raises ValueError for what no request of Kafka can hold as a word."""
    if not all(type(word) is str and len(word.encode(errors="replace")) <= _MOST_BYTES for word in words):
        raise ValueError("a word is not text, or too long")


def _quota(entity: Any, key: Any, value: Any) -> QuotaRow:
    parts = tuple((kind, name) for kind, name in entity)
    words = [key, *(kind for kind, _ in parts), *(name for _, name in parts if name is not None)]
    _check_words(words)
    return parts, key, float(value)


def _acl(*row: str) -> AclRow:
    _check_words(row)
    resource, name, pattern, principal, host, operation, permission = row
    return resource, name, pattern, principal, host, operation, permission


def _defaults(values: Mapping[str, Any]) -> dict[str, str]:
    """The defaults. Raises ValueError for what no broker has."""
    found = dict(values)
    _check_words(list(found.values()))
    if not found.keys() <= set(RETENTION_KEYS) or (found and limits_of({**_ANY, **found}) is None):
        raise ValueError("a default is not one of retention")
    return found


def state_path(run_id: str) -> str:
    """The object with what a run has archived of its cluster."""
    return run_file(run_id, CLUSTER_STATE)


def keep_cluster_state(archive: Archive, run_id: str, state: ClusterState) -> ClusterStateEntry:
    """Store the state that another archive has as that of a run of this one. Returns the fact for the commit that ends
    the run."""
    kept = replace(state, run_id=run_id)
    data = kept.to_json()
    archive.storage.put(state_path(run_id), data)
    return kept.entry(data)


def read_cluster_state(archive: Archive, end: Commit) -> ClusterState | None:
    """The state of the cluster that the run which this commit ended has archived; None if it has archived none.

    Raises ArchiveDamaged if the object is missing, or not the one that the commit names.
    """
    entry = end.cluster_state
    if entry is None:
        return None
    path = state_path(end.run_id)
    name = f"{archive.storage.uri}/{path}"
    try:
        data = archive.storage.read(path)
    except ObjectMissing as error:
        raise damaged(name, "it is missing") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise damaged(name, f"its SHA-256 is not the one that commit {end.number} names")
    return ClusterState.from_json(data, name)


def check_cluster_state(archive: Archive, commit: Commit) -> ArchiveDamaged | None:
    """The damage of the object that this commit names; None if it names none, or it is whole."""
    try:
        read_cluster_state(archive, commit)
    except ArchiveDamaged as error:
        return error
    return None
