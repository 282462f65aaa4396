"""Objects of the Avro format are written and read to the byte, and any Avro reader resolves them."""

import itertools
import json
from collections.abc import Iterator
from io import BytesIO

import fastavro
import pytest
from fastavro.read import SchemaResolutionError
from fastavro.schema import to_parsing_canonical_form
from hypothesis import example, given, settings
from hypothesis import strategies as st

from logkeep_engine.contract.archive_format import AvroCodec, Compatibility, FormatOptions
from logkeep_engine.errors import CorruptSegment
from logkeep_engine.formats.avro import BLOCK_BYTES, AvroEncoder, losses, read_object
from logkeep_engine.formats.avro_schema import LOSSLESS, PUBLISHED
from logkeep_engine.formats.base import LogRecord, LossKind, SegmentFacts
from logkeep_engine.log.consumed import PlainRecord
from tests.examples import scaled
from tests.unit.formats import avro_golden
from tests.unit.formats.avro_golden import NOON, golden
from tests.unit.formats.avro_objects import (
    LIMIT,
    by_fastavro,
    encoded,
    options,
    plain,
    read,
    rising_records,
    written_by_fastavro,
)

STRICT = options("strict")
GOLDEN = {"strict": avro_golden.STRICT, "lossless": avro_golden.LOSSLESS, "other": avro_golden.OTHER}
CODECS = [str(codec) for codec in AvroCodec]


def large(count: int, size: int = 1000) -> list[PlainRecord]:
    return [PlainRecord(7 + at, NOON + at, 0, b"k%d" % at, bytes([at % 251]) * size) for at in range(count)]


# ---- the golden objects


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_object_is_read_as_its_table_says(kind: str) -> None:
    assert read(golden(kind)) == [plain(record) for record in GOLDEN[kind]]


@pytest.mark.parametrize("kind", ["strict", "lossless"])
def test_golden_object_is_written_to_the_byte(kind: str) -> None:
    data, _ = encoded(GOLDEN[kind], options(kind))
    assert data.hex(" ") == golden(kind).hex(" ")


def test_facts_of_the_golden_object() -> None:
    _, facts = encoded(GOLDEN["lossless"])
    assert facts == SegmentFacts(
        base_offset=0,
        next_offset=2**32 + 1,
        records=6,
        blocks=1,
        bytes=len(golden("lossless")),
        index_bytes=0,
        min_timestamp=0,
        max_timestamp=2**63 - 1,
        gaps=True,
        append_time=True,
        largest_record=len("h" + "a1" + "a") + len("é".encode()) + 2 + 1,
    )


@pytest.mark.parametrize("kind", GOLDEN)
def test_pieces_of_any_size_give_the_same_records(kind: str) -> None:
    data = golden(kind)
    for piece in range(1, len(data) + 1, 7):
        assert read(data, piece) == [plain(record) for record in GOLDEN[kind]]


def test_buffer_of_a_piece_may_be_filled_again() -> None:
    def pieces() -> Iterator[memoryview]:
        buffer = bytearray(10)
        data = golden("lossless")
        for at in range(0, len(data), len(buffer)):
            part = data[at : at + len(buffer)]
            buffer[: len(part)] = part
            yield memoryview(buffer)[: len(part)]

    assert [plain(record) for run in read_object(pieces()) for record in run] == [
        plain(record) for record in GOLDEN["lossless"]
    ]


def test_file_is_read_without_being_told_topic_and_partition() -> None:
    data, _ = encoded(GOLDEN["lossless"], topic="a.topic_of-ours", partition=70_000)
    runs = list(read_object(BytesIO(data)))
    assert [plain(record) for run in runs for record in run] == [plain(record) for record in GOLDEN["lossless"]]


# ---- writing


@pytest.mark.parametrize("compatibility", ["lossless", "strict"])
@pytest.mark.parametrize("codec", CODECS)
@given(records=rising_records())
@settings(max_examples=scaled(25, light=4), deadline=None)
def test_what_is_written_is_read(compatibility: str, codec: str, records: list[PlainRecord]) -> None:
    data, facts = encoded(records, options(compatibility, codec))
    found = read(data)
    if compatibility == "lossless":
        assert found == records
    else:
        assert [(record.offset, record.key, record.value) for record in found] == [
            (record.offset, record.key, record.value or b"") for record in records
        ]
        if not losses(records):
            assert found == records
    assert (facts.bytes, facts.records, facts.base_offset) == (len(data), len(records), records[0].offset)
    assert facts.gaps == (facts.next_offset - facts.base_offset != len(records))


