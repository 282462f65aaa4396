"""A point leaves the records of batches and transactions that say so themselves."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.errors import ArchiveDamaged, CorruptBatch
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.codec import decode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.rows import as_rows
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.streams.archived import ArchivedPartition
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.merge import BatchStream
from logkeep_engine.restore.streams.records import Batching, RecordStream
from logkeep_engine.restore.streams.straddling import straddling
from logkeep_engine.storage import Storage, open_uri
from tests import examples
from tests.unit.archive.build import write_segment
from tests.unit.log.batches import NOON, hidden, marker, with_header

Shown = tuple[int, int, bytes | None]  # offset, time, value


def some(chance: random.Random, base: int) -> bytes:
    """A batch of any shape from offset `base` on, with times up to a minute around noon."""
    shape = chance.choice(["plain", "plain", "gaps", "append", "large", "many", "legacy", "hidden", "hidden"])
    count = {"large": 40, "many": 200}.get(shape, chance.randrange(1, 12))
    size = 60_000 if shape == "large" and chance.random() < 0.3 else chance.randrange(1, 900)
    times = [NOON + chance.randrange(-60_000, 60_000) for _ in range(count)]
    if shape == "legacy":
        builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 24)
        for at, time in enumerate(times):
            builder.append(base + at, timestamp=time, key=None, value=b"%d" % (base + at))
        return bytes(builder.build())
    offsets = range(base, base + count)
    if shape == "gaps":
        offsets = range(base, base + 3 * count, 3)
    records = [
        Record(offset, time, None, (b"%d " % offset).ljust(size, b"x"), ((b"h", b"1"), (b"h", None)))
        for offset, time in zip(offsets, times, strict=True)
    ]
    data = encode(records, codec=chance.choice(list(Codec)), base_offset=base)
    if shape == "append":
        header = parse_header(data)
        return with_header(data, attributes=header.attributes | 0x08, max_timestamp=NOON + chance.randrange(60_000))
    return hidden(data, chance.choice([-1, 0, times[0] - 1])) if shape == "hidden" else data


def shown(records: Sequence[LogRecord]) -> list[Shown]:
    return [(found.offset, -1 if found.timestamp is None else found.timestamp, found.value) for found in records]


def stored(batches: Sequence[bytes]) -> list[Shown]:
    found = []
    for data in batches:
        at = 0
        while at < len(data):  # legacy messages are batches of their own
            header = parse_header(data, at)
            found += shown(decode_records(memoryview(data)[at : at + header.size], header))
            at += header.size
    return found


def sent(items: Sequence[Outgoing]) -> list[Shown]:
    """The records of the batches to send, with their source offsets."""
    found = []
    index = 0
    for item in items:
        data = b"".join(item.data or ())
        check_crc(data, 0, parse_header(data))
        assert item.index == index
        offsets = [at for first, count in item.source for at in range(first, first + count)]
        records = decode(data)
        assert [record.offset for record in records] == list(range(item.count))
        found += [(at, record.timestamp, record.value) for at, record in zip(offsets, records, strict=True)]
        index += item.count
    return found


def clips(chance: random.Random, end: int) -> Iterator[Clip]:
    times = [NOON + chance.randrange(-70_000, 70_000) for _ in range(2)]
    yield Clip(end=chance.randrange(0, end + 2))
    yield Clip(before=times[0])
    yield Clip(since=times[0])
    yield Clip(since=min(times), before=max(times))
    yield Clip(end=chance.randrange(0, end + 2), since=min(times), before=max(times))


def is_in(clip: Clip, record: Shown) -> bool:
    offset, time, _ = record
    return (
        (clip.end is None or offset < clip.end)
        and (clip.since is None or time >= clip.since)
        and (clip.before is None or time < clip.before)
    )


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(examples.number(6, deep=120)))
def test_the_records_in_the_clip_are_sent_and_no_others(seed: int) -> None:
    chance = random.Random(seed)
    batches: list[bytes] = []
    base = 0
    for _ in range(40):
        batches.append(some(chance, base))
        base = stored(batches[-1:])[-1][0] + 1 + chance.choice([0, 0, 0, 5])
    every = stored(batches)
    limit = chance.choice([1 << 20, 100_000])
    for clip in clips(chance, base):

        def stream(together: int, done: int = 0, clip: Clip = clip) -> list[Outgoing]:
            made = BatchStream(producer_id=9, max_bytes=limit, aborted=Spans(), done=done, clip=clip)
            found: list[Outgoing] = []
            for at in range(0, len(batches), together):
                found += made.add(memoryview(b"".join(batches[at : at + together])))
            return [*found, *made.finish()]

        items = stream(1)
        assert sent(items) == [record for record in every if is_in(clip, record)], clip
        bounds = [(item.index, item.count, item.source) for item in items]
        for together in (3, 40):
            assert [(item.index, item.count, item.source) for item in stream(together)] == bounds
        if items:  # another attempt continues where it was
            done = items[len(items) // 2].index
            again = stream(7, done)
            assert [(item.index, item.count, item.source) for item in again] == bounds
            assert [item.data for item in again if item.data] == [item.data for item in items if item.index >= done]


def test_a_clip_of_everything_changes_nothing() -> None:
    chance = random.Random(5)
    batches = [some(chance, base) for base in range(0, 40_000, 1000)]
    made = [
        BatchStream(producer_id=9, max_bytes=1 << 20, aborted=Spans(), clip=clip)
        for clip in (None, Clip(before=NOON + 10**9), Clip(end=10**9))
    ]
    first, *others = [[*stream.add(memoryview(b"".join(batches))), *stream.finish()] for stream in made]
    assert all(found == first for found in others)


def test_damage_inside_of_a_batch_across_the_point_is_found() -> None:
    data = encode([Record(at, NOON, None, b"v") for at in range(3)], codec=Codec.NONE, base_offset=0)
    broken = with_header(data, last_offset_delta=5, record_count=6)
    stream = BatchStream(producer_id=9, max_bytes=1 << 20, aborted=Spans(), clip=Clip(end=4))
    with pytest.raises(CorruptBatch, match="offset 0"):
        list(stream.add(memoryview(broken)))


def test_damage_inside_of_a_batch_that_hides_its_times_is_found_where_a_time_decides() -> None:
    """Its header would leave it out, or bring all of it."""
    data = hidden(encode([Record(at, NOON, None, b"v") for at in range(3)], codec=Codec.NONE, base_offset=0))
    broken = with_header(data, last_offset_delta=5, record_count=6)
    for clip in (Clip(since=NOON), Clip(before=NOON + 1)):
        stream = BatchStream(producer_id=9, max_bytes=1 << 20, aborted=Spans(), clip=clip)
        with pytest.raises(CorruptBatch, match="offset 0"):
            list(stream.add(memoryview(broken)))


@pytest.mark.parametrize("seed", range(4))
def test_records_without_batches(seed: int) -> None:
    chance = random.Random(seed)
    records = [
        PlainRecord(at, None if at % 13 == 0 else NOON + chance.randrange(-60_000, 60_000), 0, None, b"%d" % at, ())
        for at in range(500)
    ]
    for clip in clips(chance, 500):
        stream = RecordStream(Batching(max_records=70), source="s", target="t", producer_id=9, limit=1 << 20, clip=clip)
        items = [item for at in range(0, 500, 90) for item in stream.add(as_rows(records[at : at + 90]))]
        items += stream.finish()
        assert sent(items) == [record for record in shown(records) if is_in(clip, record)]
        assert [item.count for item in items[:-1]] == [70] * (len(items) - 1)


class _Producers:
    """A log of transactions and plain records in any order; the oracle knows each record's transaction and its end."""

    def __init__(self, chance: random.Random) -> None:
        self.batches: list[bytes] = []
        self.records: list[tuple[int, int, int | None]] = []  # offset, time, number of the transaction
        self.ends: dict[int, tuple[int, bool]] = {}  # offset of the marker, whether it commits
        self.spans: dict[int, list[int]] = {}
        self._open: dict[int, int] = {}
        self._next = 0
        self._numbers = 0
        self._sequences: dict[int, int] = {}
        for _ in range(150):
            self._step(chance)
        for producer in list(self._open):
            self._end(producer, commit=True)

    def _step(self, chance: random.Random) -> None:
        producer = chance.randrange(1, 5)
        if producer in self._open and chance.random() < 0.25:
            self._end(producer, commit=chance.random() < 0.7)
            return
        count = chance.randrange(1, 4)
        times = [NOON + 100 * self._next + chance.choice([0, 0, -5000, 5000]) for _ in range(count)]
        offsets = range(self._next, self._next + count)
        number: int | None = None
        plain = producer == 4
        if not plain:
            if producer not in self._open:
                self._open[producer] = self._numbers
                self.spans[self._numbers] = [producer, self._next, self._next]
                self._numbers += 1
            number = self._open[producer]
            self.spans[number][2] = self._next + count - 1
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + count
        made = encode(
            [Record(at, time, None, b"v") for at, time in zip(offsets, times, strict=True)],
            codec=Codec.NONE,
            base_offset=self._next,
            producer_id=-1 if plain else producer,
            transactional=not plain,
            base_sequence=-1 if plain else sequence,
        )
        self.batches.append(hidden(made) if producer == 2 else made)
        self.records += [(at, time, number) for at, time in zip(offsets, times, strict=True)]
        self._next += count

    def _end(self, producer: int, *, commit: bool) -> None:
        self.ends[self._open.pop(producer)] = (self._next, commit)
        self.batches.append(marker(self._next, producer, commit=commit))
        self._next += 1

    @property
    def aborted(self) -> list[tuple[int, int, int]]:
        return [
            (span[0], span[1], span[2])
            for number, span in self.spans.items()
            if number not in self.ends or not self.ends[number][1]
        ]

    def wanted(self, clip: Clip) -> list[int]:
        latest: dict[int, int] = {}
        for _, time, number in self.records:
            if number is not None:
                latest[number] = max(time, latest.get(number, time))
        found = []
        for offset, own, number in self.records:
            time = own if number is None else latest[number]
            last = offset if number is None else self.ends[number][0]
            if (number is None or self.ends[number][1]) and is_in(clip, (last, time, None)):
                found.append(offset)
        return found

    @property
    def end(self) -> int:
        return self._next


