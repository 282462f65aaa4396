"""How the transactions of an archived partition ended, by both witnesses: markers in the logs, and indexes. Pure.

    facts = SegmentFollower(entry) ... .finish(index)   # of each segment, in one pass over its batches
    found = fold(facts, kept)                           # of a partition, all its segments in order
    for txn in found.aborted(index_entries): ...

The marker decides wherever it is archived. Where it is not, the index decides: what is archived was below the last
stable offset when it was fetched, so its transaction was decided then, and the fetch named it if it was aborted. Where
the two disagree the marker wins, and `fold` says so. Nobody knows the end of a transaction only if the index of a
segment that holds records of it is lost, and its marker is not there either.

A marker belongs to the last transaction of its producer before it. That is not certain across offsets of which nothing
is archived: the marker of the first transaction, and the beginning of a second one, may have been in them. So such a
hole ends what is open before it, by the index. A broker's compaction leaves holes too, but keeps a marker as long as a
batch of its transaction; so offsets that are missing matter only between segments that were fetched in different runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Ending, Part, Spans, TransactionFollower

NOT_NAMED = -1
UNKNOWN = -2

FORMAT = 1

_COLUMNS = ["producerId", "first", "last", "ending", "marker", "begun", "dense", "records", "since"]
_SEAL = len(',"sha256":""}') + 64


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part of a transaction in one segment, and from which offset on the segment's own index calls it aborted:
    NOT_NAMED if it does not, UNKNOWN if the index cannot be read."""

    part: Part
    since: int


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """One segment's word on transactions. Of those that begin and end in it and are indexed as their marker says
    nothing is kept: there are as many as the producers like.

    `epoch` tells segments that were fetched in one run from others; a copy keeps it. `dense`: no offset is missing
    between its batches. `holed`: a part of it could not be read.
    """

    base_offset: int
    next_offset: int
    epoch: int
    parts: tuple[KnownPart, ...] = ()
    dense: bool = True
    holed: bool = False

    def to_json(self, entry: SegmentEntry) -> bytes:
        """The `.txnparts` object of a segment without damage."""
        rows = [
            [p.producer_id, p.first, p.last, int(p.ending), p.marker, int(p.begun), int(p.dense), int(p.records), since]
            for p, since in ((known.part, known.since) for known in self.parts)
        ]
        facts = {"epoch": self.epoch, "dense": self.dense, "columns": _COLUMNS, "parts": rows}
        body = {"format": FORMAT, **_bound_to(entry), **facts}
        return _sealed(json.dumps(body, separators=(",", ":")).encode())

    @classmethod
    def from_json(cls, data: bytes, entry: SegmentEntry) -> SegmentTransactions | None:
        """The content of a segment's object; None if it was altered, or is not that of this log and its index."""
        try:
            body = json.loads(data)
            bound = {key: body[key] for key in _bound_to(entry)}
            if body["format"] != FORMAT or bound != _bound_to(entry) or _sealed(_unsealed(data)) != data:
                return None
            parts = tuple(
                KnownPart(
                    Part(row[0], row[1], row[2], Ending(row[3]), row[4], bool(row[5]), bool(row[6]), bool(row[7])),
                    int(row[8]),
                )
                for row in body["parts"]
            )
            return cls(entry.base_offset, entry.next_offset, int(body["epoch"]), parts, bool(body["dense"]))
        except (ValueError, KeyError, TypeError, IndexError):
            return None

    @classmethod
    def without(cls, entry: SegmentEntry) -> SegmentTransactions:
        """A segment without transactional batches says nothing."""
        return cls(entry.base_offset, entry.next_offset, entry.epoch, (), not entry.gaps)


def _bound_to(entry: SegmentEntry) -> dict[str, str]:
    return {"logSha256": entry.sha256, "txnindexSha256": entry.txnindex_sha256}


def _sealed(body: bytes) -> bytes:
    """A JSON object with its own hash as the last key."""
    return b'%b,"sha256":"%b"}' % (body[:-1], hashlib.sha256(body).hexdigest().encode())


def _unsealed(data: bytes) -> bytes:
    return data[:-_SEAL] + b"}"


