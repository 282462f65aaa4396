"""A digest says whether two stretches of records are the same for a consumer, however they were batched and stored."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logkeep_kernel import RecordDigest, murmur2, partitions_of_keys, record_digests

from logkeep_engine.contract.archive_format import FormatOptions
from logkeep_engine.formats.avro import AvroEncoder
from logkeep_engine.formats.avro_reader import read_object
from logkeep_engine.formats.records import RecordsEncoder, read_blocks
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import encode_records
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.consumed import PlainRecord
from logkeep_engine.log.rows import Rows, as_rows, rows_of_batch
from tests.examples import scaled
from tests.unit.formats.test_kernel_formats import rising

RECORD = PlainRecord(5, 1_700_000_000_000, 0, b"key", b"value", (("a", b"1"), ("b", None), ("a", b"2")))
OTHERS = [
    RECORD._replace(timestamp=1_700_000_000_001),
    RECORD._replace(key=None),
    RECORD._replace(key=b""),
    RECORD._replace(key=b"keyv", value=b"alue"),
    RECORD._replace(value=None),
    RECORD._replace(value=b"Value"),
    RECORD._replace(headers=()),
    RECORD._replace(headers=(("b", None), ("a", b"1"), ("a", b"2"))),
    RECORD._replace(headers=(("a", b"1"), ("b", b""), ("a", b"2"))),
    RECORD._replace(headers=(("a", b"1"), ("b", None))),
]


def digest_of(*parts: Rows, offsets: bool = False) -> tuple[int, bytes]:
    digest = RecordDigest(offsets=offsets)
    for rows in parts:
        digest.note(rows)
    return digest.count, digest.value


@given(rising(), st.integers(0, 25), st.integers(0, 25), st.booleans())
@settings(max_examples=scaled(150, light=25), deadline=None)
def test_divisions_of_a_partition_make_no_difference(
    records: list[PlainRecord], first: int, second: int, offsets: bool
) -> None:
    rows = as_rows(records)
    whole = digest_of(rows, offsets=offsets)
    cuts = [0, *sorted((first, second)), max(len(rows), first, second)]
    parts = [rows[start:end] for start, end in pairwise(cuts)]
    assert digest_of(*parts, offsets=offsets) == whole
    joined = RecordDigest(offsets=offsets)
    for part in parts:
        count, value = digest_of(part, offsets=offsets)
        joined.follow(RecordDigest(offsets=offsets, count=count, value=value))
    assert (joined.count, joined.value) == whole


@given(rising(), st.sampled_from(Codec))
@settings(max_examples=scaled(150, light=25), deadline=None)
def test_batches_and_formats_and_offsets_make_no_difference(records: list[PlainRecord], codec: Codec) -> None:
    whole = digest_of(as_rows(records))
    batch = encode_records(records, codec=codec, base_offset=0, dense=True)
    digest = RecordDigest(offsets=False)
    for rows in rows_of_batch(memoryview(batch), parse_header(batch)):
        digest.note(rows)
    assert (digest.count, digest.value) == whole
    packed, avro = bytearray(), bytearray()
    for encoder in (
        RecordsEncoder(packed.extend, lambda index: None, 2**40),
        AvroEncoder(avro.extend, 2**40, "t", 0, FormatOptions()),
    ):
        encoder.append(records)
        encoder.finish()
    assert digest_of(*(block.records for block in read_blocks([bytes(packed)]))) == whole
    assert digest_of(*read_object([bytes(avro)])) == whole


@pytest.mark.parametrize("other", OTHERS)
def test_what_a_consumer_sees_makes_a_difference(other: PlainRecord) -> None:
    assert digest_of(as_rows([other])) != digest_of(as_rows([RECORD]))


def test_order_and_number_and_wanted_offsets_make_a_difference() -> None:
    one, other = RECORD, OTHERS[5]._replace(offset=6)
    swapped = [other._replace(offset=5), one._replace(offset=6)]
    assert digest_of(as_rows([one, other])) != digest_of(as_rows(swapped))
    assert digest_of(as_rows([one])) != digest_of(as_rows([one, one._replace(offset=6)]))
    moved = as_rows([one._replace(offset=7)])
    assert digest_of(moved) == digest_of(as_rows([one]))
    assert digest_of(moved, offsets=True) != digest_of(as_rows([one]), offsets=True)
    with pytest.raises(ValueError, match="offsets"):
        RecordDigest(offsets=True).follow(RecordDigest(offsets=False))


def test_digests_stay_the_same_in_every_version() -> None:
    rows = as_rows([RECORD, *(other._replace(offset=6 + at) for at, other in enumerate(OTHERS))])
    assert record_digests(rows[:2], offsets=False).hex() == GOLDEN_RECORDS
    count, value = digest_of(rows)
    assert (count, value.hex()) == (11, GOLDEN)
    assert digest_of(rows, offsets=True)[1].hex() == GOLDEN_OFFSETS


GOLDEN_RECORDS = "826dcb9b78ea92892834bfca0f5c2f729634f0c54b5b174389bf1b966cff44f4"
GOLDEN = "45e6d63e8f5672f641c26047ca6e16f0"
GOLDEN_OFFSETS = "5630a99efed274a2f3ed6a3126785f69"


# apache/kafka, UtilsTest.testMurmur2
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_have_the_hashes_and_partitions_of_java(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected % 2**32
    rows = as_rows([PlainRecord(0, 5, 0, key, None), PlainRecord(1, 5, 0, None, None)])
    assert partitions_of_keys(rows, 7) == [(expected & 0x7FFFFFFF) % 7, -1]


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="one partition"):
        partitions_of_keys(as_rows([RECORD]), 0)


def test_records_are_counted_by_their_times() -> None:
    digest = RecordDigest(offsets=False)
    digest.note(as_rows([RECORD._replace(timestamp=time) for time in (1000, 1001, 1001, -1)]))
    size = len(b"key") + len(b"value") + len(b"a1ba2") + 8 + 2 + 1 + 6  # a time, and a length or number of each part
    assert digest.times == (0, [(-1, 1, size), (1000, 1, size), (1001, 2, 2 * size)])
    assert digest.span == (-1, 1001)
    later = RecordDigest(offsets=False)
    later.note(as_rows([RECORD._replace(timestamp=time) for time in range(100_000)]))
    shift, buckets = later.times
    assert (len(buckets), shift) == (49, 11)
    digest.follow(later)
    assert digest.times[0] == 11
    assert sum(records for _, records, _ in digest.times[1]) == 100_004
    assert digest.span == (-1, 99_999)


def test_offsets_have_a_digest_of_their_own() -> None:
    def of(*offsets: int) -> tuple[bytes, bytes]:
        digest = RecordDigest(offsets=False)
        digest.note(as_rows([RECORD._replace(offset=offset) for offset in offsets]))
        return digest.value, digest.offsets_value

    assert of(5, 6, 7) == of(5, 6, 7)
    assert of(5, 6, 7)[0] == of(5, 6, 8)[0]
    assert len({of(5, 6, 7)[1], of(5, 6, 8)[1], of(5, 7, 8)[1], of(4, 6, 7)[1]}) == 4
