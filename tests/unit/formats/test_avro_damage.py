"""An object of the Avro format that cannot be right is refused with the place and the reason."""

import bz2
import json
import lzma
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import cramjam
import pytest
from fastavro import schemaless_writer

from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats.avro import read_object
from logkeep_engine.formats.avro_container import HEADER_SCHEMA
from logkeep_engine.formats.avro_numbers import long, sized
from logkeep_engine.formats.avro_schema import LOSSLESS, PUBLISHED
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.memory import block_most, listed_most
from tests.examples import positions
from tests.unit.formats.avro_golden import LOSSLESS as RECORDS
from tests.unit.formats.avro_golden import NOON, golden
from tests.unit.formats.avro_objects import encoded, options, plain, read
from tests.unit.log import hostile

SYNC = bytes(range(16))
CODECS = ["none", "deflate", "snappy", "zstandard"]


def container(*blocks: bytes, schema: Any = PUBLISHED, codec: str | None = "null", sync: bytes = SYNC) -> bytes:
    file = BytesIO()
    meta = {"avro.schema": schema if isinstance(schema, bytes) else json.dumps(schema).encode()}
    if codec is not None:
        meta["avro.codec"] = codec.encode()
    schemaless_writer(file, HEADER_SCHEMA, {"magic": b"Obj\x01", "meta": meta, "sync": sync})
    return file.getvalue() + b"".join(blocks)


def block(count: int, data: bytes, *, size: int | None = None, sync: bytes = SYNC) -> bytes:
    return long(count) + long(len(data) if size is None else size) + data + sync


def record(
    offset: int, end: bytes = b"\x02", *, topic: bytes = b"orders", partition: int = 0, middle: bytes | None = None
) -> bytes:
    """Packed in the published schema: key k, value v, then the headers."""
    inside = b"\x00" + sized(b"k") + sized(b"v") if middle is None else middle
    return sized(topic) + long(partition) + long(offset) + long(NOON) + inside + end


def complaint(data: bytes, *, with_size: bool = True) -> str:
    with pytest.raises(CorruptSegment) as caught:
        list(read_object([data], topic="orders", partition=0, size=len(data) if with_size else None))
    return str(caught.value)


def test_made_up_objects_of_this_file_are_right_by_themselves() -> None:
    data = container(block(2, record(3) + record(4)), block(0, b""), block(1, record(9)), codec=None)
    assert [found.offset for found in read(data)] == [3, 4, 9]
    assert read(container()) == []


# ---- the container


def test_other_files_are_refused() -> None:
    assert complaint(b"PAR1\x00\x00") == "It is not an Avro container file: it starts with 50415231."
    assert complaint(b"") == "It is not an Avro container file: it starts with nothing."
    assert complaint(b"Ob") == "It is not an Avro container file: it starts with 4f62."


def test_another_version_of_the_container_is_refused_by_number() -> None:
    expected = "The Avro container file is of version 2; this version of Logkeep reads version 1."
    assert complaint(b"Obj\x02" + golden("lossless")[4:]) == expected


def test_codec_that_is_not_known_is_refused_by_name() -> None:
    assert complaint(container(codec="lz77")) == (
        "The Avro container file has the codec lz77; known are bzip2, deflate, null, snappy, xz, zstandard."
    )


def test_container_without_a_schema_is_refused() -> None:
    assert complaint(b"Obj\x01\x00" + SYNC) == "The Avro container file has no schema (avro.schema)."


def test_text_in_the_header_that_cannot_be_is_refused_before_it_is_read() -> None:
    expected = "The header of the Avro container file is damaged: it claims a text of 1099511627776 bytes."
    assert complaint(b"Obj\x01\x02" + long(2**40)) == expected


@pytest.mark.parametrize("kind", ["strict", "lossless", "other"])
def test_object_that_is_cut_anywhere_is_refused(kind: str) -> None:
    data = golden(kind)
    for end in range(len(data)):
        with pytest.raises(CorruptSegment, match=r"cut short|not an Avro|damaged"):
            list(read_object([data[:end]], size=len(data)))


def test_object_that_is_cut_in_a_block_is_refused_without_its_size() -> None:
    data = golden("strict")
    assert complaint(data[:-20], with_size=False) == (
        "The Avro container file is cut short: the Avro block at position 468 needs 81 bytes, 77 are left."
    )


