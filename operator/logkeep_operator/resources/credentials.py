"""Environment and mounts that give a pod its credentials and its archive volume.

Driver and executors get the same. Values of Secrets never pass through the operator: the pods refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.spec import CaRef, ClusterSpec, StorageSpec

# A pod has one container with one user, whose uid and groups may be the platform's: there is nobody to hide files from.
_READABLE = 0o444


@dataclass(frozen=True)
class Access:
    """The parts of a pod that give it access: `env` and `mounts` of its container, `volumes` of its spec."""

    env: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]


def access(cluster: ClusterSpec, storage: StorageSpec, state: StorageSpec | None = None) -> Access:
    """The parts with which a pod reaches this cluster and this archive. `state` is the place of a restore's state, if
    it has one of its own: then the archive is mounted read-only."""
    result = Access([], [], [])
    _add_kafka(result, cluster)
    one_volume = state is not None and state.volume is not None and state.volume == storage.volume
    _add_keys(result, storage, names.OWN_KEYS)
    _add_ca(result, storage, names.OWN_KEYS, names.PATH_S3_CA_DIR)
    _add_volume(result, storage, "archive", read_only=state is not None and not one_volume)
    if state is not None:
        _add_keys(result, state, names.STATE_KEYS)
        _add_ca(result, state, names.STATE_KEYS, names.PATH_STATE_CA_DIR)
        if one_volume:  # a pod may not have one claim in two volumes
            if mount_path(state) != mount_path(storage):  # nor one path twice
                _mount_volume(result, state, "archive")
        else:
            _add_volume(result, state, "state")
    return result


def _add_kafka(pod: Access, cluster: ClusterSpec) -> None:
    security = cluster.security
    if security.sasl is not None:
        secret = security.sasl.secret_ref.name
        pod.env.append(_from_secret(names.ENV_KAFKA_USERNAME, secret, names.SECRET_SASL_USERNAME))
        pod.env.append(_from_secret(names.ENV_KAFKA_PASSWORD, secret, names.SECRET_SASL_PASSWORD))
    if security.tls is None:
        return
    folder = names.PATH_KAFKA_CA_DIR
    if security.tls.ca_secret_ref is not None:
        _mount_secret(pod, "kafka-ca", security.tls.ca_secret_ref.name, folder, [names.SECRET_CA])
    if security.tls.ca_config_map_ref is not None:
        _mount_ca(pod, "kafka-ca", "configMap", security.tls.ca_config_map_ref, folder)
    if security.tls.ca_secret_ref is not None or security.tls.ca_config_map_ref is not None:
        pod.env.append({"name": names.ENV_KAFKA_CA_FILE, "value": f"{folder}/{names.SECRET_CA}"})
    if security.tls.client_cert_secret_ref is not None:
        keys = [names.SECRET_CLIENT_CERT, names.SECRET_CLIENT_KEY]
        folder = names.PATH_KAFKA_CLIENT_DIR
        _mount_secret(pod, "kafka-client", security.tls.client_cert_secret_ref.name, folder, keys)
        pod.env.append({"name": names.ENV_KAFKA_CERT_FILE, "value": f"{folder}/{names.SECRET_CLIENT_CERT}"})
        pod.env.append({"name": names.ENV_KAFKA_KEY_FILE, "value": f"{folder}/{names.SECRET_CLIENT_KEY}"})


def _add_keys(pod: Access, storage: StorageSpec, keys: names.Keys) -> None:
    if storage.credentials is not None and storage.credentials.secret_ref is not None:
        secret = storage.credentials.secret_ref.name
        pod.env.append(_from_secret(keys.access, secret, names.SECRET_S3_ACCESS_KEY))
        pod.env.append(_from_secret(keys.secret, secret, names.SECRET_S3_SECRET_KEY))
        pod.env.append(_from_secret(keys.token, secret, names.SECRET_S3_SESSION_TOKEN, optional=True))


def _add_ca(pod: Access, storage: StorageSpec, keys: names.Keys, folder: str) -> None:
    if storage.tls is None:
        return
    name = PurePosixPath(folder).name
    if storage.tls.ca_secret_ref is not None:
        _mount_ca(pod, name, "secret", storage.tls.ca_secret_ref, folder)
    if storage.tls.ca_config_map_ref is not None:
        _mount_ca(pod, name, "configMap", storage.tls.ca_config_map_ref, folder)
    pod.env.append({"name": keys.ca_file, "value": f"{folder}/{names.SECRET_CA}"})


def _add_volume(pod: Access, storage: StorageSpec, name: str, *, read_only: bool = False) -> None:
    if storage.volume is None:
        return
    claim: dict[str, Any] = {"claimName": storage.volume.claim_name}
    if read_only:
        claim["readOnly"] = True
    pod.volumes.append({"name": name, "persistentVolumeClaim": claim})
    _mount_volume(pod, storage, name, read_only=read_only)


def mount_path(storage: StorageSpec) -> str:
    """Where the volume of a file:// uri is mounted."""
    return str(PurePosixPath(storage.uri.removeprefix("file://")))


def _mount_volume(pod: Access, storage: StorageSpec, name: str, *, read_only: bool = False) -> None:
    mount: dict[str, Any] = {"name": name, "mountPath": mount_path(storage)}
    if read_only:
        mount["readOnly"] = True
    pod.mounts.append(mount)


def _from_secret(variable: str, secret: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": secret, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}


def _mount_secret(pod: Access, name: str, secret: str, folder: str, keys: list[str]) -> None:
    # The listed keys only, so that a missing one keeps the pod from starting and is said by name.
    items = [{"key": key, "path": key} for key in keys]
    pod.volumes.append({"name": name, "secret": {"secretName": secret, "items": items, "defaultMode": _READABLE}})
    pod.mounts.append({"name": name, "mountPath": folder, "readOnly": True})


def _mount_ca(pod: Access, name: str, kind: str, ca: CaRef, folder: str) -> None:
    named = "secretName" if kind == "secret" else "name"
    items = [{"key": ca.key, "path": names.SECRET_CA}]
    pod.volumes.append({"name": name, kind: {named: ca.name, "items": items, "defaultMode": _READABLE}})
    pod.mounts.append({"name": name, "mountPath": folder, "readOnly": True})
