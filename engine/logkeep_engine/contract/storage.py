"""The place of an archive, `spec.storage` and `spec.source.storage`, or of the state of a restore, `spec.state`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, NamedTuple
from urllib.parse import unquote

from pydantic import AfterValidator, Field, model_validator

from logkeep_engine.contract.endpoints import Endpoint, Region
from logkeep_engine.contract.model import Model, meant, rules, schema
from logkeep_engine.contract.names import Keys
from logkeep_engine.contract.references import SecretRef, ServerTls, StoreSecretRef
from logkeep_engine.contract.s3_options import ArchiveS3Options, S3Options
from logkeep_engine.contract.values import ResourceName

# No character of a line break or a terminal's command: URIs stand in logs, in lists and in messages.
URI = meant(
    r"^((s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^/?#\x00-\x1f\x7f-\x9f]+)*/?"
    r"|file:///[^?#\x00-\x1f\x7f-\x9f]+)$",
    "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path, without a user, a "
    "password, a query, a fragment, empty folders and control characters; a bucket's name has 3 to 63 of a-z 0-9 . _ -",
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _uri(text: str) -> str:
    """Refuse folders that lead elsewhere, and control characters, written out or as codes: `%2e%2e` is `..`."""
    plain = unquote(text)
    if _CONTROL.search(plain):
        raise ValueError("may not have line breaks or other control characters, nor their codes (%0a)")
    if any(part in (".", "..") for part in plain.split("/")):
        raise ValueError("may not have '.' or '..' as the name of a folder")
    return text


StorageUri = Annotated[str, Field(pattern=URI), schema(maxLength=1024), AfterValidator(_uri)]


class WorkloadIdentity(Model):
    pass


class Credentials(Model):
    model_config = rules(
        (
            "has(self.secretRef) != has(self.workloadIdentity)",
            "exactly one of secretRef and workloadIdentity must be set",
        ),
    )

    secret_ref: StoreSecretRef | None = None
    """Secret with the keys of the object store."""
    workload_identity: WorkloadIdentity | None = None
    """Use the identity of the pods' ServiceAccounts (IRSA, EKS Pod Identity) and nothing else. A run whose pods have
    none fails with the reason CredentialsMissing."""

    @model_validator(mode="after")
    def _one(self) -> Credentials:
        if (self.secret_ref is None) == (self.workload_identity is None):
            raise ValueError("exactly one of secretRef and workloadIdentity must be set")
        return self


class Volume(Model):
    claim_name: ResourceName
    """Name of a PersistentVolumeClaim in the same namespace. With more than one node it must be ReadWriteMany."""


class Signing(Model):
    """The Secret with the keys that sign an archive, or that its signatures are checked with."""

    secret_ref: SecretRef
    """Secret with keys of Ed25519, in PEM or base64. ed25519 is the private key of the writer, publicKeys has those
    to trust. It is mounted into the driver."""


SCHEMES = ("s3", "gs", "az", "file")
SCHEMES_WITH = {"endpoint": ("s3", "gs", "az"), "region": ("s3",), "s3": ("s3",)}
"""The URIs that these fields, and the options of commands and of Spark with their names, have an effect on."""


def where_with(name: str, schemes: Iterable[str]) -> str:
    """Return the second half of a sentence about a field that has no effect on these schemes."""
    there = ["a folder" if scheme == "file" else f"{scheme}://" for scheme in schemes]
    return f"{' and '.join(there)}: it is for {', '.join(f'{scheme}://' for scheme in SCHEMES_WITH[name])}"


_KEYS_OF_SCHEMES = {
    "access_key_id_key": "s3://",
    "secret_access_key_key": "s3://",
    "session_token_key": "s3://",
    "service_account_key_key": "gs://",
    "account_key_key": "az://",
    "sas_token_key": "az://",
}


def _rule_of_key(name: str, scheme: str) -> tuple[str, str]:
    field = StoreSecretRef.model_fields[name]
    key = f"self.credentials.secretRef.{field.alias}"
    there = f"!has(self.credentials) || !has(self.credentials.secretRef) || !has({key})"
    return (
        f"self.uri.startsWith('{scheme}') || {there} || {key} == '{field.default}'",
        f"credentials.secretRef.{field.alias} may be set only with {scheme}",
    )


class StorageSpec(Model):
    model_config = rules(
        *(_rule_of_key(name, scheme) for name, scheme in _KEYS_OF_SCHEMES.items()),
        (
            "!self.uri.startsWith('file:') || !has(self.endpoint) && !has(self.credentials) && !has(self.tls)",
            "endpoint, credentials and tls may not be set with a file:// uri",
        ),
        (
            "self.uri.startsWith('s3://') || !has(self.region)",
            "region may be set only with an s3:// uri",
        ),
        (
            "self.uri.startsWith('s3://') || !has(self.s3)",
            "s3 may be set only with an s3:// uri",
        ),
        (
            "!self.uri.startsWith('az://') || has(self.endpoint)",
            "endpoint must be set with an az:// uri: https://ACCOUNT.blob.core.windows.net",
        ),
        (
            "!has(self.tls) || !has(self.endpoint) || self.endpoint.startsWith('https://')",
            "tls has no effect with an endpoint of http://",
        ),
        (
            "!self.uri.startsWith('file:') || has(self.volume)",
            "volume must be set with a file:// uri: a pod has no other place for files that last",
        ),
        (
            "self.uri.startsWith('file:') || !has(self.volume)",
            "volume may be set only with a file:// uri",
        ),
    )

    uri: StorageUri
    """Where it is: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or file:///path on a volume. That of
    a KafkaBackup cannot be changed. One place may hold the states of many restores."""
    endpoint: Endpoint | None = None
    """URL of an object store other than Amazon's or Google's, such as https://minio.storage:9000; of Azure that of the
    storage account. The installation must allow it (engine.allowed.endpoints of the chart)."""
    region: Region | None = None
    """Region of the bucket."""
    s3: S3Options | None = None
    """Options of requests to S3. A change holds for objects that are written from then on."""
    credentials: Credentials | None = None
    """How the pods log in to the object store. Without it, they use what their environment gives them; for the state of
    a restore, they log in as they do for the archive."""
    tls: ServerTls | None = None
    """Whom to trust as the object store. Without it, the certificate authorities of the engine's image are trusted."""
    volume: Volume | None = None
    """The volume for a file:// uri. It is mounted at the path of the uri, in the driver and in every executor."""

    @model_validator(mode="after")
    def _fits_scheme(self) -> StorageSpec:
        if self.uri.startswith("file:"):
            for name in ("endpoint", "credentials", "tls"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} may not be set with a file:// uri")
        elif self.volume is not None:
            raise ValueError("volume may be set only with a file:// uri")
        if self.region is not None and not self.uri.startswith("s3:"):
            raise ValueError("region may be set only with an s3:// uri")
        if self.s3 is not None and not self.uri.startswith("s3:"):
            raise ValueError("s3 may be set only with an s3:// uri")
        if self.uri.startswith("az:") and self.endpoint is None:
            raise ValueError("endpoint must be set with an az:// uri: https://ACCOUNT.blob.core.windows.net")
        secret = self.credentials.secret_ref if self.credentials is not None else None
        for name, scheme in _KEYS_OF_SCHEMES.items() if secret is not None else ():
            said = getattr(secret, name)
            if not self.uri.startswith(scheme) and said != StoreSecretRef.model_fields[name].default:
                field = StoreSecretRef.model_fields[name].alias or name
                raise ValueError(f"credentials.secretRef.{field} may be set only with {scheme}")
        if self.tls is not None and self.endpoint is not None and self.endpoint.startswith("http:"):
            raise ValueError("tls has no effect with an endpoint of http://")
        return self


