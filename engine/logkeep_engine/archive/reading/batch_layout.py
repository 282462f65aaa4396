"""The reader of segments of Kafka's batches: plain logs and logs in seekable zstd."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower, SegmentTransactions
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.parts import known_parts
from logkeep_engine.archive.reading.segments import first_at_or_after, read_from, read_index, read_segment
from logkeep_engine.errors import ArchiveDamaged, BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import Stretch
from logkeep_engine.log.codec import decode_slices
from logkeep_engine.log.consumed import LogRecord, index_since
from logkeep_engine.log.rows import kept_rows
from logkeep_engine.log.transactions import Spans, unseen
from logkeep_engine.storage import Storage

_ARCHIVED_LIKE_THIS = "The batch's CRC holds, so it was archived like this: please report it."
_offset = attrgetter("offset")


class BatchLayout:
    """Reads the layouts KAFKA and PACK, see `layouts.LayoutReader`."""

    batched = True
    records_format = None

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Stretch]:
        """Return the stretches from the batch that holds `start` on. A reader that continues after damage reads the log
        from its beginning, since it needs the batch before the damage."""
        if start <= entry.base_offset:
            return read_segment(storage, topic, entry, on_damage=on_damage)
        if on_damage is None:
            return read_from(storage, topic, entry, start)
        return _behind(read_segment(storage, topic, entry, on_damage=on_damage), start)

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        """Return the records that a consumer of committed records sees, from `start` on."""
        stretches = self.batches(storage, topic, entry, start, on_damage)
        found = decoded(storage, topic, entry, stretches, aborted, on_damage)
        return found if start <= entry.base_offset else _since(found, start)

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        """The `.txnparts` object says them, or the log and its index do."""
        found = known_parts(storage, topic, entry) if entry.transactional else None
        return transactions_of(storage, topic, entry, on_damage) if found is None else found

    transaction_index = staticmethod(read_index)

    def first_since(self, storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
        """Return the offset of the first record of that time or later. The indexes lead to the first batch that may
        have it.

        The highest time in a batch's header is not proof: a batch that compaction has emptied keeps it.
        """
        hint = first_at_or_after(storage, topic, entry, time)
        if hint is None:
            return None
        return first_in(storage, topic, entry, read_from(storage, topic, entry, hint.base_offset), time)


def first_in(storage: Storage, topic: str, entry: SegmentEntry, stretches: Iterable[Stretch], time: int) -> int | None:
    """Return the offset of the first record of that time or later in these batches of a segment."""
    with sound(storage, topic, entry):
        for stretch, headers in stretches:
            for position, header in headers:
                if header.max_timestamp < time:
                    continue
                for records in decode_slices(stretch[position : position + header.size], header):
                    at = index_since(records, time)
                    if at < len(records):
                        return records[at].offset
    return None


def transactions_of(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
) -> SegmentTransactions:
    """Follow the transactions of a segment from its batches. Damage as with `LayoutReader.transactions`."""
    if not entry.transactional:
        return SegmentTransactions.without(entry)
    if on_damage is not None:
        return _what_is_left_of_transactions(storage, topic, entry, on_damage)
    follower = SegmentFollower(entry.base_offset, entry.epoch)
    for stretch, headers in read_segment(storage, topic, entry):
        follower.note(stretch, headers)
    return follower.finish(entry.next_offset, read_index(storage, topic, entry, None))


def _what_is_left_of_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage
) -> SegmentTransactions:
    """Return the transactions that a damaged log, or a log with a damaged index, still names."""
    follower = SegmentFollower(entry.base_offset, entry.epoch)

    def note(damage: Damage) -> None:
        on_damage(damage)
        if damage.lost is not None:
            follower.cut(damage.lost[1])

    for stretch, headers in read_segment(storage, topic, entry, on_damage=note):
        for number, (_, header) in enumerate(headers):
            try:
                follower.note(stretch, headers[number : number + 1])
            except CorruptBatch as error:
                path = f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix}"
                lost = (header.base_offset, header.next_offset)
                note(Damage(path, topic, entry.partition, lost[0], error.message.rstrip("."), lost))
    return follower.finish(entry.next_offset, read_index(storage, topic, entry, on_damage))


@contextmanager
def sound(storage: Storage, topic: str, entry: SegmentEntry) -> Iterator[None]:
    """Raises ArchiveDamaged instead of CorruptBatch, and tells BatchTooLarge where the batch is: for code that takes
    apart batches of this segment."""
    where = f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix} (topic {topic} partition {entry.partition})"
    try:
        yield
    except BatchTooLarge as error:
        raise error.within(where) from error
    except CorruptBatch as error:
        raise ArchiveDamaged(f"{where}: {error.message}", hint=_ARCHIVED_LIKE_THIS) from error


def decoded(
    storage: Storage,
    topic: str,
    entry: SegmentEntry,
    stretches: Iterable[Stretch],
    aborted: Spans,
    on_damage: OnDamage | None = None,
    hint: str = _ARCHIVED_LIKE_THIS,
) -> Iterator[Sequence[LogRecord]]:
    """Yield the records in `stretches` without control batches and `aborted` transactions, in lists of bounded size.

    Without `on_damage` a batch that cannot be taken apart raises ArchiveDamaged with `hint`, though its CRC holds.
    """
    path = f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix}"
    for data, headers in stretches:
        for position, header in headers:
            if unseen(header, aborted):
                continue
            last: int | None = None
            try:
                for rows in kept_rows(data[position : position + header.size], header):
                    last = rows.last_offset
                    yield rows
            except BatchTooLarge as error:
                raise error.within(f"{path} (topic {topic} partition {entry.partition})") from error
            except CorruptBatch as error:
                lost = (header.base_offset if last is None else last + 1, header.next_offset)
                damage = Damage(path, topic, entry.partition, header.base_offset, error.message.rstrip("."), lost)
                if on_damage is None:
                    raise damage.error(hint) from error
                on_damage(damage)


def _behind(stretches: Iterable[Stretch], start: int) -> Iterator[Stretch]:
    """Yield the stretches from the batch that holds `start` on."""
    for stretch, headers in stretches:
        rest = headers[headers.first_reaching(start) :]
        if rest:
            yield stretch[rest.start :], rest.relative()
        del stretch, headers, rest


def _since(lists: Iterable[Sequence[LogRecord]], start: int) -> Iterator[Sequence[LogRecord]]:
    """Yield the records from offset `start` on."""
    for records in lists:
        if records and records[0].offset >= start:
            yield records
        elif records and records[-1].offset >= start:
            yield records[bisect_left(records, start, key=_offset) :]
