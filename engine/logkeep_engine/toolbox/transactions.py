"""How the transactions of a partition ended, by what is there: the aborted ones, and those that nothing has decided.

    ended = outcomes(segments, source.state)
    if header in ended.aborted: ...         # no consumer of committed records sees the batch
    if header in ended.undecided: ...       # no such consumer sees it yet

An archive knows its aborted transactions by the indexes that its catalog names. In a log folder an index may be missing
or stale, so there the markers of the log itself count too, which takes one pass over the headers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.model import ArchiveState
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.restore.snapshot import may_end_inside_a_transaction
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.source import Segment

Span = tuple[int, int, int]
"""Producer id, first and last offset."""

_MAX_OFFSET = 2**63 - 1


class Spans:
    """Transactions of a partition, by producer."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for producer, first, last in sorted(spans):
            known = self._spans.setdefault(producer, [])
            if known and first <= known[-1][1]:
                known[-1] = (known[-1][0], max(last, known[-1][1]))
            else:
                known.append((first, last))

    def __contains__(self, header: BatchHeader) -> bool:
        """Was this batch written in one of them?"""
        if not header.is_transactional or header.is_control or header.producer_id not in self._spans:
            return False
        spans = self._spans[header.producer_id]
        at = bisect_right(spans, (header.base_offset, _MAX_OFFSET)) - 1
        return at >= 0 and header.base_offset <= spans[at][1]


class Aborted(Spans):
    """The aborted transactions of a partition, by the transaction indexes of all its segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        """Raises CorruptIndex."""
        super().__init__(_indexed(segments))


@dataclass(frozen=True, slots=True)
class Outcomes:
    """`stable`: a consumer of committed records gets nothing from this offset on (Kafka's last stable offset).

    Of an archive that is every record: what is undecided at its end is left out, as a restore leaves it out.
    """

    aborted: Spans
    undecided: Spans
    stable: int


def outcomes(segments: Sequence[Segment], state: ArchiveState | None = None) -> Outcomes:
    """Of one partition; `state` is that of the archive that it lies in. Raises CorruptIndex.

    Behind damage nobody knows what it has swallowed: transactions that are open there are undecided.
    """
    entries = [segment.entry for segment in segments if segment.entry is not None]
    archived = state is not None and len(entries) == len(segments)
    if archived and state is not None and not may_end_inside_a_transaction(state, entries):
        return Outcomes(Aborted(segments), Spans(), _MAX_OFFSET)
    found = _Walk(segments)
    aborted = Spans([*_indexed(segments), *found.aborted])
    return Outcomes(aborted, Spans(found.undecided), _MAX_OFFSET if archived else found.stable)


def _indexed(segments: Sequence[Segment]) -> Iterator[Span]:
    for segment in segments:
        if segment.has_batches:
            for item in segment.aborted():
                yield item.producer_id, item.first_offset, item.last_offset


class _Walk:
    """What the logs of a partition themselves say, from first to last."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.aborted: list[Span] = []
        self.undecided: list[Span] = []
        self._tracker = TransactionTracker()
        last = -1
        for segment in segments:
            for item in segment.scan() if segment.has_batches else ():
                if isinstance(item, Batch) and not item.problem:
                    last = item.header.last_offset
                    self._observe(item)
                else:
                    self._forget(last)
        self.stable = min(self._tracker.open_transactions.values(), default=_MAX_OFFSET)
        self._forget(_MAX_OFFSET)

    def _observe(self, batch: Batch) -> None:
        header = batch.header
        if not header.is_transactional or not header.record_count:  # compaction has emptied it: nothing is to decide
            return
        try:
            transaction = self._tracker.observe(batch.data, 0, header)
        except CorruptBatch:
            self._forget(header.base_offset)
            return
        if transaction is not None:
            self.aborted.append((transaction.producer_id, transaction.first_offset, transaction.last_offset))

    def _forget(self, offset: int) -> None:
        """What stands behind `offset` cannot be read, for a while."""
        opened = self._tracker.open_transactions
        self.undecided += [(producer, first, offset) for producer, first in opened.items()]
        self._tracker = TransactionTracker()
