"""Reading the segments and the manifest of `osodevops/kafka-backup`."""

import json
import struct

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logkeep_engine.errors import BatchTooLarge, CorruptSegment
from logkeep_engine.formats import osodevops
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.memory import whole_segment_most
from tests.unit.formats.osodevops_archive import LZ4, NONE, ZSTD, Written, segment

TIME = 1_700_000_000_000
CODECS = pytest.mark.parametrize("compression", [NONE, ZSTD, LZ4])

# One segment by hand: a record with offset 5 at time 1, key "k", no value, header "h" without a value.
GOLDEN_BODY = bytes.fromhex(
    "22000000"  # 34 bytes follow
    "0100000000000000"  # timestamp 1
    "0500000000000000"  # offset 5
    "01000000" "6b"  # key of one byte
    "ffffffff"  # no value
    "0100"  # one header
    "0100" "68"  # its name
    "ffffffff"  # without a value
)  # fmt: skip
GOLDEN = (
    bytes.fromhex(
        "4b42414b"  # KBAK
        "01" "00" "0000"  # version 1, not compressed
        "0100000000000000"  # one record
        "0500000000000000"  # first offset 5
        "0500000000000000"  # last offset 5
    )
    + GOLDEN_BODY
)  # fmt: skip
GOLDEN += bytes.fromhex("6969bf1f") + b"BKAE"


def read(data: bytes, block: int = 1 << 20) -> list[PlainRecord]:
    blocks = (data[at : at + block] for at in range(0, len(data), block))
    return [record for records in osodevops.read_segment(blocks) for record in records]


def records(count: int, first: int = 0) -> list[Written]:
    return [
        Written(first + number, TIME + number, b"key-%d" % number, b"value-%d" % number, ((b"h", b"1"), (b"h", None)))
        for number in range(count)
    ]


def lying_key() -> bytes:
    """A record whose key is longer than the record."""
    packed = bytearray(records(1)[0].pack())
    packed[20:24] = struct.pack("<i", 500)
    return bytes(packed)


def longer_record() -> bytes:
    """A record whose length covers more than it holds."""
    packed = records(1)[0].pack()
    return struct.pack("<I", len(packed) - 4 + 3) + packed[4:] + b"abc"


class TestSegment:
    def test_the_golden_segment_made_by_hand(self) -> None:
        assert read(GOLDEN) == [PlainRecord(5, 1, 0, b"k", None, [("h", None)])]
        assert segment([Written(5, 1, b"k", None, ((b"h", None),))], NONE) == GOLDEN

    @CODECS
    @pytest.mark.parametrize("block", [1, 7, 1000, 1 << 20])
    def test_records_come_out_whatever_the_blocks(self, compression: int, block: int) -> None:
        written = records(60, first=100)
        found = read(segment(written, compression), block)
        assert [(r.offset, r.timestamp, r.key, r.value) for r in found] == [
            (w.offset, w.timestamp, w.key, w.value) for w in written
        ]
        assert all(list(r.headers) == [("h", b"1"), ("h", None)] for r in found)

    def test_records_come_in_lists_of_bounded_size(self) -> None:
        data = segment(records(12_000), ZSTD)
        sizes = [len(found) for found in osodevops.read_segment([data])]
        assert sum(sizes) == 12_000
        assert max(sizes) <= 5000

    def test_a_missing_timestamp_is_none(self) -> None:
        assert read(segment([Written(0, -1, b"k", b"v")]))[0].timestamp is None

    def test_headers_that_the_tool_added_are_taken_away(self) -> None:
        written = Written(7, TIME, b"k", b"v", ((b"own", b"1"),), tracked=True)
        assert b"x-source-cluster" in segment([written])
        assert list(read(segment([written]))[0].headers) == [("own", b"1")]

    def test_headers_of_such_names_that_say_something_else_stay(self) -> None:
        foreign = ((b"x-original-offset", struct.pack("<q", 99)), (b"x-original-timestamp", struct.pack("<q", TIME)))
        found = read(segment([Written(7, TIME, None, b"v", foreign)]))[0]
        assert [name for name, _ in found.headers] == ["x-original-offset", "x-original-timestamp"]

    def test_the_headers_of_a_record_that_was_restored_and_backed_up_again_stay(self) -> None:
        earlier = ((b"x-original-offset", struct.pack("<q", 1)), (b"x-original-timestamp", struct.pack("<q", TIME)))
        found = read(segment([Written(7, TIME, None, b"v", earlier, tracked=True)]))[0]
        assert [name for name, _ in found.headers] == ["x-original-offset", "x-original-timestamp"]

    @given(
        st.lists(
            st.tuples(
                st.integers(1, 1000),
                st.integers(0, 1 << 42),
                st.none() | st.binary(max_size=40),
                st.none() | st.binary(max_size=40),
                st.lists(st.tuples(st.binary(max_size=8), st.none() | st.binary(max_size=8)), max_size=3),
            ),
            min_size=1,
            max_size=20,
        ),
        st.sampled_from([NONE, ZSTD, LZ4]),
    )
    def test_whatever_was_written_is_read(
        self,
        drawn: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
        compression: int,
    ) -> None:
        written, offset = [], 0
        for step, time, key, value, headers in drawn:
            offset += step
            written.append(Written(offset, time, key, value, tuple(headers)))
        found = read(segment(written, compression))
        assert [
            (r.offset, r.timestamp, r.key, r.value, [(n.encode("utf-8", "surrogateescape"), c) for n, c in r.headers])
            for r in found
        ] == [(w.offset, w.timestamp, w.key, w.value, list(w.headers)) for w in written]


