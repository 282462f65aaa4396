"""Whole batches: found, checked, addressed again."""

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import (
    HEADER_SIZE,
    Codec,
    check_crc,
    parse_header,
    walk,
    walk_checked,
    whole_batches,
    whole_header,
)
from logkeep_engine.log.records import decode
from tests.examples import scaled
from tests.unit.log import hostile
from tests.unit.log.batches import NOON, batch, hidden, marker, rewrite, with_header

# One record k0=v at offset 7, NOON, uncompressed, written down field by field.
EXACT = bytes.fromhex(
    "0000000000000007"  # base offset
    "0000003b"  # length
    "ffffffff"  # leader epoch
    "02"  # magic
    "6e4ac668"  # CRC-32C
    "0000"  # attributes
    "00000000"  # last offset delta
    "0000018bcfe56800"  # base timestamp
    "0000018bcfe56800"  # max timestamp
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000001"  # record count
    "12"  # record length 9
    "00"  # attributes
    "00"  # timestamp delta
    "00"  # offset delta
    "04" + b"k0".hex() + "02" + b"v".hex() + "00"  # key, value, header count
)


def test_batch_has_the_published_bytes() -> None:
    assert batch(7) == EXACT


def test_header_fields_are_read_from_their_places() -> None:
    fields = (1 << 40, 49 + 5, 3, 2, 0xFFFFFFFE, 0x7B, 9, NOON, NOON + 5, 1 << 33, 4, 77, 8)
    header = parse_header(b"xx" + struct.pack(">qiiBIhiqqqhii", *fields) + bytes(5), 2)
    assert tuple(header) == fields
    assert (header.size, header.last_offset, header.next_offset) == (66, (1 << 40) + 9, (1 << 40) + 10)
    assert header.codec is Codec.LZ4
    assert header.is_log_append_time
    assert header.is_transactional
    assert header.is_control
    assert header.has_delete_horizon
    assert header.has_gaps


@pytest.mark.parametrize(
    ("attributes", "bit"),
    [(0x08, "is_log_append_time"), (0x10, "is_transactional"), (0x20, "is_control"), (0x40, "has_delete_horizon")],
)
def test_each_attribute_bit_is_its_own(attributes: int, bit: str) -> None:
    header = parse_header(with_header(batch(0), attributes=attributes))
    bits = ("is_log_append_time", "is_transactional", "is_control", "has_delete_horizon")
    assert [name for name in bits if getattr(header, name)] == [bit]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("said", [-1, 0, NOON - 1])
def test_the_highest_time_is_that_of_the_records_where_a_header_cannot_have_it(codec: Codec, said: int) -> None:
    """Sarama before 1.45.1 leaves it unset, and Redpanda keeps what it gets."""
    data = hidden(batch(5, 3, codec=codec), said)
    assert parse_header(data).max_timestamp == said
    assert whole_header(data) == parse_header(data)._replace(max_timestamp=NOON + 2)
    assert [header.max_timestamp for _, header in walk_checked(data + batch(8, 3), 11)] == [NOON + 2, NOON + 2]


def test_the_highest_time_of_a_header_that_may_be_right_is_believed() -> None:
    for data in (batch(0, 3), hidden(batch(0, 3), NOON), batch(0, 3, timestamp=-1)):
        assert whole_header(data) == parse_header(data)
    appended = with_header(batch(0, 3), attributes=0x08, max_timestamp=-1)
    assert whole_header(appended).max_timestamp == -1


def test_the_highest_time_of_damaged_records_stays_what_the_header_says() -> None:
    assert whole_header(with_header(hidden(batch(0, 3)), record_count=4)).max_timestamp == -1


def test_a_batch_that_is_cut_short_has_no_whole_header() -> None:
    with pytest.raises(CorruptBatch, match=f"offset 7 is cut short: {len(EXACT) - 1} of {len(EXACT)} bytes"):
        whole_header(EXACT[:-1])


def test_the_highest_time_of_old_messages_is_that_of_what_a_wrapper_holds() -> None:
    message = bytearray(hostile.wrapper(1, Codec.GZIP, [b"a", b"b"]))
    struct.pack_into(">q", message, 18, -1)
    struct.pack_into(">I", message, 12, zlib.crc32(message[16:]))
    check_crc(message, 0, parse_header(message))
    assert whole_header(message).max_timestamp == NOON


def test_walk_yields_whole_batches_and_leaves_a_partial_one_out() -> None:
    log = batch(0, 3) + batch(3, 2, codec=Codec.ZSTD) + batch(9)
    whole = [(pos, header.base_offset, header.record_count) for pos, header in walk(log)]
    second, third = len(batch(0, 3)), len(log) - len(batch(9))
    assert whole == [(0, 0, 3), (second, 3, 2), (third, 9, 1)]
    for cut in range(third, len(log)):
        assert [pos for pos, _ in walk(log[:cut])] == [0, second]
    assert [pos for pos, _ in walk(memoryview(log), second)] == [second, third]
    assert list(walk(b"")) == []


@pytest.mark.parametrize(
    ("at", "form", "value", "complaint"),
    [
        (8, ">i", 48, "length 48"),
        (8, ">i", -1, "length -1"),
        (16, ">B", 3, "magic 3"),
        (23, ">i", -1, "last offset delta -1"),
        (57, ">i", -2, "record count -2"),
    ],
)
def test_impossible_fields_are_refused(at: int, form: str, value: int, complaint: str) -> None:
    damaged = bytearray(batch(5))
    struct.pack_into(form, damaged, at, value)
    with pytest.raises(CorruptBatch, match=f"offset 5.*{complaint}"):
        list(walk(damaged))
    with pytest.raises(CorruptBatch, match=f"offset 5.*{complaint}"):
        parse_header(damaged)


