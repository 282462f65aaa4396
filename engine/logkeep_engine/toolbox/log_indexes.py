"""The indexes of logs, made again in one pass over each log: a log has an offset, a time and a transaction index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive import names
from logkeep_engine.errors import CorruptBatch, CorruptIndex
from logkeep_engine.log.batch import headers_of
from logkeep_engine.log.records import ControlType, control_type
from logkeep_engine.log.recovery import misplaced
from logkeep_engine.log.segment import (
    AbortedTxn,
    IndexBuilder,
    pack_txn_entry,
    read_txn_index,
    without_preallocated,
)
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.toolbox.index import Index, IndexVerdict, index_of
from logkeep_engine.toolbox.index_entries import ENTRY_BYTES, EntryCheck
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource

MAX_FAULTS = 10


@dataclass(slots=True)
class _Log:
    """The result of one pass over a log."""

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
    """The producers of a partition, followed from segment to segment."""

    def __init__(self) -> None:
        self.tracker = TransactionTracker()
        self.last_marker: dict[int, int] = {}


def indexes_of_logs(source: LogSource, segments: Sequence[ToolboxSegment], interval_bytes: int) -> Iterator[Index]:
    """Yield the indexes of the logs of one partition, in order: transactions may span several logs."""
    producers = _Producers()
    passes: list[tuple[ToolboxSegment, _Log, list[Index]]] = []
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        found = {suffix: segment.beside(suffix) for suffix in (names.INDEX, names.TIMEINDEX, names.TXNINDEX)}
        check = EntryCheck(segment, found)
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
        # A later segment may say whether a transaction was aborted.
        for (segment, log, indexes), outcomes in zip(passes, _outcomes([log for _, log, _ in passes]), strict=True):
            yield from indexes
            yield _archived_transactions(source, segment, log, outcomes)


def _pass(
    segment: ToolboxSegment, end_offset: int | None, producers: _Producers, check: EntryCheck, interval_bytes: int
) -> _Log:
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
        builder.extend(headers_of([(item.position, header)]))
        check.note(item)
        log.next_offset = header.next_offset
        if header.is_control or header.is_transactional:
            _note_transaction(log, producers, item)
    log.index, log.timeindex = builder.finish()
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


def _judge(
    source: LogSource,
    segment: ToolboxSegment,
    suffix: str,
    found: bytes | None,
    made: bytes,
    faults: Sequence[str],
    damage: str,
) -> Index:
    entry = segment.entry
    faults = list(faults[:MAX_FAULTS]) + ([f"and {len(faults) - MAX_FAULTS} more"] if len(faults) > MAX_FAULTS else [])
    state = IndexVerdict.GOOD
    known: bytes | None = made
    if damage:
        faults.append(f"the log is damaged: {damage}")
        known, state = None, IndexVerdict.UNKNOWN
    elif found is None:
        state = IndexVerdict.MISSING
        faults.append("it is not there")
    elif entry is not None and found != made:
        state = IndexVerdict.WRONG
        faults = faults or ["it is not the index of the log"]
    elif faults:
        state = IndexVerdict.WRONG
    elif found != made and without_preallocated(found, ENTRY_BYTES[suffix]) != made:
        state = IndexVerdict.SPARSER
    if entry is not None and known is not None:
        size = entry.files.index_bytes if suffix == names.INDEX else entry.files.timeindex_bytes
        if len(known) != size:
            faults.append(f"made from the log it has {len(known)} bytes, the catalog says {size}: the log was altered")
            known, state = None, IndexVerdict.UNKNOWN
    return index_of(source, segment, segment.stem + suffix, state, faults, found, known)


def _transactions(
    source: LogSource, segment: ToolboxSegment, log: _Log, found: bytes | None, first_offset: int
) -> Index:
    """Return the transaction index of a broker's segment. Only the old index knows transactions that began before the
    first segment that is there, or with batches that compaction has removed.
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
        return index_of(source, segment, segment.stem + names.TXNINDEX, IndexVerdict.UNKNOWN, faults, found, None)
    state = IndexVerdict.GOOD
    if faults:
        state = IndexVerdict.MISSING if found is None else IndexVerdict.WRONG
    elif (found or b"") != packed:
        state = IndexVerdict.SPARSER
    return index_of(source, segment, segment.stem + names.TXNINDEX, state, faults, found, packed)


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


def _archived_transactions(
    source: LogSource, segment: ToolboxSegment, log: _Log, outcomes: Mapping[int, bool]
) -> Index:
    """Return the index as a backup writes it: also transactions that have only data in the segment, up to their last
    batch there.

    Its hash is in the catalog, which shows whether the index that is made here is right.
    """
    assert segment.entry is not None
    entry = segment.entry
    path = segment.stem + names.TXNINDEX
    found = segment.beside(names.TXNINDEX)
    digest = hashlib.sha256(found).hexdigest() if found else ""
    if (found is None) == (not entry.files.txnindex_bytes) and digest == entry.files.txnindex_sha256:
        return index_of(source, segment, path, IndexVerdict.GOOD, (), found, found or b"")
    fault = "it is not there" if found is None else "its SHA-256 is not the catalog's"
    state = IndexVerdict.MISSING if found is None else IndexVerdict.WRONG
    if not entry.files.txnindex_bytes:
        return index_of(source, segment, path, IndexVerdict.WRONG, ("the catalog says that there is none",), found, b"")
    if log.damage:
        return index_of(
            source, segment, path, IndexVerdict.UNKNOWN, (fault, f"the log is damaged: {log.damage}"), found, None
        )
    ended = {item.last_offset: (item.producer_id, item.first_offset) for item in log.aborted}
    unended = {last: (producer, first) for producer, (first, last) in log.unended.items()}
    surely = {last: item for last, item in unended.items() if outcomes.get(item[0])}
    for some in ({**ended, **surely}, {**ended, **unended}, ended):
        packed = b"".join(
            pack_txn_entry(AbortedTxn(producer, first, last, first)) for last, (producer, first) in sorted(some.items())
        )
        if hashlib.sha256(packed).hexdigest() == entry.files.txnindex_sha256:
            return index_of(source, segment, path, state, (fault,), found, packed)
    return index_of(
        source,
        segment,
        path,
        IndexVerdict.UNKNOWN,
        (fault, "it cannot be made from the logs that are there"),
        found,
        None,
    )
