"""Segments in seekable zstd: read as plain ones are, and every damage costs what it hit and no more."""

import random
import struct
import tracemalloc
from pathlib import Path

import cramjam
import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading import log_reader
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged
from logkeep_engine.archive.reading.salvage import survey
from logkeep_engine.archive.reading.segments import first_at_or_after, read_from, read_segment
from logkeep_engine.contract.archive_format import Compression, DigestAlgorithm
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record, decode, encode
from logkeep_engine.log.seekable import FRAME_BYTES, SeekTable, ZstdFrame
from logkeep_engine.storage import Storage, open_uri
from tests.unit.archive.build import ORDERS, TIME, archive_of, begin, changed, verify_segment, write_segment

RECORDS = 10
RNG = random.Random(11)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def batches(count: int, size: int = 40_000, codec: Codec = Codec.NONE) -> list[bytes]:
    """Batches of ten records and about `size` bytes, half of them noise; one record a millisecond."""
    half = size // RECORDS // 2
    return [
        encode(
            [
                Record(offset, TIME + offset, b"key", RNG.randbytes(half) + b"x" * half, ())
                for offset in range(number * RECORDS, (number + 1) * RECORDS)
            ],
            codec=codec,
            base_offset=number * RECORDS,
        )
        for number in range(count)
    ]


def zstd(storage: Storage, logs: list[bytes]) -> SegmentEntry:
    return write_segment(storage, logs, compression=Compression.ZSTD)


def path(entry: SegmentEntry) -> str:
    return entry.stem("orders") + names.LOG_ZST


def frames(storage: Storage, entry: SegmentEntry) -> tuple[ZstdFrame, ...]:
    return SeekTable.parse(storage.read(path(entry)), entry.files.stored_bytes).frames


def log(storage: Storage, entry: SegmentEntry, block: int = 8 << 20) -> bytes:
    return b"".join(bytes(run) for run, _ in read_segment(storage, "orders", entry, block=block))


def tolerant(storage: Storage, entry: SegmentEntry, block: int = 8 << 20) -> tuple[list[Range], list[Damage], set[int]]:
    """(lost ranges, faults, base offsets of the batches that are read)."""
    lost: list[Range] = []
    faults: list[Damage] = []

    def note(damage: Damage) -> None:
        faults.append(damage)
        if damage.lost is not None:
            lost.append(damage.lost)

    read = {
        decode(run, position)[0].offset
        for run, headers in read_segment(storage, "orders", entry, on_damage=note, block=block)
        for position, _ in headers
    }
    return lost, faults, read


def offsets_of(frame: ZstdFrame, logs: list[bytes]) -> Range:
    """Offsets of the batches in a frame."""
    start, found = 0, []
    for number, data in enumerate(logs):
        if frame.start <= start < frame.start + frame.size:
            found.append(number)
        start += len(data)
    return found[0] * RECORDS, (found[-1] + 1) * RECORDS


