"""The kernel writes and reads the formats of records as the Python before it did, to the byte."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.avro import AvroEncoder, losses
from logkeep_engine.formats.avro_reader import read_object
from logkeep_engine.formats.base import SegmentFacts
from logkeep_engine.formats.records import RecordsEncoder, read_blocks
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.rows import as_rows
from tests.examples import scaled
from tests.unit.formats.avro_oracle import OldAvroEncoder, old_losses
from tests.unit.formats.avro_reader_oracle import read_old_object
from tests.unit.formats.records_oracle import OldEncoder, read_old_blocks

names = st.text(max_size=6) | st.binary(max_size=4).map(lambda key: key.decode("utf-8", "surrogateescape"))
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=70)), max_size=5) | st.lists(
    st.tuples(st.sampled_from(["a", "b", "\udcff", "\udcfe"]), st.none() | st.binary(max_size=3)), max_size=40
)
timestamps = st.sampled_from([(None, None), (None, 0), (-1, 0), (-1, 1), (None, 1)]) | st.tuples(
    st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**41), st.sampled_from([0, 1])
)
fields = st.none() | st.binary(max_size=30) | st.binary(min_size=60, max_size=300)


@st.composite
def rising(draw: st.DrawFn) -> list[PlainRecord]:
    offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 25))):
        timestamp, kind = draw(timestamps)
        records.append(PlainRecord(offset, timestamp, kind, draw(fields), draw(fields), tuple(draw(headers))))
        offset += draw(st.integers(1, 3))
    return records


def _parts(records: list[PlainRecord], size: int) -> Iterator[list[PlainRecord]]:
    return (records[at : at + size] for at in range(0, len(records), size))


@given(rising(), st.integers(1, 10), st.integers(1, 4000))
@settings(max_examples=scaled(100), deadline=None)
def test_segments_of_the_records_format_have_the_same_bytes_index_and_facts(
    records: list[PlainRecord], size: int, limit: int
) -> None:
    old, new = (bytearray(), bytearray()), (bytearray(), bytearray())
    before = OldEncoder(old[0].extend, old[1].extend, limit)
    after = RecordsEncoder(new[0].extend, new[1].extend, limit)
    for part in _parts(records, size):
        assert after.append(part) == before.append(part)
        assert (after.size, after.full) == (before.size, before.full)
    assert after.finish() == before.finish()
    assert new == old


@given(rising(), st.data())
@settings(max_examples=scaled(400, light=50), deadline=None)
def test_bytes_of_the_records_format_are_read_or_refused_in_the_same_words(
    records: list[PlainRecord], data: st.DataObject
) -> None:
    packed = bytearray()
    encoder = RecordsEncoder(packed.extend, lambda index: None, 2**40)
    encoder.append(records)
    encoder.finish()
    changed = _changed(packed, data)
    size = data.draw(st.sampled_from([None, len(changed), len(changed) + 3]))

    def old() -> Iterator[tuple[list[PlainRecord], list[int]]]:
        return ((block.records, block.positions) for block in read_old_blocks([changed], size=size))

    def new() -> Iterator[tuple[list[LogRecord], list[int]]]:
        return ((list(block.records), block.positions) for block in read_blocks([changed], size=size))

    assert _answer(new) == _answer(old)


def _changed(packed: bytearray, data: st.DataObject) -> bytes:
    changed = bytearray(packed)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]))
    return bytes(changed[: data.draw(st.just(len(changed)) | st.integers(0, len(changed)))])


def _answer(read: Callable[[], Iterator[object]]) -> list[object]:
    """All that is read, and the words after it."""
    found: list[object] = []
    try:
        found.extend(read())
    except (CorruptSegment, BatchTooLarge) as problem:
        found.append((type(problem), problem.message))
    return found


@given(rising(), st.integers(1, 10), st.integers(1, 4000), st.booleans(), st.sampled_from(AvroCodec))
@settings(max_examples=scaled(100), deadline=None)
@example([PlainRecord(at, 5, 0, b"k", bytes(400)) for at in range(2000)], 700, 600_000, True, AvroCodec.NONE)
def test_objects_of_the_avro_format_have_the_same_bytes_and_facts(
    records: list[PlainRecord], size: int, limit: int, strict: bool, codec: AvroCodec
) -> None:
    options = FormatOptions(codec=codec, compatibility=Compatibility.STRICT if strict else Compatibility.LOSSLESS)
    made: list[tuple[bytes, SegmentFacts]] = []
    for encoder_of in (OldAvroEncoder, AvroEncoder):
        packed = bytearray()
        encoder = encoder_of(packed.extend, limit, "orders", 7, options)
        for part in _parts(records, size):
            encoder.append(part)
        made.append((bytes(packed), encoder.finish()))
    assert made[0] == made[1]


@given(rising(), st.booleans(), st.data())
@settings(max_examples=scaled(400, light=50), deadline=None)
def test_objects_of_the_avro_format_are_read_or_refused_in_the_same_words(
    records: list[PlainRecord], strict: bool, data: st.DataObject
) -> None:
    options = FormatOptions(compatibility=Compatibility.STRICT if strict else Compatibility.LOSSLESS)
    packed = bytearray()
    encoder = AvroEncoder(packed.extend, 2**40, "orders", 0, options)
    encoder.append(records)
    encoder.finish()
    changed = _changed(packed, data)
    start = data.draw(st.sampled_from([0, records[len(records) // 2].offset, records[-1].offset + 1]))

    def old() -> Iterator[object]:
        found = chain.from_iterable(read_old_object([changed], topic="orders", partition=0, start_offset=start))
        return (record._replace(headers=tuple(record.headers)) for record in found)

    def new() -> Iterator[object]:
        return chain.from_iterable(read_object([changed], topic="orders", partition=0, start_offset=start))

    assert _answer(new) == _answer(old)


@given(rising())
@settings(max_examples=scaled(100, light=20), deadline=None)
def test_the_same_losses_are_counted(records: Sequence[LogRecord]) -> None:
    assert losses(records) == old_losses(records) == losses(as_rows(records))
