"""The objects of one run: the request, the place for progress, and the Job whose pod is the Spark driver."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.driver_conf import DriverConf, driver_conf
from logkeep_engine.contract.emitting import Emit
from logkeep_engine.contract.names import NEVER_RETRIED, ExitCode
from logkeep_engine.contract.request_files import ARGUMENT_HASH, ARGUMENT_RUN, hash_of_config_map
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec
from logkeep_operator.api import Resource
from logkeep_operator.resources.access import driver_account
from logkeep_operator.resources.credentials import Access, KafkaAccess, access, signing_access
from logkeep_operator.resources.names import (
    ANNOTATION_REQUESTED_BY,
    ANNOTATION_RESOURCE,
    ANNOTATION_RUN_TRIGGER,
    ANNOTATION_SUSPENDED,
    LABEL_ROLE,
    ROLE_DRIVER,
    ROLE_EXECUTOR,
    job_name,
    progress_name,
    request_name,
    run_labels,
    topics_name,
)
from logkeep_operator.resources.pod_template import layer_of, merged, of_conf, reach_api_server
from logkeep_operator.resources.spark_conf import spark_conf, split_memory
from logkeep_operator.settings import EngineSettings

GRACE_SECONDS = 60  # for a last commit and the result when the pod is told to go


@dataclass(frozen=True)
class RunToStart:
    """One run to be started. `storage` is the archive: for a restore with backupRef, that of the backup. `raw_storage`
    is the same as the user wrote it. `kafka` is what `spec.cluster` means. The run's children get `annotations` next to
    that with the resource's name. With `reconcile` a backup looks for stale keys. `anchor` is the newest commit of the
    archive that is known. With `release` a restore that has succeeded releases the topics that it holds."""

    resource: Resource
    id: str
    spec: KafkaBackupSpec | KafkaRestoreSpec
    storage: ArchiveSpec
    raw_storage: Mapping[str, Any]
    engine: EngineSettings
    kafka: KafkaAccess
    annotations: Mapping[str, str] = field(default_factory=dict)
    reconcile: bool = False
    anchor: str | None = None
    release: bool = False

    @property
    def namespace(self) -> str:
        return self.resource.key.namespace

    @property
    def state(self) -> StorageSpec | None:
        """The place where a restore keeps its state, None if that is next to the archive."""
        return self.spec.state if isinstance(self.spec, KafkaRestoreSpec) else None

    @property
    def remembered_as(self) -> str | None:
        """The name under which a resource that is created again finds the outcome of this restore. A value of the
        annotation that asks for another restore makes it another name."""
        if not isinstance(self.spec, KafkaRestoreSpec) or self.spec.drill is not None:
            return None  # a drill is worth doing again
        again = self.annotations.get(ANNOTATION_RUN_TRIGGER)
        name = f"KafkaRestore {self.namespace}/{self.resource.key.name}"
        return f"{name}, run again: {again}" if again else name

    @property
    def access(self) -> Access:
        """The parts that give the pods access to cluster, archive and state."""
        return access(self.kafka, self.storage, self.state, request_name(self.resource.key.name, self.id))

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the metadata of a child: own labels, and the owner with which it is deleted."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": run_labels(self.resource.key, self.id),
            "annotations": {**self.annotations, ANNOTATION_RESOURCE: self.resource.key.name},
            "ownerReferences": [self.resource.owner_reference()],
        }


def emits_topics(spec: KafkaBackupSpec | KafkaRestoreSpec) -> bool:
    """Return whether a run writes KafkaTopics to a ConfigMap."""
    return isinstance(spec, KafkaRestoreSpec) and spec.emit is Emit.KAFKA_TOPICS


def config_map_names(resource_name: str, run_id: str, spec: KafkaBackupSpec | KafkaRestoreSpec) -> list[str]:
    """Return the names of a run's ConfigMaps: first that of the request, then those that the driver patches."""
    patched = [topics_name(resource_name, run_id)] if emits_topics(spec) else []
    return [request_name(resource_name, run_id), progress_name(resource_name, run_id), *patched]


def config_maps(run: RunToStart) -> list[dict[str, Any]]:
    """Return all ConfigMaps of the run. Those that the driver patches are made empty beforehand."""
    _, *patched = config_map_names(run.resource.key.name, run.id, run.spec)
    empty = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": run.metadata(name)} for name in patched]
    return [request_config_map(run), *empty]


