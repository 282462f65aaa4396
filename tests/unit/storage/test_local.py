"""Storage in a folder: visible whole or not at all, created once, listed without leftovers."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logkeep_engine.contract.names import STATE_KEYS
from logkeep_engine.contract.spec import Storage as StorageSpec
from logkeep_engine.errors import (
    BucketMissing,
    CredentialsMissing,
    ObjectExists,
    ObjectMissing,
    StorageRefused,
    StorageUnavailable,
)
from logkeep_engine.storage import (
    LocalStorage,
    ObjectInfo,
    ObjectWriter,
    S3Storage,
    Storage,
    open_storage,
    open_uri,
)
from tests.threads import at_once


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_uri(f"file://{tmp_path}/archive")


def test_a_put_replaces_and_a_create_does_not(storage: Storage) -> None:
    storage.put("a/b", b"one")
    storage.put("a/b", b"two")
    with pytest.raises(ObjectExists, match=r"archive/a/b exists already"):
        storage.create("a/b", b"three")
    storage.create("a/c", b"four")
    assert (storage.read("a/b"), storage.read("a/c")) == (b"two", b"four")


def test_of_many_creates_at_once_one_succeeds(storage: Storage) -> None:
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


def test_a_writer_shows_nothing_before_its_commit_and_nothing_after_an_abort(storage: Storage) -> None:
    writer = storage.writer("segments/1.log")
    writer.write(b"abc")
    writer.write(bytearray(b"def"))
    writer.write(memoryview(b"-ghi-")[1:4])
    assert storage.list() == []
    writer.commit()
    writer.abort()
    assert storage.read("segments/1.log") == b"abcdefghi"
    failing = storage.writer("segments/2.log")
    with pytest.raises(RuntimeError, match="stop"):
        _fail_after_writing(failing)
    assert storage.list() == [ObjectInfo("segments/1.log", 9)]
    with pytest.raises(ValueError, match="after commit or abort"):
        failing.write(b"more")


def test_a_writer_takes_the_place_of_what_it_was_told_and_of_nothing_else(storage: Storage, tmp_path: Path) -> None:
    assert storage.version("object") is None
    assert _written(storage, b"one", replaces=None)
    first = storage.version("object")
    assert first is not None
    assert not _written(storage, b"two", replaces=None), "the name is taken"
    assert _written(storage, b"three", replaces=first)
    assert storage.version("object") != first
    assert not _written(storage, b"four", replaces=first), "what was seen is not there any more"
    assert storage.read("object") == b"three"
    storage.delete(["object"])
    assert not _written(storage, b"five", replaces=first)
    assert list(tmp_path.rglob(".logkeep-*")) == []


def test_of_many_writers_that_have_seen_the_same_object_one_replaces_it(storage: Storage) -> None:
    storage.put("object", b"seen by all")
    seen = storage.version("object")
    won: list[int] = []

    def replace(number: int) -> None:
        if _written(storage, b"%d" % number, replaces=seen):
            won.append(number)

    at_once(8, replace)
    assert len(won) == 1
    assert storage.read("object") == b"%d" % won[0]


def _written(storage: Storage, data: bytes, *, replaces: str | None) -> bool:
    writer = storage.writer("object", replaces=replaces)
    writer.write(data)
    try:
        writer.commit()
    except ObjectExists:
        writer.abort()
        return False
    return True


def _fail_after_writing(writer: ObjectWriter) -> None:
    with writer:
        writer.write(b"abc")
        raise RuntimeError("stop")


def test_ranges_and_streams_end_where_the_object_ends(storage: Storage) -> None:
    data = os.urandom(1000)
    storage.put("object", data)
    assert storage.read_range("object", 990, 2000) == data[990:]
    assert storage.read_range("object", 1000, 2000) == b""
    assert storage.read_range("object", 10, 20) == data[10:20]
    for start, size in ((0, 1000), (10, 10), (990, 50), (1000, 5), (2000, 5)):
        target = bytearray(size)
        count = storage.read_into("object", start, memoryview(target))
        assert bytes(target[:count]) == data[start : start + size]
    for block in (7, 500, 1000, 4096):
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


def test_a_list_is_sorted_recursive_and_by_prefix_of_the_path(storage: Storage) -> None:
    for path in ("b/2", "b/10", "a", "b/x/y", "bc", "c/1"):
        storage.put(path, path.encode())
    assert [info.path for info in storage.list()] == ["a", "b/10", "b/2", "b/x/y", "bc", "c/1"]
    assert [info.path for info in storage.list("b")] == ["b/10", "b/2", "b/x/y", "bc"]
    assert storage.list("b/1") == [ObjectInfo("b/10", 4)]
    assert storage.list("nothing/here") == []


def test_a_list_looks_into_no_folder_whose_name_is_another(storage: Storage) -> None:
    for path in ("a/1/x", "a/10/x", "a/10x", "a/2/x"):
        storage.put(path, b"")
    assert [info.path for info in storage.list("a/1")] == ["a/1/x", "a/10/x", "a/10x"]
    assert [info.path for info in storage.list("a/1/")] == ["a/1/x"]
    assert storage.list("a/1/x/") == [], "a file is no folder"


@contextlib.contextmanager
def as_another_user(folder: Path, bits: int) -> Iterator[None]:
    """Neither reads what is in the folder nor enters it, as `bits` (rwx) say; root could do both."""
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
    """With 4 its names can be read, but not what lies under them."""
    storage = open_uri(f"file://{reachable}/archive")
    for path in ("topics/orders/1.log", "topics/orders/2.log", "topics/others/1.log", "topics/x", "x"):
        storage.put(path, b"")
    with as_another_user(reachable / "archive" / folder, bits):
        with pytest.raises(StorageRefused) as refused:
            storage.list("topics/o" if folder else "")
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


def test_a_delete_of_nothing_is_no_error(storage: Storage) -> None:
    storage.put("a/1", b"1")
    storage.delete(["a/1", "a/2", "b/3"])
    assert storage.list() == []


def test_a_missing_object_is_named(storage: Storage) -> None:
    with pytest.raises(ObjectMissing) as caught:
        storage.read("catalog/7.json")
    assert str(caught.value) == f"{storage.uri}/catalog/7.json does not exist."
    with pytest.raises(ObjectMissing), storage.reader("catalog/7.json") as stream:
        stream.read()


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/"])
def test_a_path_cannot_leave_the_archive(storage: Storage, path: str) -> None:
    with pytest.raises(ValueError, match="is not an object path"):
        storage.put(path, b"")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("topics/.logkeep-x/y", r"topics/\.logkeep-x/y: names that begin with \.logkeep- are those of files"),
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
    from logkeep_engine.storage import _os_errors

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


def test_uris_decide_what_is_opened() -> None:
    assert isinstance(open_uri("file:///a/b/"), LocalStorage)
    s3 = open_uri("s3://bucket/pre/fix/", endpoint="http://user:secret@host:9000")
    assert isinstance(s3, S3Storage)
    assert repr(s3) == "S3Storage('s3://bucket/pre/fix', endpoint='http://host:9000')"
    for uri in ("gs://bucket", "file://host/path", "/path", "s3:///prefix"):
        with pytest.raises(StorageRefused, match="is not a storage URI"):
            open_uri(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:hunter2@bucket/p",
        "s3://AKIAKEY:hun/hunter2@bucket/p",
        "s3://AKIAKEY:hun?hunter2@bucket/p",
        "s3://AKIAKEY@bucket/p",
        "s3://AKIAKEY%3Ahunter2%40bucket/p",
        "file://AKIAKEY:hunter2@host/p",
        "gs://AKIAKEY:hunter2@bucket/p",
    ],
)
def test_a_login_in_a_uri_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(StorageRefused, match=r"Credentials come from the environment .* Secret") as refused:
        open_uri(uri)
    _assert_untold(refused.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAKEY:[hunter2@bucket/p",
        "s3://AKIAKEY:hunter2@b\u2100cket/p",
        "s3:/AKIAKEY:hunter2@bucket/p",
        "AKIAKEY:hunter2@bucket/p",
        "/p?AKIAKEY=hunter2",
        "gs://bucket/#hunter2",
    ],
)
def test_what_is_no_uri_is_not_repeated_if_it_may_hold_a_secret(uri: str) -> None:
    with pytest.raises(StorageRefused, match=r"What was given is not a storage URI\. Write s3://") as refused:
        open_uri(uri)
    _assert_untold(refused.value)


@pytest.mark.parametrize("rest", ["?AKIAKEY=hunter2", "#hunter2", "?", "/?AKIAKEY=hunter2#hunter2"])
def test_what_would_be_dropped_of_a_uri_is_refused_and_not_repeated(rest: str) -> None:
    with pytest.raises(
        StorageRefused, match=r"^s3://bucket/p/?: a storage URI has no part .* Credentials come from"
    ) as refused:
        open_uri(f"s3://bucket/p{rest}")
    _assert_untold(refused.value)


def _assert_untold(error: StorageRefused) -> None:
    told = "".join(traceback.format_exception(error))
    assert "AKIAKEY" not in told
    assert "hunter2" not in told


@pytest.mark.parametrize("name", ["a@b", "a:b", "a?b", "a#b", "a%b", "@", "a b"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    open_uri((tmp_path / name).as_uri()).put("object", b"1")
    assert (tmp_path / name / "object").read_bytes() == b"1"
    if name in ("a@b", "a:b", "@"):
        assert open_uri(f"file://{tmp_path}/{name}").read("object") == b"1"
    if name in ("a?b", "a#b"):
        with pytest.raises(
            StorageRefused, match=f"^file://{tmp_path}/a: a storage URI has no part .* write %3F and %23"
        ):
            open_uri(f"file://{tmp_path}/{name}")


@pytest.mark.parametrize("endpoint", ["AKIAKEY:hunter2@host:9000", "http://AKIAKEY:hunter2@-host-:9000"])
def test_a_login_in_an_endpoint_is_not_told(endpoint: str) -> None:
    s3 = open_uri("s3://bucket", endpoint, environ={"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"})
    with pytest.raises(StorageRefused, match=r"Invalid endpoint: (http://)?-?host-?:9000") as refused:
        s3.check()
    assert "AKIAKEY" not in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_a_secret_that_did_not_arrive_is_said_by_variable_and_key() -> None:
    spec = StorageSpec.model_validate({"uri": "s3://bucket", "credentials": {"secretRef": {"name": "keys"}}})
    with pytest.raises(CredentialsMissing) as caught:
        open_storage(spec, {"AWS_ACCESS_KEY_ID": "id"})
    assert str(caught.value) == (
        "storage.credentials.secretRef names Secret 'keys', but AWS_SECRET_ACCESS_KEY is not in the environment. "
        "The Secret must have the keys accessKeyId and secretAccessKey; outside Kubernetes set the variables yourself."
    )
    assert isinstance(open_storage(spec, {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}), S3Storage)


def test_the_keys_of_a_state_are_variables_of_their_own() -> None:
    spec = StorageSpec.model_validate({"uri": "s3://bucket", "credentials": {"secretRef": {"name": "writer"}}})
    archives = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
    with pytest.raises(CredentialsMissing) as caught:
        open_storage(spec, archives, secret_keys=STATE_KEYS)
    assert str(caught.value).startswith(
        "state.credentials.secretRef names Secret 'writer', but LOGKEEP_STATE_ACCESS_KEY_ID and "
        "LOGKEEP_STATE_SECRET_ACCESS_KEY are not in the environment."
    )
    shared = StorageSpec.model_validate({"uri": "s3://bucket"})
    assert isinstance(open_storage(shared, archives, secret_keys=STATE_KEYS), S3Storage)


def test_a_pickle_holds_no_credentials(storage: Storage) -> None:
    storage.put("a", b"1")
    assert pickle.loads(pickle.dumps(storage)).read("a") == b"1"
    s3 = open_uri("s3://bucket", environ={"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "hush-hush"})
    pickled = pickle.dumps(s3)
    assert b"hush" not in pickled
    assert b"AKID" not in pickled
