"""Which pods are believed to be a resource's own."""

from __future__ import annotations

from typing import Any

from logkeep_operator.reconcile import own_pods
from logkeep_operator.resources import job_name

RUN = "0123456789"
JOB = job_name("nightly", RUN)


def pod(name: str, role: str = "driver", *owners: dict[str, Any], run_id: str = RUN) -> dict[str, Any]:
    labels = {"logkeep.dev/run": run_id, "logkeep.dev/role": role}
    return {"metadata": {"name": name, "uid": f"uid-of-{name}", "labels": labels, "ownerReferences": list(owners)}}


def owner(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "name": name, "uid": f"uid-of-{name}", "controller": True, **more}


def names(*pods: dict[str, Any]) -> list[str]:
    return [found.name for found in own_pods(pods, "nightly")]


def test_a_driver_is_its_jobs_and_an_executor_is_its_drivers() -> None:
    driver, executor = pod("driver", "driver", owner("Job", JOB)), pod("exec-1", "executor", owner("Pod", "driver"))
    assert names(executor, driver) == ["driver", "exec-1"]


def test_a_driver_whose_job_is_gone_or_was_made_again_is_still_known() -> None:
    assert names(pod("driver", "driver", owner("Job", JOB, uid="uid-of-the-first"))) == ["driver"]


def test_a_driver_that_its_job_has_left_behind_is_still_known() -> None:
    """`kubectl delete job --cascade=orphan` takes the owner away; the driver writes on."""
    orphan = pod("driver")
    orphan["metadata"]["generateName"] = f"{JOB}-"
    executor = pod("exec-1", "executor", owner("Pod", "driver"))
    assert names(orphan, executor) == ["driver", "exec-1"]
    orphan["metadata"]["generateName"] = "own-job-"
    assert names(orphan, executor) == []


def test_pods_that_only_carry_the_labels_are_left_out() -> None:
    strangers = [
        pod("bare"),
        pod("replica", "driver", owner("ReplicaSet", JOB)),
        pod("of-another-job", "driver", owner("Job", "own-job")),
        pod("of-another-run", "driver", owner("Job", JOB), run_id="9876543210"),
        pod("not-controlled", "driver", owner("Job", JOB, controller=False)),
        pod("bare-executor", "executor"),
        pod("executor-of-a-stranger", "executor", owner("Pod", "bare")),
        pod("no-role", "", owner("Job", JOB)),
    ]
    assert names(pod("driver", "driver", owner("Job", JOB)), *strangers) == ["driver"]
