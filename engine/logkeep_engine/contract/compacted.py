"""The ways in which an archive keeps topics whose `cleanup.policy` contains compact."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from logkeep_engine.contract.model import Model, rule
from logkeep_engine.contract.values import Duration, QuantityText, parse_duration, parse_quantity


class CompactedTopics(StrEnum):
    """`Snapshot`: next to the log, the last record of every key (KIP-630), so that the log below it may go.
    `Generations`: the topic is read again from its log start from time to time. `Log`: the log alone.
    """

    SNAPSHOT = "Snapshot"
    GENERATIONS = "Generations"
    LOG = "Log"


class Generations(Model):
    """`cycle`: a run reads a compacted topic again if its active generation was begun longer ago."""

    cycle: Duration = "7d"
    """A run reads a partition again if what restores have of it was begun longer ago than this, such as 12h, 7d or
    4w."""

    @property
    def cycle_ms(self) -> int:
        return parse_duration(self.cycle) * 1000


def _record_bytes(text: str) -> str:
    if parse_quantity(text) < 1:
        raise ValueError(f"{text!r} must be at least 1")
    return text


class Snapshots(Model):
    """When a partition gets a new snapshot, in the words of KIP-630: at least this many bytes of records lie after the
    last one, and they are at least this share of what a new one is made of.
    """

    max_record_bytes_between_snapshots: Annotated[
        QuantityText,
        AfterValidator(_record_bytes),
        rule("quantity(self).compareTo(quantity('1')) >= 0", "maxRecordBytesBetweenSnapshots must be at least 1"),
    ] = "20Mi"
    """This many bytes of archived batches lie after the last snapshot at least. KIP-630 has the same name for it. At
    least 1."""
    min_cleanable_ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.5
    """They are at least this share of what the snapshot would be made of: of the last snapshot and the log after it.
    Between 0 and 1."""

    @property
    def max_record_bytes_int(self) -> int:
        return parse_quantity(self.max_record_bytes_between_snapshots)
