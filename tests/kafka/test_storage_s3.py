"""Storage on a real S3 server: the contract of every storage, multipart uploads, and what each failure is called."""

import contextlib
import os
import re
import socket
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
from crc32c import crc32c

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.errors import (
    BucketMissing,
    CredentialsMissing,
    LogkeepError,
    ObjectExists,
    StorageRefused,
    StorageUnavailable,
)
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES, Storage, open_uri, retry, upload
from logkeep_engine.storage.s3 import connection
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import (
    Fault,
    S3Proxy,
    answer,
    cut_body,
    delayed,
    lost_answer,
    reset,
    silent,
    slow,
    stale_list,
)
from tests.unit.archive.build import FAST, archive_of, chunk
from tests.unit.storage.contract import StorageContract


def open_s3(server: S3Server, bucket: str, *, endpoint: str | None = None, **environ: str) -> Storage:
    keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key, **environ}
    return open_uri(f"s3://{bucket}/an/archive", endpoint or server.endpoint, server.region, keys)


class TestContract(StorageContract):
    @pytest.fixture
    def storage(self, s3: S3Server, bucket: str) -> Storage:
        return open_s3(s3, bucket)

    @pytest.fixture
    def files(self, s3: S3Server, bucket: str) -> Callable[[], int]:
        return lambda: sum(path.is_file() for path in (s3.data_dir / bucket).rglob("*"))

    @pytest.fixture
    def worker_environment(self, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PATIENCE", 2.0)


def test_an_object_without_an_etag_is_refused_by_name(s3: S3Server, bucket: str) -> None:
    folder = s3.data_dir / bucket / "an" / "archive"
    folder.mkdir(parents=True)
    (folder / "archive.json").write_bytes(b"{}")  # the server keeps objects as files, with their ETags beside them
    with pytest.raises(StorageRefused, match=r"an/archive/archive\.json: the store names no ETag"):
        open_s3(s3, bucket).version("archive.json")


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    storage = open_s3(s3, "no-such-bucket-here")
    for action in (storage.check, lambda: storage.put("a", b""), lambda: storage.read("a"), storage.list):
        with pytest.raises(BucketMissing) as caught:
            action()
        assert str(caught.value) == (
            f"Bucket 'no-such-bucket-here' does not exist at {s3.endpoint}. Create it, or correct storage.uri."
        )


def test_wrong_credentials_are_refused_without_being_shown(s3: S3Server, bucket: str) -> None:
    for wrong, code in (
        ({"AWS_SECRET_ACCESS_KEY": "a-wrong-secret-key"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "nobody-known"}, "refused the credentials"),
    ):
        storage = open_s3(s3, bucket, **wrong)
        for action in (storage.check, lambda at=storage: at.read("a"), lambda at=storage: at.create("a", b"")):
            with pytest.raises(StorageRefused) as caught:
                action()
            assert code in caught.value.message
            assert s3.endpoint in caught.value.message
            for secret in ("a-wrong-secret-key", "nobody-known", s3.access_key, s3.secret_key):
                assert secret not in str(caught.value)


def test_no_credentials_at_all_are_said_by_variable(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    with pytest.raises(CredentialsMissing, match="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        open_uri(f"s3://{bucket}", s3.endpoint, s3.region, {}).check()


@pytest.mark.usefixtures("impatient")
def test_an_endpoint_where_nobody_listens_is_named_in_bounded_time(s3: S3Server, bucket: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(StorageUnavailable) as caught:
            open_s3(s3, bucket, endpoint=endpoint).check()
        assert time.monotonic() - began < retry.PATIENCE + 20
    assert endpoint in caught.value.message
    assert caught.value.hint == "Check that storage.endpoint is right and reachable."


def test_a_server_that_comes_back_is_waited_for(bucket: str) -> None:
    with S3Server() as server:
        storage = open_s3(server, server.create_bucket(bucket))
        storage.put("a", b"1")
        server.kill()
        back = threading.Timer(2.0, server.start)
        back.start()
        storage.put("b", b"2")
        back.join()
        assert [info.path for info in storage.list()] == ["a", "b"]


@pytest.mark.parametrize(
    ("size", "parts"), [(0, 0), (10, 0), (PART_BYTES, 0), (PART_BYTES + 1, 2), (2 * PART_BYTES, 2)]
)
def test_an_object_is_one_request_or_one_for_each_part_and_two_more(
    s3: S3Server, bucket: str, proxy: S3Proxy, size: int, parts: int
) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    data = (os.urandom(1 << 20) * (size // (1 << 20) + 1))[:size]
    with storage.writer("a") as writer:
        for start in range(0, size, 5_000_000):
            writer.write(data[start : start + 5_000_000])
    asked = requests_by_kind(proxy.requests)
    assert asked == ({"CreateMultipartUpload": 1, "UploadPart": parts, "CompleteMultipartUpload": 1} if parts else PUT)
    assert storage.read("a") == data


PUT = {"PutObject": 1}


def requests_by_kind(lines: Iterable[bytes]) -> dict[str, int]:
    """How many requests of each kind write, by the first lines of all."""
    kinds = {
        re.compile(rb"POST \S+\?uploads"): "CreateMultipartUpload",
        re.compile(rb"PUT \S+partNumber="): "UploadPart",
        re.compile(rb"POST \S+uploadId="): "CompleteMultipartUpload",
        re.compile(rb"PUT "): "PutObject",
    }
    found = (next((kind for begins, kind in kinds.items() if begins.match(line)), None) for line in lines)
    return dict(Counter(kind for kind in found if kind is not None))


def test_a_lost_answer_to_a_put_or_read_is_asked_again(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    storage.put("a", b"1")
    proxy.meet(lost_answer, lost_answer)
    storage.put("a", b"2")
    proxy.meet(lost_answer)
    assert storage.read("a") == b"2"
    assert len(proxy.requests) == 6


def test_a_lost_answer_to_a_create_finds_its_own_object(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.meet(lost_answer)
    with pytest.raises(ObjectExists):
        storage.create("a", b"mine")
    assert storage.read("a") == b"mine"


def test_an_older_object_of_the_same_size_is_not_taken_for_an_upload_that_is_gone(
    s3: S3Server, bucket: str, proxy: S3Proxy
) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    older = os.urandom(PART_BYTES + 10)
    with storage.writer("a") as writer:
        writer.write(older)
    writer = storage.writer("a")
    writer.write(os.urandom(PART_BYTES + 10))
    proxy.meet(answer("404 Not Found", "NoSuchUpload"), where=lambda line: line.startswith(b"POST"))
    with pytest.raises(StorageRefused):
        writer.commit()
    writer.abort()
    assert storage.read("a") == older


def test_after_a_lost_answer_to_a_conditional_put_the_object_is_there(
    s3: S3Server, bucket: str, proxy: S3Proxy
) -> None:
    """Stores differ in what they say to the second request: done, or that the object is another now."""
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    storage.put("a", b"before")
    data = os.urandom(10)
    writer = storage.writer("a", replaces=storage.version("a"))
    writer.write(data)
    proxy.meet(lost_answer)
    with contextlib.suppress(ObjectExists):
        writer.commit()
    writer.abort()
    assert storage.read("a") == data


@pytest.mark.parametrize(
    ("status", "code", "error", "says"),
    [
        ("503 Slow Down", "SlowDown", StorageUnavailable, "answered SlowDown"),
        ("500 Internal Server Error", "InternalError", StorageUnavailable, "answered InternalError"),
        ("409 Conflict", "ConditionalRequestConflict", StorageUnavailable, "answered ConditionalRequestConflict"),
        ("403 Forbidden", "AccessDenied", StorageRefused, "denied access"),
        ("403 Forbidden", "ExpiredToken", StorageRefused, "refused the credentials"),
        ("501 Not Implemented", "NotImplemented", StorageRefused, "cannot do what was asked"),
        ("412 Precondition Failed", "PreconditionFailed", ObjectExists, "exists already"),
    ],
)
@pytest.mark.usefixtures("impatient")
def test_each_refusal_has_its_name(
    s3: S3Server, bucket: str, proxy: S3Proxy, status: str, code: str, error: type[LogkeepError], says: str
) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.always(answer(status, code, "signed with hush-hush"))
    with pytest.raises(error, match=says) as caught:
        storage.create("a", b"1")
    assert "hush" not in str(caught.value)
    # What a store does not understand may be the checksum: it is asked once more without.
    assert (len(proxy.requests) > 1) == (error is StorageUnavailable or code == "NotImplemented")


def test_a_server_that_asks_to_slow_down_is_asked_again(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.meet(*[answer("503 Slow Down", "SlowDown")] * 3)
    storage.create("a", b"1")
    assert storage.read("a") == b"1"


@pytest.mark.parametrize("parts", [0, 1])
def test_a_part_that_has_changed_is_not_sent_unchecked_to_a_store_that_calls_it_an_invalid_request(
    s3: S3Server, bucket: str, proxy: S3Proxy, parts: int
) -> None:
    """Ceph answers InvalidRequest where a body has another checksum, as others do where they know no checksums."""
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.refuses(answer("400 Bad Request", "InvalidRequest"), b"x-amz-checksum-crc32c")
    writer = storage.writer("a")
    writer.write(os.urandom(parts * PART_BYTES + 10))
    writer._part._slabs[0][3] ^= 1  # type: ignore[attr-defined]
    with pytest.raises(StorageRefused, match="changed in memory"):
        writer.commit()
    writer.abort()
    assert storage.list() == []
    storage.put("b", b"sound")
    assert storage.read("b") == b"sound"


def _held(storage: Storage, path: str) -> dict[str, object]:
    """The checksum of an object, as the store says it."""
    requests = storage._requests  # type: ignore[attr-defined]
    answer = requests.call("head_object", path, Key=storage._place.key(path), ChecksumMode="ENABLED")  # type: ignore[attr-defined]
    return {name: value for name, value in answer.items() if name.startswith("Checksum")}


@pytest.mark.parametrize("parts", [0, 1, 2])
def test_the_store_has_the_checksum_of_the_whole_object(s3: S3Server, bucket: str, parts: int) -> None:
    storage = open_s3(s3, bucket)
    data = os.urandom(parts * PART_BYTES + 10)
    with storage.writer("a") as writer:
        writer.write(data)
    crc = b64encode(crc32c(data).to_bytes(4, "big")).decode()
    assert _held(storage, "a") == {"ChecksumCRC32C": crc, "ChecksumType": "FULL_OBJECT"}


@pytest.mark.parametrize("wrong", ["checksum", "size"])
def test_an_object_that_is_put_together_wrongly_is_refused(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    storage = open_s3(s3, bucket)
    out = storage.writer("a")
    out.write(os.urandom(PART_BYTES + 10))
    if wrong == "checksum":
        monkeypatch.setattr(upload, "crc32c_combined", lambda *_: 4711)
    else:
        out._size += 1  # type: ignore[attr-defined]
    with pytest.raises(StorageRefused):
        out.commit()
    out.abort()
    assert storage.list() == []


@pytest.mark.parametrize("code", ["NotImplemented", "InvalidRequest", "InvalidArgument"])
def test_a_store_that_refuses_checks_is_asked_for_fewer_and_only_once(
    s3: S3Server, bucket: str, proxy: S3Proxy, code: str
) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    refuse = answer("501 Not Implemented" if code == "NotImplemented" else "400 Bad Request", code)
    data = os.urandom(PART_BYTES + 10)

    def write(path: str) -> list[str]:
        proxy.requests.clear()
        with storage.writer(path) as out:
            out.write(data)
        assert storage.read(path) == data
        return [line.split()[0].decode() for line in proxy.requests if b"uploads" in line]

    proxy.refuses(refuse, b"x-amz-checksum-type")
    assert write("a") == ["POST", "POST"], "asked once more"
    assert _held(storage, "a")["ChecksumType"] == "COMPOSITE", "each part was checked"
    assert write("b") == ["POST"], "and asked for no more"
    proxy.refuses(refuse, b"x-amz-checksum-algorithm", b"x-amz-checksum-crc32c")
    assert write("c") == ["POST", "POST"]
    storage.put("small", b"1")
    proxy.requests.clear()
    storage.put("small", b"2")
    assert (storage.read("small"), len(proxy.requests)) == (b"2", 2), "one request to write and one to read"


def test_a_store_that_does_not_say_that_it_checks_whole_objects_is_told_nothing_of_them(
    s3: S3Server, bucket: str, proxy: S3Proxy
) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.hides = b"x-amz-checksum-type"
    proxy.refuses(answer("400 Bad Request", "InvalidRequest"), b"x-amz-mp-object-size")
    data = os.urandom(PART_BYTES + 10)
    with storage.writer("a") as out:
        out.write(data)
    assert storage.read("a") == data


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time-outs that a test can wait for. The last attempt has the longer one, in which the store must answer."""
    monkeypatch.setattr(retry, "PATIENCE", 0.5)
    monkeypatch.setattr(connection, "QUICK_TIMEOUT", 0.2)
    monkeypatch.setattr(connection, "BODY_TIMEOUT", 2.0)


@pytest.mark.parametrize("fault", [silent, reset, lost_answer], ids=lambda fault: fault.__name__)
@pytest.mark.usefixtures("soon")
def test_a_connection_that_says_nothing_is_given_up_and_another_asked(
    s3: S3Server, bucket: str, proxy: S3Proxy, fault: Fault
) -> None:
    """At least three times, however long each takes."""
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    proxy.meet(fault, fault)
    storage.put("a", b"1")
    proxy.meet(fault, fault)
    assert storage.read("a") == b"1"
    proxy.meet(fault, fault)
    assert [info.path for info in storage.list()] == ["a"]
    proxy.meet(fault, fault)
    assert storage.version("a")
    proxy.meet(fault, fault)
    assert storage.read_range("a", 0, DEFAULT_BLOCK) == b"1"
    proxy.meet(fault, fault)
    storage.delete(["a"])
    assert storage.list() == []


@pytest.mark.usefixtures("soon")
def test_a_store_that_stays_silent_is_named_in_bounded_time(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    storage.check()
    proxy.always(silent)
    asked = len(proxy.requests)
    for request in (lambda: storage.read("a"), storage.check, lambda: storage.create("a", b"1")):
        began = time.monotonic()
        with pytest.raises(StorageUnavailable, match="no answer from"):
            request()
        assert time.monotonic() - began < 40
        assert len(proxy.requests) - asked == 3
        asked = len(proxy.requests)


@pytest.mark.usefixtures("soon")
def test_a_slow_store_has_more_time_at_last(
    s3: S3Server, bucket: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "BODY_TIMEOUT", 20.0)
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    storage.put("a", b"1")
    proxy.always(delayed(0.5))
    assert storage.read("a") == b"1"
    assert [info.path for info in storage.list()] == ["a"]
    storage.put("b", b"2")
    proxy.always(slow(2000))
    data = os.urandom(5000)
    storage.put("c", data)
    assert storage.read("c") == data


@pytest.mark.parametrize("then", [None, silent, reset], ids=["closed", "silent", "reset"])
@pytest.mark.usefixtures("soon")
def test_a_body_that_is_cut_is_read_again(s3: S3Server, bucket: str, proxy: S3Proxy, then: Fault | None) -> None:
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    data = os.urandom(3 << 20)
    storage.put("a", data)
    cut = cut_body(1 << 20) if then is None else cut_body(1 << 20, then=then)
    proxy.meet(cut, cut)
    assert storage.read("a") == data
    proxy.meet(cut, cut)
    assert storage.read_range("a", 5, 2 << 20) == data[5 : 2 << 20]


def test_a_list_that_is_late_hides_no_commit(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    """A commit that is listed late is read at once: the archive is opened with all its commits."""
    storage = open_s3(s3, bucket, endpoint=proxy.endpoint)
    archive_of(storage, chunk(storage, 0, 50))
    proxy.first_lists.clear()
    archive = Archive.open(storage)
    before = archive.load()
    with begin_run(archive, "run-2", wait=FAST) as writer:
        writer.end(RunOutcome.SUCCEEDED)
    proxy.always(stale_list, where=lambda line: b"list-type=2" in line)
    assert archive.listing().commits.keys() == set(range(before.commit + 1)), "the list is late"
    assert archive.load().commit == before.commit + 2
    with begin_run(archive, "run-3", wait=FAST) as writer:
        assert writer.epoch == 3
        writer.end(RunOutcome.SUCCEEDED)
