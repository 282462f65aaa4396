"""A folder of the Records format survives kill -9 and the loss of what was not committed, at any byte.

What a crash leaves is made in two ways: by a real process that is killed, and by cutting files at every byte.
"""

import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from logkeep_engine.errors import ArchiveBusy, CorruptSegment
from logkeep_engine.formats.records_index import IndexCheck, IndexState
from logkeep_engine.formats.records_names import RecordsName, read_partition_index, segments_of
from logkeep_engine.formats.records_recovery import SegmentRecovery, recover_segment
from logkeep_engine.log.damage import DamagedBytes
from tests.unit.formats import records_writer
from tests.unit.formats.records_folder import RecordsFolder, SegmentAppender, remake_partition_index
from tests.unit.formats.records_golden import FIRST, POSITIONS, RECORDS, golden
from tests.unit.formats.records_oracle import pack_record

SEGMENT, INDEX = golden(f"{FIRST}_records"), golden(f"{FIRST}_index")
OFFSETS = [record.offset for record in RECORDS]
NO_LIMIT = 2**40


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def lay(folder: Path, data: bytes, index: bytes | None) -> tuple[Path, Path]:
    """The golden segment's files with these contents."""
    records, beside = folder / f"{FIRST}_records", folder / f"{FIRST}_index"
    records.write_bytes(data)
    beside.unlink(missing_ok=True)
    if index is not None:
        beside.write_bytes(index)
    return records, beside


def entries(count: int) -> bytes:
    return INDEX[: 1 + 24 * count]


# ---- growing


def test_folder_grown_record_by_record_is_that_of_the_table(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, NO_LIMIT) as folder:
        for record in RECORDS:
            folder.append([record])
        assert folder.commit() == 2**32 + 1
    written = files(tmp_path)
    assert written.pop(f"{FIRST}_records") == SEGMENT
    assert written.pop(f"{FIRST}_index") == INDEX
    assert read_partition_index(written.pop("index_partition_000")) == [RecordsName(0, 0)]
    assert not written


def test_segments_rotate_after_the_record_over_the_threshold_and_keep_their_names(tmp_path: Path) -> None:
    for limit in (0, 1, 36, 37, 74, 100, 229, 230):
        path = tmp_path / str(limit)
        with RecordsFolder(path, 3, limit) as folder:
            folder.append(RECORDS)
        starts, segments = [0], [[RECORDS[0]]]
        for record in RECORDS[1:]:
            if 1 + sum(map(len, map(pack_record, segments[-1]))) > limit:
                starts.append(record.offset)
                segments.append([])
            segments[-1].append(record)
        assert segments_of(os.listdir(path)) == {3: [RecordsName(3, start) for start in starts]}
        assert read_partition_index((path / "index_partition_003").read_bytes()) == segments_of(os.listdir(path))[3]
        for start, held in zip(starts, segments, strict=True):
            data = (path / RecordsName(3, start).records).read_bytes()
            assert data == b"\x01" + b"".join(map(pack_record, held))


def test_appending_again_from_anywhere_changes_nothing(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, 80) as folder:
        folder.append(RECORDS)
    before = files(tmp_path)
    assert len(before) == 2 * 3 + 1
    for start in range(len(RECORDS)):
        with RecordsFolder(tmp_path, 0, 80) as folder:
            assert folder.next_offset == 2**32 + 1
            folder.append(RECORDS[start:])
            folder.append(RECORDS)
            assert folder.commit() == 2**32 + 1
        assert files(tmp_path) == before


def test_going_on_after_closing_makes_the_same_files(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path / "once", 0, 80) as folder:
        folder.append(RECORDS)
    for end in range(len(RECORDS) + 1):
        with RecordsFolder(tmp_path / "often", 0, 80) as folder:
            folder.append(RECORDS[:end])
    assert files(tmp_path / "often") == files(tmp_path / "once")


def test_other_record_of_an_offset_is_refused_in_the_last_and_in_an_older_segment(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, 80) as folder:
        folder.append(RECORDS)
        before = files(tmp_path)
        for number, segment in [(0, "0000000000"), (3, "0000000005"), (5, "4294967296")]:
            with pytest.raises(CorruptSegment) as caught:
                folder.append([RECORDS[number]._replace(key=b"other")])
            assert str(caught.value) == (
                f"segment_partition_000_from_offset_{segment} has another record at offset {OFFSETS[number]} already. "
                "Write into another folder, if the topic was deleted and created again."
            )
        assert files(tmp_path) == before


