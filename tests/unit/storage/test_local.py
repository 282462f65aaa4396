"""Storage in a folder: the contract of every storage, and what only files can do."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from logkeep_engine.errors import BucketMissing, StorageRefused, StorageUnavailable
from logkeep_engine.storage import LocalStorage, ObjectInfo, Storage, open_uri, page_cache
from logkeep_engine.storage.page_cache import BEHIND_BYTES, STEP_BYTES
from tests.unit.storage.contract import StorageContract


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


class TestContract(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_uri(f"file://{tmp_path}/archive")

    @pytest.fixture
    def files(self, tmp_path: Path) -> Callable[[], int]:
        return lambda: sum(path.is_file() for path in tmp_path.rglob("*"))


@contextlib.contextmanager
def as_another_user(folder: Path, bits: int) -> Iterator[None]:
    """Let the folder be closed to reading or entering, as `bits` (rwx) say; root could do both."""
    folder.chmod(bits * 0o111)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that other users may enter, as those above pytest's own are not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("bits", [0o0, 0o1, 0o4])
@pytest.mark.parametrize("folder", ["topics/orders", "topics", ""])
def test_a_list_that_would_be_too_short_is_refused_and_names_the_folder(
    reachable: Path, folder: str, bits: int
) -> None:
    """With the bits 4 the names in the folder can be read, but not what lies under them."""
    storage = open_uri(f"file://{reachable}/archive")
    for path in ("topics/orders/1.log", "topics/orders/2.log", "topics/others/1.log", "topics/x", "x"):
        storage.put(path, b"")
    with as_another_user(reachable / "archive" / folder, bits):
        with pytest.raises(StorageRefused) as refused:
            # With two folders below one that cannot be entered, the file system's order would say which is named.
            storage.list("topics/or" if folder == "topics" else folder and "topics/o")
        if folder == "topics/orders":
            assert len(storage.list("topics/ot")) == 1, "what lies beside it can be listed"
    named = "topics/orders" if folder == "topics" and bits == 4 else folder
    assert refused.value.message == f"file://{reachable}/archive/{named}".rstrip("/") + "/: Permission denied."
    assert "readable by this user" in refused.value.hint


def test_what_a_file_system_found_after_a_crash_is_not_looked_into(reachable: Path) -> None:
    """Only root may read `lost+found`, and every volume of ext4 has one."""
    storage = open_uri(f"file://{reachable}")
    storage.put("x", b"")
    (reachable / "lost+found").mkdir()
    with as_another_user(reachable / "lost+found", 0):
        assert storage.list() == [ObjectInfo("x", 0)]


def test_what_vanishes_while_it_is_listed_is_left_out(storage: Storage, tmp_path: Path) -> None:
    storage.put("kept/x", b"")
    stop = threading.Event()

    def come_and_go() -> None:
        folders = [tmp_path / "archive" / f"{number:02}" for number in range(50)]
        while not stop.is_set():
            for folder in folders:
                folder.mkdir()
                (folder / "x").touch()
            for folder in reversed(folders):
                (folder / "x").unlink()
                folder.rmdir()

    with ThreadPoolExecutor(1) as pool:
        coming_and_going = pool.submit(come_and_go)
        try:
            for _ in range(300):
                assert ObjectInfo("kept/x", 0) in storage.list()
        finally:
            stop.set()
        coming_and_going.result(60)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("topics/.logkeep-x/y", r"topics/\.logkeep-x/y: names that begin with \.logkeep- are those of unfinished"),
        (".logkeep-x", "names that begin with"),
        ("a/" + "b" * 256, "b: a name in a file system has at most 255 bytes"),
        ("ü" * 128, "at most 255 bytes"),
    ],
)
def test_a_name_that_no_file_can_have_is_refused_by_name(storage: Storage, path: str, says: str) -> None:
    for action in (storage.check_path, storage.read, storage.version, storage.writer, lambda p: storage.put(p, b"")):
        with pytest.raises(StorageRefused, match=says):
            action(path)
    assert storage.list() == []


def test_a_path_that_is_too_long_as_a_whole_is_refused(storage: Storage) -> None:
    with pytest.raises(StorageRefused, match="File name too long"):
        storage.put("/".join(["b" * 200] * 25), b"")


def test_every_name_that_a_file_can_have_is_taken(storage: Storage) -> None:
    for path in ("b" * 255, "topics/.log/.logkeep/x"):
        storage.check_path(path)
        storage.put(path, b"1")
        assert storage.read(path) == b"1"


def test_check_reads_only_and_names_what_is_wrong(tmp_path: Path) -> None:
    open_uri(f"file://{tmp_path}/not/yet").check()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(BucketMissing, match="file is not a folder"):
        open_uri(f"file://{tmp_path}/file").check()


def test_a_full_disk_may_pass_and_leaves_nothing() -> None:
    full = LocalStorage("file:///dev")
    with pytest.raises(StorageUnavailable, match=r"file:///dev/full: No space left on device\. Check the disk\."):
        _write_to_device(full)


def _write_to_device(storage: LocalStorage) -> None:
    # /dev/full answers ENOSPC to every write, as a full disk does.
    from logkeep_engine.storage.local import _os_errors

    with _os_errors(storage, "full"), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"x")


_WRITE_FOREVER = """
import sys
from logkeep_engine.storage import open_uri
storage = open_uri(sys.argv[1])
print("started", flush=True)
number = 0
while True:
    with storage.writer(f"w/{number}") as writer:
        for _ in range(20):
            writer.write(b"x" * 50000)
    storage.create(f"c/{number}", b"y" * 100000)
    storage.put("p", b"%010d" % number * 10000)
    number += 1
