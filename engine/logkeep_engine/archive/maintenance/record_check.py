"""The check of segments that hold records: are records, and the index of the Records format, as the catalog says?"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.digests import digest_of
from logkeep_engine.archive.reading.damage import Damage, damage_of
from logkeep_engine.archive.reading.partition import is_indexed, open_damaged, placed_records
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.errors import (
    ObjectMissing,
)
from logkeep_engine.formats import records_names
from logkeep_engine.formats.counted import CountedRecords
from logkeep_engine.formats.records_index import pack_entries
from logkeep_engine.storage import Storage


def verify_record_segment(storage: Storage, topic: str, entry: SegmentEntry) -> list[Damage]:
    """Return the damage of the objects of a segment of records; [] if it is whole. Bounded memory."""
    facts = CountedRecords()
    if is_indexed(entry.layout):
        return _verify_indexed(storage, topic, entry, facts)
    damage: list[Damage] = []
    for item in open_damaged(storage, topic, (entry,)).records():
        if isinstance(item, Damage):
            damage.append(item)
        else:
            facts.note(item)
    return damage or _wrong_facts(storage, topic, entry, facts)


def _verify_indexed(storage: Storage, topic: str, entry: SegmentEntry, facts: CountedRecords) -> list[Damage]:
    """The same pass makes the index again, from where in the object each record lies."""
    damage: list[Damage] = []
    index = Hasher()
    index.update(records_names.MAGIC)
    for item in placed_records(storage, topic, entry):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        facts.note(item.records)
        index.update(pack_entries(item.records.offsets(), item.positions))
    damage = damage or _wrong_facts(storage, topic, entry, facts)
    path = entry.stem(topic) + names.RECORDS_INDEX
    what = _wrong_index(storage, path, entry, None if damage else index.digest())
    return [*damage, damage_of(storage, topic, entry, path, what)] if what else damage


def _wrong_facts(storage: Storage, topic: str, entry: SegmentEntry, found: CountedRecords) -> list[Damage]:
    path = entry.stem(topic) + entry.log_suffix
    return [damage_of(storage, topic, entry, path, what) for what in _differences(found, entry)]


def _differences(found: CountedRecords, entry: SegmentEntry) -> Iterator[str]:
    # A segment of the Records format may be named by an offset before its first record.
    named = entry.base_offset if is_indexed(entry.layout) else found.first
    first = min(found.first, named)
    facts = {
        "base_offset": first,
        "next_offset": found.last + 1,
        "records": found.count,
        "times.min_base_timestamp": found.min_timestamp,
        "times.max_timestamp": found.max_timestamp,
        "gaps": found.last - first + 1 != found.count,
    }
    for path, value in facts.items():
        expected = attrgetter(path)(entry)
        if value != expected:
            yield f"{path.rpartition('.')[2]} is {value}, the catalog says {expected}"
    # A strict Avro object does not say which times are append times.
    if found.append_time and not entry.times.append_time:
        yield "append_time is True, the catalog says False"
    if found.largest > entry.max_batch_bytes:
        yield f"a record has {found.largest} bytes, the catalog says at most {entry.max_batch_bytes}"


def _wrong_index(storage: Storage, path: str, entry: SegmentEntry, expected: Digest | None) -> str:
    """Says what is wrong with the index, "" if nothing is. `expected` is the right digest; None: not known."""
    try:
        found, size = digest_of(storage, path, DEFAULT_DIGEST)
    except ObjectMissing:
        return "the object is missing"
    if size != entry.files.index_bytes:
        return f"{size} bytes, the catalog says {entry.files.index_bytes}"
    return "it is not the index of the records" if expected not in (None, found) else ""
