"""The configuration of Spark for a run: in one process, or with executor pods."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from logkeep_engine.contract.names import ENV_POD_IP, ENV_POD_NAME, ENV_POD_NAMESPACE
from logkeep_engine.contract.spark_keys import EXECUTOR_ENV
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import host_port, url_host
from logkeep_engine.errors import SpecError
from logkeep_engine.spark import daemon

if TYPE_CHECKING:
    from logkeep_engine.contract.restore_spec import KafkaRestoreSpec

MAX_FAILURES = 4  # of a task
EXECUTOR_IDLE_SECONDS = 20  # longer than the pause between two parts of a run
_LOCAL = re.compile(r"^local(?:\[(\d+|\*)\])?$")
# Names of executor pods are the prefix, "-exec-" and a number, and must fit a DNS label of 63.
_POD_NAME_PREFIX_MAX = 46

_COMMON = {
    "spark.app.name": "logkeep",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
    "spark.dynamicAllocation.enabled": "false",
    "spark.task.maxFailures": str(MAX_FAILURES),
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": daemon.__name__,
    "spark.task.reaper.enabled": "true",  # a cancelled task is watched until it is gone
}

# Spark makes a secret and hands it to its executors, so that no other pod can talk to this driver, and both encrypt
# what they send with keys made of it. Spark's own defaults are an older handshake, a cipher that does not notice
# changes, and plain text with a peer that asks for it.
_PRIVATE = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
}

# A short-lived JVM that moves no data: quick to start, small.
_SMALL_JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"

S = TypeVar("S", "KafkaBackupSpec", "KafkaRestoreSpec")


def local_conf(cores: int, *, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the configuration for Spark inside this machine with `cores` task slots. Tasks are retried as on a
    cluster."""
    return {
        **_COMMON,
        "spark.master": f"local[{cores},{MAX_FAILURES}]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": _SMALL_JAVA,
        **(conf or {}),
    }


def kubernetes_conf(conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration for client mode inside the driver's pod. `conf` is `RunRequest.spark_conf`: image,
    executors, their secrets.

    Raises SpecError if this is not a pod, or was not given its name, IP and namespace.
    """
    needed = (ENV_POD_NAME, ENV_POD_IP, ENV_POD_NAMESPACE, "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise SpecError(f"The environment lacks {', '.join(missing)}.", hint="Outside a pod use --master local[N].")
    pod, address = environ[ENV_POD_NAME], environ[ENV_POD_IP]
    api_host, api_port = environ["KUBERNETES_SERVICE_HOST"], environ["KUBERNETES_SERVICE_PORT"]
    return {
        **_COMMON,
        # Work starts with the first executor; the rest join in.
        "spark.scheduler.minRegisteredResourcesRatio": "0.0",
        "spark.driver.extraJavaOptions": _SMALL_JAVA,
        "spark.executor.extraJavaOptions": _SMALL_JAVA,
        **conf,
        # The engine relies on these, so a resource cannot change them.
        **_PRIVATE,
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.master": f"k8s://https://{host_port(api_host, api_port)}",
        "spark.submit.deployMode": "client",
        "spark.driver.host": url_host(address),
        "spark.driver.bindAddress": address,
        "spark.kubernetes.namespace": environ[ENV_POD_NAMESPACE],
        "spark.kubernetes.driver.pod.name": pod,
        f"{EXECUTOR_ENV}{ENV_POD_NAMESPACE}": environ[ENV_POD_NAMESPACE],  # errors of a pod are reported as such
        "spark.kubernetes.executor.podNamePrefix": _pod_name_prefix(pod),
    }


def executors_conf(conf: Mapping[str, str], executors: int, session: int) -> dict[str, str]:
    """Return the configuration `conf` of `kubernetes_conf` with this many executors. Spark lets each of them go when it
    has had nothing to do for a while; no shuffle keeps one back. Pods of an earlier session of this driver may still
    end, so the number of the `session` is in the names of its own."""
    return {
        **conf,
        "spark.kubernetes.executor.podNamePrefix": _pod_name_prefix(
            f"{conf['spark.kubernetes.driver.pod.name']}-{session}"
        ),
        "spark.executor.instances": str(executors),
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": str(executors),
        "spark.dynamicAllocation.maxExecutors": str(executors),
        "spark.dynamicAllocation.executorIdleTimeout": f"{EXECUTOR_IDLE_SECONDS}s",
    }


def planned_for(master: str | None, spec: S) -> S:
    """Return the spec with as many task slots as `--master` gives. In one process the resource's executors mean
    nothing."""
    if master is None:
        return spec
    # Not checked as a spec is: a machine may have more cores than an executor may ask for.
    executor = spec.spark.executor.model_copy(update={"instances": 1, "cores": _local_cores(master)})
    return spec.model_copy(update={"spark": spec.spark.model_copy(update={"executor": executor})})


def _local_cores(master: str) -> int:
    match = _LOCAL.match(master)
    if match is None:
        raise SpecError(f"--master {master!r} is not local, local[N] or local[*].")
    return (os.cpu_count() or 1) if match.group(1) == "*" else int(match.group(1) or 1)


def master_conf(master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration for `--master`: `local`, `local[N]`, `local[*]`, or None for Kubernetes."""
    if master is None:
        return kubernetes_conf(conf, environ)
    cores = _local_cores(master)
    if cores < 1:
        raise SpecError(f"--master {master!r}: at least one core is needed.")
    return local_conf(
        cores, conf={key: value for key, value in conf.items() if not key.startswith("spark.kubernetes.")}
    )


def uses_s3(spec: KafkaBackupSpec | KafkaRestoreSpec) -> bool:
    """Return whether the tasks of this resource will talk to S3."""
    storages = (spec.storage,) if isinstance(spec, KafkaBackupSpec) else (spec.source.storage, spec.state)
    return any(storage is not None and storage.uri.startswith("s3:") for storage in storages)


def _pod_name_prefix(pod: str) -> str:
    if len(pod) <= _POD_NAME_PREFIX_MAX:
        return pod
    digest = hashlib.sha256(pod.encode()).hexdigest()[:8]
    return f"{pod[: _POD_NAME_PREFIX_MAX - 9].rstrip('-.')}-{digest}"
