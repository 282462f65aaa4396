"""The secrets of a login: each is a text, or the file that holds it now. The kubelet replaces the files of a Secret
that has changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from logkeep_engine.contract import names
from logkeep_engine.contract.cluster import Sasl
from logkeep_engine.errors import CredentialsMissing, by_place

SASL = "spec.cluster.security.sasl"


@dataclass(frozen=True, slots=True)
class Secret:
    """`where`: the field of the resource that promises it. Without a text and a path it is empty. Its repr shows no
    text."""

    where: str = ""
    variable: str = ""
    text: str = field(default="", repr=False)
    path: str = ""

    def read(self) -> str:
        """Return the secret as it is now. Raises CredentialsMissing."""
        if not self.path:
            return self.text
        try:
            found = Path(self.path).read_text().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise CredentialsMissing(
                f"{self.where}: {self.variable} names {self.path}, which cannot be read: {error}.", hint=_file_hint()
            ) from error
        if not found:
            raise CredentialsMissing(
                f"{self.where}: {self.variable} names {self.path}, which is empty.", hint=_file_hint()
            )
        return found


def user_and_password(sasl: Sasl, environ: Mapping[str, str]) -> tuple[Secret, Secret]:
    """Return the name of who logs in, and the password: for a token, the client's or the access key's. What `sasl` does
    not promise is empty. Raises CredentialsMissing naming the variable and the field if it promises what `environ` does
    not have."""
    where = f"{SASL}.secretRef"
    user = Secret(text=sasl.username or "")
    if sasl.secret_ref is None:
        return user, Secret()
    if sasl.username is None:
        user = _secret(environ, names.ENV_KAFKA_USERNAME, where)
    return user, _secret(environ, names.ENV_KAFKA_PASSWORD, where)


def _secret(environ: Mapping[str, str], name: str, where: str) -> Secret:
    """Return the secret of a variable, or of the file that the variable of the same name and _FILE names. Raises
    CredentialsMissing if there is none."""
    in_file = name + names.FILE_SUFFIX
    if environ.get(in_file):
        found = Secret(where, in_file, path=environ[in_file])
        found.read()
        return found
    if not environ.get(name):
        raise CredentialsMissing(
            f"{where}: the environment variable {name} is not set, nor is {in_file}.",
            hint=by_place(
                "The operator sets one of them from the Secret: check its keys.",
                "A command does not read Secrets: set one of the variables.",
            ),
        )
    return Secret(where, name, text=environ[name])


def file_of(environ: Mapping[str, str], name: str, where: str) -> str:
    """Return the path that a variable holds. Raises CredentialsMissing if there is no file."""
    path = environ.get(name)
    if not path:
        raise CredentialsMissing(
            f"{where}: the environment variable {name} is not set.",
            hint=by_place(
                "The operator sets it from the Secret or the ConfigMap: check its keys.",
                "A command does not read Secrets: set the variable.",
            ),
        )
    if not Path(path).is_file():
        raise CredentialsMissing(
            f"{where}: {name} names {path}, which is not a file.",
            hint=by_place(
                "Check that the Secret or the ConfigMap has the key and is mounted there.", "Name a PEM file."
            ),
        )
    return path


def _file_hint() -> str:
    return by_place("Check that the Secret has the key and is mounted there.", "Name a file that holds it.")
