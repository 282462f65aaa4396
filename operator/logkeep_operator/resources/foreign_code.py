"""This module lists what a resource may say of its pods without bringing code of its own into them: settings of Spark,
variables, mounts and volumes that no program takes for code.

These are lists of what is harmless. A list of what is harmful would never end: next to `spark.jars`, code comes in by
`spark.kubernetes.decommission.script`, by `PYTHONPATH` with a ConfigMap, by `AWS_CONFIG_FILE` (botocore runs its
`credential_process`), by a mount at `/etc/ssl`, whose `openssl.cnf` names libraries. Where the chart's
`engine.allowed.code` is true, nothing here is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.contract import driver_conf
from logkeep_engine.contract import spark_keys as keys
from logkeep_engine.contract.folders import may_hold_code
from logkeep_engine.contract.names import ENV_TASK_MEMORY
from logkeep_engine.contract.pods import PodTemplate
from logkeep_engine.contract.running import SparkSpec

Problem = tuple[str, str]

_PROXIES = ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
_VARIABLES = frozenset(
    {
        *_PROXIES, *(name.lower() for name in _PROXIES),
        "AWS_DEFAULT_REGION", "AWS_EC2_METADATA_DISABLED", "AWS_MAX_ATTEMPTS", "AWS_REGION",
        "AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION", "AWS_RETRY_MODE", "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME", "AWS_STS_REGIONAL_ENDPOINTS", "AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "LANG", "LANGUAGE", "MALLOC_ARENA_MAX", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", ENV_TASK_MEMORY,
    }
)  # fmt: skip
_VARIABLE_PREFIX = "LC_"
VARIABLES = (*sorted(_VARIABLES - {name.lower() for name in _PROXIES}), f"{_VARIABLE_PREFIX}*")

# Numbers, times, switches and names. No key whose value names a class, a file that is read, a script or an address.
SETTINGS = (
    keys.REQUEST_CORES, keys.LIMIT_CORES, keys.DRIVER_SCHEDULER, keys.SCHEDULER, keys.PULL_POLICY, keys.PULL_SECRETS,
    *driver_conf.SPARKS_OWN,
    "spark.blockManager.port",
    "spark.driver.blockManager.port", "spark.driver.maxResultSize", "spark.driver.port",
    "spark.eventLog.buffer.kb", "spark.eventLog.compress", "spark.eventLog.dir", "spark.eventLog.enabled",
    "spark.eventLog.logBlockUpdates.enabled", "spark.eventLog.logStageExecutorMetrics", "spark.eventLog.overwrite",
    "spark.eventLog.rolling.enabled", "spark.eventLog.rolling.maxFileSize",
    "spark.executor.failuresValidityInterval", "spark.executor.heartbeat.maxFailures",
    "spark.executor.heartbeatInterval", "spark.executor.maxNumFailures", "spark.executor.processTreeMetrics.enabled",
    "spark.kubernetes.appKillPodDeletionGracePeriod",
    "spark.kubernetes.executor.apiPollingInterval", "spark.kubernetes.executor.checkAllContainers",
    "spark.kubernetes.executor.deleteOnTermination", "spark.kubernetes.executor.enableApiPolling",
    "spark.kubernetes.executor.enableApiWatcher", "spark.kubernetes.executor.enablePollingWithResourceVersion",
    "spark.kubernetes.executor.eventProcessingInterval", "spark.kubernetes.executor.limit.cores",
    "spark.kubernetes.executor.missingPodDetectDelta", "spark.kubernetes.executor.request.cores",
    "spark.kubernetes.executor.scheduler.name", "spark.kubernetes.executor.terminationGracePeriodSeconds",
    "spark.kubernetes.local.dirs.tmpfs",
    "spark.memory.fraction", "spark.memory.storageFraction",
    "spark.metrics.appStatusSource.enabled", "spark.metrics.executorMetricsSource.enabled", "spark.metrics.namespace",
    "spark.metrics.staticSources.enabled",
    "spark.network.timeout", "spark.network.timeoutInterval",
    "spark.port.maxRetries",
    "spark.python.worker.memory", "spark.python.worker.reuse",
    "spark.rpc.askTimeout", "spark.rpc.lookupTimeout", "spark.rpc.message.maxSize",
    "spark.scheduler.maxRegisteredResourcesWaitingTime", "spark.scheduler.minRegisteredResourcesRatio",
    "spark.scheduler.mode",
    "spark.stage.maxConsecutiveAttempts",
    keys.TASK_MAX_FAILURES,
)  # fmt: skip
SETTING_PREFIXES = (
    keys.DRIVER_ANNOTATION, keys.DRIVER_LABEL, keys.DRIVER_NODE_SELECTOR, keys.NODE_SELECTOR,
    driver_conf.EXECUTOR_ANNOTATION, driver_conf.EXECUTOR_LABEL, "spark.kubernetes.executor.node.selector.",
    "spark.excludeOnFailure.", "spark.kubernetes.allocation.", "spark.locality.wait", "spark.task.reaper.",
)  # fmt: skip
_ENVIRONMENTS = (keys.DRIVER_ENV, keys.EXECUTOR_ENV)

# Drivers of Secrets and certificates. Others bring file systems from elsewhere, by the rights of the node.
CSI_DRIVERS = ("csi.cert-manager.io", "csi.spiffe.io", "secrets-store.csi.k8s.io")


def foreign_code(spark: SparkSpec) -> Iterator[Problem]:
    """Yield the fields that could bring code into a pod, or let the code there run another, and why."""
    for key in sorted(spark.conf):
        variable = next((key.removeprefix(prefix) for prefix in _ENVIRONMENTS if key.startswith(prefix)), None)
        harmless = _is_setting(key) if variable is None else _is_variable(variable)
        if not harmless:
            yield f"spec.spark.conf[{key}]", "it is not on the list of settings that cannot bring code into a pod"
    for role, template in (("driver", spark.driver.pod_template), ("executor", spark.executor.pod_template)):
        if template is not None:
            yield from _of_template(f"spec.spark.{role}.podTemplate.spec", template)


def _of_template(path: str, template: PodTemplate) -> Iterator[Problem]:
    for number, volume in enumerate(template.spec.volumes):
        driver = volume.csi.get("driver") if volume.csi is not None else None
        if volume.csi is not None and driver not in CSI_DRIVERS:
            what = f"volumes of the CSI driver {driver!r} could hold code, unlike those of {', '.join(CSI_DRIVERS)}"
            yield f"{path}.volumes[{number}].csi.driver", what
    for number, container in enumerate(template.spec.containers):
        for index, variable in enumerate(container.env):
            if not _is_variable(variable.name):
                what = f"{variable.name} is not on the list of variables that cannot bring code into a pod"
                yield f"{path}.containers[{number}].env[{index}].name", what
        for index, mount in enumerate(container.volume_mounts):
            if may_hold_code(mount.mount_path):
                what = f"{mount.mount_path!r} is a folder of the image, where programs look for code; choose another"
                yield f"{path}.containers[{number}].volumeMounts[{index}].mountPath", what


def _is_setting(key: str) -> bool:
    return key in SETTINGS or key.startswith(SETTING_PREFIXES)


def _is_variable(name: str) -> bool:
    return name in _VARIABLES or name.startswith(_VARIABLE_PREFIX)
