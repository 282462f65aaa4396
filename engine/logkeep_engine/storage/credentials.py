"""Where the credentials of a storage come from, and what is said when they have not arrived."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logkeep_engine.contract import names
from logkeep_engine.contract.storage import StorageSpec, secret_variables
from logkeep_engine.errors import CredentialsMissing, by_place

# Variables that IRSA and EKS Pod Identity, or Azure's workload identity, put into the pods of a ServiceAccount. Google
# has a metadata server in their place.
_IDENTITIES = {
    "s3": (
        ("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI",),
        ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",),
    ),
    "az": (("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"),),
}
_BIND = {
    "s3": "Bind both ServiceAccounts, of driver and executors, to a role: annotate them for IRSA, associate them for "
    "EKS Pod Identity.",
    "az": "Annotate both ServiceAccounts, of driver and executors, with azure.workload.identity/client-id, and label "
    "the pods with azure.workload.identity/use.",
}
# Botocore's providers that read them.
_IDENTITY_PROVIDERS = ("assume-role-with-web-identity", "container-role")


def require_secret(storage: StorageSpec, secret: str, keys: names.Keys, environ: Mapping[str, str]) -> None:
    """Raises CredentialsMissing if what the Secret of a storage should have brought is not in the environment."""
    expected = secret_variables(storage, keys)
    either = all(item.optional for item in expected)
    missing = [item for item in expected if not environ.get(item.name) and (either or not item.optional)]
    if missing and not (either and len(missing) < len(expected)):
        wanted = [item.key for item in expected if either or not item.optional]
        text = f"{keys.field}.credentials.secretRef names Secret {secret!r}"
        raise _missing(text, [item.name for item in missing], wanted, either)


def require_keys(keys: names.Keys, environ: Mapping[str, str]) -> None:
    """Raises CredentialsMissing if the keys of S3 that a Secret should have brought are not in the environment."""
    missing = [name for name in (keys.access, keys.secret) if not environ.get(name)]
    if missing:
        wanted = ("accessKeyId", "secretAccessKey")
        raise _missing(f"{keys.field}.credentials.secretRef is set", missing, wanted, False)


def _missing(text: str, missing: Sequence[str], wanted: Sequence[str], either: bool) -> CredentialsMissing:
    named = f"neither {' nor '.join(missing)}" if either else " and ".join(missing)
    verb = "is" if either else "is not" if len(missing) == 1 else "are not"
    keys = f"{'one of ' if either else ''}the key{'s' if len(wanted) > 1 else ''} {' and '.join(wanted)}"
    return CredentialsMissing(
        f"{text}, but {named} {verb} in the environment.",
        hint=by_place(
            f"The Secret must have {keys}, or those that secretRef names.",
            "A command does not read Secrets: set the variables.",
        ),
    )


def require_identity(scheme: str, keys: names.Keys, environ: Mapping[str, str]) -> None:
    """Raises CredentialsMissing if the environment gives this pod no identity of its own."""
    groups = _IDENTITIES.get(scheme, ())
    if not groups or any(all(environ.get(name) for name in group) for group in groups):
        return
    ways = ", nor ".join(" and ".join(group) for group in groups)
    raise CredentialsMissing(
        f"{keys.field}.credentials.workloadIdentity asks for the pod's own identity, but it has none: "
        + (f"neither {ways} is in the environment." if len(groups) > 1 else f"{ways} are not in the environment."),
        hint=by_place(
            f"{_BIND[scheme]} Leave credentials out to use what the environment provides.",
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
