"""Whoever may make objects in a namespace can make many and large ones: what the operator keeps of them is bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from logkeep_engine.contract.objects import MAX_OBJECT_BYTES
from logkeep_operator.answers import MAX_PAGE_BYTES
from logkeep_operator.api import Key, Resource
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.bounds import MAX_REQUESTED, own_child, weight_of
from logkeep_operator.errors import AnswerTooLong
from logkeep_operator.requested_runs import RequestedRuns
from logkeep_operator.resources import resource_labels
from logkeep_operator.snapshot import ResourceSnapshot
from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.world import backup_spec

NIGHTLY = Key("KafkaBackup", "team-a", "nightly")
LONG = "x" * 250_000
NOW = datetime(2026, 11, 27, tzinfo=UTC)


def requested(name: str, **metadata: Any) -> dict[str, Any]:
    known = {"name": name, "namespace": "team-a", "uid": f"uid-{name}", "resourceVersion": "7", **metadata}
    return {"metadata": known, "spec": {"backupRef": {"name": "nightly"}}}


def backup(name: str, *, namespace: str = "team-a", **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": metadata, "spec": backup_spec()}


def test_what_others_write_into_the_metadata_of_a_request_is_not_kept() -> None:
    owners = [{"kind": "X", "name": LONG, "uid": f"{number}"} for number in range(10_000)]
    fields = [{"manager": "x", "fieldsV1": {f"f:{LONG}": {}}}]
    body = requested("ask", annotations={"a": LONG}, labels={"b": "c"}, ownerReferences=owners, managedFields=fields)
    found = RequestedRun.from_object(body)
    assert weight_of(found.body) < 2000
    assert found.body["metadata"] == {
        key: body["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")
    }
    assert len(found.owners) == 100
    assert "9999" in found.owners, "the operator's own comes last"


def test_a_backup_is_added_once_to_many_owners() -> None:
    with FakeApi() as api:
        owners = [
            {"kind": "X", "name": "x", "uid": "u"},
            *({"kind": "X", "name": "x", "uid": f"{n}"} for n in range(200)),
        ]
        api.put("KafkaBackupRun", "team-a", "ask", metadata={"ownerReferences": owners}, spec=requested("ask")["spec"])
        cluster = api.cluster()
        (one,) = cluster.requested_runs("team-a")
        cluster.adopt_requested_run(one, "u")
        assert api.writes == []
        cluster.adopt_requested_run(one, "new")
        assert [owner["uid"] for owner in api.writes[0].body["metadata"]["ownerReferences"]][-2:] == ["199", "new"]


def test_an_annotation_of_a_resource_is_kept_if_it_is_logkeeps_and_short() -> None:
    body = backup("b", **{"other": LONG, "logkeep.dev/run": "1", "logkeep.dev/retry": LONG})
    found = Resource.from_object("KafkaBackup", body)
    assert set(found.annotations) == {"logkeep.dev/run", "logkeep.dev/retry"}
    assert found.trigger == "1"
    assert found.retry is not None
    assert len(found.retry) < 256
    changed = {**body, "metadata": {**body["metadata"], "annotations": {"logkeep.dev/retry": f"{LONG}y"}}}
    assert Resource.from_object("KafkaBackup", changed).retry != found.retry, "another value asks for something else"
    assert "annotations" not in found.body["metadata"]


def test_of_more_requests_than_are_read_at_once_the_first_are_read_and_then_the_others() -> None:
    class Cluster:
        bodies: list[dict[str, Any]] = [requested(f"{number:05}") for number in range(MAX_REQUESTED + 500)]  # noqa: RUF012

        def requested_runs(self, namespace: str | None) -> list[RequestedRun]:
            return [RequestedRun.from_object(body) for body in self.bodies]

    cluster = Cluster()
    known = RequestedRuns(cluster)  # type: ignore[arg-type]
    everything = known.all(None, NOW)
    assert [len(found) for found in everything.values()] == [MAX_REQUESTED]
    assert known.of(NIGHTLY, NOW) == everything[NIGHTLY]
    ended = {"phase": "Succeeded", "endTime": "2026-11-27T00:00:00Z"}
    cluster.bodies = [{**body, "status": ended} for body in cluster.bodies[:MAX_REQUESTED]] + cluster.bodies[
        MAX_REQUESTED:
    ]
    assert [one.name for one in known.of(NIGHTLY, NOW)] == [
        f"{number:05}" for number in range(MAX_REQUESTED, MAX_REQUESTED + 500)
    ]


def config_map(number: int, size: int, key: Key = NIGHTLY) -> dict[str, Any]:
    metadata = {"name": f"{key.name}-{number}", "namespace": key.namespace, "labels": resource_labels(key)}
    return {"metadata": metadata, "data": {"progress.json": "x" * size, "other": "y" * size}}


def test_children_of_one_resource_beyond_all_measure_are_its_own_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_operator.cluster.MAX_CHILDREN_BYTES", 1 << 20)
    with FakeApi() as api:
        for number in range(11):
            body = config_map(number, 100_000)
            api.put("ConfigMap", "team-a", body["metadata"]["name"], metadata=body["metadata"], data=body["data"])
        with pytest.raises(AnswerTooLong, match=f"{NIGHTLY}: the ConfigMaps with its labels take more than 1 MiB"):
            api.cluster().children("ConfigMap", NIGHTLY)
        assert api.cluster().children("ConfigMap", NIGHTLY._replace(name="other")) == []


def test_a_snapshot_leaves_out_what_is_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_operator.snapshot.MAX_SNAPSHOT_BYTES", 40_000)
    small, large = backup("a"), backup("b")
    large["spec"] = {**large["spec"], "topics": {"include": ["t" * 200] * 1000}}
    with FakeApi() as api:
        for body in (small, large, backup("c")):
            api.put("KafkaBackup", "team-a", body["metadata"]["name"], metadata=body["metadata"], spec=body["spec"])
        for key, size in ((NIGHTLY._replace(name="a"), 50_000), (NIGHTLY._replace(name="c"), 10)):
            body = config_map(1, size, key)
            api.put("ConfigMap", "team-a", body["metadata"]["name"], metadata=body["metadata"], data=body["data"])
        snapshot = ResourceSnapshot(api.cluster(), "team-a", lambda resource: True)
    names = {key.name for key in snapshot.resources}
    assert (names, {key.name for key in snapshot.left_out}) == ({"a", "c"}, {"b"})
    assert [snapshot.is_short(NIGHTLY._replace(name=name)) for name in "abc"] == [True, False, False]


def test_a_resource_that_a_snapshot_leaves_out_gets_a_look_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logkeep_operator.snapshot.MAX_SNAPSHOT_BYTES", 10)
    with FakeApi() as api:
        body = backup("nightly")
        api.put("KafkaBackup", "team-a", "nightly", metadata=body["metadata"], spec=body["spec"])
        assert (NIGHTLY, 0.0) in api.controller().unsettled("team-a")


def test_one_object_that_is_longer_than_a_page_hides_no_other() -> None:
    """A `<` takes six bytes in the API's JSON, so a ConfigMap of 1.4 MiB takes more than 8 MiB."""
    with FakeApi() as api:
        api.put("ConfigMap", "team-a", "long", metadata={"labels": {"app.kubernetes.io/managed-by": "logkeep"}})
        page = {"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": [config_map(1, 4)]}
        text = json.dumps(page).encode()
        api.instead["/api/v1/namespaces/team-a/configmaps"] = text + b" " * (MAX_PAGE_BYTES + 1)
        assert len(list(api.cluster().all_children("ConfigMap", "team-a"))) == 1
    assert MAX_OBJECT_BYTES > 1.5 * 6 * (1 << 20)


def test_only_what_decisions_need_is_kept_of_a_child() -> None:
    metadata = {"name": "x", "annotations": {"a": LONG}, "managedFields": [{"time": "t", "fieldsV1": {"f": LONG}}]}
    pod = {"metadata": metadata, "spec": {"nodeName": "n", "containers": [LONG]}, "status": {"phase": "Running"}}
    kept = {"metadata": {"name": "x", "annotations": {}, "managedFields": [{"time": "t"}]}}
    assert own_child("Pod", pod) == {**kept, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    data = {"progress.json": "p", "request.json": LONG}
    assert own_child("ConfigMap", {"metadata": metadata, "data": data}) == {**kept, "data": {"progress.json": "p"}}
    assert weight_of([[]] * 1000) > 64 * 1000
