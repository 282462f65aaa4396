"""The questions that every storage must answer alike.

A storage of a new kind is asked by a subclass with the fixtures `storage` and `files`, in the tests of its own kind:

    class TestContract(StorageContract):
        @pytest.fixture
        def storage(self, tmp_path: Path) -> Storage: ...
"""

import os
import pickle
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection

import pytest

from logkeep_engine.errors import ObjectExists, ObjectMissing, ObjectTooLarge, StorageRefused
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES, ObjectInfo, ObjectWriter, Storage
from tests.threads import at_once

SMALL, IN_PARTS = 10, PART_BYTES + 1

ODD_NAMES = (
    "a b",
    "a+b",
    "a%2Fb",
    "a=b&c?d#e",
    "'\"<&>",
    "a\\b",
    "topics/ü/日本/😀",
    "topics/.log/.logkeep/x",
    "..a/b..",
    "*",
    "~",
    "b" * 200,
)


class StorageContract:
    """Asked of an empty storage that its kind's subclass opens."""

    odd_names: tuple[str, ...] = ODD_NAMES
    """Names that the storage holds, of those that tempt it to change them."""

    @pytest.fixture
    def storage(self) -> Storage:
        """An empty storage of a test's own."""
        raise NotImplementedError

    @pytest.fixture
    def files(self) -> Callable[[], int]:
        """The number of files that lie in the storage's place, those of unfinished objects included."""
        raise NotImplementedError

    @pytest.fixture
    def worker_environment(self) -> None:
        """Credentials in this process's environment, where a worker process finds them."""

    # ---- put and create

    def test_a_put_replaces_and_a_create_does_not(self, storage: Storage) -> None:
        storage.check()
        storage.put("a/b", b"one")
        storage.put("a/b", b"two")
        storage.create("a/c", b"")
        storage.create("a/d", b"four")
        for path in ("a/b", "a/c"):
            with pytest.raises(ObjectExists, match=rf"{re.escape(storage.uri)}/{path} exists already"):
                storage.create(path, b"three")
        assert [storage.read(path) for path in ("a/b", "a/c", "a/d")] == [b"two", b"", b"four"]

    def test_of_many_creates_at_once_one_succeeds(self, storage: Storage) -> None:
        won: list[int] = []

        def create(number: int) -> None:
            try:
                storage.create("object", b"%d" % number * 1000)
            except ObjectExists:
                return
            won.append(number)

        at_once(8, create)
        assert len(won) == 1
        assert storage.read("object") == b"%d" % won[0] * 1000
        assert storage.list() == [ObjectInfo("object", 1000)]

    @pytest.mark.parametrize("size", [0, 5])
    def test_an_object_is_read_whole_only_if_it_is_not_too_large(self, storage: Storage, size: int) -> None:
        storage.put("a", bytes(size))
        assert storage.read("a", most=5) == bytes(size)
        storage.put("a", bytes(6))
        with pytest.raises(ObjectTooLarge) as refused:
            storage.read("a", most=5)
        assert refused.value.message == f"{storage.uri}/a has 6 bytes or more; an object of its kind has at most 5."
        assert storage.read("a") == bytes(6)
        with pytest.raises(ObjectMissing):
            storage.read("b", most=5)

    def test_who_reads_while_an_object_is_replaced_finds_one_of_both(self, storage: Storage) -> None:
        contents = {b"a" * 100_000, b"b" * 100_000}
        storage.put("object", min(contents))
        stop = threading.Event()

        def replace() -> None:
            while not stop.is_set():
                for content in contents:
                    storage.put("object", content)

        with ThreadPoolExecutor(1) as pool:
            replacing = pool.submit(replace)
            try:
                for _ in range(50):
                    assert storage.read("object") in contents
                    assert storage.list() == [ObjectInfo("object", 100_000)]
            finally:
                stop.set()
            replacing.result(60)

    def test_several_objects_are_put_at_once_and_replace_what_was_there(
        self, storage: Storage, files: Callable[[], int]
    ) -> None:
        storage.put("a/b", b"one")
        storage.put_all({"a/b": b"two", "a/c": b"", "d/e": b"three"})
        storage.put_all({})
        assert [storage.read(path) for path in ("a/b", "a/c", "d/e")] == [b"two", b"", b"three"]
        assert files() == 3

    # ---- writers

    @pytest.mark.parametrize(
        "size", [0, 1, DEFAULT_BLOCK - 1, DEFAULT_BLOCK + 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES + 12345]
    )
    def test_a_writer_streams_any_size_and_shows_it_at_its_commit(self, storage: Storage, size: int) -> None:
        data = (os.urandom(1 << 20) * (size // (1 << 20) + 1))[:size]
        writer = storage.writer("stream")
        for start in range(0, size, 3_000_000):
            writer.write(memoryview(data)[start : start + 3_000_000])
        assert storage.list() == []
        writer.commit()
        assert storage.list() == [ObjectInfo("stream", size)]
        assert storage.read("stream") == data
        with storage.reader("stream", block=1_000_000) as stream:
            assert b"".join(iter(stream.read_block, b"")) == data
        assert storage.read_range("stream", max(0, size - 5), size + 5) == data[-5:]
        assert storage.read_range("stream", size, size + 5) == b""

    def test_a_writer_takes_every_kind_of_bytes_and_nothing_after_its_end(self, storage: Storage) -> None:
        writer = storage.writer("segments/1.log")
        writer.write(b"abc")
        reused = bytearray(b"def")
        writer.write(reused)
        reused[:] = b"xxx"
        writer.write(memoryview(b"-ghi-")[1:4])
        writer.commit()
        writer.abort()
        assert storage.read("segments/1.log") == b"abcdefghi"
        with pytest.raises(ValueError, match="write after commit or abort"):
            writer.write(b"more")
        with pytest.raises(ValueError, match="commit after commit or abort"):
            writer.commit()

    @pytest.mark.parametrize("size", [0, SMALL, IN_PARTS])
    def test_a_complete_object_is_seen_at_its_commit(
        self, storage: Storage, files: Callable[[], int], size: int
    ) -> None:
        kept, dropped = storage.writer("kept"), storage.writer("dropped")
        for writer in (kept, dropped):
            writer.write(bytes(size))
            writer.complete()
            writer.complete()
        assert storage.list() == []
        kept.commit()
        dropped.abort()
        assert storage.read("kept") == bytes(size)
        assert files() == 1

    @pytest.mark.parametrize("size", [SMALL, IN_PARTS])
    def test_an_aborted_writer_leaves_nothing(self, storage: Storage, files: Callable[[], int], size: int) -> None:
        writer = storage.writer("stream")
        writer.write(bytes(size))
        writer.abort()
        writer.abort()
        failing = storage.writer("segments/2.log")
        with pytest.raises(RuntimeError, match="stop"):
            _fail_after_writing(failing, size)
        with pytest.raises(ValueError, match="after commit or abort"):
            failing.write(b"more")
        assert storage.list() == []
        assert files() == 0

    @pytest.mark.parametrize("size", [SMALL, IN_PARTS])
    def test_a_writer_takes_the_place_of_what_it_was_told_and_of_nothing_else(
        self, storage: Storage, files: Callable[[], int], size: int
    ) -> None:
        assert storage.version("object") is None
        assert _written(storage, b"1" * size, replaces=None)
        first = storage.version("object")
        assert first is not None
        assert not _written(storage, b"2" * size, replaces=None), "the name is taken"
        assert _written(storage, b"3" * size, replaces=first)
        assert storage.version("object") != first
        assert not _written(storage, b"4" * size, replaces=first), "what was seen is not there any more"
        assert storage.read_range("object", 0, 1) == b"3"
        assert _written(storage, b"5" * size, replaces=storage.version("object"))
        assert storage.read("object") == b"5" * size
        assert files() == 1, "nothing unfinished is left"

    @pytest.mark.parametrize("size", [SMALL, IN_PARTS])
    def test_a_writer_does_not_take_the_place_of_what_is_gone(
        self, storage: Storage, files: Callable[[], int], size: int
    ) -> None:
        storage.put("object", b"1")
        seen = storage.version("object")
        storage.delete(["object"])
        writer = storage.writer("object", replaces=seen)
        writer.write(bytes(size))
        with pytest.raises((ObjectExists, ObjectMissing)):  # S3 says that what was seen is missing
            writer.commit()
        writer.abort()
        assert storage.list() == []
        assert files() == 0, "nothing unfinished is left"

    def test_of_many_writers_that_have_seen_the_same_object_one_replaces_it(self, storage: Storage) -> None:
        storage.put("object", b"seen by all")
        seen = storage.version("object")
        won: list[int] = []

        def replace(number: int) -> None:
            if _written(storage, b"%d" % number, replaces=seen):
                won.append(number)

        at_once(8, replace)
        assert len(won) == 1
        assert storage.read("object") == b"%d" % won[0]

    def test_writers_of_many_objects_work_at_once(self, storage: Storage) -> None:
        contents = [os.urandom(1 << 20) * 20 + bytes([number]) for number in range(6)]

        def write(number: int) -> None:
            with storage.writer(f"object-{number}") as writer:
                for start in range(0, len(contents[number]), 1_500_000):
                    writer.write(memoryview(contents[number])[start : start + 1_500_000])

        at_once(6, write)
        assert [storage.read(f"object-{number}") == contents[number] for number in range(6)] == [True] * 6

    # ---- reads

    def test_ranges_and_streams_end_where_the_object_ends(self, storage: Storage) -> None:
        data = os.urandom(1000)
        storage.put("object", data)
        assert storage.read_range("object", 990, 2000) == data[990:]
        assert storage.read_range("object", 990, None) == data[990:]
        assert storage.read_range("object", 1000, 2000) == b""
        assert storage.read_range("object", 10, 20) == data[10:20]
        assert storage.read_range("object", 10, 10) == b""
        for start, size in ((0, 1000), (10, 10), (990, 50), (1000, 5), (2000, 5)):
            target = bytearray(size)
            count = storage.read_into("object", start, memoryview(target))
            assert bytes(target[:count]) == data[start : start + size]
        for block in (70, 500, 1000, 4096):
            with storage.reader("object", block=block) as stream:
                assert stream.read() == data
            with storage.reader("object", block=block, start=333) as stream:
                assert stream.read() == data[333:]
            with storage.reader("object", block=block) as stream:
                buffer = bytearray(300)
                assert stream.readinto(buffer) == min(300, block)
                assert buffer[: min(300, block)] == data[: min(300, block)]
            with storage.reader("object", block=block) as stream:
                assert b"".join(iter(stream.read_block, b"")) == data

    def test_a_missing_object_is_named(self, storage: Storage) -> None:
        storage.put("catalog/6.json", b"")
        for read in (
            storage.read,
            lambda path: storage.read_range(path, 5, 10),
            lambda path: storage.read_into(path, 0, memoryview(bytearray(5))),
            lambda path: storage.reader(path).read(),
        ):
            with pytest.raises(ObjectMissing) as caught:
                read("catalog/7.json")
            assert str(caught.value) == f"{storage.uri}/catalog/7.json does not exist."
        assert storage.version("catalog/7.json") is None

    # ---- lists and deletes

    def test_a_list_is_sorted_recursive_and_by_prefix_of_the_path(self, storage: Storage) -> None:
        assert storage.list() == []
        for path in ("b/2", "b/10", "a", "b/x/y", "bc", "c/1"):
            storage.put(path, path.encode())
        assert [info.path for info in storage.list()] == ["a", "b/10", "b/2", "b/x/y", "bc", "c/1"]
        assert [info.path for info in storage.list("b")] == ["b/10", "b/2", "b/x/y", "bc"]
        assert storage.list("b/1") == [ObjectInfo("b/10", 4)]
        assert storage.list("nothing/here") == []

    def test_a_list_looks_into_no_folder_whose_name_is_another(self, storage: Storage) -> None:
        for path in ("a/1/x", "a/10/x", "a/10x", "a/2/x"):
            storage.put(path, b"")
        assert [info.path for info in storage.list("a/1")] == ["a/1/x", "a/10/x", "a/10x"]
        assert [info.path for info in storage.list("a/1/")] == ["a/1/x"]
        assert storage.list("a/1/x/") == [], "an object is no folder"

    def test_a_list_says_when_an_object_was_written(self, storage: Storage) -> None:
        before = time.time()
        storage.put("object", b"1")
        (info,) = storage.list()
        assert before - 2 < info.modified < time.time() + 2

    def test_a_list_of_many_pages_is_complete_and_sorted(self, storage: Storage) -> None:
        paths = [f"many/{number}" for number in range(1100)]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda path: storage.put(path, b"x"), paths))
        assert [info.path for info in storage.list("many/")] == sorted(paths)
        storage.delete(paths)
        assert storage.list() == []

    def test_a_delete_of_nothing_is_no_error(self, storage: Storage) -> None:
        storage.put("a/1", b"1")
        storage.put("a/11", b"11")
        storage.delete(["a/1", "a/1", "a/2", "b/3"])
        storage.delete([])
        assert storage.list() == [ObjectInfo("a/11", 2)]

    # ---- names

    def test_names_may_be_odd(self, storage: Storage) -> None:
        for path in self.odd_names:
            storage.check_path(path)
            storage.create(path, b"one")
            with pytest.raises(ObjectExists):
                storage.create(path, b"two")
            assert _written(storage, b"three", path=path, replaces=storage.version(path))
            assert storage.read(path) == b"three"
            assert storage.list(path) == [ObjectInfo(path, 5)]
        assert [info.path for info in storage.list()] == sorted(self.odd_names)
        storage.delete(self.odd_names)
        assert storage.list() == []

    def test_a_path_cannot_leave_the_storage(self, storage: Storage) -> None:
        for path in ("", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", "./a"):
            for action in (
                lambda at: storage.put(at, b""),
                lambda at: storage.create(at, b""),
                storage.writer,
                storage.read,
                storage.version,
                lambda at: storage.delete([at]),
            ):
                with pytest.raises((ValueError, StorageRefused), match="is not an object path"):
                    action(path)
        assert storage.list() == []

    # ---- other processes

    @pytest.mark.usefixtures("worker_environment")
    def test_a_storage_crosses_a_fork_and_a_pickle(self, storage: Storage) -> None:
        storage.put("parent", b"1")
        context = get_context("fork")
        here, there = context.Pipe()
        child = context.Process(target=_in_child, args=(storage, there))
        child.start()
        assert here.poll(120)
        assert here.recv() == b"1"
        child.join(120)
        assert child.exitcode == 0
        assert storage.read("child") == b"2"
        assert pickle.loads(pickle.dumps(storage)).read("child") == b"2"


def _written(storage: Storage, data: bytes, *, path: str = "object", replaces: str | None) -> bool:
    writer = storage.writer(path, replaces=replaces)
    writer.write(data)
    try:
        writer.commit()
    except ObjectExists:
        writer.abort()
        return False
    return True


def _fail_after_writing(writer: ObjectWriter, size: int) -> None:
    with writer:
        writer.write(bytes(size))
        raise RuntimeError("stop")


def _in_child(storage: Storage, answers: Connection) -> None:
    storage.put("child", b"2")
    answers.send(storage.read("parent"))
