"""The driver's progress and result in a real ConfigMap."""

import json
from base64 import b64decode
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from kubernetes import config
from kubernetes.client import Configuration
from kubernetes.client.exceptions import ForbiddenException
from kubernetes.config import incluster_config

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.report import ConfigMaps, ConfigMapSink, ProgressRange, Reporter
from tests.cluster.apiserver import ApiServer
from tests.cluster.process import wait_until

NAME = "orders-progress"
RESULT = RunResult(run_id="run", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0)


@pytest.fixture
def config_map(apiserver: ApiServer, unique: str) -> str:
    """The namespace in which the operator has made the ConfigMap."""
    apiserver.kubectl("create", "namespace", unique)
    apiserver.kubectl("-n", unique, "create", "configmap", NAME, "--from-literal=kept=as it is")
    return unique


@pytest.fixture
def api(apiserver: ApiServer) -> ConfigMaps:
    return ConfigMaps(config.new_client_from_config(str(apiserver.kubeconfig)))  # type: ignore[no-untyped-call]


def test_progress_and_result_are_patched_into_the_config_map(
    apiserver: ApiServer, api: ConfigMaps, config_map: str
) -> None:
    reporter = Reporter("run", ConfigMapSink(NAME, config_map, api=api), interval=0.05)
    reporter.planned([ProgressRange(0, "orders", 0, 0, 100)], topics=1)
    reporter.done(0, 100, 1000)
    reporter.finish(RESULT)
    data = json.loads(apiserver.kubectl("-n", config_map, "get", "configmap", NAME, "-o", "json").stdout)["data"]
    assert data["kept"] == "as it is"
    assert Progress.from_json(data[KEY_PROGRESS]).records == 100
    assert RunResult.from_json(data[KEY_RESULT]) == RESULT


def test_config_map_that_is_gone_is_a_warning_not_an_error(
    api: ConfigMaps, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter("run", ConfigMapSink(NAME, unique, api=api), interval=0.05)
    reporter.phase("Running")
    reporter.finish(RESULT)
    assert "progress could not be written: NotFoundException: 404 Not Found" in caplog.text
    assert "result could not be written" in caplog.text


def test_a_pod_patches_it_as_its_service_account(
    apiserver: ApiServer, config_map: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("-n", config_map)
    apiserver.kubectl(*names, "create", "serviceaccount", "driver")
    apiserver.kubectl(*names, "create", "role", "driver", "--verb=patch", "--resource=configmaps")
    driver = f"{config_map}:driver"
    apiserver.kubectl(*names, "create", "rolebinding", "driver", "--role=driver", f"--serviceaccount={driver}")
    asked = [*names, "auth", "can-i", "patch", f"configmaps/{NAME}", f"--as=system:serviceaccount:{driver}"]
    wait_until(lambda: apiserver.kubectl(*asked, check=False).returncode == 0, 60, "the role to be known")
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(apiserver.kubectl(*names, "create", "token", "driver").stdout.strip())
    cluster = yaml.safe_load(apiserver.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority.write_bytes(b64decode(cluster["certificate-authority-data"]))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    address = urlsplit(apiserver.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(address.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(address.port))
    monkeypatch.setattr(Configuration, "_default", None)  # the next tests have their own again

    sink = ConfigMapSink(NAME, config_map)
    sink.result(RESULT)

    data = json.loads(apiserver.kubectl(*names, "get", "configmap", NAME, "-o", "json").stdout)["data"]
    assert RunResult.from_json(data[KEY_RESULT]) == RESULT
    with pytest.raises(ForbiddenException, match=driver):
        ConfigMapSink(NAME, "default").result(RESULT)
