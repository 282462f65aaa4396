"""Batches made from archived records: their bounds, what is in them, and what cannot be sent."""

import random
from collections.abc import Sequence
from itertools import pairwise

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.formats.base import TimestampKind
from logkeep_engine.log.batch import check_crc, parse_header
from logkeep_engine.log.codec import PlainRecord, decode_records
from logkeep_engine.log.compression import Codec, compress
from logkeep_engine.restore.streams.filter import Outgoing
from logkeep_engine.restore.streams.records import Batching, RecordStream

TIME = 1_700_000_000_000


def record(offset: int, value: bytes | None = b"value", **more: object) -> PlainRecord:
    fields: dict[str, object] = {"key": b"k", "headers": [("h", b"1"), ("h", None)], **more}
    timestamp = fields.pop("timestamp", TIME + offset)
    kind = fields.pop("timestamp_type", int(TimestampKind.CREATE))
    return PlainRecord(offset, timestamp, kind, fields["key"], value, fields["headers"])  # type: ignore[arg-type]


def sent(
    lists: Sequence[Sequence[PlainRecord]],
    batching: Batching | None = None,
    *,
    limit: int = 1 << 20,
    done: int = 0,
) -> list[Outgoing]:
    stream = RecordStream(
        batching or Batching(codec=Codec.NONE),
        source="the archived topic 'a' partition 3",
        target="topic 'b' partition 3",
        producer_id=7,
        limit=limit,
        done=done,
    )
    return [item for records in lists for item in stream.add(records)] + list(stream.finish())


def contents(items: Sequence[Outgoing]) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for item in items:
        assert item.data is not None
        data = b"".join(item.data)
        header = parse_header(data)
        check_crc(data, 0, header)
        assert (header.base_offset, header.producer_id, header.producer_epoch) == (0, 7, 0)
        assert (header.base_sequence, header.record_count) == (item.base_sequence, item.count)
        assert not header.has_gaps
        assert not header.is_log_append_time
        for one in decode_records(data):
            found.append((-1 if one.timestamp is None else one.timestamp, one.key, one.value, list(one.headers)))
    return found


class TestBounds:
    def test_a_batch_has_as_many_records_as_the_plan_says_wherever_segments_end(self) -> None:
        records = [record(at) for at in range(25)]
        items = sent([records[:3], records[3:4], [], records[4:]], Batching(10, 900_000, Codec.NONE))
        assert [(item.index, item.count) for item in items] == [(0, 10), (10, 10), (20, 5)]
        assert [item.source for item in items] == [((0, 10),), ((10, 10),), ((20, 5),)]
        assert contents(items) == [(one.timestamp, one.key, one.value, list(one.headers)) for one in records]

    def test_a_batch_has_no_more_bytes_than_the_plan_says(self) -> None:
        items = sent([[record(at, b"x" * 1000) for at in range(50)]], Batching(10_000, 10_000, Codec.NONE))
        assert sum(item.count for item in items) == 50
        assert all(9_000 < item.size <= 10_100 for item in items[:-1])

    def test_a_record_larger_than_a_batch_goes_alone(self) -> None:
        records = [record(0), record(1, b"x" * 50_000), record(2)]
        items = sent([records], Batching(100, 10_000, Codec.NONE))
        assert [item.count for item in items] == [1, 1, 1]

    def test_a_batch_too_large_for_the_topic_is_halved(self) -> None:
        # Snappy makes incompressible bytes a little larger: the bound before compression is not enough.
        records = [record(at, random.Random(at).randbytes(700)) for at in range(64)]
        (whole,) = sent([records], Batching(1000, 900_000, Codec.SNAPPY))
        items = sent([records], Batching(1000, 900_000, Codec.SNAPPY), limit=whole.size - 1)
        assert len(items) > 1
        assert all(item.size < whole.size for item in items)
        assert contents(items) == contents([whole])

    @given(
        st.lists(st.integers(0, 3000), min_size=1, max_size=60),
        st.lists(st.integers(0, 60), max_size=8),
        st.integers(1, 12),
        st.integers(100, 9000),
    )
    def test_bounds_do_not_depend_on_how_the_records_were_read(
        self, sizes: list[int], cuts: list[int], most: int, size: int
    ) -> None:
        records = [record(at * 2, b"x" * length) for at, length in enumerate(sizes)]
        at = sorted({0, *cuts, len(records)})
        pieces = [records[start:end] for start, end in pairwise(at)]
        batching = Batching(most, size, Codec.LZ4)
        whole = sent([records], batching, limit=4000)
        assert sent(pieces, batching, limit=4000) == whole
        assert sent([[one] for one in records], batching, limit=4000) == whole
        assert all(item.count <= most and item.size <= 4000 for item in whole)
        assert contents(whole) == [(one.timestamp, one.key, one.value, list(one.headers)) for one in records]

    def test_what_is_there_already_is_counted_and_not_sent(self) -> None:
        records = [record(at) for at in range(30)]
        whole = sent([records], Batching(10, 900_000, Codec.ZSTD))
        again = sent([records], Batching(10, 900_000, Codec.ZSTD), done=20)
        assert [item.data is None for item in again] == [True, True, False]
        assert [(item.index, item.count, item.size, item.source) for item in again] == [
            (item.index, item.count, item.size, item.source) for item in whole
        ]
        assert again[2] == whole[2]


