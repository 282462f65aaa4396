"""Reads how the transactions of archived partitions ended: `transactions.fold` joins what segments say.

    outcomes = partition_outcomes(storage, "orders", entries, state.kept(topic_id, 0))
    aborted = outcomes.aborted(transaction_index(storage, "orders", entries))

A segment's `.txnparts` object says what its log says of transactions. No commit names it: where it is gone, the segment
is read as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower, SegmentTransactions, txns_below
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import OnDamage
from logkeep_engine.archive.reading.layouts import reader_of
from logkeep_engine.archive.reading.transactions import TransactionOutcomes, fold
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.storage import Storage

_READERS = 16


def aborted_in(
    storage: Storage,
    topic: str,
    entries: Sequence[SegmentEntry],
    kept: Sequence[Range],
    on_damage: OnDamage | None = None,
) -> tuple[list[AbortedTxn], TransactionOutcomes]:
    """Return the aborted transactions of one partition, and how they are known. `entries` are all its segments from
    some offset on, `kept` the ranges that they stand for. If something cannot be read, raises ArchiveDamaged, or tells
    `on_damage` (from several threads, and of an index twice) and goes by what can.
    """
    if not any(entry.transactional for entry in entries):  # most partitions have none, and no object is read for them
        return [], TransactionOutcomes()
    outcomes = partition_outcomes(storage, topic, entries, kept, on_damage)
    return outcomes.aborted(transaction_index(storage, topic, entries, on_damage)), outcomes


def partition_outcomes(
    storage: Storage,
    topic: str,
    entries: Sequence[SegmentEntry],
    kept: Sequence[Range],
    on_damage: OnDamage | None = None,
) -> TransactionOutcomes:
    """Facts that the indexes of a partition do not say. Damage as with `aborted_in`."""

    def facts(at: int) -> SegmentTransactions:
        return facts_in(storage, topic, entries, at, on_damage)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        return fold(pool.map(facts, range(len(entries))), kept)


def facts_in(
    storage: Storage, topic: str, entries: Sequence[SegmentEntry], at: int, on_damage: OnDamage | None = None
) -> SegmentTransactions:
    """Return the transactions of the segment with the number `at` of a partition. Where its log was left for the one
    that follows, its batches are followed up to there: what the whole segment says is of records that were cut off,
    too. Damage as with `segment_transactions`."""
    entry, end = entries[at], left_at(entries, at)
    known = segment_transactions(storage, topic, entry, on_damage)
    if end is None or not entry.transactional:
        return known
    whole, aborted = entry.uncut, _index_below(storage, topic, entry, end, on_damage)
    follower = SegmentFollower(entry.base_offset, known.epoch)
    for stretch, headers in reader_of(whole).batches(storage, topic, whole, entry.base_offset, on_damage):
        below = headers[: headers.first_reaching(end)]
        if len(below):
            follower.note(stretch, below)
        if len(below) < len(headers):
            across = headers[len(below)][1]
            if across.base_offset < end and not across.is_control:
                follower.note(stretch, headers[len(below) : len(below) + 1])
            break
    made = follower.finish(end, aborted)
    return replace(made, base_offset=entry.base_offset, holed=made.holed or known.holed)


def left_at(entries: Sequence[SegmentEntry], at: int) -> int | None:
    """Return the offset at which the log of a segment of a partition was left for the one that follows; None: it was
    not."""
    entry = entries[at]
    return entry.next_offset if at + 1 < len(entries) and entry.next_offset < entry.uncut.next_offset else None


def transaction_index(
    storage: Storage, topic: str, entries: Sequence[SegmentEntry], on_damage: OnDamage | None = None
) -> list[AbortedTxn]:
    """Return the entries of all transaction indexes, several of which are read at once. One that is missing or altered
    is damage as with `aborted_in`."""
    indexed = [at for at, entry in enumerate(entries) if entry.files.txnindex_bytes]
    if not indexed:
        return []

    def read(at: int) -> Sequence[AbortedTxn]:
        return _index_below(storage, topic, entries[at], left_at(entries, at), on_damage) or ()

    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        return [txn for some in pool.map(read, indexed) for txn in some]


def _index_below(
    storage: Storage, topic: str, entry: SegmentEntry, end: int | None, on_damage: OnDamage | None
) -> Sequence[AbortedTxn] | None:
    """Return the entries of a segment's index for what lies below an offset, or all; None if it is damaged."""
    whole = entry.uncut
    if not whole.files.txnindex_bytes:
        return ()
    found = reader_of(whole).transaction_index(storage, topic, whole, on_damage)
    return found if found is None or end is None else list(txns_below(found, end))


def segment_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None = None
) -> SegmentTransactions:
    """Return the transactions of one segment; of a slice, all that the whole one has. Without `on_damage` raises
    ArchiveDamaged if its log has to be read and is damaged, or its index is."""
    whole = entry.uncut
    found = reader_of(whole).transactions(storage, topic, whole, on_damage)
    return found if whole is entry else replace(found, base_offset=entry.base_offset, next_offset=entry.next_offset)