def test_record_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, NO_LIMIT) as folder:
        folder.append(RECORDS)
        with pytest.raises(CorruptSegment) as caught:
            folder.append([RECORDS[0]._replace(offset=3)])
    assert str(caught.value) == (
        "The record at offset 3 comes after offset 4294967296, and segment_partition_000_from_offset_0000000000 has "
        "none of that offset: offsets must rise. Write into another folder, if the topic was deleted and created again."
    )


def test_record_of_a_segment_that_was_deleted_is_refused(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, 80) as folder:
        folder.append(RECORDS)
        for name in (f"{FIRST}_records", f"{FIRST}_index"):
            (tmp_path / name).unlink()
        message = (
            r"^The record at offset 1 comes after offset 4294967296, and the segment that could have it is not in the "
            r"folder\. Go on from offset 4294967297\.$"
        )
        with pytest.raises(CorruptSegment, match=message):
            folder.append([RECORDS[1]])
    with RecordsFolder(tmp_path, 0, 80) as folder, pytest.raises(CorruptSegment, match=message):
        folder.append([RECORDS[1]])


def test_partition_index_is_remade_after_old_segments_were_deleted(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, 80) as folder:
        folder.append(RECORDS)
    for name in (f"{FIRST}_records", f"{FIRST}_index"):
        (tmp_path / name).unlink()
    assert remake_partition_index(tmp_path, 0)
    assert not remake_partition_index(tmp_path, 0)
    left = [RecordsName(0, 5), RecordsName(0, 2**32)]
    assert read_partition_index((tmp_path / "index_partition_000").read_bytes()) == left
    (tmp_path / "index_partition_000").write_bytes(b"\x02")
    RecordsFolder(tmp_path, 0, 80).close()
    assert read_partition_index((tmp_path / "index_partition_000").read_bytes()) == left


def test_partitions_share_a_folder(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path, 0, NO_LIMIT) as one, RecordsFolder(tmp_path, 12, NO_LIMIT) as other:
        one.append(RECORDS[:2])
        other.append(RECORDS[2:])
    assert segments_of(os.listdir(tmp_path)) == {0: [RecordsName(0, 0)], 12: [RecordsName(12, 0)]}


def test_second_writer_of_a_partition_is_reported(tmp_path: Path) -> None:
    message = f"Another process is writing {FIRST}_records in {tmp_path}. Let it end, or stop it, and start again."
    with RecordsFolder(tmp_path, 0, NO_LIMIT) as folder:
        folder.append(RECORDS)
        with pytest.raises(ArchiveBusy) as caught:
            RecordsFolder(tmp_path, 0, NO_LIMIT)
        assert str(caught.value) == message
    lay(tmp_path, SEGMENT[:37] + b"torn" + SEGMENT[37:], entries(1) + b"".join(shifted(1, 4)))
    with SegmentAppender(tmp_path, RecordsName(0, 0)), pytest.raises(ArchiveBusy):
        SegmentAppender(tmp_path, RecordsName(0, 0))  # also when recovery has put another file in its place


# ---- what a crash leaves


def test_segment_cut_at_every_byte_is_whole_up_to_the_cut_and_the_same_after_appending_again(tmp_path: Path) -> None:
    """The index is complete, as after a loss of power that took the end of one file only."""
    for cut in range(len(SEGMENT) + 1):
        records, index = lay(tmp_path, SEGMENT[:cut], INDEX)
        whole = sum(end <= cut for end in POSITIONS[1:])
        assert recover_segment(records, index, dry_run=True).records == whole
        assert records.read_bytes() == SEGMENT[:cut]
        with RecordsFolder(tmp_path, 0, NO_LIMIT) as folder:
            assert folder.next_offset == (OFFSETS[whole - 1] + 1 if whole else 0)
            assert records.read_bytes() == SEGMENT[: POSITIONS[whole]]
            assert index.read_bytes() == entries(whole)
            folder.append(RECORDS)
        assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_index_cut_at_every_byte_is_completed_from_the_records(tmp_path: Path) -> None:
    for cut in [None, *range(len(INDEX) + 1)]:
        records, index = lay(tmp_path, SEGMENT, None if cut is None else INDEX[:cut])
        have = 0 if cut is None else max(0, (cut - 1) // 24)
        found = recover_segment(records, index)
        assert (found.records, found.next_offset, found.cuts, found.unindexed) == (6, 2**32 + 1, (), 6 - have)
        assert found.index.state is (
            IndexState.MISSING if cut is None else IndexState.WRONG if cut == 0 else IndexState.SHORT
        ) or cut == len(INDEX)
        assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)
        assert recover_segment(records, index).clean


