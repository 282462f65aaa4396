"""The compaction of a partition against a plain oracle: a dict of keys, over records taken apart in Python."""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, parse_header, walk_checked
from logkeep_engine.log.compaction import Compactor
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import unpacked_most
from logkeep_engine.log.records import Record, decode, encode, sealed
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import TRANSACTIONAL, Spans
from tests.examples import scaled
from tests.unit.log.batches import NOON, marker, with_header
from tests.unit.log.hostile import peak_of

DAY = 86_400_000
HORIZON = 0x40
NONE = Spans()
SEVERAL = 1 << 11  # bytes of an offset map that has few of the keys


@dataclass(frozen=True)
class Log:
    """A log of batches, its aborted transactions, and those without a marker: producer id, first and last offset."""

    batches: tuple[bytes, ...]
    aborted: tuple[tuple[int, int, int], ...] = ()
    undecided: tuple[tuple[int, int, int], ...] = ()

    @property
    def spans(self) -> Spans:
        return Spans.of([AbortedTxn(producer, first, last, last) for producer, first, last in self.aborted])

    @property
    def open(self) -> Spans:
        return Spans(self.undecided)


def compacted(
    clean: Sequence[bytes],
    dirty: Sequence[bytes],
    *,
    now: int,
    spans: Spans | None = None,
    undecided: Spans | None = None,
    map_bytes: int = 1 << 20,
) -> tuple[list[bytes], Compactor]:
    """The batches that are left of both sections."""
    compactor = Compactor(
        now=now,
        horizon=now + DAY,
        aborted=spans or Spans(),
        undecided=undecided or Spans(),
        map_bytes=map_bytes,
    )
    while compactor.begin():
        for stretch in stretches(dirty):
            compactor.note(True, stretch)
        if compactor.is_divided:
            for stretch in stretches(clean):
                compactor.note(False, stretch)
    compactor.begin_copy()
    left = [made for stretch in stretches(clean) for made in compactor.copy(False, stretch)]
    left += [made for stretch in stretches(dirty) for made in compactor.copy(True, stretch)]
    return split(b"".join(left)), compactor


def stretches(batches: Sequence[bytes]) -> Iterator[memoryview]:
    """The batches, three at a time."""
    for at in range(0, len(batches), 3):
        yield memoryview(b"".join(batches[at : at + 3]))


def split(log: bytes) -> list[bytes]:
    found = list(walk_checked(log, 1 << 62))
    assert sum(header.size for _, header in found) == len(log)
    return [log[at : at + header.size] for at, header in found]


def expected(
    clean: Iterable[bytes], dirty: Iterable[bytes], *, now: int, spans: Spans, undecided: Spans
) -> list[tuple[BatchHeader, list[Record]]]:
    """The header and the surviving records of each batch that has any, by a dict of the keys."""
    seen = [
        (header, decode(batch), position)
        for position, batch in enumerate((*clean, *dirty))
        if not (header := parse_header(batch)).is_control and header not in spans
    ]
    last: dict[bytes, tuple[int, int]] = {}
    for header, records, position in seen:
        if header in undecided:
            continue
        last |= {record.key: (position, record.offset) for record in records if record.key is not None}
    left = []
    for header, records, position in seen:
        past = header.has_delete_horizon and header.base_timestamp <= now
        some = [
            record
            for record in records
            if record.key is None
            or header in undecided
            or (last[record.key] == (position, record.offset) and not (past and record.value is None))
        ]
        if some:
            left.append((header, some))
    return left


