"""`logkeep log index`: every fault of an index is found, and what is made again is what was there."""

import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.formats.records import RecordsEncoder
from logkeep_engine.formats.records_names import RecordsName, pack_partition_index
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.segment import AbortedTxn, pack_txn_entry
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import open_uri
from tests.unit.archive.build import archive_of, chunk
from tests.unit.log.batches import NOON, batch, marker, positions
from tests.unit.toolbox.logs import INTERVAL, run, run_json, write_log

FIRST = [
    batch(0, 10, value=b"v" * 60),
    batch(10, 3, producer_id=4, transactional=True, timestamp=NOON + 50),
    batch(13, 10, value=b"v" * 60, timestamp=NOON - 500),
    marker(23, 4, commit=False),
    batch(24, 2, producer_id=5, transactional=True, timestamp=NOON + 100),
]
SECOND = [
    batch(26, 10, value=b"v" * 60, timestamp=NOON + 200),
    marker(36, 5, commit=False),
    batch(37, 4, timestamp=NOON + 300),
]
STEM = f"{0:020}"
SUFFIXES = (".index", ".timeindex", ".txnindex")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tracker = TransactionTracker()
    write_log(tmp_path / "orders-0", FIRST, tracker)
    write_log(tmp_path / "orders-0", SECOND, tracker)
    return tmp_path / "orders-0"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith(".bak")}


def faults(folder: Path) -> list[str]:
    done = run("index", "check", folder)
    *found, last = done.stdout.splitlines()
    assert done.exit_code == (6 if found else 0)
    assert last.startswith("6 indexes, ") or "records" in folder.name
    return [line.removeprefix(f"{folder}/") for line in found]


def rebuild(folder: Path) -> int:
    return run("index", "rebuild", folder, "--interval-bytes", INTERVAL, "--yes").exit_code


def test_good_indexes_have_no_fault_and_nothing_is_to_do(folder: Path) -> None:
    assert faults(folder) == []
    done = run("index", "rebuild", folder, "--interval-bytes", INTERVAL)
    assert (done.exit_code, done.stdout) == (0, "nothing to do\n")


def entry_of_index(number: int, offset: int, position: int) -> Callable[[bytes], bytes]:
    return lambda data: data[: number * 8] + struct.pack(">ii", offset, position) + data[number * 8 + 8 :]


