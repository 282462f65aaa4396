"""Executor pods that have no work any more. Their driver made them and cannot delete them, so the operator does."""

from __future__ import annotations

from logkeep_operator.reconcile.observed import Observed, PodState
from logkeep_operator.reconcile.plan import DeletePod
from logkeep_operator.resources import ROLE_DRIVER, ROLE_EXECUTOR

# Spark's own name for it: `false` keeps executors that have begun, for their logs, as long as their driver.
DELETE_ON_TERMINATION = "spark.kubernetes.executor.deleteOnTermination"


def useless_executors(observed: Observed) -> list[DeletePod]:
    """The executors to be deleted: those that have ended, those whose driver has ended, and those that have not begun
    although their driver does the work itself. They would wait for a node, ask for quota or run on for nobody, until
    the driver's pod goes with its Job.

    One that is kept for its log may still run when its driver has ended: without a driver it ends by itself."""
    keep = _keeps_logs(observed)
    drivers = {pod.uid for pod in observed.pods if pod.role == ROLE_DRIVER and pod.alive}

    def useless(pod: PodState) -> bool:
        if keep and pod.phase in ("Running", "Succeeded", "Failed"):
            return False
        if not pod.alive:
            return True
        return pod.owner not in drivers or (pod.phase == "Pending" and _is_given_up(observed, pod))

    executors = [pod for pod in observed.pods if pod.role == ROLE_EXECUTOR and not pod.deleting]
    return [DeletePod(pod.name, pod.uid) for pod in executors if useless(pod)]


def _is_given_up(observed: Observed, pod: PodState) -> bool:
    """Whether the driver has said since then that it needs none. Earlier words may be of an earlier attempt."""
    told = observed.documents.get(pod.run_id)
    if told is None or told.progress is None or told.progress.executors != 0:
        return False
    return told.written is not None and pod.created is not None and told.written > pod.created


def _keeps_logs(observed: Observed) -> bool:
    spark = observed.resource.spec.get("spark")
    conf = spark.get("conf") if isinstance(spark, dict) else None
    return isinstance(conf, dict) and str(conf.get(DELETE_ON_TERMINATION)).lower() == "false"