def check(
    clean: Sequence[bytes],
    dirty: Sequence[bytes],
    left: Sequence[bytes],
    *,
    now: int,
    spans: Spans,
    undecided: Spans = NONE,
) -> None:
    """Batches `left` are what the oracle says. What lost nothing has its bytes, but for the bit of a transaction that
    has ended."""
    plain = expected(clean, dirty, now=now, spans=spans, undecided=undecided)
    assert [decode(batch) for batch in left] == [records for _, records in plain]
    sources = {parse_header(batch): batch for batch in (*clean, *dirty)}
    for batch, (source, records) in zip(left, plain, strict=True):
        header = parse_header(batch)
        tombstones = [record for record in records if record.key is not None and record.value is None]
        if source.magic < 2:
            assert (header.magic, header.base_offset, header.codec) == (2, source.base_offset, source.codec)
        else:
            settled = not tombstones or source.has_delete_horizon or source in undecided
            bits = source.attributes & ~(0 if source in undecided else TRANSACTIONAL)
            same = sources[source]
            if bits != source.attributes:
                same = sealed(same[HEADER_SIZE:], source._replace(attributes=bits))
            assert (batch == same) is (len(records) == source.record_count and settled)
            changed = {"batch_length", "crc", "attributes", "base_timestamp", "max_timestamp", "record_count"}
            for name in set(BatchHeader._fields) - changed:
                assert getattr(header, name) == getattr(source, name), name
            assert header.attributes | HORIZON == bits | HORIZON
        assert header.max_timestamp >= max(record.timestamp for record in records)
        if tombstones and source not in undecided:
            assert header.has_delete_horizon
            assert header.base_timestamp == (source.base_timestamp if source.has_delete_horizon else now + DAY)


def message(offset: int, record: Record) -> bytes:
    """A message of magic 1."""
    fields = b"".join(
        struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
        for field in (record.key, record.value)
    )
    body = struct.pack(">bbq", 1, 0, record.timestamp) + fields
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


