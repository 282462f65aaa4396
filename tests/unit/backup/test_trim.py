"""Batches that lose their first records: the kernel builds them as plain Python does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.backup.pieces.batches import SEQUENCE_MODULUS, trim
from logkeep_engine.errors import CorruptBatch
from logkeep_engine.log.batch import HEADER_SIZE, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, decode, encode, sealed
from tests.examples import scaled

texts = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.binary(max_size=4), texts), max_size=3)
times = st.integers(1_700_000_000_000, 1_700_000_000_100) | st.just(-1) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    base = offset = draw(st.integers(0, 2**40))
    records = []
    for _ in range(draw(st.integers(1, 20))):
        offset += draw(st.integers(0, 3))
        records.append(Record(offset, draw(times), draw(texts), draw(texts), tuple(draw(headers))))
        offset += 1
    made = encode(
        records,
        codec=draw(st.sampled_from(Codec)),
        base_offset=base,
        producer_id=7,
        producer_epoch=2,
        base_sequence=draw(st.sampled_from([-1, 0, 2**31 - 3])),
        transactional=draw(st.booleans()),
        leader_epoch=5,
    )
    header = parse_header(made)
    return sealed(made[HEADER_SIZE:], header._replace(attributes=header.attributes | draw(st.sampled_from([0, 0x08]))))


def in_python(batch: bytes, start: int) -> bytes | None:
    """The oracle: `trim` with an object for each record."""
    header = parse_header(batch)
    records = [record for record in decode(batch) if record.offset >= start]
    if not records:
        return None
    sequence = header.base_sequence
    if sequence >= 0:
        sequence = (sequence + records[0].offset - header.base_offset) % SEQUENCE_MODULUS
    made = encode(
        records,
        codec=header.codec,
        base_offset=records[0].offset,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=sequence,
        transactional=header.is_transactional,
        leader_epoch=header.leader_epoch,
    )
    fresh = parse_header(made)
    return sealed(made[HEADER_SIZE:], fresh._replace(attributes=fresh.attributes | header.attributes & 0x08))


@given(batch=batches(), cut=st.integers(-1, 60))
@settings(max_examples=scaled(200), deadline=None)
def test_a_trimmed_batch_is_that_of_plain_python(batch: bytes, cut: int) -> None:
    start = parse_header(batch).base_offset + cut
    found = trim(memoryview(batch), start)
    assert (None if found is None else bytes(found)) == in_python(batch, start)


def test_damage_is_named_as_by_plain_python() -> None:
    batch = bytearray(encode([Record(5, 1, b"k", b"v"), Record(6, 1, b"k", b"v")], codec=Codec.NONE, base_offset=5))
    batch[HEADER_SIZE + 4] = 0x7E  # the length of the first key
    with pytest.raises(CorruptBatch) as reported:
        decode(batch)
    with pytest.raises(CorruptBatch) as found:
        trim(memoryview(batch), 6)
    assert found.value.message == reported.value.message
    assert "offset 5" in found.value.message
