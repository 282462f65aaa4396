"""Two replicas of the operator and one Lease on a real API server. One acts; the other takes over, and no moment has
two that act."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_operator.__main__ import EXIT_LEASE_LOST
from tests.apiserver.conftest import SYSTEM, apply_permissions
from tests.apiserver.operator import Namespace, Operator, progress, result, run_id_of, wait_for
from tests.cluster import system
from tests.cluster.api_proxy import ApiProxy, delayed
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_of_its_own

pytestmark = pytest.mark.timeout(600)

RUNNING: dict[str, Any] = {"phase": "Running"}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/logkeep"


@pytest.fixture
def proxy(api: ApiServer) -> Iterator[ApiProxy]:
    with ApiProxy(api) as running:
        yield running


@pytest.fixture
def replica(
    api: ApiServer, operator_kubeconfig: Path, namespace: Namespace, tmp_path: Path
) -> Iterator[Callable[..., Operator]]:
    """Makes replicas, with Kubernetes' own times."""
    apply_permissions(api)
    api.kubectl("-n", SYSTEM, "delete", "lease", "logkeep", "--ignore-not-found")
    made: list[Operator] = []

    def make(name: str, kubeconfig: Path = operator_kubeconfig, **settings: str) -> Operator:
        operator = Operator(
            kubeconfig,
            namespace.name,
            tmp_path / f"{name}.log",
            LOGKEEP_LEASE_NAME="logkeep",
            LOGKEEP_LEASE_NAMESPACE=SYSTEM,
            LOGKEEP_POD_NAME=name,
            forked=True,
            **settings,
        )
        made.append(operator)
        operator.start()
        return operator

    yield make
    for operator in made:
        operator.kill()


def holder(api: ApiServer) -> str:
    """The replica that holds the Lease, empty for none."""
    lease = api.connection.get(LEASE)
    return str((lease or {}).get("spec", {}).get("holderIdentity", "")).partition("_")[0]


def wait_for_holder(api: ApiServer, name: str) -> None:
    wait_for(f"{name} to hold the Lease", lambda: holder(api) == name, 90)