keys = st.one_of(st.none(), st.integers(0, 12).map(lambda number: b"key-%d" % number), st.just(b"hot"))
values = st.one_of(st.none(), st.binary(max_size=9))
headers = st.lists(st.tuples(st.just(b"h"), st.one_of(st.none(), st.binary(max_size=3))), max_size=2).map(tuple)
record = st.tuples(st.integers(1, 3), st.integers(-5000, 5000), keys, values, headers)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Batches of every codec and kind, with gaps between and in them, and transactions that were aborted or are
    open."""
    offset, batches, aborted, undecided = draw(st.integers(0, 1000)), [], [], []
    for number in range(draw(st.integers(1, 9))):
        first, rows = offset, []
        for gap, time, key, value, extra in draw(st.lists(record, min_size=1, max_size=8)):
            offset += gap
            rows.append(Record(offset, NOON + time, key, value, extra))
        kind = draw(
            st.sampled_from(["plain", "plain", "append", "horizon", "past", "txn", "abort", "open", "empty", "old"])
        )
        made = encode(
            rows,
            codec=draw(st.sampled_from(Codec)),
            base_offset=first,
            producer_id=number,
            producer_epoch=3,
            base_sequence=first,
            transactional=kind in ("txn", "abort", "open"),
            leader_epoch=number,
        )
        attributes = parse_header(made).attributes
        match kind:
            case "append":
                made = with_header(made, producer_id=number, attributes=attributes | 8, max_timestamp=NOON + number)
            case "horizon" | "past":
                horizon = NOON + (2 * DAY if kind == "horizon" else -DAY)
                times = {"base_timestamp": horizon, "max_timestamp": horizon + 20_000}
                made = with_header(made, producer_id=number, attributes=attributes | HORIZON, **times)
            case "abort":
                aborted.append((number, first, offset))
            case "open":
                undecided.append((number, first, 1 << 40))
            case "empty":
                made = sealed(b"", parse_header(made)._replace(record_count=0, attributes=0))
            case "old":
                made = message(first, rows[0])
        batches.append(made)
        if kind in ("txn", "abort"):
            offset += 1
            batches.append(marker(offset, number, commit=kind == "txn"))
        offset += draw(st.integers(1, 3))
    return Log(tuple(batches), tuple(aborted), tuple(undecided))


@settings(max_examples=scaled(400, light=50))
@given(logs(), st.sampled_from([SEVERAL, 1 << 20]))
def test_of_each_key_the_last_record_is_left(log: Log, map_bytes: int) -> None:
    known: dict[str, Any] = {"spans": log.spans, "undecided": log.open}
    left, compactor = compacted((), log.batches, now=NOON, **known, map_bytes=map_bytes)
    check((), log.batches, left, now=NOON, **known)
    assert compactor.records == sum(len(decode(batch)) for batch in left)
    found = [record for batch in left if parse_header(batch) not in log.open for record in decode(batch)]
    assert compactor.tombstones == sum(record.key is not None and record.value is None for record in found)


@settings(max_examples=scaled(400, light=50))
@given(logs(), st.data(), st.sampled_from([SEVERAL, 1 << 20]), st.integers(0, 3))
def test_what_was_compacted_before_loses_the_keys_that_came_again(
    log: Log, data: st.DataObject, map_bytes: int, days: int
) -> None:
    cut = data.draw(st.integers(0, len(log.batches)))
    clean, _ = compacted((), log.batches[:cut], now=NOON, spans=log.spans)
    known: dict[str, Any] = {"spans": log.spans, "undecided": log.open}
    dirty, now = log.batches[cut:], NOON + days * DAY
    left, _ = compacted(clean, dirty, now=now, **known, map_bytes=map_bytes)
    check(clean, dirty, left, now=now, **known)
    again, _ = compacted(left, (), now=now, **known)
    assert again == left


def test_a_map_that_is_too_small_gives_the_same_bytes() -> None:
    log = [
        encode(
            [Record(at * 50 + i, NOON, b"%d" % ((at * 50 + i) * 7919 % 3000), b"v") for i in range(50)],
            codec=Codec.NONE,
            base_offset=at * 50,
        )
        for at in range(200)
    ]
    one, whole = compacted(log[:60], log[60:], now=NOON, map_bytes=1 << 20)
    several, divided = compacted(log[:60], log[60:], now=NOON, map_bytes=SEVERAL)
    assert divided.is_divided
    assert not whole.is_divided
    assert one == several
    assert whole.records == divided.records == sum(map(len, map(decode, one)))


def test_one_key_with_half_of_all_records_and_keys_of_a_mebibyte() -> None:
    large = b"k" * (1 << 20)
    rows = [Record(at, NOON, b"hot" if at % 2 else large[: 1000 * at], b"%d" % at) for at in range(300)]
    log = [encode(rows[at : at + 30], codec=Codec.LZ4, base_offset=at) for at in range(0, 300, 30)]
    log.append(
        encode([Record(300, NOON, large, b"a"), Record(301, NOON, large, b"b")], codec=Codec.ZSTD, base_offset=300)
    )
    left, compactor = compacted((), log, now=NOON)
    check((), log, left, now=NOON, spans=Spans())
    assert compactor.records == 150 + 2


def test_keys_of_a_mebibyte_and_a_key_with_half_of_all_records_take_little_memory() -> None:
    log = [
        encode(
            [Record(at, NOON, b"%07d " % at * (1 << 17), b"v"), Record(at + 1, NOON, b"hot", b"%d" % at)],
            codec=Codec.ZSTD,
            base_offset=at,
        )
        for at in range(0, 120, 2)
    ]
    assert peak_of(lambda: compacted((), log * 2, now=NOON)) < 16 << 20


def test_a_batch_that_is_too_large_for_the_memory_of_a_task_is_named() -> None:
    huge = encode([Record(7, NOON, b"k", bytes(unpacked_most() + 1))], codec=Codec.ZSTD, base_offset=7)
    with pytest.raises(BatchTooLarge, match="batch at offset 7 unpacks to more than") as caught:
        compacted((), [huge], now=NOON)
    assert "LOGKEEP_TASK_MEMORY" in caught.value.hint


def test_a_batch_whose_records_are_not_what_its_header_says_is_named() -> None:
    whole = encode([Record(7, NOON, b"k", b"v")], codec=Codec.NONE, base_offset=7)
    with pytest.raises(CorruptBatch, match="batch at offset 7 is damaged"):
        compacted((), [with_header(whole, record_count=2)], now=NOON)


def test_large_batches_that_stay_keep_their_order_among_others() -> None:
    log = [
        encode(
            [
                Record(at, NOON, b"hot" if at % 4 == 2 else b"%d" % at, bytes(90_000 if at % 3 else 9)),
                Record(at + 1, NOON, b"other %d" % at, b"v"),
            ],
            codec=Codec.NONE,
            base_offset=at,
        )
        for at in range(0, 60, 2)
    ]
    left, _ = compacted((), log, now=NOON)
    check((), log, left, now=NOON, spans=Spans())
    assert len(left) == len(log)
