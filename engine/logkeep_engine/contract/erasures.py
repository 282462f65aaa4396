"""The erasures that a KafkaBackup asks for: keys whose records its runs take out of the archive."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.keys import KeyEncoding
from logkeep_engine.contract.model import Model
from logkeep_engine.contract.references import SecretRef
from logkeep_engine.contract.values import DNS_LABEL, TOPIC_NAME, SecretKey

MAX_ERASURES = 20
ErasureName = Annotated[str, Field(max_length=50, pattern=DNS_LABEL)]


class KeysSecretRef(SecretRef):
    """A Secret with keys of records, one on each line."""

    key: SecretKey = "keys"
    """The key in it."""


class Erasure(Model):
    """One erasure. It is done once: the archive remembers its name."""

    name: ErasureName
    """A name that no other erasure of this archive has had. Other keys need another name."""
    topic: Annotated[str, Field(min_length=1, max_length=249, pattern=TOPIC_NAME)]
    """The archived topic, by its name as it is. All its incarnations lose the records."""
    keys_secret_ref: KeysSecretRef
    """The Secret with the keys, one on each line. It is mounted into the driver. Delete it once the erasure is done."""
    encoding: KeyEncoding = KeyEncoding.TEXT
    """How the keys are written: as UTF-8 text, or in base64 (within the Secret, which has its own)."""
    asked_by: Annotated[str, Field(max_length=256)] | None = None
    """Who asked for it, or a ticket. It stays in the archive's audit entry for ever."""

    @property
    def run_id(self) -> str:
        """The run of the archive that carries it out."""
        return f"erasure-{self.name}"
