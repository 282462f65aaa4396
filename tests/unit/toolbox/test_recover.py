"""`logkeep log recover`: says what it would cut, cuts no more than a broker, and keeps what it cuts."""

import struct
from pathlib import Path

import pytest

from logkeep_engine.formats.records import RecordsEncoder
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import archive_of, chunk
from tests.unit.log.batches import NOON, batch, marker, positions
from tests.unit.toolbox.logs import INTERVAL, run, run_json, write_log

FIRST = [batch(0, 10), batch(10, 3, producer_id=4, transactional=True), batch(13, 10)]
SECOND = [batch(23, 2), marker(25, 4, commit=False), batch(26, 5)]
THIRD = [batch(31, 5)]
STEMS = [f"{offset:020}" for offset in (0, 23, 31)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tracker = TransactionTracker()
    for batches in (FIRST, SECOND, THIRD):
        write_log(tmp_path / "orders-0", batches, tracker)
    return tmp_path / "orders-0"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_whole_log_is_left_alone(folder: Path) -> None:
    before = contents(folder)
    done = run("recover", folder, "--yes")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1].endswith(
        f"/00000000000000000023.log: whole, {len(b''.join(SECOND))} bytes, next offset 31"
    )
    assert contents(folder) == before


def test_what_would_be_cut_is_told_and_nothing_is_changed(folder: Path) -> None:
    log = folder / f"{STEMS[1]}.log"
    data = bytearray(log.read_bytes())
    start = positions(SECOND)[2]
    data[start + 70] ^= 1
    log.write_bytes(data)
    before = contents(folder)
    done = run("recover", folder)
    assert done.exit_code == 1
    _, second, third = done.stdout.splitlines()
    assert second.startswith(
        f"{log}: would be cut at position {start}, {len(SECOND[2])} bytes ({len(SECOND[2])} B) go, "
        "the next offset is 26: The batch at offset 26 is damaged: its CRC is "
    )
    size = len(THIRD[0])
    assert (
        third == f"{folder}/{STEMS[2]}.log: would be dropped, {size} bytes ({size} B): it is behind the damage of {log}"
    )
    assert contents(folder) == before


def test_a_cut_log_is_whole_with_its_indexes_and_the_rest_is_kept(folder: Path, tmp_path: Path) -> None:
    log = folder / f"{STEMS[1]}.log"
    damaged = log.read_bytes()[:-3]
    log.write_bytes(damaged)
    third = contents(folder)[f"{STEMS[2]}.log"]
    found = run_json("recover", folder, "--yes", "--interval-bytes", INTERVAL)
    assert [(item["cutBytes"] > 0, item["dropped"]) for item in found] == [(False, False), (True, False), (True, True)]
    assert f"{log}.orig" in found[1]["kept"]
    tracker = TransactionTracker()
    for batches in (FIRST, SECOND[:2]):
        write_log(tmp_path / "expected-0", batches, tracker)
    after = contents(folder)
    kept = {name: data for name, data in after.items() if name.endswith(".orig")}
    assert {name: data for name, data in after.items() if name not in kept} == contents(tmp_path / "expected-0")
    assert kept[f"{STEMS[1]}.log.orig"] == damaged
    assert kept[f"{STEMS[2]}.log.orig"] == third
    assert run("recover", folder).exit_code == 0
    assert run("index", "check", folder).exit_code == 0


def test_one_file_can_be_recovered_alone(folder: Path) -> None:
    log = folder / f"{STEMS[2]}.log"
    log.write_bytes(log.read_bytes() + b"half a batch")
    assert run("recover", log).exit_code == 1
    assert run("recover", log, "--yes").exit_code == 0
    assert log.read_bytes() == THIRD[0]


def records(folder: Path) -> tuple[Path, Path, list[int]]:
    """A segment, its index, and where its records begin and the last one ends."""
    folder.mkdir()
    data, index = bytearray(), bytearray()
    encoder = RecordsEncoder(data.extend, index.extend, 10**6)
    starts = [1]
    for i in range(3):
        encoder.append([PlainRecord(i, NOON, 0, b"k", b"v" * 9, [])])
        starts.append(len(data))
    encoder.finish()
    stem = folder / "segment_partition_000_from_offset_0000000000"
    segment, beside = Path(f"{stem}_records"), Path(f"{stem}_index")
    segment.write_bytes(data)
    beside.write_bytes(index)
    return segment, beside, starts