def test_both_files_cut_anywhere_are_brought_together(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(300):
        cut, index_cut = rng.randrange(len(SEGMENT) + 1), rng.randrange(len(INDEX) + 1)
        records, index = lay(tmp_path, SEGMENT[:cut], INDEX[:index_cut])
        with RecordsFolder(tmp_path, 0, NO_LIMIT) as folder:
            whole = sum(end <= cut for end in POSITIONS[1:])
            assert (records.read_bytes(), index.read_bytes()) == (SEGMENT[: POSITIONS[whole]], entries(whole))
            folder.append(RECORDS)
        assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_dry_run_tells_what_would_be_cut_and_changes_nothing(tmp_path: Path) -> None:
    records, index = lay(tmp_path, SEGMENT[:210], INDEX)
    before = files(tmp_path)
    cut = DamagedBytes(
        "The segment is cut short: the record at position 197 needs at least 24 bytes and 13 are left.", 13, 197
    )
    assert recover_segment(records, index, dry_run=True) == SegmentRecovery(
        records=5,
        first_offset=0,
        next_offset=7,
        size=210,
        valid_bytes=197,
        cuts=(cut,),
        unindexed=0,
        index=IndexCheck(IndexState.LONG, 5, "The index has 24 bytes more than its segment's 5 records need."),
    )
    assert files(tmp_path) == before
    assert recover_segment(records, index).cuts == (cut,)
    assert (records.read_bytes(), index.read_bytes()) == (SEGMENT[:197], entries(5))


def test_segment_without_a_record_is_recovered(tmp_path: Path) -> None:
    for data in (b"", b"\x01"):
        records, index = lay(tmp_path, data, None)
        found = recover_segment(records, index)
        assert (found.records, found.first_offset, found.next_offset, found.valid_bytes) == (0, -1, -1, 1)
        assert (records.read_bytes(), index.read_bytes()) == (b"\x01", b"\x01")


def test_segment_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    records, index = lay(tmp_path, b"\x02" + SEGMENT[1:], INDEX[:30])
    before = files(tmp_path)
    with pytest.raises(CorruptSegment, match="version 2 of the Records format"):
        recover_segment(records, index)
    with pytest.raises(CorruptSegment, match="version 2 of the Records format"):
        RecordsFolder(tmp_path, 0, NO_LIMIT)
    assert files(tmp_path) == before


def test_folder_left_between_a_new_segment_and_the_partition_index_is_made_whole(tmp_path: Path) -> None:
    with RecordsFolder(tmp_path / "whole", 0, 80) as folder:
        folder.append(RECORDS)
    with RecordsFolder(tmp_path / "left", 0, 80) as folder:
        folder.append(RECORDS[:3])
    (tmp_path / "left" / RecordsName(0, 5).records).touch()
    with RecordsFolder(tmp_path / "left", 0, 80) as folder:
        assert folder.next_offset == 5
        folder.append(RECORDS)
    assert files(tmp_path / "left") == files(tmp_path / "whole")


# ---- what the original tool makes of a crash: it appends after the torn end, and the index jumps over it


def shifted(first: int, by: int, last: int = 6) -> list[bytes]:
    """The entries of records `first` to `last` when they lie `by` bytes later."""
    return [
        struct.pack(">3q", OFFSETS[n], POSITIONS[n] + by, POSITIONS[n + 1] - POSITIONS[n]) for n in range(first, last)
    ]


def test_torn_record_that_the_index_jumps_over_is_taken_out(tmp_path: Path) -> None:
    """The record was torn at any byte, and written again after it."""
    for number in range(6):
        start, end = POSITIONS[number : number + 2]
        for torn in range(1, end - start):
            data = SEGMENT[: start + torn] + SEGMENT[start:]
            records, index = lay(tmp_path, data, entries(number) + b"".join(shifted(number, torn)))
            found = recover_segment(records, index)
            assert [(cut.position, cut.end) for cut in found.cuts] == [(start, start + torn)], (number, torn)
            assert (found.records, found.size, found.valid_bytes) == (6, 230 + torn, 230)
            assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_whole_record_that_the_index_jumps_over_and_has_again_is_taken_out(tmp_path: Path) -> None:
    for number in range(6):
        start, end = POSITIONS[number : number + 2]
        data = SEGMENT[:end] + SEGMENT[start:]
        records, index = lay(tmp_path, data, entries(number) + b"".join(shifted(number, end - start)))
        found = recover_segment(records, index)
        assert [(cut.position, cut.end) for cut in found.cuts] == [(start, end)]
        assert found.cuts[0].what == f"The index continues with offset {OFFSETS[number]} at position {end}."
        assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_records_that_only_the_segment_has_are_kept(tmp_path: Path) -> None:
    """The end of the index was lost with the machine, and the topic continued later: its old records are gone there."""
    records, index = lay(tmp_path, SEGMENT, entries(2) + INDEX[1 + 24 * 4 :])
    found = recover_segment(records, index)
    assert (found.cuts, found.records, found.unindexed) == ((), 6, 2)
    assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_two_crashes_leave_two_cuts(tmp_path: Path) -> None:
    torn = SEGMENT[:47] + SEGMENT[37:130] + SEGMENT[125:]
    said = entries(1) + b"".join(shifted(1, 10, 4) + shifted(4, 15))
    records, index = lay(tmp_path, torn, said)
    found = recover_segment(records, index)
    assert [(cut.position, cut.end) for cut in found.cuts] == [(37, 47), (135, 140)]
    assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


def test_damaged_record_is_taken_out_where_the_index_knows_the_next(tmp_path: Path) -> None:
    """Flipped is the length of the value: it ends outside of the segment, or exactly where a later record ends."""
    for length in (2**30, 2 + 64):
        data = SEGMENT[:27] + struct.pack(">i", length) + SEGMENT[31:]
        records, index = lay(tmp_path, data, INDEX)
        found = recover_segment(records, index)
        assert [(cut.position, cut.end) for cut in found.cuts] == [(1, 37)]
        assert records.read_bytes() == b"\x01" + SEGMENT[37:]
        assert index.read_bytes() == b"\x01" + b"".join(shifted(1, -36))
        with_no_index = lay(tmp_path, data, None)
        assert recover_segment(*with_no_index).valid_bytes == (1 if length == 2**30 else 230)


def test_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    """Every byte of the index is flipped in turn: the records decide."""
    for at in range(1, len(INDEX)):
        damaged = bytearray(INDEX)
        damaged[at] ^= 0x81
        records, index = lay(tmp_path, SEGMENT, bytes(damaged))
        found = recover_segment(records, index)
        assert (found.cuts, found.records) == ((), 6)
        assert found.index.state is IndexState.WRONG
        assert (records.read_bytes(), index.read_bytes()) == (SEGMENT, INDEX)


# ---- a process that is killed


def reference(folder: Path) -> dict[str, bytes]:
    with RecordsFolder(folder, 0, records_writer.SEGMENT_BYTES) as partition:
        partition.append(records_writer.records())
    return files(folder)


def test_writer_killed_again_and_again_loses_nothing_committed_and_ends_with_the_same_files(tmp_path: Path) -> None:
    rng = random.Random(11)
    expected = reference(tmp_path / "reference")
    assert len(expected) > 2 * 5
    folder = tmp_path / "killed"
    kills = 0
    for seed in range(60):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.formats.records_writer", str(folder), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout is not None
        writer.stdout.readline()  # its first commit
        time.sleep(rng.random() * 0.01)
        writer.kill()
        committed = max((int(line) for line in writer.stdout.read().split()), default=0)
        kills += writer.wait() == -9
        writer.stdout.close()
        with RecordsFolder(folder, 0, records_writer.SEGMENT_BYTES) as partition:
            assert partition.next_offset >= committed
        held = files(folder)
        for name, content in held.items():
            if name != "index_partition_000":
                assert expected[name].startswith(content)
        if held == expected:
            break
    assert kills > 5
    with RecordsFolder(folder, 0, records_writer.SEGMENT_BYTES) as partition:
        partition.append(records_writer.records())
    assert files(folder) == expected