@pytest.mark.parametrize("block", [1000, FRAME_BYTES, 3 << 20, 8 << 20])
@pytest.mark.parametrize("size", [300, 40_000, 1_500_000])
def test_a_compressed_segment_reads_as_its_log(storage: Storage, block: int, size: int) -> None:
    logs = batches(max(5, min(120, 5_000_000 // size)), size)
    entry = zstd(storage, logs)
    assert log(storage, entry, block) == b"".join(logs)
    assert bytes(cramjam.zstd.decompress(storage.read(path(entry)))) == b"".join(logs)
    assert entry.objects("orders")[path(entry)] == entry.files.stored_bytes == len(storage.read(path(entry)))
    assert entry.files.stored_bytes < entry.bytes == len(b"".join(logs))
    assert verify_segment(storage, "orders", entry) == []


def test_views_stay_right_while_they_are_kept(storage: Storage) -> None:
    logs = batches(200)
    for entry in (zstd(storage, logs), write_segment(storage, logs)):
        kept = [run for run, _ in read_segment(storage, "orders", entry, block=300_000)]
        assert b"".join(kept) == b"".join(logs)


@pytest.mark.parametrize("block", [400_000, 8 << 20])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_damaged_frame_costs_its_own_offsets_only(storage: Storage, number: int, block: int) -> None:
    logs = batches(100)
    entry = zstd(storage, logs)
    frame = frames(storage, entry)[number]
    data = bytearray(storage.read(path(entry)))
    data[frame.at : frame.at + frame.stored] = RNG.randbytes(frame.stored)
    storage.put(path(entry), bytes(data))
    lost, faults, read = tolerant(storage, entry, block)
    span = offsets_of(frame, logs)
    assert lost == [span]
    assert read == set(range(0, 1000, RECORDS)) - set(range(*span, RECORDS))
    (fault,) = faults
    assert (fault.object, fault.topic, fault.partition, fault.offset) == (
        f"{storage.uri}/{path(entry)}",
        "orders",
        0,
        span[0],
    )
    assert f"the zstd frame at byte {frame.at} of the object, {frame.stored} bytes, is damaged" in fault.what
    with pytest.raises(ArchiveDamaged, match=f"offset {span[0]}.*the zstd frame at byte {frame.at}"):
        log(storage, entry, block)
    assert [item.lost for item in open_damaged(storage, "orders", [entry]).batches() if isinstance(item, Damage)] == [
        span
    ]
    found = survey(storage, "orders", [entry])
    assert (found.damaged, [(item.start, item.end) for item in found.lost]) == ((0,), [span])


def test_two_frames_side_by_side_are_one_loss(storage: Storage) -> None:
    logs = batches(150)
    entry = zstd(storage, logs)
    one, two = frames(storage, entry)[1:3]
    data = bytearray(storage.read(path(entry)))
    data[one.at : two.at + two.stored] = bytes(one.stored + two.stored)
    storage.put(path(entry), bytes(data))
    lost, _, _ = tolerant(storage, entry)
    assert lost == [(offsets_of(one, logs)[0], offsets_of(two, logs)[1])]


def test_a_flipped_bit_anywhere_is_found_and_costs_at_most_its_frame(storage: Storage) -> None:
    logs = batches(60, 4000)
    entry = zstd(storage, logs)
    whole = storage.read(path(entry))
    places = [*range(20), *RNG.sample(range(len(whole)), 60), *range(len(whole) - 25, len(whole))]
    for place in places:
        data = bytearray(whole)
        data[place] ^= 1 << RNG.randrange(8)
        storage.put(path(entry), bytes(data))
        lost, faults, read = tolerant(storage, entry)
        changed = bytes(cramjam.zstd.decompress(whole)) != _decompressed(bytes(data))
        if changed or place >= len(whole) - 25:
            # The two unused bits of the table's descriptor, and bits of a frame that no decoder reads, say nothing.
            assert faults or place == len(whole) - 5, place
        missing = set(range(0, 600, RECORDS)) - read
        assert missing == {at for start, end in lost for at in range(start, end, RECORDS)}
        if place >= len(whole) - 25:
            assert not missing


def _decompressed(data: bytes) -> bytes:
    try:
        return bytes(cramjam.zstd.decompress(data))
    except cramjam.DecompressionError:
        return b""


@pytest.mark.parametrize("large", [False, True])
def test_an_object_that_is_cut_loses_what_lies_after_the_cut(storage: Storage, large: bool) -> None:
    logs = batches(600 if large else 100)
    entry = zstd(storage, logs)
    whole = storage.read(path(entry))
    found = frames(storage, entry)
    assert (entry.files.stored_bytes > 8 << 20) is large
    for end in (0, 3, found[1].at, found[1].at + 100, found[-1].at - 1, len(whole) - 40, len(whole) - 1):
        storage.put(path(entry), whole[:end])
        lost, faults, read = tolerant(storage, entry)
        kept = [frame for frame in found if frame.at + frame.stored <= end]
        first = offsets_of(kept[-1], logs)[1] if kept else 0
        assert lost == ([(first, len(logs) * RECORDS)] if first < len(logs) * RECORDS else [])
        assert read == set(range(0, first, RECORDS))
        assert "fewer bytes than the" in faults[0].what or end == 0
        with pytest.raises(ArchiveDamaged):
            log(storage, entry)
        assert verify_segment(storage, "orders", entry)


def test_bytes_after_the_object_and_a_missing_object_are_reported(storage: Storage) -> None:
    logs = batches(50)
    entry = zstd(storage, logs)
    whole = storage.read(path(entry))
    storage.put(path(entry), whole + b"more")
    lost, faults, read = tolerant(storage, entry)
    assert (lost, len(read)) == ([], 50)
    assert [fault.what for fault in faults] == [
        f"the object has more bytes than the {entry.files.stored_bytes} that the catalog says"
    ]
    storage.delete([path(entry)])
    lost, faults, _ = tolerant(storage, entry)
    assert (lost, [fault.what for fault in faults]) == ([(0, 500)], ["the object is missing"])


@pytest.mark.parametrize(
    "sizes",
    [
        lambda found: [(frame.stored, frame.size) for frame in found[:-1]],
        lambda found: [(found[0].stored, 1 << 30), *((frame.stored, frame.size) for frame in found[1:])],
        lambda found: [(found[0].stored + 1, found[0].size), *((frame.stored, frame.size) for frame in found[1:])],
        lambda found: [(frame.stored, 0) for frame in found],
        lambda found: [],
    ],
)
def test_a_wrong_seek_table_is_reported_and_costs_nothing(storage: Storage, sizes: object) -> None:
    logs = batches(100)
    entry = zstd(storage, logs)
    found = frames(storage, entry)
    data = storage.read(path(entry))[: found[-1].at + found[-1].stored]
    wrong = SeekTable.of(sizes(found)).pack()  # type: ignore[operator]
    storage.put(path(entry), (data + wrong).ljust(entry.files.stored_bytes, b"\0")[-entry.files.stored_bytes :])
    lost, faults, read = tolerant(storage, entry)
    assert (lost, len(read), len(faults)) == ([], 100, 1)
    with pytest.raises(ArchiveDamaged, match=r"seek table"):
        log(storage, entry)


def test_a_wrong_seek_table_and_a_damaged_frame_cost_the_frame(storage: Storage) -> None:
    logs = batches(100)
    entry = zstd(storage, logs)
    frame = frames(storage, entry)[1]
    data = bytearray(storage.read(path(entry)))
    data[frame.at : frame.at + 50] = bytes(50)
    data[-2] ^= 1
    storage.put(path(entry), bytes(data))
    lost, faults, _ = tolerant(storage, entry)
    assert lost == [offsets_of(frame, logs)]
    assert len(faults) == 2
    assert "does not end with a seek table" in faults[0].what
    assert f"no whole zstd frame at byte {frame.at} of the object" in faults[1].what


def test_a_frame_that_holds_far_more_than_the_table_says_is_not_unpacked(storage: Storage) -> None:
    logs = batches(50)
    entry = zstd(storage, logs)
    found = frames(storage, entry)
    data = storage.read(path(entry))
    bomb = bytes(cramjam.zstd.compress(bytes(64 << 20)))
    filler = struct.pack("<II", 0x184D2A50, found[0].stored - len(bomb) - 8)
    storage.put(path(entry), (bomb + filler).ljust(found[0].stored, b"\0") + data[found[0].stored :])
    lost, _, _ = tolerant(storage, entry)
    assert lost == [offsets_of(found[0], logs)]


def test_a_log_that_was_altered_and_compressed_again_is_found_by_its_hash(storage: Storage) -> None:
    logs = batches(50)
    entry = zstd(storage, logs)
    altered = bytearray(logs[3])
    altered[15] ^= 1  # the leader epoch, which no CRC covers
    other = zstd(storage, [*logs[:3], bytes(altered), *logs[4:]])
    (fault,) = verify_segment(storage, "orders", changed(entry, stored_bytes=other.files.stored_bytes))
    assert "its BLAKE3 is" in fault.what


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_stay_as_they_are(storage: Storage, codec: Codec) -> None:
    logs = batches(60, codec=codec)
    entry = zstd(storage, logs)
    assert log(storage, entry) == b"".join(logs)
    assert entry.codecs == {codec.name.lower(): 60}


def test_an_archive_with_both_kinds_is_whole_and_its_leftovers_are_orphans(storage: Storage) -> None:
    logs = batches(60)
    first, second = zstd(storage, logs[:30]), write_segment(storage, logs[30:])
    receipt = Receipt((Coverage(ORDERS.topic_id, 0, 0, 600),), (first, second))
    archive = archive_of(storage, receipt)
    left = write_segment(storage, logs[:5], attempt=2, compression=Compression.ZSTD)
    report = verify(archive)
    assert report.faults == []
    assert sorted(report.orphans) == sorted(left.objects("orders"))
    assert path(left) in report.orphans
    assert Archive.open(storage).load().segments[ORDERS.topic_id, 0][0].files.stored_bytes == first.files.stored_bytes
    storage.delete([path(first)])
    (fault,) = verify(archive).faults
    assert (fault.object, fault.what) == (f"{storage.uri}/{path(first)}", "the object is missing")


def test_an_archive_may_have_plain_and_compressed_segments(storage: Storage) -> None:
    logs = batches(60)
    plain = write_segment(storage, logs[:30], digest=DigestAlgorithm.SHA256)
    compressed = zstd(storage, logs[30:])
    with begin(storage) as writer:
        writer.commit(topics=[ORDERS], receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 0, 300),), (plain,))])
        writer.commit(receipts=[Receipt((Coverage(ORDERS.topic_id, 0, 300, 600),), (compressed,))])
        writer.end(RunOutcome.SUCCEEDED)
    assert list(Archive.open(storage).load().segments[ORDERS.topic_id, 0]) == [plain, compressed]