def request_config_map(run: RunToStart) -> dict[str, Any]:
    """Return the ConfigMap that the driver reads: the request and the template of its executors. It never changes."""
    key = run.resource.key
    spec = dict(run.resource.spec)
    if run.spec.cluster.strimzi is not None:
        spec["cluster"] = run.kafka.cluster.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(run.spec, KafkaRestoreSpec):
        source = {name: value for name, value in spec["source"].items() if name != "backupRef"}
        spec["source"] = {**source, "storage": dict(run.raw_storage)}
    if emits_topics(run.spec):
        spec["emitOptions"] = _emit_options(run)
    authorities = {names.KEY_KAFKA_CA: run.kafka.authorities} if run.kafka.authorities is not None else {}
    request = RunRequest(
        kind=key.kind,
        name=key.name,
        namespace=key.namespace,
        run_id=run.id,
        spec=spec,
        progress_config_map=progress_name(key.name, run.id),
        spark_conf=spark_conf(key, run.id, run.spec.spark, run.engine),
        remembered_as=run.remembered_as,
        topics_config_map=topics_name(key.name, run.id) if emits_topics(run.spec) else None,
        reconcile=run.reconcile or None,
        requested_by=run.annotations.get(ANNOTATION_REQUESTED_BY),
        uid=run.resource.uid if key.is_backup else None,
        anchor=run.anchor,
        take_over=run.resource.take_over if key.is_backup else None,
        release=run.release or None,
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": run.metadata(request_name(key.name, run.id)),
        "immutable": True,
        "data": {
            names.KEY_REQUEST: request.to_json(),
            names.KEY_EXECUTOR_TEMPLATE: json.dumps(executor_template(run), indent=1),
            **authorities,
        },
    }


def _emit_options(run: RunToStart) -> dict[str, Any]:
    """Return the `emitOptions` of the spec; where they say nothing, what the `Kafka` of `cluster.strimzi` says."""
    strimzi = run.spec.cluster.strimzi
    known = {"strimziCluster": strimzi.name, "strimziApi": run.kafka.strimzi_api} if strimzi is not None else {}
    said = {**known, **(run.resource.spec.get("emitOptions") or {})}
    return {name: value for name, value in said.items() if value is not None}


def executor_template(run: RunToStart) -> dict[str, Any]:
    """Return the pod that Spark completes with image, resources, arguments and names."""
    parts = run.access
    signing = signing_access(run.storage) if isinstance(run.spec, KafkaRestoreSpec) else Access([], [], [])
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": ROLE_EXECUTOR,
                "env": [*parts.env, *signing.env],
                "securityContext": _container_security(),
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}, *parts.mounts, *signing.mounts],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *parts.volumes, *signing.volumes],
    }
    pod = merged(
        {"spec": {"securityContext": _pod_security(run.engine)}},
        layer_of(run.spec.spark.executor.pod_template),
        {"metadata": _pod_metadata(run, ROLE_EXECUTOR), "spec": spec},
    )
    if "imagePullSecrets" in pod["spec"]:
        added = _pull_secrets(run)  # by Spark
        pod["spec"]["imagePullSecrets"] = [name for name in pod["spec"]["imagePullSecrets"] if name not in added]
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def job(run: RunToStart) -> dict[str, Any]:
    """Return the Job of a run. It never has two drivers, it does not try again where that cannot help, and it does not
    count disruptions and interruptions."""
    policy = run.spec.run_policy
    spec: dict[str, Any] = {
        "completions": 1,
        "parallelism": 1,
        "activeDeadlineSeconds": policy.active_deadline_seconds,
        "backoffLimit": policy.backoff_limit,
        "ttlSecondsAfterFinished": policy.ttl_seconds_after_finished,
        # A driver that was told to go may still write: the next begins when it has gone.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": _failure_rules()},
        "suspend": run.spec.suspend,
        "template": _driver_template(run),
    }
    metadata = run.metadata(job_name(run.resource.key.name, run.id))
    metadata["labels"] = {**policy.job_labels, **metadata["labels"]}
    metadata["annotations"][ANNOTATION_SUSPENDED] = "true" if run.spec.suspend else "false"
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _failure_rules() -> list[dict[str, Any]]:
    def on_exit(action: str, codes: list[ExitCode]) -> dict[str, Any]:
        values = sorted(int(code) for code in codes)
        return {"action": action, "onExitCodes": {"containerName": ROLE_DRIVER, "operator": "In", "values": values}}

    return [
        # The first rule that fits counts, so disruptions come first: the exit code of such a pod means nothing.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        on_exit("FailJob", list(NEVER_RETRIED)),
        # With podReplacementPolicy Failed a pod that suspension ends counts as failed unless it is left out here.
        on_exit("Ignore", [ExitCode.INTERRUPTED]),
    ]


