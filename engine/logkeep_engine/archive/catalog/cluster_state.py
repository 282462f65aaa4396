"""The state of a cluster as a run has archived it: its ACLs, client quotas and names of SCRAM users, configurations of
groups and client metrics, what brokers and features are set to, and the groups without archived positions. Format 1.

It is one object of the run, `runs/<run id>/cluster-state.json`, written while the run is planned. The commit that ends
the run has its SHA-256; without that it is not in the archive.

    {"format":1,"runId":…,"time":…,"authorizer":true,
     "acls":{"columns":["resource","name","pattern","principal","host","operation","permission"],"rows":[[…]]},
     "quotas":{"columns":["entity","key","value"],"rows":[[[["user","alice"]],"producer_byte_rate",1000000.0]]},
     "scramUsers":{"columns":["name","mechanism","iterations"],"rows":[[…]]},
     "topicDefaults":{"cleanup.policy":"delete","retention.bytes":"-1","retention.ms":"604800000"},
     "configs":{"columns":["resource","name","key","value"],"rows":[["GROUP","queue","share.auto.offset.reset","earliest"]]},
     "brokerSettings":{"log.retention.hours":"720"},"features":{"metadata.version":33,"share.version":1},
     "groupsLeftOut":{"columns":["group","kind","reason"],"rows":[[…]]},
     "notArchived":{"quotas":"CLUSTER_AUTHORIZATION_FAILED: …"}}

A kind that the cluster did not give is absent, and its reason is under `notArchived`. `topicDefaults` is what topics
have by the configuration of the brokers, of the keys that say which records Kafka deletes. `brokerSettings` is what
was set for the brokers, of the keys that change what topics and groups do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.documents import FORMAT, building, damaged, dumps, know, parse, rows_of
from logkeep_engine.archive.catalog.facts import ClusterStateEntry, Commit
from logkeep_engine.archive.names import run_file
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveDamaged, ObjectMissing
from logkeep_engine.log.cleanup import POLICY, RETENTION_BYTES, RETENTION_KEYS, RETENTION_MS, limits_of

CLUSTER_STATE = "cluster-state.json"
KINDS = {
    "acls": "ACLs",
    "quotas": "client quotas",
    "scramUsers": "names of SCRAM users",
    "topicDefaults": "the brokers' defaults of retention",
    "configs": "configurations of groups and client metrics",
    "brokerSettings": "settings of the brokers",
}
"""The kinds by their keys in the object, in words for people."""

_SHOWN = 5
_MOST_BYTES = 2**15 - 1  # of a string in Kafka's protocol
_ACLS = ["resource", "name", "pattern", "principal", "host", "operation", "permission"]
_QUOTAS = ["entity", "key", "value"]
_USERS = ["name", "mechanism", "iterations"]
_ANY = {RETENTION_MS: "-1", RETENTION_BYTES: "-1", POLICY: "delete"}
_CONFIGS = ["resource", "name", "key", "value"]
_LEFT_OUT = ["group", "kind", "reason"]
_KEYS = {
    *("format", "runId", "time", "authorizer", "acls", "quotas", "scramUsers", "topicDefaults", "notArchived"),
    *("configs", "brokerSettings", "features", "groupsLeftOut"),
}

AclRow = tuple[str, str, str, str, str, str, str]
"""An ACL in the words of Kafka's own tools: resource, name, pattern, principal, host, operation, permission."""
QuotaRow = tuple[tuple[tuple[str, str | None], ...], str, float]
"""(types and names of the entity, key, value); the name None is the default."""
UserRow = tuple[str, str, int]
"""(name, mechanism, iterations)"""
ConfigRow = tuple[str, str, str, str]
"""(GROUP or CLIENT_METRICS, its name, key, value)"""
LeftOutRow = tuple[str, str, str]
"""(group, its kind, why its positions are not archived)"""