class SegmentFollower:
    """Gathers what one segment says, from its batches in order."""

    def __init__(self, base_offset: int, epoch: int) -> None:
        self._base = self._at = base_offset
        self._epoch = epoch
        self._follower = TransactionFollower()
        self._parts: list[Part] = []

    def note(self, run: memoryview, headers: Sequence[tuple[int, BatchHeader]]) -> None:
        """The next batches. Raises CorruptBatch for a marker that cannot be read."""
        self._parts += self._follower.note(run, headers, self._at)
        self._at = headers[-1][1].next_offset

    def passed(self, at: int, *, dense: bool) -> None:
        """Batches without transactions up to offset `at`; `dense`: no offset is missing so far."""
        self._at = at
        self._follower.dense = self._follower.dense and dense

    def cut(self, end: int) -> None:
        """Offsets up to `end` cannot be read."""
        self._parts += self._follower.cut()
        self._at = max(self._at, end)

    def ends(self) -> set[tuple[int, int]]:
        """Where entries of the segment's transaction index may end, as (producer id, offset): at an abort marker, or,
        if the marker lies in a later segment, at the producer's last batch here. An archive may also have an entry of a
        transaction that its marker commits: the list of a fetch was wrong, and its last batch is the end."""
        markers = {(part.producer_id, part.marker) for part in self._parts if part.ending is Ending.ABORT}
        listed = {(part.producer_id, part.last) for part in self._parts if part.ending is Ending.COMMIT}
        return markers | listed | {(part.producer_id, part.last) for part in self._follower.open_parts()}

    def finish(self, next_offset: int, index: Sequence[AbortedTxn] | None) -> SegmentTransactions:
        """All that the segment says. `index`: the entries of its own index, None if it cannot be read."""
        named = _Named(index)
        known = (KnownPart(part, named.since(part)) for part in (*self._parts, *self._follower.open_parts()))
        return SegmentTransactions(
            self._base,
            next_offset,
            self._epoch,
            tuple(item for item in known if not _is_plain(item)),
            self._follower.dense,
            self._follower.holed,
        )


class _Named:
    """Tells what a segment's own index says of a part."""

    def __init__(self, index: Sequence[AbortedTxn] | None) -> None:
        self._spans = None if index is None else Spans.of(index)

    def since(self, part: Part) -> int:
        if self._spans is None:
            return UNKNOWN
        at = part.last if part.first >= 0 else part.marker
        return self._spans.since(part.producer_id, at)


def _is_plain(known: KnownPart) -> bool:
    """It begins and ends here, and the index says the same as the marker."""
    part, since = known.part, known.since
    if part.begun or part.ending in (Ending.OPEN, Ending.HIDDEN):
        return False
    if not part.has_data:
        return True
    if part.ending is Ending.COMMIT:
        return since == NOT_NAMED
    return 0 <= since <= part.first


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A transaction of which index and marker say different things. `aborted` is what the marker says."""

    producer_id: int
    first_offset: int
    marker: int
    aborted: bool

    def __str__(self) -> str:
        if self.aborted:
            what = "ends with an ABORT marker, and the transaction index has it as committed"
        else:
            what = "ends with a COMMIT marker, and the transaction index has it as aborted"
        return (
            f"the transaction of producer {self.producer_id} with offsets {self.first_offset} to {self.marker} {what}: "
            "the marker holds"
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Facts that the indexes of a partition do not say. `added`: transactions that were aborted, `dropped`: that were
    not, although an index names them, `undecided`: of which nobody knows it.
    """

    added: tuple[AbortedTxn, ...] = ()
    dropped: tuple[AbortedTxn, ...] = ()
    undecided: tuple[AbortedTxn, ...] = ()
    disagreements: tuple[Disagreement, ...] = ()

    @property
    def indexes_suffice(self) -> bool:
        return not (self.added or self.dropped or self.undecided)

    def aborted(self, index: Iterable[AbortedTxn]) -> list[AbortedTxn]:
        """All whose records no consumer of committed records may see, from the entries of all indexes that can be
        read: those that were aborted, and those that are undecided."""
        wrong = Spans.of(self.dropped)
        found = {
            txn
            for txn in index
            if not (wrong.holds(txn.producer_id, txn.first_offset) or wrong.holds(txn.producer_id, txn.last_offset))
        }
        return sorted({*found, *self.added, *self.undecided}, key=_by_end)


def fold(segments: Iterable[SegmentTransactions], kept: Sequence[Range]) -> Outcomes:
    """Join what the segments of a partition say, in the order of their offsets. `kept` are the ranges of offsets that
    they stand for: between two of them records may be missing, inside of one only what compaction has removed."""
    joined = _Fold()
    at: int | None = None
    for segment in segments:
        if at is not None and at < segment.base_offset:
            if not _is_within(at, segment.base_offset, kept):
                joined.hole()
            joined.missing()
        joined.add(segment)
        at = segment.next_offset
    joined.hole()
    return joined.outcomes()


