"""Pods that have no work any more: executors, since their driver made them and cannot delete them, and drivers that
have ended and whose pod others keep."""

from __future__ import annotations

from logkeep_engine.contract.names import NEVER_RETRIED
from logkeep_operator.reconcile.observed import Observed, PodState
from logkeep_operator.reconcile.plan import DeletePod
from logkeep_operator.resources import ROLE_DRIVER, ROLE_EXECUTOR

# Spark's own name for it: `false` keeps executors that have begun, for their logs, as long as their driver.
DELETE_ON_TERMINATION = "spark.kubernetes.executor.deleteOnTermination"


def useless_pods(observed: Observed) -> list[DeletePod]:
    """Return the pods to be deleted."""
    return [*_held_drivers(observed), *_useless_executors(observed)]


def _held_drivers(observed: Observed) -> list[DeletePod]:
    """Return the pods whose driver has failed while containers next to it run on, as a mesh's do. The Job begins no
    other attempt before. Where it would begin none, the run ends, and the pod goes with its Job."""

    def is_over(pod: PodState) -> bool:
        return pod.exit_code == 0 or pod.exit_code in NEVER_RETRIED

    held = [pod for pod in observed.pods if pod.role == ROLE_DRIVER and pod.held and not pod.deleting]
    return [DeletePod(pod.name, pod.uid) for pod in held if not is_over(pod)]


def _useless_executors(observed: Observed) -> list[DeletePod]:
    """Return the executors to be deleted: those that have ended, those whose driver has ended, and those that have not
    begun although their driver does the work itself. They would wait for a node, ask for quota or run on for nothing,
    until the driver's pod goes with its Job.

    One that is kept for its log may still run when its driver has ended: without a driver it ends on its own."""
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
    """Return whether the driver has said since then that it needs none. Earlier words may be of an earlier attempt."""
    documents = observed.documents.get(pod.run_id)
    if documents is None or documents.progress is None or documents.progress.executors != 0:
        return False
    return documents.written is not None and pod.created is not None and documents.written > pod.created


def _keeps_logs(observed: Observed) -> bool:
    spark = observed.resource.spec.get("spark")
    conf = spark.get("conf") if isinstance(spark, dict) else None
    return isinstance(conf, dict) and str(conf.get(DELETE_ON_TERMINATION)).lower() == "false"
