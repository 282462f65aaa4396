"""Cuts a log after its last valid batch, as a broker does when it starts after a crash.

    plans = list(plan_recovery(source))
    for plan in plans: print(plan.segment.name, plan.cut_bytes, plan.reason)
    carry_out(plans)

A log ends with the last batch that is whole, whose CRC holds, whose offsets rise and lie below the next segment
(`log.recovery`). From a segment of the Records format, bytes that are not a record are cut out
(`formats.records_recovery`): its torn end, and the bytes that its index jumps over, since the original tool continues
after a torn record. A segment of one byte is whole: that tool makes it when it begins a partition, which may never get
a record. Everything after the damage of a log is cut off too, with the later segments of the partition. A broker drops
them, since after a crash nothing there was ever acknowledged as durable. The bytes that are cut off are kept under
their name with `.orig` after it, or `.orig.2` and so on if an earlier recovery has taken that name.

If a recovery is killed at any moment, another run finishes it. The damage is cut last, since it shows what else is to
do, and its copy is durable before. After that, missing indexes show that something is still to do.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from logkeep_engine.archive import names
from logkeep_engine.archive.reading.partition import is_indexed
from logkeep_engine.errors import CorruptSegment, Refused
from logkeep_engine.formats.records_index import ENTRY_BYTES, IndexState
from logkeep_engine.formats.records_names import MAGIC, pack_partition_index, partition_index_name, segments_of
from logkeep_engine.formats.records_recovery import recover_segment
from logkeep_engine.log.batch import Headers
from logkeep_engine.log.recovery import give, recover, replace_file, scan, sync_folder
from logkeep_engine.log.segment import INDEX_INTERVAL_BYTES
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.toolbox.files import display, local_path, os_errors
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import SNAPSHOT, LogSource

ORIGINAL = ".orig"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """The plan for one segment. `cut_bytes` 0, and neither `dropped` nor `unindexed`: it is whole.

    `at`: the position of the first byte that goes. `next_offset`: the one after the last that stays. `dropped`: the
    segment lies after the damage of another one, and goes as a whole. `unindexed`: nothing goes, but an index is
    missing, or ends elsewhere than the records, so that they are made again. `lost_records`: how many more the index
    names than there are; only a copy of the segment can bring them back. `open_transactions`: what was open at its
    start. `end_offset`: the base offset of the next segment.
    """

    segment: ToolboxSegment
    at: int
    valid_bytes: int
    cut_bytes: int
    next_offset: int
    reason: str
    dropped: bool = False
    unindexed: bool = False
    lost_records: int = 0
    end_offset: int | None = None
    open_transactions: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        return not (self.cut_bytes or self.dropped or self.unindexed)


def plan_recovery(source: LogSource) -> Iterator[RecoveryPlan]:
    """Plan the recovery of every segment; nothing is changed. Raises Refused for objects that are not recovered so: an
    archive's objects, objects of an object store, compressed logs and objects of the Avro format.
    """
    _check(source)
    for segments in source.partitions().values():
        tracker = TransactionTracker()
        damaged: ToolboxSegment | None = None
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            if damaged is not None:
                reason = f"it is after the damage of {damaged.name}"
                yield RecoveryPlan(segment, 0, 0, segment.size, segment.base_offset, reason, dropped=True)
                continue
            with os_errors(segment.name):
                plan = _plan_log(segment, following, tracker) if segment.has_batches else _plan_records(segment)
            yield plan
            # Segments of the Records format grow one by one, but each was closed when the next was begun.
            if plan.cut_bytes and segment.has_batches:
                damaged = segment


def carry_out(plans: Sequence[RecoveryPlan], *, interval_bytes: int = INDEX_INTERVAL_BYTES) -> dict[str, list[Path]]:
    """Carry out the plans, all durable. Returns the copies of the originals, by the segment's name.

    Copies come first: if the disk is full, nothing has changed yet. Then the segments follow from the last to the
    first: until the damage is cut, it shows which segments lie after it. Raises StorageRefused.
    """
    kept = {}
    for plan in plans:
        changed = [_path_of(plan.segment)] if plan.cut_bytes and not plan.dropped else []
        if plan.lost_records:
            changed.append(_index_of(_path_of(plan.segment)))
        if changed:
            with os_errors(plan.segment.name):
                kept[plan.segment.name] = [_copy(path) for path in changed]
    for plan in reversed(plans):
        with os_errors(plan.segment.name):
            if plan.dropped:
                kept[plan.segment.name] = _set_aside(plan.segment)
            elif not plan.whole:
                _mend(plan, interval_bytes)
    return kept


def _mend(plan: RecoveryPlan, interval_bytes: int) -> None:
    path = _path_of(plan.segment)
    if plan.segment.has_batches:
        recover(
            path,
            index_interval_bytes=interval_bytes,
            open_transactions=plan.open_transactions or None,
            end_offset=plan.end_offset,
        )
    else:
        _cut_records(plan, path)


def _path_of(segment: ToolboxSegment) -> Path:
    """Return the file of the log or the records."""
    path = local_path(segment.storage, segment.path)
    if path is None:
        raise Refused(f"{segment.name}: only files can be cut.", hint="Copy the log to this machine.")
    return path


def _check(source: LogSource) -> None:
    if source.archive is not None:
        raise Refused(
            f"{source.archive.storage.uri} is an archive: its objects are never changed.",
            hint="To restore everything that is intact, set onDamagedArchive: Skip in the KafkaRestore; "
            "indexes are put back by `logkeep log index rebuild`.",
        )
    named = [segment for segment in source.segments if segment.path == source.single]
    if source.single and (not named or named[0].is_checkpoint):
        raise Refused(f"{display(source.storage, source.single)} is not a log.", hint="Name the .log, or its folder.")
    for segment in source.segments:
        _path_of(segment)
        recoverable = segment.has_batches or is_indexed(segment.layout)
        if not recoverable or segment.suffix == names.LOG_ZST:
            raise Refused(f"{segment.name}: a file of this format is complete or missing, never cut short.")


def _plan_log(segment: ToolboxSegment, following: ToolboxSegment | None, tracker: TransactionTracker) -> RecoveryPlan:
    path = _path_of(segment)
    end_offset = following.base_offset if following is not None else None
    opened = dict(tracker.open_transactions)

    def note(buf: memoryview, headers: Headers) -> None:
        at, header = headers[0]
        if header.is_control or header.is_transactional:
            tracker.observe(buf, at, header)

    with path.open("rb") as file:
        found = scan(file, base_offset=segment.base_offset, end_offset=end_offset, on_batches=note)
    stem = str(path).removesuffix(segment.suffix)
    missing = [suffix for suffix in (names.INDEX, names.TIMEINDEX) if not Path(stem + suffix).exists()]
    unindexed = bool(missing and not found.cut_bytes)
    return RecoveryPlan(
        segment,
        found.valid_bytes,
        found.valid_bytes,
        found.cut_bytes,
        found.next_offset,
        f"there is no {' and no '.join(missing)}" if unindexed else found.reason.rstrip("."),
        unindexed=unindexed,
        end_offset=end_offset,
        open_transactions=opened,
    )


def _plan_records(segment: ToolboxSegment) -> RecoveryPlan:
    path = _path_of(segment)
    try:
        found = recover_segment(path, _index_of(path), dry_run=True)
    except CorruptSegment as error:
        raise Refused(f"{segment.name}: {error.message}", hint=error.hint) from error
    lost = max(0, _entries(_index_of(path)) - found.records)
    named = [f"its index names {lost} more records, which are not there: restore them from a copy"] if lost else []
    if not found.records and (lost or segment.size != len(MAGIC)):
        reason = "; ".join(["it has no complete record", *named])
        empty = lost > 0 and not segment.size
        return RecoveryPlan(
            segment, 0, 0, segment.size, segment.base_offset, reason, unindexed=empty, lost_records=lost
        )
    at = found.cuts[0].position if found.cuts else found.size
    cut_bytes = found.size - found.valid_bytes
    unindexed = not cut_bytes and found.index.state is not IndexState.GOOD
    reasons = [found.index.what.rstrip(".")] if unindexed else [cut.what.rstrip(".") for cut in found.cuts]
    return RecoveryPlan(
        segment,
        at,
        found.valid_bytes,
        cut_bytes,
        found.next_offset if found.records else segment.base_offset,
        "; ".join([*reasons, *named]),
        unindexed=unindexed,
        lost_records=lost,
    )


def _entries(index: Path) -> int:
    """Return the number of whole entries of an index, whatever they say; 0 if there is no index."""
    return max(0, index.stat().st_size - 1) // ENTRY_BYTES if index.exists() else 0


def _cut_records(plan: RecoveryPlan, path: Path) -> None:
    """A segment that has nothing whole is taken away: the original tool begins its partition again, or continues in the
    segment before. It goes last of what knows it.
    """
    if plan.valid_bytes:
        recover_segment(path, _index_of(path))
        return
    index = path.with_name(partition_index_name(plan.segment.partition))
    if index.exists():
        there = segments_of(os.listdir(path.parent))[plan.segment.partition]
        left = [name for name in there if name.records != path.name]
        replace_file(index, pack_partition_index(left), index.stat())
    _index_of(path).unlink(missing_ok=True)
    sync_folder(path.parent)
    path.unlink()
    sync_folder(path.parent)


def _index_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(names.RECORDS) + names.RECORDS_INDEX)


def _set_aside(segment: ToolboxSegment) -> list[Path]:
    """The log goes last: without it no later run would look for the others."""
    path = _path_of(segment)
    stem = str(path).removesuffix(segment.suffix)
    kept = []
    for suffix in (SNAPSHOT, names.TXNINDEX, names.TIMEINDEX, names.INDEX, segment.suffix):
        file = Path(stem + suffix)
        if file.exists():
            kept.append(file.replace(_free_name(file)))
    sync_folder(path.parent)
    return kept[::-1]


def _copy(path: Path) -> Path:
    """Return a copy next to the file, durable on return."""
    kept = _free_name(path)
    fresh = path.with_name(f"{path.name}{ORIGINAL}.tmp")
    copy = kept if kept.exists() else fresh
    try:
        if copy is fresh:
            shutil.copy2(path, fresh)
        with copy.open("r+b") as file:
            give(file, path.stat())
            os.fsync(file.fileno())
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    copy.replace(kept)
    sync_folder(path.parent)
    return kept


def _free_name(path: Path) -> Path:
    """Return a name for what is kept of a file: one that is free, or that has the same bytes already."""
    for number in count(1):
        kept = path.with_name(path.name + ORIGINAL + (f".{number}" if number > 1 else ""))
        if not kept.exists() or filecmp.cmp(path, kept, shallow=False):
            return kept
    raise AssertionError
