"""Indexes of segments: are they what their log says, and making them again.

    for index in survey(source):
        print(index.name, index.state, index.faults)
        if index.stale: rewrite(index)

`faults` are what a broker would stumble over: its own sanity checks (OffsetIndex, TimeIndex, TransactionIndex
`sanityCheck`), and that every entry is true. An index may be sparser than the one that is made here (brokers before
4.1) and still have no fault. In an archive every object must have its exact bytes: there a difference is a fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count, pairwise

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.errors import CorruptBatch, CorruptIndex, CorruptSegment, ObjectMissing, Refused
from logkeep_engine.formats.records import read_blocks
from logkeep_engine.formats.records_index import build_index, check_index
from logkeep_engine.formats.records_names import SegmentName, pack_partition_index, partition_index_name
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.recovery import misplaced, owner_of, replace_file, sync_folder
from logkeep_engine.log.segment import (
    INDEX_INTERVAL_BYTES,
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    AbortedTxn,
    IndexBuilder,
    OffsetEntry,
    TimeEntry,
    pack_txn_entry,
    read_offset_index,
    read_time_index,
    read_txn_index,
    without_preallocated,
)
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.source import Segment, Source, display, local_path, os_errors

BACKUP = ".bak"
MAX_FAULTS = 10
_ENTRY_BYTES = {names.INDEX: OFFSET_ENTRY_BYTES, names.TIMEINDEX: TIME_ENTRY_BYTES}


class State(StrEnum):
    GOOD = "good"
    SPARSER = "differs, but is right"
    WRONG = "wrong"
    MISSING = "missing"
    UNKNOWN = "unknown"
    """The log is damaged, so what the index should be cannot be said."""


@dataclass(frozen=True, slots=True)
class Index:
    """One index object. `made` is what it should be; None if that cannot be said. `found` None: it is not there.

    `committed`: the catalog names it, or its segment.
    """

    storage: Storage = field(repr=False)
    path: str
    topic: str
    partition: int
    state: State
    faults: tuple[str, ...]
    found: bytes | None = field(repr=False)
    made: bytes | None = field(repr=False)
    committed: bool
    log: str = field(repr=False)
    """The path of the log, or the records, that it is made from."""

    @property
    def name(self) -> str:
        return display(self.storage, self.path)

    @property
    def stale(self) -> bool:
        """It should be written anew, or, if it is a transaction index without an entry, go."""
        if self.made is None:
            return False
        return (self.found or b"") != self.made or (self.found is None and not self.may_be_absent)

    @property
    def may_be_absent(self) -> bool:
        """An index of this kind does not exist if it has no entry."""
        return self.path.endswith(names.TXNINDEX)


def survey(source: Source, *, interval_bytes: int = INDEX_INTERVAL_BYTES) -> Iterator[Index]:
    """Every index of the segments of a source; reads all their logs. `interval_bytes` is the broker's
    `log.index.interval.bytes`; a Logkeep archive has the default.
    """
    if source.single and not source.segments:
        raise Refused(
            f"{display(source.storage, source.single)}: its log is not there.",
            hint="An index is made from the log beside it.",
        )
    if source.single and source.segments[0].is_checkpoint:
        raise Refused(
            f"{display(source.storage, source.single)}: a snapshot of the metadata log has no indexes.",
            hint="Name a .log, or its folder.",
        )
    for segments in source.partitions().values():
        logs = [segment for segment in segments if segment.has_batches]
        if logs:
            yield from _of_logs(source, logs, interval_bytes)
        records = [segment for segment in segments if segment.layout in (Layout.RECORDS, Layout.RECORDS_AT_ROOT)]
        if records:
            yield from _of_records(source, records)


def rewrite(index: Index) -> str:
    """Write the index as it should be, whole and durable. Outside of an archive the old one is kept beside it with
    `.bak` behind its name, or `.bak.2` and so on if an earlier one has that name; returns that name ("" if there is
    none).
    """
    if index.made is None:
        raise Refused(f"{index.name}: what it should be cannot be said.", hint="; ".join(index.faults))
    kept = ""
    if index.found is not None and not index.committed:
        kept = _free_name(index, index.found)
        _write(index, kept, index.found)
    if index.made or not index.may_be_absent:
        _write(index, index.path, index.made)
    else:
        index.storage.delete([index.path])
    return display(index.storage, kept) if kept else ""


def _free_name(index: Index, found: bytes) -> str:
    """A name for what is kept of the index: one that is free, or that has the same bytes already."""
    for number in count(1):
        kept = index.path + BACKUP + (f".{number}" if number > 1 else "")
        try:
            if index.storage.read(kept) == found:
                return kept
        except ObjectMissing:
            return kept
    raise AssertionError


def _write(index: Index, path: str, content: bytes) -> None:
    """Whole and durable. In a log folder a broker of another user must be able to open it, as it could before."""
    file, log = local_path(index.storage, path), local_path(index.storage, index.log)
    old = local_path(index.storage, index.path)
    if index.committed or file is None or log is None or old is None:
        index.storage.put(path, content)
        return
    with os_errors(display(index.storage, path)):
        replace_file(file, content, owner_of(old, log))
        sync_folder(file.parent)


# ---- Kafka's layout


@dataclass(slots=True)
class _Log:
    """What one pass over a log told."""

    index: bytes = b""
    timeindex: bytes = b""
    aborted: list[AbortedTxn] = field(default_factory=list)
    ends: dict[tuple[int, int], int] = field(default_factory=dict)
    """(producer id, last offset) where an entry of the transaction index may end, to the offset of the producer's
    marker before that, -1 if there is none.
    """
    unended: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id to (first offset, last offset here) of transactions without a marker in this log."""
    damage: str = ""
    next_offset: int = 0


