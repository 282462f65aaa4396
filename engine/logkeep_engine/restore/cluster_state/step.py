"""Brings back what a cluster knew of its users, as the last step of a restore of everything: quotas, then ACLs.

    warnings = check_everything(context, archived)          # before the first record
    planned, warnings = plan_cluster_state(context, archived)     # in a dry run
    facts, warnings = restore_cluster_state(context, planned)

Topics and groups come first, since an ACL may take rights from the very user who restores, and a quota slows it down.
So quotas come before ACLs, those of the cluster itself come last, and those that deny after those that allow. ACLs that
reach far come back only with a word in the spec (`wide_acls`). Only what is missing is added: nothing that the target
has is changed or deleted, so the step can be done again. SCRAM users are named: Kafka never reveals a password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from pydantic import ValidationError

from logkeep_engine.archive.catalog.cluster_state import KINDS, ClusterState, UserRow, read_cluster_state
from logkeep_engine.archive.catalog.facts import Commit
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.completeness import topics_of_run
from logkeep_engine.contract.facts.dry_run import PlannedClusterState
from logkeep_engine.contract.facts.outcome import ClusterStateFacts
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.restore_spec import OnDamagedArchive
from logkeep_engine.contract.stored import Maybe, StoredDocument, refused
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveDamaged, BrokerRefused, ObjectMissing, SpecError, TargetUnsuitable
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.internal import INTERNAL_TOPICS
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.user_requests import Acl, Quota
from logkeep_engine.kafka.users import MOST_ACLS, Known, SetRefused
from logkeep_engine.restore.model.compared_items import (
    BroughtItems,
    ComparedItems,
    compared_acls,
    compared_quotas,
    describe_kept,
    describe_refused,
    describe_users,
    first_of,
    known_count,
    names_of,
    report_of,
    turn,
    users_to_create,
)
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.point import end_before
from logkeep_engine.restore.model.selection import shown
from logkeep_engine.restore.model.state import ACLS_SENT, RestoreState
from logkeep_engine.restore.model.wide_acls import describe_held_back
from logkeep_engine.restore.positions.resource_configs import (
    BroughtConfigs,
    bring_configs,
    configs_of_metrics,
    describe_brought_configs,
)
from logkeep_engine.stored import reading

# ---- cluster settings

# Lists what is not restored of a cluster: settings of its brokers, and levels of its finalized features.
#
# Both belong to the administrators of the target: a restore changes neither. What differs is reported, and listed in
# the document of the restore, since topics and groups without a value of their own do as these say.


@dataclass(frozen=True)
class ClusterDifferences:
    """Values that the target has otherwise than the source had, by name: the source's and the target's. None: the
    target does not have it. Features are those that are lower in the target. `hidden`: the target does not report its
    settings."""

    settings: Mapping[str, tuple[str, str | None]]
    features: Mapping[str, tuple[int, int]]
    hidden: bool = False

    @classmethod
    def between(cls, state: ClusterState, control: ControlPlane) -> ClusterDifferences:
        """Return the differences between the archived state and the cluster."""
        wanted = state.settings or {}
        there = control.broker_configs(wanted) if wanted else {}
        levels = control.features() if state.features else {}
        return cls(
            {key: (value, there.get(key)) for key, value in wanted.items() if there.get(key) != value},
            {
                name: (level, levels.get(name, 0))
                for name, level in state.features.items()
                if levels.get(name, 0) < level
            },
            hidden=bool(wanted) and not there,
        )

    def describe(self) -> Iterator[str]:
        """Yield the warnings."""
        if self.settings:
            unset = "not reported" if self.hidden else "not set"
            listed = [f"{key}={was} (here {unset if now is None else now})" for key, (was, now) in self._sorted()]
            yield (
                f"settings of the source's brokers are not restored, and affect topics and groups without "
                f"their own value: {first_of(listed)}: set those that you need by hand"
            )
        if self.features:
            listed = [f"{name} {was} (here {now})" for name, (was, now) in sorted(self.features.items())]
            yield (
                f"features of the source had a higher level, which is not restored: {first_of(listed)}: "
                "`kafka-features.sh upgrade` raises them"
            )

    def rows(self) -> dict[str, Any]:
        """Return the parts of the document."""
        return {
            "brokerSettings": {
                "columns": ["key", "archived", "cluster"],
                "rows": [[key, *values] for key, values in self._sorted()],
            },
            "features": {
                "columns": ["name", "archived", "cluster"],
                "rows": [[name, *levels] for name, levels in sorted(self.features.items())],
            },
        }

    def _sorted(self) -> list[tuple[str, tuple[str, str | None]]]:
        return sorted(self.settings.items())


_BEFORE_ACLS = StoredDocument("note before ACLs are sent", 1, {"facts": Maybe(dict), "warnings": [str]})
REPORT = "cluster-state-restored.json"

T = TypeVar("T", bound=Acl | Quota)

_WITHOUT = (
    "To restore topics and consumer groups without them, leave spec.everything out and set "
    "spec.consumerGroups.restore to Translate."
)
_SHOWN = 5
_PATIENCE = 30.0
_PAUSE = 0.2


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
    return [*_describe_lacking(state), *_describe_gone(context, archived, end)]


def _end(context: RestoreContext, archived: ArchiveState) -> Commit:
    """Return the end of the run that has archived the state of the cluster at the point of the restore. Raises
    SpecError if there is none."""
    end = end_before(context.archive, archived, context.spec.point)
    if end is None:
        at = "" if context.spec.point is None else " by the time of spec.point"
        raise _nothing_archived(f"no run had succeeded{at}")
    return end


def _read(context: RestoreContext, end: Commit) -> ClusterState:
    """Return the state that the run has archived; one without anything, and why, if that may be left out. Raises
    SpecError if the run has archived none, or of no kind, and ArchiveDamaged."""
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
        f"spec.everything: the archive has no ACLs, quotas and users to restore: {why}; nothing was written",
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
            f"the archive has {so_many(len(state.acls), 'ACL')}, but the target cluster has no authorizer, so it "
            "accepts none; nothing was written",
            hint=f"Set authorizer.class.name of its brokers. {_WITHOUT}",
        )
    missing = sorted(set(needed) - control.cluster_operations())
    if missing:
        raise BrokerRefused(
            f"The user may not restore the {' and '.join(sorted({needed[item] for item in missing}))} of the "
            f"archive: the cluster does not let it {' and '.join(missing)}; nothing was written.",
            hint=f"Give the user the ACL {' and '.join(missing)} on the cluster. {_WITHOUT}",
        )
    _look(control.quotas, state.quotas)()
    _look(control.acls, state.acls)()


def _describe_lacking(state: ClusterState) -> Iterator[str]:
    """Yield the warnings about kinds that the archive does not have."""
    for reason, keys in groupby(state.reasons, key=lambda key: state.reasons[key]):
        kinds = [KINDS.get(key, key) for key in keys]
        yield f"the archive does not have the {', '.join(kinds)} of run {state.run_id}: {reason}: set them by hand"


def _describe_gone(context: RestoreContext, archived: ArchiveState, end: Commit) -> Iterator[str]:
    """Yield the warning about topics of earlier runs that the cluster had no more when the run was planned. With a time
    as the point, topics that are not in the run may be younger."""
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
            f"{topics} will be restored although run {end.run_id} no longer found them: deleted before, "
            f"no longer chosen by the backup, or not readable for it: {shown(gone)}"
        )


# ---- what is to be done


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
    quotas, there = compared_quotas(state, control.quotas()), control.scram_users()
    acls = compared_acls(state, control.acls(), there, context.spec.acls, _features(control, state))
    users = users_to_create(state, there)
    may_set = "ALTER_CONFIGS" in control.cluster_operations()
    refused = control.set_quotas(quotas.missing, only_check=True) if may_set else []
    planned = PlannedClusterState(
        source_run=state.run_id,
        acls=known_count(state.acls, acls.wanted),
        acls_to_add=known_count(state.acls, acls.missing),
        acls_held_back=known_count(state.acls, acls.held),
        quotas=known_count(state.quotas, quotas.wanted),
        quotas_to_add=None if state.quotas is None else len(quotas.missing) - len(refused),
        quotas_kept=known_count(state.quotas, quotas.kept),
        users=known_count(state.users, state.users or ()),
        users_to_create=known_count(state.users, users),
        acl_list=tuple(map(str, acls.missing)),
        held_back_list=tuple(map(str, acls.held)),
        quota_list=tuple(map(str, quotas.missing)),
        user_list=tuple(names_of(users)),
    )
    each = "the ACL" if len(acls.missing) == 1 else f"each of the {len(acls.missing)} ACLs"
    untried = f"whether the cluster accepts {each}" if acls.missing else ""
    text = [
        *describe_held_back(acls.held, would=True),
        *describe_refused("ACL", acls.strange, would=True),
        *describe_refused("client quota", refused, would=True),
        *describe_kept(quotas),
        *describe_brought_configs(bring_configs(control, configs_of_metrics(state), only_check=True), would=True),
        *ClusterDifferences.between(state, control).describe(),
    ]
    return planned, text, [untried] if untried else []


# ---- doing it


@dataclass(frozen=True)
class _Others:
    """The outcome of client metrics, and differences of the target that no restore changes."""

    metrics: BroughtConfigs
    differences: ClusterDifferences

    def rows(self) -> dict[str, Any]:
        """Return the parts of the document."""
        columns = [*ResourceConfig._fields, "outcome", "reason"]
        return {"configs": {"columns": columns, "rows": self.metrics.rows()}, **self.differences.rows()}

    def describe(self) -> list[str]:
        """Return the warnings."""
        return [*describe_brought_configs(self.metrics), *self.differences.describe()]


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
        users = users_to_create(state, there)
        others = _Others(bring_configs(control, configs_of_metrics(state)), ClusterDifferences.between(state, control))
        quotas = _bring_quotas(state, control)

        def written(acls: BroughtItems[Acl]) -> tuple[ClusterStateFacts, list[str]]:
            return _written(context, state, quotas, acls, users, others)

        def note(acls: BroughtItems[Acl]) -> None:
            facts, warnings = written(acls)
            document = _BEFORE_ACLS.dumps({"facts": facts.model_dump(by_alias=True), "warnings": warnings})
            context.state.storage.put(context.state.file(ACLS_SENT), document)

        features = _features(control, state)
        compare = partial(compared_acls, state, users=there, consent=context.spec.acls, features=features)
        return written(_bring_acls(state, control, compare, note))
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
    """Return the facts and warnings that an earlier start of the run has noted before it has sent the ACLs of the
    cluster, None if none has. Raises ArchiveMismatch and ArchiveDamaged."""
    try:
        data = state.storage.read(state.file(ACLS_SENT))
    except ObjectMissing:
        return None
    hint = "The object was altered. Delete it: the run adds quotas and ACLs again, and none of them twice."
    with reading(_BEFORE_ACLS, data, state.name(ACLS_SENT), hint=hint) as document:
        if document["facts"] is None:
            return None
        try:
            return ClusterStateFacts.model_validate(document["facts"]), document["warnings"]
        except ValidationError as error:
            raise refused(_BEFORE_ACLS.what, error) from error


def _written(
    context: RestoreContext,
    state: ClusterState,
    quotas: BroughtItems[Quota],
    acls: BroughtItems[Acl],
    users: list[UserRow],
    others: _Others,
) -> tuple[ClusterStateFacts, list[str]]:
    """Write the document that names what became of each item. Returns the facts, and warnings."""
    document = context.state.name(REPORT)
    context.state.storage.put(context.state.file(REPORT), report_of(state, quotas, acls, users, others.rows()))
    facts = ClusterStateFacts(
        source_run=state.run_id,
        acls=known_count(state.acls, acls.compared.wanted),
        acls_added=known_count(state.acls, acls.added),
        acls_refused=known_count(state.acls, acls.refused),
        acls_held_back=known_count(state.acls, acls.compared.held),
        held_back_list=tuple(map(str, acls.compared.held)),
        quotas=known_count(state.quotas, quotas.compared.wanted),
        quotas_added=known_count(state.quotas, quotas.added),
        quotas_refused=known_count(state.quotas, quotas.refused),
        quotas_kept=known_count(state.quotas, quotas.compared.kept),
        users_total=known_count(state.users, users),
        users_to_create=tuple(names_of(users)),
        report=document,
    )
    return facts, [*describe_users(quotas, acls, names_of(users), document), *others.describe()]


def _features(control: ControlPlane, state: ClusterState) -> Mapping[str, int]:
    """Return the finalized features of the target, as far as an archived ACL depends on them."""
    return control.features() if state.acls else {}


def _bring_quotas(state: ClusterState, control: ControlPlane) -> BroughtItems[Quota]:
    look = _look(control.quotas, state.quotas)
    compared = compared_quotas(state, look())
    return _added(compared, control.set_quotas(compared.missing), look)


def _bring_acls(
    state: ClusterState,
    control: ControlPlane,
    compare: Callable[[Known[Acl]], ComparedItems[Acl]],
    note: Callable[[BroughtItems[Acl]], None],
) -> BroughtItems[Acl]:
    """Add the missing ACLs that are not held back. Before those of the cluster, `note` is told what comes of it if it
    takes these."""
    look = _look(control.acls, state.acls)
    compared = compare(look())
    refused = list(compared.strange)
    for (of_cluster, _), acls in groupby(compared.missing, key=turn):
        if of_cluster:
            no = {item.item for item in refused}
            note(BroughtItems(compared, tuple(acl for acl in compared.missing if acl not in no), tuple(refused)))
        # After a part of those of the cluster, the user might not send the rest.
        refused += control.create_acls(list(acls), at_once=MOST_ACLS if of_cluster else None)
    return _added(compared, refused, look)


def _look(question: Callable[[], Known[T]], wanted: Collection[Any] | None) -> Callable[[], Known[T]]:
    """Return the question, which raises BrokerRefused if the cluster does not report what it has, and something is
    needed."""

    def look() -> Known[T]:
        known = question()
        if known.items is None and wanted:
            raise BrokerRefused(
                f"The cluster does not report what it has of what is to be restored: {known.reason}.",
                hint="Give the user the ACL DESCRIBE and DESCRIBE_CONFIGS on the cluster.",
            )
        return known

    return look


def _added(
    compared: ComparedItems[T], refused: Sequence[SetRefused[T]], look: Callable[[], Known[T]]
) -> BroughtItems[T]:
    """Return the outcome of the missing items, once brokers show those that the cluster has taken."""
    no = {item.item for item in refused}
    taken = [item for item in compared.missing if item not in no]
    hidden = _not_shown(taken, look)
    late = [SetRefused(item, "it was set, but the brokers do not show it") for item in taken if item in hidden]
    added = tuple(item for item in taken if item not in hidden)
    return BroughtItems(compared, added, (*refused, *late))


def _not_shown(taken: Collection[T], look: Callable[[], Known[T]]) -> set[T]:
    """Return those of the items that brokers do not show. They learn what was set a moment later."""
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
