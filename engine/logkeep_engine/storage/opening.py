"""Opens the storage that a URI or a resource names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from logkeep_engine.contract import names
from logkeep_engine.contract import storage as specs
from logkeep_engine.contract.parsing import parse_s3_options
from logkeep_engine.contract.s3_options import S3Options
from logkeep_engine.errors import StorageRefused, by_place
from logkeep_engine.storage.base import Storage
from logkeep_engine.storage.credentials import require_ca_file, require_identity, require_secret, require_signing_keys
from logkeep_engine.storage.local import LocalStorage
from logkeep_engine.storage.place import BucketPlace


def open_storage(
    spec: specs.StorageSpec, environ: Mapping[str, str] = os.environ, *, secret_keys: names.Keys = names.OWN_KEYS
) -> Storage:
    """Return the storage of a resource. Opens no connection. `secret_keys`: where the environment holds the keys of the
    Secret that the spec names; without one they are the process's own.

    Raises CredentialsMissing if the spec names a Secret, or the pod's identity, and the environment does not hold what
    that should have brought. So it does if the spec says that the archive is signed, and no folder with keys is there.
    """
    if isinstance(spec, specs.ArchiveSpec) and spec.signing is not None:
        require_signing_keys(environ)
    ca_file = require_ca_file(secret_keys, environ) if spec.tls is not None else None
    s3 = spec.s3 or S3Options()
    if spec.credentials is not None and spec.credentials.secret_ref is not None:
        require_secret(spec, spec.credentials.secret_ref.name, secret_keys, environ)
        return open_uri(spec.uri, spec.endpoint, spec.region, environ, keys=secret_keys, ca_file=ca_file, s3=s3)
    identity = spec.credentials is not None and spec.credentials.workload_identity is not None
    if identity:
        require_identity(spec.uri.partition(":")[0], secret_keys, environ)
    return open_uri(spec.uri, spec.endpoint, spec.region, environ, identity=identity, ca_file=ca_file, s3=s3)


def open_uri(
    uri: str,
    endpoint: str | None = None,
    region: str | None = None,
    environ: Mapping[str, str] = os.environ,
    *,
    keys: names.Keys = names.OWN_KEYS,
    identity: bool = False,
    ca_file: str | None = None,
    s3: S3Options | None = None,
) -> Storage:
    """Return the storage at `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///path`.

    Credentials of an object store: the `keys` of `environ`, else the own chain of the store's library; with `identity`
    those of the pod's ServiceAccount and no others. `ca_file`: certificate authorities to trust as the store; None: the
    library's own. `s3`: the options of requests to S3; None: those that `environ` has (LOGKEEP_S3_OPTIONS).

    Raises StorageRefused for any other URI; one that may hold a secret is not repeated.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:  # its text may repeat a password
        raise _no_storage_uri(uri) from None
    _refuse_login(parts)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        _refuse_rest(uri, hint="In the name of a folder write %3F and %23.")
        return LocalStorage(uri)
    if parts.scheme in ("s3", "gs", "az") and parts.netloc:
        _refuse_rest(uri, hint=f"End the URI there. {_login()}")
        if s3 is None:
            s3 = _options_of(environ) if parts.scheme == "s3" else S3Options()
        place = BucketPlace(uri, endpoint, region, keys, identity, ca_file, s3)
        # A run does without the storages of other schemes.
        if parts.scheme == "s3":
            from logkeep_engine.storage.s3 import S3Storage

            return S3Storage(place, environ)
        if parts.scheme == "gs":
            from logkeep_engine.storage.gcs import GcsStorage

            return GcsStorage(place, environ)
        if endpoint is None:
            raise StorageRefused(
                f"{uri}: the URL of the account is missing.",
                hint=f"Set {keys.part('endpoint')} to https://ACCOUNT.blob.core.windows.net.",
            )
        from logkeep_engine.storage.azure import AzureStorage

        return AzureStorage(place, environ)
    raise _no_storage_uri(uri)


def _options_of(environ: Mapping[str, str]) -> S3Options:
    try:
        return parse_s3_options(environ.get(names.ENV_S3_OPTIONS, ""))
    except ValueError as error:
        raise StorageRefused(
            f"{names.ENV_S3_OPTIONS}: {error}.",
            hint="Write NAME=VALUE,NAME=VALUE with the names of storage.s3, such as requesterPays=true.",
        ) from None


def _login() -> str:
    return by_place(
        "Credentials come from the Secret of storage.credentials.secretRef.",
        f"Credentials come from the environment ({names.ENV_S3_ACCESS_KEY}, {names.ENV_S3_SECRET_KEY}).",
    )


def _no_storage_uri(uri: str) -> StorageRefused:
    shown = "What was given" if re.search("[@?#]", uri) else repr(uri)
    return StorageRefused(
        f"{shown} is not a storage URI.",
        hint="Write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///path.",
    )


def _refuse_login(parts: SplitResult) -> None:
    """Raises StorageRefused for a user or a password, which would stand in every message with the URI."""
    authority = unquote(parts.netloc)
    # A slash in a password ends the authority early: then only the colon in front of it is left.
    if "@" in authority or (parts.scheme != "file" and ":" in authority):
        raise StorageRefused(
            "The storage URI, which is not repeated here, has a user, a password or a port: none belongs there.",
            hint=f"Write s3://bucket/prefix. {_login()}",
        )


def _refuse_rest(uri: str, hint: str) -> None:
    meant = re.split("[?#]", uri, maxsplit=1)[0]
    if meant != uri:
        raise StorageRefused(f"{meant}: a storage URI has no part after '?' or '#'.", hint=hint)
