"""On a real API server, what somebody makes in one namespace is in nobody's way in another."""

from __future__ import annotations

from pathlib import Path

from tests.apiserver.operator import Namespace, Operator, progress, result, run_id_of
from tests.apiserver.test_operator import start
from tests.cluster.apiserver import ApiServer
from tests.cluster.kube_api import path_of


def test_a_config_map_as_long_as_can_be_hides_no_other(
    api: ApiServer, namespace: Namespace, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    """The API writes each `<` in six bytes. Such a ConfigMap has more than 8 MiB as JSON."""
    tenant = Namespace(api, f"{namespace.name}-b")
    metadata = {
        "name": "long",
        "labels": {"app.kubernetes.io/managed-by": "logkeep"},
        "annotations": {"a": "<" * (255 << 10)},
        "ownerReferences": [{"apiVersion": "v1", "kind": "X", "uid": "u", "name": "<" * (220 << 10)}],
    }
    place = path_of(tenant.name, "cm")
    api.connection.create(place, {"metadata": metadata, "data": {"x": "<" * (1020 << 10)}})
    log = tmp_path / "operator.log"
    with Operator(operator_kubeconfig, f"{tenant.name},{namespace.name}", log, LOGKEEP_NAMESPACES="") as operator:
        job = start(namespace)
        namespace.pod(job, "driver", phase="Running")
        tenant.patch("cm", "long", {"metadata": {"labels": {"changed": "yes"}}})
        namespace.write(job, progress(run_id_of(job), 250))
        namespace.phase("kbak", "nightly", "Running")
        namespace.write(job, result=result(run_id_of(job)))
        namespace.job_ends(job, "Complete")
        namespace.phase("kbak", "nightly", "Succeeded")
        assert operator.running
    assert "cannot be read" not in log.read_text()
