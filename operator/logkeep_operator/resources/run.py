"""The objects of one run: the request, the place for progress, and the Job whose pod is the Spark driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from logkeep_engine.contract import names
from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import KafkaBackupSpec, KafkaRestoreSpec, StorageSpec
from logkeep_operator.api import Resource
from logkeep_operator.resources import memory
from logkeep_operator.resources.access import DRIVER_ACCOUNT
from logkeep_operator.resources.credentials import Access, KafkaAccess, access
from logkeep_operator.resources.driver_conf import driver_conf
from logkeep_operator.resources.names import (
    ANNOTATION_RESOURCE,
    ANNOTATION_SUSPENDED,
    LABEL_ROLE,
    ROLE_DRIVER,
    ROLE_EXECUTOR,
    job_name,
    progress_name,
    request_name,
    run_labels,
)
from logkeep_operator.resources.spark_conf import spark_conf
from logkeep_operator.settings import EngineSettings

USER = 185  # Spark's customary user; the image has it in /etc/passwd
GRACE_SECONDS = 60  # for a last commit and the result when the pod is told to go


@dataclass(frozen=True)
class RunToStart:
    """One run to be started. `storage` is the archive: for a restore with backupRef, that of the backup. `raw_storage`
    is the same as the user wrote it. `kafka` is what `spec.cluster` means. The run's children get `annotations` beside
    that with the resource's name."""

    resource: Resource
    id: str
    spec: KafkaBackupSpec | KafkaRestoreSpec
    storage: StorageSpec
    raw_storage: Mapping[str, Any]
    engine: EngineSettings
    kafka: KafkaAccess
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.resource.key.namespace

    @property
    def state(self) -> StorageSpec | None:
        """The place where a restore keeps its state, None if that is beside the archive."""
        return self.spec.state if isinstance(self.spec, KafkaRestoreSpec) else None

    @property
    def access(self) -> Access:
        """The parts that give the pods access to cluster, archive and state."""
        return access(self.kafka, self.storage, self.state, request_name(self.resource.key.name, self.id))

    def metadata(self, name: str) -> dict[str, Any]:
        """The metadata of a child: own labels, and the owner with which it is deleted."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": run_labels(self.resource.key, self.id),
            "annotations": {**self.annotations, ANNOTATION_RESOURCE: self.resource.key.name},
            "ownerReferences": [self.resource.owner_reference()],
        }


def request_config_map(run: RunToStart) -> dict[str, Any]:
    """The ConfigMap that the driver reads: the request and the template of its executors. It never changes."""
    key = run.resource.key
    spec = dict(run.resource.spec)
    if run.spec.cluster.strimzi is not None:
        spec["cluster"] = run.kafka.cluster.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(run.spec, KafkaRestoreSpec):
        source = {name: value for name, value in spec["source"].items() if name != "backupRef"}
        spec["source"] = {**source, "storage": dict(run.raw_storage)}
    authorities = {names.KEY_KAFKA_CA: run.kafka.authorities} if run.kafka.authorities is not None else {}
    request = RunRequest(
        kind=key.kind,
        name=key.name,
        namespace=key.namespace,
        run_id=run.id,
        spec=spec,
        progress_config_map=progress_name(key.name, run.id),
        spark_conf=spark_conf(key, run.id, run.spec.spark, run.engine),
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": run.metadata(request_name(key.name, run.id)),
        "immutable": True,
        "data": {
            names.KEY_REQUEST: request.to_json(),
            names.KEY_EXECUTOR_TEMPLATE: yaml.safe_dump(executor_template(run), sort_keys=False),
            **authorities,
        },
    }


def progress_config_map(run: RunToStart) -> dict[str, Any]:
    """The ConfigMap for progress. The operator makes it empty beforehand, so that the driver only patches it."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": run.metadata(progress_name(run.resource.key.name, run.id)),
    }


