"""The facts that one segment has about transactions, gathered in one pass over its batches, and its `.txnparts` object.
Pure.

    follower = SegmentFollower(entry.base_offset, entry.epoch)
    follower.note(stretch, headers)                     # all its batches, in order
    facts = follower.finish(entry.next_offset, index)   # `index`: the entries of its own transaction index

`reading.transactions` joins what the segments of a partition say.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.log.batch import Headers
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import (
    TRANSACTIONAL_OR_CONTROL,
    Ending,
    Spans,
    TransactionFollower,
    TransactionPart,
)

NOT_NAMED = -1
UNKNOWN = -2
_COLUMNS = ["producerId", "first", "last", "ending", "marker", "begun", "dense", "records", "since"]
_PARTS = StoredDocument(
    "list of transactions",
    1,
    {
        "logSha256": str,
        "logBlake3": str,
        "txnindexSha256": str,
        "epoch": int,
        "dense": bool,
        "columns": [str],
        "parts": [(int,) * len(_COLUMNS)],
        "sha256": str,
    },
)
_SEAL = len(',"sha256":""}') + 64


@dataclass(frozen=True, slots=True)
class KnownPart:
    """A part of a transaction in one segment, and from which offset on the segment's own index calls it aborted:
    NOT_NAMED if it does not, UNKNOWN if the index cannot be read."""

    part: TransactionPart
    since: int


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """The facts that one segment has about transactions. Nothing is kept of a transaction that begins and ends in the
    segment and is indexed as its marker says: there are as many of these as the producers like.

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
        """Return the `.txnparts` object of a segment without damage."""
        rows = [
            [p.producer_id, p.first, p.last, int(p.ending), p.marker, int(p.begun), int(p.dense), int(p.records), since]
            for p, since in ((known.part, known.since) for known in self.parts)
        ]
        facts = {"epoch": self.epoch, "dense": self.dense, "columns": _COLUMNS, "parts": rows}
        return _sealed(_PARTS.head({**_bound_to(entry), **facts}))

    @classmethod
    def from_json(cls, data: bytes, entry: SegmentEntry) -> SegmentTransactions | None:
        """Return the content of a segment's object; None if it was altered, or is not that of this log and its
        index."""
        try:
            body = _PARTS.loads(data)
            bound = {key: body[key] for key in _bound_to(entry)}
            if bound != _bound_to(entry) or body["columns"] != _COLUMNS or _sealed(data[:-_SEAL]) != data:
                return None
            parts = tuple(
                KnownPart(
                    TransactionPart(
                        row[0], row[1], row[2], Ending(row[3]), row[4], bool(row[5]), bool(row[6]), bool(row[7])
                    ),
                    int(row[8]),
                )
                for row in body["parts"]
            )
            return cls(entry.base_offset, entry.next_offset, int(body["epoch"]), parts, bool(body["dense"]))
        except WRONG:
            return None

    @classmethod
    def without(cls, entry: SegmentEntry) -> SegmentTransactions:
        """Return the facts of a segment without transactional batches: there are none."""
        return cls(entry.base_offset, entry.next_offset, entry.epoch, (), not entry.gaps)


def txns_below(index: Iterable[AbortedTxn], end: int) -> Iterator[AbortedTxn]:
    """Yield the entries of a transaction index for the part of its segment below `end`."""
    for txn in index:
        if txn.first_offset < end:
            yield txn if txn.last_offset < end else replace(txn, last_offset=end - 1)


