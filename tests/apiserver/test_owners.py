"""Pods that carry the labels of a run and are not its own: a copy for debugging, a manifest that was copied."""

from __future__ import annotations

import pytest

from tests.apiserver.operator import Namespace, Operator, progress, result, run_id_of, wait_for
from tests.apiserver.test_operator import RUNNING, start

pytestmark = pytest.mark.timeout(300)


def test_a_strangers_termination_message_is_not_believed(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    run_id = run_id_of(job)
    terminated = {"exitCode": 0, "reason": "Completed", "message": result(run_id).to_json()}
    container = {
        "name": "driver", "image": "x", "imageID": "x", "ready": False, "restartCount": 0,
        "state": {"terminated": terminated},
    }  # fmt: skip
    namespace.pod(job, "stranger", owned=False, phase="Succeeded", containerStatuses=[container])
    namespace.pod(job, "driver", **RUNNING)
    namespace.write(job, progress(run_id, 250))
    status = namespace.phase("kbak", "nightly", "Running")
    assert "outcome" not in status["run"]
    namespace.pod(job, "driver", phase="Succeeded", containerStatuses=[container])
    namespace.phase("kbak", "nightly", "Succeeded")


def test_a_strangers_pod_does_not_hold_up_the_next_run(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    namespace.pod(job, "stranger", owned=False, **RUNNING)
    namespace.write(job, result=result(run_id_of(job)))
    namespace.job_ends(job, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")
    namespace.kubectl("annotate", "kbak", "nightly", "logkeep.dev/run=2")
    wait_for("the second Job", lambda: len(namespace.items("jobs")) == 2)
