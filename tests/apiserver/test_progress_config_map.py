"""The driver's progress and result in a real ConfigMap."""

import json

import pytest
from kubernetes import client, config

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.report import ConfigMapSink, ProgressRange, Reporter
from tests.cluster.apiserver import ApiServer

NAME = "orders-progress"


@pytest.fixture
def config_map(apiserver: ApiServer, unique: str) -> str:
    """The namespace in which the operator has made the ConfigMap."""
    apiserver.kubectl("create", "namespace", unique)
    apiserver.kubectl("-n", unique, "create", "configmap", NAME, "--from-literal=kept=as it is")
    return unique


@pytest.fixture
def api(apiserver: ApiServer) -> client.CoreV1Api:
    return client.CoreV1Api(config.new_client_from_config(str(apiserver.kubeconfig)))  # type: ignore[no-untyped-call]


def test_progress_and_result_are_patched_into_the_config_map(
    apiserver: ApiServer, api: client.CoreV1Api, config_map: str
) -> None:
    reporter = Reporter("run", ConfigMapSink(NAME, config_map, api=api), interval=0.05)
    reporter.planned([ProgressRange(0, "orders", 0, 0, 100)], topics=1)
    reporter.done(0, 100, 1000)
    result = RunResult(run_id="run", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0)
    reporter.finish(result)
    data = json.loads(apiserver.kubectl("-n", config_map, "get", "configmap", NAME, "-o", "json").stdout)["data"]
    assert data["kept"] == "as it is"
    assert Progress.from_json(data[KEY_PROGRESS]).records == 100
    assert RunResult.from_json(data[KEY_RESULT]) == result


def test_config_map_that_is_gone_is_a_warning_not_an_error(
    api: client.CoreV1Api, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter("run", ConfigMapSink(NAME, unique, api=api), interval=0.05)
    reporter.phase("Running")
    reporter.finish(
        RunResult(run_id="run", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0)
    )
    assert "progress could not be written: NotFoundException: 404 Not Found" in caplog.text
    assert "result could not be written" in caplog.text
