"""Resources that are deleted while nobody watches."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest

from logkeep_operator.api import Key
from logkeep_operator.controller import Controller
from logkeep_operator.metrics import Metrics
from tests.unit.operator.test_cluster_calls import Quiet, api
from tests.unit.operator.test_told_rightly import value
from tests.unit.operator.world import ENGINE, backup_spec

NIGHTLY = Key("KafkaBackup", "team", "nightly")
SERIES = ("logkeep_last_success_timestamp_seconds", "logkeep_resource_created_timestamp_seconds")


class Objects(Quiet):
    """An API with these KafkaBackups of namespace team and no other objects."""

    stored: ClassVar[dict[str, dict[str, Any]]] = {}

    def do_GET(self) -> None:  # noqa: N802 (http.server calls it so)
        name = self.path.rpartition("/")[2]
        if name in self.stored:
            return self.answer(json.dumps(self.stored[name]).encode())
        if self.path.endswith("/kafkabackups"):
            return self.answer(json.dumps({"items": list(self.stored.values())}).encode())
        if "/kafkabackups/" in self.path:
            return self.answer(b'{"reason": "NotFound"}', 404)
        return self.answer(b'{"items": []}')


@pytest.mark.parametrize("scope", ["team", None])
def test_a_resource_whose_deletion_no_event_told_has_no_series_after_a_resync(scope: str | None) -> None:
    metadata = {"name": "nightly", "namespace": "team", "uid": "u", "creationTimestamp": "2026-11-01T00:00:00Z"}
    Objects.stored = {"nightly": {"metadata": metadata, "spec": backup_spec(suspend=True)}}
    metrics = Metrics()
    with api(Objects) as cluster:
        controller = Controller(cluster, ENGINE, metrics)
        controller.unsettled(scope)
        assert value(metrics, SERIES[0], NIGHTLY) == 0
        Objects.stored = {}
        assert controller.unsettled("another") == []
        assert controller.unsettled(scope) == [(NIGHTLY, 0.0)]
        assert controller.reconcile(NIGHTLY) is None
        assert controller.unsettled(scope) == []
    assert [value(metrics, name, NIGHTLY) for name in SERIES] == [None, None]
