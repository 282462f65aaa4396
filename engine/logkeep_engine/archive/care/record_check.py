"""The check of segments of the Records and the Avro format: is what the catalog says there?"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.digests import digest_of
from logkeep_engine.archive.reading.record_reader import RecordReading, fault_of
from logkeep_engine.archive.reading.segments import Fault
from logkeep_engine.errors import (
    ObjectMissing,
)
from logkeep_engine.formats import records_names
from logkeep_engine.formats.counted import CountedRecords
from logkeep_engine.formats.records_index import pack_entries
from logkeep_engine.storage import DEFAULT_BLOCK, Storage


def verify_record_segment(storage: Storage, topic: str, entry: SegmentEntry) -> list[Fault]:
    """The faults of the objects of a Records or Avro segment; [] if it is whole. Bounded memory."""
    faults: list[Fault] = []
    facts = CountedRecords()
    index = hashlib.sha256(records_names.MAGIC)
    reading = RecordReading(storage, topic, entry, lambda fault, _: faults.append(fault))
    for records, positions in reading.parts(0, DEFAULT_BLOCK):
        facts.note(records)
        if positions:
            index.update(pack_entries([record.offset for record in records], positions))
    if not faults:
        path = entry.stem(topic) + entry.log_suffix
        faults.extend(fault_of(storage, topic, entry, path, what) for what in _differences(facts, entry))
    if entry.layout is not Layout.AVRO:
        path = entry.stem(topic) + names.RECORDS_INDEX
        what = _wrong_index(storage, path, entry, None if faults else index.hexdigest())
        if what:
            faults.append(fault_of(storage, topic, entry, path, what))
    return faults


def _differences(found: CountedRecords, entry: SegmentEntry) -> Iterator[str]:
    # A segment of the Records format may be named by an offset before its first record.
    named = entry.base_offset if entry.layout is not Layout.AVRO else found.first
    first = min(found.first, named)
    facts = {
        "base_offset": first,
        "next_offset": found.last + 1,
        "records": found.count,
        "min_base_timestamp": found.min_timestamp,
        "max_timestamp": found.max_timestamp,
        "gaps": found.last - first + 1 != found.count,
    }
    for name, value in facts.items():
        expected = getattr(entry, name)
        if value != expected:
            yield f"{name} is {value}, the catalog says {expected}"
    # A strict Avro object does not say which times are append times.
    if found.append_time and not entry.append_time:
        yield "append_time is True, the catalog says False"
    if found.largest > entry.max_batch_bytes:
        yield f"a record has {found.largest} bytes, the catalog says at most {entry.max_batch_bytes}"


def _wrong_index(storage: Storage, path: str, entry: SegmentEntry, expected: str | None) -> str:
    """What is wrong with the index, "" if nothing is; `expected` is the SHA-256 of the right one, None: not known."""
    try:
        found, size = digest_of(storage, path)
    except ObjectMissing:
        return "the object is missing"
    if size != entry.index_bytes:
        return f"{size} bytes, the catalog says {entry.index_bytes}"
    return "it is not the index of the records" if expected not in (None, found) else ""
