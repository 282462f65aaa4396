"""Tasks of a partition that is too large for one: each has a range of its offsets, or a share of its keys.

    map_keys     a range: the last record of each of its keys                   > an object of hashes and numbers
    merge_keys   a share of all hashes: which of these records a later range replaces     > an object of numbers
    copy_range   a range: what survives of it                                   > a part of the snapshot

Values never travel: hashes and numbers of records do, through objects in the folders of the snapshot. The hashes are
made with a secret that the tasks of a partition share and that is not kept. A range is of whole segments, or of whole
parts of the last snapshot, and becomes one part. Memory: as one task for a partition, whatever the partition's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.compaction.partition import (
    CompactionSetting,
    CompactionWork,
    Parts,
    SectionPass,
    place_of,
    time_of,
    transactions_of,
)
from logkeep_engine.contract.values import MAX_SEGMENT_BYTES
from logkeep_engine.errors import BatchTooLarge
from logkeep_engine.log.batch import Headers
from logkeep_engine.log.compaction import KEY_BUCKETS, PAIR_BYTES, Compactor, KeyLookup, OnKeys, ends_of
from logkeep_engine.log.key_comparison import KeySecret
from logkeep_engine.log.transactions import Spans
from logkeep_engine.tasks import TaskContext

_READ_AT_ONCE = PAIR_BYTES << 18  # whole pairs, since a lookup takes no half of one
_FIRST_ATTEMPT = 100


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of a partition: some of the parts of its last snapshot and of its segments, in order. `part` is the
    number of the range among `parts`, and of the part that it becomes; `number` is that of its progress, which may be
    NO_PROGRESS."""

    number: int
    whole: CompactionWork
    part: int
    parts: int
    entries: tuple[SegmentEntry, ...]
    secret: KeySecret = field(repr=False)


@dataclass(frozen=True, slots=True)
class KeysMapped:
    """The keys of a range: blocks in an object `path`, one after the other, and after them, from `marks` on, the
    marks of its records, two times `mark_bytes`. `blocks` has for each block where its buckets end (`ends_of`)."""

    path: str
    blocks: tuple[bytes, ...]
    marks: int
    mark_bytes: tuple[int, int]
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class KeyShare:
    """The keys of a partition in buckets [first, below). `mapped` are its ranges in order."""

    number: int
    whole: CompactionWork
    share: int
    first: int
    below: int
    mapped: tuple[KeysMapped, ...]


@dataclass(frozen=True, slots=True)
class KeysMerged:
    """The numbers of the records that a later range replaces, in an object `path`; those of range
    `i` lie from `at[i + 1]` to `at[i]`."""

    path: str
    at: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RangeCopy:
    """A range to copy: its own marks, and where the numbers lie of the records that a later range replaces: paths, and
    positions from and to. `leader_epoch` is that of the snapshot."""

    range: KeyRange
    mapped: KeysMapped
    replaced: tuple[tuple[str, int, int], ...]
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RangeCopied:
    """A part of the snapshot, and how many of its records are tombstones."""

    part: SegmentEntry
    records: int
    tombstones: int


def map_keys(setting: CompactionSetting, work: KeyRange, context: TaskContext) -> KeysMapped:
    """Write the keys of a range, and marks of its records. Raises as `compact_partition`."""
    path = _path(setting, work.whole, context, f"{work.part:05d}{names.KEYS}")
    epoch, blocks, position = 0, [], 0
    with setting.storage.writer(path) as made:

        def on_keys(keys: bytes, ends: bytes) -> None:
            nonlocal position
            position += made.write(keys)
            blocks.append(ends)

        compactor = _compactor(setting, work, on_keys)

        def note(stretch: memoryview, headers: Headers) -> None:
            nonlocal epoch
            epoch = max(epoch, headers[-1][1].leader_epoch)
            compactor.note(True, stretch)

        compactor.begin()
        SectionPass(setting, work.whole, context, work.number, compactor).over(work.entries, note)
        compactor.finish_notes()
        dead, tombstones = compactor.marks()
        made.write(dead)
        made.write(tombstones)
    return KeysMapped(path, tuple(blocks), position, (len(dead), len(tombstones)), epoch)