@given(rising_records(), st.data())
@settings(max_examples=scaled(50), deadline=None)
def test_bytes_do_not_depend_on_how_records_are_handed_over(records: list[PlainRecord], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    whole, facts = encoded(records)
    parts = bytearray()
    encoder = AvroEncoder(parts.extend, LIMIT, "orders", 0, options())
    assert encoder.append(records[:cut]) == cut
    assert encoder.append(records, cut) == len(records) - cut
    assert encoder.finish() == facts
    assert bytes(parts) == whole


def test_options_are_lossless_and_not_compressed_if_nothing_is_said() -> None:
    data, _ = encoded(GOLDEN["lossless"], FormatOptions())
    assert data == golden("lossless")


@pytest.mark.parametrize("codec", CODECS)
def test_object_ends_with_the_record_that_takes_it_over_the_threshold(codec: str) -> None:
    records = large(2000)
    rest, sizes = 0, []
    while rest < len(records):
        data = bytearray()
        encoder = AvroEncoder(data.extend, 600_000, "orders", 0, options(codec=codec))
        taken = encoder.append(records, rest)
        assert encoder.full == (rest + taken < len(records))
        assert encoder.append(records, rest + taken) == 0 or not encoder.full
        facts = encoder.finish()
        assert [record.offset for record in read(bytes(data))] == list(range(7 + rest, 7 + rest + taken))
        assert facts.bytes == len(data) == encoder.size
        rest += taken
        sizes.append(len(data))
    if codec == "none":
        assert all(600_000 < size < 601_100 for size in sizes[:-1])
    else:
        assert all(size <= 601_100 for size in sizes)


def test_one_record_an_object_is_legal_whatever_the_threshold() -> None:
    for limit in (0, 1, 100):
        data = bytearray()
        encoder = AvroEncoder(data.extend, limit, "orders", 0, options())
        assert encoder.append(large(3)) == 1
        assert encoder.full
        assert encoder.finish().records == 1
        assert len(read(bytes(data))) == 1


def test_blocks_are_closed_at_their_size_and_handed_on_one_by_one() -> None:
    handed: list[int] = []
    encoder = AvroEncoder(lambda data: handed.append(len(data)), LIMIT, "orders", 0, options())
    encoder.append(large(1000))
    facts = encoder.finish()
    header, *blocks = handed
    assert header < 1000
    assert facts.blocks == len(blocks) == 4
    assert all(BLOCK_BYTES <= size < BLOCK_BYTES + 1100 for size in blocks[:-1])


def test_record_larger_than_a_block_is_a_block_of_its_own() -> None:
    records = [
        *large(1),
        PlainRecord(8, NOON, 0, b"k" * 5000, b"v" * (3 * BLOCK_BYTES)),
        PlainRecord(9, 5, 0, b"", b""),
    ]
    data, facts = encoded(records)
    assert facts.blocks == 2
    assert facts.largest_record == 5000 + 3 * BLOCK_BYTES
    assert read(data) == [plain(record) for record in records]


def test_sync_marker_belongs_to_topic_partition_and_first_offset() -> None:
    def sync(records: list[PlainRecord], topic: str, partition: int) -> bytes:
        return encoded(records, topic=topic, partition=partition)[0][-16:]

    markers = {sync(large(2), "a", 0), sync(large(2), "a", 1), sync(large(2), "b", 0), sync(large(2)[1:], "a", 0)}
    assert len(markers) == 4
    assert sync(large(1), "a", 0) in markers


def test_offsets_that_do_not_rise_are_refused() -> None:
    encoder = AvroEncoder(bytearray().extend, LIMIT, "orders", 0, options())
    encoder.append(large(3))
    with pytest.raises(CorruptSegment, match="The record at offset 9 comes after offset 9: offsets"):
        encoder.append([PlainRecord(9, NOON, 0, b"", b"")])


def test_type_of_timestamp_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="timestamp type 7; 0, 1 and None exist"):
        encoded([PlainRecord(9, NOON, 7, b"", b"")])


def test_segment_without_records_cannot_be_finished() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        AvroEncoder(bytearray().extend, LIMIT, "orders", 0, options()).finish()


# ---- reading a part