WRONG: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "not whole": (".index", lambda data: data[:-1], " bytes, not a multiple of 8"),
    "inside a batch": (".index", entry_of_index(0, 12, 90), "position 90 of offset 12 is inside a batch"),
    "wrong offset": (".index", lambda data: data[:3] + b"\x0b" + data[4:], "where a batch ends with 12"),
    "below the base": (".index", entry_of_index(0, -3, 1), "offset -3 is below the segment's base offset 0"),
    "falling": (".index", lambda data: data[8:16] + data[:8] + data[16:], "; it must rise"),
    "past the end": (".index", lambda data: data + struct.pack(">ii", 99, 10**6), "is past the end of the log"),
    "time not whole": (".timeindex", lambda data: data[:-5], " bytes, not a multiple of 12"),
    "wrong time": (".timeindex", lambda data: data[:7] + b"\x01" + data[8:], "where a batch has"),
    "time of another batch": (".timeindex", lambda data: data[:11] + b"\x05" + data[12:], "where a batch has"),
    "time falls": (".timeindex", lambda data: data[12:] + data[:12], "; it must rise"),
    "time past the end": (
        ".timeindex",
        lambda data: data + struct.pack(">qi", NOON * 2, 99),
        "is past the end of the log",
    ),
    "transaction not whole": (".txnindex", lambda data: data[:-1], "not a multiple of 34"),
    "transaction of a new version": (
        ".txnindex",
        lambda data: b"\x00\x09" + data[2:],
        "has version 9; only 0 is known",
    ),
    "transaction that is not": (
        ".txnindex",
        lambda data: data + pack_txn_entry(AbortedTxn(4, 13, 22, 23)),
        "no transaction of producer 4 is aborted at offset 22",
    ),
    "transaction that begins elsewhere": (
        ".txnindex",
        lambda _: pack_txn_entry(AbortedTxn(4, 12, 23, 24)),
        "begins at offset 10, not at 12",
    ),
    "transaction that is missing": (".txnindex", lambda _: b"", "that is aborted at offset 23 is not in it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_fault_is_found_and_mended(folder: Path, name: str) -> None:
    suffix, spoil, message = WRONG[name]
    good = contents(folder)
    path = folder / f"{STEM}{suffix}"
    spoiled = spoil(path.read_bytes())
    path.write_bytes(spoiled)
    found = faults(folder)
    assert found
    assert all(line.startswith(path.name) for line in found)
    assert any(message in line for line in found)
    assert rebuild(folder) == 0
    assert contents(folder) == good
    assert (folder / f"{path.name}.bak").read_bytes() == spoiled
    assert faults(folder) == []


def test_every_index_that_was_replaced_is_kept(folder: Path) -> None:
    path = folder / f"{STEM}.index"
    good = path.read_bytes()
    spoiled = [b"one", b"two", b"three"]
    for number, data in enumerate([*spoiled, b"one", b"two"]):
        path.write_bytes(data)
        (item,) = run_json("index", "rebuild", folder, "--interval-bytes", INTERVAL, "--yes")
        kept = [f"{path}{suffix}" for suffix in (".bak", ".bak.2", ".bak.3")]
        assert item["kept"] == kept[number % 3], "the same bytes are kept once"
    assert [Path(name).read_bytes() for name in kept] == spoiled
    assert path.read_bytes() == good
    assert faults(folder) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_index_is_found_and_made(folder: Path, suffix: str) -> None:
    good = contents(folder)
    (folder / f"{STEM}{suffix}").unlink()
    assert len(faults(folder)) == 1
    done = run("index", "rebuild", folder, "--interval-bytes", INTERVAL)
    assert done.exit_code == 6
    assert done.stdout.startswith(f"{folder}/{STEM}{suffix}: would be rewritten (")
    assert not (folder / f"{STEM}{suffix}").exists()
    assert rebuild(folder) == 0
    assert contents(folder) == good


def test_a_sparser_index_has_no_fault(folder: Path) -> None:
    """Brokers before 4.1 write it so."""
    path = folder / f"{STEM}.index"
    path.write_bytes(path.read_bytes()[8:])
    assert faults(folder) == []
    states = {item["index"]: item["state"] for item in run_json("index", "check", folder)}
    assert states[str(path)] == "differs, but is right"


def test_zeros_that_a_broker_has_reserved_are_no_fault(folder: Path) -> None:
    for suffix, size in ((".index", 8000), (".timeindex", 12000)):
        for stem in (STEM, f"{26:020}"):
            with (folder / f"{stem}{suffix}").open("ab") as file:
                file.write(bytes(size))
    assert faults(folder) == []
    assert run("index", "rebuild", folder, "--interval-bytes", INTERVAL).stdout == "nothing to do\n"


def test_a_time_index_may_name_any_record_of_its_batch(tmp_path: Path) -> None:
    """Some older brokers name the record that has the time."""
    log = write_log(tmp_path / "orders-0", [batch(0, 5), batch(9, 5, timestamp=NOON - 9)])
    path = log.with_suffix(".timeindex")
    path.write_bytes(struct.pack(">qi", NOON + 4, 2))
    assert run("index", "check", log).exit_code == 0
    for timestamp, offset, fault in (
        (NOON + 3, 2, f"timestamp {NOON + 3} of offset 2, where a batch has {NOON + 4}"),
        (NOON + 4, 6, f"offset 6 of timestamp {NOON + 4} is in no batch"),
        (NOON - 5, 10, f"timestamp {NOON - 5} of offset 10, before which there is {NOON + 4}"),
    ):
        path.write_bytes(struct.pack(">qi", timestamp, offset))
        done = run("index", "check", log)
        assert (done.exit_code, done.stdout.splitlines()[0]) == (6, f"{path}: {fault}")


def test_what_compaction_took_of_a_transaction_is_known_by_the_old_index(tmp_path: Path) -> None:
    """The cleaner may keep the last batch of a producer only, and writes the old entry again."""
    log = write_log(
        tmp_path / "orders-0",
        [batch(0, 5), batch(10, 3, producer_id=4, transactional=True), marker(13, 4, commit=False), batch(14, 2)],
    )
    path = log.with_suffix(".txnindex")
    old = pack_txn_entry(AbortedTxn(4, 5, 13, 14))
    path.write_bytes(old)
    assert run("index", "check", log).exit_code == 0
    log.with_suffix(".index").unlink()
    assert run("index", "rebuild", log, "--yes").exit_code == 0
    assert path.read_bytes() == old


def test_a_transaction_does_not_begin_before_the_last_marker_of_its_producer(tmp_path: Path) -> None:
    first = [batch(0, 7, producer_id=4, transactional=True), marker(7, 4, commit=True)]
    second = [batch(10, 3, producer_id=4, transactional=True), marker(13, 4, commit=False), batch(14, 2)]
    tracker = TransactionTracker()
    write_log(tmp_path / "orders-0", first, tracker)
    path = write_log(tmp_path / "orders-0", second, tracker).with_suffix(".txnindex")
    right = path.read_bytes()
    path.write_bytes(pack_txn_entry(AbortedTxn(4, 5, 13, 14)))
    done = run("index", "check", tmp_path / "orders-0")
    assert done.exit_code == 6
    assert "producer 4 that is aborted at offset 13 begins at offset 10, not at 5" in done.stdout
    assert rebuild(tmp_path / "orders-0") == 0
    assert path.read_bytes() == right


@pytest.mark.parametrize("bit", [1, 24, 40, 62])
def test_an_offset_that_the_segment_cannot_hold_is_damage(folder: Path, bit: int) -> None:
    """No CRC covers the base offset of a batch."""
    log = folder / f"{STEM}.log"
    data = bytearray(log.read_bytes())
    at = positions(FIRST)[2]
    (offset,) = struct.unpack_from(">q", data, at)
    struct.pack_into(">q", data, at, offset + (1 << bit) + 20)
    log.write_bytes(data)
    found = faults(folder)
    assert len(found) == 3
    why = "is too far above the segment's base offset 0" if bit > 30 else "reaches into the next segment, which begins"
    assert all(f"at position {at} of the log" in line and why in line for line in found)
    assert run("index", "rebuild", folder, "--interval-bytes", INTERVAL, "--yes").exit_code == 6


def test_files_keep_their_owner_and_mode(folder: Path) -> None:
    """A broker of another user must be able to open what root has written."""
    path, missing = folder / f"{STEM}.index", folder / f"{STEM}.timeindex"
    for file in folder.iterdir():
        file.chmod(0o640)
        if os.geteuid() == 0:
            os.chown(file, 1000, 1001)
    path.write_bytes(b"")
    missing.unlink()
    assert rebuild(folder) == 0
    for file in (path, missing, folder / f"{STEM}.index.bak"):
        found = file.stat()
        assert stat.S_IMODE(found.st_mode) == 0o640
        if os.geteuid() == 0:
            assert (found.st_uid, found.st_gid) == (1000, 1001)


@pytest.mark.parametrize(
    ("number", "message"), [(errno.EACCES, "as the user that the files belong to"), (errno.ENOSPC, "Make room")]
)
def test_an_index_that_cannot_be_written_is_refused_by_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    path = folder / f"{STEM}.index"
    path.unlink()

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", fail)
    done = run("index", "rebuild", folder, "--yes")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: StorageRefused: {path}: {os.strerror(number)}.\nhint: ")
    assert message in done.stderr
    assert not list(folder.glob("*.tmp"))


# ---- the folders of a broker


def metadata_log(data: Path) -> Path:
    """The log of a KRaft controller, with a snapshot of it."""
    folder = data / "__cluster_metadata-0"
    write_log(folder, [batch(0, 5)])
    snapshot = folder / f"{3:020}-{1:010}.checkpoint"
    snapshot.write_bytes(batch(0) + batch(1))
    return snapshot


def test_a_snapshot_of_the_metadata_log_has_no_index(tmp_path: Path) -> None:
    snapshot = metadata_log(tmp_path)
    done = run("index", "check", tmp_path)
    assert (done.exit_code, done.stdout) == (0, "3 indexes, 0 with faults\n")
    done = run("index", "check", snapshot)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {snapshot}: a snapshot of the metadata log has no indexes.")
    assert "baseOffset: 1" in run("dump", snapshot).stdout
    assert str(snapshot) in run("dump", tmp_path).stdout


@pytest.mark.parametrize("end", ["delete", "future", "stray"])
def test_folders_of_one_partition_are_checked_apart(folder: Path, end: str) -> None:
    moved = folder.with_name(f"{folder.name}.{'ab' * 16}-{end}")
    write_log(moved, [batch(0, 90), marker(90, 5, commit=False)])
    assert run("index", "check", folder.parent).exit_code == 0
    (moved / f"{STEM}.index").write_bytes(b"\xff" * 8)
    done = run("index", "check", folder.parent)
    assert {line.partition(": ")[0] for line in done.stdout.splitlines()[:-1]} == {f"{moved}/{STEM}.index"}


def test_the_index_of_a_damaged_log_is_not_made(folder: Path) -> None:
    log = folder / f"{STEM}.log"
    log.write_bytes(log.read_bytes()[:-1])
    before = contents(folder)
    found = faults(folder)
    assert [line.partition(": ")[2][:23] for line in found] == ["the log is damaged: the"] * 3
    done = run("index", "rebuild", folder, "--interval-bytes", INTERVAL, "--yes")
    assert done.exit_code == 6
    assert done.stdout.count(": cannot be made (the log is damaged: ") == 3
    assert contents(folder) == before


def test_what_began_before_the_first_segment_is_kept(folder: Path) -> None:
    """The old index is all that knows where it began."""
    for suffix in (".log", *SUFFIXES):
        (folder / f"{STEM}{suffix}").unlink()
    kept = (folder / f"{26:020}.txnindex").read_bytes()
    (folder / f"{26:020}.index").unlink()
    assert rebuild(folder) == 0
    assert (folder / f"{26:020}.txnindex").read_bytes() == kept


def test_an_index_without_its_log_is_refused(folder: Path) -> None:
    (folder / f"{STEM}.log").unlink()
    done = run("index", "check", folder / f"{STEM}.index")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: {folder}/{STEM}.index: its log is not there.")


# ---- archives


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    storage = open_uri(tmp_path.as_uri())
    return archive_of(storage, chunk(storage, 0, 900), chunk(storage, 0, 10, partition=1))


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("spoil", ["gone", "altered", "emptied"])
def test_an_object_of_an_archive_gets_its_bytes_back(archive: Archive, tmp_path: Path, suffix: str, spoil: str) -> None:
    (path,) = tmp_path.glob(f"topics/orders/*/partition=0/*{suffix}")
    good = path.read_bytes()
    assert len(good) >= 12
    if spoil == "gone":
        path.unlink()
    else:
        path.write_bytes(b"" if spoil == "emptied" else good[:-1] + bytes([good[-1] ^ 1]))
    assert not verify(archive).whole
    assert run("index", "check", tmp_path).exit_code == 6
    assert run("index", "rebuild", tmp_path).exit_code == 6
    done = run("index", "rebuild", tmp_path.as_uri(), "--yes")
    assert done.exit_code == 0, done.output
    assert path.read_bytes() == good
    report = verify(archive)
    assert (report.faults, report.orphans) == ([], [])
    assert run("index", "check", tmp_path).exit_code == 0


def test_the_index_of_an_altered_log_in_an_archive_is_not_made(archive: Archive, tmp_path: Path) -> None:
    (log,) = tmp_path.glob("topics/orders/*/partition=0/*.log")
    log.write_bytes(log.read_bytes()[: len(batch(0, 10))])
    log.with_suffix(".index").unlink()
    done = run("index", "rebuild", tmp_path, "--yes")
    assert done.exit_code == 6
    assert "cannot be made" in done.stdout
    assert not log.with_suffix(".index").exists()


# ---- the Records format


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records-topic"
    folder.mkdir()
    names = []
    for start in (5, 9):
        data, index = bytearray(), bytearray()
        encoder = RecordsEncoder(data.extend, index.extend, 10**6)
        encoder.append([PlainRecord(start + i, NOON, 0, b"k", b"v" * i, []) for i in range(4)])
        encoder.finish()
        name = RecordsName(0, start)
        (folder / name.records).write_bytes(data)
        (folder / name.index).write_bytes(index)
        names.append(name)
    (folder / "index_partition_000").write_bytes(pack_partition_index(names))
    return folder


@pytest.mark.parametrize("name", ["segment_partition_000_from_offset_0000000005_index", "index_partition_000"])
@pytest.mark.parametrize("spoil", [lambda data: data[:-3], lambda data: data[:20] + b"\x07" + data[21:], lambda _: b""])
def test_indexes_of_the_records_format_are_mended(records: Path, name: str, spoil: Callable[[bytes], bytes]) -> None:
    good = contents(records)
    (records / name).write_bytes(spoil(good[name]))
    assert [line.partition(":")[0] for line in faults(records)] == [name]
    assert run("index", "rebuild", records, "--yes").exit_code == 0
    assert contents(records) == good
    assert faults(records) == []


def test_an_index_of_segments_that_were_deleted_is_made_again(records: Path) -> None:
    for suffix in ("records", "index"):
        (records / f"segment_partition_000_from_offset_0000000005_{suffix}").unlink()
    assert len(faults(records)) == 1
    assert run("index", "rebuild", records, "--yes").exit_code == 0
    assert (records / "index_partition_000").read_bytes() == pack_partition_index([RecordsName(0, 9)])


def test_the_index_of_a_damaged_segment_is_not_made(records: Path) -> None:
    segment = records / "segment_partition_000_from_offset_0000000005_records"
    segment.write_bytes(segment.read_bytes()[:-1])
    done = run("index", "rebuild", records, "--yes")
    assert done.exit_code == 6
    assert "cannot be made (the segment is damaged: The segment is cut short" in done.stdout
