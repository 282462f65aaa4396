"""`logkeep log recover`: says what it would cut, cuts no more than a broker, and keeps what it cuts."""

import errno
import os
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.formats.records import RecordsEncoder
from logkeep_engine.formats.records_names import RecordsName, pack_partition_index
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.transactions import TransactionTracker
from logkeep_engine.storage import open_uri
from logkeep_engine.toolbox.recover import carry_out, plan_recovery
from logkeep_engine.toolbox.source import open_source
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


def test_what_would_be_cut_is_reported_and_nothing_is_changed(folder: Path) -> None:
    log = folder / f"{STEMS[1]}.log"
    data = bytearray(log.read_bytes())
    start = positions(SECOND)[2]
    data[start + 70] ^= 1
    log.write_bytes(data)
    before = contents(folder)
    done = run("recover", folder)
    assert done.exit_code == 6
    _, second, third = done.stdout.splitlines()
    assert second.startswith(
        f"{log}: would be cut at position {start}, {len(SECOND[2])} bytes ({len(SECOND[2])} B) go, "
        "the next offset is 26: The batch at offset 26 is damaged: its CRC is "
    )
    size = len(THIRD[0])
    assert (
        third == f"{folder}/{STEMS[2]}.log: would be dropped, {size} bytes ({size} B): it is after the damage of {log}"
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
    assert run("recover", log).exit_code == 6
    assert run("recover", log, "--yes").exit_code == 0
    assert log.read_bytes() == THIRD[0]


def test_a_whole_log_without_indexes_gets_them(folder: Path) -> None:
    """A broker makes indexes that it misses, too."""
    before = contents(folder)
    (folder / f"{STEMS[1]}.timeindex").unlink()
    reported = run("recover", folder, "--interval-bytes", INTERVAL)
    assert reported.exit_code == 6
    assert reported.stdout.splitlines()[1].endswith("; its indexes would be made: there is no .timeindex")
    assert run("recover", folder, "--interval-bytes", INTERVAL, "--yes").exit_code == 0
    assert contents(folder) == before


@pytest.mark.parametrize("bit", [40, 5])
def test_a_batch_whose_offset_the_segment_cannot_hold_is_cut(folder: Path, bit: int) -> None:
    """No CRC covers the base offset of a batch; without its neighbours a flipped bit would go unseen."""
    log = folder / f"{STEMS[0]}.log"
    data = bytearray(log.read_bytes())
    at = positions(FIRST)[1]
    (offset,) = struct.unpack_from(">q", data, at)
    struct.pack_into(">q", data, at, offset | 1 << bit)
    log.write_bytes(data)
    first, second, third = run_json("recover", folder, "--interval-bytes", INTERVAL, "--yes")
    assert (first["position"], first["nextOffset"], second["dropped"], third["dropped"]) == (at, 10, True, True)
    why = "too far above the segment's base offset 0" if bit == 40 else "into the next segment, which begins at 23"
    assert why in first["reason"]
    assert log.read_bytes() == FIRST[0]
    assert contents(folder)[f"{log.name}.orig"] == data
    assert run("index", "check", folder).exit_code == 0


# ---- nothing is lost


def test_what_every_recovery_cuts_is_kept(folder: Path) -> None:
    first, third = folder / f"{STEMS[0]}.log", folder / f"{STEMS[2]}.log"
    lost = []
    for value in (b"one", b"two", b"three"):
        torn = FIRST[0] + batch(10, 2, value=value)[:-1]
        first.write_bytes(torn)
        write_log(folder, [batch(31, 2, value=value)])
        lost.append((torn, third.read_bytes()))
        kept = next(item["kept"] for item in run_json("recover", folder, "--yes") if not item["dropped"])
        assert [Path(path).read_bytes() for path in kept] == [torn]
    names = [".orig", ".orig.2", ".orig.3"]
    for path, expected in ((first, [one for one, _ in lost]), (third, [other for _, other in lost])):
        assert [path.with_name(path.name + name).read_bytes() for name in names] == expected


class Crash(BaseException):
    """The machine is gone."""


STEPS = ("fsync", "ftruncate", "replace", "unlink")


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int, *, done: bool) -> list[int]:
    """Let call number `step` that changes files, or makes them durable, be the last; `done`: after it, not before."""
    seen = [0]

    def watched(real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            seen[0] += 1
            if seen[0] == step and not done:
                raise Crash
            result = real(*arguments, **options)
            if seen[0] == step:
                raise Crash
            return result

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    return seen


def steps_until_done(folder: Path, damaged: Path, check: Callable[[Path], None]) -> int:
    """Crash a recovery at every step, run it again, and check what is there; returns the number of steps."""
    step = 0
    while True:
        step += 1
        for done in (False, True):
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(damaged, folder)
            with pytest.MonkeyPatch.context() as patch:
                crash_at(patch, step, done=done)
                try:
                    carry_out(list(plan_recovery(open_source(str(folder)))), interval_bytes=INTERVAL)
                except Crash:
                    ended = False
                else:
                    ended = True
            assert run("recover", folder, "--interval-bytes", INTERVAL, "--yes").exit_code == 0
            check(folder)
        if ended:
            return step


def test_running_again_after_a_crash_at_any_step_finishes(folder: Path, tmp_path: Path) -> None:
    log = folder / f"{STEMS[1]}.log"
    log.write_bytes(log.read_bytes()[:-3])
    before = contents(folder)
    tracker = TransactionTracker()
    for batches in (FIRST, SECOND[:2]):
        write_log(tmp_path / "expected-0", batches, tracker)
    expected = contents(tmp_path / "expected-0")

    def check(work: Path) -> None:
        after = contents(work)
        assert {name: data for name, data in after.items() if ".orig" not in name} == expected
        assert run("recover", work).exit_code == 0
        assert run("index", "check", work).exit_code == 0
        assert after[f"{log.name}.orig"] == before[log.name]
        for suffix in (".log", ".index", ".timeindex"):
            assert after[f"{STEMS[2]}{suffix}.orig"] == before[f"{STEMS[2]}{suffix}"]

    assert steps_until_done(tmp_path / "work-0", folder, check) > 15


@pytest.mark.parametrize("whole_records", [0, 2])
def test_running_again_finishes_records_too(tmp_path: Path, whole_records: int) -> None:
    first, index, starts = records(tmp_path / "damaged")
    torn = first.read_bytes()[: starts[whole_records] + 5]
    second = RecordsName(0, 3)
    (first.parent / second.records).write_bytes(torn)
    (first.parent / second.index).write_bytes(index.read_bytes())
    both = [RecordsName(0, 0), second]
    (first.parent / "index_partition_000").write_bytes(pack_partition_index(both))

    def check(work: Path) -> None:
        assert (work / f"{second.records}.orig").read_bytes() == torn
        for name in (second.records, second.index):
            assert (work / name).exists() == bool(whole_records)
        assert run("recover", work).exit_code == 0
        assert run("index", "check", work).exit_code == 0

    assert steps_until_done(tmp_path / "orders", first.parent, check) > 6


def test_nothing_is_cut_before_its_copy_is_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = folder / f"{STEMS[1]}.log"
    log.write_bytes(log.read_bytes()[:-3])
    order: list[str] = []

    def name_of(file: object) -> str:
        return Path(os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else str(file)).name

    def note(step: str) -> None:
        real = getattr(os, step)

        def call(file: object, *rest: object, **options: object) -> object:
            order.append(f"{step} {name_of(file)}")
            return real(file, *rest, **options)

        monkeypatch.setattr(os, step, call)

    for step in STEPS:
        note(step)
    carry_out(list(plan_recovery(open_source(str(folder)))))
    third, second = STEMS[2], STEMS[1]
    assert order == [
        f"fsync {second}.log.orig.tmp",
        f"replace {second}.log.orig.tmp",
        "fsync orders-0",
        f"replace {third}.timeindex",
        f"replace {third}.index",
        f"replace {third}.log",
        "fsync orders-0",
        f"unlink {second}.index",
        f"unlink {second}.timeindex",
        "fsync orders-0",
        f"ftruncate {second}.log",
        f"fsync {second}.log",
        f"fsync {second}.txnindex.tmp",
        f"replace {second}.txnindex.tmp",
        "fsync orders-0",
        f"fsync {second}.timeindex.tmp",
        f"replace {second}.timeindex.tmp",
        f"fsync {second}.index.tmp",
        f"replace {second}.index.tmp",
        "fsync orders-0",
    ]


def test_files_keep_their_owner_and_mode(folder: Path) -> None:
    """A broker of another user must be able to open what root has written."""
    log = folder / f"{STEMS[1]}.log"
    log.write_bytes(log.read_bytes()[:-3])
    for file in folder.iterdir():
        file.chmod(0o640)
        if os.geteuid() == 0:
            os.chown(file, 1000, 1001)
    assert run("recover", folder, "--yes").exit_code == 0
    for file in folder.iterdir():
        found = file.stat()
        assert stat.S_IMODE(found.st_mode) == 0o640, file
        if os.geteuid() == 0:
            assert (found.st_uid, found.st_gid) == (1000, 1001), file


@pytest.mark.parametrize(
    ("number", "message"), [(errno.EACCES, "as the user that the files belong to"), (errno.ENOSPC, "Make room")]
)
def test_what_the_disk_refuses_is_said_and_nothing_is_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    log = folder / f"{STEMS[1]}.log"
    log.write_bytes(log.read_bytes()[:-3])
    before = contents(folder)

    def fail(_path: Path, copy: Path) -> None:
        copy.write_bytes(b"a part")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(shutil, "copy2", fail)
    done = run("recover", folder, "--yes")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: StorageRefused: {log}: {os.strerror(number)}.\nhint: ")
    assert message in done.stderr
    assert contents(folder) == before


def test_a_name_that_is_too_long_is_refused() -> None:
    done = run("recover", "a" * 300)
    assert (done.exit_code, done.stderr.splitlines()[0]) == (
        2,
        f"error: StorageRefused: {'a' * 300}: File name too long.",
    )


# ---- the folders of a broker


@pytest.mark.parametrize("name", ["orders-0.{}-delete", "orders-0.{}-future", "orders-0.{}-stray", "other/orders-0"])
def test_a_log_in_another_folder_is_another_log(folder: Path, name: str) -> None:
    """A log that a broker has put aside, or that another broker has, says nothing about the live log."""
    other = folder.parent / name.format("0123456789abcdef" * 2)
    log = write_log(other, [batch(0, 2), batch(2, 2)])
    log.write_bytes(log.read_bytes()[:-2])
    before = contents(folder)
    found = run_json("recover", folder.parent, "--yes")
    assert [Path(item["segment"]) for item in found if item["cutBytes"]] == [log]
    assert not any(item["dropped"] for item in found)
    assert contents(folder) == before
    assert run("recover", folder.parent).exit_code == 0
    assert run("index", "check", folder.parent).exit_code == 0


@pytest.mark.parametrize("damage", ["log", "checkpoint"])
def test_a_snapshot_of_the_metadata_log_is_no_segment(folder: Path, damage: str) -> None:
    metadata = folder.parent / "__cluster_metadata-0"
    log = write_log(metadata, [batch(0, 5), batch(5, 5)])
    snapshot = metadata / f"{5:020}-{1:010}.checkpoint"
    snapshot.write_bytes(batch(0) + batch(1)[: 9 if damage == "checkpoint" else None])
    if damage == "log":
        log.write_bytes(log.read_bytes() + b"torn")
    before = snapshot.read_bytes()
    found = run_json("recover", folder.parent, "--yes")
    assert [Path(item["segment"]) for item in found if item["cutBytes"]] == ([log] if damage == "log" else [])
    assert len(found) == 4
    assert snapshot.read_bytes() == before
    assert run("index", "check", folder.parent).exit_code == 0
    done = run("recover", snapshot, "--yes")
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"error: {snapshot} is not a log.")