def test_reader_starts_at_an_offset() -> None:
    records = [*large(600), *(record._replace(offset=record.offset + 10_000) for record in large(600))]
    data, facts = encoded(records)
    assert facts.blocks > 3
    for start in (0, 7, 8, 270, 606, 607, 5000, 10_007, 10_300, 10_606):
        assert read(data, start_offset=start) == [plain(record) for record in records if record.offset >= start]
    assert read(data, start_offset=10_607) == []


def test_blocks_before_an_offset_are_not_taken_apart() -> None:
    records = large(1000)
    data, _ = encoded(records)
    key = b"k1"
    broken = data.replace(bytes([0, 2 * len(key)]) + key, bytes([6, 2 * len(key)]) + key, 1)
    assert read(broken, start_offset=900) == [plain(record) for record in records if record.offset >= 900]
    with pytest.raises(CorruptSegment, match="is not a branch of a field of the record at offset 8"):
        read(broken)


# ---- other implementations


def test_strict_schema_is_the_published_one() -> None:
    published = json.loads(
        """{
          "namespace": "ch.tbd.kafka.backuprestore.model.avro",
          "type": "record",
          "name": "AvroKafkaRecord",
          "fields" : [
            {"name": "topic", "type": "string"},
            {"name": "partition", "type": "int"},
            {"name": "offset", "type": "long"},
            {"name": "timestamp", "type": "long"},
            {"name": "key", "type": [ "bytes", "null" ], "default": "null" },
            {"name": "value", "type": "bytes"},
            {"name": "headers", "type": [ {"type": "map", "values": "bytes"}, "null" ], "default": null}
          ]
        }"""
    )
    assert to_parsing_canonical_form(PUBLISHED) == to_parsing_canonical_form(published)
    assert fastavro.reader(BytesIO(golden("strict"))).metadata["avro.schema"] == json.dumps(PUBLISHED)


def valued(records: list[PlainRecord]) -> list[PlainRecord]:
    return [record if record.value is not None else record._replace(value=b"") for record in records]


@given(rising_records().map(valued))
@settings(max_examples=scaled(50), deadline=None)
def test_reader_with_the_published_schema_resolves_the_lossless_one(records: list[PlainRecord]) -> None:
    data, _ = encoded(records)
    found = by_fastavro(data, PUBLISHED)
    assert [set(row) for row in found] == [{field["name"] for field in PUBLISHED["fields"]}] * len(records)
    strict, _ = encoded(records, STRICT)
    assert found == by_fastavro(strict)


def test_reader_with_the_published_schema_stops_at_a_null_value() -> None:
    data, _ = encoded([PlainRecord(0, NOON, 0, b"k", b"v"), PlainRecord(1, NOON, 0, b"k", None)])
    rows = fastavro.reader(BytesIO(data), reader_schema=PUBLISHED)
    assert next(rows)["value"] == b"v"  # type: ignore[call-overload, index]
    with pytest.raises(SchemaResolutionError):
        next(rows)


@given(rising_records())
@settings(max_examples=scaled(50), deadline=None)
def test_reader_with_the_lossless_schema_resolves_the_published_one(records: list[PlainRecord]) -> None:
    data, _ = encoded(records, STRICT)
    for row, record in zip(by_fastavro(data, LOSSLESS), records, strict=True):
        assert (row["offset"], row["value"]) == (record.offset, record.value or b"")
        assert (row["headerList"], row["timestampType"]) == (None, "CREATE_TIME")


def rows_of(records: list[PlainRecord]) -> list[dict[str, object]]:
    return [
        {
            "topic": "orders",
            "partition": 0,
            "offset": record.offset,
            "timestamp": -1 if record.timestamp is None else record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": dict(record.headers) or None,
        }
        for record in records
    ]


PLAIN = [*avro_golden.STRICT[:2], *large(400)]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_object_that_fastavro_wrote_is_read(codec: str) -> None:
    data = written_by_fastavro(PUBLISHED, rows_of(PLAIN), codec=codec)
    assert read(data) == [plain(record) for record in PLAIN]


def test_object_of_unions_in_another_order_is_read() -> None:
    schema = json.loads(json.dumps(PUBLISHED))
    for field in schema["fields"][4:]:
        base = field["type"][0] if isinstance(field["type"], list) else field["type"]
        field["type"] = ["null", base]
    records = [*PLAIN, PlainRecord(9000, NOON, 0, b"k", None)]
    assert read(written_by_fastavro(schema, rows_of(records))) == [plain(record) for record in records]


