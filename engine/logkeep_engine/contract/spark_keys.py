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
    """Return whether a key has no effect in a run whose work the driver does itself, without Spark, though it does not
    say that it is for executors."""
    if key in _OF_THE_POD or key == TASK_MAX_FAILURES:
        return False
    return not key.startswith((EXECUTOR_ENV, *_OF_THE_POD_PREFIXES, *_OF_EXECUTORS))


# Keys of `spark.conf` that a resource may not set.
RESERVED_KEYS = frozenset(
    {
        "spark.app.id",
        "spark.app.name",
        "spark.driver.bindAddress",
        "spark.driver.cores",
        "spark.driver.host",
        "spark.driver.memory",
        "spark.driver.memoryOverhead",
        "spark.driver.memoryOverheadFactor",
        "spark.driver.minMemoryOverhead",
        "spark.dynamicAllocation.enabled",
        "spark.executor.cores",
        "spark.executor.instances",
        "spark.executor.memory",
        "spark.executor.memoryOverhead",
        "spark.executor.memoryOverheadFactor",
        "spark.executor.minMemoryOverhead",
        "spark.executor.pyspark.memory",
        "spark.jars.ivy",
        "spark.kubernetes.allocation.pods.allocator",  # executors belong to the driver's pod, not to a StatefulSet
        "spark.kubernetes.container.image",
        "spark.kubernetes.driver.ownPersistentVolumeClaim",
        "spark.kubernetes.driver.pod.name",
        "spark.kubernetes.driver.reusePersistentVolumeClaim",
        "spark.kubernetes.driver.service.deleteOnTermination",
        "spark.kubernetes.driver.waitToReusePersistentVolumeClaim",
        "spark.kubernetes.executor.container.image",
        "spark.kubernetes.executor.decommissionLabel",  # the driver may change no pod
        "spark.kubernetes.executor.decommissionLabelValue",
        "spark.kubernetes.executor.disableConfigMap",
        "spark.kubernetes.executor.podNamePrefix",
        "spark.kubernetes.executor.podTemplateContainerName",
        "spark.kubernetes.executor.podTemplateFile",
        "spark.kubernetes.memoryOverheadFactor",
        "spark.kubernetes.namespace",
        "spark.master",
        "spark.speculation",
        "spark.submit.deployMode",
        "spark.task.cpus",
    }
)
RESERVED_PREFIXES = (
    "spark.authenticate", "spark.kubernetes.authenticate.", "spark.kubernetes.executor.secret",
    "spark.network.crypto.", "spark.network.sasl.",
)  # fmt: skip
# Who may read what a run holds or says. No resource needs them, and no installation may allow them.
PROTECTING_KEYS = frozenset(
    {"spark.admin.acls", "spark.kubernetes.context", "spark.kubernetes.trust.certificates", "spark.logConf",
     "spark.modify.acls"}
)  # fmt: skip
PROTECTING_PREFIXES = (
    "spark.acls.", "spark.io.crypto.", "spark.io.encryption.", "spark.kerberos.", "spark.redaction.",
    "spark.security.", "spark.ssl.", "spark.ui.",
)  # fmt: skip
