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
from itertools import zip_longest

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions, txns_below
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
    """The aborted transactions of one partition, and how they are known. `entries` are all its segments from some
    offset on, `kept` the ranges that they stand for. If something cannot be read, raises ArchiveDamaged, or tells
    `on_damage` (from several threads, and of an index twice) and goes by what can.
    """
    if not any(entry.transactional for entry in entries):
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

    def facts(entry: SegmentEntry, end: int | None) -> SegmentTransactions:
        found = segment_transactions(storage, topic, entry, on_damage)
        return found if end is None else found.below(end)

    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        return fold(pool.map(facts, entries, _left(entries)), kept)


def _left(entries: Sequence[SegmentEntry]) -> list[int | None]:
    """For each segment of a partition, the offset at which its log was left for the one that follows: what a merged
    segment says of transactions from there on is of records that were cut off. None: it was not left."""
    return [
        entry.next_offset if after is not None and entry.next_offset < entry.uncut.next_offset else None
        for entry, after in zip_longest(entries, entries[1:])
    ]


def transaction_index(
    storage: Storage, topic: str, entries: Sequence[SegmentEntry], on_damage: OnDamage | None = None
) -> list[AbortedTxn]:
    """The entries of all transaction indexes, several of which are read at once. One that is missing or altered is
    damage as with `aborted_in`."""
    indexed = [item for item in zip(entries, _left(entries), strict=True) if item[0].files.txnindex_bytes]
    if not indexed:
        return []

    def read(item: tuple[SegmentEntry, int | None]) -> Sequence[AbortedTxn]:
        entry, end = item
        found = reader_of(entry).transaction_index(storage, topic, entry.uncut, on_damage) or ()
        return found if end is None else list(txns_below(found, end))

    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        return [txn for some in pool.map(read, indexed) for txn in some]


def segment_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None = None
) -> SegmentTransactions:
    """The transactions of one segment; of a slice, all that the whole one has. Without `on_damage` raises
    ArchiveDamaged if its log has to be read and is damaged, or its index is."""
    whole = entry.uncut
    found = reader_of(whole).transactions(storage, topic, whole, on_damage)
    return found if whole is entry else replace(found, base_offset=entry.base_offset, next_offset=entry.next_offset)
