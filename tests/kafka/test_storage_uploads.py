"""Uploads to each kind of object store that are disturbed: the one writer of all of them, before real servers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from urllib.parse import urlsplit

import pytest

from logkeep_engine.errors import ObjectExists, StorageRefused, StorageUnavailable
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES, ObjectWriter, Storage, open_uri, parts, retry
from logkeep_engine.storage.azure import storage as azure_storage
from logkeep_engine.storage.gcs import writer as gcs_writer
from logkeep_engine.storage.s3 import connection
from logkeep_engine.storage.upload import UploadGone
from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.gcs_proxy import GcsProxy, kept_in_part
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import (
    Fault,
    S3Proxy,
    answer,
    applied_then_silent,
    cut_body,
    lost_answer,
    reset,
    silent,
)

BUSY = answer("503 Service Unavailable", "ServerBusy", "try later")
PART = 5 << 20  # the smallest that S3 takes: tests of whole ones are those of each store
DATA = os.urandom(6 << 20) + b"the end"  # two parts


def named(fault: Fault) -> str:
    """The name of a fault, for the name of a test."""
    return "busy" if fault is BUSY else fault.__name__


@dataclass
class Store:
    """A store behind a proxy. `kinds`: what requests of an upload look like, by what they do."""

    storage: Storage
    proxy: S3Proxy
    kinds: dict[str, bytes]

    def meet(self, kind: str, *faults: Fault) -> None:
        """Each of the next requests of a kind meets one of these."""
        self.proxy.meet(*faults, where=lambda line: self._is(kind, line))

    def always(self, kind: str, fault: Fault) -> None:
        """All requests of a kind meet this."""
        self.proxy.always(fault, where=lambda line: self._is(kind, line))

    def asked(self) -> dict[str, int]:
        """How many requests there were of each kind since the last time."""
        lines = list(self.proxy.requests)
        self.proxy.requests.clear()
        return {kind: count for kind in self.kinds if (count := sum(self._is(kind, line) for line in lines))}

    def _is(self, kind: str, line: bytes) -> bool:
        return re.match(self.kinds[kind], line) is not None


S3 = {
    "put": rb"PUT [^?]+ ",
    "begin": rb"POST \S+\?uploads",
    "part": rb"PUT \S+partNumber=",
    "finish": rb"POST \S+uploadId=",
    "abort": rb"DELETE \S+uploadId=",
    "read": rb"GET \S+/a[ ?]",
}
GS = {
    "put": rb"POST \S+uploadType=multipart",
    "begin": rb"POST \S+uploadType=resumable",
    "part": rb"PUT \S+upload_id=",
    "abort": rb"DELETE \S+upload_id=",
    "read": rb"GET \S+alt=media",
}
AZ = {
    "put": rb"PUT [^?]+ ",
    "part": rb"PUT \S+comp=block&",
    "finish": rb"PUT \S+comp=blocklist",
    "read": rb"GET \S+/a[ ?]",
}
FINISH = {"s3": "finish", "gs": "part", "az": "finish"}  # what makes the object: for Google, its last part


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", PART)


@pytest.fixture(params=["s3", "gs", "az"])
def store(request: pytest.FixtureRequest, unique: str) -> Iterator[Store]:
    if request.param == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        keys = {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": s3.secret_key}
        s3.create_bucket(unique)
        with S3Proxy(s3) as proxy:
            yield Store(open_uri(f"s3://{unique}/x", proxy.endpoint, s3.region, keys), proxy, S3)
    elif request.param == "gs":
        gcs: GcsServer = request.getfixturevalue("gcs")
        gcs.create_bucket(unique)
        with GcsProxy(gcs) as proxy:
            keys = {"LOGKEEP_GOOGLE_KEY": gcs.account_key()}
            yield Store(open_uri(f"gs://{unique}/x", proxy.endpoint, environ=keys), proxy, GS)
    else:
        azure: AzureServer = request.getfixturevalue("azure")
        azure.create_container(unique)
        with S3Proxy(azure) as proxy:
            port = urlsplit(proxy.endpoint).port
            endpoint = f"http://{urlsplit(azure.endpoint).hostname}:{port}"  # the name has the account
            yield Store(open_uri(f"az://{unique}/x", endpoint, environ={"AZURE_STORAGE_KEY": azure.key}), proxy, AZ)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time-outs that a test can wait for."""
    monkeypatch.setattr(retry, "PATIENCE", 0.5)
    monkeypatch.setattr(connection, "QUICK_TIMEOUT", 0.5)
    monkeypatch.setattr(connection, "BODY_TIMEOUT", 2.0)
    monkeypatch.setattr(gcs_writer, "TIMEOUT", (15.0, 2.0))
    monkeypatch.setattr(azure_storage, "READ_TIMEOUT", 2.0)


