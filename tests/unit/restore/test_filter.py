"""Which batches are sent, and as what."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptBatch
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.log.transactions import Spans
from logkeep_engine.restore.streams.filter import (
    SEQUENCE_SPACE,
    Action,
    Outgoing,
    decide,
    rebuilt,
    source_rows,
    unchanged,
)
from tests.examples import scaled
from tests.unit.log import hostile
from tests.unit.log.batches import NOON, batch, marker, with_header
from tests.unit.restore import rebuilt_in_python

NONE = Spans()


def sent(data: bytes, *, index: int = 0, done: int = 0, most: int = 1 << 20) -> list[Outgoing]:
    view, header = memoryview(data), parse_header(data)
    if decide(header, NONE) is Action.RAW:
        return [unchanged(view, header, index=index, producer_id=9, done=done)]
    return list(rebuilt(view, header, index=index, producer_id=9, most=most, done=done))


def whole(item: Outgoing) -> bytes:
    assert item.data is not None
    return b"".join(item.data)


def gapped(base: int = 100, offsets: tuple[int, ...] = (100, 101, 105), codec: Codec = Codec.NONE) -> bytes:
    return encode([Record(at, NOON + at, b"k", b"v%d" % at) for at in offsets], codec=codec, base_offset=base)


class TestDecide:
    def test_a_dense_batch_goes_as_it_is(self) -> None:
        assert decide(parse_header(batch(5, 3)), NONE) is Action.RAW

    def test_markers_are_left_out(self) -> None:
        assert decide(parse_header(marker(9, 1, commit=True)), NONE) is Action.CONTROL

    def test_only_the_aborted_part_of_a_producers_batches_is_left_out(self) -> None:
        aborted = Spans.of([AbortedTxn(1, 20, 29, 30), AbortedTxn(1, 5, 9, 10), AbortedTxn(2, 0, 100, 101)])
        kept = {
            at
            for at in range(0, 40, 1)
            if decide(parse_header(batch(at, producer_id=1, transactional=True)), aborted) is Action.RAW
        }
        assert kept == {*range(5), *range(10, 20), *range(30, 40)}

    def test_a_batch_outside_transactions_is_kept_whatever_its_producer(self) -> None:
        aborted = Spans.of([AbortedTxn(1, 0, 9, 10)])
        assert decide(parse_header(batch(5, producer_id=1)), aborted) is Action.RAW

    def test_what_a_broker_would_refuse_or_change_is_rebuilt(self) -> None:
        plain = batch(5, 3)
        assert decide(parse_header(gapped()), NONE) is Action.REBUILD
        assert decide(parse_header(with_header(plain, attributes=0x08)), NONE) is Action.REBUILD
        assert decide(parse_header(with_header(plain, attributes=0x40)), NONE) is Action.REBUILD

    def test_a_batch_emptied_by_compaction_is_left_out(self) -> None:
        header = parse_header(batch(5, 3))._replace(record_count=0)
        assert decide(header, NONE) is Action.EMPTY


class TestOutgoing:
    def test_raw_records_stay_and_the_producer_is_ours(self) -> None:
        data = batch(500, 3, codec=Codec.LZ4, producer_id=4, transactional=True)
        (one,) = sent(data, index=7)
        header = parse_header(whole(one))
        check_crc(whole(one), 0, header)
        assert (header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence) == (0, 9, 0, 7)
        assert not header.is_transactional
        assert whole(one)[61:] == data[61:]
        assert one.data is not None
        assert isinstance(one.data[1], memoryview), "records are not copied"
        assert (one.index, one.count, one.size, one.source, one.source_end) == (7, 3, len(data), ((500, 3),), 503)

    @pytest.mark.parametrize("codec", list(Codec))
    def test_gapped_records_become_dense_in_the_same_codec(self, codec: Codec) -> None:
        (one,) = sent(gapped(codec=codec), index=3)
        header = parse_header(whole(one))
        check_crc(whole(one), 0, header)
        assert (header.codec, header.has_gaps, header.record_count, header.base_sequence) == (codec, False, 3, 3)
        assert [(record.timestamp, record.value) for record in decode(whole(one))] == [
            (NOON + at, b"v%d" % at) for at in (100, 101, 105)
        ]
        assert one.source == ((100, 2), (105, 1))

    def test_append_time_becomes_the_create_time_of_every_record(self) -> None:
        (one,) = sent(with_header(batch(5, 3), attributes=0x08, max_timestamp=NOON + 77))
        assert one.append_times == 3
        assert not parse_header(whole(one)).is_log_append_time
        assert [record.timestamp for record in decode(whole(one))] == [NOON + 77] * 3

    def test_a_rebuilt_batch_that_is_too_large_is_cut_with_sequences_that_follow(self) -> None:
        data = encode([Record(at, NOON, None, b"x" * 300) for at in range(0, 20, 2)], codec=Codec.NONE, base_offset=0)
        parts = sent(data, index=5, most=1000)
        assert len(parts) > 1
        assert all(part.size <= 1000 for part in parts)
        assert [part.index for part in parts] == [5 + sum(one.count for one in parts[:at]) for at in range(len(parts))]
        assert sum(part.count for part in parts) == 10
        assert [run for part in parts for run in part.source] == [(at, 1) for at in range(0, 20, 2)]
        for part in parts:
            assert parse_header(whole(part)).base_sequence == part.index

    def test_a_single_record_above_the_limit_is_handed_out(self) -> None:
        (one,) = sent(gapped(0, (1,)), most=10)
        assert one.count == 1

    def test_what_is_there_already_is_only_counted(self) -> None:
        for data in (batch(0, 3), gapped()):
            (one,) = sent(data, index=4, done=7)
            assert (one.data, one.count) == (None, 3)
            (one,) = sent(data, index=4, done=6)
            assert one.data is not None

    def test_sequences_wrap_as_kafkas_do(self) -> None:
        (one,) = sent(batch(0, 3), index=SEQUENCE_SPACE - 1)
        assert (one.base_sequence, parse_header(whole(one)).base_sequence) == (2**31 - 1, 2**31 - 1)
        (one,) = sent(batch(0, 3), index=SEQUENCE_SPACE + 2)
        assert one.base_sequence == 2

    def test_source_rows(self) -> None:
        assert list(source_rows([3, 4, 5, 9, 11, 12])) == [(3, 3), (9, 1), (11, 2)]
        assert list(source_rows([7, 8, 9])) == [(7, 3)]
        assert list(source_rows([7])) == [(7, 1)]


texts = st.none() | st.binary(max_size=40) | st.just(b"some text, again " * 30)
headers = st.lists(st.tuples(st.text("ab", max_size=3).map(str.encode) | st.binary(max_size=3), texts), max_size=3)
times = st.integers(NOON - 9, NOON + 9) | st.just(-1) | st.integers(-(2**63), 2**63 - 1)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A batch of magic 2 that a restore may build again, or messages of magic 0 or 1."""
    codec = draw(st.sampled_from(Codec))
    values = draw(st.lists(texts, min_size=1, max_size=25))
    magic = draw(st.sampled_from([0, 1, 2, 2, 2]))
    if magic < 2 and codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        return hostile.wrapper(magic, codec, [value or b"" for value in values])
    records, offset = [], draw(st.integers(0, 2**40))
    base = offset
    for value in values:
        records.append(Record(offset, draw(times), draw(texts), value, tuple(draw(headers))))
        offset += draw(st.integers(1, 3) | st.just(2**20))
    made = encode(records, codec=codec, base_offset=base)
    return with_header(made, attributes=codec | draw(st.sampled_from([0, 0x08])))