def test_a_header_cut_short_is_refused() -> None:
    for cut in range(HEADER_SIZE):
        with pytest.raises(CorruptBatch, match="cut short"):
            parse_header(batch(0)[:cut])


def test_unknown_codec_is_refused_by_name() -> None:
    with pytest.raises(CorruptBatch, match="offset 3 is compressed with codec 6"):
        _ = parse_header(with_header(batch(3), attributes=6)).codec


def test_crc_holds_for_every_codec_and_notices_every_flipped_bit() -> None:
    for codec in Codec:
        whole = batch(11, 4, codec=codec)
        header = parse_header(whole)
        check_crc(whole, 0, header)
        check_crc(memoryview(b"abc" + whole), 3, header)
        for at in range(17, len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(CorruptBatch, match=r"offset 11|CRC"):
                check_crc(damaged, 0, parse_header(damaged))


def test_crc_error_names_both_checksums() -> None:
    damaged = bytearray(EXACT)
    damaged[-2] ^= 0xFF
    with pytest.raises(CorruptBatch, match=r"offset 7 is damaged: its CRC is 0x6e4ac668, its bytes give 0x[0-9a-f]{8}"):
        check_crc(damaged, 0, parse_header(damaged))


def test_crc_of_a_batch_cut_short_says_so() -> None:
    with pytest.raises(CorruptBatch, match="cut short: 69 of 71"):
        check_crc(EXACT[:-2], 0, parse_header(EXACT))


@given(
    base_offset=st.integers(0, 2**62),
    producer_id=st.integers(-1, 2**62),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    codec=st.sampled_from(Codec),
)
@settings(max_examples=scaled(50))
def test_rewrite_changes_the_address_and_nothing_else(
    base_offset: int, producer_id: int, producer_epoch: int, base_sequence: int, leader_epoch: int, codec: Codec
) -> None:
    source = batch(100, 5, codec=codec, transactional=True)
    sent = rewrite(
        memoryview(source),
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        leader_epoch=leader_epoch,
    )
    header = parse_header(sent)
    check_crc(sent, 0, header)
    old = parse_header(source)
    assert header == old._replace(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        crc=header.crc,
        attributes=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )
    assert sent[HEADER_SIZE:] == source[HEADER_SIZE:]


@pytest.mark.parametrize(("asked", "before", "after"), [(False, 1, 0), (True, 0, 1), (None, 1, 1), (None, 0, 0)])
def test_rewrite_sets_clears_or_keeps_the_transactional_bit(asked: bool | None, before: int, after: int) -> None:
    source = batch(0, transactional=bool(before))
    sent = rewrite(source, base_offset=0, producer_id=1, producer_epoch=0, base_sequence=0, transactional=asked)
    assert parse_header(sent).is_transactional is bool(after)


def test_rewrite_drops_the_delete_horizon_and_keeps_every_time() -> None:
    cleaned = with_header(batch(4, 3), attributes=0x40, base_timestamp=NOON + 86_400_000)
    assert parse_header(cleaned).has_delete_horizon
    sent = rewrite(cleaned, base_offset=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    assert not parse_header(sent).has_delete_horizon
    times = [record.timestamp for record in decode(sent)]
    assert times == [record.timestamp for record in decode(cleaned)] == [NOON + 86_400_000 + i for i in range(3)]


def test_rewrite_takes_exactly_one_batch() -> None:
    for wrong in (EXACT[:-1], EXACT + b"x", EXACT + EXACT):
        with pytest.raises(CorruptBatch, match="offset 7 has 71 bytes"):
            rewrite(wrong, base_offset=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)


def test_a_rewritten_batch_can_still_grow() -> None:
    sent = rewrite(EXACT, base_offset=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    sent += b"more"
    assert len(sent) == len(EXACT) + 4


def test_marker_is_a_control_batch_of_one_record() -> None:
    header = parse_header(marker(12, 5, commit=True))
    assert (header.is_control, header.is_transactional, header.producer_id, header.record_count) == (True, True, 5, 1)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4000))
def test_whole_batches_up_to_a_limit_are_counted_in_bytes(counts: list[int], limit: int) -> None:
    log, ends = b"", []
    for count in counts:
        log += batch(len(log), count)
        ends.append(len(log))
    fitting = [end for end in ends if end <= limit]
    assert whole_batches(log, limit) == (max(fitting) if fitting else ends[0])


def test_walking_and_checking_at_once_is_walking_then_checking() -> None:
    log = b"".join(batch(offset, 2) for offset in range(0, 20, 2))
    found = list(walk(log))
    assert list(walk_checked(log, 2**63)) == found
    assert list(walk_checked(log + batch(20)[:-1], 2**63)) == found
    assert list(walk_checked(log, 8)) == found[:4]
    assert list(walk_checked(log, 2**63, found[3][0])) == found[3:]
    damaged = bytearray(log)
    damaged[found[5][0] + 40] ^= 1
    with pytest.raises(CorruptBatch, match="at offset 10 is damaged"):
        list(walk_checked(damaged, 2**63))
    assert list(walk_checked(damaged, 10)) == found[:5]
    damaged[found[5][0] + 16] = 7
    with pytest.raises(CorruptBatch, match="magic 7"):
        list(walk_checked(damaged, 2**63))
