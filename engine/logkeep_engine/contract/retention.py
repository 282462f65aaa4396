"""The fields that say which segments a run that succeeded removes, and when it deletes their objects."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.values import ArchiveBytes, Duration, parse_duration, parse_quantity

AT_ONCE = "0s"


def _grace(text: str) -> str:
    if text != AT_ONCE:
        parse_duration(text)
    return text


class Retention(Model):
    """Limits of the archive: a run that succeeded removes at its end what lies beyond them. No limit removes nothing.

    `maxAge`: segments whose newest record is older. `maxBytes`: the oldest segments, until the rest is not larger.
    `grace`: so long after the removal their objects are deleted.
    """

    max_age: Duration | None = None
    max_bytes: ArchiveBytes | None = None
    grace: Annotated[str, AfterValidator(_grace)] = "1d"

    @property
    def max_age_seconds(self) -> int | None:
        return None if self.max_age is None else parse_duration(self.max_age)

    @property
    def max_bytes_int(self) -> int | None:
        return None if self.max_bytes is None else parse_quantity(self.max_bytes)

    @property
    def grace_seconds(self) -> int:
        return 0 if self.grace == AT_ONCE else parse_duration(self.grace)