@given(data=batches(), limit=st.integers(80, 3000), done=st.integers(0, 30), index=st.sampled_from([0, 5, 2**31 - 2]))
@settings(max_examples=scaled(200), deadline=None)
def test_batches_are_rebuilt_as_by_plain_python(data: bytes, limit: int, done: int, index: int) -> None:
    view, header = memoryview(data), parse_header(data)
    found = rebuilt(view, header, index=index, producer_id=9, most=limit, done=index + done)
    expected = rebuilt_in_python.rebuilt(view, header, index=index, producer_id=9, most=limit, done=index + done)
    assert list(found) == list(expected)


@given(data=batches(), where=st.data())
@settings(max_examples=scaled(300), deadline=None)
def test_damage_and_falling_offsets_are_met_as_by_plain_python(data: bytes, where: st.DataObject) -> None:
    header = parse_header(data)
    if header.magic < 2:
        return
    damaged = bytearray(data)
    for _ in range(where.draw(st.integers(1, 3))):
        damaged[where.draw(st.integers(61, len(data) - 1))] = where.draw(st.integers(0, 255))

    def outcome(build: Callable[..., Iterator[Outgoing]]) -> Sequence[Outgoing] | str:
        try:
            return list(build(memoryview(damaged), header, index=0, producer_id=9, most=2000))
        except (BatchTooLarge, CorruptBatch) as problem:
            return problem.message

    assert outcome(rebuilt) == outcome(rebuilt_in_python.rebuilt)
