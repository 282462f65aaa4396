"""Keys of `spec.spark.conf`, by who reads them: the Job, which makes the driver's pod, the driver's tasks, or Spark."""

from __future__ import annotations

EXECUTOR_ENV = "spark.executorEnv."
TASK_MAX_FAILURES = "spark.task.maxFailures"

DRIVER_ENV = "spark.kubernetes.driverEnv."
DRIVER_LABEL = "spark.kubernetes.driver.label."
DRIVER_ANNOTATION = "spark.kubernetes.driver.annotation."
DRIVER_NODE_SELECTOR = "spark.kubernetes.driver.node.selector."
NODE_SELECTOR = "spark.kubernetes.node.selector."
REQUEST_CORES = "spark.kubernetes.driver.request.cores"
LIMIT_CORES = "spark.kubernetes.driver.limit.cores"
DRIVER_SCHEDULER = "spark.kubernetes.driver.scheduler.name"
SCHEDULER = "spark.kubernetes.scheduler.name"
PULL_POLICY = "spark.kubernetes.container.image.pullPolicy"
PULL_SECRETS = "spark.kubernetes.container.image.pullSecrets"

_OF_THE_POD = frozenset((REQUEST_CORES, LIMIT_CORES, DRIVER_SCHEDULER, SCHEDULER, PULL_POLICY, PULL_SECRETS))
_OF_THE_POD_PREFIXES = (DRIVER_ENV, DRIVER_LABEL, DRIVER_ANNOTATION, DRIVER_NODE_SELECTOR, NODE_SELECTOR)
# The status says that a run had no executors.
_OF_EXECUTORS = ("spark.executor.", "spark.kubernetes.executor.")


def is_for_spark(key: str) -> bool:
    """Whether a key has no effect in a run whose work the driver does itself, without Spark, though it does not say
    that it is for executors."""
    if key in _OF_THE_POD or key == TASK_MAX_FAILURES:
        return False
    return not key.startswith((EXECUTOR_ENV, *_OF_THE_POD_PREFIXES, *_OF_EXECUTORS))