# ---- from the middle


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("size", [300, 40_000, 1_500_000])
def test_one_offset_is_read_without_what_lies_before_it(storage: Storage, compression: Compression, size: int) -> None:
    logs = batches(max(6, min(120, 6_000_000 // size)), size)
    entry = write_segment(storage, logs, compression=compression)
    for number in {0, 1, len(logs) // 2, len(logs) - 1}:
        for offset in (number * RECORDS, number * RECORDS + 9):
            found = b"".join(bytes(run) for run, _ in read_from(storage, "orders", entry, offset))
            assert found == b"".join(logs[number:])
            run, headers = next(iter(read_from(storage, "orders", entry, offset)))
            assert (headers[0][0], headers[0][1].base_offset) == (0, number * RECORDS)
            assert decode(run)[0].offset == number * RECORDS
    assert list(read_from(storage, "orders", entry, entry.next_offset)) == []


@pytest.mark.parametrize("compression", list(Compression))
def test_only_the_frames_that_are_needed_are_read(storage: Storage, compression: Compression) -> None:
    logs = batches(300)
    entry = write_segment(storage, logs, compression=compression)
    data = bytearray(storage.read(entry.stem("orders") + entry.log_suffix))
    data[: len(data) // 2] = bytes(len(data) // 2)
    storage.put(entry.stem("orders") + entry.log_suffix, bytes(data))
    found = b"".join(bytes(run) for run, _ in read_from(storage, "orders", entry, 2700))
    assert found == b"".join(logs[270:])
    with pytest.raises(ArchiveDamaged):
        list(read_from(storage, "orders", entry, 100))


@pytest.mark.parametrize("compression", list(Compression))
def test_without_a_right_index_the_segment_is_read_from_its_start(storage: Storage, compression: Compression) -> None:
    logs = batches(100)
    entry = write_segment(storage, logs, compression=compression)
    index = entry.stem("orders") + names.INDEX
    whole = storage.read(index)
    shifted = b"".join(struct.pack(">ii", offset, at + 1) for offset, at in struct.iter_unpack(">ii", whole))
    ahead = b"".join(
        struct.pack(">ii", offset, after)
        for (offset, _), (_, after) in zip(
            struct.iter_unpack(">ii", whole[:-8]), struct.iter_unpack(">ii", whole[8:]), strict=True
        )
    )
    for wrong in (b"", whole[:-8], whole[:-3], shifted, ahead + whole[-8:], bytes(len(whole)), b"\xff" * len(whole)):
        storage.put(index, wrong)
        assert b"".join(bytes(run) for run, _ in read_from(storage, "orders", entry, 555)) == b"".join(logs[55:])
    storage.delete([index])
    assert b"".join(bytes(run) for run, _ in read_from(storage, "orders", entry, 555)) == b"".join(logs[55:])


@pytest.mark.parametrize("compression", list(Compression))
def test_the_first_batch_of_a_time_is_found(storage: Storage, compression: Compression) -> None:
    logs = batches(100, 3000)
    entry = write_segment(storage, logs, compression=compression)
    for offset in (-5, 0, 1, 9, 10, 11, 555, 999):
        header = first_at_or_after(storage, "orders", entry, TIME + offset)
        assert header is not None
        assert header.base_offset == max(0, offset) // RECORDS * RECORDS
    assert first_at_or_after(storage, "orders", entry, TIME + 1000) is None
    storage.delete([entry.stem("orders") + names.TIMEINDEX, entry.stem("orders") + names.INDEX])
    header = first_at_or_after(storage, "orders", entry, TIME + 555)
    assert header is not None
    assert header.base_offset == 550


@pytest.mark.parametrize("compression", list(Compression))
def test_memory_stays_bounded_whatever_the_segment_holds(storage: Storage, compression: Compression) -> None:
    """Buffers are used again while the caller drops what it has read. A damaged frame needs only a few of them."""
    logs = batches(400, 100_000)
    entry = write_segment(storage, logs, compression=compression)
    assert entry.bytes > 38_000_000
    damaged = entry.stem("orders") + entry.log_suffix
    data = bytearray(storage.read(damaged))
    data[2_000_000:4_000_000] = bytes(2_000_000)
    del logs
    for content in (None, bytes(data)):
        if content is not None:
            storage.put(damaged, content)
        tracemalloc.start()
        for _ in read_segment(storage, "orders", entry, on_damage=lambda *_: None, block=FRAME_BYTES):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 9_000_000


def test_a_seek_table_longer_than_the_first_read_is_read(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "_TAIL_BYTES", 20)
    logs = batches(100)
    entry = zstd(storage, logs)
    assert log(storage, entry, block=300_000) == b"".join(logs)
    storage.put(path(entry), storage.read(path(entry))[:-30])
    lost, faults, read = tolerant(storage, entry, 300_000)
    assert (lost, len(read)) == ([], 100)
    assert "fewer bytes than" in faults[0].what


@pytest.mark.parametrize("compression", list(Compression))
def test_one_log_after_another_is_read_into_the_same_memory(storage: Storage, compression: Compression) -> None:
    logs = batches(100)
    entry = write_segment(storage, logs, compression=compression)

    def read() -> int:
        return sum(len(run) for run, _ in read_segment(storage, ORDERS.name, entry, block=FRAME_BYTES))

    read()
    tracemalloc.start()
    try:
        assert read() == sum(map(len, logs))
        assert tracemalloc.get_traced_memory()[1] < FRAME_BYTES
    finally:
        tracemalloc.stop()
