"""A name in a resource stays in its namespace: no request leaves it, and an answer about something else is not used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from logkeep_engine.contract.objects import MAX_OBJECT_BYTES
from logkeep_operator.answers import page_bytes
from logkeep_operator.api import Key
from logkeep_operator.api.backup_run import RequestedRun
from logkeep_operator.errors import AnswerTooLong, AnswerWrong
from logkeep_operator.handlers import owner_key
from tests.unit.contract.test_objects import TRAPS
from tests.unit.operator.fake_api import OPENAPI, FakeApi
from tests.unit.operator.world import backup_spec

ELSEWHERE = "../../team-b/kafkabackups/nightly"
PODS = "../../../../../../api/v1/pods"
LOGKEEP = "/apis/logkeep.dev/v1alpha1/namespaces"


def with_backup_of_others(api: FakeApi) -> None:
    status = {"phase": "Succeeded", "lastSuccessTime": "2026-11-26T02:00:00Z", "archive": {"id": "theirs"}}
    api.put("KafkaBackup", "team-b", "nightly", spec=backup_spec(), status=status)


def asks(api: FakeApi, name: str) -> RequestedRun:
    """A KafkaBackupRun in team-a that an API server with earlier CRDs has taken."""
    return RequestedRun.from_object(api.put("KafkaBackupRun", "team-a", "steal", spec={"backupRef": {"name": name}}))


def stalled(body: dict[str, Any]) -> tuple[str, str, str]:
    (found,) = (one for one in body["status"]["conditions"] if one["type"] == "Stalled")
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize("name", TRAPS)
def test_a_name_that_leads_elsewhere_is_not_asked_for(name: str) -> None:
    with FakeApi() as api:
        with_backup_of_others(api)
        cluster = api.cluster()
        with pytest.raises(AnswerWrong, match=re.escape(f"{name!r} is not the name of a KafkaBackup")):
            cluster.resource(Key("KafkaBackup", "team-a", name))
        with pytest.raises(AnswerWrong):
            cluster.strimzi_kafka("team-a", name)
        with pytest.raises(AnswerWrong):
            cluster.strimzi_kafka(name, "prod")
        with pytest.raises(AnswerWrong):
            cluster.lease("logkeep", name)
        with pytest.raises(AnswerWrong):
            cluster.delete("ConfigMap", "team-a", name)
        assert (api.requested, api.writes) == ([], [])


@pytest.mark.parametrize("name", [ELSEWHERE, PODS, "..", "Nightly", "x/status", ""])
def test_who_may_create_runs_starts_none_in_another_namespace(name: str) -> None:
    with FakeApi() as api:
        with_backup_of_others(api)
        controller, one = api.controller(), asks(api, name)
        controller.requested.note(one)
        assert controller.reconcile(one.key) is None
        assert [write.path for write in api.written("team-a")] == [f"{LOGKEEP}/team-a/kafkabackupruns/steal/status"]
        assert api.written("team-b") == []
        reported = api.get("KafkaBackupRun", "team-a", "steal")
        assert reported["status"]["phase"] == "Failed"
        status, reason, message = stalled(reported)
        assert (status, reason) == ("True", "InvalidSpec")
        assert message.startswith(f"spec.backupRef.name: {name!r} is not a name in Kubernetes")
        assert {path.partition("?")[0] for path in api.requested} == {f"{LOGKEEP}/team-a/kafkabackupruns", OPENAPI}
        api.writes.clear()
        one = RequestedRun.from_object(reported)
        controller.requested.note(one)
        controller.reconcile(one.key)
        assert api.writes == [], "it has failed for good"


def test_a_resync_tells_one_that_no_event_has_told_of() -> None:
    with FakeApi() as api:
        with_backup_of_others(api)
        controller, one = api.controller(), asks(api, ELSEWHERE)
        assert (one.key, 0.0) in controller.unsettled("team-a")
        controller.reconcile(one.key)
        assert stalled(api.get("KafkaBackupRun", "team-a", "steal"))[1] == "InvalidSpec"
        assert controller.unsettled("team-a") == []


@pytest.mark.parametrize("name", [ELSEWHERE, PODS])
def test_a_drill_tells_no_backup_of_another_namespace(name: str) -> None:
    spec = {"source": {"backupRef": {"name": name}}, "cluster": {"bootstrapServers": ["k:9092"]}}
    with FakeApi() as api:
        with_backup_of_others(api)
        api.put("KafkaRestore", "team-a", "liar", spec={**spec, "drill": {"prefix": "d."}})
        controller = api.controller()
        for _ in range(3):
            controller.reconcile(Key("KafkaRestore", "team-a", "liar"))
        assert api.written("team-b") == []
        assert [w.path for w in api.written("team-a")] == [f"{LOGKEEP}/team-a/kafkarestores/liar/status"]
        assert stalled(api.get("KafkaRestore", "team-a", "liar"))[:2] == ("True", "InvalidSpec")
        assert not any("team-b" in path or "pods" in path.split("/")[:4] for path in api.requested), api.requested


@pytest.mark.parametrize("other", [{"namespace": "team-b"}, {"name": "other"}])
def test_an_answer_about_another_object_is_not_used(other: dict[str, str]) -> None:
    with FakeApi() as api:
        body = api.put("KafkaBackup", "team-a", "nightly", spec=backup_spec())
        body["metadata"].update(other)
        with pytest.raises(AnswerWrong, match="asked for KafkaBackup team-a/nightly of logkeep"):
            api.cluster().resource(Key("KafkaBackup", "team-a", "nightly"))
        with pytest.raises(AnswerWrong, match="answered with"):
            api.controller().reconcile(Key("KafkaBackup", "team-a", "nightly"))
        assert api.writes == []


def test_items_of_another_namespace_are_not_used() -> None:
    with FakeApi() as api:
        path = f"{LOGKEEP}/team-a/kafkabackups"
        item = {"metadata": {"name": "nightly", "namespace": "team-b", "uid": "u"}}
        page = {"kind": "KafkaBackupList", "apiVersion": "logkeep.dev/v1alpha1", "metadata": {}, "items": [item]}
        api.instead[path] = json.dumps(page).encode()
        with pytest.raises(AnswerWrong, match=r"asked for KafkaBackup team-a/\* .*; answered with KafkaBackup team-b/"):
            list(api.cluster().resources(["team-a"], {}))


def test_the_answer_to_one_question_is_not_read_beyond_what_an_object_can_have() -> None:
    with FakeApi() as api:
        path = f"{LOGKEEP}/team-a/kafkabackups/nightly"
        api.instead[path] = json.dumps({"kind": "PodList", "items": ["x" * 1000] * 17000}).encode()
        with pytest.raises(AnswerTooLong, match=f"GET {path}: the answer has more than 16 MiB, so it was not read"):
            api.cluster().resource(Key("KafkaBackup", "team-a", "nightly"))


def test_a_page_that_is_too_long_is_asked_for_again_with_fewer_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API of this test gives whatever the limit says; so the sizes of pages are set by the limit."""
    requested: list[int] = []
    monkeypatch.setattr("logkeep_operator.cluster.page_size", lambda kind: "8")
    with FakeApi() as api:
        cluster = api.cluster()
        ask = cluster._call

        def call(method: str, path: str, **how: Any) -> dict[str, Any]:
            limit = int(how["query"]["limit"])
            requested.append(limit)
            if limit > 3:
                raise AnswerTooLong("too long")
            assert how["most"] == page_bytes(limit)
            return ask(method, path, **how)

        monkeypatch.setattr(cluster, "_call", call)
        api.put("ConfigMap", "team-a", "one", metadata={"labels": {"app.kubernetes.io/managed-by": "logkeep"}})
        assert [body["metadata"]["name"] for body in cluster.all_children("ConfigMap", "team-a")] == ["one"]
        assert requested == [8, 4, 2]
        monkeypatch.setattr("logkeep_operator.cluster.page_size", lambda kind: "1")
        api.instead["/api/v1/namespaces/team-a/configmaps"] = b" " * (MAX_OBJECT_BYTES + 1)
        with pytest.raises(AnswerTooLong, match="more than 16 MiB"):
            list(cluster.all_children("ConfigMap", "team-a"))


