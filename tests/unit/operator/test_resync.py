"""A resync: all resources of a namespace by one snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import pytest

from logkeep_operator import controller
from logkeep_operator.api import Key, Resource
from logkeep_operator.api.archive import KafkaArchive
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.api.fields import Fields
from logkeep_operator.cluster import KubernetesCluster
from logkeep_operator.controller import Controller
from logkeep_operator.metrics import Metrics
from logkeep_operator.reconcile import Observed, Plan, RunQueue, reconcile
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.fake_api import our_fields
from tests.unit.operator.world import ENGINE, START, backup_spec


class Lists:
    """A cluster that answers only requests for lists."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def served_fields(self) -> dict[str, Fields]:
        return our_fields()

    def now(self) -> datetime:
        return START

    def archives(self, namespaces: list[str]) -> list[KafkaArchive]:
        return []

    def resources(self, namespaces: list[str], archives: Mapping[Key, KafkaArchive]) -> list[Resource]:
        return [
            Resource.from_object("KafkaBackup", {"metadata": _metadata(name), "spec": backup_spec()})
            for name in self.names
        ]

    def requested_runs(self, namespace: str | None) -> list[RequestedRun]:
        return []

    def all_children(self, kind: str, namespace: str | None) -> list[dict[str, Any]]:
        return []

    def resource(self, key: Key) -> Resource | None:
        return next((found for found in self.resources([], {}) if found.key == key), None)


def _metadata(name: str) -> dict[str, Any]:
    return {"name": name, "namespace": "team", "uid": f"uid-of-{name}", "creationTimestamp": "2026-11-21T07:00:00Z"}


def key(name: str) -> Key:
    return Key("KafkaBackup", "team", name)


def test_a_resource_that_cannot_be_judged_holds_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(observed: Observed, now: datetime, engine: EngineSettings, *turns: RunQueue) -> Plan:
        if observed.resource.key.name == "odd":
            raise OverflowError("date value out of range")
        return reconcile(observed, now, engine, *turns)

    monkeypatch.setattr(controller, "reconcile", judged)
    requested = Controller(cast(KubernetesCluster, Lists("odd", "plain")), ENGINE, Metrics())
    assert requested.unsettled("team") == [(key("odd"), 0.0), (key("plain"), 0.0)]


def test_the_series_of_a_resource_that_was_deleted_unseen_end() -> None:
    lists, metrics = Lists("kept", "deleted"), Metrics()
    requested = Controller(cast(KubernetesCluster, lists), ENGINE, metrics)
    requested.unsettled("team")
    lists.names.remove("deleted")
    assert key("deleted") not in dict(requested.unsettled("other"))
    found = requested.unsettled("team")
    assert (key("deleted"), 0.0) in found
    assert requested.reconcile(key("deleted")) is None
    assert key("deleted") not in dict(requested.unsettled("team"))
    samples = [sample for metric in metrics.registry.collect() for sample in metric.samples]
    assert {sample.labels["name"] for sample in samples if "name" in sample.labels} == {"kept"}