def test_a_segment_of_records_is_cut_behind_its_last_whole_record(tmp_path: Path) -> None:
    segment, index, starts = records(tmp_path / "orders")
    data, entries = segment.read_bytes(), index.read_bytes()
    for cut in range(starts[1], len(data)):
        segment.write_bytes(data[:cut])
        index.write_bytes(entries)
        whole = sum(start <= cut for start in starts[1:])
        at_a_record = cut in starts
        assert run("recover", segment).exit_code == (0 if at_a_record else 1)
        assert run("recover", segment, "--yes").exit_code == 0
        assert segment.read_bytes() == data[: starts[whole]]
        if not at_a_record:
            assert index.read_bytes() == entries[: 1 + 24 * whole]
            kept = segment.with_name(segment.name + ".orig")
            assert kept.read_bytes() == data[:cut]
            kept.unlink()


def test_what_the_index_of_a_segment_of_records_jumps_over_is_taken_out(tmp_path: Path) -> None:
    """The original tool goes on behind a record that a crash has torn."""
    segment, index, starts = records(tmp_path / "orders")
    data, entries = segment.read_bytes(), index.read_bytes()
    torn = data[starts[2] : starts[2] + 20]
    segment.write_bytes(data[: starts[2]] + torn + data[starts[2] :])
    later = struct.pack(">qqq", 2, starts[2] + len(torn), starts[3] - starts[2])
    index.write_bytes(entries[: 1 + 2 * 24] + later)
    told = run("recover", segment)
    assert told.exit_code == 1
    assert f"would be cut at position {starts[2]}, 20 bytes" in told.stdout
    assert "the next offset is 3" in told.stdout
    assert run("recover", segment, "--yes").exit_code == 0
    assert segment.read_bytes() == data
    assert index.read_bytes() == entries


def test_a_segment_without_a_whole_record_goes(tmp_path: Path) -> None:
    segment, index, starts = records(tmp_path / "orders")
    segment.write_bytes(segment.read_bytes()[: starts[1] - 1])
    assert run("recover", segment, "--yes").exit_code == 0
    assert not segment.exists()
    assert not index.exists()
    assert segment.with_name(segment.name + ".orig").exists()


def test_a_segment_of_a_newer_version_is_refused_not_cut(tmp_path: Path) -> None:
    segment, _, _ = records(tmp_path / "orders")
    segment.write_bytes(b"\x02" + segment.read_bytes()[1:])
    done = run("recover", segment, "--yes")
    assert done.exit_code == 2
    assert "is version 2 of the Records format; only version 1 can be read" in done.stderr
    assert segment.exists()


def test_an_archive_is_never_cut(tmp_path: Path) -> None:
    storage = open_uri(tmp_path.as_uri())
    archive_of(storage, chunk(storage, 0, 30))
    log = next(tmp_path.glob("topics/orders/*/partition=0/*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    before = log.read_bytes()
    for where in (tmp_path, tmp_path.as_uri(), log, log.parent):
        done = run("recover", where, "--yes")
        assert done.exit_code == 2
        assert done.stderr.startswith(f"error: {tmp_path.as_uri()} is an archive: its objects are never changed.")
        assert "onDamagedArchive: Skip" in done.stderr
    assert log.read_bytes() == before


def test_what_cannot_be_cut_is_refused(folder: Path, tmp_path: Path) -> None:
    done = run("recover", folder / f"{STEMS[0]}.index")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"error: {folder}/{STEMS[0]}.index is no log.")
    other = tmp_path / "orders"
    other.mkdir()
    (other / "orders+0-0.data").write_bytes(b"Obj\x01")
    done = run("recover", other)
    assert done.exit_code == 2
    assert "a file of this format is whole or not there, it is never cut" in done.stderr