# ---- the Records format


def records(folder: Path) -> tuple[Path, Path, list[int]]:
    """A segment, its index, and where its records begin and the last one ends."""
    folder.mkdir()
    data, index = bytearray(), bytearray()
    encoder = RecordsEncoder(data.extend, index.extend, 10**6)
    starts = [1]
    for i in range(3):
        encoder.append([PlainRecord(i, NOON, 0, b"k", b"v" * 9, [])])
        starts.append(encoder.size)
    encoder.finish()
    stem = folder / "segment_partition_000_from_offset_0000000000"
    segment, beside = Path(f"{stem}_records"), Path(f"{stem}_index")
    segment.write_bytes(data)
    beside.write_bytes(index)
    return segment, beside, starts


def test_a_segment_of_records_is_cut_after_its_last_whole_record(tmp_path: Path) -> None:
    segment, index, starts = records(tmp_path / "orders")
    data, entries = segment.read_bytes(), index.read_bytes()
    for cut in range(starts[1], len(data)):
        segment.write_bytes(data[:cut])
        index.write_bytes(entries)
        whole = sum(start <= cut for start in starts[1:])
        reported = run("recover", segment)
        assert reported.exit_code == 6
        assert ("its indexes would be made" if cut in starts else "would be cut") in reported.stdout
        assert run("recover", segment, "--yes").exit_code == 0
        assert segment.read_bytes() == data[: starts[whole]]
        assert index.read_bytes() == entries[: 1 + 24 * whole]
        kept = segment.with_name(segment.name + ".orig")
        assert kept.exists() == (cut not in starts)
        if kept.exists():
            assert kept.read_bytes() == data[:cut]
            kept.unlink()