def write(storage: Storage, data: bytes = DATA, replaces: str | None = "*") -> None:
    with storage.writer("a", replaces=replaces) as writer:
        for start in range(0, len(data), 3_000_000):
            writer.write(memoryview(data)[start : start + 3_000_000])


@pytest.mark.parametrize("size", [0, 10, PART, PART + 1, 2 * PART + 5])
def test_an_object_is_one_request_or_one_for_each_part(store: Store, size: int) -> None:
    data = (DATA * 3)[:size]
    store.asked()
    write(store.storage, data)
    count = -(-size // PART)
    whole = {"begin": 1, "part": count, "finish": 1} if count > 1 else {"put": 1}
    assert store.asked() == {kind: times for kind, times in whole.items() if kind in store.kinds}
    assert store.storage.read("a") == data
    assert store.asked() == {"read": 1}


@pytest.mark.parametrize("fault", [BUSY, silent, reset, lost_answer, applied_then_silent], ids=named)
@pytest.mark.parametrize("kind", ["put", "part"])
@pytest.mark.usefixtures("soon")
def test_what_fails_for_a_reason_that_may_pass_is_sent_again(store: Store, kind: str, fault: Fault) -> None:
    data = DATA if kind == "part" else DATA[:3_000_000]
    store.meet(kind, fault, fault)
    write(store.storage, data)
    assert store.storage.read("a") == data
    assert store.storage.unseen("") == ()


@pytest.mark.parametrize("fault", [BUSY, lost_answer], ids=named)
@pytest.mark.parametrize("replaces", ["anything", "nothing", "what was there"])
@pytest.mark.usefixtures("soon")
def test_an_upload_whose_last_answer_is_lost_finds_its_own_object(
    store: Store, request: pytest.FixtureRequest, fault: Fault, replaces: str
) -> None:
    scheme = request.node.callspec.params["store"]
    before = None
    if replaces != "nothing":
        store.storage.put("a", b"before")
        before = store.storage.version("a") if replaces == "what was there" else "*"
    writer = store.storage.writer("a", replaces=before)
    writer.write(DATA)
    if scheme == "gs":
        next(iter(writer._parts)).result()  # type: ignore[attr-defined]  # the next part is the last
    store.meet(FINISH[scheme], fault)
    # Stores of S3 differ in what they say to the second request: done, or that the object is another now.
    with contextlib.suppress(*(ObjectExists,) if scheme == "s3" and replaces != "anything" else ()):
        writer.commit()
    writer.abort()
    assert store.storage.read("a") == DATA
    assert store.storage.unseen("") == ()


@pytest.mark.usefixtures("soon")
def test_an_object_of_another_writer_is_not_taken_for_its_own(store: Store) -> None:
    writer = store.storage.writer("a", replaces=None)
    writer.write(DATA)
    other = store.storage.writer("a", replaces=None)
    other.write(bytes(len(DATA)))
    other.commit()
    with pytest.raises(ObjectExists):
        writer.commit()
    writer.abort()
    assert store.storage.read("a") == bytes(len(DATA))
    assert store.storage.unseen("") == ()


@pytest.mark.parametrize("size", [3_000_000, len(DATA)])
def test_bytes_that_change_on_their_way_are_refused(store: Store, size: int) -> None:
    data = DATA[: size - 8] + b"precious"
    store.proxy.spoil = b"precious"
    with pytest.raises(
        StorageRefused, match=r"BadDigest|SHA256Mismatch|InvalidDigest|changed|Md5Mismatch|InvalidOperation"
    ):
        write(store.storage, data)
    assert store.storage.list() == []
    if "abort" in store.kinds:  # Azure drops blocks in a week: nothing else does without an object that is seen
        assert store.storage.unseen("") == ()


@pytest.mark.parametrize(
    ("store", "says"),
    [
        ("gs", "Provided CRC32C AAAAAA== doesn't match calculated CRC32C BBBBBB==."),
        ("az", "Md5Mismatch"),
    ],
    indirect=["store"],
)
@pytest.mark.parametrize("kind", ["put", "part"])
def test_what_the_services_say_of_a_wrong_checksum_is_understood(store: Store, kind: str, says: str) -> None:
    store.meet(kind, answer("400 Bad Request", says, says))  # the servers of the test bed do not, or in other words
    with pytest.raises(StorageRefused, match="changed in memory, or on their way"):
        write(store.storage, DATA if kind == "part" else b"1")
    assert store.storage.list() == []


@pytest.mark.parametrize("full", [0, 1])
def test_bytes_that_change_after_they_were_handed_in_are_refused(store: Store, full: int) -> None:
    writer = store.storage.writer("a")
    writer.write(DATA[: full * PART + 10])
    writer._part._slabs[0][3] ^= 1  # type: ignore[attr-defined]
    with pytest.raises(StorageRefused, match=r"BadDigest|changed in memory"):
        writer.commit()
    writer.abort()
    assert store.storage.list() == []


@pytest.mark.usefixtures("soon")
def test_an_upload_whose_parts_fail_ends_and_is_given_up(store: Store) -> None:
    writer = store.storage.writer("a")
    writer.write(DATA[: PART + 1])
    store.always("part", BUSY)
    with pytest.raises(StorageUnavailable):
        _write_all(writer)
    store.proxy.well()
    with pytest.raises(ValueError, match="write after commit or abort"):
        writer.write(b"more")
    assert store.storage.list() == []
    assert store.storage.unseen("") == ()
    assert ("abort" in store.kinds) == ("abort" in store.asked())


def test_a_writer_that_is_killed_shows_nothing_and_blocks_no_other(store: Store) -> None:
    def die() -> None:
        writer = store.storage.writer("a", replaces=None)
        writer.write(DATA)
        writer._parts[0].result()  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)

    killed = get_context("fork").Process(target=die)
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert store.storage.list() == []
    write(store.storage, replaces=None)
    assert store.storage.read("a") == DATA
    assert store.storage.delete_unseen(store.storage.unseen("")) == ()
    assert store.storage.unseen("") == ()
    assert store.storage.read("a") == DATA