def test_blocks_before_the_damage_are_handed_out() -> None:
    data = container(block(2, record(3) + record(4)), block(1, record(5)), block(1, record(6), sync=bytes(16)))
    runs = read_object([data])
    assert [found.offset for found in next(runs)] == [3, 4]
    assert [found.offset for found in next(runs)] == [5]
    with pytest.raises(CorruptSegment, match="no sync marker follows it"):
        next(runs)


def test_block_length_that_cannot_be_is_refused_before_it_is_gathered() -> None:
    data = container(block(1, b"", size=10**9))
    assert f"needs {10**9} bytes, 16 are left" in complaint(data)
    for count, size in [(1, 2**31), (1, -1), (-1, 5)]:
        assert f"it claims {count} records in {size} bytes" in complaint(container(block(count, b"", size=size)))


def test_block_that_claims_more_records_than_bytes_is_refused() -> None:
    assert "is damaged: it claims 1000000 records in 21 bytes" in complaint(container(block(10**6, record(3))))


def test_number_that_does_not_end_is_refused() -> None:
    assert "a number in the Avro block at position" in complaint(container(b"\xff" * 20))


@pytest.mark.deep
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_flipped_bytes_are_never_more_than_a_clear_error(codec: str, bits: int) -> None:
    """A flipped byte in a key or a value cannot be seen in a plain object: the catalog's SHA-256 sees it."""
    data, _ = encoded(RECORDS, options(codec=codec))
    said = []
    tried = positions(len(data), 5)
    for at in tried:
        flipped = data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
        try:
            read(flipped)
        except CorruptSegment as error:
            said.append(error.message)
    assert len(said) > len(tried) // 2
    assert all(message.endswith(".") for message in said)


def test_snappy_block_is_held_against_its_checksum() -> None:
    data, _ = encoded(RECORDS, options(codec="snappy"))
    flipped = data[:-17] + bytes([data[-17] ^ 1]) + data[-16:]
    assert "is damaged: its snappy data is wrong: its CRC-32 does not match" in complaint(flipped)


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_block_that_cannot_be_decompressed_is_refused(codec: str) -> None:
    for data in (b"", b"abc", b"\xff" * 100):
        text = complaint(container(block(1, data), codec=codec))
        assert text.startswith("The Avro block at position") or not data


def test_snappy_block_that_claims_too_much_is_refused_before_it_is_made() -> None:
    data = b"\xff\xff\xff\xff\x0f" + bytes(10)
    assert "claims to hold more than can be in it" in complaint(container(block(1, data), codec="snappy"))


# ---- records


def test_record_of_another_partition_or_topic_is_refused() -> None:
    for bad, place in [
        (record(5, partition=7), "topic orders, partition 7"),
        (record(5, topic=b"other"), "topic other, partition 0"),
    ]:
        for data in (container(block(2, record(4) + bad)), container(block(1, record(4)), block(1, bad))):
            assert complaint(data) == (
                f"The record at offset 5 is of {place}; the object is one of topic orders, partition 0. "
                "Every object of the Avro format holds records of one partition."
            )


def test_first_record_says_the_topic_if_nobody_else_does() -> None:
    data = container(block(1, record(4, topic=b"a", partition=1)), block(1, record(5, topic=b"b", partition=1)))
    with pytest.raises(CorruptSegment, match="is of topic b, partition 1; the object is one of topic a, partition 1"):
        list(read_object([data]))


@pytest.mark.parametrize("later", [4, 3])
def test_offsets_that_do_not_rise_are_refused(later: int) -> None:
    for data in (
        container(block(2, record(4) + record(later))),
        container(block(1, record(4)), block(1, record(later))),
    ):
        assert f"the record at offset {later} follows offset 4: offsets must rise" in complaint(data)


def test_offsets_that_do_not_rise_are_seen_in_blocks_that_are_skipped() -> None:
    data = container(block(1, record(4)), block(1, record(4)), block(1, record(9)))
    with pytest.raises(CorruptSegment, match="offset 4 follows offset 4"):
        list(read_object([data], start_offset=9))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (block(1, record(4) + b"\x00"), "1 bytes follow its last record"),
        (block(2, record(4)), "a record is cut short"),
        (block(1, record(4)[:-3]), "cut short"),
        (block(1, record(4, middle=b"\x00\x01k\x02v")), "the key at offset 4 has a length below zero"),
        (block(1, record(4, middle=b"\x00\x02k\x01v")), "the value at offset 4 has a length below zero"),
        (block(1, record(4, middle=b"\x00\x02k\xfe\xff\x03v")), "cut short"),
        (block(1, record(4, middle=b"\x04\x02k\x02v")), "2 is not a branch of a field of the record at offset 4"),
        (block(1, record(4, b"\x06")), "3 is not a branch of a field of the record at offset 4"),
        (block(1, record(4, b"\x00\xfe\xff\x03")), "it claims 32767 headers"),
        (block(1, record(4, b"\x00\x02\x40a\x00")), "a record is cut short"),
        (block(1, record(4, b"\x00\x02\x02\xff\x00\x00")), "the name of a header is not UTF-8"),
        (block(1, sized(b"orders") + b"\x00" + b"\xff" * 11 + b"\x00" * 20), "a number has more than 64 bits"),
        (block(1, b"\x80\x10orders"), "a record is cut short"),
        (block(0, b"abc"), "3 bytes in a block of no records"),
    ],
)
def test_record_that_cannot_be_is_refused(data: bytes, what: str) -> None:
    assert what in complaint(container(data))