"""


@pytest.mark.parametrize("milliseconds", [60, 83, 121, 150, 197])
def test_a_killed_process_leaves_only_whole_objects(storage: Storage, milliseconds: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _WRITE_FOREVER, storage.uri],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(milliseconds / 1000)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    sizes = {"w": 1_000_000, "c": 100_000, "p": 100_000}
    found = storage.list()
    assert {info.size - sizes[info.path[0]] for info in found} <= {0}
    put = [storage.read(info.path) for info in found if info.path == "p"]
    assert all(data == data[:10] * 10000 for data in put)


# ---- what is durable, and when


class Disk:
    """Notes the calls that make files durable and visible, by the names of the files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, str]] = []
        self.broken: OSError | None = None
        self._names: dict[str, str] = {}
        for call in ("fsync", "link", "replace"):
            monkeypatch.setattr(os, call, self._noting(call, getattr(os, call)))

    def _noting(self, call: str, real: Callable[..., None]) -> Callable[..., None]:
        def noted(what: int | Path, *more: Path) -> None:
            if isinstance(what, int):
                path = os.readlink(f"/proc/self/fd/{what}")
                if self.broken is not None and os.path.isfile(path):
                    raise self.broken
                real(what)
                self.calls.append(("sync", path))
            else:
                real(what, *more)
                self.calls.append(("show", str(more[0])))
                self._names[str(what)] = str(more[0])

        return noted

    def steps(self) -> list[str]:
        """The calls in their order, files by the names that they got, and no calls for folders that were made."""
        return [f"{call} {Path(self._names.get(path, path)).name}" for call, path in self.calls]


