"""The topics of a drill: which part of the archive is restored, and under which names. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from logkeep_engine.log.varints import INT64_MAX
from logkeep_engine.restore.selection import Choice

MAX_NAME = 249  # Kafka's own limit
_MARK = "message.timestamp.after.max.ms"


@dataclass(frozen=True)
class DrillScope:
    """The part of one attempt. `token` is random, in hexadecimal: no two attempts have topics of one name."""

    prefix: str
    token: str

    @property
    def beginning(self) -> str:
        """How the names of all topics of the attempt begin."""
        return f"{self.prefix}{self.token}-"

    @property
    def mark(self) -> dict[str, str]:
        """The configuration by which a topic shows that this attempt has created it. Records of any time are taken."""
        return {_MARK: str(INT64_MAX - 1 - int(self.token, 16))}

    def named(self, choices: Sequence[Choice]) -> tuple[Choice, ...]:
        """The topics with the names that they have in the drill, in the order of these."""
        found = (replace(choice, target=self._name(choice.source.name)) for choice in choices)
        return tuple(sorted(found, key=lambda choice: choice.target))

    def _name(self, source: str) -> str:
        name = self.beginning + source
        if len(name) <= MAX_NAME:
            return name
        digest = hashlib.sha256(source.encode()).hexdigest()[:16]
        return f"{name[: MAX_NAME - len(digest) - 1]}-{digest}"
