"""The status tells what the cluster cannot run, with the scheduler's or kubelet's own words."""

import pytest

from tests.cluster.logkeep import small
from tests.cluster.process import wait_until
from tests.e2e.home import Home

pytestmark = pytest.mark.timeout(900)


def test_an_executor_that_fits_no_node_is_in_the_status_and_goes_with_the_resource(home: Home) -> None:
    home.fill("unplaced", 1, 1)
    spark = small()
    huge = {**spark, "conf": {**spark["conf"], "spark.kubernetes.executor.request.cores": "500"}}
    saved = home.backup("unplaced", spark=huge)

    wait_until(lambda: "Insufficient cpu" in str(saved.status), 240, "the scheduler's message in the status")

    message = saved.condition("Ready")["message"] + saved.condition("Reconciling").get("message", "")
    assert "Insufficient cpu" in message, saved.status
    assert "executor" in message, saved.status
    saved.delete()
    wait_until(lambda: not home.pods(), 120, "the pods to go")


def test_a_missing_secret_is_named_in_the_status_and_creating_it_lets_the_run_continue(home: Home) -> None:
    records = home.fill("locked", 1, 1)
    home.logkeep.node.kubectl("-n", home.namespace, "delete", "secret", "archive-s3")
    saved = home.backup("locked", spark={})

    wait_until(lambda: "archive-s3" in str(saved.status), 240, "the Secret's name in the status")
    assert saved.status["phase"] in ("Pending", "Running"), saved.status

    keys = {"accessKeyId": home.s3.access_key, "secretAccessKey": home.s3.secret_key}
    home.logkeep.create_secret(home.namespace, "archive-s3", keys)
    assert saved.wait("Succeeded")["progress"]["records"] == records