def test_what_the_index_of_a_segment_of_records_jumps_over_is_taken_out(tmp_path: Path) -> None:
    """The original tool continues behind a record that a crash has torn."""
    segment, index, starts = records(tmp_path / "orders")
    data, entries = segment.read_bytes(), index.read_bytes()
    torn = data[starts[2] : starts[2] + 20]
    segment.write_bytes(data[: starts[2]] + torn + data[starts[2] :])
    later = struct.pack(">qqq", 2, starts[2] + len(torn), starts[3] - starts[2])
    index.write_bytes(entries[: 1 + 2 * 24] + later)
    reported = run("recover", segment)
    assert reported.exit_code == 6
    assert f"would be cut at position {starts[2]}, 20 bytes" in reported.stdout
    assert "the next offset is 3" in reported.stdout
    assert run("recover", segment, "--yes").exit_code == 0
    assert segment.read_bytes() == data
    assert index.read_bytes() == entries


@pytest.mark.parametrize("whole_records", [0, 1, 2])
def test_records_that_only_the_index_names_are_reported_and_the_index_is_kept(
    tmp_path: Path, whole_records: int
) -> None:
    segment, index, starts = records(tmp_path / "orders")
    entries = index.read_bytes()
    left = segment.read_bytes()[: starts[whole_records]] if whole_records else b""
    segment.write_bytes(left)
    lost = 3 - whole_records
    reported = run("recover", segment)
    assert reported.exit_code == 6
    assert f"its index names {lost} more records, which are not there" in reported.stdout
    assert ("its indexes would be made" if whole_records else "would be taken away") in reported.stdout
    assert run_json("recover", segment)[0]["lostRecords"] == lost
    assert (segment.read_bytes(), index.read_bytes()) == (left, entries)
    assert run("recover", segment, "--yes").exit_code == 0
    assert index.with_name(f"{index.name}.orig").read_bytes() == entries
    assert segment.exists() == bool(whole_records)
    if whole_records:
        assert index.read_bytes() == entries[: 1 + 24 * whole_records]


