"""The check of one segment: reads each of its objects, makes indexes and facts again, and compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.fields import paths
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower, SegmentTransactions
from logkeep_engine.archive.maintenance.record_check import verify_record_segment
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import (
    fetched_epoch,
    is_batched,
    open_damaged,
    read_file,
    read_parts,
)
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import CorruptBatch, ObjectMissing, ObjectTooLarge
from logkeep_engine.log.segment import AbortedTxn, SegmentBuilder, SegmentSummary
from logkeep_engine.log.snapshot import FOOTER_BYTES, HEADER_BYTES
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The `damage` of a segment's objects, and its `transactions`; None: it holds records, not batches, or is a part of
    a snapshot."""

    damage: list[Damage]
    transactions: SegmentTransactions | None


def check_all(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck:
    """Check like `check_segment`, and check also objects that no reader needs."""
    found = check_segment(storage, topic, entry)
    if found.transactions is not None and not found.damage:
        found.damage.extend(_verify_parts(storage, topic, entry, found.transactions))
    return found


def missing_or_short(storage: Storage, topic: str, entry: SegmentEntry, listed: Mapping[str, int]) -> Iterator[Damage]:
    """Yield the damage that shows in a list of objects, path to size: those of the segment that are missing, or that
    have another size."""
    for path, size in entry.objects(topic).items():
        found = listed.get(path)
        shared = entry.pack_files is not None  # other segments lie after it
        if found is None or found < size or (found > size and not shared):
            more = " or more" if shared else ""
            what = "the object is missing" if found is None else f"{found} bytes, the catalog says {size}{more}"
            name = entry.stem(topic) + entry.log_suffix if shared else path
            yield Damage(f"{storage.uri}/{name}", topic, entry.partition, entry.base_offset, what)


def check_segment(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck:
    """Check one segment's objects, in one pass and bounded memory: no damage if it is whole. `topic` is its name. Of a
    slice the whole segment is checked: that is what the catalog knows."""
    entry = entry.uncut
    if not is_batched(entry.layout):
        return SegmentCheck(verify_record_segment(storage, topic, entry), None)
    damage: list[Damage] = []
    # The log is read to its end whatever is found, so that one pass names all damage.
    builder = SegmentBuilder(entry.base_offset, lambda _: None)
    framed = entry.layout is Layout.SNAPSHOT
    if framed and not entry.files.part:
        builder.frame(bytes(HEADER_BYTES))
    follower = SegmentFollower(entry.base_offset, fetched_epoch(storage, topic, entry))

    for item in open_damaged(storage, topic, (entry,)).batches():
        if isinstance(item, Damage):
            damage.append(item)
            if item.lost is not None:
                follower.cut(item.lost[1])
            continue
        stretch, headers = item
        try:
            builder.append(stretch, headers)
            follower.note(stretch, headers)
        except (CorruptBatch, ValueError) as error:
            offset = headers[0][1].base_offset
            damage.append(_damage(storage, topic, entry, entry.log_suffix, offset, str(error)))
            follower.cut(headers.next_offset)
    whole = not damage
    if framed and entry.bytes - builder.size == FOOTER_BYTES:
        builder.frame(bytes(FOOTER_BYTES))
    damage.extend(_verify_beside(storage, topic, entry, builder.finish() if whole else None))
    if framed:
        return SegmentCheck(damage, None)
    index, wrong = _transaction_index(storage, topic, entry)
    damage.extend(wrong)
    damage.extend(_verify_transactions(storage, topic, entry, index or (), follower.ends() if whole else None))
    transactions = follower.finish(entry.next_offset, index)
    return SegmentCheck(damage, transactions)


def _verify_beside(
    storage: Storage, topic: str, entry: SegmentEntry, summary: SegmentSummary | None
) -> Iterator[Damage]:
    """Yield the faults of facts and indexes. Without `summary` the log is damaged: indexes cannot be checked against
    it, but that they are there can be said."""
    sizes = entry.files.sizes(entry)
    beside = [suffix for suffix in (names.INDEX, names.TIMEINDEX) if suffix in sizes]
    if summary is None:
        for suffix in beside:
            yield from _verify_size(storage, topic, entry, suffix, sizes[suffix])[1]
        return
    yield from _verify_facts(storage, topic, entry, summary)
    for suffix in beside:
        made = summary.index if suffix == names.INDEX else summary.timeindex
        yield from _verify_index(storage, topic, entry, suffix, made)


def _verify_facts(storage: Storage, topic: str, entry: SegmentEntry, summary: SegmentSummary) -> Iterator[Damage]:
    found = SegmentEntry.of(
        summary,
        entry.digest,  # compared with the log when it was read
        topic_id=entry.topic_id,
        partition=entry.partition,
        epoch=entry.epoch,
        attempt=entry.attempt,
    )
    # The index objects say the first, and are checked below. No object says the others.
    found = replace(found, files=entry.files, first_epoch=entry.first_epoch, last_epoch=entry.last_epoch)
    for path in paths():
        expected, actual = attrgetter(path)(entry), attrgetter(path)(found)
        if expected != actual:
            what = f"{path.rpartition('.')[2]} is {actual}, the catalog says {expected}"
            yield _damage(storage, topic, entry, entry.log_suffix, entry.base_offset, what)


def _verify_size(
    storage: Storage, topic: str, entry: SegmentEntry, suffix: str, size: int
) -> tuple[bytes | None, list[Damage]]:
    """Return the object's content if it is there with the catalog's size, and what is wrong with it."""
    try:
        data = read_file(storage, topic, entry, suffix)
    except ObjectMissing:
        return None, [_damage(storage, topic, entry, suffix, entry.base_offset, "the object is missing")]
    except ObjectTooLarge as error:
        return None, [_damage(storage, topic, entry, suffix, entry.base_offset, error.message)]
    if len(data) != size:
        what = f"{len(data)} bytes, the catalog says {size}"
        return None, [_damage(storage, topic, entry, suffix, entry.base_offset, what)]
    return data, []


def _verify_index(storage: Storage, topic: str, entry: SegmentEntry, suffix: str, made: bytes) -> list[Damage]:
    data, damage = _verify_size(storage, topic, entry, suffix, entry.files.sizes(entry)[suffix])
    if data is not None and data != made:
        return [_damage(storage, topic, entry, suffix, entry.base_offset, "it is not the index of the log")]
    return damage


def _transaction_index(
    storage: Storage, topic: str, entry: SegmentEntry
) -> tuple[Sequence[AbortedTxn] | None, list[Damage]]:
    """Return the entries, None if they cannot be read, and what is wrong then."""
    index: list[AbortedTxn] = []
    damage: list[Damage] = []
    for item in open_damaged(storage, topic, (entry,)).transaction_index():
        if isinstance(item, Damage):
            damage.append(item)
        else:
            index.append(item)
    return (None if damage else index), damage


def _verify_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, index: Sequence[AbortedTxn], ends: set[tuple[int, int]] | None
) -> list[Damage]:
    return [
        _damage(storage, topic, entry, names.TXNINDEX, item.last_offset, what)
        for item in index
        if (what := _wrong_transaction(item, ends))
    ]


def _verify_parts(storage: Storage, topic: str, entry: SegmentEntry, made: SegmentTransactions) -> Iterator[Damage]:
    """Yield the object that saves reading the log for its transactions; it need not be there."""
    data = read_parts(storage, topic, entry)
    if data is not None and data != made.to_json(entry):
        what = "it differs from the log; it can be deleted, since the log holds the same"
        yield _damage(storage, topic, entry, names.TXNPARTS, entry.base_offset, what)


def _wrong_transaction(item: AbortedTxn, ends: set[tuple[int, int]] | None) -> str:
    if not 0 <= item.first_offset <= item.last_offset:
        return f"a transaction of producer {item.producer_id} with offsets {item.first_offset} to {item.last_offset}"
    if ends is not None and (item.producer_id, item.last_offset) not in ends:
        return f"no transaction of producer {item.producer_id} ends there"
    return ""


def _damage(storage: Storage, topic: str, entry: SegmentEntry, suffix: str, offset: int | None, what: str) -> Damage:
    return Damage(f"{storage.uri}/{entry.stem(topic)}{suffix}", topic, entry.partition, offset, what)
