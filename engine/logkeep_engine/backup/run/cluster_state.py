"""Archives what a cluster knows in addition to topics and positions: ACLs, client quotas, names of SCRAM users,
configurations of groups and client metrics, what brokers give topics and groups by default, and finalized features.

It is read while the run is planned, once for all its attempts, so it belongs to the same moment as the ends of the logs
and the positions of groups. What the user may not read is named, and no run fails for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import KINDS, ClusterState, LeftOutRow, state_path
from logkeep_engine.archive.catalog.facts import ClusterStateEntry
from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, ObjectExists, ObjectMissing
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.users import REQUEST_UNKNOWN, Known
from logkeep_engine.log.cleanup import BROKER_RETENTION_KEYS, topic_defaults

T = TypeVar("T")

_NEEDED = {
    "acls": "DESCRIBE",
    "quotas": "DESCRIBE_CONFIGS",
    "scramUsers": "DESCRIBE",
    "topicDefaults": "DESCRIBE_CONFIGS",
    "configs": "DESCRIBE_CONFIGS",
    "brokerSettings": "DESCRIBE_CONFIGS",
}
"""The operation on the cluster that the user needs, by the key of the kind."""
_SETTINGS = frozenset(
    {
        *("auto.create.topics.enable", "compression.type", "default.replication.factor", "message.max.bytes"),
        *("log.cleaner.delete.retention.ms", "log.cleaner.enable", "log.cleaner.min.cleanable.ratio"),
        *("log.cleaner.max.compaction.lag.ms", "log.cleaner.min.compaction.lag.ms"),
        *("log.local.retention.bytes", "log.local.retention.ms", "log.roll.hours", "log.roll.ms", "log.segment.bytes"),
        *("log.message.timestamp.after.max.ms", "log.message.timestamp.before.max.ms"),
        *("log.message.timestamp.difference.max.ms", "log.message.timestamp.type"),
        *("min.insync.replicas", "num.partitions", "unclean.leader.election.enable"),
        *("offsets.retention.minutes", "producer.id.expiration.ms", "transactional.id.expiration.ms"),
        *("remote.log.storage.system.enable", "transaction.max.timeout.ms"),
        *BROKER_RETENTION_KEYS,
    }
)
_OF_GROUPS = ("errors.deadletterqueue.", "group.")
_OF_COORDINATORS = "group.coordinator."  # how brokers do their work, which no group sees


def archive_cluster_state(
    run_id: str, archive: Archive, control: ControlPlane, left_out: Callable[[], Sequence[LeftOutRow]]
) -> tuple[ClusterStateEntry, list[str]]:
    """Read the state of the cluster, unless an earlier attempt of the run has, and store it. Returns the fact for the
    commit that ends the run, and warnings about what was not reported. `left_out` are the groups that are not archived.
    """
    storage, path = archive.storage, state_path(run_id)
    try:
        data = storage.read(path)
    except ObjectMissing:
        data = _read(run_id, control, left_out()).to_json()
        try:
            storage.create(path, data)
        except ObjectExists:  # another attempt was faster, or the answer to this very call was lost
            data = storage.read(path)
    state = ClusterState.from_json(data, f"{storage.uri}/{path}")
    return state.entry(data), _warnings(state)


def _read(run_id: str, control: ControlPlane, left_out: Sequence[LeftOutRow]) -> ClusterState:
    acls, quotas, users = _asked(control.acls), _asked(control.quotas), _asked(control.scram_users)
    configs = _asked(control.resource_configs)
    defaults = topic_defaults(control.broker_configs(BROKER_RETENTION_KEYS))
    settings = control.broker_settings(changes_topics)
    # A user who may see quotas may see configurations: brokers that report none then cannot be made to.
    hidden = REQUEST_UNKNOWN if quotas.items is not None else quotas.reason
    found: dict[str, Known[Any]] = {
        "acls": acls,
        "quotas": quotas,
        "scramUsers": users,
        "topicDefaults": Known(tuple(defaults.items()) or None, hidden),
        "configs": configs,
        "brokerSettings": Known(None if settings is None else tuple(settings.items()), hidden),
    }
    reasons = {key: known.reason for key, known in found.items() if known.items is None}
    return ClusterState(
        run_id=run_id,
        time=int(time.time() * 1000),
        acls=None if acls.items is None else tuple(sorted(acls.items)),
        quotas=None
        if quotas.items is None
        else tuple(
            sorted(((item.entity, item.key, item.value) for item in quotas.items if item.value is not None), key=repr)
        ),
        users=None if users.items is None else tuple(sorted(users.items)),
        reasons=reasons | ({"configs": configs.reason} if configs.reason else {}),
        authorizer=not acls.switched_off,
        defaults=defaults or None,
        configs=None if configs.items is None else tuple(sorted(configs.items)),
        settings=settings,
        features=control.features(),
        left_out=tuple(left_out),
    )


def changes_topics(key: str) -> bool:
    """Return whether a setting of the brokers changes what topics and groups do."""
    return key in _SETTINGS or (key.startswith(_OF_GROUPS) and not key.startswith(_OF_COORDINATORS))


def _asked(question: Callable[[], Known[T]]) -> Known[T]:
    """Return the answer. A cluster that does not answer this question may still be archived."""
    try:
        return question()
    except (BrokerRefused, BrokerUnavailable) as error:
        return Known(None, error.message)


def _warnings(state: ClusterState) -> list[str]:
    """Return the warning about what the cluster has not reported. Brokers that do not know a request cannot be made
    to."""
    reported = {key: reason for key, reason in state.reasons.items() if reason != REQUEST_UNKNOWN}
    if not reported:
        return []
    kinds = "; ".join(f"{KINDS[key]} ({reason})" for key, reason in reported.items())
    of_groups = {key for key, reason in reported.items() if reason.startswith("GROUP_AUTHORIZATION_FAILED")}
    rights = " and ".join(sorted({_NEEDED[key] for key in reported if key not in of_groups}))
    lacking = [f"{rights} on the cluster"] if rights else []
    lacking += ["DESCRIBE_CONFIGS on all groups"] if of_groups else []
    return [
        f"not archived from the cluster: {kinds}: give the user the ACL {', '.join(lacking)}, or set "
        "spec.clusterState to Ignore"
    ]
