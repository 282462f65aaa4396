"""The names of a run's children can be computed: what somebody has put there beforehand is neither run nor believed."""

from __future__ import annotations

import copy
import json
import time
from typing import Any

import pytest

from logkeep_engine.contract.request_files import hash_of_config_map, hash_of_job
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_operator.api import Key, Resource
from logkeep_operator.errors import ApiUnavailable, NameTaken
from logkeep_operator.reconcile.runs import wanted_run
from logkeep_operator.resources import OWN_LABELS, job_name, progress_name, request_name
from tests.unit.operator.fake_api import FakeApi
from tests.unit.operator.world import ENGINE, World, backup_spec

KEY = Key("KafkaBackup", "team", "nightly")
EVIL = {"request.json": json.dumps({"spec": {"cluster": {"bootstrapServers": ["attacker:9092"]}}})}


class Squatted:
    """A KafkaBackup that is about to run, and the names that its children will have."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        body = api.put("KafkaBackup", "team", "nightly", spec=backup_spec())
        self.resource = Resource.from_object("KafkaBackup", body)
        self.run_id = wanted_run(self.resource, parse_backup(body["spec"])).id
        self.request = request_name("nightly", self.run_id)
        self.progress = progress_name("nightly", self.run_id)
        self.job = job_name("nightly", self.run_id)
        self.controller = api.controller()

    def claims(self, **changes: Any) -> dict[str, Any]:
        """The metadata of a child of this resource: anybody can write it."""
        labels = {**OWN_LABELS, "logkeep.dev/kind": "KafkaBackup"}
        labels |= {"logkeep.dev/name": "nightly", "logkeep.dev/run": self.run_id}
        annotations = {"logkeep.dev/resource": "nightly"}
        owners = [self.resource.owner_reference()]
        return {"labels": labels, "annotations": annotations, "ownerReferences": owners} | changes

    def looks(self) -> None:
        self.controller.reconcile(KEY)

    def is_refused(self, kind: str, name: str, why: str) -> None:
        """A look makes no Job, and says why."""
        jobs = self.api.names("Job", "team")
        with pytest.raises(NameTaken):
            self.looks()
        assert self.api.names("Job", "team") == jobs
        status = self.api.get("KafkaBackup", "team", "nightly")["status"]
        (ready,) = (one for one in status["conditions"] if one["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
        assert ready["message"] == (
            f"{kind} {name} exists already but is not the one that this run needs: {why}. Nothing is started. Find "
            f"out who created it, and delete it: kubectl -n team delete {kind.lower()} {name}"
        )
        assert [w.body["reason"] for w in self.api.writes if "/events" in w.path][:1] == ["NameTaken"]


def made_by_operator() -> dict[str, dict[str, Any]]:
    """The objects that the operator makes for this run, by kind and end of the name."""
    with FakeApi() as api:
        here = Squatted(api)
        here.looks()
        found = {path.rpartition("-")[2]: body for path, body in api.objects.items() if "/configmaps/" in path}
        return {**found, "job": api.get("Job", "team", here.job)}


MADE = made_by_operator()
DATA = MADE["request"]["data"]
OWNER = MADE["request"]["metadata"]["ownerReferences"][0]


def test_the_job_carries_the_hash_of_its_request() -> None:
    assert hash_of_job(MADE["job"]) == hash_of_config_map(MADE["request"])
    assert MADE["request"]["immutable"] is True
    for key in MADE["request"]["data"]:
        other = copy.deepcopy(MADE["request"])
        other["data"][key] += " "
        assert hash_of_config_map(other) != hash_of_job(MADE["job"])
    other = copy.deepcopy(MADE["request"])
    other["data"]["more"] = ""
    assert hash_of_config_map(other) != hash_of_job(MADE["job"])
    assert hash_of_job({"spec": {}}) is None


NOT_OURS = "its controller is not KafkaBackup nightly of this uid"


def test_a_request_that_somebody_made_beforehand_is_not_run() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        api.put("ConfigMap", "team", here.request, data=EVIL)
        here.is_refused("ConfigMap", here.request, NOT_OURS)
        del api.objects[f"/api/v1/namespaces/team/configmaps/{here.request}"]
        here.looks()
        assert api.names("Job", "team") == [here.job]
        made = api.get("ConfigMap", "team", here.request)
        assert "attacker" not in made["data"]["request.json"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ownerReferences": []}, NOT_OURS),
        ({"ownerReferences": [{**OWNER, "uid": "another"}]}, NOT_OURS),
        ({"ownerReferences": [{**OWNER, "controller": False}]}, NOT_OURS),
        ({"ownerReferences": [{**OWNER, "name": "other"}]}, NOT_OURS),
        ({"labels": {}}, "it lacks labels of the run"),
    ],
)
def test_all_that_a_squatter_forgets_is_seen(changes: dict[str, Any], why: str) -> None:
    with FakeApi() as api:
        here = Squatted(api)
        ours = MADE["request"]
        metadata = here.claims(**changes)
        api.put("ConfigMap", "team", here.request, metadata=metadata, data=ours["data"], immutable=True)
        here.is_refused("ConfigMap", here.request, why)


def test_a_request_with_all_claims_of_ours_is_replaced_before_there_is_a_job() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        api.put("ConfigMap", "team", here.request, metadata=here.claims(), data=EVIL, immutable=True)
        here.looks()
        made, job = api.get("ConfigMap", "team", here.request), api.get("Job", "team", here.job)
        assert hash_of_config_map(made) == hash_of_job(job)
        assert "attacker" not in made["data"]["request.json"]


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"data": EVIL, "immutable": True}, "it holds another request"),
        ({"data": DATA}, "it can be changed"),
        ({"data": DATA, "immutable": True, "binaryData": {"x": "eA=="}}, "it holds another request"),
        (
            {"data": {**DATA, "executor-pod.yaml": "{}"}, "immutable": True},
            "it holds another request",
        ),
    ],
)
def test_a_request_that_comes_back_whenever_it_is_deleted_is_not_run(parts: dict[str, Any], why: str) -> None:
    """Somebody makes it between the operator's deletion and its creation."""
    with FakeApi() as api:
        here = Squatted(api)
        metadata = here.claims()
        api.comes_back[f"/api/v1/namespaces/team/configmaps/{here.request}"] = lambda: api.put(
            "ConfigMap", "team", here.request, metadata=metadata, **copy.deepcopy(parts)
        )
        here.is_refused("ConfigMap", here.request, why)


