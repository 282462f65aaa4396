"""Erasures in small archives, run as the command runs them but with tasks in this process."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cramjam

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import LAYOUTS, Layout
from logkeep_engine.archive.catalog.facts import Coverage, Partition, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading import view
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.writing.record_files import write_partition_indexes
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import Compression, DigestAlgorithm, FormatName, FormatOptions
from logkeep_engine.contract.run import RunResult
from logkeep_engine.erasure.run import ErasureAsked, erase
from logkeep_engine.formats.avro import read_object
from logkeep_engine.log.batch import walk
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.records import Record, encode, unpack
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage, Storage
from logkeep_engine.storage.base import ANYTHING, ObjectWriter
from logkeep_engine.tasks import TaskRunner
from tests.runners import Context, HereRunner, Job, Runner
from tests.unit.archive.build import CLUSTER, FAST, ORDERS, TIME, write_segment

KEY: Partition = (ORDERS.topic_id, 0)
ALICE, BOB = b"alice-alice-alice", b"bob-bob-bob"
GONE = b"customer-17-asked-to-be-forgotten"
Seen = tuple[int, int | None, bytes | None, bytes | None]
"""Offset, timestamp, key, value."""


class Killed(BaseException):
    """Nobody catches it."""


class Mortal(LocalStorage):
    """Dies before it changes something for the `left`-th time, counted from 0; None: it lives. Heartbeats do not count:
    they come when they like."""

    def __init__(self, uri: str, left: int | None = None) -> None:
        super().__init__(uri)
        self.left = left

    def _step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def create(self, path: str, data: bytes) -> None:
        self._step()
        super().create(path, data)

    def put(self, path: str, data: bytes) -> None:
        if not path.endswith("heartbeat.json"):
            self._step()
        super().put(path, data)

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        for path, data in objects.items():
            self.put(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._step()
            super().delete([path])

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return _MortalWriter(super().writer(path, replaces=replaces), self)


@dataclass
class _MortalWriter(ObjectWriter):
    writes: ObjectWriter
    storage: Mortal

    def write(self, data: Any) -> int:
        return self.writes.write(data)

    def commit(self) -> None:
        self.storage._step()
        self.writes.commit()

    def abort(self) -> None:
        self.writes.abort()


class Inside(Runner):
    """Runs tasks one after another in this process, with the very storage of the run."""

    def perform(self, job: Job) -> None:
        for index, item in enumerate(job.work):
            job.on_result(index, job.function(item, Context()))


def erased(
    storage: Storage,
    *keys: bytes,
    run_id: str = "erase-1",
    runner: TaskRunner | None = None,
    topic: str = "orders",
    asked_by: str = "",
) -> RunResult:
    asked = ErasureAsked(topic, keys, asked_by)
    return erase(run_id, storage, asked, lambda: runner or HereRunner(), Reporter(run_id))


def erase_whole(storage: Storage, *keys: bytes, **options: Any) -> RunResult:
    """Erases, and the archive is whole after that without any trace of the keys, or the test fails."""
    result = erased(storage, *keys, **options)
    assert (result.outcome, result.message) == ("Succeeded", "")
    report = verify(Archive.open(storage))
    assert ([str(fault) for fault in report.faults], report.orphans, report.disagreements) == ([], [], [])
    assert [where for key in keys if key for where in traces(storage, key)] == []
    return result


def traces(storage: Storage, key: bytes) -> list[str]:
    """The objects that hold these bytes, decompressed. The bytes must be none that are elsewhere by chance."""
    return [info.path for info in storage.list() if any(key in piece for piece in _pieces(storage, info.path))]


def _pieces(storage: Storage, path: str) -> Iterator[bytes]:
    data = storage.read(path)
    yield data
    if path.endswith(".log.zst"):
        data = bytes(cramjam.zstd.decompress(data))
    if path.endswith((".log", ".log.zst", ".checkpoint")) and path.startswith("topics/"):
        for at, header in walk(data):
            if header.magic == 2:
                yield bytes(unpack(memoryview(data)[at : at + header.size], header))
    if path.endswith(".data"):
        for rows in read_object(iter([data])):
            yield b"".join(record.key or b"" for record in rows)


# ---- archives


def batch_of(offset: int, keys: Sequence[bytes | None], codec: Codec = Codec.NONE, **fields: Any) -> bytes:
    """A batch with a record of each key."""
    records = [
        Record(offset + at, TIME + offset + at, key, b"value %d" % (offset + at), ((b"h", b"%d" % at),))
        for at, key in enumerate(keys)
    ]
    return encode(records, codec=codec, base_offset=offset, **fields)


def archive_batches(
    storage: Storage,
    segments: Sequence[Sequence[bytes]],
    *,
    run_id: str = "backup-1",
    topics: Sequence[TopicEntry] = (ORDERS,),
    topic: TopicEntry = ORDERS,
    aborted: Sequence[Sequence[AbortedTxn]] = (),
    compression: Compression = Compression.PASSTHROUGH,
    digest: DigestAlgorithm = DigestAlgorithm.BLAKE3,
    partition: int = 0,
) -> Archive:
    """An archive whose partition has these segments of batches, each from where the last one ends."""
    archive = Archive.create_or_open(storage, CLUSTER)
    with begin_run(archive, run_id, wait=FAST) as writer:
        receipts = []
        end = 0
        for number, batches in enumerate(segments):
            entry = write_segment(
                storage,
                batches,
                topic=topic,
                epoch=writer.epoch,
                compression=compression,
                aborted=aborted[number] if aborted else (),
                digest=digest,
                partition=partition,
            )
            covered = Coverage(topic.topic_id, partition, end, entry.next_offset)
            end = entry.next_offset
            receipts.append(Receipt((covered,), (entry,)))
        writer.commit(topics=topics, receipts=receipts)
        writer.end(RunOutcome.SUCCEEDED)
    return archive


def archive_records(
    storage: Storage,
    format_name: FormatName,
    segments: Sequence[Sequence[tuple[int, bytes | None]]],
    options: FormatOptions | None = None,
) -> Archive:
    """The same of records (offset, key) in one of the formats of records."""
    archive = Archive.create_or_open(storage, CLUSTER, format_name)
    with begin_run(archive, "backup-1", wait=FAST) as writer:
        receipts = []
        for content in segments:
            layout: Layout = LAYOUTS[format_name]
            sink = RecordSink(
                storage, layout, "orders", *KEY, writer.epoch, 0, 1 << 30, options or FormatOptions()
            )  # fmt: skip
            sink.append([PlainRecord(at, TIME + at, 0, key, b"value %d" % at, ()) for at, key in content])
            entry = sink.finish()
            covered = Coverage(*KEY, content[0][0], content[-1][0] + 1)
            receipts.append(Receipt((covered,), (entry,)))
        writer.commit(topics=[ORDERS], receipts=receipts)
        if format_name is FormatName.RECORDS:
            write_partition_indexes(storage, writer.state, [KEY])
        writer.end(RunOutcome.SUCCEEDED)
    return archive


def records_in(storage: Storage, state: ArchiveState, key: Partition = KEY) -> list[Seen]:
    """The records that a restore of this state reads of a partition."""
    entries = list(state.segments.get(key, ()))
    found = open_partition(storage, state.topics[key[0]].name, entries, state.kept(*key)).records()
    return [(item.offset, item.timestamp, item.key, item.value) for rows in found for item in rows]


def seen(storage: Storage, key: Partition = KEY) -> list[Seen]:
    """The records that a new restore reads of a partition."""
    return records_in(storage, view.choose(Archive.open(storage)).state, key)


def without(records: Iterable[Seen], *keys: bytes) -> list[Seen]:
    return [item for item in records if item[2] not in keys]


def copied(storage: LocalStorage, path: Path) -> Path:
    """A copy of an archive."""
    shutil.copytree(storage.uri.removeprefix("file://"), path)
    return path
