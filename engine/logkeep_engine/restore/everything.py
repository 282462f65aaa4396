"""Brings back what a cluster knew of its users, as the last step of a restore of everything: quotas, then ACLs.

    warnings = check_everything(context, archived)          # before the first record
    facts, warnings = restore_cluster_state(context, planned)

Topics and groups come first, since an ACL may take rights from the very user who restores, and a quota slows it down.
So quotas come before ACLs, and ACLs that allow before those that deny. Only what is missing is added: nothing that the
target has is changed or deleted, so the step can be done again. SCRAM users are named: Kafka tells nobody a password.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from logkeep_engine.archive.catalog.cluster_state import ClusterState, read_cluster_state
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.everything import SCHEMA_TOPIC
from logkeep_engine.contract.run import MAX_LIST, ClusterStateFacts
from logkeep_engine.contract.spec import KafkaRestoreSpec
from logkeep_engine.errors import BrokerRefused, SpecError, TargetUnsuitable
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.kafka.users import Known, SetRefused
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.point import end_before

FORMAT = 1
REPORT = "cluster-state-restored.json"

T = TypeVar("T", bound=Acl | Quota)

_WITHOUT = (
    "To restore topics and consumer groups without them, leave spec.everything out and set "
    "spec.consumerGroups.restore to Translate."
)
_SHOWN = 5
_PATIENCE = 30.0
_PAUSE = 0.2
_DENY = "DENY"


def schema_topic(spec: KafkaRestoreSpec) -> str | None:
    """The topic with the schemas, which is restored before all others; None if the restore has no order."""
    return (spec.schema_topic or SCHEMA_TOPIC) if spec.everything else None


def check_everything(context: RestoreContext, archived: ArchiveState) -> list[str]:
    """Find out whether the target can take what is archived of the cluster's users, before anything is written. Returns
    warnings about what the archive does not have.

    Raises SpecError if the archive has none of it, TargetUnsuitable for a cluster that knows no ACLs, and BrokerRefused
    for a user who may not set them.
    """
    spec = context.spec
    if not spec.everything:
        return []
    if spec.schema_topic is not None and spec.schema_topic not in {topic.name for topic in archived.topics.values()}:
        raise SpecError(
            f"spec.schemaTopic: the archive has no topic {spec.schema_topic!r}",
            hint="Write the archived name of the topic with the schemas, or leave the field out.",
        )
    state = _archived_state(context, archived)
    _check_target(state, context.control)
    return [
        f"run {state.run_id} has not archived the {key} of the cluster: {reason}: set them by hand"
        for key, reason in state.reasons.items()
    ]


def told_untried(context: RestoreContext, archived: ArchiveState) -> list[str]:
    """What a dry run cannot find out: a cluster says only of a change whether it takes it. Raises as the check."""
    if not context.spec.everything:
        return []
    state = _archived_state(context, archived)
    return [
        f"whether the cluster takes each of the {len(state.acls or ())} ACLs and {len(state.quotas or ())} client "
        f"quotas that run {state.run_id} has archived"
    ]


def _archived_state(context: RestoreContext, archived: ArchiveState) -> ClusterState:
    """The state of the cluster at the point of the restore. Raises SpecError if there is none, and ArchiveDamaged."""
    end = end_before(context.archive, archived, context.spec.point)
    state = None if end is None else read_cluster_state(context.archive, end)
    if state is None:
        if end is None:
            at = "" if context.spec.point is None else " by the time of spec.point"
            why = f"no run had succeeded{at}"
        else:
            why = f"run {end.run_id} has not archived them (spec.clusterState of the backup, or an earlier version)"
        raise SpecError(
            f"spec.everything: the archive has no ACLs, quotas and users to bring back: {why}; nothing was written",
            hint=_WITHOUT,
        )
    return state


def _check_target(state: ClusterState, control: ControlPlane) -> None:
    needed: dict[str, str] = {}
    if state.quotas:
        needed |= dict.fromkeys(("DESCRIBE_CONFIGS", "ALTER_CONFIGS"), "client quotas")
    if state.acls:
        needed |= dict.fromkeys(("DESCRIBE", "ALTER"), "ACLs")
    if not needed:
        return
    if state.acls and control.acls().switched_off:
        raise TargetUnsuitable(
            f"the archive has {len(state.acls)} ACLs, and the target cluster has no authorizer, so it takes none; "
            "nothing was written",
            hint=f"Set authorizer.class.name of its brokers. {_WITHOUT}",
        )
    missing = sorted(set(needed) - control.cluster_operations())
    if missing:
        raise BrokerRefused(
            f"The user may not bring back the {needed[missing[0]]} of the archive: the cluster does not let it "
            f"{' and '.join(missing)}; nothing was written.",
            hint=f"Give the user the ACL {' and '.join(missing)} on the cluster. {_WITHOUT}",
        )


@dataclass(frozen=True)
class _Brought(Generic[T]):
    """The outcome of archived items: all that were wanted, those that were added, and those that the target has with
    another value or does not take."""

    wanted: tuple[T, ...]
    added: tuple[T, ...]
    refused: tuple[SetRefused[T], ...]
    kept: tuple[T, ...] = ()


def restore_cluster_state(context: RestoreContext, planned: Planned) -> tuple[ClusterStateFacts | None, list[str]]:
    """Add the quotas and ACLs of the archive that the cluster lacks, and write down what became of each. Returns the
    facts, None for a restore of topics only, and warnings.
    """
    if not context.spec.everything:
        return None, []
    state, control = _archived_state(context, planned.archived), context.control
    quotas = _bring_quotas([Quota(*row) for row in state.quotas or ()], control)
    acls = _bring_acls([Acl(*row) for row in state.acls or ()], control)
    users = [f"{name} ({mechanism}, {iterations} iterations)" for name, mechanism, iterations in state.users or ()]
    document = context.state.name(REPORT)
    context.state.storage.put(context.state.file(REPORT), _report(state, quotas, acls))
    facts = ClusterStateFacts(
        source_run=state.run_id,
        acls=len(acls.wanted),
        acls_added=len(acls.added),
        acls_refused=len(acls.refused),
        quotas=len(quotas.wanted),
        quotas_added=len(quotas.added),
        quotas_refused=len(quotas.refused),
        quotas_kept=len(quotas.kept),
        users_total=len(users),
        users=tuple(users[:MAX_LIST]),
        report=document,
    )
    return facts, list(_warnings(quotas, acls, users, document))


def _bring_quotas(wanted: Sequence[Quota], control: ControlPlane) -> _Brought[Quota]:
    there = {(item.entity, item.key): item.value for item in _there(control.quotas(), wanted)}
    kept = tuple(item for item in wanted if there.get((item.entity, item.key), item.value) != item.value)
    missing = [item for item in wanted if (item.entity, item.key) not in there]
    refused = control.set_quotas(missing)
    return _added(wanted, missing, refused, lambda: _there(control.quotas(), wanted), kept)


def _bring_acls(wanted: Sequence[Acl], control: ControlPlane) -> _Brought[Acl]:
    there = _there(control.acls(), wanted)
    missing = sorted((acl for acl in wanted if acl not in there), key=lambda acl: acl.permission == _DENY)
    refused: list[SetRefused[Acl]] = []
    for denies in (False, True):
        refused += control.create_acls([acl for acl in missing if (acl.permission == _DENY) is denies])
    return _added(wanted, missing, refused, lambda: _there(control.acls(), wanted))


def _there(known: Known[T], wanted: Collection[T]) -> set[T]:
    """All that the cluster has. Raises BrokerRefused if it does not tell, and something is wanted."""
    if known.items is None and wanted:
        raise BrokerRefused(
            f"The cluster does not tell what it has of what is to be brought back: {known.reason}.",
            hint="Give the user the ACL DESCRIBE and DESCRIBE_CONFIGS on the cluster.",
        )
    return set(known.items or ())


def _added(
    wanted: Sequence[T],
    missing: Sequence[T],
    refused: Sequence[SetRefused[T]],
    look: Callable[[], set[T]],
    kept: tuple[T, ...] = (),
) -> _Brought[T]:
    """The outcome of the missing items, once brokers show those that the cluster has taken."""
    no = {item.item for item in refused}
    taken = [item for item in missing if item not in no]
    hidden = _not_shown(taken, look)
    late = [SetRefused(item, "it was set, and the brokers do not show it") for item in taken if item in hidden]
    added = tuple(item for item in taken if item not in hidden)
    return _Brought(tuple(wanted), added, (*refused, *late), kept)


def _not_shown(taken: Collection[T], look: Callable[[], set[T]]) -> set[T]:
    """Those of the items that brokers do not show. They learn what was set a moment later."""
    deadline = time.monotonic() + _PATIENCE
    while taken:
        try:
            hidden = set(taken) - look()
        except BrokerRefused:  # an ACL that was just set has taken the right to look
            return set()
        if not hidden or time.monotonic() > deadline:
            return hidden
        time.sleep(_PAUSE)
    return set()


def _report(state: ClusterState, quotas: _Brought[Quota], acls: _Brought[Acl]) -> bytes:
    """The document that names every item and what became of it."""

    def rows(brought: _Brought[Any]) -> list[list[object]]:
        reasons = {item.item: item.reason for item in brought.refused}
        outcomes = dict.fromkeys(brought.added, "added") | dict.fromkeys(brought.kept, "kept")
        return [
            [*item, "refused" if item in reasons else outcomes.get(item, "there"), reasons.get(item, "")]
            for item in brought.wanted
        ]

    document = {
        "format": FORMAT,
        "sourceRun": state.run_id,
        "acls": {"columns": [*Acl._fields, "outcome", "reason"], "rows": rows(acls)},
        "quotas": {"columns": [*Quota._fields, "outcome", "reason"], "rows": rows(quotas)},
        "usersToCreate": {"columns": ["name", "mechanism", "iterations"], "rows": state.users or ()},
        "notArchived": dict(state.reasons),
    }
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _warnings(quotas: _Brought[Quota], acls: _Brought[Acl], users: Sequence[str], document: str) -> Iterable[str]:
    for what, refused in (("ACLs", acls.refused), ("client quotas", quotas.refused)):
        if refused:
            shown = [f"{item.item} ({item.reason})" for item in refused]
            yield f"{len(refused)} {what} could not be set: {_first(shown)}: set them by hand ({document})"
    if quotas.kept:
        yield (
            f"{len(quotas.kept)} client quotas have another value in the cluster, which was left as it is; archived "
            f"are {_first([str(item) for item in quotas.kept])} ({document})"
        )
    if users:
        yield f"create these SCRAM users with new passwords, which no archive has: {_first(users, MAX_LIST)}"


def _first(items: Sequence[str], most: int = _SHOWN) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
