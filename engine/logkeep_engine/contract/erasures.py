"""The erasures that a KafkaBackup asks for: keys whose records its runs take out of the archive."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.keys import KeyEncoding
from logkeep_engine.contract.model import Model
from logkeep_engine.contract.references import SecretRef
from logkeep_engine.contract.values import SecretKey

MAX_ERASURES = 20
ErasureName = Annotated[str, Field(max_length=50, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class KeysSecretRef(SecretRef):
    """A Secret with keys of records, one on each line."""

    key: SecretKey = "keys"


class Erasure(Model):
    """One erasure. It is done once: the archive remembers its name."""

    name: ErasureName
    topic: Annotated[str, Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")]
    keys_secret_ref: KeysSecretRef
    encoding: KeyEncoding = KeyEncoding.TEXT
    asked_by: Annotated[str, Field(max_length=256)] | None = None

    @property
    def run_id(self) -> str:
        """The run of the archive that carries it out."""
        return f"erasure-{self.name}"
