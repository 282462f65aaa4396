"""Spark's settings of the driver's pod. In cluster mode `spark-submit` makes that pod from them; here the Job does, so
Spark itself never reads them: each is wired into the Job's pod here, or refused.

What Spark reads in a running driver too (`SPARKS_OWN`) is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from logkeep_engine.contract import names
from logkeep_engine.contract import spark_keys as keys
from logkeep_engine.contract.names import LABEL_MANAGED_BY, LABEL_PART_OF

DRIVER = "spark.kubernetes.driver."
_DRIVER_TASK_MEMORY = f"{keys.DRIVER_ENV}{names.ENV_TASK_MEMORY}"
EXECUTOR_LABEL = "spark.kubernetes.executor.label."
EXECUTOR_ANNOTATION = "spark.kubernetes.executor.annotation."

_WIRED = (keys.REQUEST_CORES, keys.LIMIT_CORES, keys.DRIVER_SCHEDULER)
_WIRED_PREFIXES = (keys.DRIVER_LABEL, keys.DRIVER_ANNOTATION, keys.DRIVER_NODE_SELECTOR)
SPARKS_OWN = (
    "spark.kubernetes.driver.connectionTimeout",
    "spark.kubernetes.driver.requestTimeout",
)
# Read by `spark-submit` only, or for a driver that it has made.
_SUBMISSION = (
    "spark.kubernetes.file.upload.path",
    "spark.kubernetes.hadoop.configMapName",
    "spark.kubernetes.report.interval",
    "spark.kubernetes.resource.type",
    "spark.kubernetes.submitInDriver",
)
_SUBMISSION_PREFIXES = ("spark.kubernetes.kerberos.", "spark.kubernetes.submission.")
_VOLUMES = "spark.kubernetes.executor.volumes."
_FEATURE_STEPS = ("spark.kubernetes.executor.pod.excludedFeatureSteps", "spark.kubernetes.executor.pod.featureSteps")
_SPARK_ENVIRONMENT = ("SPARK_", "_SPARK_")
# Spark refuses them when it makes the first executor; here the resource says so at once.
SPARKS_LABELS = ("spark-app-selector", "spark-exec-id", "spark-exec-resourceprofile-id", "spark-role")
_OWN_PREFIX = "logkeep.dev/"
OWN_ENVIRONMENT = frozenset(
    value for name, value in vars(names).items() if name.startswith("ENV_") and value != names.ENV_TASK_MEMORY
)

_NO_EFFECT = "has no effect: the driver's pod is made by the Job, not by spark-submit; leave it out"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
KEEPS_APPARMOR = "would change the AppArmor profile, which is that of the container runtime"
TASK_MEMORY = (
    "would let tasks outgrow the driver's pod; "
    f"set spec.spark.conf[{keys.EXECUTOR_ENV}{names.ENV_TASK_MEMORY}] and raise spec.spark.executor.memory"
)
_CHANGES_PODS = "would change pods past the checks of this resource; use spec.spark.executor.podTemplate"
OWN = "is how the operator finds the run's pods and cannot be changed here"


@dataclass(frozen=True)
class DriverConf:
    """The settings of the driver's pod. None stands for a setting that is not set."""

    request_cores: str | None
    limit_cores: str | None
    scheduler: str | None
    pull_policy: str | None
    pull_secrets: tuple[str, ...] | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node_selector: Mapping[str, str]
    environment: Mapping[str, str]


def driver_conf(conf: Mapping[str, str]) -> DriverConf:
    """Return the settings in `spark.conf`, in which `problem` has found nothing wrong."""
    secrets = conf.get(keys.PULL_SECRETS)
    return DriverConf(
        request_cores=conf.get(keys.REQUEST_CORES),
        limit_cores=conf.get(keys.LIMIT_CORES),
        scheduler=conf.get(keys.DRIVER_SCHEDULER) or conf.get(keys.SCHEDULER),
        pull_policy=conf.get(keys.PULL_POLICY),
        pull_secrets=None if secrets is None else tuple(n.strip() for n in secrets.split(",") if n.strip()),
        labels=_with_prefix(conf, keys.DRIVER_LABEL),
        annotations=_with_prefix(conf, keys.DRIVER_ANNOTATION),
        node_selector={**_with_prefix(conf, keys.NODE_SELECTOR), **_with_prefix(conf, keys.DRIVER_NODE_SELECTOR)},
        environment=_with_prefix(conf, keys.DRIVER_ENV),
    )


def problem(key: str) -> str | None:
    """The reason why a key of `spark.conf` is refused: it would do nothing, or take the run's pods away from the
    operator."""
    for prefix in (keys.DRIVER_LABEL, EXECUTOR_LABEL, keys.DRIVER_ANNOTATION, EXECUTOR_ANNOTATION):
        if key.startswith(prefix) and is_own(key.removeprefix(prefix)):
            return OWN
    if key.startswith((keys.DRIVER_ANNOTATION + APPARMOR, EXECUTOR_ANNOTATION + APPARMOR)):
        return KEEPS_APPARMOR
    if key.startswith(EXECUTOR_LABEL) and key.removeprefix(EXECUTOR_LABEL) in SPARKS_LABELS:
        return "is set by Spark and cannot be changed"
    for prefix in (keys.DRIVER_ENV, keys.EXECUTOR_ENV):
        if key.startswith(prefix) and (wrong := variable_problem(key.removeprefix(prefix))) is not None:
            return wrong
    if key == _DRIVER_TASK_MEMORY:
        return TASK_MEMORY
    if key.startswith(_VOLUMES) or key in _FEATURE_STEPS:
        return _CHANGES_PODS
    if key.startswith(DRIVER):
        known = key in _WIRED or key in SPARKS_OWN or key.startswith(_WIRED_PREFIXES)
        return None if known else _NO_EFFECT
    return _NO_EFFECT if key in _SUBMISSION or key.startswith(_SUBMISSION_PREFIXES) else None


def variable_problem(name: str) -> str | None:
    """The reason why a variable of a pod is refused: something else sets it."""
    if name in OWN_ENVIRONMENT:
        return "is set by Logkeep and cannot be changed here"
    return "is set by Spark and cannot be changed here" if name.startswith(_SPARK_ENVIRONMENT) else None


def is_own(name: str) -> bool:
    """Return whether a label or an annotation of this name is one of those by which the operator knows its pods."""
    return name in (LABEL_MANAGED_BY, LABEL_PART_OF) or name.startswith(_OWN_PREFIX)


def _with_prefix(conf: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in sorted(conf.items()) if key.startswith(prefix)}