def test_a_job_that_somebody_made_beforehand_is_not_taken_for_the_run() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        complete = {"conditions": [{"type": "Complete", "status": "True"}]}
        api.put("Job", "team", here.job, spec=MADE["job"]["spec"], status=complete)
        here.is_refused("Job", here.job, NOT_OURS)
        api.put("Job", "team", here.job, metadata=here.claims(labels={}), spec=MADE["job"]["spec"])
        here.is_refused("Job", here.job, "it lacks labels of the run")


def forged(run_id: str) -> dict[str, str]:
    now = time.time()
    result = RunResult(
        run_id=run_id,
        kind="KafkaBackup",
        outcome="Succeeded",
        exit_code=0,
        start_time=now,
        end_time=now,
        records=17,
        message="all is well",
    )
    return {"result.json": result.to_json()}


@pytest.mark.parametrize("claims", [True, False])
def test_an_end_that_was_written_before_the_run_is_not_believed(claims: bool) -> None:
    with FakeApi() as api:
        here = Squatted(api)
        metadata = here.claims() if claims else {}
        api.put("ConfigMap", "team", here.progress, metadata=metadata, data=forged(here.run_id))
        if not claims:
            here.is_refused("ConfigMap", here.progress, NOT_OURS)
            return
        here.looks()
        here.looks()
        assert api.names("Job", "team") == [here.job]
        assert "data" not in api.get("ConfigMap", "team", here.progress)
        status = api.get("KafkaBackup", "team", "nightly")["status"]
        assert "lastSuccessTime" not in status
        assert "history" not in status


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"immutable": True}, "it cannot be changed"),
        ({"binaryData": {"result.json": "e30="}}, "the driver has not run yet, but it holds something"),
    ],
)
def test_a_place_for_progress_that_comes_back_is_not_used(parts: dict[str, Any], why: str) -> None:
    with FakeApi() as api:
        here = Squatted(api)
        metadata = here.claims()
        api.comes_back[f"/api/v1/namespaces/team/configmaps/{here.progress}"] = lambda: api.put(
            "ConfigMap", "team", here.progress, metadata=metadata, **copy.deepcopy(parts)
        )
        here.is_refused("ConfigMap", here.progress, why)


@pytest.mark.parametrize("name", ["nightly-0123456789-progress", "anything"])
def test_a_run_that_only_a_configmap_tells_of_is_none(name: str) -> None:
    """It would be the newest success, with a time of the schedule far ahead, so that no other backup began."""
    with FakeApi() as api:
        here = Squatted(api)
        metadata = here.claims()
        metadata["labels"]["logkeep.dev/run"] = "0123456789"
        metadata["annotations"] |= {
            "logkeep.dev/run-key": "k",
            "logkeep.dev/previous-run": "",
            "logkeep.dev/run-scheduled": "2999-01-01T00:00:00Z",
        }
        api.put("ConfigMap", "team", name, metadata=metadata, data=forged("0123456789"))
        for _ in range(3):
            here.looks()
        status = api.get("KafkaBackup", "team", "nightly")["status"]
        assert status["run"]["id"] == here.run_id
        assert "lastSuccessTime" not in status
        assert "lastScheduleTime" not in status
        assert "history" not in status
        assert name in api.names("ConfigMap", "team"), "it is not the operator's to delete"


OURS = {"app.kubernetes.io/managed-by": "logkeep"}
DRIVER = {"kind": "ServiceAccount", "name": "logkeep-engine", "namespace": "team"}