class IndexLeft:
    """The transaction index of the batches that are left of a segment. An entry ends with the marker, or with the last
    remaining batch of its transaction; a transaction without batches has no entry."""

    def __init__(self, index: Iterable[AbortedTxn]) -> None:
        self._of: dict[int, list[AbortedTxn]] = {}
        for transaction in sorted(index, key=_first):
            self._of.setdefault(transaction.producer_id, []).append(transaction)
        self._ends: dict[AbortedTxn, int] = {}

    def note(self, headers: Headers) -> None:
        """Note batches that are left."""
        if not self._of:
            return
        for number in headers.with_bits(TRANSACTIONAL_OR_CONTROL):
            header = headers[number][1]
            some = self._of.get(header.producer_id, ())
            at = bisect_right(some, header.base_offset, key=_first)
            if at and header.base_offset <= some[at - 1].last_offset:
                self._ends[some[at - 1]] = header.last_offset

    def left(self) -> list[AbortedTxn]:
        """The entries, in the order of their ends."""
        found = [replace(transaction, last_offset=end) for transaction, end in self._ends.items()]
        return sorted(found, key=attrgetter("last_offset"))


_first: Callable[[AbortedTxn], int] = attrgetter("first_offset")


def _bound_to(entry: SegmentEntry) -> dict[str, str]:
    digests = {f"log{algorithm}": "" for algorithm in DigestAlgorithm}  # logSha256, logBlake3: one of the two is empty
    digests[f"log{entry.digest.algorithm}"] = entry.digest.hex
    return {**digests, "txnindexSha256": entry.files.txnindex_sha256}


def _sealed(head: bytes) -> bytes:
    """Return a JSON object that begins so, with its own hash as the last key."""
    return b'%b,"sha256":"%b"}' % (head, hashlib.sha256(head + b"}").hexdigest().encode())


class SegmentFollower:
    """Gathers what one segment says, from its batches in order."""

    def __init__(self, base_offset: int, epoch: int) -> None:
        self._base = self._at = base_offset
        self._epoch = epoch
        self._follower = TransactionFollower()
        self._parts: list[TransactionPart] = []

    def note(self, stretch: memoryview, headers: Headers) -> None:
        """Note the next batches. Raises CorruptBatch for a marker that cannot be read."""
        self._parts += self._follower.note(stretch, headers, self._at)
        self._at = headers.next_offset

    def passed(self, at: int, *, dense: bool) -> None:
        """Note batches without transactions up to offset `at`; `dense`: no offset is missing so far."""
        self._at = at
        self._follower.dense = self._follower.dense and dense

    def cut(self, end: int) -> None:
        """Note that offsets up to `end` cannot be read."""
        self._parts += self._follower.cut()
        self._at = max(self._at, end)

    def ends(self) -> set[tuple[int, int]]:
        """Return the places where entries of the segment's transaction index may end, as (producer id, offset): at an
        abort marker, or, if the marker lies in a later segment, at the producer's last batch here. An archive may also
        have an entry of a transaction that its marker commits: the list of a fetch was wrong, and its last batch is the
        end."""
        markers = {(part.producer_id, part.marker) for part in self._parts if part.ending is Ending.ABORT}
        listed = {(part.producer_id, part.last) for part in self._parts if part.ending is Ending.COMMIT}
        return markers | listed | {(part.producer_id, part.last) for part in self._follower.open_parts()}

    def finish(self, next_offset: int, index: Sequence[AbortedTxn] | None) -> SegmentTransactions:
        """Return all that the segment says. `index`: the entries of its own index, None if it cannot be read."""
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
    """Looks up a part in the segment's own index."""

    def __init__(self, index: Sequence[AbortedTxn] | None) -> None:
        self._spans = None if index is None else Spans.of(index)

    def since(self, part: TransactionPart) -> int:
        if self._spans is None:
            return UNKNOWN
        at = part.last if part.first >= 0 else part.marker
        return self._spans.since(part.producer_id, at)


def _is_plain(known: KnownPart) -> bool:
    """True if the transaction begins and ends here, and the index says the same as the marker."""
    part, since = known.part, known.since
    if part.begun or part.ending in (Ending.OPEN, Ending.HIDDEN):
        return False
    if not part.has_data:
        return True
    if part.ending is Ending.COMMIT:
        return since == NOT_NAMED
    return 0 <= since <= part.first
