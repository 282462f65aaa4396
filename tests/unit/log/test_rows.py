"""The kernel takes batches apart as the plain decoder does: the same records, the same refusals."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, BatchHeader, parse_header
from logkeep_engine.log.codec import check_offsets, decode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord
from logkeep_engine.log.records import Record, encode, iterate, listed, sealed, unpack
from logkeep_engine.log.rows import as_rows, rows_of_batch
from tests.examples import scaled

Plain = tuple[int, int, int | None, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]

times = st.integers(-(2**63), 2**63 - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000) | st.just(-1)
headers = st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=100)), max_size=4)
fields = st.none() | st.binary(max_size=200)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch as any producer or the cleaner may leave it."""
    base = draw(st.integers(0, 2**40))
    offset, made = base, []
    for _ in range(draw(st.integers(1, 30))):
        offset += draw(st.integers(0, 3) | st.integers(0, 10_000))
        made.append(Record(offset, draw(times), draw(fields), draw(fields), tuple(draw(headers))))
        offset += 1
    batch = encode(made, codec=draw(st.sampled_from(Codec)), base_offset=base)
    if draw(st.booleans()):
        header = parse_header(batch)
        stamped = header._replace(attributes=header.attributes | 0x08, max_timestamp=draw(times))
        batch = sealed(batch[HEADER_SIZE:], stamped)
    return batch


def plain(records: Sequence[LogRecord]) -> list[Plain]:
    return [
        (
            record.offset,
            -1 if record.timestamp is None else record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            tuple(record.headers),
        )
        for record in records
    ]


def oracle(batch: bytes) -> list[Plain]:
    """The records by the plain decoder."""
    header = parse_header(batch)
    kind = 1 if header.is_log_append_time else 0
    found: list[Plain] = [
        (
            record.offset,
            record.timestamp,
            kind,
            record.key,
            record.value,
            tuple((name.decode("utf-8", "surrogateescape"), value) for name, value in record.headers),
        )
        for record in listed(iterate(batch), header)
    ]
    check_offsets(decode_records(batch), header)
    return found


def kernel(batch: bytes) -> list[Plain]:
    header = parse_header(batch)
    return [record for rows in rows_of_batch(memoryview(batch), header) for record in plain(rows)]


@given(batches())
@settings(max_examples=scaled(300, light=50), deadline=None)
def test_every_batch_has_the_same_records(batch: bytes) -> None:
    assert kernel(batch) == oracle(batch)


@given(batches(), st.data())
@settings(max_examples=scaled(600, light=60), deadline=None)
def test_whatever_is_changed_inside_a_batch_is_read_or_refused_alike(batch: bytes, data: st.DataObject) -> None:
    header = parse_header(batch)
    body = bytearray(unpack(memoryview(batch), header))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    if data.draw(st.booleans()):
        body = body[: data.draw(st.integers(0, len(body)))]
    count = data.draw(st.just(header.record_count) | st.integers(0, 40))
    changed = sealed(bytes(body), header._replace(attributes=header.attributes & ~7, record_count=count))
    expected = _answer(oracle, changed)
    assert _answer(kernel, changed) == expected


def _answer(read: object, batch: bytes) -> object:
    assert callable(read)
    try:
        return read(batch)
    except (CorruptBatch, BatchTooLarge) as problem:
        return type(problem)


@pytest.mark.parametrize("count", [1, 5])
def test_what_is_wrong_with_a_batch_is_said_in_the_words_of_the_plain_decoder(count: int) -> None:
    records = [Record(10 + at, 5, b"k", b"v") for at in range(count)]
    batch = encode(records, codec=Codec.LZ4, base_offset=10)
    header = parse_header(batch)
    for altered in (header._replace(record_count=count + 1), header._replace(record_count=count - 1 or count + 2)):
        changed = sealed(batch[HEADER_SIZE:], altered)
        with pytest.raises(CorruptBatch) as reported:
            listed(iterate(changed), altered)
        with pytest.raises(CorruptBatch) as found:
            kernel(changed)
        assert found.value.message == reported.value.message


def test_offsets_that_do_not_rise_inside_their_batch_are_refused() -> None:
    batch = encode([Record(7, 5, None, b"v"), Record(8, 5, None, b"v")], codec=Codec.NONE, base_offset=7)
    header = parse_header(batch)
    short = sealed(batch[HEADER_SIZE:], header._replace(last_offset_delta=0))
    with pytest.raises(CorruptBatch, match="rising offsets from 7 to 7"):
        kernel(short)


def test_a_batch_that_unpacks_to_too_much_is_refused_before_its_first_record() -> None:
    batch = memoryview(encode([Record(0, 5, None, bytes(5000))], codec=Codec.ZSTD, base_offset=0))
    header = parse_header(batch)
    with pytest.raises(BatchTooLarge, match="offset 0 is too large"):
        next(rows_of_batch(batch, header, limit=1000))
    assert len(next(rows_of_batch(batch, header, limit=6000))) == 1


def test_a_large_batch_comes_in_parts_and_none_before_all_of_it_is_sound() -> None:
    count = 100_000
    body = b"".join(_smallest(delta) for delta in range(count))
    header = BatchHeader(3, 0, -1, 2, 0, 0, count - 1, 9, 9, -1, -1, -1, count)
    whole, damaged = sealed(body, header), sealed(body[:-1] + b"\x01", header)
    parts = [
        (len(rows), rows.first_offset, rows.last_offset)
        for rows in rows_of_batch(memoryview(whole), parse_header(whole))
    ]
    assert [size for size, _, _ in parts] == [32768, 32768, 32768, 1696]
    assert (parts[0][1], parts[1][1], parts[-1][2]) == (3, 32771, 100_002)
    with pytest.raises(CorruptBatch):
        next(rows_of_batch(memoryview(damaged), parse_header(damaged)))


def _smallest(delta: int) -> bytes:
    """A record without key, value and headers."""
    number, packed = 2 * delta, bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    inside = b"\x00\x00" + bytes(packed) + b"\x01\x01\x00"
    return bytes([2 * len(inside)]) + inside


@given(batches())
@settings(max_examples=scaled(100), deadline=None)
def test_rows_are_a_sequence_of_records(batch: bytes) -> None:
    rows = as_rows(decode_records(batch))
    records = list(rows)
    assert [rows[at] for at in range(len(rows))] == records == [rows[at - len(rows)] for at in range(len(rows))]
    assert rows.offsets() == [record.offset for record in records]
    assert (rows.first_offset, rows.last_offset) == (records[0].offset, records[-1].offset)
    for start in range(len(rows) + 1):
        assert list(rows[start:]) == records[start:]
        assert list(rows[:start]) == records[:start]
    middle = records[len(records) // 2].offset
    assert list(rows.between(middle, records[-1].offset)) == [
        record for record in records if middle <= record.offset < records[-1].offset
    ]
    with pytest.raises(IndexError):
        rows[len(rows)]
    assert plain(as_rows(records)) == plain(records)