@pytest.fixture
def disk(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Disk:
    storage.put("p/0.log", b"so that there is a folder")
    return Disk(monkeypatch)


def test_objects_put_at_once_are_synced_before_they_are_seen_and_their_folder_once(
    storage: Storage, disk: Disk
) -> None:
    names = ("1.index", "1.timeindex", "1.txnindex")
    storage.put_all({"p/1.index": b"1", "p/1.timeindex": b"2", "p/1.txnindex": b"3"})
    steps = disk.steps()
    assert len(steps) == 7
    assert all(steps.index(f"sync {name}") < steps.index(f"show {name}") for name in names)
    assert [step for step in steps if step.startswith("show")] == [f"show {name}" for name in names]
    assert steps[-1] == "sync p"


@pytest.mark.parametrize("complete", [False, True])
def test_a_committed_object_is_synced_then_seen_and_then_its_name_is_synced(
    storage: Storage, disk: Disk, complete: bool
) -> None:
    writer = storage.writer("p/1.log")
    writer.write(b"x")
    if complete:
        writer.complete()
        with pytest.raises(ValueError, match=r"p/1\.log: write after complete"):
            writer.write(b"y")
    writer.commit()
    assert disk.steps() == ["sync 1.log", "show 1.log", "sync p"]


@pytest.mark.parametrize("complete", [False, True])
def test_what_the_disk_did_not_take_is_never_seen(storage: Storage, disk: Disk, complete: bool) -> None:
    """An error of `fsync` is reported once, to whoever asked: a second call would find nothing wrong."""
    writer = storage.writer("p/1.log")
    disk.broken = OSError(errno.EIO, "Input/output error")
    if complete:
        writer.complete()
    with pytest.raises(StorageUnavailable, match="Input/output error"):
        writer.commit()
    disk.broken = None if complete else disk.broken
    with pytest.raises(StorageUnavailable, match="Input/output error"):
        writer.commit()
    writer.abort()
    disk.broken = OSError(errno.EIO, "Input/output error")
    with pytest.raises(StorageUnavailable, match=r"p/1\.index: Input/output error"):
        storage.put_all({"p/1.index": b"1", "p/1.timeindex": b"2"})
    assert storage.list() == [ObjectInfo("p/0.log", 25)]
    assert disk.steps() == []


# ---- the memory that a file takes while it is written

_STEPS = 12


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A file system that does not know O_DIRECT: the flags that it was asked for."""
    asked: list[int] = []
    real = fcntl.fcntl

    def control(descriptor: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            asked.append(value)
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, command, value)

    monkeypatch.setattr(fcntl, "fcntl", control)
    return asked


_ODD = [1, 0, STEP_BYTES - 2, 7, 4095, 3 * STEP_BYTES + 5, STEP_BYTES, 1, 2 * STEP_BYTES - 3, 8191]


def _odd_pieces(storage: Storage) -> bytes:
    """Write pieces of odd sizes to an object; all of them as one."""
    source = random.Random(7)
    pieces = [source.randbytes(size) for size in _ODD]
    with storage.writer("p/1.log") as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)
    return b"".join(pieces)


def _direct_writes(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int, mmap.mmap], int]) -> list[int]:
    """The sizes that were written past the page cache; `answer` is the system in their place."""
    sizes: list[int] = []

    def write(descriptor: int, data: mmap.mmap) -> int:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        assert not os.lseek(descriptor, 0, os.SEEK_CUR) % mmap.PAGESIZE
        sizes.append(len(data))
        return answer(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    return sizes


def test_what_passes_by_the_page_cache_is_in_the_file_byte_by_byte(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = _direct_writes(monkeypatch, os.write)
    expected = _odd_pieces(storage)
    assert storage.read("p/1.log") == expected
    assert sizes == [STEP_BYTES] * ((len(expected) - STEP_BYTES) // STEP_BYTES)


def test_a_file_system_without_direct_writes_takes_all_through_the_page_cache(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, refused: list[int]
) -> None:
    sizes = _direct_writes(monkeypatch, os.write)
    expected = _odd_pieces(storage)
    assert storage.read("p/1.log") == expected
    assert (len(refused), sizes) == (1, [])


@pytest.mark.parametrize("taken", [0, 1, 4096, STEP_BYTES - 1])
def test_a_direct_write_that_takes_not_all_is_ended_through_the_page_cache(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    real = os.write

    def short(descriptor: int, data: mmap.mmap) -> int:
        if len(sizes) == 1:
            return real(descriptor, data)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        if taken == 0:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, data[:taken])

    sizes = _direct_writes(monkeypatch, short)
    expected = _odd_pieces(storage)
    assert storage.read("p/1.log") == expected
    assert len(sizes) == 2


def test_a_disk_that_is_full_is_reported_and_nothing_is_seen(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: mmap.mmap) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    _direct_writes(monkeypatch, full)
    with pytest.raises(StorageUnavailable, match=r"p/1\.log: No space left on device"):
        _odd_pieces(storage)
    assert storage.list() == []


def test_buffers_of_direct_writes_are_used_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_idle", [])
    for _ in range(3):
        _odd_pieces(storage)
        storage.delete(["p/1.log"])
    assert len(page_cache._idle) == 1
    writer = storage.writer("p/2.log")
    writer.write(bytes(2 * STEP_BYTES + 1))
    assert page_cache._idle == []
    writer.abort()
    assert len(page_cache._idle) == 1


def test_a_file_that_is_given_up_is_not_closed_below_a_thread_that_writes(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that is cancelled gives its files up while a thread of it still writes. Another file would get the number
    and the buffer of this one, and the thread would write into that."""
    monkeypatch.setattr(page_cache, "_idle", [])
    writer = storage.writer("p/1.log")
    aborting = threading.Thread(target=writer.abort)
    closed: list[bool] = []

    def slow(descriptor: int, data: mmap.mmap) -> int:
        aborting.start()
        aborting.join(0.2)
        closed.append(not aborting.is_alive() or bool(page_cache._idle))
        return len(data)

    _direct_writes(monkeypatch, slow)
    writer.write(bytes(2 * STEP_BYTES))
    aborting.join()
    assert closed == [False]
    with pytest.raises(ValueError, match="write after commit or abort"):
        writer.write(b"more")
    assert storage.list() == []


@pytest.mark.parametrize("direct", [True, False])
def test_a_file_that_is_being_written_keeps_little_of_the_systems_memory(
    storage: Storage, tmp_path: Path, request: pytest.FixtureRequest, direct: bool
) -> None:
    _require_advice(tmp_path / "probe")
    if not direct:
        request.getfixturevalue("refused")
    with storage.writer("p/1.log") as writer:
        for _ in range(_STEPS):
            writer.write(bytes(STEP_BYTES))
            (file,) = (tmp_path / "archive/p").glob(".logkeep-*")
            _sync(file)  # a disk that is fast enough
        kept = _in_memory(file)
    assert kept == 0 if direct else STEP_BYTES <= kept <= BEHIND_BYTES + 2 * STEP_BYTES
    assert storage.read("p/1.log") == bytes(_STEPS * STEP_BYTES)


def test_the_disk_begins_at_once_and_only_what_it_should_have_is_forgotten(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, refused: list[int]
) -> None:
    begun: list[tuple[int, int]] = []
    forgotten: list[tuple[int, int]] = []
    monkeypatch.setattr(page_cache, "_begin_to_write", lambda: lambda _, at, size: begun.append((at, at + size)))
    monkeypatch.setattr(os, "posix_fadvise", lambda _, at, size, advice: forgotten.append((at, at + size)))
    sizes = [STEP_BYTES // 3] * 10 + [3 * STEP_BYTES, 1, STEP_BYTES - 1, 5 * STEP_BYTES] + [STEP_BYTES] * 3
    with storage.writer("p/1.log") as writer:
        done = 0
        for size in sizes:
            writer.write(bytes(size))
            done += size
            reached = max((end for _, end in begun), default=0)
            assert done - STEP_BYTES < reached <= done, "what the disk has been given"
            assert all(end <= done - BEHIND_BYTES for _, end in forgotten)
    assert [start for start, _ in begun] == [0, *(end for _, end in begun[:-1])]
    assert forgotten[0][0] == 0
    assert all(start <= end for (_, end), (start, _) in pairwise(forgotten)), "a part was never forgotten"
    assert forgotten[-1][1] >= done - BEHIND_BYTES - 5 * STEP_BYTES


def test_a_file_system_that_takes_no_advice_takes_files(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, refused: list[int]
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    with storage.writer("p/1.log") as writer:
        for _ in range(_STEPS):
            writer.write(bytes(STEP_BYTES))
    assert storage.list() == [ObjectInfo("p/1.log", _STEPS * STEP_BYTES)]


def _require_advice(probe: Path) -> None:
    probe.write_bytes(bytes(STEP_BYTES))
    _sync(probe)
    with open(probe, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _in_memory(probe):
        pytest.skip("this file system keeps all in memory")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fdatasync(file.fileno())


def _in_memory(path: Path) -> int:
    """Bytes of a file in the page cache."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        address, size = ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped))
        assert not ctypes.CDLL(None).mincore(address, size, pages)
        del first
        return sum(page & 1 for page in pages) * mmap.PAGESIZE


@pytest.mark.parametrize("link", ["runs", "runs/r"])
def test_a_link_out_of_the_folder_lets_nothing_be_written_or_deleted_there(
    storage: Storage, tmp_path: Path, link: str
) -> None:
    outside = tmp_path / "home"
    (outside / "r").mkdir(parents=True)
    (outside / "r" / "precious").write_text("mine")
    (outside / "precious").write_text("mine")
    place = tmp_path / "archive" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(outside)
    writes: list[Callable[[str], object]] = [
        lambda path: storage.put(path, b"x"),
        lambda path: storage.create(path, b"x"),
        lambda path: storage.put_all({path: b"x"}),
        storage.writer,
        lambda path: storage.delete([path]),
    ]
    for write in writes:
        with pytest.raises(StorageRefused, match="a symbolic link leads out of the folder, to"):
            write("runs/r/precious")
    assert sorted(path.name for path in outside.rglob("*")) == ["precious", "precious", "r"]


def test_a_link_within_the_folder_and_one_to_it_are_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "old").mkdir(parents=True)
    (tmp_path / "disk" / "runs").symlink_to("old")
    (tmp_path / "archive").symlink_to("disk")
    storage = open_uri(f"file://{tmp_path}/archive")
    storage.put("runs/a", b"x")
    assert (tmp_path / "disk" / "old" / "a").read_bytes() == b"x"
    storage.delete(["runs/a"])
    assert [*(tmp_path / "disk" / "old").iterdir()] == []
