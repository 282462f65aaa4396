"""Brings back what a cluster knew of its users, as the last step of a restore of everything: quotas, then ACLs.

    warnings = check_everything(context, archived)          # before the first record
    planned, warnings = plan_cluster_state(context, archived)     # in a dry run
    facts, warnings = restore_cluster_state(context, planned)

Topics and groups come first, since an ACL may take rights from the very user who restores, and a quota slows it down.
So quotas come before ACLs, those of the cluster itself come last, and those that deny after those that allow. ACLs that
reach far come back only with a word in the spec (`wide_acls`). Only what is missing is added: nothing that the target
has is changed or deleted, so the step can be done again. SCRAM users are named: Kafka tells nobody a password.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, Generic, TypeVar

from logkeep_engine.archive.catalog.cluster_state import KINDS, ClusterState, UserRow, read_cluster_state
from logkeep_engine.archive.catalog.facts import Commit
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.completeness import topics_of_run
from logkeep_engine.contract.dry_run import PlannedClusterState
from logkeep_engine.contract.everything import SCHEMA_TOPIC, RestoredAcls
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.run import MAX_LIST, ClusterStateFacts
from logkeep_engine.contract.spec import KafkaRestoreSpec, OnDamagedArchive
from logkeep_engine.contract.stored import Maybe, StoredDocument
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveDamaged, BrokerRefused, ObjectMissing, SpecError, TargetUnsuitable
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.internal import INTERNAL_TOPICS
from logkeep_engine.kafka.user_requests import Acl, Quota, ScramUser
from logkeep_engine.kafka.users import MOST_ACLS, Known, SetRefused
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.point import end_before
from logkeep_engine.restore.selection import shown
from logkeep_engine.restore.state import ACLS_SENT, RestoreState
from logkeep_engine.restore.wide_acls import held_back, known_principals, told_held_back
from logkeep_engine.stored import reading

_FORMAT = 1
_BEFORE_ACLS = StoredDocument(
    "note before ACLs are sent",
    1,
    {
        "facts": Maybe(
            {
                "source_run": str,
                "acls": int | None,
                "acls_added": int | None,
                "acls_refused": int | None,
                "acls_held_back": int | None,
                "held_back": [str],
                "quotas": int | None,
                "quotas_added": int | None,
                "quotas_refused": int | None,
                "quotas_kept": int | None,
                "users_total": int | None,
                "users": [str],
                "report": str,
            }
        ),
        "warnings": [str],
    },
)
REPORT = "cluster-state-restored.json"

T = TypeVar("T", bound=Acl | Quota)

_WITHOUT = (
    "To restore topics and consumer groups without them, leave spec.everything out and set "
    "spec.consumerGroups.restore to Translate."
)
_SHOWN = 5
_PATIENCE = 30.0
_PAUSE = 0.2


def schema_topic(spec: KafkaRestoreSpec) -> str | None:
    """The topic with the schemas, which is restored before all others; None if the restore has no order."""
    return (spec.schema_topic or SCHEMA_TOPIC) if spec.everything else None


# ---- before the first record


def check_everything(context: RestoreContext, archived: ArchiveState) -> list[str]:
    """Find out whether the target can take what is archived of the cluster's users, before anything is written. Returns
    warnings about what the archive does not have, and about topics that the cluster had no more.

    Raises SpecError if the archive has none of it, TargetUnsuitable for a cluster that knows no ACLs, and BrokerRefused
    for a user who may not set them.
    """
    spec, refusals = context.spec, context.refusals
    if not spec.everything:
        return []
    if spec.schema_topic is not None and spec.schema_topic not in {topic.name for topic in archived.topics.values()}:
        with refusals:
            raise SpecError(
                f"spec.schemaTopic: the archive has no topic {spec.schema_topic!r}",
                hint="Write the archived name of the topic with the schemas, or leave the field out.",
            )
    end = _end(context, archived)
    state = _read(context, end)
    with refusals:
        _check_target(state, context.control)
    return [*_told_lacking(state), *_told_gone(context, archived, end)]


def _end(context: RestoreContext, archived: ArchiveState) -> Commit:
    """The end of the run that has archived the state of the cluster at the point of the restore. Raises SpecError if
    there is none."""
    end = end_before(context.archive, archived, context.spec.point)
    if end is None:
        at = "" if context.spec.point is None else " by the time of spec.point"
        raise _nothing_archived(f"no run had succeeded{at}")
    return end


def _read(context: RestoreContext, end: Commit) -> ClusterState:
    """The state that the run has archived; one without anything, and why, if that may be left out. Raises SpecError if
    the run has archived none, or of no kind, and ArchiveDamaged."""
    may_lack = context.spec.on_damaged_archive is OnDamagedArchive.SKIP
    try:
        state = read_cluster_state(context.archive, end)
    except ArchiveDamaged as error:
        if may_lack:
            return ClusterState(end.run_id, end.time, reasons=dict.fromkeys(KINDS, error.message.rstrip(".")))
        raise ArchiveDamaged(
            error.message, hint=f"{error.hint} spec.onDamagedArchive: Skip restores all but ACLs, quotas and users."
        ) from error
    if state is None:
        raise _nothing_archived(f"run {end.run_id} has not archived them (spec.clusterState of the backup)")
    if not may_lack and all(kind is None for kind in (state.acls, state.quotas, state.users)):
        reasons = "; ".join(f"{KINDS.get(key, key)}: {reason}" for key, reason in state.reasons.items())
        raise _nothing_archived(f"run {end.run_id} got none of them ({reasons})")
    return state


def _nothing_archived(why: str) -> SpecError:
    return SpecError(
        f"spec.everything: the archive has no ACLs, quotas and users to bring back: {why}; nothing was written",
        hint=_WITHOUT,
    )


def _check_target(state: ClusterState, control: ControlPlane) -> None:
    needed: dict[str, str] = {}
    if state.quotas:
        needed |= dict.fromkeys(("DESCRIBE_CONFIGS", "ALTER_CONFIGS"), KINDS["quotas"])
    if state.acls:
        needed |= dict.fromkeys(("DESCRIBE", "ALTER"), KINDS["acls"])
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
            f"The user may not bring back the {' and '.join(sorted({needed[item] for item in missing}))} of the "
            f"archive: the cluster does not let it {' and '.join(missing)}; nothing was written.",
            hint=f"Give the user the ACL {' and '.join(missing)} on the cluster. {_WITHOUT}",
        )
    _look(control.quotas, state.quotas)()
    _look(control.acls, state.acls)()


def _told_lacking(state: ClusterState) -> Iterator[str]:
    """The warnings about kinds that the archive does not have."""
    for reason, keys in groupby(state.reasons, key=lambda key: state.reasons[key]):
        kinds = [KINDS.get(key, key) for key in keys]
        yield f"the archive does not have the {', '.join(kinds)} of run {state.run_id}: {reason}: set them by hand"


def _told_gone(context: RestoreContext, archived: ArchiveState, end: Commit) -> Iterator[str]:
    """The warning about topics of earlier runs that the cluster had no more when the run was planned. With a time as
    the point, topics that are not in the run may be younger."""
    if context.spec.point is not None and context.spec.point.time is not None:
        return
    there: set[str] = set()
    for run in archived.runs.values():
        if run.epoch >= end.epoch and run.kind == BACKUP:
            there |= topics_of_run(context.archive, run)
    names = {topic.name for topic_id, topic in archived.topics.items() if topic_id in there}
    gone = sorted({topic.name for topic in archived.topics.values()} - names - INTERNAL_TOPICS)
    if there and gone:
        topics = so_many(len(gone), "topic")
        yield (
            f"{topics} will come back that run {end.run_id} has not found any more: deleted before, or "
            f"not chosen by the backup any more, or not readable for it: {shown(gone)}"
        )


# ---- what is to be done


@dataclass(frozen=True)
class _Compared(Generic[T]):
    """Archived items beside those of the target: all that are wanted, those that are missing, those that the target
    has with another value, and those that are held back, with the reason."""

    wanted: tuple[T, ...]
    missing: tuple[T, ...]
    kept: tuple[T, ...] = ()
    held: Mapping[T, str] = field(default_factory=dict)


def _compared_quotas(state: ClusterState, known: Known[Quota]) -> _Compared[Quota]:
    wanted = tuple(Quota(*row) for row in state.quotas or ())
    there = {(item.entity, item.key): item.value for item in known.items or ()}
    return _Compared(
        wanted,
        tuple(item for item in wanted if (item.entity, item.key) not in there),
        tuple(item for item in wanted if there.get((item.entity, item.key), item.value) != item.value),
    )


def _compared_acls(
    state: ClusterState, known: Known[Acl], users: Known[ScramUser], consent: RestoredAcls | None
) -> _Compared[Acl]:
    wanted, there = tuple(Acl(*row) for row in state.acls or ()), set(known.items or ())
    lacking = [acl for acl in wanted if acl not in there]
    held = held_back(lacking, known_principals(there, users.items or ()), consent or RestoredAcls())
    return _Compared(wanted, tuple(sorted((acl for acl in lacking if acl not in held), key=_turn)), held=held)


def _turn(acl: Acl) -> tuple[bool, bool]:
    """The turn of an ACL. Those of the cluster may take the right to add others: all of them are the last request."""
    of_cluster = acl.resource == "CLUSTER"
    return of_cluster, not of_cluster and acl.permission == "DENY"


def _users_to_create(state: ClusterState, known: Known[ScramUser]) -> list[UserRow]:
    """The archived users that the target does not have; all, if it does not tell."""
    there = {(user.name, user.mechanism) for user in known.items or ()}
    return [user for user in state.users or () if user[:2] not in there]


def _known(kind: Collection[Any] | None, items: Collection[Any]) -> int | None:
    """The number of these items of an archived kind, None if the archive does not have that kind."""
    return None if kind is None else len(items)


def _names(users: Iterable[UserRow]) -> list[str]:
    return [f"{name} ({mechanism}, {iterations} iterations)" for name, mechanism, iterations in users]


def plan_cluster_state(
    context: RestoreContext, archived: ArchiveState
) -> tuple[PlannedClusterState | None, list[str], list[str]]:
    """Find out what a restore would bring back of the cluster's state, None if it is not one of everything; warnings
    about what the cluster would not take; and what only the restore itself finds out. Changes nothing.

    Raises what `check_everything` raises for an archive without the state.
    """
    if not context.spec.everything:
        return None, [], []
    state, control = _read(context, _end(context, archived)), context.control
    quotas, there = _compared_quotas(state, control.quotas()), control.scram_users()
    acls = _compared_acls(state, control.acls(), there, context.spec.acls)
    users = _users_to_create(state, there)
    may_set = "ALTER_CONFIGS" in control.cluster_operations()
    refused = control.set_quotas(quotas.missing, only_check=True) if may_set else []
    planned = PlannedClusterState(
        source_run=state.run_id,
        acls=_known(state.acls, acls.wanted),
        acls_to_add=_known(state.acls, acls.missing),
        acls_held_back=_known(state.acls, acls.held),
        quotas=_known(state.quotas, quotas.wanted),
        quotas_to_add=None if state.quotas is None else len(quotas.missing) - len(refused),
        quotas_kept=_known(state.quotas, quotas.kept),
        users=_known(state.users, state.users or ()),
        users_to_create=_known(state.users, users),
        acls_shown=tuple(map(str, acls.missing)),
        held_back_shown=tuple(map(str, acls.held)),
        quotas_shown=tuple(map(str, quotas.missing)),
        users_shown=tuple(_names(users)),
    )
    untried = f"whether the cluster takes each of the {len(acls.missing)} ACLs" if acls.missing else ""
    told = [
        *told_held_back(acls.held, would=True),
        *_told_refused("client quotas", refused),
        *_told_kept(quotas),
    ]
    return planned, told, [untried] if untried else []


# ---- doing it


@dataclass(frozen=True)
class _Brought(Generic[T]):
    """The outcome of archived items: those that were added, and those that the target does not take."""

    compared: _Compared[T]
    added: tuple[T, ...]
    refused: tuple[SetRefused[T], ...]


def restore_cluster_state(context: RestoreContext, planned: Planned) -> tuple[ClusterStateFacts | None, list[str]]:
    """Add the quotas and ACLs of the archive that the cluster lacks, and write down what became of each. Returns the
    facts, None for a restore of topics only, and warnings.

    An ACL of the cluster may take the rights of the user who restores. So what is known is noted before these are sent.
    A later start of the run that is refused then ends with the note. Raises BrokerRefused without one.
    """
    if not context.spec.everything:
        return None, []
    state, control = _read(context, _end(context, planned.archived)), context.control
    noted = noted_before_acls(context.state)
    try:
        there = control.scram_users()
        users = _users_to_create(state, there)
        quotas = _bring_quotas(state, control)

        def note(acls: _Brought[Acl]) -> None:
            facts, warnings = _written(context, state, quotas, acls, users)
            document = _BEFORE_ACLS.dumps({"facts": asdict(facts), "warnings": warnings})
            context.state.storage.put(context.state.file(ACLS_SENT), document)

        compare = partial(_compared_acls, state, users=there, consent=context.spec.acls)
        return _written(context, state, quotas, _bring_acls(state, control, compare, note), users)
    except BrokerRefused as error:
        if noted is None:  # brokers have refused what this start has asked for: it has sent nothing of it
            nothing = _BEFORE_ACLS.dumps({"facts": None, "warnings": []})
            context.state.storage.put(context.state.file(ACLS_SENT), nothing)
            raise
        facts, warnings = noted
        return facts, [
            f"the user may no longer set or see ACLs ({error.message.rstrip('.')}): an earlier start has sent "
            f"those of the cluster itself, which may have taken that right; compare them with {facts.report}",
            *warnings,
        ]


def noted_before_acls(state: RestoreState) -> tuple[ClusterStateFacts, list[str]] | None:
    """The facts and warnings that an earlier start of the run has noted before it has sent the ACLs of the cluster,
    None if none has. Raises ArchiveMismatch and ArchiveDamaged."""
    try:
        data = state.storage.read(state.file(ACLS_SENT))
    except ObjectMissing:
        return None
    hint = "The object was altered. Delete it: the run adds quotas and ACLs again, and none of them twice."
    with reading(_BEFORE_ACLS, data, state.name(ACLS_SENT), hint=hint) as document:
        if document["facts"] is None:
            return None
        facts = ClusterStateFacts(**document["facts"])
        facts = replace(facts, users=tuple(facts.users), held_back=tuple(facts.held_back))
        return facts, document["warnings"]


def _written(
    context: RestoreContext, state: ClusterState, quotas: _Brought[Quota], acls: _Brought[Acl], users: list[UserRow]
) -> tuple[ClusterStateFacts, list[str]]:
    """Write the document that names what became of each item. Returns the facts, and warnings."""
    document = context.state.name(REPORT)
    context.state.storage.put(context.state.file(REPORT), _report(state, quotas, acls, users))
    facts = ClusterStateFacts(
        source_run=state.run_id,
        acls=_known(state.acls, acls.compared.wanted),
        acls_added=_known(state.acls, acls.added),
        acls_refused=_known(state.acls, acls.refused),
        acls_held_back=_known(state.acls, acls.compared.held),
        held_back=tuple(map(str, acls.compared.held))[:MAX_LIST],
        quotas=_known(state.quotas, quotas.compared.wanted),
        quotas_added=_known(state.quotas, quotas.added),
        quotas_refused=_known(state.quotas, quotas.refused),
        quotas_kept=_known(state.quotas, quotas.compared.kept),
        users_total=_known(state.users, users),
        users=tuple(_names(users)[:MAX_LIST]),
        report=document,
    )
    return facts, list(_warnings(quotas, acls, _names(users), document))


def _bring_quotas(state: ClusterState, control: ControlPlane) -> _Brought[Quota]:
    look = _look(control.quotas, state.quotas)
    compared = _compared_quotas(state, look())
    return _added(compared, control.set_quotas(compared.missing), look)


def _bring_acls(
    state: ClusterState,
    control: ControlPlane,
    compare: Callable[[Known[Acl]], _Compared[Acl]],
    note: Callable[[_Brought[Acl]], None],
) -> _Brought[Acl]:
    """Add the missing ACLs that are not held back. Before those of the cluster, `note` is told what comes of it if it
    takes these."""
    look = _look(control.acls, state.acls)
    compared = compare(look())
    refused: list[SetRefused[Acl]] = []
    for (of_cluster, _), acls in groupby(compared.missing, key=_turn):
        if of_cluster:
            no = {item.item for item in refused}
            note(_Brought(compared, tuple(acl for acl in compared.missing if acl not in no), tuple(refused)))
        # Behind a part of those of the cluster, the user might not send the rest.
        refused += control.create_acls(list(acls), at_once=MOST_ACLS if of_cluster else None)
    return _added(compared, refused, look)


def _look(question: Callable[[], Known[T]], wanted: Collection[Any] | None) -> Callable[[], Known[T]]:
    """The question, which raises BrokerRefused if the cluster does not tell what it has, and something is wanted."""

    def look() -> Known[T]:
        known = question()
        if known.items is None and wanted:
            raise BrokerRefused(
                f"The cluster does not report what it has of what is to be restored: {known.reason}.",
                hint="Give the user the ACL DESCRIBE and DESCRIBE_CONFIGS on the cluster.",
            )
        return known

    return look


def _added(compared: _Compared[T], refused: Sequence[SetRefused[T]], look: Callable[[], Known[T]]) -> _Brought[T]:
    """The outcome of the missing items, once brokers show those that the cluster has taken."""
    no = {item.item for item in refused}
    taken = [item for item in compared.missing if item not in no]
    hidden = _not_shown(taken, look)
    late = [SetRefused(item, "it was set, and the brokers do not show it") for item in taken if item in hidden]
    added = tuple(item for item in taken if item not in hidden)
    return _Brought(compared, added, (*refused, *late))


def _not_shown(taken: Collection[T], look: Callable[[], Known[T]]) -> set[T]:
    """Those of the items that brokers do not show. They learn what was set a moment later."""
    deadline = time.monotonic() + _PATIENCE
    while taken:
        try:
            hidden = set(taken) - set(look().items or ())
        except BrokerRefused:  # an ACL that was just set has taken the right to look
            return set()
        if not hidden or time.monotonic() > deadline:
            return hidden
        time.sleep(_PAUSE)
    return set()


# ---- telling


def _report(state: ClusterState, quotas: _Brought[Quota], acls: _Brought[Acl], users: Sequence[UserRow]) -> bytes:
    """The document that names every item and what became of it."""

    def rows(brought: _Brought[Any]) -> list[list[object]]:
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
        "notArchived": dict(state.reasons),
    }
    return (json.dumps(document, ensure_ascii=False, indent=1) + "\n").encode()


def _warnings(quotas: _Brought[Quota], acls: _Brought[Acl], users: Sequence[str], document: str) -> Iterator[str]:
    where = f" ({document})"
    yield from told_held_back(acls.compared.held, where)
    yield from _told_refused("ACLs", acls.refused, where)
    yield from _told_refused("client quotas", quotas.refused, where)
    yield from _told_kept(quotas.compared, where)
    if users:
        yield f"create these SCRAM users with new passwords, which no archive has: {_first(users, MAX_LIST)}"


def _told_refused(what: str, refused: Sequence[SetRefused[T]], where: str = "") -> Iterator[str]:
    if refused:
        listed = _first([f"{item.item} ({item.reason})" for item in refused])
        yield f"{len(refused)} {what} could not be set: {listed}: set them by hand{where}"


def _told_kept(quotas: _Compared[Quota], where: str = "") -> Iterator[str]:
    if quotas.kept:
        yield (
            f"{len(quotas.kept)} client quotas have another value in the cluster, which is left as it is; archived "
            f"are {_first([str(item) for item in quotas.kept])}{where}"
        )


def _first(items: Sequence[str], most: int = _SHOWN) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more