class TestDamage:
    @CODECS
    def test_a_flipped_byte_anywhere_is_found(self, compression: int) -> None:
        data = segment(records(5), compression)
        for at in range(len(data)):
            altered = bytearray(data)
            altered[at] ^= 0x10
            with pytest.raises(CorruptSegment):
                read(bytes(altered))

    @CODECS
    def test_a_cut_anywhere_is_found(self, compression: int) -> None:
        data = segment(records(5), compression)
        for end in range(len(data)):
            with pytest.raises(CorruptSegment):
                read(data[:end])

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (segment(records(2), version=2), "it is of segment version 2, only version 1 is known"),
            (segment(records(2), NONE, method=3), "it is compressed with method 3, only 0, 1 "),
            (b'[{"key":null}]' + bytes(40), "a segment of JSON"),
            (b"PK\3\4" + bytes(40), "does not begin with KBAK"),
            (b"KBAK", "cut short: 0 bytes, the header alone has 32"),
            (segment(records(3), count=4), "it holds 3 records, its header says 4"),
            (segment(records(3), first=1), "its first record has offset 0, its header says 1"),
            (segment(records(3), last=7), "its last record has offset 2, its header says 7"),
            (segment([*records(1), *records(1)]), "offset 0 follows offset 0"),
            (segment(records(1), body=records(1)[0].pack() + b"ab"), "2 bytes after record 0 are not a record"),
            (segment(records(1), body=struct.pack("<I", 3) + b"abc"), "record 0 has a length of 3 bytes"),
            (segment(records(1), body=lying_key()), "a length of 500 bytes, where"),
            (segment(records(1), body=records(1)[0].pack()[:-1]), "are not a record"),
            (segment(records(1), body=longer_record()), "does not fill its length"),
            (segment(records(3))[:-4] + b"XXXX", "it ends with b'XXXX', not with BKAE"),
            (segment(records(3))[:-8] + b"\0\0\0\0BKAE", "its CRC-32 is [0-9a-f]{8}, its footer says 00000000"),
            (segment(records(3), NONE, method=ZSTD), "its zstd data cannot be decompressed"),
            (segment(records(3), NONE, method=LZ4), "lz4"),
        ],
    )
    def test_what_is_wrong_is_said(self, data: bytes, message: str) -> None:
        with pytest.raises(CorruptSegment, match=message):
            read(data)

    def test_an_lz4_block_of_more_than_a_task_may_take_is_refused(self) -> None:
        zeros = bytes(whole_segment_most() + 1)
        packed = bytes(cramjam.lz4.compress_block(zeros))
        assert len(packed) < 2 << 20
        with pytest.raises(BatchTooLarge, match=f"claims to hold {len(zeros)} bytes, at most {len(zeros) - 1}"):
            read(segment(records(3), NONE, method=LZ4, body=packed))

    def test_an_lz4_block_that_claims_to_be_huge_is_not_believed(self) -> None:
        good = segment(records(3), LZ4)
        lying = segment(records(3), NONE, method=LZ4, body=b"\xff\xff\xff\x7f" + good[36:-8])
        with pytest.raises(CorruptSegment, match="claims to hold 2147483647 bytes"):
            read(lying)


def manifest(**changes: object) -> bytes:
    part = {
        "partition_id": 2,
        "segments": [
            {
                "key": "b/topics/orders/partition=2/segment-0.bin",
                "start_offset": 0,
                "end_offset": 9,
                "start_timestamp": 0,
                "end_timestamp": 9,
                "record_count": 10,
                "uncompressed_size": 100,
                "compressed_size": 50,
                **changes,
            }
        ],
        "gaps": [{"start_offset": 10, "end_offset": 12, "reason": "offset_out_of_range", "detected_at": 1}],
    }
    topic = {"name": "orders", "original_partition_count": 3, "partitions": [part]}
    return json.dumps({"backup_id": "b", "created_at": 1, "later": True, "topics": [topic]}).encode()


class TestManifest:
    def test_topics_segments_and_gaps(self) -> None:
        found = osodevops.read_manifest(manifest())
        assert (found.backup_id, found.cluster_id) == ("b", "")
        (topic,) = found.topics
        assert (topic.name, topic.partition_count) == ("orders", 3)
        (part,) = topic.partitions
        key = "b/topics/orders/partition=2/segment-0.bin"
        assert part.segments == (osodevops.ManifestSegment(key, 0, 9, 10, 50),)
        assert part.gaps == (osodevops.ManifestGap(10, 12, "offset_out_of_range"),)

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"{", r"it is not complete JSON \(1 bytes\)"),
            (b"[]", "it is not a JSON object"),
            (b"{}", "it is not a manifest of a backup: key 'topics' is missing"),
            (manifest(start_offset=-1), "it is not a manifest of a backup: -1 is not a number from 0 on"),
            (manifest(end_offset="9"), "'9' is not a number"),
            (manifest(key=""), "'' is not text"),
        ],
    )
    def test_what_is_wrong_is_said(self, data: bytes, message: str) -> None:
        with pytest.raises(CorruptSegment, match=message):
            osodevops.read_manifest(data)


class TestGroups:
    def test_positions(self) -> None:
        data = b'{"snapshot_time":1,"groups":[{"group_id":"g","offsets":{"orders":{"0":5,"12":7}}}]}'
        assert osodevops.read_groups(data) == [
            osodevops.ManifestPosition("g", "orders", 0, 5),
            osodevops.ManifestPosition("g", "orders", 12, 7),
        ]

    @pytest.mark.parametrize(
        "data", [b"{}", b'{"groups":[{}]}', b'{"groups":[{"group_id":"g","offsets":{"t":{"x":1}}}]}']
    )
    def test_anything_else_is_refused(self, data: bytes) -> None:
        with pytest.raises(CorruptSegment, match="it is not a snapshot of consumer groups"):
            osodevops.read_groups(data)