@dataclass(frozen=True)
class ClusterState:
    """The users of a cluster at `time` (ms since the epoch). A kind is None if the cluster did not report it: `reasons`
    has the reason by its key, also where only a part was reported. Without an `authorizer` a cluster has no ACLs.
    `defaults` are values of RETENTION_KEYS, `settings` those that were set for the brokers, `features` the levels of
    the finalized ones, none if the brokers report none. `left_out` are groups that no backup archives.
    """

    run_id: str
    time: int
    acls: tuple[AclRow, ...] | None = None
    quotas: tuple[QuotaRow, ...] | None = None
    users: tuple[UserRow, ...] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)
    authorizer: bool = True
    defaults: Mapping[str, str] | None = None
    configs: tuple[ConfigRow, ...] | None = None
    settings: Mapping[str, str] | None = None
    features: Mapping[str, int] = field(default_factory=dict)
    left_out: tuple[LeftOutRow, ...] = ()

    def entry(self, data: bytes) -> ClusterStateEntry:
        """Return the fact of the commit that ends the run. `data` is the object."""
        counts = (None if kind is None else len(kind) for kind in (self.acls, self.quotas, self.users))
        return ClusterStateEntry(hashlib.sha256(data).hexdigest(), *counts)

    def to_json(self) -> bytes:
        """Return the object."""
        document: dict[str, Any] = {"format": FORMAT, "runId": self.run_id, "time": self.time}
        document["authorizer"] = self.authorizer
        tables = (
            *(("acls", _ACLS, self.acls), ("quotas", _QUOTAS, self.quotas), ("scramUsers", _USERS, self.users)),
            *(("configs", _CONFIGS, self.configs), ("groupsLeftOut", _LEFT_OUT, self.left_out or None)),
        )
        for key, columns, rows in tables:
            if rows is not None:
                document[key] = {"columns": columns, "rows": rows}
        if self.defaults is not None:
            document["topicDefaults"] = dict(sorted(self.defaults.items()))
        if self.settings is not None:
            document["brokerSettings"] = dict(sorted(self.settings.items()))
        if self.features:
            document["features"] = dict(sorted(self.features.items()))
        return dumps(document | {"notArchived": dict(self.reasons)})

    @classmethod
    def from_json(cls, data: bytes, name: str) -> ClusterState:
        """Return the state in the object `name`. Raises ArchiveDamaged, and ArchiveMismatch for another format."""
        document = parse(data, name)
        know(document, _KEYS, name)

        def rows(key: str, columns: list[str]) -> list[list[Any]] | None:
            return rows_of(document, key, columns, name) if key in document else None

        def build() -> ClusterState:
            acls, quotas, users = rows("acls", _ACLS), rows("quotas", _QUOTAS), rows("scramUsers", _USERS)
            configs, left_out = rows("configs", _CONFIGS), rows("groupsLeftOut", _LEFT_OUT)
            return cls(
                run_id=document["runId"],
                time=document["time"],
                acls=None if acls is None else tuple(_acl(*row) for row in acls),
                quotas=None if quotas is None else tuple(_quota(*row) for row in quotas),
                users=None if users is None else tuple((str(row[0]), str(row[1]), int(row[2])) for row in users),
                reasons=document["notArchived"],
                authorizer=document["authorizer"],
                defaults=_defaults(document["topicDefaults"]) if "topicDefaults" in document else None,
                configs=None if configs is None else tuple(_config(*row) for row in configs),
                settings=_settings(document["brokerSettings"]) if "brokerSettings" in document else None,
                features=_features(document.get("features", {})),
                left_out=tuple(_left_out(*row) for row in left_out or ()),
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


def _config(*row: str) -> ConfigRow:
    _check_words(row)
    resource, name, key, value = row
    if resource not in ("GROUP", "CLIENT_METRICS"):
        raise ValueError("a configuration is neither of a group nor of client metrics")
    return resource, name, key, value


def _left_out(*row: str) -> LeftOutRow:
    _check_words(row)
    group, kind, reason = row
    return group, kind, reason


def _settings(values: Mapping[str, Any]) -> dict[str, str]:
    found = dict(values)
    _check_words([*found, *found.values()])
    return found


def _features(values: Mapping[str, Any]) -> dict[str, int]:
    found = dict(values)
    _check_words(list(found))
    if not all(type(level) is int for level in found.values()):
        raise ValueError("the level of a feature is not a number")
    return found


def _defaults(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the defaults. Raises ValueError for what no broker has."""
    found = dict(values)
    _check_words(list(found.values()))
    if not found.keys() <= set(RETENTION_KEYS) or (found and limits_of({**_ANY, **found}) is None):
        raise ValueError("a default is not one of retention")
    return found


def describe_left_out(rows: Iterable[LeftOutRow]) -> list[str]:
    """Return the warnings about groups that are not archived, by kind."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, kind, why in rows:
        found.setdefault((kind, why), []).append(name)
    return [
        f"{so_many(len(names), f'{kind} group')} not archived: {_first(names)}: {why}"
        for (kind, why), names in sorted(found.items())
    ]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def state_path(run_id: str) -> str:
    """Return the object with what a run has archived of its cluster."""
    return run_file(run_id, CLUSTER_STATE)


def keep_cluster_state(archive: Archive, run_id: str, state: ClusterState) -> ClusterStateEntry:
    """Store the state that another archive has as that of a run of this one. Returns the fact for the commit that ends
    the run."""
    kept = replace(state, run_id=run_id)
    data = kept.to_json()
    archive.storage.put(state_path(run_id), data)
    return kept.entry(data)


def read_cluster_state(archive: Archive, end: Commit) -> ClusterState | None:
    """Return the state of the cluster that the run which this commit ended has archived; None if it has archived none.

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
    """Return the damage of the object that this commit names; None if it names none, or it is whole."""
    try:
        read_cluster_state(archive, commit)
    except ArchiveDamaged as error:
        return error
    return None
