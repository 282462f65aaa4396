"""Restores to a point compared with brute force: a partition is made of records that are known one by one, and what the
stream sends is looked up there. Producers, transactions, clocks, segments and the kind of each batch are random.
"""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.segment_check import check_segment
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.partition import open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey, UnreadableRange, survey, with_transactions
from logkeep_engine.archive.reading.transactions import fold
from logkeep_engine.archive.writing.record_writer import RecordSink
from logkeep_engine.contract.archive_format import Compression, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.log.batch import HEADER_SIZE, check_crc, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.model.point import ends_as_of
from logkeep_engine.restore.run.dry_run import preview_aborted
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.stream import stream_of
from logkeep_engine.restore.streams.clip import Clip, clipped
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.left_out import LeftOut
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.storage import Storage, open_uri
from tests.examples import number
from tests.unit.archive.build import ORDERS, write_segment
from tests.unit.log.batches import NOON, marker, with_header
from tests.unit.restore.tasks import task_of as restored

KEY = (ORDERS.topic_id, 0)
HOUR = 3_600_000
TRANSACTIONAL, HORIZON, APPEND = 0x10, 0x40, 0x08
TRANSACTIONS = (1, 2, 3)

Shown = tuple[int, int, bytes | None]  # offset, time, value


def _headed(data: bytes, body: bytes) -> bytes:
    """A batch with the header of another; its CRC is wrong."""
    return data[:8] + (HEADER_SIZE - 12 + len(body)).to_bytes(4, "big") + data[12:HEADER_SIZE] + body


@dataclass(eq=False)
class Txn:
    """A transaction as its records are known: `marker` is the offset of its marker, -1 if it is not archived."""

    producer: int
    first: int
    last: int
    commits: bool
    marker: int = -1


@dataclass
class Known:
    """A record of the log. `visible`: a consumer may see it."""

    offset: int
    time: int
    value: bytes
    txn: Txn | None = None
    visible: bool = True