def bound(api: FakeApi, role: str, labels: dict[str, str], *subjects: dict[str, str]) -> None:
    """A RoleBinding with the name of the operator's is there, and its role cannot be changed."""
    api.put(
        *("RoleBinding", "team", "logkeep-driver"),
        metadata={"labels": labels},
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        subjects=list(subjects),
    )
    path = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/logkeep-driver"
    api.refused[path] = (422, {"reason": "Invalid", "message": "roleRef: cannot change roleRef"})


@pytest.mark.parametrize("role", ["old-logkeep-driver", "logkeep-driver"])
def test_a_binding_of_another_installation_is_made_again(role: str) -> None:
    with FakeApi() as api:
        here = Squatted(api)
        bound(api, role, OURS, DRIVER)
        here.looks()
        assert len(api.names("Job", "team")) == 1
        made = api.get("RoleBinding", "team", "logkeep-driver")
        assert made["roleRef"]["name"] == ENGINE.driver_role.name
        (deleted,) = (w for w in api.writes if w.verb == "DELETE" and "rolebindings" in w.path)
        assert deleted.body["preconditions"] == {"uid": "uid-team-logkeep-driver"}, "no other one of this name"


@pytest.mark.parametrize(
    ("role", "labels", "subjects"),
    [
        ("admin", OURS, [DRIVER]),
        ("old-logkeep-driver", {}, [DRIVER]),
        ("old-logkeep-driver", OURS, [DRIVER, {**DRIVER, "name": "another"}]),
        ("old-logkeep-driver", OURS, [{**DRIVER, "namespace": "elsewhere"}]),
    ],
)
def test_a_binding_that_binds_something_else_is_reported_and_nothing_is_started(
    role: str, labels: dict[str, str], subjects: list[dict[str, str]]
) -> None:
    with FakeApi() as api:
        here = Squatted(api)
        bound(api, role, labels, *subjects)
        with pytest.raises(NameTaken, match="RoleBinding logkeep-driver exists already and binds another role than"):
            here.looks()
        assert api.names("Job", "team") == []
        status = api.get("KafkaBackup", "team", "nightly")["status"]
        assert {c["reason"] for c in status["conditions"]} == {"NameTaken"}
        assert not [w for w in api.writes if w.verb == "DELETE"]


def test_a_driver_that_is_running_gets_its_rights_back_from_the_new_installation() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        here.looks()
        bound(api, "old-logkeep-driver", OURS, DRIVER)
        del api.writes[:]
        here.controller = api.controller()  # an operator that has just begun
        here.looks()
        assert api.get("RoleBinding", "team", "logkeep-driver")["roleRef"]["name"] == ENGINE.driver_role.name
        requested = len([path for path in api.requested if "rolebindings" in path])
        here.looks()
        assert len([path for path in api.requested if "rolebindings" in path]) == requested, "once in each namespace"


def test_a_binding_that_was_deleted_by_an_operator_that_died_is_made_by_the_next_look() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        bound(api, "old-logkeep-driver", OURS, DRIVER)
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings/logkeep-driver"

        def dies() -> None:
            raise ConnectionAbortedError

        api.comes_back[path] = dies
        with pytest.raises(ApiUnavailable):
            here.looks()
        assert "logkeep-driver" not in api.names("RoleBinding", "team")
        del api.comes_back[path]
        api.objects.pop(path, None)
        here.looks()
        assert len(api.names("Job", "team")) == 1


def test_the_binding_is_applied_whole_whatever_its_subjects_were() -> None:
    with FakeApi() as api:
        here = Squatted(api)
        here.looks()
        (applied,) = (w for w in api.writes if w.path.endswith("/rolebindings/logkeep-driver"))
        assert applied.verb == "PATCH"
        assert applied.body["subjects"] == [{"kind": "ServiceAccount", "name": "logkeep-engine", "namespace": "team"}]


def test_a_request_that_is_lost_is_made_again_as_its_job_knows_it_or_with_another_job() -> None:
    world = World()
    world.settle()
    request = request_name("nightly", world.run_id)
    world.job_is(active=1)
    world.driver()
    world.delete_config_map(request)
    world.settle()
    assert set(world.jobs) == {world.run_id}
    assert world.created[-1]["metadata"]["name"] == request
    assert hash_of_config_map(world.created[-1]) == world.jobs[world.run_id].request_hash
    before = world.jobs[world.run_id].request_hash
    world.edit(limits={"bytesPerSecond": "1Mi"})
    world.settle()
    assert world.jobs[world.run_id].request_hash == before, "the driver goes on with what it has"
    world.delete_config_map(request)
    world.step()
    assert world.jobs == {}
    assert world.condition("Ready") == ("False", "WaitingForPreviousRun")
    assert "was deleted and the spec has changed since" in world.message()
    world.collect()
    world.settle()
    made = [body for body in world.created if body["metadata"]["name"] == request][-1]
    assert world.jobs[world.run_id].request_hash == hash_of_config_map(made) != before
