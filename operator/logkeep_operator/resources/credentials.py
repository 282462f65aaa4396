"""Environment and mounts that give a pod its credentials and its archive volume.

Driver and executors get the same. Values of Secrets never pass through the operator: the pods refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.spec import Cluster, Storage


@dataclass(frozen=True)
class Access:
    """Parts of a pod: `env` and `mounts` of its container, `volumes` of its spec."""

    env: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]


def access(cluster: Cluster, storage: Storage) -> Access:
    """What a pod needs to reach this cluster and this archive."""
    result = Access([], [], [])
    _add_kafka(result, cluster)
    _add_storage(result, storage)
    return result


def _add_kafka(pod: Access, cluster: Cluster) -> None:
    security = cluster.security
    if security.sasl is not None:
        secret = security.sasl.secret_ref.name
        pod.env.append(_from_secret(names.ENV_KAFKA_USERNAME, secret, names.SECRET_SASL_USERNAME))
        pod.env.append(_from_secret(names.ENV_KAFKA_PASSWORD, secret, names.SECRET_SASL_PASSWORD))
    if security.tls is None:
        return
    if security.tls.ca_secret_ref is not None:
        _mount_secret(pod, "kafka-ca", security.tls.ca_secret_ref.name, names.PATH_KAFKA_CA_DIR, [names.SECRET_CA])
        pod.env.append({"name": names.ENV_KAFKA_CA_FILE, "value": f"{names.PATH_KAFKA_CA_DIR}/{names.SECRET_CA}"})
    if security.tls.client_cert_secret_ref is not None:
        keys = [names.SECRET_CLIENT_CERT, names.SECRET_CLIENT_KEY]
        folder = names.PATH_KAFKA_CLIENT_DIR
        _mount_secret(pod, "kafka-client", security.tls.client_cert_secret_ref.name, folder, keys)
        pod.env.append({"name": names.ENV_KAFKA_CERT_FILE, "value": f"{folder}/{names.SECRET_CLIENT_CERT}"})
        pod.env.append({"name": names.ENV_KAFKA_KEY_FILE, "value": f"{folder}/{names.SECRET_CLIENT_KEY}"})


def _add_storage(pod: Access, storage: Storage) -> None:
    if storage.credentials is not None and storage.credentials.secret_ref is not None:
        secret = storage.credentials.secret_ref.name
        pod.env.append(_from_secret(names.ENV_S3_ACCESS_KEY, secret, names.SECRET_S3_ACCESS_KEY))
        pod.env.append(_from_secret(names.ENV_S3_SECRET_KEY, secret, names.SECRET_S3_SECRET_KEY))
        pod.env.append(_from_secret(names.ENV_S3_SESSION_TOKEN, secret, names.SECRET_S3_SESSION_TOKEN, optional=True))
    if storage.volume is not None:
        path = str(PurePosixPath(storage.uri.removeprefix("file://")))
        pod.volumes.append({"name": "archive", "persistentVolumeClaim": {"claimName": storage.volume.claim_name}})
        pod.mounts.append({"name": "archive", "mountPath": path})


def _from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _mount_secret(pod: Access, name: str, secret: str, folder: str, keys: list[str]) -> None:
    # The listed keys only, so that a missing one keeps the pod from starting and is said by name.
    items = [{"key": key, "path": key} for key in keys]
    # Readable for the group that fsGroup gives, which the driver's and the executors' user is in.
    pod.volumes.append({"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}})
    pod.mounts.append({"name": name, "mountPath": folder, "readOnly": True})