@dataclass
class Log:
    """A partition's batches in order, with the records and transactions in them. `wrong`: the part of clocks that are
    wrong."""

    chance: random.Random
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    records: list[Known] = field(default_factory=list)
    txns: list[Txn] = field(default_factory=list)
    open: dict[int, Txn] = field(default_factory=dict)
    next: int = 0
    wrong: float = 0
    _sequences: dict[int, int] = field(default_factory=dict)

    def fill(self) -> None:
        """Write batches and markers."""
        chance = self.chance
        self.wrong = chance.choice([0, 0.02, 0.4])
        ends = chance.choice([0.05, 0.3])
        for _ in range(chance.choice([20, 80, 80, 160])):
            producer = self.chance.choice([1, 2, 3, 3, -1, -1, 9])
            if producer in self.open and chance.random() < ends:
                self.end(producer)
            else:
                self.write(producer)
            if self.chance.random() < 0.08:
                self.next += self.chance.randrange(1, 40)  # compaction
        if self.chance.random() < 0.6:
            for producer in list(self.open):
                self.end(producer)

    def end(self, producer: int) -> None:
        txn = self.open.pop(producer)
        txn.marker = self.next
        time = self._time()
        data = with_header(
            marker(self.next, producer, commit=txn.commits),
            producer_id=producer,
            attributes=0x30,
            base_timestamp=time,
            max_timestamp=time,
        )
        self.batches.append((self.next, data))
        self.records.append(Known(self.next, time, b"", visible=False))
        self.next += 1

    def write(self, producer: int) -> None:
        chance = self.chance
        shapes = ["plain", "plain", "plain", "gaps", "append", "horizon", "equal", "many", "large", "empty"]
        shape = chance.choice(shapes if producer in TRANSACTIONS else [*shapes, "legacy", "legacy", "untimed"])
        count = {"many": chance.randrange(65, 200), "large": 40}.get(shape, chance.randrange(1, 6))
        size = 30_000 if shape == "large" and chance.random() < 0.3 else chance.choice([1, 10, 300])
        step = 3 if shape == "gaps" else 1
        first = self.next + (shape == "horizon")
        offsets = range(first, first + step * count, step)
        times = [self._time() for _ in offsets]
        if shape in ("equal", "untimed"):
            times = [times[0] if shape == "equal" else -1] * count
        values = [(b"%d " % at).ljust(size, b"x") for at in offsets]
        records = [Record(*item, ((b"h", None),)) for item in zip(offsets, times, [b"k"] * count, values, strict=True)]
        txn = self._transaction(producer, offsets[-1]) if producer in TRANSACTIONS else None
        if shape == "legacy":
            data, times = self._legacy(records)
        else:
            data = self._batch(shape, producer, records)
        if shape == "append":
            times = [parse_header(data).max_timestamp] * count
        self.batches.append((self.next, data))
        if shape != "empty":
            self.records += [Known(*item, txn) for item in zip(offsets, times, values, strict=True)]
        self.next = offsets[-1] + 1

    def _batch(self, shape: str, producer: int, records: Sequence[Record]) -> bytes:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(records)
        base = self.next
        data = encode(
            records,
            codec=self.chance.choice([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY]),
            base_offset=base,
            producer_id=producer,
            transactional=producer in TRANSACTIONS,
            base_sequence=-1 if producer < 0 else sequence,
        )
        attributes = parse_header(data).attributes
        own = {"base_offset": base, "producer_id": producer}
        if shape == "append":
            return with_header(data, **own, attributes=attributes | APPEND, max_timestamp=self._time())
        if shape == "horizon":
            return self._with_horizon(data, records)
        if shape == "empty":
            return with_header(_headed(data, b""), **own, attributes=attributes & ~7, record_count=0)
        return data

    def _with_horizon(self, data: bytes, records: Sequence[Record]) -> bytes:
        """A batch as compaction leaves it: its first record is gone, the base timestamp is the delete horizon, and the
        times of the records are relative to it."""
        header = parse_header(data)
        gone = Record(header.base_offset, NOON + 48 * HOUR, None, None)
        whole = encode([gone, *records], codec=Codec.NONE, base_offset=header.base_offset)
        body = whole[len(encode([gone], codec=Codec.NONE, base_offset=header.base_offset)) :]
        return with_header(
            _headed(data, body),
            base_offset=header.base_offset,
            producer_id=header.producer_id,
            attributes=(header.attributes & TRANSACTIONAL) | HORIZON,
            record_count=len(records),
            last_offset_delta=records[-1].offset - header.base_offset,
            base_timestamp=gone.timestamp,
            max_timestamp=max(record.timestamp for record in records),
        )

    def _legacy(self, records: Sequence[Record]) -> tuple[bytes, list[int]]:
        magic = self.chance.choice([0, 1, 1])
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 24)
        for item in records:
            builder.append(item.offset, timestamp=item.timestamp if magic else None, key=None, value=item.value)
        return bytes(builder.build()), [item.timestamp if magic else -1 for item in records]

    def _transaction(self, producer: int, last: int) -> Txn:
        txn = self.open.get(producer)
        if txn is None:
            txn = Txn(producer, self.next, last, commits=self.chance.random() < 0.7)
            self.open[producer] = txn
            self.txns.append(txn)
        txn.last = last
        return txn

    def _time(self) -> int:
        off = self.chance.choice([-5000, 5000, -3 * HOUR, 3 * HOUR]) if self.chance.random() < self.wrong else 0
        return NOON + 20 * self.next + self.chance.randrange(0, 40) + off

    @property
    def stable(self) -> int:
        """The last stable offset: so far a backup archives."""
        return min((txn.first for txn in self.open.values()), default=self.next)

    def archived(self) -> list[Known]:
        """The records that are archived."""
        return [record for record in self.records if record.offset < self.stable]

    def segments(self, storage: Storage) -> list[SegmentEntry]:
        """The log as an archive, in segments of random length, of several runs."""
        chance, stable = self.chance, self.stable
        left = [item for item in self.batches if item[0] < stable]
        aborted = {}
        for txn in self.txns:
            if not txn.commits and txn.first < stable:
                known = [record.offset for record in self.archived() if record.txn is txn]
                here = 0 <= txn.marker < stable
                end = txn.marker if here else max(known, default=-1)
                if end >= 0:
                    aborted[end] = AbortedTxn(txn.producer, txn.first, end, txn.first)
        longest, epoch = chance.choice([4, 12, 30]), 1
        found: list[SegmentEntry] = []
        while left:
            cut = chance.randrange(1, longest)
            some, left = left[:cut], left[cut:]
            until = left[0][0] if left else stable
            found.append(
                write_segment(
                    storage,
                    [data for _, data in some],
                    epoch=epoch,
                    aborted=[aborted[end] for end in sorted(aborted) if some[0][0] <= end < until],
                    compression=chance.choice(list(Compression)),
                )
            )
            epoch += chance.choice([0, 0, 1])
        return found

    def wanted(self, clip: Clip) -> list[Shown]:
        """The records that a restore promises to bring, by looking at each of them."""
        archived = self.archived()
        latest: dict[Txn, int] = {}
        for record in archived:
            if record.txn is not None:
                latest[record.txn] = max(record.time, latest.get(record.txn, record.time))
        found: list[Shown] = []
        for record in archived:
            txn = record.txn
            if not record.visible or (txn is not None and not txn.commits):
                continue
            time = record.time if txn is None else latest[txn]
            place = record.offset if txn is None else txn.marker if 0 <= txn.marker < self.stable else 1 << 60
            if (
                (clip.end is None or place < clip.end)
                and (clip.since is None or time >= clip.since)
                and (clip.before is None or time < clip.before)
            ):
                found.append((record.offset, record.time, record.value))
        return found

    def first_since(self, moment: int) -> int | None:
        """The offset that a broker would find for a time."""
        return next((record.offset for record in self.archived() if record.time >= moment), None)