def _is_within(start: int, end: int, ranges: Sequence[Range]) -> bool:
    return any(low <= start and end <= high for low, high in ranges)


@dataclass(slots=True)
class _Transaction:
    """One that is open so far. `epoch` is that of the last segment with a batch of it; `sparse`: an offset is missing
    behind that segment."""

    parts: list[KnownPart] = field(default_factory=list)
    epoch: int = 0
    sparse: bool = False


class _Fold:
    def __init__(self) -> None:
        self._open: dict[int, _Transaction] = {}
        self._added: list[AbortedTxn] = []
        self._dropped: list[AbortedTxn] = []
        self._undecided: list[AbortedTxn] = []
        self._disagreements: list[Disagreement] = []

    def missing(self) -> None:
        """Offsets are missing here."""
        for transaction in self._open.values():
            transaction.sparse = True

    def hole(self) -> None:
        """Records may be missing here, and markers: what is open ends as the indexes say."""
        for transaction in self._open.values():
            self._by_index(transaction.parts)
        self._open.clear()

    def add(self, segment: SegmentTransactions) -> None:
        before, self._open = self._open, {}
        for known in segment.parts:
            part = known.part
            transaction = _Transaction()
            earlier = before.pop(part.producer_id, None)
            if earlier is not None:
                if part.begun and (earlier.epoch == segment.epoch or (part.dense and not earlier.sparse)):
                    transaction = earlier
                else:
                    self._by_index(earlier.parts)
            transaction.parts.append(known)
            self._close(transaction, part, segment)
        if segment.holed:
            for transaction in before.values():
                self._by_index(transaction.parts)
            return
        for producer_id, transaction in before.items():
            transaction.sparse = transaction.sparse or not segment.dense
            self._open[producer_id] = transaction

    def _close(self, transaction: _Transaction, part: Part, segment: SegmentTransactions) -> None:
        if part.ending is Ending.OPEN:
            transaction.epoch, transaction.sparse = segment.epoch, False
            self._open[part.producer_id] = transaction
        elif part.ending is Ending.HIDDEN:
            self._by_index(transaction.parts)
        else:
            self._by_marker(transaction.parts, part)

    def _by_marker(self, parts: Sequence[KnownPart], last: Part) -> None:
        data = [known for known in parts if known.part.has_data]
        if not data:
            return
        first = data[0].part.first
        span = AbortedTxn(last.producer_id, first, last.marker, first)
        named = list(_named(parts))
        if last.ending is Ending.ABORT:
            if all(named):
                return
            self._added.append(span)
            disagree = any(not item and known.since != UNKNOWN for item, known in zip(named, data, strict=True))
        else:
            disagree = any(known.since >= 0 for known in data)
            if disagree:
                self._dropped.append(span)
        if disagree:
            aborted = last.ending is Ending.ABORT
            self._disagreements.append(Disagreement(last.producer_id, first, last.marker, aborted))

    def _by_index(self, parts: Sequence[KnownPart]) -> None:
        data = [known for known in parts if known.part.has_data]
        if not data:
            return
        first, last = data[0].part, data[-1].part
        span = AbortedTxn(first.producer_id, first.first, last.end, first.first)
        named = list(_named(parts))
        if any(known.since >= 0 for known in data):
            if not all(named):
                self._added.append(span)
        elif any(known.since == UNKNOWN for known in data):
            self._undecided.append(span)

    def outcomes(self) -> Outcomes:
        return Outcomes(
            tuple(sorted(self._added, key=_by_end)),
            tuple(sorted(self._dropped, key=_by_end)),
            tuple(sorted(self._undecided, key=_by_end)),
            tuple(sorted(self._disagreements, key=lambda item: (item.marker, item.producer_id))),
        )


def _named(parts: Sequence[KnownPart]) -> Iterator[bool]:
    """Whether an index calls all of a part aborted, its own or that of a later part; for each part with data."""
    since = [known.since for known in parts]
    for at, known in enumerate(parts):
        if known.part.has_data:
            yield any(0 <= later <= known.part.first for later in since[at:])


def _by_end(txn: AbortedTxn) -> tuple[int, int, int]:
    return txn.last_offset, txn.producer_id, txn.first_offset
