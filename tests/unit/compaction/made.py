"""Snapshots for tests, made as a task makes them."""

from collections.abc import Sequence

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.snapshots import SnapshotEntry
from logkeep_engine.compaction.partition import (
    CompactionSetting,
    CompactionWork,
    PartitionCompacted,
    compact_partition,
)
from logkeep_engine.contract.archive_format import DigestAlgorithm
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.storage import Storage
from tests.runners import Context
from tests.unit.archive.build import ORDERS
from tests.unit.log.batches import NOON

DAY = 86_400_000


def setting_of(storage: Storage, *, epoch: int = 7, now: int = NOON, max_bytes: int = 1 << 30) -> CompactionSetting:
    return CompactionSetting(storage, epoch, now, max_bytes, DigestAlgorithm.BLAKE3)


def work_of(
    dirty: Sequence[SegmentEntry], last: SnapshotEntry | None = None, *, end: int = 0, number: int = 0
) -> CompactionWork:
    return CompactionWork(
        number=number,
        topic=ORDERS.name,
        topic_id=ORDERS.topic_id,
        partition=0,
        last=last,
        dirty=tuple(dirty),
        kept=tuple((entry.base_offset, entry.next_offset) for entry in dirty),
        end=end or max(entry.next_offset for entry in dirty),
        delete_retention=DAY,
    )


def compact(
    storage: Storage,
    dirty: Sequence[SegmentEntry],
    last: SnapshotEntry | None = None,
    *,
    now: int = NOON,
    attempt: int = 0,
    max_bytes: int = 1 << 30,
    end: int = 0,
) -> PartitionCompacted:
    setting = setting_of(storage, now=now, max_bytes=max_bytes)
    return compact_partition(setting, work_of(dirty, last, end=end), Context(attempt))


def row(offset: int, key: bytes | None, value: bytes | None) -> Record:
    return Record(offset, NOON + offset, key, value)


def plain(rows: Sequence[Record], codec: Codec = Codec.LZ4) -> bytes:
    return encode(rows, codec=codec, base_offset=rows[0].offset, leader_epoch=4)
