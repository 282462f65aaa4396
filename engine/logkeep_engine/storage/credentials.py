"""Where the credentials of a storage come from, and what is said when they have not arrived."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.errors import CredentialsMissing, by_place

# Variables that IRSA and EKS Pod Identity put into the pods of a ServiceAccount.
_IDENTITIES = (
    ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
)
# Botocore's providers that read them.
_IDENTITY_PROVIDERS = ("assume-role-with-web-identity", "container-role")


def require_keys(keys: names.Keys, environ: Mapping[str, str], text: str) -> None:
    """Raises CredentialsMissing if what a Secret should have brought is not in the environment."""
    missing = [name for name in (keys.access, keys.secret) if not environ.get(name)]
    if missing:
        raise CredentialsMissing(
            f"{keys.field}.credentials.secretRef {text}, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not in the environment.",
            hint=by_place(
                "The Secret must have the keys accessKeyId and secretAccessKey, or those that secretRef names.",
                "A command does not read Secrets: set the variables.",
            ),
        )


def require_identity(keys: names.Keys, environ: Mapping[str, str]) -> None:
    """Raises CredentialsMissing if the environment gives this pod no identity of its own."""
    if any(all(environ.get(name) for name in group) for group in _IDENTITIES):
        return
    ways = ", nor ".join(" and ".join(group) for group in _IDENTITIES)
    raise CredentialsMissing(
        f"{keys.field}.credentials.workloadIdentity asks for the pod's own identity, but it has none: "
        f"neither {ways} is in the environment.",
        hint=by_place(
            "Bind both ServiceAccounts, of driver and executors, to a role: annotate them for IRSA, associate them for "
            "EKS Pod Identity. Leave credentials out to use what the environment provides.",
            "Leave credentials out to use what the environment provides.",
        ),
    )


def require_ca_file(keys: names.Keys, environ: Mapping[str, str]) -> str:
    """Return the file with the certificate authorities that a resource names. Raises CredentialsMissing if it is not
    there."""
    path = environ.get(keys.ca_file)
    if path and Path(path).is_file():
        return path
    found = f"names {path}, which is not a file" if path else "is not in the environment"
    raise CredentialsMissing(
        f"{keys.field}.tls names certificate authorities, but {keys.ca_file} {found}.",
        hint=by_place(
            "The operator mounts them from the Secret or the ConfigMap: check its key.",
            "Set the variable to a PEM file with them, or leave tls out.",
        ),
    )


def require_signing_keys(environ: Mapping[str, str]) -> None:
    """Raises CredentialsMissing if the folder of the keys is not there by which an archive is signed."""
    folder = environ.get(names.ENV_SIGNING_DIR)
    if folder and Path(folder).is_dir():
        return
    found = f"names {folder}, which is not a folder" if folder else "is not in the environment"
    raise CredentialsMissing(
        f"storage.signing names the keys of the archive, but {names.ENV_SIGNING_DIR} {found}.",
        hint=by_place(
            f"The operator mounts them from the Secret: check its keys {names.FILE_PRIVATE_KEY} and "
            f"{names.FILE_PUBLIC_KEYS}.",
            f"Give --signing-dir, or set the variable: a folder with the files {names.FILE_PRIVATE_KEY} and "
            f"{names.FILE_PUBLIC_KEYS}.",
        ),
    )


def only_identity(session: Any) -> None:
    """Take the other providers of credentials from a session of botocore: what they find is not what the resource asks
    for."""
    resolver = session.get_component("credential_provider")
    resolver.providers = [provider for provider in resolver.providers if provider.METHOD in _IDENTITY_PROVIDERS]
