"""An anchor names a commit of an archive together with all commits before it: `41:9f86d081…`.

The operator keeps the newest one in the status of a KafkaBackup and gives it to every run. `logkeep inspect` prints
it, `logkeep verify --expect-commit` and `spec.source.expectCommit` take it. `archive.catalog.anchor` says what it
proves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import meant, schema

ANCHOR_PATTERN = meant(
    r"^(0|[1-9][0-9]{0,18}):[0-9a-f]{64}$", "a commit such as inspect names it: N:SHA256, in lower-case digits"
)
AnchorText = Annotated[str, Field(pattern=ANCHOR_PATTERN), schema(maxLength=84)]
NEW = "new"
"""The consent to begin again where an archive has been and is gone: there is no commit to name."""

_ANCHOR = re.compile(ANCHOR_PATTERN)
_AGAIN = re.compile(r"[ -~]{1,64}")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The number of a commit, and its SHA-256, which stands for all commits before it, too."""

    commit: int
    sha256: str

    @classmethod
    def parse(cls, text: str) -> Anchor:
        """Read `<number>:<digest>`. Raises ValueError for anything else."""
        if _ANCHOR.fullmatch(text) is None:
            raise ValueError(f"{text!r} is not a commit's number and its SHA-256, like 41:9f86…, with 64 digits")
        number, _, sha256 = text.partition(":")
        return cls(int(number), sha256)

    def __str__(self) -> str:
        return f"{self.commit}:{self.sha256}"


def is_consent(text: str) -> bool:
    """Tell whether a text can be the consent to take an archive over: an anchor, or `new`."""
    return text == NEW or _ANCHOR.fullmatch(text) is not None


def consent_in(text: str) -> str | None:
    """Return the consent in a text that a user has written, None if there is none. After a blank it may have more
    words: a text is used once, so a user can consent to the same thing a second time, as `new again`."""
    consent, blank, words = text.partition(" ")
    return consent if is_consent(consent) and (not blank or _AGAIN.fullmatch(words) is not None) else None
