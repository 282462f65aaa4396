"""Compares what an archive has of a cluster's users with what the target has, and says what becomes of it. Pure.

An ACL whose host is a range of addresses, such as `10.0.0.0/8`, is understood from Kafka 4.4 on (KIP-1276). An older
cluster takes it for the name of a host, which no client has: then one that denies has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from logkeep_engine.archive.catalog.cluster_state import ClusterState, UserRow
from logkeep_engine.contract.cluster_state import RestoredAcls
from logkeep_engine.contract.run import MAX_LIST
from logkeep_engine.contract.values import so_many
from logkeep_engine.kafka.features import METADATA_VERSION
from logkeep_engine.kafka.user_requests import Acl, Quota, ScramUser
from logkeep_engine.kafka.users import Known, SetRefused
from logkeep_engine.restore.model.wide_acls import describe_held_back, held_back, known_principals

T = TypeVar("T")

_FORMAT = 1
_RANGES_SINCE = 32
"""The level of `metadata.version` from which on a host may be a range, that of 4.4-IV1."""
_SHOWN = 5


@dataclass(frozen=True)
class ComparedItems(Generic[T]):
    """Archived items next to those of the target: all that are wanted, those that are missing, those that the target
    has with another value, those that are held back, and those that the target would not understand, with reasons."""

    wanted: tuple[T, ...]
    missing: tuple[T, ...]
    kept: tuple[T, ...] = ()
    held: Mapping[T, str] = field(default_factory=dict)
    strange: tuple[SetRefused[T], ...] = ()


@dataclass(frozen=True)
class BroughtItems(Generic[T]):
    """The outcome of archived items: those that were added, and those that the target does not take."""

    compared: ComparedItems[T]
    added: tuple[T, ...]
    refused: tuple[SetRefused[T], ...]


# ---- comparing


def compared_quotas(state: ClusterState, known: Known[Quota]) -> ComparedItems[Quota]:
    """Return the archived quotas next to those of the target."""
    wanted = tuple(Quota(*row) for row in state.quotas or ())
    there = {(item.entity, item.key): item.value for item in known.items or ()}
    return ComparedItems(
        wanted,
        tuple(item for item in wanted if (item.entity, item.key) not in there),
        tuple(item for item in wanted if there.get((item.entity, item.key), item.value) != item.value),
    )


def compared_acls(
    state: ClusterState,
    known: Known[Acl],
    users: Known[ScramUser],
    consent: RestoredAcls | None,
    features: Mapping[str, int],
) -> ComparedItems[Acl]:
    """Return the archived ACLs next to those of the target, which has these users and finalized features."""
    wanted, there = tuple(Acl(*row) for row in state.acls or ()), set(known.items or ())
    lacking = [acl for acl in wanted if acl not in there]
    held = held_back(lacking, known_principals(there, users.items or ()), consent or RestoredAcls())
    strange = [SetRefused(acl, why) for acl in lacking if acl not in held and (why := _not_understood(acl, features))]
    out = {*held, *(item.item for item in strange)}
    missing = sorted((acl for acl in lacking if acl not in out), key=turn)
    return ComparedItems(wanted, tuple(missing), held=held, strange=tuple(strange))


def _not_understood(acl: Acl, features: Mapping[str, int]) -> str:
    """Return why the cluster would not understand an ACL; "" if it does."""
    level = features.get(METADATA_VERSION, 0)
    if "/" not in acl.host or level >= _RANGES_SINCE:
        return ""
    has = f"has {level}" if level else "reports none"
    return (
        f"the host is a range of addresses, which needs {METADATA_VERSION} {_RANGES_SINCE} (Kafka 4.4), and the "
        f"cluster {has}"
    )


def turn(acl: Acl) -> tuple[bool, bool]:
    """The turn of an ACL. Those of the cluster may take the right to add others: all of them are the last request."""
    of_cluster = acl.resource == "CLUSTER"
    return of_cluster, not of_cluster and acl.permission == "DENY"


def users_to_create(state: ClusterState, known: Known[ScramUser]) -> list[UserRow]:
    """Return the archived users that the target does not have; all, if it does not report them."""
    there = {(user.name, user.mechanism) for user in known.items or ()}
    return [user for user in state.users or () if user[:2] not in there]


def known_count(kind: Collection[Any] | None, items: Collection[Any]) -> int | None:
    """Return the number of these items of an archived kind, None if the archive does not have that kind."""
    return None if kind is None else len(items)


def names_of(users: Iterable[UserRow]) -> list[str]:
    """Return the users in words."""
    return [f"{name} ({mechanism}, {iterations} iterations)" for name, mechanism, iterations in users]


# ---- reporting


def report_of(
    state: ClusterState,
    quotas: BroughtItems[Quota],
    acls: BroughtItems[Acl],
    users: Sequence[UserRow],
    others: Mapping[str, Any],
) -> bytes:
    """Return the document that names every item and what became of it."""

    def rows(brought: BroughtItems[Any]) -> list[list[object]]:
        refused = {item.item: item.reason for item in brought.refused}
        reasons = {**brought.compared.held, **refused}
        outcomes = dict.fromkeys(brought.added, "added") | dict.fromkeys(brought.compared.kept, "kept")
        outcomes |= dict.fromkeys(brought.compared.held, "held back") | dict.fromkeys(refused, "refused")
        return [[*item, outcomes.get(item, "there"), reasons.get(item, "")] for item in brought.compared.wanted]

    document = {
        "format": _FORMAT,
        "sourceRun": state.run_id,
        "acls": {"columns": [*Acl._fields, "outcome", "reason"], "rows": rows(acls)},
        "quotas": {"columns": [*Quota._fields, "outcome", "reason"], "rows": rows(quotas)},
        "usersToCreate": {"columns": list(ScramUser._fields), "rows": users},
        **others,
        "notArchived": dict(state.reasons),
    }
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def describe_users(
    quotas: BroughtItems[Quota], acls: BroughtItems[Acl], users: Sequence[str], document: str
) -> Iterator[str]:
    """Yield the warnings about what did not come back. `document` has all of it."""
    where = f" ({document})"
    yield from describe_held_back(acls.compared.held, where)
    yield from describe_refused("ACL", acls.refused, where)
    yield from describe_refused("client quota", quotas.refused, where)
    yield from describe_kept(quotas.compared, where)
    if users:
        yield f"create these SCRAM users with new passwords, which no archive has: {first_of(users, MAX_LIST)}"


def describe_refused(
    what: str, refused: Sequence[SetRefused[T]], where: str = "", *, would: bool = False
) -> Iterator[str]:
    """Yield the warning about items that the target does not take; or `would` not, in a dry run."""
    if refused:
        listed = first_of([f"{item.item} ({item.reason})" for item in refused])
        denying = sum(isinstance(item.item, Acl) and item.item.permission == "DENY" for item in refused)
        deny = "denies" if denying == 1 else "deny"
        wider = f"; {denying} of them {deny}, so other users may do more than before" if denying else ""
        does = "would not be" if would else "could not be"
        yield f"{so_many(len(refused), what)} {does} set: {listed}{wider}: set them by hand{where}"


def describe_kept(quotas: ComparedItems[Quota], where: str = "") -> Iterator[str]:
    """Yield the warning about quotas that the target has with another value."""
    if quotas.kept:
        have = "has" if len(quotas.kept) == 1 else "have"
        yield (
            f"{so_many(len(quotas.kept), 'client quota')} {have} another value in the cluster, which is left as it is; "
            f"archived are {first_of([str(item) for item in quotas.kept])}{where}"
        )


def first_of(items: Sequence[str], most: int = _SHOWN) -> str:
    """Return the first of the items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
