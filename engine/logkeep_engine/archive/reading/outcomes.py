"""Reads how the transactions of archived partitions ended: `transactions.fold` joins what segments say.

    outcomes = partition_outcomes(storage, "orders", entries, state.kept(topic_id, 0))
    aborted = outcomes.aborted(transaction_index(storage, "orders", entries))

A segment's `.txnparts` object says what its log says of transactions. No commit names it: where it is gone, the segment
is read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
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
    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        return fold(pool.map(lambda entry: segment_transactions(storage, topic, entry, on_damage), entries), kept)


def transaction_index(
    storage: Storage, topic: str, entries: Iterable[SegmentEntry], on_damage: OnDamage | None = None
) -> list[AbortedTxn]:
    """The entries of all transaction indexes, several of which are read at once. One that is missing or altered is
    damage as with `aborted_in`."""
    indexed = [entry for entry in entries if entry.files.txnindex_bytes]
    if not indexed:
        return []
    with ThreadPoolExecutor(_READERS, thread_name_prefix="logkeep-txn") as pool:
        found = pool.map(
            lambda entry: reader_of(entry).transaction_index(storage, topic, entry.uncut, on_damage), indexed
        )
        return [txn for some in found for txn in some or ()]


def segment_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None = None
) -> SegmentTransactions:
    """The transactions of one segment; of a slice, all that the whole one has. Without `on_damage` raises
    ArchiveDamaged if its log has to be read and is damaged, or its index is."""
    whole = entry.uncut
    found = reader_of(whole).transactions(storage, topic, whole, on_damage)
    return found if whole is entry else replace(found, base_offset=entry.base_offset, next_offset=entry.next_offset)
