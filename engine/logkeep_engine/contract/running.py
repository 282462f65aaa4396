"""How the runs of a resource are carried out: their pods, their rate and their Jobs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import CHANGEABLE, Model, schema, usual
from logkeep_engine.contract.pods import PodTemplate
from logkeep_engine.contract.values import (
    BytesPerSecond,
    Cores,
    Quantity,
    ResourceName,
    parse_quantity,
)

# A Job that is gone before the operator saw it finished would be made again; five minutes outlast a restart of it.
MIN_TTL_SECONDS = 300
# A driver whose node is dead never ends by itself; a week is longer than any run that gets on.
DEFAULT_DEADLINE_SECONDS = 7 * 86400
MIB = 1 << 20
HEAP_MIN_MIB = 512  # Spark refuses a heap below 450 MiB, and the JVM reports somewhat less than -Xmx
TASK_MIB = 256  # a task of the engine needs at most so much above the interpreter
DRIVER_MIN_MIB = HEAP_MIN_MIB + TASK_MIB


class RestoreLimits(Model):
    """`bytesPerSecond`: of record batches as they are on the wire, for the whole run."""

    bytes_per_second: BytesPerSecond | None = None
    """The most bytes that all executors together read from Kafka, or write to it, in a second, such as 50Mi, at least
    64Ki. By default there is no limit."""

    @property
    def bytes_per_second_int(self) -> int | None:
        return None if self.bytes_per_second is None else parse_quantity(self.bytes_per_second)


class BackupLimits(RestoreLimits):
    """`readersPerBroker`: partitions read from one leader at the same time, by the whole run."""

    readers_per_broker: Annotated[int, Field(ge=1, le=1000)] = 16
    """How many partitions all executors together read from one broker at the same time."""


class DriverSpec(Model):
    """`cores`: how many tasks the driver works on at once when it does the work itself."""

    cores: Annotated[int, Field(ge=1), CHANGEABLE] = 1
    """How many tasks the driver works on at once when it does the work itself. By default 1, unless the chart's
    engine.defaults says otherwise."""
    core_request: Annotated[Cores, CHANGEABLE] = "250m"
    """CPU that the driver requests. By default 250m, unless the chart's engine.defaults says otherwise."""
    core_limit: Cores | None = None
    """CPU limit of the driver, such as 1 or 500m. By default there is none."""
    memory: Annotated[Quantity, CHANGEABLE] = "768Mi"
    """Memory of the pod, request and limit; at least 768Mi, which is the default unless the chart's engine.defaults
    says otherwise."""
    pod_template: PodTemplate | None = None
    """The wishes of the platform for the driver's pod, with the fields of Kubernetes' PodTemplateSpec. What Logkeep
    needs, and spark.conf, win over it."""

    @property
    def slots(self) -> int:
        """How many tasks the driver works on at once itself: no more than its memory holds next to what plans."""
        return max(1, min(self.cores, (parse_quantity(self.memory) // MIB - DRIVER_MIN_MIB) // TASK_MIB))


class ExecutorSpec(Model):
    instances: Annotated[int, Field(ge=1, le=1000), CHANGEABLE] = 2
    """How many executor pods at most, by default 2, unless the chart's engine.defaults says otherwise. A run asks for
    as many as its work needs; small work is done by the driver."""
    cores: Annotated[int, Field(ge=1, le=64), CHANGEABLE] = 1
    """CPU cores of an executor, by default 1, unless the chart's engine.defaults says otherwise. It works on as many
    tasks at once."""
    core_request: Cores | None = None
    """CPU that an executor requests. By default as many cores as it has."""
    core_limit: Cores | None = None
    """CPU limit of an executor. By default there is none."""
    memory: Annotated[Quantity, CHANGEABLE] = "1Gi"
    """Memory of an executor pod, request and limit; at least 512Mi and 256Mi a core. By default 1Gi, unless the
    chart's engine.defaults says otherwise."""
    pod_template: PodTemplate | None = None
    """The wishes of the platform for the pods of executors, with the fields of Kubernetes' PodTemplateSpec. What
    Logkeep needs, and spark.conf, win over it."""

    @property
    def slots(self) -> int:
        """How many tasks run at once when all executors are there."""
        return self.instances * self.cores


class SparkSpec(Model):
    image: Annotated[str, Field(min_length=1), schema(maxLength=1024)] | None = None
    """Image of the engine; by default the one that the operator was installed with."""
    driver: DriverSpec = usual(DriverSpec)
    """The pod that plans, commits and reports."""
    executor: ExecutorSpec = usual(ExecutorSpec)
    """The pods that copy."""
    conf: Annotated[dict[str, Annotated[str, schema(maxLength=4096)]], schema(maxProperties=100)] = Field(default={})
    """More Spark configuration, such as spark.kubernetes.executor.request.cores. What Logkeep itself sets cannot be
    changed."""
    service_account_name: ResourceName | None = None
    """ServiceAccount of driver and executors. By default the operator makes logkeep-engine, which may make pods, for
    the driver, and logkeep-executor, which has no permissions, for the executors."""


class RunPolicy(Model):
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a driver that failed is started again before the run counts as failed."""
    active_deadline_seconds: Annotated[int, Field(ge=1)] = DEFAULT_DEADLINE_SECONDS
    """The longest time a run may take with all its attempts, from its start or from when it was resumed after a
    suspension. The default is a week."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=MIN_TTL_SECONDS)] = 86400
    """How long the Job and its pods are kept after the end, for their logs. At least five minutes."""
    job_labels: Annotated[dict[str, Annotated[str, schema(maxLength=63)]], schema(maxProperties=32)] = Field(default={})
    """Labels of the run's Job, such as kueue.x-k8s.io/queue-name. Logkeep's own cannot be changed."""