def _write_all(writer: ObjectWriter) -> None:
    with writer:
        for _ in range(5):
            writer.write(DATA)


@pytest.mark.parametrize(
    "cut", [cut_body(1 << 20), cut_body(1 << 20, then=reset), cut_body(0)], ids=["closed", "reset", "empty"]
)
@pytest.mark.usefixtures("soon")
def test_a_range_is_one_request_and_is_read_again_if_it_is_cut(store: Store, cut: Fault) -> None:
    store.storage.put("a", DATA)
    for start, end in ((0, 5), (7, 7 + DEFAULT_BLOCK), (len(DATA) - 5, len(DATA) + 5), (5, len(DATA) - 1)):
        store.asked()
        assert store.storage.read_range("a", start, end) == DATA[start:end]
        assert store.asked() == {"read": 1}
    store.meet("read", cut, cut)
    assert store.storage.read_range("a", 5, 5 + (3 << 20)) == DATA[5 : 5 + (3 << 20)]


@pytest.mark.parametrize("after", [0, 20])
@pytest.mark.usefixtures("soon")
def test_an_answer_that_is_cut_is_not_taken_for_a_whole_one(store: Store, after: int) -> None:
    cut = cut_body(after)
    store.storage.put("a", b"1")
    store.storage.put("b", b"1")
    for wanted in (["a", "b"], ["b"]):
        store.proxy.meet(cut)
        assert [info.path for info in store.storage.list()] == wanted, "not the list of an empty archive"
        store.proxy.meet(cut)
        store.storage.delete(["a"])
    for kind in ("begin", "part", "finish"):
        if kind in store.kinds:
            store.meet(kind, cut)
            write(store.storage)
            assert store.storage.read("a") == DATA
    store.proxy.meet(cut)
    assert len(store.storage.unseen("")) == ("abort" in store.kinds and store.kinds is S3), "begun, and its name lost"


