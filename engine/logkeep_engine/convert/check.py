"""One task of an import: read segments that another tool wrote, whole and strictly, and say what is in them.

Bytes are read once: records, hash, and what the index should be come from the same pass. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.reading.partition import is_indexed
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.convert.folder import FoundSegment
from logkeep_engine.digest import Digest, Hasher
from logkeep_engine.errors import CorruptSegment, ObjectMissing
from logkeep_engine.formats import records as records_format
from logkeep_engine.formats.base import SegmentFacts
from logkeep_engine.formats.counted import CountedRecords
from logkeep_engine.formats.records_index import ENTRY_BYTES, IndexState, check_index, pack_entries
from logkeep_engine.formats.records_names import MAGIC
from logkeep_engine.storage import Storage
from logkeep_engine.tasks import TaskContext


@dataclass(frozen=True, slots=True)
class CheckSetting:
    """The settings that all tasks of a check share. It pickles without secrets."""

    storage: Storage
    layout: Layout
    digest: DigestAlgorithm


@dataclass(frozen=True, slots=True)
class CheckedSegment:
    """A segment that was checked. `facts` are those of its whole records, None if it has none; `digest`, and `bytes` in
    them, are those of the object up to the last whole record.

    `damage` says what is wrong after the whole records, at byte `facts.bytes`; it is empty if nothing is. `foreign`
    segments are not of this version of the format. `index` says whether the index fits the whole records, `index_what`
    what is wrong with it, and `index_entries` how many whole entries it has.
    """

    facts: SegmentFacts | None
    digest: Digest | None = None
    damage: str = ""
    foreign: bool = False
    index: IndexState = IndexState.GOOD
    index_what: str = ""
    index_entries: int = 0

    @property
    def lost(self) -> int:
        """The number of records that the index names and the segment does not have."""
        return max(0, self.index_entries - (self.facts.records if self.facts is not None else 0))


def check_segments(
    setting: CheckSetting, work: Sequence[FoundSegment], context: TaskContext
) -> tuple[CheckedSegment, ...]:
    """Check these segments. The answers are in the same order."""
    check = _check_records if is_indexed(setting.layout) else _check_avro
    return tuple(check(setting, found) for found in work)


def rebuilt_index(storage: Storage, found: FoundSegment, size: int) -> bytes:
    """Return the index of the first `size` bytes of a Records segment, which hold whole records only."""
    index = bytearray(MAGIC)
    with storage.reader(found.path) as reader:
        for block in records_format.read_blocks(_first(iter(reader.read_block, b""), size)):
            index += pack_entries(block.records.offsets(), block.positions)
    return bytes(index)


def _first(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for block in blocks:
        if size <= 0:
            return
        yield block[:size]
        size -= len(block)


def _check_records(setting: CheckSetting, found: FoundSegment) -> CheckedSegment:
    storage = setting.storage
    count = CountedRecords(header_bytes=HEADER_BYTES)
    held = _Held(setting.digest)
    held_index = _index(storage, found)  # first: a tool that still writes enters a record after it has written it
    index = bytearray(MAGIC)
    damage = ""
    end = len(MAGIC)
    try:
        with storage.reader(found.path) as reader:
            for block in records_format.read_blocks(held.pass_on(iter(reader.read_block, b""))):
                count.note(block.records)
                index += pack_entries(block.records.offsets(), block.positions)
                end = block.end
                held.advance(end)
    except (CorruptSegment, ObjectMissing) as error:
        damage = _what(error)
    state = check_index(held_index, bytes(index))
    facts = count.facts(size=end, blocks=1, index_bytes=len(index))
    # An empty object is a segment that was just begun, not one of another version.
    foreign = held.first not in (b"", MAGIC)
    entries = max(0, len(held_index or b"") - len(MAGIC)) // ENTRY_BYTES
    return CheckedSegment(facts, held.digest(), damage, foreign, state.state, state.what, entries)


def _check_avro(setting: CheckSetting, found: FoundSegment) -> CheckedSegment:
    from logkeep_engine.formats.avro import read_object

    count = CountedRecords(header_bytes=HEADER_BYTES)
    hasher, size, blocks = Hasher(setting.digest), 0, 0

    def passing(source: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal size
        for block in source:
            hasher.update(block)
            size += len(block)
            yield block

    try:
        with setting.storage.reader(found.path) as reader:
            for records in read_object(
                passing(iter(reader.read_block, b"")), topic=found.topic, partition=found.partition
            ):
                count.note(records)
                blocks += 1
    except (CorruptSegment, ObjectMissing) as error:
        return CheckedSegment(None, damage=_what(error))
    facts = count.facts(size=size, blocks=max(1, blocks), index_bytes=0)
    return CheckedSegment(facts, hasher.digest())


def _index(storage: Storage, found: FoundSegment) -> bytes | None:
    if found.index_size is None:
        return None
    try:
        return storage.read(found.index_path)
    except ObjectMissing:
        return None


def _what(error: CorruptSegment | ObjectMissing) -> str:
    return "the object is missing" if isinstance(error, ObjectMissing) else error.message.rstrip(".")


class _Held:
    """The digest of the bytes up to the end of the whole records, while more bytes are read than that."""

    def __init__(self, algorithm: DigestAlgorithm) -> None:
        self._hasher = Hasher(algorithm)
        self._hashed = 0
        self._waiting = bytearray()
        self.first = b""

    def pass_on(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        for block in blocks:
            self.first = self.first or block[:1]
            self._waiting += block
            yield block

    def advance(self, end: int) -> None:
        """Hash all bytes before position `end`."""
        count = end - self._hashed
        self._hasher.update(bytes(self._waiting[:count]))
        del self._waiting[:count]
        self._hashed = end

    def digest(self) -> Digest:
        if not self._hashed:
            self._hasher.update(MAGIC)
        return self._hasher.digest()


HEADER_BYTES = 10
"""A header takes fewer bytes than this in a batch, in addition to its key and value."""
