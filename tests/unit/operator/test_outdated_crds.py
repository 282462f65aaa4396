"""CRDs of an earlier version: the API server drops what they lack, so the operator does nothing and says why."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from logkeep_engine.contract.names import PLURALS
from logkeep_operator.answers import check_stored
from logkeep_operator.api import Key
from logkeep_operator.api.fields import Fields, keeps_more, known_fields, lacking, own_fields, served_fields
from logkeep_operator.api.status import Status
from logkeep_operator.crds import FRESH_SECONDS, OUTDATED_SECONDS, Crds, problem_of
from logkeep_operator.errors import AnswerWrong, ApiUnavailable, NotStored
from logkeep_operator.metrics import Metrics
from tests.cluster import names
from tests.unit.operator.fake_api import OPENAPI, FakeApi, published
from tests.unit.operator.world import backup_spec

KEY = Key("KafkaBackup", "team", "nightly")
DOCUMENT: dict[str, Any] = json.loads(published())


def without(*paths: str, kind: str = "KafkaBackup") -> dict[str, Any]:
    """The published document of CRDs that lack fields of a kind."""
    document = copy.deepcopy(DOCUMENT)
    for path in paths:
        part = document["components"]["schemas"][f"dev.logkeep.v1alpha1.{kind}"]
        *parents, name = path.split(".")
        for parent in parents:
            part = part["properties"][parent]
            part = part.get("items", part)
        del part["properties"][name]
    return document


def paths_of(fields: Fields, path: str = "") -> Iterator[str]:
    for name, below in fields.items():
        yield f"{path}{name}"
        if below is not None:
            yield from paths_of(below, f"{path}{name}.")


@pytest.mark.parametrize("kind", PLURALS)
def test_our_crds_lack_nothing_and_each_field_that_is_taken_out_is_named(kind: str) -> None:
    known = known_fields(kind)
    assert list(lacking(served_fields(DOCUMENT)[kind], known)) == []
    paths = list(paths_of(known))
    assert len(paths) > 10
    for path in paths[:: max(1, len(paths) // 25)]:
        assert list(lacking(served_fields(without(path, kind=kind))[kind], known)) == [path]


def test_a_crd_may_have_more_and_may_leave_parts_open() -> None:
    document = copy.deepcopy(DOCUMENT)
    properties = document["components"]["schemas"]["dev.logkeep.v1alpha1.KafkaBackup"]["properties"]
    properties["status"]["properties"]["ofTheNextVersion"] = {"type": "string"}
    properties["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert problem_of(served_fields(document)) == ""


def test_the_problem_names_crds_and_fields_and_what_to_do() -> None:
    reported = problem_of(served_fields(without("spec.dryRun", "status.run", "status.lastHandledRun", "status.loss")))
    assert reported == (
        "The CRDs in this cluster are older than this operator: kafkabackups.logkeep.dev lacks spec.dryRun, "
        "status.run, status.lastHandledRun and 1 more. The API server would silently drop these fields, so "
        "nothing is started, changed or deleted. Apply the CRDs of this version: kubectl apply --server-side "
        f"--force-conflicts -f {names.file('logkeep-crds.yaml')}"
    )


def test_a_crd_that_is_not_published_yet_is_no_old_one() -> None:
    document = copy.deepcopy(DOCUMENT)
    del document["components"]["schemas"]["dev.logkeep.v1alpha1.KafkaBackupRun"]
    with pytest.raises(ApiUnavailable, match="has not published the fields of KafkaBackupRun yet"):
        problem_of(served_fields(document))


def test_an_answer_that_is_no_openapi_document_is_an_error_and_no_verdict() -> None:
    with FakeApi() as api:
        api.instead[OPENAPI] = b'{"components": []}'
        with pytest.raises(AnswerWrong, match="the answer is not an OpenAPI document"):
            api.cluster().served_fields()
        del api.instead[OPENAPI]
        with pytest.raises(ApiUnavailable, match=r"has not published the CRDs of logkeep\.dev yet"):
            api.cluster().served_fields()
        api.put("KafkaBackup", "team", "nightly", spec=backup_spec())
        with pytest.raises(ApiUnavailable):
            api.controller().reconcile(KEY)
        assert api.writes == []


def test_nothing_is_done_but_saying_so_until_the_crds_are_applied() -> None:
    with FakeApi() as api:
        api.put("KafkaBackup", "team", "nightly", spec=backup_spec())
        api.instead[OPENAPI] = json.dumps(without("status.lastHandledRun")).encode()
        controller = api.controller()
        for _ in range(3):
            assert controller.reconcile(KEY) == 30.0
        assert [w.path.rpartition("/")[2] for w in api.written("team")] == ["status"]
        conditions = api.get(*KEY)["status"]["conditions"]
        assert {(c["type"], c["status"], c["reason"]) for c in conditions} == {
            ("Ready", "False", "CrdsOutdated"),
            ("Reconciling", "False", "CrdsOutdated"),
            ("Stalled", "True", "CrdsOutdated"),
        }
        assert "kafkabackups.logkeep.dev lacks status.lastHandledRun." in conditions[0]["message"]
        assert [w.body["reason"] for w in api.writes if "/events" in w.path] == ["CrdsOutdated"]
        api.instead[OPENAPI] = published()
        controller.crds.doubt()
        controller.reconcile(KEY)
        assert len(api.names("Job", "team")) == 1


def test_a_status_is_not_written_over_fields_that_the_crd_hides() -> None:
    with FakeApi() as api:
        written: dict[str, Any] = {"f:status": {".": {}, "f:run": {"f:id": {}}, "f:lastHandledRun": {}}}
        metadata = {"managedFields": [{"manager": "logkeep-operator", "fieldsV1": written}]}
        api.put("KafkaBackup", "team", "nightly", spec=backup_spec(), metadata=metadata)
        api.instead[OPENAPI] = json.dumps(without("status.lastHandledRun")).encode()
        api.controller().reconcile(KEY)
        assert api.written("team") == []
        assert [w.body["reason"] for w in api.writes if "/events" in w.path] == ["CrdsOutdated"]


@pytest.mark.parametrize(
    ("written", "more"),
    [
        ({"f:spec": {"f:suspend": {}}}, False),
        ({"f:spec": {"f:dryRun": {}}}, True),
        ({"f:spec": {"f:erasures": {'k:{"name":"a"}': {"f:name": {}, "f:topic": {}}}}}, False),
        ({"f:spec": {"f:erasures": {'k:{"name":"a"}': {"f:name": {}, "f:unheard": {}}}}}, True),
        ({"f:status": {"f:conditions": {'k:{"type":"Ready"}': {"f:reason": {}}}}}, False),
        ({"f:status": {"f:archive": {"f:anchor": {}}}}, True),
        ({"f:metadata": {"f:labels": {"f:whatever": {}}}}, False),
        ({"f:status": {"f:run": {"f:id": {"f:odd": {}}}}}, False),
    ],
)
def test_what_a_crd_hides_is_known_from_who_wrote_which_fields(written: dict[str, Any], more: bool) -> None:
    served = served_fields(without("spec.dryRun", "status.archive.anchor"))["KafkaBackup"]
    assert keeps_more({"managedFields": [{"manager": "x"}, {"manager": "y", "fieldsV1": written}]}, served) is more


def test_a_status_that_was_not_stored_as_sent_is_an_error_and_the_crds_are_looked_at_again() -> None:
    with FakeApi() as api:
        body = api.put("KafkaBackup", "team", "nightly", spec=backup_spec())
        controller = api.controller()
        path = "/apis/logkeep.dev/v1alpha1/namespaces/team/kafkabackups/nightly/status"
        api.refused[path] = (200, {**body, "status": {"phase": "Pending"}})
        with pytest.raises(NotStored, match=r"has not stored status\.archive, .*status\.run as sent"):
            controller.reconcile(KEY)
        assert api.requested.count(OPENAPI) == 1
        api.refused.clear()
        api.instead[OPENAPI] = json.dumps(without("status.run")).encode()
        assert controller.reconcile(KEY) == 30.0
        assert api.requested.count(OPENAPI) == 2


def test_what_is_stored_is_compared_to_the_last_item() -> None:
    loss = {"topic": "a", "partition": 0, "start": 1, "end": 2, "reason": ""}
    sent = Status.from_dict({"loss": [loss], "run": {"id": "r", "attempt": 1}}).to_dict()
    check_stored("PATCH", "/x", sent, {"status": {**sent, "more": 1}})
    cut = {**sent, "loss": [{k: v for k, v in sent["loss"][0].items() if k != "topic"}], "run": {"id": "r"}}
    with pytest.raises(NotStored, match=r"has not stored status\.loss\[\]\.topic, status\.run\.attempt, .* as sent"):
        check_stored("PATCH", "/x", sent, {"status": cut})


def test_crds_are_asked_for_again_after_a_while_and_sooner_while_they_are_old() -> None:
    with FakeApi() as api:
        metrics, times = Metrics(), [0.0]
        crds = Crds(api.cluster(), metrics, lambda: times[0])

        def gauge() -> float | None:
            return metrics.registry.get_sample_value("logkeep_crds_outdated")

        assert (crds.problem(), gauge()) == ("", 0)
        api.instead[OPENAPI] = json.dumps(without("status.run")).encode()
        times[0] = FRESH_SECONDS - 1
        assert crds.problem() == ""
        times[0] = FRESH_SECONDS
        assert "lacks status.run" in crds.problem()
        assert gauge() == 1
        api.instead[OPENAPI] = published()
        times[0] += OUTDATED_SECONDS
        assert (crds.problem(), gauge()) == ("", 0)
        assert api.requested.count(OPENAPI) == 3


def test_fields_of_other_kinds_are_not_sent() -> None:
    """A restore's archive has no time of a write: its CRD lacks the field, and what was sent would not be stored."""
    status = Status.from_dict(
        {
            "phase": "Succeeded",
            "archive": {"id": "a", "writeTime": "2026-11-28T16:00:00Z"},
            "loss": [{"topic": "orders", "partition": 0, "start": 1, "end": 2, "reason": ""}],
        }
    ).to_dict()
    kept = own_fields(status, known_fields("KafkaRestore")["status"])
    assert (kept["archive"], kept["phase"]) == ({"id": "a"}, "Succeeded")
    assert kept["loss"] == status["loss"]
    assert own_fields(status, known_fields("KafkaBackup")["status"]) == status
