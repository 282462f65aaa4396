"""The one door to a partition: every layout through it, damage in its place, and a format that it is unknown yet."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Files, Layout, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower, SegmentTransactions
from logkeep_engine.archive.reading import layouts
from logkeep_engine.archive.reading.damage import Damage, OnDamage
from logkeep_engine.archive.reading.partition import PartitionReader, decoded, first_since, open_damaged, open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey, UnreadableRange
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import Compression, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.convert.plan import ConvertChunk
from logkeep_engine.convert.read import read_records
from logkeep_engine.convert.write import TargetSetting, copy_segment
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.batch import Stretch, headers_of, walk
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.spark.source_plan import SegmentRead
from logkeep_engine.spark.source_rows import read_rows
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, verify_segment, write_segment
from tests.unit.log.batches import NOON, batch, marker, with_header
from tests.unit.restore.tasks import task_of

TOY, TOY_LOG = cast(Layout, 98), cast(Layout, 99)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(tmp_path.as_uri())


def record_segment(storage: Storage, layout: Layout, *offsets: int) -> SegmentEntry:
    sink = RecordSink(storage, layout, "orders", ORDERS.topic_id, 0, 1, 0, 1 << 20, FormatOptions())
    assert sink.append([PlainRecord(at, NOON, 0, None, b"%d" % at, ()) for at in offsets]) == len(offsets)
    return sink.finish()


def segments(storage: Storage, layout: Layout, compression: Compression) -> list[SegmentEntry]:
    """Two segments with offsets 0 to 3 and 4 to 7."""
    if layout is not Layout.KAFKA:
        return [record_segment(storage, layout, *range(start, start + 4)) for start in (0, 4)]
    return [write_segment(storage, [batch(start, 2), batch(start + 2, 2)], compression=compression) for start in (0, 4)]


def offsets(reader: PartitionReader[Damage], start: int = 0) -> list[int | tuple[int, int] | None]:
    """Offsets of records, and what is lost between them."""
    found: list[int | tuple[int, int] | None] = []
    for item in reader.records(start):
        found += [item.lost] if isinstance(item, Damage) else [record.offset for record in item]
    return found


def spoil(storage: Storage, path: str, at: int) -> None:
    data = bytearray(storage.read(path))
    data[at] ^= 0xFF
    storage.put(path, bytes(data))


@pytest.mark.parametrize(
    ("layout", "compression"),
    [
        (Layout.KAFKA, Compression.PASSTHROUGH),
        (Layout.KAFKA, Compression.ZSTD),
        (Layout.RECORDS, Compression.PASSTHROUGH),
        (Layout.AVRO, Compression.PASSTHROUGH),
    ],
    ids=["Kafka", "zstd", "Records", "Avro"],
)
def test_records_of_every_layout_from_any_offset(storage: Storage, layout: Layout, compression: Compression) -> None:
    entries = segments(storage, layout, compression)
    strict, tolerant = open_partition(storage, "orders", entries), open_damaged(storage, "orders", entries)
    for start in range(9):
        read = [record.offset for some in strict.records(start) for record in some]
        assert read == list(range(start, 8)) == offsets(tolerant, start)
    assert strict.batched is (layout is Layout.KAFKA)
    assert not strict.transactions.aborted


def test_batches_from_the_one_that_holds_the_offset(storage: Storage) -> None:
    entries = segments(storage, Layout.KAFKA, Compression.PASSTHROUGH)
    strict, tolerant = open_partition(storage, "orders", entries), open_damaged(storage, "orders", entries)
    for start, bases in ((0, [0, 2, 4, 6]), (3, [2, 4, 6]), (4, [4, 6]), (7, [6]), (8, [])):
        assert [header.base_offset for _, headers in strict.batches(start) for _, header in headers] == bases
        found = [item for item in tolerant.batches(start) if not isinstance(item, Damage)]
        assert [header.base_offset for _, headers in found for _, header in headers] == bases
        for run, headers in found:  # positions are those in the view
            for position, header in headers:
                assert int.from_bytes(run[position : position + 8]) == header.base_offset


def test_segments_of_records_have_no_batches(storage: Storage) -> None:
    reader = open_partition(storage, "orders", [record_segment(storage, Layout.RECORDS, 0)])
    assert not reader.batched
    with pytest.raises(TypeError, match="has no batches"):
        next(reader.batches())


def test_aborted_records_and_markers_are_not_seen(storage: Storage) -> None:
    log = [
        batch(0, 2, producer_id=7, transactional=True, base_sequence=0),
        marker(2, 7, commit=False),
        batch(3, 1, producer_id=7, transactional=True, base_sequence=2),
        marker(4, 7, commit=True),
    ]
    entry = write_segment(storage, log, aborted=[AbortedTxn(7, 0, 2, 0)])
    reader = open_partition(storage, "orders", [entry], [(0, 5)])
    assert [record.offset for some in reader.records() for record in some] == [3]
    assert [(txn.first_offset, txn.last_offset) for txn in reader.transactions.aborted] == [(0, 2)]
    reported = open_partition(storage, "orders", [entry], aborted=())  # by a caller who knows better
    assert [record.offset for some in reported.records() for record in some] == [0, 1, 3]


def test_is_unknown_how_a_transaction_ended_whose_index_is_lost(storage: Storage) -> None:
    """Its marker is not archived, and only the index says that it was aborted."""
    log = [batch(0, 2, producer_id=7, transactional=True, base_sequence=0), batch(2, 1)]
    entry = write_segment(storage, log, aborted=[AbortedTxn(7, 0, 1, 0)])
    stem = entry.stem("orders")
    storage.delete([stem + names.TXNINDEX, stem + names.TXNPARTS])
    with pytest.raises(ArchiveDamaged, match="the object is missing"):
        list(open_partition(storage, "orders", [entry], [(0, 3)]).transactions.aborted)
    reader = open_damaged(storage, "orders", [entry], [(0, 3)])
    found = reader.transactions
    assert [(txn.first_offset, txn.last_offset) for txn in found.outcomes.undecided] == [(0, 1)]
    assert [(item.object, item.lost) for item in found.damage] == [(f"{storage.uri}/{stem}{names.TXNINDEX}", None)]
    assert offsets(reader) == [2]


def test_the_transactions_of_a_damaged_log(storage: Storage) -> None:
    """The marker of the second transaction is damaged: what the index says holds."""
    log = [
        batch(0, 1, producer_id=7, transactional=True, base_sequence=0),
        marker(1, 7, commit=True),
        batch(2, 1, producer_id=7, transactional=True, base_sequence=1),
        marker(3, 7, commit=False),
    ]
    entry = write_segment(storage, log, aborted=[AbortedTxn(7, 2, 3, 2)])
    storage.delete([entry.stem("orders") + names.TXNPARTS])
    spoil(storage, entry.stem("orders") + entry.log_suffix, entry.bytes - 1)
    found = open_damaged(storage, "orders", [entry], [(0, 4)]).transactions
    assert [(txn.first_offset, txn.last_offset) for txn in found.aborted] == [(2, 3)]
    assert [item.lost for item in found.damage] == [(3, 4)]


def test_damage_lies_between_what_is_whole(storage: Storage) -> None:
    first, second = segments(storage, Layout.KAFKA, Compression.PASSTHROUGH)
    spoil(storage, first.stem("orders") + first.log_suffix, first.bytes - 1)
    with pytest.raises(ArchiveDamaged, match=r"offset 2\): "):
        list(open_partition(storage, "orders", [first, second]).batches())
    reader = open_damaged(storage, "orders", [first, second])
    found = [
        item.lost if isinstance(item, Damage) else [header.base_offset for _, header in item[1]]
        for item in reader.batches()
    ]
    assert found == [[0], (2, 4), [4, 6]]
    assert offsets(reader) == [0, 1, (2, 4), 4, 5, 6, 7]
    assert offsets(reader, 3) == [(2, 4), 4, 5, 6, 7]


def test_damaged_records_are_reported_after_what_could_be_read(storage: Storage) -> None:
    first, second = segments(storage, Layout.RECORDS, Compression.PASSTHROUGH)
    storage.delete([second.stem("orders") + second.log_suffix])
    with pytest.raises(ArchiveDamaged, match="the object is missing"):
        list(open_partition(storage, "orders", [first, second]).records())
    assert offsets(open_damaged(storage, "orders", [first, second])) == [0, 1, 2, 3, (4, 8)]


def test_a_batch_that_cannot_be_taken_apart(storage: Storage) -> None:
    """Its CRC holds, and it says that it has more records than it has."""
    entry = write_segment(storage, [batch(0, 2), with_header(batch(2, 2), record_count=3), batch(4, 1)])
    with pytest.raises(ArchiveDamaged, match=r"offset 2\): ") as error:
        list(open_partition(storage, "orders", [entry]).records())
    assert "archived like this" in (error.value.hint or "")
    assert offsets(open_damaged(storage, "orders", [entry]))[-2:] == [(2, 4), 4]


class ToyFiles(Files):
    layout = TOY
    suffix = ".json"

    def stem(self, topic: str, entry: SegmentEntry) -> str:
        return f"toys/{topic}-{entry.partition}-{entry.base_offset}"

    def sizes(self, entry: SegmentEntry) -> dict[str, int]:
        return {self.suffix: entry.bytes}


class ToyLogFiles(ToyFiles):
    layout = TOY_LOG
    txnindex_bytes = 1  # it has an index, of whatever size


def toy(storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None) -> Any:
    """The content of a toy, None if it is damaged and `on_damage` was told."""
    path = entry.stem(topic) + entry.log_suffix
    try:
        return json.loads(storage.read(path))
    except ValueError as error:
        lost = (entry.base_offset, entry.next_offset)
        damage = Damage(f"{storage.uri}/{path}", topic, entry.partition, lost[0], "it is no toy", lost)
        if on_damage is None:
            raise ArchiveDamaged(f"{damage}.", hint="Write the toy again.") from error
        on_damage(damage)
        return None


class ToyLayout:
    """Segments as JSON: offsets and texts. The time of a record is its offset after noon."""

    batched = False
    records_format = None

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Stretch]:
        raise TypeError("a toy has no batches")

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        rows = toy(storage, topic, entry, on_damage)
        if rows is not None:
            yield [PlainRecord(at, NOON + at, 0, None, text.encode(), ()) for at, text in rows if at >= start]

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        return SegmentTransactions.without(entry)

    def transaction_index(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> Sequence[AbortedTxn]:
        return ()

    def first_since(self, storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
        return next((at for at, _ in toy(storage, topic, entry, None) if NOON + at >= time), None)


class ToyLog:
    """Segments as JSON: batches in hex, and the transactions that were aborted."""

    batched = True
    records_format = None

    def batches(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None
    ) -> Iterator[Stretch]:
        for text in (toy(storage, topic, entry, on_damage) or {}).get("batches", ()):
            data = bytes.fromhex(text)
            headers = headers_of(walk(data))
            if headers.next_offset > start:
                yield memoryview(data), headers

    def records(
        self, storage: Storage, topic: str, entry: SegmentEntry, start: int, on_damage: OnDamage | None, aborted: Spans
    ) -> Iterator[Sequence[LogRecord]]:
        return decoded(storage, topic, entry, self.batches(storage, topic, entry, start, on_damage), aborted, on_damage)

    def transactions(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> SegmentTransactions:
        follower = SegmentFollower(entry.base_offset, entry.epoch)
        for stretch, headers in self.batches(storage, topic, entry, 0, on_damage):
            follower.note(stretch, headers)
        return follower.finish(entry.next_offset, self.transaction_index(storage, topic, entry, on_damage))

    def transaction_index(
        self, storage: Storage, topic: str, entry: SegmentEntry, on_damage: OnDamage | None
    ) -> Sequence[AbortedTxn] | None:
        content = toy(storage, topic, entry, on_damage)
        return None if content is None else [AbortedTxn(*row) for row in content["aborted"]]

    def first_since(self, storage: Storage, topic: str, entry: SegmentEntry, time: int) -> int | None:
        late = (record for some in self.records(storage, topic, entry, 0, None, Spans()) for record in some)
        return next((record.offset for record in late if (record.timestamp or 0) >= time), None)


@pytest.fixture
def toys(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> list[SegmentEntry]:
    """Two segments of a format that is registered for one test: offsets 0 to 3 and 4 to 7."""
    monkeypatch.setitem(layouts.READERS, TOY, ToyLayout())
    written = [record_segment(storage, Layout.RECORDS, *range(at, at + 4)) for at in (0, 4)]
    times = [SegmentTimes(NOON + at, NOON + at + 3) for at in (0, 4)]
    entries = [replace(entry, files=ToyFiles(), times=time) for entry, time in zip(written, times, strict=True)]
    for entry in entries:
        rows = [(at, f"toy {at}") for at in range(entry.base_offset, entry.next_offset)]
        storage.put(f"toys/orders-0-{entry.base_offset}.json", json.dumps(rows).encode())
    return entries


@pytest.fixture
def toy_log(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> SegmentEntry:
    """A segment of batches in another format: an aborted transaction up to offset 2, then two records after noon."""
    monkeypatch.setitem(layouts.READERS, TOY_LOG, ToyLog())
    log = [
        batch(0, 2, producer_id=7, transactional=True, base_sequence=0),
        marker(2, 7, commit=False),
        batch(3, 2, timestamp=NOON + 50),
    ]
    entry = replace(write_segment(storage, log), files=ToyLogFiles())
    content = {"batches": [data.hex() for data in log], "aborted": [(7, 0, 2, 0)]}
    storage.put("toys/orders-0-0.json", json.dumps(content).encode())
    return entry


def test_a_format_is_a_module_and_a_line_in_the_registry(storage: Storage, toys: list[SegmentEntry]) -> None:
    reader = open_partition(storage, "orders", toys)
    assert [record.value for some in reader.records(3) for record in some] == [b"toy %d" % at for at in range(3, 8)]
    assert not reader.batched
    assert not reader.transactions.aborted
    assert [first_since(storage, "orders", toys[1], NOON + at) for at in (0, 6, 8)] == [4, 6, None]
    storage.put("toys/orders-0-0.json", b"broken")
    with pytest.raises(ArchiveDamaged, match="it is no toy"):
        list(reader.records())
    assert offsets(open_damaged(storage, "orders", toys)) == [(0, 4), 4, 5, 6, 7]


def test_a_new_format_of_batches_has_its_own_transaction_index(storage: Storage, toy_log: SegmentEntry) -> None:
    reader = open_partition(storage, "orders", [toy_log], [(0, 5)])
    assert reader.batched
    assert list(reader.transaction_index()) == list(reader.transactions.aborted) == [AbortedTxn(7, 0, 2, 0)]
    assert [record.offset for some in reader.records() for record in some] == [3, 4]
    assert first_since(storage, "orders", toy_log, NOON + 50) == 3
    storage.put("toys/orders-0-0.json", b"broken")
    with pytest.raises(ArchiveDamaged, match="it is no toy"):
        list(reader.transaction_index())
    damage, *rest = open_damaged(storage, "orders", [toy_log]).transaction_index()
    assert isinstance(damage, Damage)
    assert (damage.what, rest) == ("it is no toy", [])


def test_every_reader_reads_a_new_format(storage: Storage, toys: list[SegmentEntry]) -> None:
    first, second = toys
    assert rows(storage, SegmentRead("orders", second, 5, 7)) == [5, 6]
    assert rows(storage, SegmentRead("orders", second, 0, 8, first_time=NOON + 5, end_time=NOON + 7)) == [5, 6]
    converted = read_records(storage, "orders", 0, first)
    assert [record.offset for records in converted for record in records] == [0, 1, 2, 3]
    assert verify_segment(storage, "orders", first) == []
    storage.put("toys/orders-0-0.json", b'[[0, "alone"]]')
    assert "records is 1, the catalog says 4" in [damage.what for damage in verify_segment(storage, "orders", first)]


def test_spark_seeks_by_time_in_a_new_format_of_batches(storage: Storage, toy_log: SegmentEntry) -> None:
    aborted = tuple(open_partition(storage, "orders", [toy_log], [(0, 5)]).transactions.aborted)
    assert rows(storage, SegmentRead("orders", toy_log, 0, 5, aborted=aborted)) == [3, 4]
    assert rows(storage, SegmentRead("orders", toy_log, 0, 5, first_time=NOON + 51, aborted=aborted)) == [4]
    assert rows(storage, SegmentRead("orders", toy_log, 0, 5, end_time=NOON + 51, aborted=aborted)) == [3]


def rows(storage: Storage, read: SegmentRead) -> list[int]:
    """Offsets of what Spark reads."""
    return [record.offset for records, _ in read_rows(storage, read) for record in records]


def test_a_conversion_copies_a_new_format_of_batches(storage: Storage, toy_log: SegmentEntry, tmp_path: Path) -> None:
    target = open_uri((tmp_path / "copy").as_uri())
    chunk = ConvertChunk(0, toy_log.topic_id, 0, 0, 5, toy_log.bytes)
    entry = copy_segment(TargetSetting(target, FormatName.KAFKA, 1, 1 << 20), storage, "orders", toy_log, chunk, 0)
    assert entry is not None
    assert (entry.layout, entry.bytes, entry.digest) == (Layout.KAFKA, toy_log.bytes, toy_log.digest)
    assert list(open_partition(target, "orders", [entry]).transaction_index()) == [AbortedTxn(7, 0, 2, 0)]
    assert verify_segment(target, "orders", entry) == []


def test_a_restore_makes_batches_of_a_new_format(storage: Storage, toys: list[SegmentEntry]) -> None:
    survey = DamageSurvey((0,), (UnreadableRange(0, 4, "damaged"),))
    task = restore_of(storage, *toys)
    task = replace(task, archived=replace(task.archived, survey=survey, batching=Batching()))
    assert [item.source for item in stream_of(task, 0)] == [((4, 4),)]


def test_a_restore_leaves_out_what_the_index_of_a_new_format_names(storage: Storage, toy_log: SegmentEntry) -> None:
    assert [item.source for item in stream_of(restore_of(storage, toy_log), 0)] == [((3, 2),)]


def restore_of(storage: Storage, *entries: SegmentEntry) -> RestoreTask:
    return task_of(storage, *entries, plan={"topic_id": ORDERS.topic_id}, topic_id=ORDERS.topic_id)
