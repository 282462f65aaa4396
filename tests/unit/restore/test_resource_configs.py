"""Configurations of groups and client metrics come back if the target lacks them, and what does not is reported."""

from collections.abc import Sequence
from typing import cast

import pytest

from logkeep_engine.archive.catalog.cluster_state import ClusterState
from logkeep_engine.errors import BrokerRefused
from logkeep_engine.kafka.configs import CLIENT_METRICS, GROUP
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.users import Known, SetRefused
from logkeep_engine.restore.positions.resource_configs import (
    BroughtConfigs,
    bring_configs,
    configs_of_groups,
    configs_of_metrics,
    describe_brought_configs,
)

RESET = ResourceConfig(GROUP, "queue", "share.auto.offset.reset", "earliest")
LOCK = ResourceConfig(GROUP, "queue", "share.record.lock.duration.ms", "15000")
OTHER = ResourceConfig(GROUP, "other", "consumer.session.timeout.ms", "50000")
METRICS = ResourceConfig(CLIENT_METRICS, "queue", "interval.ms", "60000")
STATE = ClusterState("run-1", 1, configs=(METRICS, OTHER, RESET, LOCK))


class Cluster:
    """A cluster that has these configurations, and refuses others."""

    def __init__(
        self, known: Known[ResourceConfig], *refuses: ResourceConfig, error: BrokerRefused | None = None
    ) -> None:
        self._known, self._refuses, self._error = known, refuses, error
        self.set: list[ResourceConfig] = []

    def resource_configs(self) -> Known[ResourceConfig]:
        if self._error is not None:
            raise self._error
        return self._known

    def set_resource_configs(
        self, configs: Sequence[ResourceConfig], *, only_check: bool = False
    ) -> list[SetRefused[ResourceConfig]]:
        self.set += () if only_check else configs
        return [SetRefused(item, "INVALID_CONFIG: no") for item in configs if item in self._refuses]

    def brought(self, *wanted: ResourceConfig, only_check: bool = False) -> BroughtConfigs:
        return bring_configs(cast(ControlPlane, self), wanted, only_check=only_check)


def test_groups_that_are_restored_get_theirs_under_their_new_names() -> None:
    assert configs_of_groups(STATE, {"queue": "copy.queue"}) == [
        RESET._replace(name="copy.queue"),
        LOCK._replace(name="copy.queue"),
    ]
    assert configs_of_groups(STATE, {}) == []
    assert configs_of_groups(None, {"queue": "queue"}) == []
    assert configs_of_groups(ClusterState("run-1", 1), {"queue": "queue"}) == []
    assert configs_of_metrics(STATE) == [METRICS]


def test_only_what_is_missing_is_set() -> None:
    cluster = Cluster(Known((RESET._replace(value="latest"), METRICS)))
    found = cluster.brought(RESET, LOCK, METRICS)
    assert (cluster.set, found.added, found.kept, found.refused) == ([LOCK], (LOCK,), (RESET,), ())
    assert [row[-2:] for row in found.rows()] == [["kept", ""], ["added", ""], ["there", ""]]
    (text,) = describe_brought_configs(found)
    assert text == (
        "1 configuration has another value in the cluster, which is left as it is; archived are "
        "share.auto.offset.reset=earliest of group 'queue'"
    )


def test_what_the_cluster_refuses_is_named() -> None:
    cluster = Cluster(Known(()), LOCK)
    found = cluster.brought(RESET, LOCK, METRICS, only_check=True)
    assert (cluster.set, found.added) == ([], (RESET, METRICS))
    said = "set: share.record.lock.duration.ms=15000 of group 'queue' (INVALID_CONFIG: no): set them by hand"
    assert list(describe_brought_configs(found)) == [f"1 configuration could not be {said}"]
    assert list(describe_brought_configs(found, would=True)) == [f"1 configuration would not be {said}"]
    assert found.rows()[1] == [*LOCK, "refused", "INVALID_CONFIG: no"]


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        (
            Cluster(Known(None, "CLUSTER_AUTHORIZATION_FAILED")),
            "does not report what it has: CLUSTER_AUTHORIZATION_FAILED",
        ),
        (Cluster(Known(()), error=BrokerRefused("The login failed.")), "(The login failed)"),
    ],
)
def test_a_cluster_that_does_not_tell_what_it_has_keeps_it(cluster: Cluster, why: str) -> None:
    found = cluster.brought(RESET)
    assert cluster.set == []
    (text,) = describe_brought_configs(found)
    assert why in text


def test_without_configurations_nobody_is_asked() -> None:
    assert Cluster(Known(()), error=BrokerRefused("asked")).brought() == BroughtConfigs()
