"""A restore that failed continues with the same run, on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.unit.operator.world import restore_spec

pytestmark = pytest.mark.timeout(300)

SOURCE = {"storage": {"uri": "s3://bucket/prefix"}}


def test_a_failed_restore_is_tried_again_with_more_memory(namespace: Namespace, operator: Operator) -> None:
    namespace.apply("KafkaRestore", "again", restore_spec(source=SOURCE))
    first = namespace.job()
    ended = result(run_id_of(first), kind="KafkaRestore", outcome="Failed", exit_code=1, error_code="SparkFailed")
    namespace.write(first, result=ended)
    terminated = {"exitCode": 137, "reason": "OOMKilled"}
    container = {"name": "driver", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
    namespace.pod(first, "old", phase="Failed", containerStatuses=[{**container, "state": {"terminated": terminated}}])
    namespace.job_ends(first, "Failed", "BackoffLimitExceeded", "")
    namespace.phase("krst", "again", "Failed")

    answer = namespace.apply("KafkaRestore", "again", restore_spec(source=SOURCE, spark={"driver": {"memory": "4Gi"}}))
    assert answer.returncode == 0, answer.stderr
    namespace.phase("krst", "again", "Failed")
    namespace.kubectl("annotate", "krst", "again", "logkeep.dev/retry=1")
    wait_for("the old Job to go", lambda: not namespace.items("jobs"))
    assert namespace.reason("krst", "again", "WaitingForPreviousRun")
    namespace.kubectl("delete", "pod", "old")  # as the garbage collector

    second = namespace.job()
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert (run_id_of(second), second["metadata"]["name"]) == (run_id_of(first), first["metadata"]["name"])
    driver: dict[str, Any] = second["spec"]["template"]["spec"]["containers"][0]
    assert driver["resources"]["limits"] == {"memory": "4Gi"}
    request = namespace.get("configmap", f"{second['metadata']['name']}-request")["data"]["request.json"]
    assert json.loads(request)["spec"]["spark"]["driver"]["memory"] == "4Gi"

    namespace.write(second, result=result(run_id_of(second), kind="KafkaRestore"))
    namespace.job_ends(second, "Complete")
    status = namespace.phase("krst", "again", "Succeeded")
    assert status["lastHandledRetry"] == "1"
    assert [entry["outcome"] for entry in status["history"]] == ["Succeeded", "Failed"]
    expected = ["RunStarted", "RunFailed", "RunRetried", "RunSucceeded"]  # an event follows the status

    def reported() -> bool:
        return [reason for reason in namespace.events("again") if reason.startswith("Run")] == expected

    wait_for("the events", reported)
