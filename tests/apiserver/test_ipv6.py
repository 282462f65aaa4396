"""A cluster whose addresses are of IPv6: the operator, the driver and the plugin talk to such an API, and the kubelet
and Prometheus reach the operator."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes.config import incluster_config

from logkeep_engine.contract.names import KEY_PROGRESS
from logkeep_engine.spark.config_map import ConfigMaps
from logkeep_operator.cluster import KubernetesCluster, connect
from tests.apiserver.conftest import pod_account
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.plugin import Plugin
from tests.apiserver.test_operator import start
from tests.cluster import system
from tests.cluster.apiserver import ApiServer


def over_ipv6(kubeconfig: Path, path: Path) -> Path:
    """The same kubeconfig, with the API's address of IPv6."""
    config = json.loads(kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster["server"] = f"https://[::1]:{urlsplit(cluster['server']).port}"
    path.write_text(json.dumps(config))
    return path


def test_operator_and_plugin_work_and_are_reached(
    api: ApiServer, namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    probe, metrics = system.free_ports(2)
    config = over_ipv6(operator_kubeconfig, tmp_path / "operator.kubeconfig")
    with Operator(
        config,
        namespace.name,
        tmp_path / "operator.log",
        LOGKEEP_PROBE_PORT=str(probe),
        LOGKEEP_METRICS_PORT=str(metrics),
    ):
        job = start(namespace)
        namespace.write(job, result=result(run_id_of(job)))
        namespace.job_ends(job, "Complete")
        namespace.phase("kbak", "nightly", "Succeeded")
        for host in ("127.0.0.1", "[::1]"):
            with urllib.request.urlopen(f"http://{host}:{probe}/healthz", timeout=30) as answer:
                assert json.loads(answer.read()) == {"work": "acts"}
            with urllib.request.urlopen(f"http://{host}:{metrics}/metrics", timeout=30) as answer:
                assert b"\nlogkeep_runs_finished_total{" in answer.read()
    done = Plugin(over_ipv6(api.kubeconfig, tmp_path / "admin"), namespace.name)("status", "nightly")
    assert done.exit_code == 0, done.output
    assert "RunSucceeded" in done.stdout


def test_pods_reach_the_api_by_the_address_in_their_environment(
    api: ApiServer, namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.kubectl("create", "serviceaccount", "driver")
    namespace.kubectl("create", "role", "driver", "--verb=patch,get", "--resource=configmaps")
    account = f"{namespace.name}:driver"
    namespace.kubectl("create", "rolebinding", "driver", "--role=driver", f"--serviceaccount={account}")
    namespace.kubectl("create", "configmap", "run-progress")
    folder = tmp_path / "account"
    environ = pod_account(api, "driver", folder, namespace.name) | {"KUBERNETES_SERVICE_HOST": "::1"}
    driver = ConfigMaps(environ, folder)

    def patched() -> bool:
        try:
            driver.patch("run-progress", namespace.name, {"data": {KEY_PROGRESS: "{}"}}, 10)
        except Exception:  # the role is not known yet
            return False
        return True

    wait_for("the driver to patch its ConfigMap", patched)
    assert namespace.get("configmap", "run-progress")["data"] == {KEY_PROGRESS: "{}"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    client = connect()
    assert client.configuration.host == f"https://[::1]:{environ['KUBERNETES_SERVICE_PORT']}"
    assert KubernetesCluster(client).serves_kinds()
