"""A namespace with a quota, on a real API server with the controller that counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apiserver.conftest import install_crds, install_operator_account
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.cluster.apiserver import ApiServer
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def counted() -> Iterator[ApiServer]:
    """An API server whose quotas are counted, with the CRDs."""
    with ApiServer(("resourcequota-controller",)) as server:
        yield install_crds(server)


def test_runs_follow_each_other_where_a_quota_has_room_for_the_documents_of_one(
    counted: ApiServer, unique: str, tmp_path: Path
) -> None:
    place = Namespace(counted, unique)
    hard = {"count/configmaps": "2"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": hard}}
    place.kubectl("create", "-f", "-", stdin=json.dumps(quota))
    path = f"/api/v1/namespaces/{unique}/resourcequotas/few"
    wait_for("the quota", lambda: (counted.connection.get(path) or {}).get("status", {}).get("hard") == hard)
    account = install_operator_account(counted, tmp_path / "operator")
    with Operator(account, place.name, tmp_path / "operator.log"):
        place.apply("KafkaBackup", "nightly", backup_spec())
        ended: set[str] = set()
        for turn in range(3):
            place.patch("kbak", "nightly", {"metadata": {"annotations": {"logkeep.dev/run": str(turn)}}})

            def begun() -> list[str]:
                return [j["metadata"]["name"] for j in place.items("jobs") if run_id_of(j) not in ended]

            (name,) = wait_for(f"run {turn}", begun)
            job = place.get("job", name)
            place.write(job, result=result(run_id_of(job)))
            place.job_ends(job, "Complete")
            wait_for("its end", lambda: len(place.status("kbak", "nightly").get("history", ())) == len(ended) + 1)
            ended.add(run_id_of(job))
    assert "ApiRefused" not in place.events("nightly")[-1:]
