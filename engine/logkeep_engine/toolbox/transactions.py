"""Finds how the transactions of a partition ended: the aborted ones, and those that nothing has decided.

    ended = outcomes(segments, source.state)
    if header in ended.aborted: ...         # no consumer of committed records sees the batch
    if header in ended.undecided: ...       # no such consumer sees it yet

Markers decide, and indexes where there is no marker, see `archive.reading.transactions`. In a log folder an index may
be missing or stale, and what is open at the log's end is open still; that takes one pass over the headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Ending, Span, Spans, TransactionFollower, TransactionPart
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment


@dataclass(frozen=True, slots=True)
class LogOutcomes:
    """`stable`: a consumer of committed records gets nothing from this offset on (Kafka's last stable offset).

    No record of an archive lies after it: all of them were fetched below the last stable offset.
    """

    aborted: Spans
    undecided: Spans
    stable: int


def outcomes(segments: Sequence[ToolboxSegment], state: ArchiveState | None = None) -> LogOutcomes:
    """Return the outcomes in one partition; `state` is that of the archive that it lies in. Raises CorruptIndex.

    In a log folder it is unknown which markers lay in damaged bytes: transactions that are open there are undecided.
    """
    entries = [segment.entry for segment in segments if segment.entry is not None]
    if state is not None and entries and len(entries) == len(segments):
        return _of_archive(segments, entries, state)
    found = _Walk(segments)
    return LogOutcomes(Spans(found.aborted), Spans(found.undecided), found.stable)


def _of_archive(
    segments: Sequence[ToolboxSegment], entries: Sequence[SegmentEntry], state: ArchiveState
) -> LogOutcomes:
    if not any(entry.transactional for entry in entries):
        return LogOutcomes(Spans(), Spans(), MAX_OFFSET)
    kept = state.kept(entries[0].topic_id, entries[0].partition)
    found = open_damaged(segments[0].storage, segments[0].topic, entries, kept).transactions
    for damage in found.damage:
        if damage.object.endswith(names.TXNINDEX):
            error = damage.error()
            raise CorruptIndex(error.message, hint=error.hint)
    return LogOutcomes(Spans.of(found.aborted), Spans(), MAX_OFFSET)


def _indexed(segments: Sequence[ToolboxSegment]) -> Iterator[AbortedTxn]:
    for segment in segments:
        if segment.has_batches:
            yield from segment.aborted()


class _Walk:
    """Follows what the logs of a partition in a folder say themselves, from first to last, and their indexes."""

    def __init__(self, segments: Sequence[ToolboxSegment]) -> None:
        self.aborted: list[Span] = []
        self.undecided: list[Span] = []
        self._committed: list[Span] = []
        index = list(_indexed(segments))
        self._named = Spans.of(index)
        self._follower = TransactionFollower()
        last = -1
        for segment in segments:
            for item in segment.scan() if segment.has_batches else ():
                if isinstance(item, Batch) and not item.problem:
                    last = item.header.last_offset
                    self._observe(item)
                else:
                    self._forget(last)
        self.stable = min((part.first for part in self._follower.open_parts() if part.records), default=MAX_OFFSET)
        self._forget(MAX_OFFSET)
        committed = Spans(self._committed)
        self.aborted += [
            (txn.producer_id, txn.first_offset, txn.last_offset)
            for txn in index
            if committed.since(txn.producer_id, txn.last_offset) < 0
        ]

    def _observe(self, batch: Batch) -> None:
        if not batch.header.is_transactional:
            return
        try:
            part = self._follower.observe(batch.data, 0, batch.header)
        except CorruptBatch:
            self._forget(batch.header.base_offset)
            return
        if part is not None and part.has_data:
            self._close(part)

    def _close(self, part: TransactionPart) -> None:
        span = (part.producer_id, part.first, part.marker)
        if part.ending is Ending.ABORT:
            self.aborted.append(span)
        elif part.ending is Ending.COMMIT and self._named.since(part.producer_id, part.last) >= 0:
            self._committed.append(span)

    def _forget(self, offset: int) -> None:
        """Batches after `offset` cannot be read: transactions that are open there are undecided."""
        self.undecided += [(part.producer_id, part.first, offset) for part in self._follower.cut() if part.records]