@pytest.mark.parametrize("said", [b"", b"<html><body>log in</body></html>"])
@pytest.mark.usefixtures("soon")
def test_an_answer_of_somebody_else_is_no_success(store: Store, said: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(said)
    store.proxy.always(lambda exchange: exchange.send(head + said))
    for act in (
        lambda: store.storage.put("a", b"1"),
        lambda: store.storage.create("a", b"1"),
        lambda: write(store.storage),
        lambda: write(store.storage, b"1"),
        store.storage.list,
        lambda: store.storage.unseen(""),
    ):
        with pytest.raises((StorageRefused, StorageUnavailable), match=r"Check|try again|Look for"):
            act()


@pytest.mark.parametrize("kind", ["part", "finish"])
@pytest.mark.parametrize("store", ["s3"], indirect=True)
def test_s3_names_each_part_and_the_object_that_it_has_made(store: Store, kind: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<a/>"
    store.meet(kind, lambda exchange: exchange.send(head))
    with pytest.raises(StorageRefused, match="says that it was written, and names no ETag"):
        write(store.storage)
    assert store.storage.list() == []
    assert store.storage.unseen("") == ()


# ---- Google: what is there of an upload


@pytest.fixture
def google(gcs: GcsServer, unique: str) -> Iterator[tuple[Storage, GcsProxy]]:
    gcs.create_bucket(unique)
    with GcsProxy(gcs) as proxy:
        keys = {"LOGKEEP_GOOGLE_KEY": gcs.account_key()}
        yield open_uri(f"gs://{unique}/x", proxy.endpoint, environ=keys), proxy


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("count", [256 << 10, (2 << 20) + (256 << 10)])
@pytest.mark.usefixtures("soon")
def test_google_gets_the_rest_of_a_part_that_it_has_kept_a_piece_of(
    google: tuple[Storage, GcsProxy], told: bool, count: int
) -> None:
    storage, proxy = google
    proxy.meet(kept_in_part(count, told=told), where=lambda line: b"upload_id=" in line)
    write(storage)
    assert storage.read("a") == DATA
    assert sum(proxy.kept.values()) == PART, "no byte came twice"


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ("308 Resume Incomplete\r\nRange: bytes=0-99999999999", StorageRefused, "says that it has bytes=0-99999999999"),
        ("308 Resume Incomplete\r\nRange: some", StorageRefused, "says that it has some of an upload"),
        ("308 Resume Incomplete", StorageUnavailable, "takes no more of its bytes"),
        ("404 Not Found", UploadGone, "does not know its upload any more"),
        ("410 Gone", UploadGone, "does not know its upload any more"),
        (
            "200 OK\r\nContent-Type: application/json",
            StorageRefused,
            "has ended an upload whose bytes are not all there",
        ),
    ],
)
@pytest.mark.usefixtures("soon")
def test_what_google_says_of_an_upload_is_compared(
    google: tuple[Storage, GcsProxy], said: str, error: type[Exception], says: str
) -> None:
    storage, proxy = google
    body = b"{}" if said.startswith("200") else b""
    fault = f"HTTP/1.1 {said}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    proxy.always(lambda exchange: exchange.send(fault), where=lambda line: line.startswith(b"PUT"))
    with pytest.raises(error, match=says):
        write(storage)
    assert storage.list() == []


@pytest.mark.parametrize("hidden", [b"location", b"x-nothing"])
def test_google_s_upload_is_sent_to_the_endpoint_wherever_it_is_said_to_be(
    google: tuple[Storage, GcsProxy], hidden: bytes
) -> None:
    storage, proxy = google  # the server names its own address
    proxy.hides = hidden
    if hidden == b"location":
        with pytest.raises(StorageRefused, match="has begun an upload and does not name it"):
            write(storage)
        return
    write(storage)
    assert sum(b"upload_id=" in line for line in proxy.requests) == 2


def test_a_token_that_is_refused_is_renewed_and_the_part_sent_whole(google: tuple[Storage, GcsProxy]) -> None:
    storage, proxy = google
    refused = answer("401 Unauthorized", "InvalidCredentials")
    for kind in (b"uploadType=multipart", b"upload_id="):
        proxy.meet(refused, where=lambda line, kind=kind: kind in line)  # type: ignore[misc]
        data = DATA if kind == b"upload_id=" else DATA[:2_000_000]
        write(storage, data)
        assert storage.read("a") == data


# ---- Azure: whose blocks an object is of


def test_azure_s_other_writer_of_a_name_that_ends_first_is_named(azure: AzureServer, unique: str) -> None:
    azure.create_container(unique)
    storage = open_uri(f"az://{unique}/x", azure.endpoint, environ={"AZURE_STORAGE_KEY": azure.key})
    writer, other = storage.writer("a"), storage.writer("a")
    for each in (writer, other):
        each.write(DATA)
        each._parts[0].result()  # type: ignore[attr-defined]  # a block that came after the commit would stay
    other.commit()
    with pytest.raises(StorageUnavailable, match="another writer of this name has ended first"):
        writer.commit()
    writer.abort()
    assert storage.read("a") == DATA


def test_parts_are_as_large_as_each_store_takes_them() -> None:
    of_a_segment = (512 << 20) / PART_BYTES
    assert PART_BYTES % (256 << 10) == 0, "Google"
    assert 5 << 20 <= PART_BYTES <= 4000 << 20, "S3 from below, Azure from above"
    assert of_a_segment < 10_000, "S3; Azure takes 50,000"
