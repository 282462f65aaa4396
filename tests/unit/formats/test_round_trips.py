"""Whatever records a topic holds: from any format into any other and back, they are the same records.

Bytes only: batches are made by the plain encoder, and taken apart and made again by the compiled codec.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.formats.avro import AvroEncoder
from logkeep_engine.formats.avro_reader import read_object
from logkeep_engine.formats.base import SegmentEncoder
from logkeep_engine.formats.records import RecordsEncoder
from logkeep_engine.log.batch import walk_checked
from logkeep_engine.log.codec import decode_records, encode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import LogRecord, PlainRecord
from logkeep_engine.log.records import Record, encode
from tests.examples import scaled
from tests.unit.formats.records_reading import read_segment

Files = list[bytes]

INT64 = st.integers(-(2**62), 2**62)
texts = st.sampled_from([b"", b"a", b"b", "schlüssel".encode(), b"\xff\xfe", b"\xed\xa0\x80"]) | st.binary(max_size=5)
headers = st.lists(st.tuples(texts, st.none() | st.just(b"") | st.binary(max_size=12)), max_size=4).map(tuple)
fields = st.none() | st.just(b"") | st.binary(max_size=40)
rows = st.tuples(st.integers(1, 4), st.just(-1) | st.integers(0, 2**41) | INT64, fields, fields, headers)


@st.composite
def topics(draw: st.DrawFn) -> list[Record]:
    """Records of create time with gaps between their offsets."""
    offset = draw(st.sampled_from([0, 2**31, 2**53 + 1])) - 1
    found = []
    for step, timestamp, key, value, pairs in draw(st.lists(rows, min_size=1, max_size=30)):
        offset += step
        found.append(Record(offset, timestamp, key, value, pairs))
    return found


def plain(records: Iterable[LogRecord]) -> list[PlainRecord]:
    """Comparable: codecs have classes and sequences of their own, and -1 for a timestamp that is missing."""
    return [
        PlainRecord(
            r.offset,
            None if r.timestamp == -1 else r.timestamp,
            r.timestamp_type,
            r.key,
            r.value,
            tuple((name, value) for name, value in r.headers),
        )
        for r in records
    ]


def as_kafka(records: Sequence[LogRecord], limit: int) -> Files:
    return [
        encode_records(records[at : at + limit], codec=Codec.ZSTD, base_offset=records[at].offset)
        for at in range(0, len(records), limit)
    ]


def from_kafka(batches: Files) -> list[LogRecord]:
    return [
        record
        for batch in batches
        for _, header in walk_checked(batch, 2**63)
        for record in decode_records(batch, header)
    ]


def encoded(records: Sequence[LogRecord], begin: Callable[[bytearray], SegmentEncoder]) -> Files:
    """The segments that the encoder makes of the records with its threshold."""
    files: Files = []
    at = 0
    while at < len(records):
        file = bytearray()
        encoder = begin(file)
        taken = encoder.append(records, at)
        facts = encoder.finish()
        assert (facts.base_offset, facts.next_offset) == (records[at].offset, records[at + taken - 1].offset + 1)
        assert facts.bytes == len(file)
        at += taken
        files.append(bytes(file))
    return files


def as_records(records: Sequence[LogRecord], limit: int) -> Files:
    return encoded(records, lambda file: RecordsEncoder(file.extend, lambda _: None, limit * 50))


def from_records(files: Files) -> list[LogRecord]:
    return [record for file in files for run in read_segment([file], size=len(file)) for record in run]


def as_avro(records: Sequence[LogRecord], limit: int) -> Files:
    codec = list(AvroCodec)[limit % len(AvroCodec)]
    options = FormatOptions(compatibility=Compatibility.LOSSLESS, codec=codec)
    return encoded(records, lambda file: AvroEncoder(file.extend, limit * 50, "orders", 3, options))


def from_avro(files: Files) -> list[LogRecord]:
    return [
        record
        for file in files
        for run in read_object([file], topic="orders", partition=3, size=len(file))
        for record in run
    ]


FORMATS: dict[str, tuple[Callable[[Sequence[LogRecord], int], Files], Callable[[Files], list[LogRecord]]]] = {
    "Kafka": (as_kafka, from_kafka),
    "Records": (as_records, from_records),
    "Avro": (as_avro, from_avro),
}
CHAINS = [chain for length in (1, 2, 3) for chain in product(FORMATS, repeat=length)]


@given(topics(), st.sampled_from(list(Codec)), st.sampled_from(CHAINS), st.sampled_from([1, 3, 1000]))
@example([Record(0, -1, None, None, ())], Codec.NONE, ("Records", "Avro", "Kafka"), 1)
@settings(max_examples=scaled(200), deadline=None)
def test_records_of_create_time_come_through_every_chain_of_formats(
    source: list[Record], codec: Codec, chain: tuple[str, ...], limit: int
) -> None:
    records = plain(decode_records(encode(source, codec=codec, base_offset=source[0].offset)))
    assert [record.offset for record in records] == [record.offset for record in source]
    carried: Sequence[LogRecord] = records
    for name in chain:
        write, read = FORMATS[name]
        carried = read(write(carried, limit))
        assert plain(carried) == records, name


@given(topics(), st.lists(st.sampled_from([None, 0, 1]), min_size=30, max_size=30), st.sampled_from([1, 3, 1000]))
@settings(max_examples=scaled(200), deadline=None)
def test_every_type_of_timestamp_comes_through_the_formats_of_records(
    source: list[Record], kinds: list[int | None], limit: int
) -> None:
    """Magic 0, log append time and create time side by side, as over the years in one topic."""
    created = plain(decode_records(encode(source, codec=Codec.NONE, base_offset=source[0].offset)))
    records = [
        record._replace(timestamp_type=kind, timestamp=None if kind is None else record.timestamp)
        for record, kind in zip(created, kinds, strict=False)
    ]
    for name in ("Records", "Avro"):
        write, read = FORMATS[name]
        assert plain(read(write(records, limit))) == records, name
    carried = from_avro(as_avro(from_records(as_records(records, limit)), limit))
    assert as_records(carried, limit) == as_records(records, limit)


@given(topics(), st.sampled_from([1, 3, 1000]))
@settings(max_examples=scaled(100, light=20), deadline=None)
def test_bytes_are_the_same_after_a_round_trip_through_the_other_formats(source: list[Record], limit: int) -> None:
    records = decode_records(encode(source, codec=Codec.NONE, base_offset=source[0].offset))
    for name, (write, read) in FORMATS.items():
        first = write(records, limit)
        for other in FORMATS.keys() - {name}:
            other_write, other_read = FORMATS[other]
            again = write(other_read(other_write(read(first), limit)), limit)
            if name == "Avro":  # a container has a random mark between its blocks
                assert plain(read(again)) == plain(read(first)), other
            else:
                assert again == first, other


@pytest.mark.parametrize("name", FORMATS)
def test_many_and_large_records_come_through(name: str) -> None:
    records = [
        PlainRecord(at, 1_700_000_000_000 + at, 0, b"k%d" % at, bytes([at % 256]) * (at % 300), ())
        for at in range(20_000)
    ]
    records.append(PlainRecord(30_000, 1_700_000_000_000, 0, None, bytes(3_000_000), (("large", bytes(70_000)),)))
    write, read = FORMATS[name]
    assert plain(read(write(records, 10_000))) == records