class _Producers:
    """What is known of the producers of a partition, while its segments go by."""

    def __init__(self) -> None:
        self.tracker = TransactionTracker()
        self.last_marker: dict[int, int] = {}


def _of_logs(source: Source, segments: Sequence[Segment], interval_bytes: int) -> Iterator[Index]:
    """Logs of one partition, in order: transactions may span them."""
    producers = _Producers()
    passes: list[tuple[Segment, _Log, list[Index]]] = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        found = {suffix: segment.beside(suffix) for suffix in (names.INDEX, names.TIMEINDEX, names.TXNINDEX)}
        check = _Check(segment, found)
        end_offset = following.base_offset if following is not None else None
        log = _pass(segment, end_offset, producers, check, interval_bytes)
        indexes = [
            _judge(source, segment, names.INDEX, found[names.INDEX], log.index, check.faults[names.INDEX], log.damage),
            _judge(
                source,
                segment,
                names.TIMEINDEX,
                found[names.TIMEINDEX],
                log.timeindex,
                check.faults[names.TIMEINDEX],
                log.damage,
            ),
        ]
        log.index = log.timeindex = b""
        passes.append((segment, log, indexes))
        if segment.entry is None:
            yield from indexes
            yield _transactions(source, segment, log, found[names.TXNINDEX], segments[0].base_offset)
    if passes and passes[0][0].entry is not None:
        # Whether a transaction was aborted may stand in a later segment.
        for (segment, log, indexes), outcomes in zip(passes, _outcomes([log for _, log, _ in passes]), strict=True):
            yield from indexes
            yield _archived_transactions(source, segment, log, outcomes)


def _pass(segment: Segment, end_offset: int | None, producers: _Producers, check: _Check, interval_bytes: int) -> _Log:
    log = _Log(next_offset=segment.base_offset)
    builder = IndexBuilder(segment.base_offset, interval_bytes)
    for item in segment.scan():
        if not isinstance(item, Batch) or item.problem:
            what = item.problem if isinstance(item, Batch) else item.what
            log.damage = f"{what} at position {item.position} of the log"
            break
        header = item.header
        if problem := misplaced(header, log.next_offset, segment.base_offset, end_offset):
            log.damage = f"{problem} at position {item.position} of the log"
            break
        builder.extend([(item.position, header)])
        check.note(item)
        log.next_offset = header.next_offset
        if header.is_control or header.is_transactional:
            _note_transaction(log, producers, item)
    made = builder.finish()
    log.index, log.timeindex = made.index, made.timeindex
    if not log.damage:
        check.finish()
    return log