class TestRecords:
    @pytest.mark.parametrize("codec", list(Codec))
    def test_every_codec(self, codec: Codec) -> None:
        items = sent([[record(at) for at in range(100)]], Batching(1000, 900_000, codec))
        (data,) = items[0].data or ()
        assert parse_header(data).codec == codec
        assert len(contents(items)) == 100

    def test_times_stay_and_those_of_the_append_are_counted(self) -> None:
        records = [
            record(0, timestamp_type=int(TimestampKind.APPEND)),
            record(1, timestamp=None, timestamp_type=None),
            record(2, timestamp=-1, timestamp_type=int(TimestampKind.CREATE)),
            record(3, timestamp=0),
        ]
        (item,) = sent([records])
        assert item.append_times == 1
        assert [found[0] for found in contents([item])] == [TIME, -1, -1, 0]

    def test_a_batch_that_begins_without_a_time(self) -> None:
        items = sent([[record(0, timestamp=None, timestamp_type=None), record(1)]])
        assert [found[0] for found in contents(items)] == [-1, TIME + 1]

    def test_tombstones_headers_and_holes(self) -> None:
        records = [
            record(5, None, key=None, headers=[]),
            record(9, b"", key=b"", headers=[("", b""), ("é", None), ("h\udcff", b"x"), ("", b"")]),
            record(10),
        ]
        (item,) = sent([records])
        assert item.source == ((5, 1), (9, 2))
        assert contents([item])[:2] == [
            (TIME + 5, None, None, []),
            (TIME + 9, b"", b"", [("", b""), ("é", None), ("h\udcff", b"x"), ("", b"")]),
        ]

    def test_a_record_that_the_topic_cannot_take_is_named(self) -> None:
        with pytest.raises(TargetUnsuitable) as caught:
            sent([[record(0), record(41, b"x" * 5000), record(42)]], limit=2000)
        message = caught.value.message
        assert "topic 'b' partition 3: the record at offset 41 of the archived topic 'a' partition 3" in message
        assert "the topic takes at most 2000" in message
        assert "max.message.bytes" in caught.value.hint


def _stored(codec: Codec, data: bytes | bytearray) -> bytes:
    """A compressor that does not compress."""
    return bytes(cramjam.gzip.compress(data, level=0)) if codec is Codec.GZIP else compress(codec, data)


def test_bounds_are_the_same_with_another_compressor(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [record(at, b"", headers=[("\N{SNOWMAN}" * 20, None)]) for at in range(3000)]
    batching = Batching(3000, 900_000, Codec.GZIP)
    here = sent([records], batching, limit=20_000)
    monkeypatch.setattr("logkeep_engine.log.records.compress", _stored)
    there = sent([records], batching, limit=20_000)
    assert contents(here) == contents(there)
    assert max(item.size for item in there) <= 20_000
    assert [(item.index, item.count) for item in here] == [(item.index, item.count) for item in there]
