"""Conversions of small archives for tests, run as the command runs them but with tasks in this process."""

from pathlib import Path
from typing import Any

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Gap, GroupEntry, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.model import replace
from logkeep_engine.convert.loss import LossCount
from logkeep_engine.convert.read import read_records
from logkeep_engine.convert.run import Aborted, ConvertOptions, ConvertResult, run_convert
from logkeep_engine.convert.source import archive_source
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.report import Reporter
from logkeep_engine.storage import LocalStorage, Storage
from logkeep_engine.tasks import TaskRunner
from tests.runners import HereRunner, Job
from tests.unit.archive.build import ORDERS, TIME, begin, write_segment
from tests.unit.erasure.erasing import Killed
from tests.unit.log.batches import batch, marker, with_header


class DiesWithItsResult(HereRunner):
    """A runner that dies when its last task has written everything and it is unknown it yet."""

    def perform(self, job: Job) -> None:
        super().perform(replace(job, work=job.work[-1:], on_result=lambda *_: None))
        raise Killed


def folder(path: Path) -> LocalStorage:
    return LocalStorage(path.as_uri())


def convert(
    source: Storage,
    target: Storage,
    format_name: str,
    *,
    run_id: str = "convert-1",
    runner: TaskRunner | None = None,
    dry_run: bool = False,
    **options: Any,
) -> ConvertResult:
    return run_convert(
        run_id,
        lambda runner_factory, reporter: archive_source(source),
        target,
        ConvertOptions(FormatName(format_name), **options),
        lambda: runner or HereRunner(),
        Reporter(run_id),
        dry_run=dry_run,
    )


def converted(source: Storage, target: Storage, format_name: str, **options: Any) -> ArchiveState:
    """Converts, and the target's state after that: whole, or the test fails."""
    done = convert(source, target, format_name, **options)
    assert done.result.outcome == "Succeeded", done.result.message
    archive = Archive.open(target)
    assert [str(fault) for fault in verify(archive).faults] == []
    return archive.load()


Seen = tuple[int, int, int | None, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def contents(storage: Storage) -> dict[tuple[str, int], list[Seen]]:
    """The records that a reader of committed records sees of an archive, by topic and partition."""
    source = archive_source(storage)
    aborted = Aborted(source)
    found: dict[tuple[str, int], list[Seen]] = {}
    for topic_id, partition in source.segments:
        name = source.topic_names[topic_id]
        seen = found.setdefault((name, partition), [])
        for segment in source.segments[topic_id, partition]:
            for records in read_records(
                storage, name, partition, segment, aborted.of(topic_id, partition), LossCount(name, partition)
            ):
                seen += [
                    (
                        r.offset,
                        -1 if r.timestamp is None else r.timestamp,
                        r.timestamp_type,
                        r.key,
                        r.value,
                        [*r.headers],
                    )
                    for r in records
                ]
    return found


def entries(storage: Storage) -> list[SegmentEntry]:
    """All segments that the archive has."""
    return [entry for segments in Archive.open(storage).load().segments.values() for entry in segments]


def logs(storage: Storage) -> dict[tuple[str, int, int], tuple[bytes, list[AbortedTxn]]]:
    """The logs of an archive of format Kafka, and what their transaction indexes say, by topic, partition and base
    offset."""
    state = Archive.open(storage).load()
    found = {}
    for (topic_id, partition), segments in state.segments.items():
        topic = state.topics[topic_id].name
        for entry in segments:
            reader = open_partition(storage, topic, (entry,))
            log = b"".join(bytes(stretch) for stretch, _ in reader.batches())
            found[topic, partition, entry.base_offset] = (log, list(reader.transaction_index()))
    return found


def tricky(storage: Storage) -> Archive:
    """An archive of Kafka's batches with all that a format may trip over.

    Topic `orders`, partition 0: every codec, headers of all kinds, tombstones, gaps, append time, times that are
    missing, a committed and an aborted transaction with their markers. Partition 1: nothing but an aborted one.
    Topic `notes` has a hole that was lost, and groups have positions.
    """
    with begin(storage) as writer:
        receipts = [_orders(storage), _only_aborted(storage), *_notes(storage)]
        writer.commit(topics=[ORDERS, NOTES], receipts=receipts)
        groups = [
            GroupEntry("billing", "orders", ORDERS.topic_id, 0, 40, 3, "meta"),
            GroupEntry("billing", "notes", NOTES.topic_id, 0, 12),
        ]
        writer.end(RunOutcome.SUCCEEDED, groups=groups)
    return Archive.open(storage)


NOTES = TopicEntry("notes", "bbbbbbbbbbbbbbbbbbbbb_", 1, 1, {"cleanup.policy": "compact"})
ABORTED_PRODUCER = 77


def _orders(storage: Storage) -> Receipt:
    key, header = b"key", ((b"h", b"1"), (b"h", None), (b"\xff\xfe", b""), (b"", b"empty"))
    first = [
        encode(
            [Record(0, TIME, key, b"v", header), Record(1, TIME + 1, None, None, ())], codec=Codec.NONE, base_offset=0
        ),
        encode([Record(2 + n, TIME + n, key, b"x" * 50, ()) for n in range(5)], codec=Codec.GZIP, base_offset=2),
        encode([Record(7, -1, key, b"", ()), Record(9, TIME, b"", b"gap", ())], codec=Codec.SNAPPY, base_offset=7),
        with_header(batch(10, 3, codec=Codec.LZ4), base_offset=10, attributes=0x0B, max_timestamp=TIME + 500),
        encode([Record(13 + n, TIME - n, key, b"z" * n, header) for n in range(4)], codec=Codec.ZSTD, base_offset=13),
    ]
    second = [
        batch(20, 2, producer_id=55, transactional=True),
        marker(22, 55, commit=True),
        batch(23, 2, producer_id=ABORTED_PRODUCER, transactional=True),
        batch(25, 1, producer_id=9),
        marker(26, ABORTED_PRODUCER, commit=False),
        batch(27, 5),
    ]
    aborted = [AbortedTxn(ABORTED_PRODUCER, 23, 26, 23)]
    entries = (write_segment(storage, first), write_segment(storage, second, aborted=aborted))
    return Receipt((Coverage(ORDERS.topic_id, 0, 0, 40),), entries)


def _only_aborted(storage: Storage) -> Receipt:
    batches = [batch(0, 2, producer_id=ABORTED_PRODUCER, transactional=True), marker(2, ABORTED_PRODUCER, commit=False)]
    entry = write_segment(storage, batches, partition=1, aborted=[AbortedTxn(ABORTED_PRODUCER, 0, 2, 0)])
    return Receipt((Coverage(ORDERS.topic_id, 1, 0, 3),), (entry,))


def _notes(storage: Storage) -> list[Receipt]:
    after = write_segment(storage, [batch(8, 4)], topic=NOTES)
    return [
        Receipt(
            (Coverage(NOTES.topic_id, 0, 8, 12),), (after,), (Gap(NOTES.topic_id, 0, 0, 8, "deleted by retention"),)
        )
    ]


ORDERS_OFFSETS = [*range(8), *range(9, 17), 20, 21, 25, *range(27, 32)]
"""The records that a consumer of committed records sees of partition 0 of `orders`."""