class ArchiveSpec(StorageSpec):
    """The place of an archive, and who signs it."""

    s3: ArchiveS3Options | None = None
    """Options of requests to S3. A change holds for objects that are written from then on."""
    signing: Signing | None = None
    """Who signs the archive. With a private key the driver signs each commit. A reader with public keys refuses what
    none of them has signed."""


class SecretVariable(NamedTuple):
    """A variable of the pods' environment, the key of the Secret that it comes from, and whether that may be
    missing."""

    name: str
    key: str
    optional: bool = False


def secret_variables(storage: StorageSpec, keys: Keys) -> tuple[SecretVariable, ...]:
    """Return the variables that the Secret of a storage brings; none if it names no Secret."""
    secret = storage.credentials.secret_ref if storage.credentials is not None else None
    if secret is None:
        return ()
    if storage.uri.startswith("gs:"):
        return (SecretVariable(keys.google, secret.service_account_key_key),)
    if storage.uri.startswith("az:"):  # one of the two
        return (
            SecretVariable(keys.azure_key, secret.account_key_key, optional=True),
            SecretVariable(keys.azure_sas, secret.sas_token_key, optional=True),
        )
    return (
        SecretVariable(keys.access, secret.access_key_id_key),
        SecretVariable(keys.secret, secret.secret_access_key_key),
        SecretVariable(keys.token, secret.session_token_key, optional=True),
    )


def mount_path(storage: StorageSpec) -> str:
    """Return where the volume of a file:// uri is mounted."""
    return str(PurePosixPath(storage.uri.removeprefix("file://")))
