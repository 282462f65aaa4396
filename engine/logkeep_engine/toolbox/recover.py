"""Cutting a log after its last valid batch, as a broker does when it starts after a crash.

    for plan in plan_recovery(source): print(plan.segment.name, plan.cut_bytes, plan.reason)
    carry_out(plan)

A log ends with the last batch that is whole, whose CRC holds and whose offsets rise (`log.recovery`). Of a segment of
the Records format goes what is no record (`formats.records_folder`): its torn end, and what its index jumps over, since
the original tool goes on behind a torn record. What is behind the damage in a log goes too, later
segments of the partition included: a broker drops them, since after a crash nothing there was ever acknowledged as
durable. Everything that is cut away is kept under its name with `.orig` behind it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from logkeep_engine.archive import names
from logkeep_engine.archive.entry import Layout
from logkeep_engine.errors import CorruptSegment, Refused
from logkeep_engine.formats.records_folder import recover_segment
from logkeep_engine.log.batch import BatchHeader
from logkeep_engine.log.recovery import recover, scan
from logkeep_engine.log.segment import INDEX_INTERVAL_BYTES
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.toolbox.source import SNAPSHOT, Segment, Source, display

ORIGINAL = ".orig"


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be done to one segment. `cut_bytes` 0 and no `dropped`: it is whole.

    `at`: the position of the first byte that goes. `next_offset`: the one behind the last that stays. `dropped`: the
    segment lies behind the damage of another one, and goes as a whole. `open_transactions`: what was open at its start.
    """

    segment: Segment
    at: int
    valid_bytes: int
    cut_bytes: int
    next_offset: int
    reason: str
    dropped: bool = False
    open_transactions: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def whole(self) -> bool:
        return not self.cut_bytes and not self.dropped


def plan_recovery(source: Source) -> Iterator[Plan]:
    """What recovery would do to every segment; nothing is changed. Raises Refused for what is not recovered so: an
    archive's objects, objects of an object store, compressed logs and objects of the Avro format.
    """
    _check(source)
    for segments in source.partitions().values():
        tracker = TransactionTracker()
        damaged: Segment | None = None
        for segment in segments:
            if damaged is not None:
                reason = f"it is behind the damage of {damaged.name}"
                yield Plan(segment, 0, 0, segment.size, segment.base_offset, reason, dropped=True)
                continue
            plan = _plan_log(segment, tracker) if segment.has_batches else _plan_records(segment)
            yield plan
            # Segments of the Records format grow one by one, but each was closed when the next was begun.
            if not plan.whole and segment.has_batches:
                damaged = segment


def carry_out(plan: Plan, *, interval_bytes: int = INDEX_INTERVAL_BYTES) -> list[Path]:
    """Cut the segment as planned and make its indexes again, all durable; returns what was kept of the original.

    The original is copied before anything is cut, so a crash leaves it; running again finishes.
    """
    path = local_path(plan.segment)
    if plan.whole:
        return []
    if plan.dropped:
        return _set_aside(plan.segment)
    kept = path.with_name(path.name + ORIGINAL)
    if not kept.exists():
        copy = kept.with_name(kept.name + ".tmp")
        shutil.copy2(path, copy)
        copy.replace(kept)
    if plan.segment.has_batches:
        recover(path, index_interval_bytes=interval_bytes, open_transactions=plan.open_transactions or None)
    else:
        _cut_records(plan, path)
    return [kept]


def local_path(segment: Segment) -> Path:
    """The file of the log or the records."""
    return Path(unquote(urlsplit(segment.storage.uri).path), segment.path)


def _check(source: Source) -> None:
    if source.archive is not None:
        raise Refused(
            f"{source.archive.storage.uri} is an archive: its objects are never changed.",
            hint="To restore what is whole, set onDamagedArchive: Skip in the KafkaRestore; indexes are put back by "
            "`logkeep log index rebuild`.",
        )
    if source.single and not any(segment.path == source.single for segment in source.segments):
        raise Refused(f"{display(source.storage, source.single)} is no log.", hint="Name the .log, or its folder.")
    for segment in source.segments:
        if urlsplit(segment.storage.uri).scheme != "file":
            raise Refused(f"{segment.name}: only files can be cut.", hint="Copy the log to this machine.")
        if segment.layout is Layout.AVRO or segment.suffix == names.LOG_ZST:
            raise Refused(f"{segment.name}: a file of this format is whole or not there, it is never cut.")


def _plan_log(segment: Segment, tracker: TransactionTracker) -> Plan:
    opened = dict(tracker.open_transactions)

    def note(buf: memoryview, at: int, _position: int, header: BatchHeader) -> None:
        if header.is_control or header.is_transactional:
            tracker.observe(buf, at, header)

    with local_path(segment).open("rb") as file:
        found = scan(file, base_offset=segment.base_offset, on_batch=note)
    return Plan(
        segment,
        found.valid_bytes,
        found.valid_bytes,
        found.cut_bytes,
        found.next_offset,
        found.reason.rstrip("."),
        open_transactions=opened,
    )


def _plan_records(segment: Segment) -> Plan:
    path = local_path(segment)
    try:
        found = recover_segment(path, _index_of(path), dry_run=True)
    except CorruptSegment as error:
        raise Refused(f"{segment.name}: {error.message}", hint=error.hint) from error
    if not found.records:
        return Plan(segment, 0, 0, segment.size, segment.base_offset, "it has no whole record")
    at = found.cuts[0].start if found.cuts else found.size
    reason = "; ".join(cut.reason.rstrip(".") for cut in found.cuts)
    return Plan(segment, at, found.valid_bytes, found.size - found.valid_bytes, found.next_offset, reason)


def _cut_records(plan: Plan, path: Path) -> None:
    """A segment that has no whole record is taken away: a file with its first byte only would be one of no use."""
    if plan.valid_bytes:
        recover_segment(path, _index_of(path))
        return
    path.unlink()
    _index_of(path).unlink(missing_ok=True)


def _index_of(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(names.RECORDS) + names.RECORDS_INDEX)


def _set_aside(segment: Segment) -> list[Path]:
    path = local_path(segment)
    stem = str(path).removesuffix(segment.suffix)
    kept = []
    for suffix in (segment.suffix, names.INDEX, names.TIMEINDEX, names.TXNINDEX, SNAPSHOT):
        file = Path(stem + suffix)
        if file.exists():
            kept.append(file.replace(file.with_name(file.name + ORIGINAL)))
    return kept
