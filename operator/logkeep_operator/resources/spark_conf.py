"""Spark's configuration of a run, as far as the operator decides it. The engine adds what only the driver's pod knows
(its name and address)."""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.names import KEY_EXECUTOR_TEMPLATE, PATH_REQUEST_DIR
from logkeep_engine.contract.running import HEAP_MIN_MIB, MIB, TASK_MIB, SparkSpec
from logkeep_engine.contract.values import parse_quantity
from logkeep_operator.api import Key
from logkeep_operator.resources.access import executor_account
from logkeep_operator.resources.names import LABEL_ROLE, ROLE_EXECUTOR, run_labels
from logkeep_operator.settings import EngineSettings

EXECUTOR_TEMPLATE_PATH = f"{PATH_REQUEST_DIR}/{KEY_EXECUTOR_TEMPLATE}"

# Spark's own clean-up deletes by label, which needs the right to delete everything of a kind. All that a driver makes
# has the driver's pod as its owner, and the operator deletes executors earlier (`reconcile.executors`).
_NO_CLEAN_UP = {
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    "spark.kubernetes.driver.service.deleteOnTermination": "false",
    "spark.kubernetes.executor.deleteOnTermination": "false",
    "spark.kubernetes.executor.disableConfigMap": "true",  # it would hold nothing that executors need
}


@dataclass(frozen=True, slots=True)
class MemorySplit:
    """The memory of a pod in MiB. The pod requests `heap` + `overhead`, and may use no more."""

    heap: int
    overhead: int

    @property
    def pod(self) -> int:
        return self.heap + self.overhead


def split_memory(quantity: str, cores: int) -> MemorySplit:
    """Split the pod's memory: 40 % for the heap, at least 512 MiB, as long as every core's Python keeps its 256 MiB.
    The quantity is rounded down to whole MiB.

    Spark refuses a heap below 450 MiB (`UnifiedMemoryManager`: 1.5 times the 300 MiB it reserves), and the JVM reports
    somewhat less than -Xmx. A task of the engine needs at most 256 MiB above the interpreter; the JVM only passes tasks
    and receipts on."""
    total = parse_quantity(quantity) // MIB
    heap = max(HEAP_MIN_MIB, min(total * 2 // 5, total - TASK_MIB * cores))
    return MemorySplit(heap, total - heap)


def spark_conf(key: Key, run_id: str, spark: SparkSpec, engine: EngineSettings) -> dict[str, str]:
    """Spark's configuration, from strings to strings. The resource's own `spark.conf` comes late; `check_spec` has kept
    it off the reserved keys. Its `deleteOnTermination` is for the operator, not for Spark."""
    executor = split_memory(spark.executor.memory, spark.executor.cores)
    driver = split_memory(spark.driver.memory, 1)
    own = {
        "spark.driver.memory": f"{driver.heap}m",
        "spark.executor.cores": str(spark.executor.cores),
        "spark.executor.instances": str(spark.executor.instances),
        "spark.executor.memory": f"{executor.heap}m",
        "spark.executor.memoryOverhead": f"{executor.overhead}m",
        "spark.kubernetes.authenticate.executor.serviceAccountName": executor_account(spark),
        "spark.kubernetes.container.image": spark.image or engine.image,
        "spark.kubernetes.container.image.pullPolicy": engine.pull_policy,
        # With this name Spark judges a pod by this container. Its own default is another name than the template's.
        "spark.kubernetes.executor.podTemplateContainerName": ROLE_EXECUTOR,
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
