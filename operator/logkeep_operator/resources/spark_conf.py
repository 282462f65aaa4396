"""Spark's configuration of a run, as far as the operator decides it. The engine adds what only the driver's pod knows
(its name and address)."""

from __future__ import annotations

from logkeep_engine.contract.names import KEY_EXECUTOR_TEMPLATE, PATH_REQUEST_DIR
from logkeep_engine.contract.spec import SparkSpec
from logkeep_operator.api import Key
from logkeep_operator.resources import memory
from logkeep_operator.resources.access import executor_account
from logkeep_operator.resources.names import LABEL_ROLE, ROLE_EXECUTOR, run_labels
from logkeep_operator.settings import EngineSettings

EXECUTOR_TEMPLATE_PATH = f"{PATH_REQUEST_DIR}/{KEY_EXECUTOR_TEMPLATE}"

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
# Spark's own clean-up deletes by label, which needs the right to delete everything of a kind. All that a driver makes
# has the driver's pod as its owner, and the operator deletes executors earlier (`reconcile.executors`).
_NO_CLEAN_UP = {
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.executor.deleteOnTermination": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",  # it would hold nothing that executors need
}
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


def spark_conf(key: Key, run_id: str, spark: SparkSpec, engine: EngineSettings) -> dict[str, str]:
    """Spark's configuration, from strings to strings. The resource's own `spark.conf` comes late; `check_spec` has kept
    it off the reserved keys. Its `deleteOnTermination` is for the operator, not for Spark."""
    executor = memory.split(spark.executor.memory, spark.executor.cores)
    driver = memory.split(spark.driver.memory, 1)
    own = {
        "spark.driver.memory": f"{driver.heap}m",
        "spark.executor.cores": str(spark.executor.cores),
        "spark.executor.instances": str(spark.executor.instances),
        "spark.executor.memory": f"{executor.heap}m",
        "spark.executor.memoryOverhead": f"{executor.overhead}m",
        "spark.kubernetes.authenticate.executor.serviceAccountName": executor_account(spark),
        "spark.kubernetes.container.image": spark.image or engine.image,
        "spark.kubernetes.container.image.pullPolicy": engine.pull_policy,
        "spark.kubernetes.executor.podTemplateFile": EXECUTOR_TEMPLATE_PATH,
        "spark.kubernetes.namespace": key.namespace,
        **{
            f"spark.kubernetes.executor.label.{name}": value
            for name, value in {**run_labels(key, run_id), LABEL_ROLE: ROLE_EXECUTOR}.items()
        },
    }
    if spark.executor.core_request is not None:
        own["spark.kubernetes.executor.request.cores"] = spark.executor.core_request
    if spark.executor.core_limit is not None:
        own["spark.kubernetes.executor.limit.cores"] = spark.executor.core_limit
    if engine.pull_secrets:
        own["spark.kubernetes.container.image.pullSecrets"] = ",".join(engine.pull_secrets)
    return {**own, **spark.conf, **_NO_CLEAN_UP}