def test_topic_in_an_unusual_form_is_refused() -> None:
    unusual = b"\x8c\x00orders" + record(4)[7:]
    expected = "the record at offset 4 has its topic or partition in an unusual form"
    assert expected in complaint(container(block(1, unusual)))


@pytest.mark.parametrize(
    ("end", "what"),
    [
        (b"\x02\x00\x08", "the record at offset 4 has timestamp type 4"),
        (b"\x02\x00\x01", "the record at offset 4 has timestamp type -1"),
        (b"\x02\x04\x00", "2 is not a branch of headerList"),
        (b"\x02\x02\x02\x02a\x06\x00\x00\x00", "3 is not a branch of a header's value"),
        (b"\x02\x02\x02\x02a\x00\x02", "a record is cut short"),
    ],
)
def test_added_field_that_cannot_be_is_refused(end: bytes, what: str) -> None:
    middle = b"\x00\x02k\x00\x02v"
    assert what in complaint(container(block(1, record(4, end, middle=middle)), schema=LOSSLESS))


def test_list_of_headers_wins_over_the_map() -> None:
    end = b"\x00\x02\x02a\x02z\x00" + b"\x02\x01\x0a\x02a\x00\x02y\x02\x02a\x02\x00" + b"\x00"
    (found,) = read(container(block(1, record(4, end, middle=b"\x00\x02k\x00\x02v")), schema=LOSSLESS))
    assert found.headers == [("a", b"y"), ("a", None)]


# ---- schemas


def changed(schema: dict[str, Any], field: int, **changes: Any) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    copy["fields"][field] |= changes
    return copy


def bad_schemas() -> Iterator[tuple[object, str]]:
    yield b"{", "Its Avro schema is not JSON"
    yield b'"bytes"', 'Its Avro schema is not a record but "bytes".'
    yield {"type": "record", "name": "A"}, 'Its Avro schema is not a record but {"type": "record", "name": "A"}.'
    yield PUBLISHED | {"name": "Other"}, "It holds Avro records of ch.tbd.kafka.backuprestore.model.avro.Other, not of"
    yield PUBLISHED | {"namespace": "com.example"}, "It holds Avro records of com.example.AvroKafkaRecord, not of"
    yield PUBLISHED | {"fields": PUBLISHED["fields"][:-1]}, "Its Avro schema lacks the field headers."
    yield LOSSLESS | {"fields": LOSSLESS["fields"][:-1]}, "Its Avro schema lacks the field timestampType."
    yield PUBLISHED | {"fields": PUBLISHED["fields"][::-1]}, "Its Avro schema has the fields headers, value, key, "
    yield PUBLISHED | {"fields": [{"name": "topic"}]}, "Its Avro schema lacks the field partition."
    yield (
        PUBLISHED | {"fields": ["topic"]},
        "Its Avro schema is not a valid schema: 'str' object has no attribute 'get'.",
    )
    yield b"[" * 100_000, "Its Avro schema is not a valid schema: maximum recursion depth"
    yield changed(PUBLISHED, 0, type=None), 'The field topic of its Avro schema is of type null; expected: "string".'
    yield (
        changed(LOSSLESS, 8, type={"type": "enum", "symbols": None}),
        "Its Avro schema is not a valid schema: 'NoneType'",
    )
    yield (
        changed(PUBLISHED, 2, type="int"),
        'The field offset of its Avro schema is of type "int"; expected: "long".',
    )
    yield changed(PUBLISHED, 5, type="string"), 'The field value of its Avro schema is of type "string"; expected: "byt'
    yield changed(PUBLISHED, 4, type=["bytes", "null", "int"]), "The field key of its Avro schema is of type"
    yield changed(PUBLISHED, 6, type={"type": "map", "values": "string"}), "The field headers of its Avro schema"
    yield changed(LOSSLESS, 7, type="bytes"), "The field headerList of its Avro schema is of type"
    yield changed(LOSSLESS, 8, type="int"), "The field timestampType of its Avro schema is of type"


