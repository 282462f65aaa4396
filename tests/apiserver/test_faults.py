"""The operator while the API refuses, hides or delays what is in one namespace, and while a driver writes nonsense.
The faults come from a proxy before the real API server."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.apiserver.conftest import chart, service_account_kubeconfig
from tests.apiserver.operator import NAMESPACED_ROLE, Namespace, Operator, progress, result, run_id_of, wait_for
from tests.cluster import system
from tests.cluster.api_proxy import ApiProxy, Fault, Request, answer, delayed
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_of_its_own

pytestmark = pytest.mark.timeout(400)

RUNNING: dict[str, Any] = {"phase": "Running"}
REFUSALS = {
    "a missing RoleBinding": answer(403, "Forbidden"),
    "an expired token": answer(401, "Unauthorized"),
    "a list that is not there": answer(404, "NotFound"),
    "an answer that is no JSON": answer(200, "OK", "<html>a gateway's greeting</html>"),
}


@pytest.fixture
def proxy(api: ApiServer) -> Iterator[ApiProxy]:
    with ApiProxy(api) as running:
        yield running


@pytest.fixture
def other(api: ApiServer, unique: str) -> Namespace:
    """A second namespace, in which the faults are."""
    return Namespace(api, f"{unique}-bad")


class Watched(Operator):
    """An operator behind the proxy that serves several namespaces and its metrics."""

    def __init__(self, proxy: ApiProxy, kubeconfig: Path, folder: Path, *namespaces: Namespace) -> None:
        (self.port,) = system.free_ports(1, "127.0.0.1")
        through = proxy.kubeconfig(kubeconfig, folder / "through-proxy")
        names = ",".join(namespace.name for namespace in namespaces)
        super().__init__(through, names, folder / "operator.log", LOGKEEP_METRICS_PORT=str(self.port))

    def metric(self, name: str, **labels: str) -> float | None:
        """The value that /metrics says; None while it says nothing of the kind."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answered:
                text = answered.read().decode()
        except OSError:
            return None
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


@pytest.fixture
def operator(
    proxy: ApiProxy, operator_kubeconfig: Path, tmp_path: Path, namespace: Namespace, other: Namespace
) -> Iterator[Watched]:
    """The operator behind the proxy, serving both namespaces."""
    with Watched(proxy, operator_kubeconfig, tmp_path, namespace, other) as running:
        yield running


def inside(namespace: Namespace) -> Callable[[Request], bool]:
    return lambda request: request.namespace == namespace.name


def job_of(namespace: Namespace, name: str, timeout: float = 60) -> dict[str, Any]:
    """Wait for the Job of one resource."""

    def look() -> dict[str, Any] | None:
        return next((j for j in namespace.items("jobs") if name in j["metadata"]["name"]), None)

    return wait_for(f"the Job of {name}", look, timeout)


def applied(namespace: Namespace, name: str) -> None:
    done = namespace.apply("KafkaBackup", name, backup_of_its_own(name))
    assert done.returncode == 0, done.stderr


# ---- each namespace stands alone


@pytest.mark.parametrize("fault", REFUSALS.values(), ids=REFUSALS)
def test_a_namespace_that_cannot_be_read_stops_no_other_and_is_reported(
    namespace: Namespace, other: Namespace, operator: Watched, proxy: ApiProxy, fault: Fault
) -> None:
    applied(namespace, "first")
    job_of(namespace, "first")
    proxy.always(fault, where=inside(other))
    proxy.cut()  # every watch begins again
    applied(other, "hidden")
    wait_for(
        "the namespace to be told",
        lambda: operator.metric("logkeep_namespace_served", namespace=other.name) == 0,
    )
    wait_for("more requests that are refused", lambda: len(proxy.met) > 15, timeout=120)
    assert operator.running, operator.log.read_text()[-2000:]
    applied(namespace, "second")
    job_of(namespace, "second")
    assert operator.metric("logkeep_namespace_served", namespace=namespace.name) == 1
    proxy.well()
    job_of(other, "hidden")
    wait_for(
        "the namespace to be served again",
        lambda: operator.metric("logkeep_namespace_served", namespace=other.name) == 1,
        timeout=120,
    )


def test_a_namespace_without_its_role_binding_is_served_when_it_comes(
    api: ApiServer, operator_kubeconfig: Path, namespace: Namespace, other: Namespace, tmp_path: Path
) -> None:
    served = [f"watchNamespaces={{{namespace.name},{other.name}}}", "serviceAccount.name=two"]
    rights = chart("--show-only", "templates/rbac.yaml", *(part for value in served for part in ("--set", value)))
    api.kubectl("apply", "-f", "-", stdin=rights)
    other.kubectl("delete", "rolebindings", "--all")
    kubeconfig = service_account_kubeconfig(api, "two", tmp_path / "two")
    applied(namespace, "seen")
    applied(other, "hidden")
    both, log = f"{other.name},{namespace.name}", tmp_path / "log"
    with Operator(kubeconfig, both, log, LOGKEEP_DRIVER_ROLE=NAMESPACED_ROLE) as running:
        job_of(namespace, "seen")
        wait_for("the log to tell", lambda: f"namespace {other.name}: watch of Job" in running.log.read_text())
        api.kubectl("apply", "-f", "-", stdin=rights)
        job_of(other, "hidden", timeout=120)
        assert running.running