def merge_keys(setting: CompactionSetting, work: KeyShare, context: TaskContext) -> KeysMerged:
    """Write the numbers of the records of each range that a later one replaces."""
    storage = setting.storage
    path = _path(setting, work.whole, context, f"{work.share:05d}{names.DEAD}")
    lookup = KeyLookup()
    sizes = []
    with storage.writer(path) as made:
        # From the end of the log: a key that is known already has a later record.
        for mapped in reversed(work.mapped):
            size = 0
            for start, end in reversed(_places(mapped.blocks, work.first, work.below)):
                for at in range(start, end, _READ_AT_ONCE):
                    keys = storage.read_range(mapped.path, at, min(end, at + _READ_AT_ONCE))
                    try:
                        size += made.write(lookup.known_of(keys))
                    except MemoryError as error:
                        raise _too_many(work) from error
            sizes.append(size)
    positions = [0, *accumulate(sizes)]  # the last range comes first
    return KeysMerged(path, tuple(reversed(positions)))


def copy_range(setting: CompactionSetting, work: RangeCopy, context: TaskContext) -> RangeCopied:
    """Write the part of a range. Raises as `compact_partition`."""
    part, mapped, storage = work.range, work.mapped, setting.storage
    compactor = _compactor(setting, part)
    marks = storage.read_range(mapped.path, mapped.marks, mapped.marks + sum(mapped.mark_bytes))
    replaced = [storage.read_range(path, start, end) for path, start, end in work.replaced if start < end]
    compactor.mark(marks[: mapped.mark_bytes[0]], marks[mapped.mark_bytes[0] :], b"".join(replaced))
    del marks, replaced  # the compactor has copied them: a task need not hold both while it reads
    compactor.begin_copy()
    whole = part.whole
    place = place_of(setting, whole, _attempt(context), work.leader_epoch)
    ends = part.part == part.parts - 1
    with Parts(
        # A range becomes one part, however much is left of it: the numbers of parts are given out before.
        replace(setting, max_bytes=MAX_SEGMENT_BYTES),
        place,
        time_of(whole),
        only=part.part,
        ends=ends,
    ) as parts:
        SectionPass(setting, whole, context, part.number, compactor).over(
            part.entries, lambda stretch, _: parts.write_all(compactor.copy(True, stretch))
        )
        (made,) = parts.finish(whole.end - 1 if ends else part.entries[-1].next_offset - 1)
    return RangeCopied(made, compactor.records, compactor.tombstones)


def bucket_sizes(mapped: Sequence[KeysMapped]) -> list[int]:
    """Return the number of keys in each bucket of all ranges."""
    sizes = [0] * KEY_BUCKETS
    for item in mapped:
        for packed in item.blocks:
            for bucket, (before, end) in enumerate(pairwise([0, *ends_of(packed)])):
                sizes[bucket] += end - before
    return sizes


def _places(blocks: Sequence[bytes], first: int, below: int) -> list[tuple[int, int]]:
    """Return where the buckets [first, below) lie in each block of an object."""
    places, base = [], 0
    for packed in blocks:
        ends = ends_of(packed)
        start, end = ends[first - 1] if first else 0, ends[below - 1]
        places.append((base + start * PAIR_BYTES, base + end * PAIR_BYTES))
        base += ends[-1] * PAIR_BYTES
    return places


def _compactor(setting: CompactionSetting, work: KeyRange, on_keys: OnKeys | None = None) -> Compactor:
    whole = work.whole
    # To find transactions is to read the whole partition's: a range without any does not need them.
    has_some = any(entry.transactional for entry in work.entries)
    aborted, undecided = transactions_of(setting, whole) if has_some else (Spans(), Spans())
    return Compactor(
        now=setting.now,
        horizon=setting.now + whole.delete_retention,
        aborted=aborted,
        undecided=undecided,
        shared=work.secret,
        on_keys=on_keys,
    )


def _attempt(context: TaskContext) -> int:
    """Return the number of an attempt in names. An attempt at the whole partition that is no longer heard of may still
    write its parts, when another one has given up: these are not its names."""
    return _FIRST_ATTEMPT + context.attempt


def _path(setting: CompactionSetting, work: CompactionWork, context: TaskContext, name: str) -> str:
    folder = names.snapshots_folder(work.topic, work.topic_id, work.partition, setting.epoch, _attempt(context))
    return folder + name


def _too_many(work: KeyShare) -> BatchTooLarge:
    return BatchTooLarge(
        f"Topic {work.whole.topic} partition {work.whole.partition} has more keys than {KEY_BUCKETS} tasks can hold.",
        hint="Give tasks more memory with LOGKEEP_TASK_MEMORY, or leave the topic's log (compactedTopics: Log).",
    )
