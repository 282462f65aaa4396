"""Turns what tasks hand in into commits: archived ranges as they are, and suspected gaps where a loss is proved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from logkeep_engine.archive.catalog.facts import Gap, Partition, Receipt
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archiving import Committer
from logkeep_engine.backup.model.plan import REASON_RECREATED, still_open
from logkeep_engine.backup.pieces.proof import LossBook
from logkeep_engine.backup.pieces.task import PieceDone
from logkeep_engine.errors import LogkeepError
from logkeep_engine.kafka.control import ControlPlane


class BackupCommitter(Committer):
    """Commits the ranges for which the archive does not account yet.

    A range that was read by the topic's name is committed only if the name still has the topic id that was planned.
    `on_failure` gets the errors of all that cannot be committed.
    """

    def __init__(
        self, writer: Writer, control: ControlPlane, losses: LossBook, on_failure: Callable[[LogkeepError], None]
    ) -> None:
        super().__init__(writer)
        self._control = control
        self._losses = losses
        self._on_failure = on_failure
        self._by_name: list[Receipt] = []
        self.unread: set[Partition] = set()
        """Partitions of which a passive generation cannot be read to its end: its first records are gone."""

    def take(self, done: Sequence[PieceDone]) -> dict[int, LogkeepError]:
        """Take over the results of these pieces; returns the failures by the pieces' numbers."""
        failures: dict[int, LogkeepError] = {item.number: item.failure for item in done if item.failure is not None}
        suspected: list[tuple[Gap, int]] = []
        for item in done:
            if item.receipt is None:
                continue
            gaps = item.receipt.gaps
            if item.receipt.generation:  # the active one has these offsets: nothing is lost
                self.unread |= {(gap.topic_id, gap.partition) for gap in gaps}
                gaps = ()
            if item.receipt.coverage:
                (self._by_name if item.by_name else self._waiting).append(replace(item.receipt, gaps=()))
            suspected += ((gap, item.number) for gap in gaps)
        receipts, left = self._losses.prove([gap for gap, _ in suspected])
        self._waiting += receipts
        for part, error in left:
            for gap, number in suspected:
                whole = (part.start, part.end) == (gap.start, gap.end)  # else the next round reads what was not lost
                if whole and (part.topic_id, part.partition) == (gap.topic_id, gap.partition):
                    failures.setdefault(number, error)
        return failures

    def _receipts(self) -> list[Receipt]:
        if self._by_name:
            self._waiting += self._checked(self._by_name)
            self._by_name = []
        self._waiting = still_open(self._waiting, self._writer.state)
        return self._waiting

    def _checked(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """Return the receipts of topics that still have their topic ids. Records that were read from others by name may
        be those of another topic.
        """
        names = {receipt.ranges[0][0]: self._losses.name(receipt.ranges[0][0]) for receipt in receipts}
        now = self._control.topic_ids(names.values())
        checked: list[Receipt] = []
        suspected: list[Gap] = []
        for receipt in receipts:
            topic_id = receipt.ranges[0][0]
            if now.get(names[topic_id]) == topic_id:
                checked.append(receipt)
            elif not receipt.generation:
                suspected += (Gap(*item, REASON_RECREATED) for item in receipt.ranges)
        proved, left = self._losses.prove(suspected)
        for _, error in left:
            self._on_failure(error)
        return checked + proved