def executor_template(run: RunToStart) -> dict[str, Any]:
    """The pod that Spark completes with image, resources, arguments and names."""
    parts = run.access
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(),
        "containers": [
            {
                "name": "executor",
                "env": parts.env,
                "securityContext": _container_security(),
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *parts.mounts],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *parts.volumes],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _pod_metadata(run, ROLE_EXECUTOR), "spec": spec}


def job(run: RunToStart) -> dict[str, Any]:
    """The Job of a run. It never has two drivers, it does not try again where that cannot help, and it does not count
    disruptions and interruptions."""
    policy = run.spec.run_policy
    spec: dict[str, Any] = {
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": policy.active_deadline_seconds,
        "backoffLimit": policy.backoff_limit,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "suspend": run.spec.suspend,
        "template": {"metadata": _driver_metadata(run), "spec": _driver_pod(run)},
    }
    metadata = run.metadata(job_name(run.resource.key.name, run.id))
    metadata["annotations"][ANNOTATION_SUSPENDED] = "true" if run.spec.suspend else "false"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _failure_rules() -> list[dict[str, Any]]:
    def on_exit(action: str, codes: list[ExitCode]) -> dict[str, Any]:
        values = sorted(int(code) for code in codes)
        return {"action": action, "onExitCodes": {"containerName": ROLE_DRIVER, "operator": "In", "values": values}}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        on_exit("FailJob", list(NEVER_RETRIED)),
        # With podReplacementPolicy Failed a pod that suspension ends counts as failed unless it is left out here.
        on_exit("Ignore", [ExitCode.INTERRUPTED]),
    ]


def _driver_pod(run: RunToStart) -> dict[str, Any]:
    parts = run.access
    spark = run.spec.spark
    settings = driver_conf(spark.conf)
    memory_request = f"{memory.split(spark.driver.memory, 1).pod}Mi"
    limits = {"memory": memory_request}
    if settings.limit_cores is not None:
        limits["cpu"] = settings.limit_cores
    container = {
        "name": ROLE_DRIVER,
        "image": spark.image or run.engine.image,
        "imagePullPolicy": settings.pull_policy or run.engine.pull_policy,
        "args": ["driver", "--request", f"{names.PATH_REQUEST_DIR}/{names.KEY_REQUEST}"],
        "env": [
            _from_pod(names.ENV_POD_NAME, "metadata.name"),
            _from_pod(names.ENV_POD_IP, "status.podIP"),
            _from_pod(names.ENV_POD_NAMESPACE, "metadata.namespace"),
            *parts.env,
            *({"name": name, "value": value} for name, value in settings.environment.items()),
        ],
        "resources": {
            "requests": {"cpu": settings.request_cores or str(spark.driver.cores), "memory": memory_request},
            "limits": limits,
        },
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "request", "mountPath": names.PATH_REQUEST_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *parts.mounts,
        ],
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": spark.service_account_name or DRIVER_ACCOUNT,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": _pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "request", "configMap": {"name": request_name(run.resource.key.name, run.id)}},
            {"name": "tmp", "emptyDir": {}},
            *parts.volumes,
        ],
    }
    pull_secrets = run.engine.pull_secrets if settings.pull_secrets is None else settings.pull_secrets
    if pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in pull_secrets]
    if settings.scheduler is not None:
        pod["schedulerName"] = settings.scheduler
    if settings.node_selector:
        pod["nodeSelector"] = dict(settings.node_selector)
    return pod


def _driver_metadata(run: RunToStart) -> dict[str, Any]:
    """The metadata of the driver's pod. Own labels and annotations come last, so those of the resource cannot replace
    them."""
    own, settings = _pod_metadata(run, ROLE_DRIVER), driver_conf(run.spec.spark.conf)
    return {
        "labels": {**settings.labels, **own["labels"]},
        "annotations": {**settings.annotations, **own["annotations"]},
    }


def _pod_metadata(run: RunToStart, role: str) -> dict[str, Any]:
    key = run.resource.key
    return {"labels": {**run_labels(key, run.id), LABEL_ROLE: role}, "annotations": {ANNOTATION_RESOURCE: key.name}}


def _from_pod(variable: str, path: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