def _note_transaction(log: _Log, producers: _Producers, batch: Batch) -> None:
    tracker = producers.tracker
    header = batch.header
    if header.is_control:
        try:
            aborted = tracker.observe(batch.data, 0, header)
            kind = control_type(batch.data)
        except CorruptBatch as error:
            log.damage = f"{error.message} at position {batch.position} of the log"
            return
        log.unended.pop(header.producer_id, None)
        if kind is ControlType.ABORT:
            before = producers.last_marker.get(header.producer_id, -1)
            log.ends[header.producer_id, header.last_offset] = before
            if aborted is not None:
                log.aborted.append(aborted)
        producers.last_marker[header.producer_id] = header.last_offset
        return
    tracker.observe(batch.data, 0, header)
    first = tracker.open_transactions[header.producer_id]
    log.unended[header.producer_id] = (first, header.last_offset)


class _Check:
    """Holds the entries of offset and time index against the batches as they come by, as Kafka's dump tool does."""

    def __init__(self, segment: Segment, found: Mapping[str, bytes | None]) -> None:
        self.faults: dict[str, list[str]] = {suffix: [] for suffix in (names.INDEX, names.TIMEINDEX)}
        self._base = segment.base_offset
        self._offsets: list[OffsetEntry] = []
        self._times: list[TimeEntry] = []
        self._at_offset = self._at_time = 0
        self._latest = -1
        for suffix, data in found.items():
            if suffix in self.faults and data is not None:
                self._read(suffix, without_preallocated(data, _ENTRY_BYTES[suffix]))

    def note(self, batch: Batch) -> None:
        header = batch.header
        while self._at_offset < len(self._offsets):
            entry = self._offsets[self._at_offset]
            if entry.position > batch.position:
                break
            self._at_offset += 1
            if entry.position < batch.position:
                self._add(names.INDEX, f"position {entry.position} of offset {entry.offset} is inside a batch")
            elif entry.offset != header.last_offset:
                what = (
                    f"offset {entry.offset} at position {entry.position}, where a batch ends with {header.last_offset}"
                )
                self._add(names.INDEX, what)
        self._latest = max(self._latest, header.max_timestamp)
        while self._at_time < len(self._times) and self._times[self._at_time].offset <= header.last_offset:
            time = self._times[self._at_time]
            self._at_time += 1
            if time.offset < header.base_offset:
                self._add(names.TIMEINDEX, f"offset {time.offset} of timestamp {time.timestamp} is in no batch")
            elif time.timestamp != header.max_timestamp:
                what = f"timestamp {time.timestamp} of offset {time.offset}, where a batch has {header.max_timestamp}"
                self._add(names.TIMEINDEX, what)
            elif time.timestamp < self._latest:
                what = f"timestamp {time.timestamp} of offset {time.offset}, before which there is {self._latest}"
                self._add(names.TIMEINDEX, what)

    def finish(self) -> None:
        for entry in self._offsets[self._at_offset :]:
            self._add(names.INDEX, f"position {entry.position} of offset {entry.offset} is past the end of the log")
        for time in self._times[self._at_time :]:
            self._add(names.TIMEINDEX, f"offset {time.offset} of timestamp {time.timestamp} is past the end of the log")

    def _add(self, suffix: str, what: str) -> None:
        self.faults[suffix].append(what)

    def _read(self, suffix: str, data: bytes) -> None:
        try:
            if suffix == names.INDEX:
                self._offsets = read_offset_index(data, self._base)
                rows = [(entry.offset, entry.position) for entry in self._offsets]
            else:
                self._times = read_time_index(data, self._base)
                rows = [(time.timestamp, time.offset) for time in self._times]
        except CorruptIndex as error:
            self._add(suffix, error.message.rstrip("."))
            return
        numbers = ("offset", "position") if suffix == names.INDEX else ("timestamp", "offset")
        lowest = min((row[0 if suffix == names.INDEX else 1] for row in rows), default=self._base)
        if lowest < self._base:
            self._add(suffix, f"offset {lowest} is below the segment's base offset {self._base}")
        for before, after in pairwise(rows):
            for which, name in enumerate(numbers):
                if after[which] <= before[which]:
                    self._add(suffix, f"{name} {after[which]} follows {before[which]}; it must rise")