def task_of(storage: Storage, entries: Sequence[SegmentEntry], clip: Clip, end: int) -> RestoreTask:
    """The task of the partition, as the planner makes it."""
    state = ArchiveState()
    state.segments.replace_rows(KEY, b"".join(map(pack, entries)))
    view = clipped(state, lambda key: clip)
    own = {"topic_id": ORDERS.topic_id, "kept": ((0, end),), "clip": clip}
    return restored(storage, *view.segments.get(KEY, ()), plan={"topic_id": ORDERS.topic_id}, **own)


def sent(items: Sequence[Outgoing]) -> list[Shown]:
    """The records of the batches to send, with their source offsets."""
    found: list[Shown] = []
    index = 0
    for item in items:
        assert item.index == index
        assert item.data is not None
        data = b"".join(item.data)
        check_crc(data, 0, parse_header(data))
        assert len(data) == item.size
        offsets = [at for first, count in item.source for at in range(first, first + count)]
        records = decode(data)
        assert [record.offset for record in records] == list(range(item.count))
        assert len(offsets) == item.count
        found += [(at, record.timestamp, record.value) for at, record in zip(offsets, records, strict=True)]
        index += item.count
    return found


def facts(item: Outgoing) -> tuple[object, ...]:
    return item.index, item.count, item.size, item.source, item.append_times


def clips(log: Log, storage: Storage, entries: Sequence[SegmentEntry]) -> Iterator[Clip]:
    """The clips of random points. Where `asOf` ends is compared with the offset that brute force finds."""
    chance = log.chance
    state = ArchiveState()
    state.segments.replace_rows(KEY, b"".join(map(pack, entries)))
    times = sorted({record.time for record in log.archived()})
    edges = [times[0], times[-1], times[-1] + 1, 0]

    def moment() -> int:
        return chance.choice(edges) if chance.random() < 0.2 else chance.choice(times) + chance.choice([0, 0, 1, -1])

    for _ in range(3):
        at = moment()
        end = log.first_since(at)
        assert ends_as_of(storage, state, [ORDERS], at) == ({} if end is None else {KEY: end}), at
        yield Clip(end=end)
        yield Clip(end=chance.randrange(0, log.stable + 1))
        yield Clip(before=moment())
        yield Clip(since=moment())
        first, last = sorted((moment(), moment()))
        yield Clip(since=first, before=last + 1)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(number(5, deep=80)))
def test_a_point_gives_the_records_that_it_promises(seed: int, tmp_path: Path) -> None:
    log = Log(random.Random(seed))
    log.fill()
    if not log.archived():
        return
    storage = open_uri(tmp_path.as_uri())
    entries = log.segments(storage)
    for clip in clips(log, storage, entries):
        if clip.end == log.stable or clip == Clip():
            continue  # the planner has no such clip
        task = task_of(storage, entries, clip, log.stable)
        items = list(stream_of(task, 0))
        assert sent(items) == log.wanted(clip), clip
        for item in log.chance.sample(items, min(2, len(items))):
            done = item.index + item.count
            again = list(stream_of(task, done))
            assert list(map(facts, again)) == list(map(facts, items))
            assert [b"".join(it.data) for it in again if it.data is not None] == [
                b"".join(it.data or ()) for it in items if it.index >= done
            ]


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(number(4, deep=60)))
def test_records_of_aborted_transactions_are_counted(seed: int, tmp_path: Path) -> None:
    log = Log(random.Random(2000 + seed))
    log.fill()
    storage = open_uri(tmp_path.as_uri())
    entries = log.segments(storage)
    bases = [base for base, _ in log.batches]
    aborted = [record for record in log.archived() if record.txn is not None and not record.txn.commits]
    for end in (log.stable + 1, *sorted(log.chance.randrange(1, log.stable + 1) for _ in range(4))):
        task = task_of(storage, entries, Clip(end=end), log.stable)
        within = sum(bases[bisect_right(bases, record.offset) - 1] < end for record in aborted)
        left_out = LeftOut()
        items = list(stream_of(task, 0, left_out))
        assert left_out.aborted == within
        again = LeftOut()
        assert len(list(stream_of(task, items[-1].index if items else 0, again))) == len(items)
        assert again == left_out, "also of what has landed before"
        counted = preview_aborted([task.archived], 1 << 30)
        assert counted.counts == {KEY: within}
        assert (counted.bytes > 0) >= (within > 0)
        assert preview_aborted([task.archived], 0).counts == ({KEY: 0} if not counted.bytes else None)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(number(4, deep=60)))