def child(kind: str, name: object, *owners: dict[str, str]) -> dict[str, Any]:
    labels, annotations = {"logkeep.dev/kind": "KafkaBackup"}, {"logkeep.dev/resource": name}
    metadata = {"namespace": "team-a", "name": "c", "labels": labels, "annotations": annotations}
    return {"kind": kind, "metadata": {**metadata, "ownerReferences": list(owners)}}


@pytest.mark.parametrize("name", [ELSEWHERE, PODS, "..", 5, None])
def test_a_child_whose_annotation_is_not_a_name_wakes_nobody(name: object) -> None:
    owner = {"kind": "KafkaBackup", "name": str(name)}
    assert owner_key("ConfigMap", child("ConfigMap", name, owner)) is None
    assert owner_key("Pod", child("Pod", name)) is None


def test_a_child_wakes_the_resource_that_owns_it() -> None:
    owner = {"kind": "KafkaBackup", "name": "nightly"}
    key = Key("KafkaBackup", "team-a", "nightly")
    assert owner_key("ConfigMap", child("ConfigMap", "nightly", owner)) == key
    assert owner_key("Job", child("Job", "nightly", {"kind": "KafkaBackup", "name": "other"})) is None
    assert owner_key("ConfigMap", child("ConfigMap", "nightly")) is None
    assert owner_key("Pod", child("Pod", "nightly", {"kind": "Job", "name": "j"})) == key


def test_an_event_about_a_resource_with_a_long_name_has_a_name() -> None:
    name = "a" * 229 + "." + "b" * 20
    with FakeApi() as api:
        api.put("KafkaBackup", "team-a", name, spec=backup_spec())
        resource = api.cluster().resource(Key("KafkaBackup", "team-a", name))
        assert resource is not None
        api.cluster().event(resource, "Normal", "RunStarted", "it begins", "r1")
        (made,) = api.names("Event", "team-a")
        assert made.startswith("a" * 229 + ".")