def test_object_without_unions_is_read() -> None:
    schema = json.loads(json.dumps(PUBLISHED))
    schema["fields"][4]["type"], schema["fields"][6]["type"] = "bytes", schema["fields"][6]["type"][0]
    rows = [row | {"key": row["key"] or b"", "headers": row["headers"] or {}} for row in rows_of(PLAIN)]
    assert read(written_by_fastavro(schema, rows)) == [
        plain(record._replace(key=record.key or b"")) for record in PLAIN
    ]


@pytest.mark.parametrize("codec", ["none", "deflate", "snappy"])
@pytest.mark.parametrize("compatibility", ["lossless", "strict"])
def test_fastavro_reads_what_is_written(compatibility: str, codec: str) -> None:
    data, _ = encoded(PLAIN, options(compatibility, codec))
    expected = rows_of(PLAIN)
    if compatibility == "lossless":
        expected = [row | {"headerList": None, "timestampType": "CREATE_TIME"} for row in expected]
    assert by_fastavro(data) == expected


# ---- losses


def losses_of(*records: LogRecord) -> dict[LossKind, tuple[int, int]]:
    return losses(records)


@pytest.mark.parametrize(
    ("record", "kinds"),
    [
        (PlainRecord(3, NOON, 0, None, b"", [("a", b"1")]), set()),
        (PlainRecord(3, NOON, 0, None, None), {LossKind.TOMBSTONE}),
        (PlainRecord(3, NOON, 1, b"k", b"v"), {LossKind.TIMESTAMP_TYPE}),
        (PlainRecord(3, None, None, b"k", b"v"), {LossKind.TIMESTAMP_TYPE}),
        (PlainRecord(3, None, 0, b"k", b"v"), {LossKind.TIMESTAMP_NULL}),
        (PlainRecord(3, -1, 0, b"k", b"v"), {LossKind.TIMESTAMP_NULL}),
        (PlainRecord(3, NOON, 0, b"k", b"v", [("a", b"1"), ("a", b"1")]), {LossKind.HEADER_DUPLICATE}),
        (PlainRecord(3, NOON, 0, b"k", b"v", [("a", b"1"), ("b", b"2")]), {LossKind.HEADER_ORDER}),
        (PlainRecord(3, NOON, 0, b"k", b"v", [("\udcff", b"1")]), {LossKind.HEADER_KEY}),
        (PlainRecord(3, NOON, 0, b"k", b"v", [("a", None)]), {LossKind.HEADER_NULL}),
    ],
)
def test_each_loss_of_the_published_schema_is_counted(record: PlainRecord, kinds: set[LossKind]) -> None:
    assert losses_of(record) == dict.fromkeys(kinds, (1, 3))


def test_losses_are_counted_with_the_first_offset() -> None:
    records = [PlainRecord(at, NOON, 0, None, None if at % 2 else b"") for at in range(10)]
    assert losses_of(*records) == {LossKind.TOMBSTONE: (5, 1)}


def test_lossless_loses_nothing() -> None:
    assert losses(GOLDEN["lossless"], Compatibility.LOSSLESS) == {}


@pytest.mark.parametrize(
    ("record", "left"),
    [
        (PlainRecord(0, NOON, 0, b"k", None), PlainRecord(0, NOON, 0, b"k", b"", [])),
        (PlainRecord(0, NOON, 1, b"k", b"v"), PlainRecord(0, NOON, 0, b"k", b"v", [])),
        (PlainRecord(0, None, None, b"k", b"v"), PlainRecord(0, None, 0, b"k", b"v", [])),
        (
            PlainRecord(0, NOON, 0, b"k", b"v", [("a", b"1"), ("b", b"2"), ("a", None)]),
            PlainRecord(0, NOON, 0, b"k", b"v", [("a", b""), ("b", b"2")]),
        ),
        (
            PlainRecord(0, NOON, 0, b"k", b"v", [("\udcff", b"1")]),
            PlainRecord(0, NOON, 0, b"k", b"v", [("\ufffd", b"1")]),
        ),
    ],
)
def test_what_strict_leaves_of_a_record_is_what_the_document_says(record: PlainRecord, left: PlainRecord) -> None:
    assert read(encoded([record], STRICT)[0]) == [left]


@given(rising_records())
@example([PlainRecord(0, None, 0, b"", b"")])
@settings(max_examples=scaled(50), deadline=None)
def test_a_strict_object_loses_nothing_the_second_time(records: list[PlainRecord]) -> None:
    once, _ = encoded(records, STRICT)
    again, _ = encoded(list(itertools.chain.from_iterable(read_object([once]))), STRICT)
    assert again == once