@pytest.mark.parametrize(("schema", "text"), list(bad_schemas()))
def test_another_schema_is_refused_and_the_difference_named(schema: object, text: str) -> None:
    assert complaint(container(schema=schema)).startswith(text)


def test_schema_of_a_newer_version_is_refused_by_the_name_of_what_is_new() -> None:
    hint = "If a newer Logkeep wrote it, read it with that version."
    newer = LOSSLESS | {"fields": [*LOSSLESS["fields"], {"name": "leaderEpoch", "type": "int"}]}
    assert complaint(container(schema=newer)) == (
        f"Its Avro schema has the field leaderEpoch, which this version does not know. {hint}"
    )
    kind = LOSSLESS["fields"][8]["type"]
    newer = changed(LOSSLESS, 8, type=kind | {"symbols": [*kind["symbols"], "LEAP_SECOND"]})
    assert complaint(container(schema=newer)) == (
        f"Its Avro schema has the timestamp type LEAP_SECOND, which this version does not know. {hint}"
    )


def test_schema_of_the_same_meaning_is_read() -> None:
    full = PUBLISHED | {"name": "ch.tbd.kafka.backuprestore.model.avro.AvroKafkaRecord", "doc": "d"}
    del full["namespace"]
    full = changed(full, 0, type={"type": "string", "avro.java.string": "String"}, doc="the topic")
    assert [found.offset for found in read(container(block(1, record(4)), schema=full))] == [4]


def test_record_without_a_timestamp_has_none() -> None:
    packed = sized(b"orders") + b"\x00\x08\x01" + b"\x00\x02k\x02v\x02"
    assert read(container(block(1, packed))) == [plain(PlainRecord(4, None, 0, b"k", b"v"))]


def test_numbers_that_are_written_longer_than_needed_are_read() -> None:
    packed = sized(b"orders") + b"\x00" + b"\x88\x00" + b"\x82\x80\x00" + b"\x00\x82\x00k\x02v\x02"
    packed += sized(b"orders") + b"\x00" + b"\x8a\x80\x00" + b"\x83\x80\x00" + b"\x00\x82\x00k\x02v\x02"
    assert [(found.offset, found.timestamp) for found in read(container(block(2, packed)))] == [(4, 1), (5, -2)]


def _unpacks_to(codec: str, size: int) -> bytes:
    """A container file with one block of so many zeros."""
    zeros = bytes(size)
    packed = {
        "null": lambda: zeros,
        "deflate": lambda: zlib.compress(zeros, 9, -zlib.MAX_WBITS),
        "snappy": lambda: bytes(cramjam.snappy.compress_raw(zeros)) + zlib.crc32(zeros).to_bytes(4, "big"),
        "zstandard": lambda: bytes(cramjam.zstd.compress(zeros)),
        "bzip2": lambda: bz2.compress(zeros),
        "xz": lambda: lzma.compress(zeros),
    }[codec]()
    return container(block(1, packed), codec=codec)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_block_that_unpacks_to_too_much_is_refused_before_it_is_made(codec: str) -> None:
    data = _unpacks_to(codec, block_most() + 1)

    def refused() -> None:
        with pytest.raises(BatchTooLarge, match=r"^The Avro block at position \d+ is too large: .* more than 46836394"):
            list(read_object([data]))

    # The block as it is stored comes first; what it is unpacked to may be there twice.
    assert hostile.peak_of(refused) < 2.2 * block_most() + 2 * len(data)


def test_block_whose_dictionary_is_too_large_is_refused() -> None:
    little = {"mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}  # work for who packs it
    packed = lzma.compress(b"x" * 100, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 192 << 20, **little}])

    def refused() -> None:
        with pytest.raises(BatchTooLarge, match="needs a dictionary of more than 134217728 bytes"):
            list(read_object([container(block(1, packed), codec="xz")]))

    assert hostile.peak_of(refused) < 8 << 20


def test_block_of_very_many_records_is_refused_before_they_are_made() -> None:
    packed = zlib.compress(bytes(listed_most() + 1), 9, -zlib.MAX_WBITS)
    data = container(block(listed_most() + 1, packed), codec="deflate")
    with pytest.raises(BatchTooLarge, match=f"has {listed_most() + 1} records, at most {listed_most()}"):
        list(read_object([data], topic="t", partition=0))
