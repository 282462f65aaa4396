"""Brings back configurations of groups, right before their positions, and those of client metrics with everything.

    warnings = bring_group_configs(context, archived, topic_ids)

A share group begins where its `share.auto.offset.reset` says in each partition that it has not begun, so it must have
its configuration before its members come back. Only what is missing is set: a value that the target has stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.cluster_state import ClusterState, describe_left_out
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.pattern_lists import describe_unmatched
from logkeep_engine.contract.patterns import NamePatterns
from logkeep_engine.contract.restored_topics import describe_unused
from logkeep_engine.errors import ArchiveDamaged, BrokerRefused
from logkeep_engine.kafka.configs import CLIENT_METRICS, GROUP
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.users import SetRefused
from logkeep_engine.restore.model.compared_items import describe_refused, first_of
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.point import source_state
from logkeep_engine.restore.positions.moves import select, target_names


@dataclass(frozen=True)
class BroughtConfigs:
    """The outcome of archived configurations. `kept`: the target has another value, which stays."""

    wanted: tuple[ResourceConfig, ...] = ()
    added: tuple[ResourceConfig, ...] = ()
    kept: tuple[ResourceConfig, ...] = ()
    refused: tuple[SetRefused[ResourceConfig], ...] = ()

    def rows(self) -> list[list[object]]:
        """Each configuration and what became of it, for a document."""
        reasons = {item.item: item.reason for item in self.refused}
        outcomes = dict.fromkeys(self.added, "added") | dict.fromkeys(self.kept, "kept")
        outcomes |= dict.fromkeys(reasons, "refused")
        return [[*item, outcomes.get(item, "there"), reasons.get(item, "")] for item in self.wanted]


def configs_of_groups(state: ClusterState | None, names: Mapping[str, str]) -> list[ResourceConfig]:
    """Return the archived configurations of these groups, under the names that they get in the target. Pure."""
    rows = [ResourceConfig(*row) for row in (state.configs if state is not None else None) or ()]
    return [row._replace(name=names[row.name]) for row in rows if row.resource == GROUP and row.name in names]


def configs_of_metrics(state: ClusterState) -> list[ResourceConfig]:
    """Return the archived subscriptions of client metrics."""
    return [row for row in (ResourceConfig(*row) for row in state.configs or ()) if row.resource == CLIENT_METRICS]


def bring_configs(
    control: ControlPlane, wanted: Sequence[ResourceConfig], *, only_check: bool = False
) -> BroughtConfigs:
    """Set those that the target does not have. `only_check`: nothing is set, and the outcome is the same."""
    if not wanted:
        return BroughtConfigs()
    try:
        known = control.resource_configs()
        there = {item[:3]: item.value for item in known.items or ()}
        missing = [item for item in wanted if item[:3] not in there]
        if known.items is None:  # a value that is there but not reported must not be replaced
            return _all_refused(
                wanted, f"the cluster does not report what it has: {known.reason}{_right(known.reason)}"
            )
        refused = control.set_resource_configs(missing, only_check=only_check)
    except BrokerRefused as error:  # records and positions are worth more
        return _all_refused(wanted, error.message.rstrip("."))
    no = {item.item for item in refused}
    kept = tuple(item for item in wanted if there.get(item[:3], item.value) != item.value)
    return BroughtConfigs(tuple(wanted), tuple(item for item in missing if item not in no), kept, tuple(refused))


def _all_refused(wanted: Sequence[ResourceConfig], why: str) -> BroughtConfigs:
    return BroughtConfigs(tuple(wanted), refused=tuple(SetRefused(item, why) for item in wanted))


def describe_brought_configs(brought: BroughtConfigs, *, would: bool = False) -> Iterator[str]:
    """Yield the warnings about configurations that do not come back; or that `would` not, in a dry run."""
    yield from describe_refused("configuration", brought.refused, would=would)
    if brought.kept:
        listed = first_of([str(item) for item in brought.kept])
        have = "configuration has" if len(brought.kept) == 1 else "configurations have"
        yield (
            f"{len(brought.kept)} {have} another value in the cluster, which is left as it is; archived are {listed}"
        )


# ---- of groups


def look_at_groups(context: RestoreContext, archived: ArchiveState, topic_ids: Collection[str]) -> list[str]:
    """Tell, before anything is written, which patterns choose no group and which groups the backup has left out, and in
    a dry run which configurations of groups would not come back. Raises SpecError for two groups that would get one
    name."""
    state, reported = _source(context, archived)
    wanted = context.spec.consumer_groups
    patterns = NamePatterns(wanted.include, wanted.exclude)
    left_out = [row for row in (() if state is None else state.left_out) if patterns.chooses(row[0])]
    chosen = {entry.group_id for entry in select(archived.groups, wanted)} | {row[0] for row in left_out}
    what = "consumer group of the archive" + (" at spec.point" if context.spec.point is not None else "")
    unused = describe_unused("spec.consumerGroups.rename", wanted.rename, chosen, "consumer group that is restored")
    reported = [*describe_unmatched("spec.consumerGroups.include", wanted.include, chosen, what), *unused, *reported]
    if state is None:
        return reported
    reported += describe_left_out(left_out)
    configs = configs_of_groups(state, _names(context, archived, state, topic_ids))
    if context.dry_run:
        reported += describe_brought_configs(bring_configs(context.control, configs, only_check=True), would=True)
    return reported


def bring_group_configs(context: RestoreContext, archived: ArchiveState, topic_ids: Collection[str]) -> list[str]:
    """Set the configurations of the groups that come back with these topics. Returns warnings."""
    state, reported = _source(context, archived)
    if state is None:
        return reported
    configs = configs_of_groups(state, _names(context, archived, state, topic_ids))
    return [*reported, *describe_brought_configs(bring_configs(context.control, configs))]


def _source(context: RestoreContext, archived: ArchiveState) -> tuple[ClusterState | None, list[str]]:
    """Return the state of the source; and a warning if it cannot be read."""
    try:
        return source_state(context.archive, archived, context.spec.point), []
    except ArchiveDamaged as error:
        return None, [f"configurations of consumer groups are not restored: {error.message}"]


def _names(
    context: RestoreContext, archived: ArchiveState, state: ClusterState, topic_ids: Collection[str]
) -> dict[str, str]:
    """Return the names in the target of the groups that have a position in one of these topics, or of all in a restore
    of everything."""
    names = target_names(
        {entry.group_id for entry in archived.groups} | {row[1] for row in state.configs or () if row[0] == GROUP},
        context.spec.consumer_groups,
    )
    coming = {entry.group_id for entry in archived.groups if entry.topic_id in topic_ids}
    return names if context.spec.everything else {name: names[name] for name in names if name in coming}


def _right(reason: str) -> str:
    """Return what to add to the reason if the user lacks a right: without it nobody could say which."""
    for kind, where in (("CLUSTER", "the cluster"), ("GROUP", "all groups")):
        if reason.startswith(f"{kind}_AUTHORIZATION_FAILED"):
            return f"; give the user the ACL DESCRIBE_CONFIGS on {where}"
    return ""