def _driver_template(run: RunToStart) -> dict[str, Any]:
    """Return the pod of the Job. What the operator needs comes last, so neither the template nor `spark.conf` replaces
    it."""
    spark, settings = run.spec.spark, driver_conf(run.spec.spark.conf)
    defaults: dict[str, Any] = {"securityContext": _pod_security(run.engine)}
    if pull_secrets := _pull_secrets(run):
        defaults["imagePullSecrets"] = pull_secrets
    template = merged(
        {"spec": defaults},
        layer_of(spark.driver.pod_template),
        of_conf(settings, ROLE_DRIVER),
        {"metadata": _pod_metadata(run, ROLE_DRIVER), "spec": _driver_pod(run, settings)},
    )
    (container,) = template["spec"]["containers"]
    container["env"] = reach_api_server(container["env"])
    return template


def _driver_pod(run: RunToStart, settings: DriverConf) -> dict[str, Any]:
    """Return the fields of the driver's pod that the operator needs."""
    parts = run.access
    erasures = list(_erasures(run.spec))
    signing = signing_access(run.storage)
    spark = run.spec.spark
    memory_request = f"{split_memory(spark.driver.memory, 1).pod}Mi"
    limits = {"memory": memory_request}
    limit = settings.limit_cores or spark.driver.core_limit
    if limit is not None:
        limits["cpu"] = limit
    container = {
        "name": ROLE_DRIVER,
        "image": spark.image or run.engine.image,
        "imagePullPolicy": settings.pull_policy or run.engine.pull_policy,
        "args": ["driver", "--request", f"{names.PATH_REQUEST_DIR}/{names.KEY_REQUEST}", *_identity(run)],
        "env": [
            _from_pod(names.ENV_POD_NAME, "metadata.name"),
            _from_pod(names.ENV_POD_IP, "status.podIP"),
            _from_pod(names.ENV_POD_NAMESPACE, "metadata.namespace"),
            *parts.env,
            *signing.env,
        ],
        "resources": {
            "requests": {"cpu": settings.request_cores or spark.driver.core_request, "memory": memory_request},
            "limits": limits,
        },
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "request", "mountPath": names.PATH_REQUEST_DIR, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *parts.mounts,
            *signing.mounts,
            *(mount for mount, _ in erasures),
        ],
    }
    return {
        "restartPolicy": "Never",  # a podFailurePolicy takes no other
        "serviceAccountName": driver_account(spark),
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "containers": [container],
        "volumes": [
            {"name": "request", "configMap": {"name": request_name(run.resource.key.name, run.id)}},
            {"name": "tmp", "emptyDir": {}},
            *parts.volumes,
            *signing.volumes,
            *(volume for _, volume in erasures),
        ],
    }


def _identity(run: RunToStart) -> list[str]:
    """Return the arguments that let the driver tell its request from another one."""
    return [ARGUMENT_RUN, run.id, ARGUMENT_HASH, hash_of_config_map(request_config_map(run))]


def _erasures(spec: KafkaBackupSpec | KafkaRestoreSpec) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield a mount and a volume for the keys of each erasure. The Secret may be gone: it is needed once."""
    if isinstance(spec, KafkaBackupSpec):
        for number, item in enumerate(spec.erasures or ()):
            name, reference = f"erasure-{number}", item.keys_secret_ref
            items = [{"key": reference.key, "path": names.FILE_ERASED_KEYS}]
            secret = {"secretName": reference.name, "items": items, "optional": True}
            path = f"{names.PATH_ERASURES_DIR}/{item.name}"
            yield {"name": name, "mountPath": path, "readOnly": True}, {"name": name, "secret": secret}


def _pull_secrets(run: RunToStart) -> list[dict[str, str]]:
    """Return the Secrets of the installation, or those that `spark.conf` has instead."""
    instead = driver_conf(run.spec.spark.conf).pull_secrets
    return [{"name": name} for name in (run.engine.pull_secrets if instead is None else instead)]


def _pod_metadata(run: RunToStart, role: str) -> dict[str, Any]:
    key = run.resource.key
    return {"labels": {**run_labels(key, run.id), LABEL_ROLE: role}, "annotations": {ANNOTATION_RESOURCE: key.name}}


def _from_pod(variable: str, path: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _pod_security(engine: EngineSettings) -> dict[str, Any]:
    security: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if engine.user is None:  # OpenShift's restricted-v2 refuses ids that are not of the namespace's range
        return security
    ids = {"runAsUser": engine.user, "runAsGroup": engine.user, "fsGroup": engine.user}
    # By default kubelet walks through all files of a volume at each start.
    return {**security, **ids, "fsGroupChangePolicy": "OnRootMismatch"}


def _container_security() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
