"""A restore of everything tells what it does not bring back: settings of brokers and levels of features."""

from collections.abc import Collection
from typing import cast

from logkeep_engine.archive.catalog.cluster_state import ClusterState
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.cluster_state.step import ClusterDifferences

STATE = ClusterState(
    "run-1",
    1,
    settings={"log.retention.hours": "-1", "num.partitions": "3", "errors.deadletterqueue.x": "true"},
    features={"metadata.version": 33, "share.version": 1, "group.version": 1},
)


class Cluster:
    """A cluster with these settings and features."""

    def __init__(self, settings: dict[str, str], features: dict[str, int]) -> None:
        self._settings, self._features = settings, features

    def broker_configs(self, names: Collection[str]) -> dict[str, str]:
        return {key: value for key, value in self._settings.items() if key in names}

    def features(self) -> dict[str, int]:
        return self._features

    def beside(self, state: ClusterState) -> ClusterDifferences:
        return ClusterDifferences.between(state, cast(ControlPlane, self))


def test_what_differs_is_reported_with_both_values() -> None:
    settings = {"log.retention.hours": "168", "num.partitions": "3"}
    found = Cluster(settings, {"metadata.version": 34, "group.version": 1}).beside(STATE)
    of_brokers, of_features = found.describe()
    assert "are not restored" in of_brokers
    assert "errors.deadletterqueue.x=true (here not set); log.retention.hours=-1 (here 168): set those" in of_brokers
    assert "num.partitions" not in of_brokers
    assert "share.version 1 (here 0)" in of_features
    assert "metadata.version" not in of_features
    rows = found.rows()
    assert rows["brokerSettings"]["rows"] == [
        ["errors.deadletterqueue.x", "true", None],
        ["log.retention.hours", "-1", "168"],
    ]
    assert rows["features"]["rows"] == [["share.version", 1, 0]]


def test_the_same_cluster_has_nothing_to_tell() -> None:
    found = Cluster(dict(STATE.settings or {}), dict(STATE.features)).beside(STATE)
    assert (list(found.describe()), found.settings, found.features) == ([], {}, {})
    assert list(Cluster({}, {}).beside(ClusterState("run-1", 1)).describe()) == []


def test_a_cluster_that_reports_no_settings_is_not_said_to_have_none() -> None:
    text, *_ = Cluster({}, dict(STATE.features)).beside(STATE).describe()
    assert "log.retention.hours=-1 (here not reported)" in text
    assert "not set" not in text
