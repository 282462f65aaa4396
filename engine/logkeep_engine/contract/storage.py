"""The place of an archive, `spec.storage` and `spec.source.storage`, or of the state of a restore, `spec.state`."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator, Field, model_validator

from logkeep_engine.contract.endpoints import Endpoint, Region
from logkeep_engine.contract.model import Model
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
        raise ValueError("may not have line breaks or other control characters, nor codes of such (%0a)")
    if any(part in (".", "..") for part in plain.split("/")):
        raise ValueError("may not have '.' or '..' as the name of a folder")
    return text


StorageUri = Annotated[str, Field(pattern=URI), AfterValidator(_uri)]


class WorkloadIdentity(Model):
    pass


class Credentials(Model):
    secret_ref: S3SecretRef | None = None
    workload_identity: WorkloadIdentity | None = None

    @model_validator(mode="after")
    def _one(self) -> Credentials:
        if (self.secret_ref is None) == (self.workload_identity is None):
            raise ValueError("exactly one of secretRef and workloadIdentity must be set")
        return self


class Volume(Model):
    claim_name: ResourceName


class StorageTls(Model):
    """Whom to trust as the object store."""

    ca_secret_ref: CaRef | None = None
    ca_config_map_ref: CaRef | None = None

    @model_validator(mode="after")
    def _one(self) -> StorageTls:
        if (self.ca_secret_ref is None) == (self.ca_config_map_ref is None):
            raise ValueError("exactly one of caSecretRef and caConfigMapRef must be set")
        return self


class Signing(Model):
    """The Secret with the keys that sign an archive, or by which its signatures are checked."""

    secret_ref: SecretRef


class StorageSpec(Model):
    uri: StorageUri
    endpoint: Endpoint | None = None
    region: Region | None = None
    credentials: Credentials | None = None
    tls: StorageTls | None = None
    volume: Volume | None = None

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


def mount_path(storage: StorageSpec) -> str:
    """Where the volume of a file:// uri is mounted."""
    return str(PurePosixPath(storage.uri.removeprefix("file://")))