@pytest.mark.parametrize("fault", REFUSALS.values(), ids=REFUSALS)
def test_an_operator_that_starts_while_the_api_refuses_begins_when_it_answers(
    namespace: Namespace, proxy: ApiProxy, operator_kubeconfig: Path, tmp_path: Path, fault: Fault
) -> None:
    proxy.always(fault)
    with Watched(proxy, operator_kubeconfig, tmp_path, namespace) as operator:
        wait_for("some requests that are refused", lambda: len(proxy.met) > 3)
        assert operator.running, operator.log.read_text()[-2000:]
        assert "The CRDs of" in operator.log.read_text() or "whether the CRDs of" in operator.log.read_text()
        applied(namespace, "early")
        proxy.well()
        job_of(namespace, "early")


# ---- events


def test_an_event_that_is_refused_does_not_hold_the_status(
    namespace: Namespace, operator: Watched, proxy: ApiProxy
) -> None:
    proxy.always(answer(403, "Forbidden"), where=lambda request: "/events" in request.path)
    applied(namespace, "nightly")
    job = namespace.job()
    assert namespace.phase("kbak", "nightly", "Pending")["run"]["id"] == run_id_of(job)
    namespace.write(job, result=result(run_id_of(job)))
    namespace.phase("kbak", "nightly", "Succeeded")
    assert namespace.events("nightly") == []
    wait_for("the count", lambda: (operator.metric("logkeep_events_failed_total", reason="RunSucceeded") or 0) >= 1)
    assert "RunSucceeded" in operator.log.read_text()


# ---- slow namespaces


def test_slow_answers_in_one_namespace_hold_no_other(
    namespace: Namespace, other: Namespace, operator: Watched, proxy: ApiProxy
) -> None:
    applied(namespace, "first")
    job_of(namespace, "first")
    proxy.always(delayed(90), where=lambda request: inside(other)(request) and not request.watches)
    for number in range(6):
        applied(other, f"slow-{number}")
    wait_for("the workers to wait", lambda: len({r.path for r in proxy.met if "/slow-" in r.path}) >= 4)
    applied(namespace, "second")
    job_of(namespace, "second", timeout=80)


# ---- what drivers write


@pytest.mark.parametrize("document", ["[" * 4000, '{"format": 1, "runId": 5}'])
def test_a_progress_document_that_cannot_be_read_is_reported_and_the_job_decides(
    namespace: Namespace, operator: Watched, document: str
) -> None:
    applied(namespace, "nightly")
    job = namespace.job()
    run_id = run_id_of(job)
    namespace.pod(job, "driver", **RUNNING)
    name = f"{job['metadata']['name']}-progress"
    namespace.patch("configmap", name, {"data": {"progress.json": document}})
    namespace.reason("kbak", "nightly", "ProgressUnreadable")
    namespace.write(job, progress(run_id, 250))  # an attempt that can be read
    assert namespace.reason("kbak", "nightly", "Running")["status"] == "False"
    namespace.patch("configmap", name, {"data": {"result.json": document}})
    namespace.reason("kbak", "nightly", "ProgressUnreadable")
    terminated = {"exitCode": 0, "reason": "Completed", "message": "[" * 4000}
    container = {"name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    state = [{**container, "state": {"terminated": terminated}}]
    namespace.pod(job, "driver", phase="Succeeded", containerStatuses=state)
    namespace.job_ends(job, "Complete")
    assert "cannot be read" in namespace.phase("kbak", "nightly", "Succeeded")["run"]["message"]
    assert namespace.condition("kbak", "nightly", "DataLoss")["status"] == "Unknown"


def test_a_topic_name_without_end_makes_no_status_without_end(namespace: Namespace, operator: Watched) -> None:
    applied(namespace, "nightly")
    job = namespace.job()
    document = json.loads(progress(run_id_of(job), 250).to_json())
    document["partitionsShown"][0]["topic"] = "t" * 800_000
    name = f"{job['metadata']['name']}-progress"
    namespace.patch("configmap", name, {"data": {"progress.json": json.dumps(document)}})
    namespace.reason("kbak", "nightly", "ProgressUnreadable")
    assert len(json.dumps(namespace.status("kbak", "nightly"))) < 10_000