def test_a_segment_without_a_whole_record_goes(tmp_path: Path) -> None:
    segment, index, starts = records(tmp_path / "orders")
    segment.write_bytes(segment.read_bytes()[: starts[1] - 1])
    assert run("recover", segment, "--yes").exit_code == 0
    assert not segment.exists()
    assert not index.exists()
    assert segment.with_name(segment.name + ".orig").exists()


def test_a_partition_that_never_had_a_record_is_whole(tmp_path: Path) -> None:
    """The original tool makes its first segment, and names it in its index, "even if it is empty"."""
    segment, index, _ = records(tmp_path / "orders")
    files = {
        segment.name: b"\x01",
        index.name: b"\x01",
        "index_partition_000": pack_partition_index([RecordsName(0, 0)]),
        "consumer_offsets_partition_000": b"",
    }
    for name, data in files.items():
        segment.with_name(name).write_bytes(data)
    for target in (segment, segment.parent):
        reported = run("recover", target, "--yes")
        assert (reported.exit_code, contents(segment.parent)) == (0, files)
    (plan,) = run_json("recover", segment.parent)
    assert (plan["validBytes"], plan["nextOffset"], plan["reason"]) == (1, 0, "")
    assert run("index", "check", segment.parent).exit_code == 0
    assert run("dump", segment.parent).exit_code == 0


@pytest.mark.parametrize("left", [None, b"", b"\x01" + bytes(5)])
def test_the_index_of_a_segment_without_records_is_made_again(tmp_path: Path, left: bytes | None) -> None:
    segment, index, _ = records(tmp_path / "orders")
    segment.write_bytes(b"\x01")
    index.unlink()
    if left is not None:
        index.write_bytes(left)
    reported = run("recover", segment)
    assert reported.exit_code == 6
    assert "its indexes would be made" in reported.stdout
    assert run("recover", segment, "--yes").exit_code == 0
    assert (segment.read_bytes(), index.read_bytes()) == (b"\x01", b"\x01")
    assert run("recover", segment).exit_code == 0


def test_the_index_of_a_partition_does_not_name_a_segment_that_has_gone(tmp_path: Path) -> None:
    first, _, _ = records(tmp_path / "orders")
    second = first.with_name("segment_partition_000_from_offset_0000000003_records")
    second.write_bytes(first.read_bytes()[:9])
    index = first.with_name("index_partition_000")
    index.write_bytes(pack_partition_index([RecordsName(0, 0), RecordsName(0, 3)]))
    assert run("recover", first.parent, "--yes").exit_code == 0
    assert not second.exists()
    assert index.read_bytes() == pack_partition_index([RecordsName(0, 0)])
    assert run("index", "check", first.parent).exit_code == 0


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
    assert (done.exit_code, done.stderr.splitlines()[0]) == (2, f"error: {folder}/{STEMS[0]}.index is not a log.")
    other = tmp_path / "orders"
    other.mkdir()
    (other / "orders+0-0.data").write_bytes(b"Obj\x01")
    done = run("recover", other)
    assert done.exit_code == 2
    assert "a file of this format is complete or missing, never cut short" in done.stderr