def jobs(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    return [job for job in namespace.items("jobs") if job["metadata"]["annotations"]["logkeep.dev/resource"] == name]


def begin(namespace: Namespace, name: str) -> dict[str, Any]:
    """A backup whose driver runs; its Job."""
    answer = namespace.apply("KafkaBackup", name, backup_of_its_own(name))
    assert answer.returncode == 0, answer.stderr
    job: dict[str, Any] = wait_for(f"a Job of {name}", lambda: jobs(namespace, name))[0]
    namespace.pod(job, f"{name}-driver", **RUNNING)
    namespace.write(job, progress(run_id_of(job), 250))
    return job


def end(namespace: Namespace, job: dict[str, Any]) -> None:
    """The driver reports success and ends."""
    namespace.write(job, result=result(run_id_of(job)))
    namespace.pod(job, f"{job['metadata']['annotations']['logkeep.dev/resource']}-driver", phase="Succeeded")
    namespace.job_ends(job, "Complete")


def outcomes(namespace: Namespace, name: str) -> list[tuple[str, str]]:
    history = namespace.status("kbak", name).get("history", ())
    return [(entry["runId"], entry["outcome"]) for entry in history]


def test_when_the_acting_replica_is_killed_in_runs_none_is_lost_or_done_twice(
    api: ApiServer, namespace: Namespace, replica: Callable[..., Operator]
) -> None:
    one = replica("one")
    wait_for_holder(api, "one")
    replica("two")
    begun = {name: begin(namespace, name) for name in ("ended", "ends", "goes-on", "again")}
    end(namespace, begun["ended"])
    end(namespace, begun["again"])
    namespace.phase("kbak", "ended", "Succeeded")
    namespace.phase("kbak", "again", "Succeeded")
    namespace.phase("kbak", "goes-on", "Running")
    one.kill()
    end(namespace, begun["ends"])  # nobody sees it now
    namespace.write(begun["goes-on"], progress(run_id_of(begun["goes-on"]), 500))
    namespace.kubectl("annotate", "kbak", "again", "logkeep.dev/run=2")
    namespace.apply("KafkaBackup", "new", backup_of_its_own("new"))
    wait_for_holder(api, "two")
    namespace.phase("kbak", "ends", "Succeeded")
    wait_for("50 percent", lambda: namespace.status("kbak", "goes-on")["progress"]["percent"] == 50)
    wait_for("the Job of the new resource", lambda: jobs(namespace, "new"))
    wait_for("the second run", lambda: len(jobs(namespace, "again")) == 2)
    end(namespace, begun["goes-on"])
    namespace.phase("kbak", "goes-on", "Succeeded")
    counts = {name: len(jobs(namespace, name)) for name in (*begun, "new")}
    assert counts == {"ended": 1, "ends": 1, "goes-on": 1, "again": 2, "new": 1}
    for name in ("ended", "ends", "goes-on"):
        assert outcomes(namespace, name) == [(run_id_of(begun[name]), "Succeeded")]
    assert api.connection.get(LEASE)["spec"]["leaseTransitions"] == 1  # type: ignore[index]


def test_a_replica_that_was_stopped_past_its_lease_writes_nothing_when_it_continues(
    api: ApiServer,
    namespace: Namespace,
    replica: Callable[..., Operator],
    proxy: ApiProxy,
    operator_kubeconfig: Path,
    tmp_path: Path,
) -> None:
    one = replica("one", proxy.kubeconfig(operator_kubeconfig, tmp_path / "through-proxy"))
    wait_for_holder(api, "one")
    replica("two")
    job = begin(namespace, "nightly")
    namespace.phase("kbak", "nightly", "Running")
    one.stop()
    wait_for_holder(api, "two")
    end(namespace, job)  # with this and more its watches are full when it continues
    for name in ("a", "b", "c"):
        begin(namespace, name)
    namespace.phase("kbak", "nightly", "Succeeded")
    before = len(proxy.requests)
    one.go_on()
    assert one.wait_end() == EXIT_LEASE_LOST
    written = [request for request in proxy.requests[before:] if request.method != "GET"]
    assert [(request.method, request.path) for request in written] == []
    assert holder(api) == "two"
    assert all(len(jobs(namespace, name)) == 1 for name in ("nightly", "a", "b", "c"))


def test_a_holder_that_reaches_no_api_ends_and_the_other_continues(
    api: ApiServer,
    namespace: Namespace,
    replica: Callable[..., Operator],
    proxy: ApiProxy,
    operator_kubeconfig: Path,
    tmp_path: Path,
) -> None:
    one = replica("one", proxy.kubeconfig(operator_kubeconfig, tmp_path / "through-proxy"))
    wait_for_holder(api, "one")
    replica("two")
    job = begin(namespace, "nightly")
    namespace.phase("kbak", "nightly", "Running")
    proxy.always(delayed(3600))
    proxy.cut()
    end(namespace, job)
    namespace.apply("KafkaBackup", "new", backup_of_its_own("new"))
    assert one.wait_end() == EXIT_LEASE_LOST
    namespace.phase("kbak", "nightly", "Succeeded")
    assert holder(api) == "two"
    wait_for("the Job of the new resource", lambda: jobs(namespace, "new"))
    assert "this replica has lost the Lease" in one.log.read_text()


def test_a_replica_that_ends_gives_the_lease_back_and_one_that_waits_is_well(
    api: ApiServer, namespace: Namespace, replica: Callable[..., Operator]
) -> None:
    ports = dict(zip(("one", "two"), zip(*[iter(system.free_ports(4, "127.0.0.1"))] * 2, strict=True), strict=True))

    def make(name: str) -> Operator:
        probe, metrics = map(str, ports[name])
        return replica(name, LOGKEEP_PROBE_PORT=probe, LOGKEEP_METRICS_PORT=metrics)

    def requested(name: str, which: int, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ports[name][which]}{path}", timeout=10) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def probed(name: str) -> str:
        return str(json.loads(requested(name, 0, "/healthz") or "{}").get("work"))

    def leads(name: str, value: str) -> bool:
        return f"\nlogkeep_leader {value}\n" in requested(name, 1, "/metrics")

    one = make("one")
    wait_for_holder(api, "one")
    make("two")
    for name, value, says in (("one", "1.0", "acts"), ("two", "0.0", "waits")):
        wait_for(f"the metrics of {name}", lambda name=name, value=value: leads(name, value))  # type: ignore[misc]
        # A replica that has the Lease looks for the CRDs before it acts, and the probe's answer may be ten seconds old.
        wait_for(f"{name} to say that it {says}", lambda name=name, says=says: probed(name) == says)  # type: ignore[misc]
    assert one.terminate() == 0
    assert "is released" in one.log.read_text()
    wait_for_holder(api, "two")
    wait_for("two to say that it acts", lambda: leads("two", "1.0"))
    begin(namespace, "nightly")


def test_a_replica_that_waits_ends_when_it_is_told_to(api: ApiServer, replica: Callable[..., Operator]) -> None:
    replica("one")
    wait_for_holder(api, "one")
    two = replica("two")
    wait_for("two to wait", lambda: two.log.exists() and "this replica waits" in two.log.read_text())
    stopped_at = time.monotonic()
    assert two.terminate() == 0
    assert time.monotonic() - stopped_at < 4
    assert holder(api) == "one"
