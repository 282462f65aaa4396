"""The losses on the way from one format to another: counted, added up, shown, and stored in the target.

    report.add(losses)               # of tasks
    report.refused(FormatName.AVRO)  # the error, if something of a record would be lost

Losses of batches (their bounds, compression, producers, transactions) are reported. Losses of records are refused
unless they are allowed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from logkeep_engine.errors import FormatLoss
from logkeep_engine.formats.base import OF_BATCHES, Loss, LossKind
from logkeep_engine.formats.losses import dump_losses, load_losses, merge_losses

_SHOWN = 5

_OF_BATCHES_WORDS = {
    LossKind.BATCH_BOUNDS: "batches whose bounds are lost",
    LossKind.COMPRESSION: "compressed batches",
    LossKind.PRODUCER: "batches with a producer id",
    LossKind.TRANSACTIONS: "batches of transactions",
}


@dataclass
class LossCount:
    """Counts the losses of one chunk."""

    topic: str
    partition: int
    _found: dict[LossKind, tuple[int, int]] = field(default_factory=dict)

    def add(self, kind: LossKind, count: int, offset: int) -> None:
        """Add `count` losses, the first at `offset`. Calls come in the order of offsets."""
        if count:
            before, first = self._found.get(kind, (0, offset))
            self._found[kind] = before + count, first

    def losses(self) -> tuple[Loss, ...]:
        return tuple(
            Loss(kind, self.topic, self.partition, count, offset) for kind, (count, offset) in self._found.items()
        )


class LossReport:
    """The losses of a run, by kind, topic and partition."""

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self._of_partition: dict[tuple[str, int], tuple[Loss, ...]] = {}
        self.add(losses)

    def add(self, losses: Iterable[Loss]) -> None:
        """Add losses. The time depends on the losses of these partitions only, not on those of others."""
        for loss in losses:
            key = (loss.topic, loss.partition)
            self._of_partition[key] = merge_losses((*self._of_partition.get(key, ()), loss))

    @property
    def losses(self) -> tuple[Loss, ...]:
        """All losses by topic, partition and kind."""
        return tuple(loss for key in sorted(self._of_partition) for loss in self._of_partition[key])

    @property
    def of_records(self) -> list[Loss]:
        """The losses of records, which are refused unless they are allowed."""
        return [loss for loss in self.losses if loss.kind not in OF_BATCHES]

    def refused(self, target: str) -> FormatLoss:
        """Return the error that names what of the records would be lost."""
        losses = self.of_records
        shown = "; ".join(
            f"{loss.kind} in {_records(loss.count)} of topic {loss.topic!r} partition {loss.partition}, "
            f"first at offset {loss.offset}"
            for loss in losses[:_SHOWN]
        )
        more = f"; and {len(losses) - _SHOWN} more" if len(losses) > _SHOWN else ""
        return FormatLoss(
            f"{target} cannot hold what the records carry: {shown}{more}. Nothing was written.",
            hint="Use --allow-loss, or choose a format that holds it: Avro without --compatibility strict does. "
            "--dry-run lists everything.",
        )

    def warnings(self) -> list[str]:
        """Return the warnings for the result of a run: a line for each kind."""
        lines = []
        losses = self.losses
        for kind in LossKind:
            found = [loss for loss in losses if loss.kind is kind]
            if found:
                count, topics = sum(loss.count for loss in found), len({loss.topic for loss in found})
                words = _OF_BATCHES_WORDS.get(kind)
                what = f"{kind} of {_records(count)}" if words is None else f"{count} {words}"
                lines.append(f"Not in the target: {what}, in {topics} {'topic' if topics == 1 else 'topics'}.")
        return lines

    def rows(self) -> list[dict[str, Any]]:
        """Return the losses as `-o json` shows them, and as the stored report has them."""
        rows: list[dict[str, Any]] = json.loads(dump_losses(self.losses))["losses"]
        return rows

    def to_json(self) -> bytes:
        """Return the content of `runs/<run id>/format-loss.json`, as a backup writes it."""
        return dump_losses(self.losses)

    @classmethod
    def from_json(cls, data: bytes) -> LossReport:
        """Return the reverse of `to_json`."""
        return cls(load_losses(data))


def _records(count: int) -> str:
    return f"{count} {'record' if count == 1 else 'records'}"