def test_loss_takes_nothing_from_what_it_does_not_touch(seed: int, tmp_path: Path) -> None:
    """A segment is gone, and batches of others are damaged. Transactions with an offset there are not looked at: how
    they ended may not be known."""
    log = Log(random.Random(1000 + seed))
    log.fill()
    storage = open_uri(tmp_path.as_uri())
    entries = log.segments(storage)
    if len(entries) < 4:
        return
    gone = entries.pop(log.chance.randrange(1, len(entries) - 1))
    kept = [(0, gone.base_offset), (gone.next_offset, log.stable)]
    surveyed, damage = damaged(storage, tmp_path, log.chance.sample(entries, 2), entries, kept)
    lost = [(gone.base_offset, gone.next_offset), *((item.start, item.end) for item in damage)]

    def touched(record: Known) -> bool:
        txn = record.txn
        start = record.offset if txn is None else txn.first
        end = record.offset + 1 if txn is None else txn.marker + 1 if txn.marker >= 0 else log.stable
        return any(low < end and start < high for low, high in lost)

    unclear = {record.offset for record in log.archived() if touched(record)}
    for _ in range(6):
        times = sorted(log.chance.choice(log.archived()).time + log.chance.choice([0, 1]) for _ in range(2))
        for clip in (
            Clip(end=log.chance.randrange(1, log.stable)),
            Clip(before=times[0]),
            Clip(since=times[0], before=times[1] + 1),
        ):
            task = task_of(storage, entries, clip, log.stable)
            task = replace(task, archived=replace(task.archived, survey=surveyed, kept=tuple(kept)))
            items = list(stream_of(task, 0))
            found = sent(items)
            assert not [record for record in found if any(low <= record[0] < high for low, high in lost)]
            assert [record for record in found if record[0] not in unclear] == [
                record for record in log.wanted(clip) if record[0] not in unclear
            ], clip
            if items:
                done = log.chance.choice(items).index
                assert list(map(facts, stream_of(task, done))) == list(map(facts, items))


def damaged(
    storage: Storage, folder: Path, some: Sequence[SegmentEntry], entries: Sequence[SegmentEntry], kept: Sequence[Range]
) -> tuple[DamageSurvey, Sequence[UnreadableRange]]:
    """Change a byte of the logs of some segments. The survey of the partition is made as the planner makes it."""
    for entry in some:
        path = folder / (entry.stem("orders") + entry.log_suffix)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    said = []
    for entry in entries:
        checked = check_segment(storage, "orders", entry)
        assert bool(checked.damage) == (entry in some)
        assert checked.transactions is not None
        said.append(checked.transactions)
    found = survey(storage, "orders", sorted(some, key=lambda entry: entry.base_offset))
    index = list(open_partition(storage, "orders", entries).transaction_index())
    whole = with_transactions(found, fold(said, kept), index)
    return whole, whole.lost


@pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO])
@pytest.mark.parametrize("seed", range(3))
def test_points_of_records_without_batches(seed: int, layout: Layout, tmp_path: Path) -> None:
    chance = random.Random(seed)
    storage = open_uri(tmp_path.as_uri())
    every = [
        PlainRecord(at, None if chance.random() < 0.02 else NOON + at + chance.choice([0, 0, 0, 9, -9]), 0, None, b"v")
        for at in sorted(chance.sample(range(400), 200))
    ]
    entries = []
    for start in range(0, 200, 20):
        sink = RecordSink(storage, layout, "orders", ORDERS.topic_id, 0, 1, 0, 1 << 20, FormatOptions())
        assert sink.append(every[start : start + 20], 0) == 20
        entries.append(sink.finish())
    state = ArchiveState()
    state.segments.replace_rows(KEY, b"".join(map(pack, entries)))
    known = [(record.offset, -1 if record.timestamp is None else record.timestamp, record.value) for record in every]
    for _ in range(20):
        first, last = sorted(NOON + chance.randrange(-10, 420) for _ in range(2))
        end = next((offset for offset, time, _ in known if time >= first), None)
        assert ends_as_of(storage, state, [ORDERS], first) == ({} if end is None else {KEY: end})
        for clip in (Clip(end=end), Clip(before=first), Clip(since=first), Clip(since=first, before=last + 1)):
            task = task_of(storage, entries, clip, 400)
            task = replace(task, archived=replace(task.archived, batching=Batching(max_records=30)))
            assert sent(list(stream_of(task, 0))) == [
                (offset, time, value)
                for offset, time, value in known
                if (clip.end is None or offset < clip.end)
                and (clip.since is None or time >= clip.since)
                and (clip.before is None or time < clip.before)
            ], clip
