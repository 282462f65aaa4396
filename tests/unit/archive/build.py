"""Small archives for tests, written as a backup writes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import FILES, SegmentEntry
from logkeep_engine.archive.catalog.facts import (
    Coverage,
    GenerationChange,
    GenerationStep,
    Receipt,
    RunOutcome,
    TopicEntry,
)
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.maintenance.segment_check import check_all
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.layouts import reader_of
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.writing.log_writer import LogSegment, Packing
from logkeep_engine.archive.writing.packs import TaskPacks
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, Compression, DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.log.batch import headers_of, walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.storage import Storage

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
ORDERS = TopicEntry("orders", "aaaaaaaaaaaaaaaaaaaaa_", 2, 3, {"cleanup.policy": "delete"})
FAST = Timing(heartbeat=0.05, watch=0.4, poll=0.05)
PATIENT = Timing(heartbeat=0.05, watch=60, poll=0.05)
"""For who must find another run alive: a heartbeat may be late on a busy machine."""
TIME = 1_700_000_000_000


@dataclass(frozen=True)
class Batch:
    """`count` records from `offset` on, one millisecond apart."""

    offset: int
    count: int = 10
    codec: Codec = Codec.NONE

    def encode(self) -> bytes:
        records = [
            Record(self.offset + at, TIME + self.offset + at, b"key", b"value %d" % (self.offset + at), ())
            for at in range(self.count)
        ]
        return encode(records, codec=self.codec, base_offset=self.offset)


def changed(entry: SegmentEntry, **changes: Any) -> SegmentEntry:
    """The entry with other facts, be they of the entry, of its times or of its files. In another layout the facts that
    only the old one has are left out."""
    kind = FILES[changes.pop("layout", entry.layout)]
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    own = {name: changes.pop(name, getattr(entry.files, name)) for name in names}
    times = {item.name: changes.pop(item.name) for item in fields(entry.times) if item.name in changes}
    return replace(entry, times=replace(entry.times, **times), files=kind(**own), **changes)


PACK_BELOW = 8 << 20


def write_segment(
    storage: Storage,
    batches: Sequence[bytes],
    *,
    topic: TopicEntry = ORDERS,
    partition: int = 0,
    epoch: int = 1,
    attempt: int = 0,
    aborted: Sequence[AbortedTxn] = (),
    compression: Compression = Compression.PASSTHROUGH,
    digest: DigestAlgorithm = DEFAULT_DIGEST,
    packs: TaskPacks | None = None,
) -> SegmentEntry:
    """A segment of these batches with its indexes, named by nothing yet. In `packs` it is visible once they are
    committed."""
    data = b"".join(batches)
    headers = headers_of(walk(data))
    base = headers[0][1].base_offset
    packing = None if packs is None else Packing(packs, PACK_BELOW)
    place = topic.name, topic.topic_id, partition, base, epoch, attempt
    segment = LogSegment(storage, compression, *place, digest, packing)
    segment.builder.append(memoryview(data), headers)
    for transaction in aborted:
        segment.builder.add_aborted(transaction)
    return segment.finish()


def chunk(
    storage: Storage,
    start: int,
    end: int,
    *,
    partition: int = 0,
    epoch: int = 1,
    attempt: int = 0,
    topic: TopicEntry = ORDERS,
) -> Receipt:
    """The receipt of the task of [start, end): one segment of batches of ten records."""
    batches = [Batch(offset, min(10, end - offset)).encode() for offset in range(start, end, 10)]
    entry = write_segment(storage, batches, topic=topic, partition=partition, epoch=epoch, attempt=attempt)
    return Receipt((Coverage(topic.topic_id, partition, start, end),), (entry,))


def begin(storage: Storage, run_id: str = "run-1", **options: object) -> Writer:
    """A writer whose heartbeat is fast."""
    return begin_run(Archive.create_or_open(storage, CLUSTER), run_id, **{"wait": FAST, **options})  # type: ignore[arg-type]


def reread(storage: Storage, run_id: str, end: int) -> None:
    """A run that reads offsets [0, end) of ORDERS again and makes the generation active, as of a compacted topic."""
    key = (ORDERS.topic_id, 0)
    with begin(storage, run_id) as writer:
        number = generation_of(writer.state, key).last + 1
        writer.change_generations([GenerationChange(*key, number, GenerationStep.BEGIN, 0, end)])
        writer.commit(receipts=[replace(chunk(storage, 0, end, epoch=writer.epoch), generation=number)])
        writer.change_generations([GenerationChange(*key, number, GenerationStep.ACTIVATE, 0, end)])
        writer.end(RunOutcome.SUCCEEDED)


def archive_of(storage: Storage, *receipts: Receipt) -> Archive:
    """An archive with one finished run of these receipts."""
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    return Archive.open(storage)


def read_records(
    storage: Storage, topic: str, entry: SegmentEntry, *, start_offset: int = 0, on_damage: OnDamage | None = None
) -> Iterator[Sequence[LogRecord]]:
    return reader_of(entry).records(storage, topic, entry, start_offset, on_damage, Spans())


def transaction_index(storage: Storage, topic: str, entry: SegmentEntry) -> list[AbortedTxn]:
    return list(open_partition(storage, topic, [entry]).transaction_index())


def verify_segment(storage: Storage, topic: str, entry: SegmentEntry) -> list[Damage]:
    """The faults of one segment's objects; [] if it is whole."""
    return check_all(storage, topic, entry).damage
