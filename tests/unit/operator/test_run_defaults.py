"""Defaults that an installation gives to the pods of runs: what a resource says wins."""

from __future__ import annotations

import json
from typing import Any

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.request_files import hash_of_config_map
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import Observed, Plan, reconcile
from logkeep_operator.settings import EngineSettings
from tests.unit.operator.world import ENGINE, START, backup_spec, resource, restore_spec

POOL = {"nodeSelector": {"pool": "batch", "disk": "fast"}, "tolerations": [{"key": "batch", "operator": "Exists"}]}
DRIVER = {"memory": "2Gi", "coreRequest": "500m", "podTemplate": {"metadata": {"labels": {"team": "x"}}, "spec": POOL}}
EXECUTOR = {"instances": 7, "memory": "3Gi", "podTemplate": {"spec": POOL}}
GIVEN = replace(ENGINE, defaults={"driver": DRIVER, "executor": EXECUTOR})


def plan(spec: dict[str, Any], engine: EngineSettings = GIVEN, kind: str = "KafkaBackup") -> Plan:
    return reconcile(Observed(resource(kind, spec)), START, engine)


def made(spec: dict[str, Any], engine: EngineSettings = GIVEN) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The driver's pod, the executors' template and the request of the run that begins."""
    bodies = [action.body for action in plan(spec, engine).actions if hasattr(action, "body")]
    (job,) = (body for body in bodies if body["kind"] == "Job")
    (request,) = (body for body in bodies if body["metadata"]["name"].endswith("-request"))
    template = json.loads(request["data"]["executor-pod.yaml"])
    return job["spec"]["template"], template, json.loads(request["data"]["request.json"])


def test_a_resource_that_says_nothing_gets_the_defaults() -> None:
    driver, executor, request = made(backup_spec())
    (container,) = driver["spec"]["containers"]
    assert container["resources"] == {
        "requests": {"cpu": "500m", "memory": "2048Mi"}, "limits": {"memory": "2048Mi"},
    }  # fmt: skip
    assert driver["metadata"]["labels"]["team"] == "x"
    for pod in (driver, executor):
        assert (pod["spec"]["nodeSelector"], pod["spec"]["tolerations"]) == (POOL["nodeSelector"], POOL["tolerations"])
    conf = request["sparkConf"]
    assert conf["spark.executor.instances"] == "7"
    assert request["spec"]["spark"]["executor"]["instances"] == 7  # the driver asks for so many


def test_what_a_resource_says_itself_wins() -> None:
    own = {
        "driver": {"memory": "1Gi", "podTemplate": {"spec": {"nodeSelector": {"disk": "slow"}}}},
        "executor": {"instances": 1, "podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}]}}},
    }
    driver, executor, request = made(backup_spec(spark=own))
    (container,) = driver["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "500m", "memory": "1024Mi"}
    assert driver["spec"]["nodeSelector"] == {"pool": "batch", "disk": "slow"}
    assert executor["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert request["sparkConf"]["spark.executor.instances"] == "1"
    assert executor["spec"]["nodeSelector"] == POOL["nodeSelector"]


def test_a_change_of_the_defaults_starts_no_run() -> None:
    ids = []
    for engine in (ENGINE, GIVEN):
        status = plan(backup_spec(), engine).status
        assert status is not None
        assert status.run is not None
        ids.append(status.run.id)
    assert ids[0] == ids[1]


def test_a_wrong_resource_is_told_its_own_mistake_and_not_that_of_the_defaults() -> None:
    status = plan(backup_spec(spark={"driver": {"podTemplate": {"spec": {"volumes": [{}]}}}})).status
    assert status is not None
    assert status.phase is Phase.INVALID
    ready = status.condition("Ready")
    assert ready is not None
    assert "spec.spark.driver.podTemplate.spec.volumes[0]" in ready.message


def test_a_restore_and_its_drill_get_them_too() -> None:
    spec = restore_spec(source={"storage": backup_spec()["storage"]})
    bodies = [action.body for action in plan(spec, kind="KafkaRestore").actions if hasattr(action, "body")]
    (job,) = (body for body in bodies if body["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["nodeSelector"] == POOL["nodeSelector"]


def test_without_defaults_the_request_is_what_it_was() -> None:
    def request_of(engine: EngineSettings) -> dict[str, Any]:
        bodies = [action.body for action in plan(backup_spec(), engine).actions if hasattr(action, "body")]
        return next(body for body in bodies if body["metadata"]["name"].endswith("-request"))

    assert hash_of_config_map(request_of(ENGINE)) != hash_of_config_map(request_of(GIVEN))
    assert "spark" not in json.loads(request_of(ENGINE)["data"]["request.json"])["spec"]