def segments(storage: Storage, batches: Sequence[bytes], chance: random.Random) -> list[SegmentEntry]:
    found = []
    at = 0
    while at < len(batches):
        following = at + chance.randrange(1, 25)
        found.append(write_segment(storage, batches[at:following]))
        at = following
    return found


@pytest.mark.parametrize("seed", [3, 7, 8, 11, 52, 56])
def test_transactions_are_whole_or_not_at_all(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    log = _Producers(chance)
    storage = open_uri(tmp_path.as_uri())
    entries = segments(storage, log.batches, chance)
    partition = ArchivedPartition(storage, "orders", entries, [(0, log.end)])
    every = [Clip(end=end) for end in range(seed % 4, log.end + 1, 4)]
    for number in range(24):
        times = sorted(NOON + 100 * chance.randrange(-60, log.end + 60) for _ in range(2))
        every.append(
            [Clip(before=times[0]), Clip(since=times[0]), Clip(since=times[0], before=times[1] + 1)][number % 3]
        )
    for clip in every:
        across = straddling(partition, clip)
        aborted = Spans([*log.aborted, *across.left_out])
        stream = BatchStream(producer_id=9, max_bytes=1 << 20, aborted=aborted, clip=clip, whole=across.whole)
        items = [*stream.add(memoryview(b"".join(log.batches))), *stream.finish()]
        assert [record[0] for record in sent(items)] == log.wanted(clip), clip


def test_a_marker_that_is_not_archived_ends_nothing_else(tmp_path: Path) -> None:
    """Between the segments offsets are missing, and the marker of the first transaction may lie there."""
    storage = open_uri(tmp_path.as_uri())
    first = encode(
        [Record(0, NOON, None, b"v")],
        codec=Codec.NONE,
        base_offset=0,
        producer_id=1,
        transactional=True,
        base_sequence=0,
    )
    second = encode(
        [Record(9, NOON, None, b"v")],
        codec=Codec.NONE,
        base_offset=9,
        producer_id=1,
        transactional=True,
        base_sequence=1,
    )
    entries = [write_segment(storage, [first]), write_segment(storage, [second])]
    found = straddling(ArchivedPartition(storage, "orders", entries, [(0, 1), (9, 10)]), Clip(end=9))
    assert found.left_out == []
    found = straddling(ArchivedPartition(storage, "orders", entries, [(0, 1), (9, 10)]), Clip(end=10))
    assert found.left_out == [(1, 9, 9)]


@pytest.mark.parametrize("clip", [Clip(end=30), Clip(before=NOON + 30)])
def test_behind_damage_that_the_user_allows_it_goes_by_what_is_left(tmp_path: Path, clip: Clip) -> None:
    storage = open_uri(tmp_path.as_uri())

    def of(offset: int, producer: int, sequence: int) -> bytes:
        record = Record(offset, NOON + offset, None, b"v")
        return encode(
            [record], codec=Codec.NONE, base_offset=offset, producer_id=producer, transactional=True,
            base_sequence=sequence,
        )  # fmt: skip

    log = [of(0, 1, 0), of(10, 2, 0), of(20, 3, 0), marker(25, 1, commit=True), of(40, 2, 1), of(41, 3, 1)]
    log += [marker(50, 2, commit=True), marker(51, 3, commit=True)]
    entry = write_segment(storage, log)
    path = tmp_path / (entry.stem("orders") + entry.log_suffix)
    data = bytearray(path.read_bytes())
    data[len(log[0]) + 65] ^= 1  # the first batch of producer 2
    path.write_bytes(data)
    whole = ArchivedPartition(storage, "orders", [entry], [(0, 52)])
    with pytest.raises(ArchiveDamaged):
        straddling(whole, clip)
    found = straddling(replace(whole, survey=DamageSurvey((0,), ())), clip)
    assert [span[:2] for span in found.left_out] == [(3, 20)]
