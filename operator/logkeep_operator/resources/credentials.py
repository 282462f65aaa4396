"""Environment and mounts that give a pod its credentials and its archive volume.

Driver and executors get the same. Values of Secrets never pass through the operator: the pods refer to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import ClusterSpec, Sasl, Tls
from logkeep_engine.contract.references import ServerTls
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec, mount_path, secret_variables

# A pod has one container with one user, whose uid and groups may be the platform's: there is no one to hide files from.
_READABLE = 0o444


@dataclass(frozen=True)
class Access:
    """The parts of a pod that give it access: `env` and `mounts` of its container, `volumes` of its spec."""

    env: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    volumes: list[dict[str, Any]]


@dataclass(frozen=True)
class KafkaAccess:
    """How pods reach the Kafka cluster: a cluster without `strimzi`, and the certificate authorities to trust, in PEM,
    if no Secret that the pods can mount has them. `strimzi_api` is the version of the API that has shown it."""

    cluster: ClusterSpec
    authorities: str | None = None
    strimzi_api: str | None = None


def access(
    kafka: KafkaAccess, storage: StorageSpec, state: StorageSpec | None = None, config_map: str | None = None
) -> Access:
    """Return the parts with which a pod reaches this cluster and this archive. `state` is the place of a restore's
    state, if it has one of its own: then the archive is mounted read-only. `config_map` has the cluster's authorities,
    if no Secret has them."""
    result = Access([], [], [])
    _add_kafka(result, kafka, config_map)
    if any(place is not None and place.uri.startswith("s3:") for place in (storage, state)):
        # The resource's endpoint was checked. One in a variable or a file of AWS, which it may bring, was not.
        result.env.append({"name": names.ENV_S3_IGNORE_ENDPOINTS, "value": "true"})
    one_volume = state is not None and state.volume is not None and state.volume == storage.volume
    _add_keys(result, storage, names.OWN_KEYS)
    _mount_ca(result, _authorities(storage.tls), names.PATH_S3_CA_DIR, names.ENV_S3_CA_FILE)
    _add_volume(result, storage, "archive", read_only=state is not None and not one_volume)
    if state is not None:
        _add_keys(result, state, names.STATE_KEYS)
        _mount_ca(result, _authorities(state.tls), names.PATH_STATE_CA_DIR, names.ENV_STATE_S3_CA_FILE)
        if one_volume:  # a pod may not have one claim in two volumes
            if mount_path(state) != mount_path(storage):  # nor one path twice
                _mount_volume(result, state, "archive")
        else:
            _add_volume(result, state, "state")
    return result


def signing_access(storage: ArchiveSpec) -> Access:
    """Return the parts with which a pod has the keys that sign an archive: the Secret as it is, since either key may be
    missing. A driver has them, and the executors of a restore, which store offset maps. Those of a backup store nothing
    that is signed."""
    result = Access([], [], [])
    if storage.signing is not None:
        name = storage.signing.secret_ref.name
        _mount(result, "signing", {"secret": {"secretName": name, "defaultMode": _READABLE}}, names.PATH_SIGNING_DIR)
        result.env.append({"name": names.ENV_SIGNING_DIR, "value": names.PATH_SIGNING_DIR})
    return result


def _add_kafka(pod: Access, kafka: KafkaAccess, config_map: str | None) -> None:
    security = kafka.cluster.security_with_user
    if security.sasl is not None:
        _add_login(pod, security.sasl)
    source = _authorities(security.tls)
    if kafka.authorities is not None:
        source = _config_map(config_map, {names.KEY_KAFKA_CA: names.FILE_CA})
    _mount_ca(pod, source, names.PATH_KAFKA_CA_DIR, names.ENV_KAFKA_CA_FILE)
    if security.tls is not None and security.tls.client_cert_secret_ref is not None:
        client = security.tls.client_cert_secret_ref
        files = {client.certificate_key: names.FILE_CLIENT_CERT, client.private_key_key: names.FILE_CLIENT_KEY}
        folder = names.PATH_KAFKA_CLIENT_DIR
        _mount(pod, "kafka-client", _secret(client.name, files), folder)
        pod.env.append({"name": names.ENV_KAFKA_CERT_FILE, "value": f"{folder}/{names.FILE_CLIENT_CERT}"})
        pod.env.append({"name": names.ENV_KAFKA_KEY_FILE, "value": f"{folder}/{names.FILE_CLIENT_KEY}"})


def _add_login(pod: Access, sasl: Sasl) -> None:
    """Mount what may be renewed while a run goes on: the kubelet changes files, and no variables."""
    login, folder = sasl.secret_ref, names.PATH_KAFKA_LOGIN_DIR
    if login is not None:
        files = {login.password_key: names.FILE_PASSWORD}
        if sasl.username is None:
            files = {login.username_key: names.FILE_USERNAME, **files}
            _add_file(pod, names.ENV_KAFKA_USERNAME + names.FILE_SUFFIX, folder, names.FILE_USERNAME)
        _add_file(pod, names.ENV_KAFKA_PASSWORD + names.FILE_SUFFIX, folder, names.FILE_PASSWORD)
        _mount(pod, "kafka-login", _secret(login.name, files), folder)
    if sasl.oauth is not None:
        _mount_ca(pod, _authorities(sasl.oauth.tls), names.PATH_KAFKA_TOKEN_CA_DIR, names.ENV_KAFKA_TOKEN_CA_FILE)
        if sasl.oauth.service_account_token is not None:
            token = {"audience": sasl.oauth.service_account_token.audience, "path": names.FILE_TOKEN}
            source = {"projected": {"sources": [{"serviceAccountToken": token}], "defaultMode": _READABLE}}
            _mount(pod, "kafka-token", source, names.PATH_KAFKA_TOKEN_DIR)
            _add_file(pod, names.ENV_KAFKA_TOKEN_FILE, names.PATH_KAFKA_TOKEN_DIR, names.FILE_TOKEN)
    if sasl.aws is not None:
        _ignore_endpoints(pod)


def _ignore_endpoints(pod: Access) -> None:
    """Have no variable and no file of AWS say where keys and tokens go."""
    if all(item["name"] != names.ENV_S3_IGNORE_ENDPOINTS for item in pod.env):
        pod.env.append({"name": names.ENV_S3_IGNORE_ENDPOINTS, "value": "true"})


def _add_file(pod: Access, variable: str, folder: str, file: str) -> None:
    pod.env.append({"name": variable, "value": f"{folder}/{file}"})


def _add_keys(pod: Access, storage: StorageSpec, keys: names.Keys) -> None:
    if storage.credentials is not None and storage.credentials.secret_ref is not None:
        secret = storage.credentials.secret_ref.name
        pod.env.extend(
            _from_secret(name, secret, key, optional=may) for name, key, may in secret_variables(storage, keys)
        )


def _add_volume(pod: Access, storage: StorageSpec, name: str, *, read_only: bool = False) -> None:
    if storage.volume is None:
        return
    claim: dict[str, Any] = {"claimName": storage.volume.claim_name}
    if read_only:
        claim["readOnly"] = True
    pod.volumes.append({"name": name, "persistentVolumeClaim": claim})
    _mount_volume(pod, storage, name, read_only=read_only)


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


def _authorities(tls: Tls | ServerTls | None) -> dict[str, Any] | None:
    """Return the source of a volume with the authorities to trust, None if those of the image are."""
    if tls is not None and tls.ca_secret_ref is not None:
        return _secret(tls.ca_secret_ref.name, {tls.ca_secret_ref.certificate_key: names.FILE_CA})
    if tls is not None and tls.ca_config_map_ref is not None:
        return _config_map(tls.ca_config_map_ref.name, {tls.ca_config_map_ref.certificate_key: names.FILE_CA})
    return None


def _secret(name: str, files: dict[str, str]) -> dict[str, Any]:
    """Return the source of a volume with files of a Secret, by their keys."""
    return {"secret": {"secretName": name, **_files(files)}}


def _config_map(name: str | None, files: dict[str, str]) -> dict[str, Any]:
    """Return the source of a volume with files of a ConfigMap, by their keys."""
    return {"configMap": {"name": name, **_files(files)}}


def _files(files: dict[str, str]) -> dict[str, Any]:
    # The listed keys only, so that a missing one keeps the pod from starting and is said by name.
    return {"items": [{"key": key, "path": path} for key, path in files.items()], "defaultMode": _READABLE}


def _mount_ca(pod: Access, source: dict[str, Any] | None, folder: str, variable: str) -> None:
    """Mount authorities in a folder, by whose name the volume is called, and say in a variable where they are."""
    if source is not None:
        _mount(pod, PurePosixPath(folder).name, source, folder)
        pod.env.append({"name": variable, "value": f"{folder}/{names.FILE_CA}"})


def _mount(pod: Access, name: str, source: dict[str, Any], folder: str) -> None:
    pod.volumes.append({"name": name, **source})
    pod.mounts.append({"name": name, "mountPath": folder, "readOnly": True})