def _judge(
    source: Source,
    segment: Segment,
    suffix: str,
    found: bytes | None,
    made: bytes,
    faults: Sequence[str],
    damage: str,
) -> Index:
    entry = segment.entry
    faults = list(faults[:MAX_FAULTS]) + ([f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else [])
    state = State.GOOD
    known: bytes | None = made
    if damage:
        faults.append(f"the log is damaged: {damage}")
        known, state = None, State.UNKNOWN
    elif found is None:
        state = State.MISSING
        faults.append("it is not there")
    elif entry is not None and found != made:
        state = State.WRONG
        faults = faults or ["it is not the index of the log"]
    elif faults:
        state = State.WRONG
    elif found != made and without_preallocated(found, _ENTRY_BYTES[suffix]) != made:
        state = State.SPARSER
    if entry is not None and known is not None:
        size = entry.files.index_bytes if suffix == names.INDEX else entry.files.timeindex_bytes
        if len(known) != size:
            faults.append(f"made from the log it has {len(known)} bytes, the catalog says {size}: the log was altered")
            known, state = None, State.UNKNOWN
    return _index(source, segment, segment.stem + suffix, state, faults, found, known)


def _index(
    source: Source,
    segment: Segment,
    path: str,
    state: State,
    faults: Sequence[str],
    found: bytes | None,
    made: bytes | None,
) -> Index:
    if made is not None and found is not None and state is State.GOOD:
        made = found  # reserved zeros behind the entries are no reason to write it anew
    return Index(
        source.storage,
        path,
        segment.topic,
        segment.partition,
        state,
        tuple(faults),
        found,
        made,
        source.archive is not None,
        segment.path,
    )


def _transactions(source: Source, segment: Segment, log: _Log, found: bytes | None, first_offset: int) -> Index:
    """The transaction index of a broker's segment. What began before the first segment that is there stands in the
    old index only; so does what began with batches that compaction has taken.
    """
    faults: list[str] = []
    old: dict[tuple[int, int], AbortedTxn] = {}
    try:
        entries = read_txn_index(found or b"")
    except CorruptIndex as error:
        faults.append(error.message.rstrip("."))
        entries = []
    for item in entries:
        if (item.producer_id, item.last_offset) not in log.ends:
            if not log.damage or item.last_offset < log.next_offset:
                faults.append(f"no transaction of producer {item.producer_id} is aborted at offset {item.last_offset}")
        else:
            old[item.producer_id, item.last_offset] = item
        if not 0 <= item.first_offset <= item.last_offset or item.last_offset < segment.base_offset:
            what = f"offsets {item.first_offset} to {item.last_offset}"
            faults.append(f"a transaction of producer {item.producer_id} with {what}")
    made = {(item.producer_id, item.last_offset): item for item in log.aborted}
    for key, item in old.items():
        compacted = key in made and log.ends[key] < item.first_offset < made[key].first_offset
        if key not in made or compacted or 0 <= item.first_offset < first_offset:
            made[key] = item
    for key, item in made.items():
        if key not in old:
            faults.append(f"the transaction of producer {key[0]} that is aborted at offset {key[1]} is not in it")
        elif old[key].first_offset != item.first_offset:
            what = f"begins at offset {item.first_offset}, not at {old[key].first_offset}"
            faults.append(f"the transaction of producer {key[0]} that is aborted at offset {key[1]} {what}")
    packed = b"".join(pack_txn_entry(item) for item in sorted(made.values(), key=lambda item: item.last_offset))
    if log.damage:
        faults.append(f"the log is damaged: {log.damage}")
        return _index(source, segment, segment.stem + names.TXNINDEX, State.UNKNOWN, faults, found, None)
    state = State.GOOD
    if faults:
        state = State.MISSING if found is None else State.WRONG
    elif (found or b"") != packed:
        state = State.SPARSER
    return _index(source, segment, segment.stem + names.TXNINDEX, state, faults, found, packed)


def _outcomes(logs: Sequence[_Log]) -> list[dict[int, bool]]:
    """For each log: the producers whose transaction has no marker in it, and whether it is aborted later."""
    later: dict[int, bool] = {}
    found: list[dict[int, bool]] = []
    for log in reversed(logs):
        found.append({producer: later[producer] for producer in log.unended if producer in later})
        first_end: dict[int, int] = {}
        for producer, offset in log.ends:
            first_end[producer] = min(offset, first_end.get(producer, offset))
        for producer in first_end:
            later[producer] = True
    return found[::-1]


def _archived_transactions(source: Source, segment: Segment, log: _Log, outcomes: Mapping[int, bool]) -> Index:
    """As a backup writes it: also the transactions that have only data in the segment, up to their last batch there.

    Its hash is in the catalog, so what is made here is known to be right, or not to be.
    """
    assert segment.entry is not None
    entry = segment.entry
    path = segment.stem + names.TXNINDEX
    found = segment.beside(names.TXNINDEX)
    digest = hashlib.sha256(found).hexdigest() if found else ""
    if (found is None) == (not entry.files.txnindex_bytes) and digest == entry.files.txnindex_sha256:
        return _index(source, segment, path, State.GOOD, (), found, found or b"")
    fault = "it is not there" if found is None else "its SHA-256 is not the catalog's"
    state = State.MISSING if found is None else State.WRONG
    if not entry.files.txnindex_bytes:
        return _index(source, segment, path, State.WRONG, ("the catalog says that there is none",), found, b"")
    if log.damage:
        return _index(source, segment, path, State.UNKNOWN, (fault, f"the log is damaged: {log.damage}"), found, None)
    ended = {item.last_offset: (item.producer_id, item.first_offset) for item in log.aborted}
    unended = {last: (producer, first) for producer, (first, last) in log.unended.items()}
    surely = {last: item for last, item in unended.items() if outcomes.get(item[0])}
    for some in ({**ended, **surely}, {**ended, **unended}, ended):
        packed = b"".join(
            pack_txn_entry(AbortedTxn(producer, first, last, first)) for last, (producer, first) in sorted(some.items())
        )
        if hashlib.sha256(packed).hexdigest() == entry.files.txnindex_sha256:
            return _index(source, segment, path, state, (fault,), found, packed)
    return _index(
        source, segment, path, State.UNKNOWN, (fault, "it cannot be made from the logs that are there"), found, None
    )


# ---- the Records format


def _of_records(source: Source, segments: Sequence[Segment]) -> Iterator[Index]:
    for segment in segments:
        yield _records_index(source, segment)
    folder = segments[0].path.rpartition("/")[0]
    if source.single:
        return
    path = f"{folder}/{partition_index_name(segments[0].partition)}".lstrip("/")
    made = pack_partition_index(SegmentName(segment.partition, segment.base_offset) for segment in segments)
    try:
        found = source.storage.read(path)
    except ObjectMissing:
        found = None
    if found == made:
        yield _index(source, segments[0], path, State.GOOD, (), found, made)
    elif found is None:
        yield _index(source, segments[0], path, State.MISSING, (), found, made)  # a convenience: nobody needs it
    else:
        what = "it does not name the segments that are there"
        yield _index(source, segments[0], path, State.WRONG, (what,), found, made)


def _records_index(source: Source, segment: Segment) -> Index:
    path = segment.stem + names.RECORDS_INDEX
    found = segment.beside(names.RECORDS_INDEX)
    try:
        with segment.storage.reader(segment.path) as reader:
            placed = read_blocks(iter(reader.read_block, b""), size=segment.size)
            made = build_index(([record.offset for record in block.records], block.positions) for block in placed)
    except CorruptSegment as error:
        what = f"the segment is damaged: {error.message.rstrip('.')}"
        return _index(source, segment, path, State.UNKNOWN, (what,), found, None)
    except ObjectMissing:
        return _index(source, segment, path, State.UNKNOWN, ("the segment is not there",), found, None)
    if segment.entry is not None and len(made) != segment.entry.files.index_bytes:
        what = f"made from the segment it has {len(made)} bytes, the catalog says {segment.entry.files.index_bytes}"
        return _index(source, segment, path, State.UNKNOWN, (f"{what}: the segment was altered",), found, None)
    check = check_index(found, made)
    if not check.what:
        return _index(source, segment, path, State.GOOD, (), found, made)
    state = State.MISSING if found is None else State.WRONG
    return _index(source, segment, path, state, (check.what.rstrip("."),), found, made)
