"""Executor pods that have no work any more. Their driver made them and cannot delete them, so the operator does."""

from __future__ import annotations

from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.plan import DeletePod
from logkeep_operator.resources import ROLE_DRIVER, ROLE_EXECUTOR

# Spark's own name for it: `false` keeps executors that have ended, for their logs, as long as their driver.
DELETE_ON_TERMINATION = "spark.kubernetes.executor.deleteOnTermination"


def useless_executors(observed: Observed) -> list[DeletePod]:
    """The executors to be deleted: those that have ended, and those whose driver has ended. The latter would wait for a
    node, ask for quota or run on for nobody, until the driver's pod goes with its Job."""
    keep = _keeps_ended(observed)
    drivers = {pod.uid for pod in observed.pods if pod.role == ROLE_DRIVER and pod.alive}
    return [
        DeletePod(pod.name, pod.uid)
        for pod in observed.pods
        if pod.role == ROLE_EXECUTOR and not pod.deleting and (pod.owner not in drivers if pod.alive else not keep)
    ]


def _keeps_ended(observed: Observed) -> bool:
    spark = observed.resource.spec.get("spark")
    conf = spark.get("conf") if isinstance(spark, dict) else None
    return isinstance(conf, dict) and str(conf.get(DELETE_ON_TERMINATION)).lower() == "false"
