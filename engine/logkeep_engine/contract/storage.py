"""The place of an archive, `spec.storage` and `spec.source.storage`, or of the state of a restore, `spec.state`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, Field, model_validator

from logkeep_engine.contract.endpoints import Endpoint, Region
from logkeep_engine.contract.model import Model, rules, schema
from logkeep_engine.contract.references import CaRef, S3SecretRef, SecretRef
from logkeep_engine.contract.values import ResourceName

# No character of a line break or a terminal's command: URIs stand in logs, in lists and in messages.
URI = r"^(s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/?#\x00-\x1f\x7f-\x9f]+)*/?|file:///[^?#\x00-\x1f\x7f-\x9f]+)$"
NOT_A_URI = (
    "must be s3://bucket/prefix or file:///path, without a user, a password, a query, a fragment, empty folders and "
    "control characters; a bucket's name has 3 to 63 of a-z 0-9 . -"
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

    secret_ref: S3SecretRef | None = None
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


class StorageTls(Model):
    """Whom to trust as the object store."""

    model_config = rules(
        (
            "has(self.caSecretRef) != has(self.caConfigMapRef)",
            "exactly one of caSecretRef and caConfigMapRef must be set",
        ),
    )

    ca_secret_ref: CaRef | None = None
    """Secret with the certificate authorities to trust."""
    ca_config_map_ref: CaRef | None = None
    """ConfigMap with the certificate authorities to trust."""

    @model_validator(mode="after")
    def _one(self) -> StorageTls:
        if (self.ca_secret_ref is None) == (self.ca_config_map_ref is None):
            raise ValueError("exactly one of caSecretRef and caConfigMapRef must be set")
        return self


class Signing(Model):
    """The Secret with the keys that sign an archive, or that its signatures are checked with."""

    secret_ref: SecretRef
    """Secret with keys of Ed25519, in PEM or base64. ed25519 is the private key of the writer, publicKeys has those
    to trust. It is mounted into the driver."""


class StorageSpec(Model):
    model_config = rules(
        (
            "self.uri.startsWith('s3://') || !has(self.endpoint) && !has(self.region) && !has(self.credentials)",
            "endpoint, region and credentials may be set only with an s3:// uri",
        ),
        (
            "self.uri.startsWith('s3://') || !has(self.tls)",
            "tls may be set only with an s3:// uri",
        ),
        (
            "!has(self.tls) || !has(self.endpoint) || self.endpoint.startsWith('https://')",
            "tls has no effect with an endpoint of http://",
        ),
        (
            "self.uri.startsWith('s3://') || has(self.volume)",
            "volume must be set with a file:// uri: a pod has no other place for files that last",
        ),
        (
            "!self.uri.startsWith('s3://') || !has(self.volume)",
            "volume may be set only with a file:// uri",
        ),
    )

    uri: StorageUri
    """Where it is: s3://bucket/prefix, or file:///path on a volume. That of a KafkaBackup cannot be changed. One place
    may hold the states of many restores."""
    endpoint: Endpoint | None = None
    """URL of an object store other than Amazon's, such as https://minio.storage:9000. The installation must allow it
    (engine.allowed.endpoints of the chart)."""
    region: Region | None = None
    """Region of the bucket."""
    credentials: Credentials | None = None
    """How the pods log in to the object store. Without it, they use what their environment gives them; for the state of
    a restore, they log in as they do for the archive."""
    tls: StorageTls | None = None
    """Whom to trust as the object store. Without it, the certificate authorities of the engine's image are trusted."""
    volume: Volume | None = None
    """The volume for a file:// uri. It is mounted at the path of the uri, in the driver and in every executor."""

    @model_validator(mode="after")
    def _fits_scheme(self) -> StorageSpec:
        if self.uri.startswith("file:"):
            for name in ("endpoint", "region", "credentials", "tls"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} may be set only with an s3:// uri")
        elif self.volume is not None:
            raise ValueError("volume may be set only with a file:// uri")
        if self.tls is not None and self.endpoint is not None and self.endpoint.startswith("http:"):
            raise ValueError("tls has no effect with an endpoint of http://")
        return self


class ArchiveSpec(StorageSpec):
    """The place of an archive, and who signs it."""

    signing: Signing | None = None
    """Who signs the archive. With a private key the driver signs each commit. A reader with public keys refuses what
    none of them has signed."""


def mount_path(storage: StorageSpec) -> str:
    """Return where the volume of a file:// uri is mounted."""
    return str(PurePosixPath(storage.uri.removeprefix("file://")))
