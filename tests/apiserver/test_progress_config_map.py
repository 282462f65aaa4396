"""The driver's progress and result in a real ConfigMap."""

import base64
import gzip
import json
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ForbiddenException, UnauthorizedException
from urllib3.exceptions import MaxRetryError

from logkeep_engine.contract.emitting import StrimziVersion
from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT, ExitCode
from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.errors import TopicsNotEmitted
from logkeep_engine.report import ProgressRange, Reporter
from logkeep_engine.restore.topics.kafka_topics import config_map_data, kafka_topic
from logkeep_engine.spark import config_map as in_pod
from logkeep_engine.spark.config_map import ConfigMaps, ConfigMapSink
from tests.apiserver.conftest import pod_account
from tests.cluster.apiserver import ApiServer
from tests.cluster.process import wait_until

NAME = "orders-progress"
FEW = [kafka_topic("orders", 3, 3, {}, "prod", StrimziVersion.V1)]
MANY = [kafka_topic(f"orders-{n}", 3, 3, {"flush.ms": "1"}, "prod", StrimziVersion.V1) for n in range(6000)]
RESULT = RunResult(run_id="run", kind="KafkaBackup", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0)


@pytest.fixture
def config_map(apiserver: ApiServer, unique: str) -> str:
    """The namespace in which the operator has made the ConfigMap."""
    apiserver.kubectl("create", "namespace", unique)
    apiserver.kubectl("-n", unique, "create", "configmap", NAME, "--from-literal=kept=as it is")
    return unique


@pytest.fixture
def environ(apiserver: ApiServer, config_map: str, tmp_path: Path) -> dict[str, str]:
    """The environment of a pod whose account may patch ConfigMaps of the namespace. The account's files are in the
    folder `account`."""
    names = ("-n", config_map)
    apiserver.kubectl(*names, "create", "serviceaccount", "driver")
    apiserver.kubectl(*names, "create", "role", "driver", "--verb=patch", "--resource=configmaps")
    driver = f"{config_map}:driver"
    apiserver.kubectl(*names, "create", "rolebinding", "driver", "--role=driver", f"--serviceaccount={driver}")
    requested = [*names, "auth", "can-i", "patch", f"configmaps/{NAME}", f"--as=system:serviceaccount:{driver}"]
    wait_until(lambda: apiserver.kubectl(*requested, check=False).returncode == 0, 60, "the role to be known")
    return pod_account(apiserver, "driver", tmp_path / "account", config_map)


@pytest.fixture
def api(environ: dict[str, str], tmp_path: Path) -> ConfigMaps:
    return ConfigMaps(environ, tmp_path / "account")


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
    api: ConfigMaps, config_map: str, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = Reporter("run", ConfigMapSink("deleted", config_map, api=api), interval=0.05)
    reporter.phase("Running")
    reporter.finish(RESULT)
    assert "progress could not be written: NotFoundException: 404 Not Found" in caplog.text
    assert "result could not be written" in caplog.text


def test_a_pod_patches_it_as_its_service_account(
    apiserver: ApiServer, environ: dict[str, str], config_map: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_pod, "ACCOUNT", tmp_path / "account")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    sink = ConfigMapSink(NAME, config_map)
    sink.result(RESULT)

    found = apiserver.kubectl("-n", config_map, "get", "configmap", NAME, "-o", "json").stdout
    assert RunResult.from_json(json.loads(found)["data"][KEY_RESULT]) == RESULT
    with pytest.raises(ForbiddenException, match=f"{config_map}:driver"):
        ConfigMapSink(NAME, "default").result(RESULT)


def test_what_a_run_emits_is_patched_into_another_config_map(
    apiserver: ApiServer, api: ConfigMaps, config_map: str
) -> None:
    reporter = Reporter("run", ConfigMapSink("unused", config_map, api=api))
    for topics, kept in ((MANY, "binaryData"), (FEW, "data"), (MANY, "binaryData")):
        key, changes = config_map_data(topics)
        reporter.emit(NAME, changes)
        found = json.loads(apiserver.kubectl("-n", config_map, "get", "configmap", NAME, "-o", "json").stdout)
        written = {name: set(found.get(name) or {}) - {"kept"} for name in ("data", "binaryData")}
        assert written == {"data": set(), "binaryData": set(), kept: {key}}
        text = found[kept][key]
        text = text if kept == "data" else gzip.decompress(base64.b64decode(text)).decode()
        assert text.count("kind: KafkaTopic") == len(topics)


def test_topics_that_cannot_be_written_are_an_error(api: ConfigMaps, config_map: str) -> None:
    reporter = Reporter("run", ConfigMapSink("unused", config_map, api=api))
    with pytest.raises(TopicsNotEmitted, match="to ConfigMap deleted: NotFoundException: 404 Not Found") as failed:
        reporter.emit("deleted", config_map_data(FEW)[1])
    assert failed.value.exit_code == ExitCode.FAILED, "the Job tries again"


def test_a_token_that_was_renewed_is_used(api: ConfigMaps, config_map: str, tmp_path: Path) -> None:
    token = tmp_path / "account" / "token"
    renewed = token.read_text()
    token.write_text("expired")
    with pytest.raises(UnauthorizedException):
        ConfigMapSink(NAME, config_map, api=api).result(RESULT)
    token.write_text(renewed)
    ConfigMapSink(NAME, config_map, api=api).result(RESULT)


def test_the_proxy_of_the_environment_is_used_unless_the_api_is_excepted(
    environ: dict[str, str], config_map: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sink() -> ConfigMapSink:
        return ConfigMapSink(NAME, config_map, api=ConfigMaps(environ, tmp_path / "account"))

    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "example.com")
    with pytest.raises(MaxRetryError, match="proxy"):
        sink().result(RESULT)
    monkeypatch.setenv("NO_PROXY", environ["KUBERNETES_SERVICE_HOST"])
    sink().result(RESULT)
