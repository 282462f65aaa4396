"""`storage.s3`: a bucket that demands encryption with a key, and that the requester pays, gets it with each request;
who does not ask for it is refused."""

import os
import pickle
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.contract.s3_options import ArchiveS3Options, S3Options
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage import PART_BYTES, Storage, open_uri, parts
from logkeep_engine.storage.s3 import options
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.cluster.s3_demands import KEY, Demands
from tests.cluster.s3_proxy import S3Proxy, answer
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, create_topic, produce
from tests.kafka.restores import back_up, bring_back, committed, restore_spec, try_backup, without_offsets

DAY = 86_400_000
NOW = int(time.time() * 1000) - 3_600_000
OPTIONS = {"serverSideEncryption": "aws:kms", "kmsKeyId": KEY, "bucketKey": True, "requesterPays": True}
pytestmark = pytest.mark.usefixtures("storage_environment")


@pytest.fixture
def server() -> Iterator[S3Server]:
    """An S3 server with versions of objects, which an erasure looks for."""
    with S3Server(versions=True) as started:
        yield started


@pytest.fixture
def demands(server: S3Server, unique: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Demands]:
    """A bucket that refuses each request that lacks what it demands."""
    monkeypatch.setitem(os.environ, "AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setitem(os.environ, "AWS_SECRET_ACCESS_KEY", server.secret_key)
    server.create_versioned_bucket(unique)
    with S3Proxy(server) as proxy:
        yield Demands(proxy, unique)


def opened(demands: Demands, s3: Mapping[str, Any] = OPTIONS) -> Storage:
    return open_uri(
        f"s3://{demands.bucket}/kafka",
        demands.proxy.endpoint,
        S3Server.region,
        s3=ArchiveS3Options.model_validate(s3),
    )


def test_a_whole_life_of_an_archive_in_a_bucket_that_demands_it(
    kafka: KafkaBroker, demands: Demands, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 5 << 20)  # so that little goes in parts
    create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
    place = {"uri": f"s3://{demands.bucket}/kafka", "endpoint": demands.proxy.endpoint, "region": S3Server.region}
    storage = {**place, "s3": OPTIONS}
    spec = {
        "cluster": {"bootstrapServers": kafka.addresses},
        "topics": {"include": [unique]},
        "storage": storage,
        "segment": {"packBelow": "0"},
    }
    produce(kafka.bootstrap, unique, [Record(b"k%d" % n, b"v", NOW - 300 * DAY + n) for n in range(10)])
    back_up(spec, "backup-1")
    large = [Record(b"large", os.urandom(900_000), NOW + n) for n in range(20)]
    produce(kafka.bootstrap, unique, large)
    back_up(spec, "backup-2")
    assert any("uploadId" in line for line in demands.lines), "a segment went in parts"

    restored = bring_back({**restore_spec(kafka, tmp_path), "source": {"storage": storage}})
    assert restored.outcome == "Succeeded", restored
    assert without_offsets(committed(kafka, f"{unique}-copy")) == without_offsets(committed(kafka, unique))

    result = try_backup({**spec, "retention": {"maxAge": "200d", "grace": "0s"}}, "retention")
    assert result.outcome == "Succeeded", result
    where = (place["uri"], "--endpoint", place["endpoint"], "--region", place["region"])
    named = [f"{name}={'true' if value is True else value}" for name, value in OPTIONS.items()]
    flags = [part for one in named for part in ("--s3", one)]
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    for command in (("verify",), ("erase", "--topic", unique, "--key", "large", "--owner", "test")):
        done = logkeep(command[0], *where, *command[1:], *flags, environ=keys)
        assert done.returncode == 0, done.stderr
    with_variable = {**keys, "LOGKEEP_S3_OPTIONS": ",".join(named)}
    assert logkeep("inspect", *where, environ=with_variable).returncode == 0
    assert demands.refused == []
    asked = {line.split()[0] for line in demands.lines}
    assert asked >= {"GET", "HEAD", "PUT", "POST"}, "POST deletes and ends uploads, too"
    refused = logkeep("inspect", *where, environ=keys)
    assert refused.returncode == 2
    assert "denied access" in refused.stderr


def test_an_upload_is_given_up_and_what_is_left_of_others_deleted_with_the_header(
    demands: Demands, server: S3Server
) -> None:
    storage = opened(demands)
    writer = storage.writer("given-up")
    writer.write(bytes(PART_BYTES + 1))
    writer.abort()
    server.begin_upload(demands.bucket, "kafka/left", b"part")
    storage.put("a", b"1")
    storage.put("a", b"2")
    assert storage.delete_unseen(storage.unseen("")) == ()
    assert storage.unseen("") == ()
    assert server.uploads(demands.bucket) == []
    assert demands.refused == []
    assert any(line.startswith("DELETE") and "uploadId" in line for line in demands.lines)


def test_a_worker_process_sends_the_headers_too(demands: Demands) -> None:
    storage = pickle.loads(pickle.dumps(opened(demands)))
    write(storage, "a", PART_BYTES + 1)
    assert storage.read_range("a", 0, 1) == b"\0"
    assert demands.refused == []


def test_a_store_that_encrypts_otherwise_is_refused(demands: Demands) -> None:
    demands.confirms = "AES256"
    for size in (1, PART_BYTES + 1):
        with pytest.raises(
            StorageRefused, match=r"asked to encrypt an object with aws:kms and answers .* AES256"
        ) as no:
            write(opened(demands), "a", size)
        assert "leave serverSideEncryption out of storage.s3" in no.value.hint


def test_a_store_that_does_not_encrypt_is_refused_before_it_has_a_record(
    kafka: KafkaBroker, s3: S3Server, bucket: str, unique: str
) -> None:
    create_topic(kafka.bootstrap, unique, 1)
    produce(kafka.bootstrap, unique, [Record(b"k", b"v", NOW)])
    place = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
    spec = {"cluster": {"bootstrapServers": kafka.addresses}, "topics": {"include": [unique]}}
    result = try_backup({**spec, "storage": {**place, "s3": {"serverSideEncryption": "AES256"}}})
    assert (result.outcome, result.exit_code) == ("Failed", 2)
    assert "encrypt an object with AES256 and answers that it has done so with nothing" in result.message
    assert not any((s3.data_dir / bucket / "kafka").glob("topics/*"))
    assert not any((s3.data_dir / bucket / "kafka").glob("packs/*"))


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        ("400 Bad Request", "KMS.NotFoundException", "cannot use the key of KMS", "storage.s3 (kmsKeyId)"),
        ("403 Forbidden", "AccessDenied", "denied access", "kms:GenerateDataKey to write, and kms:Decrypt to read"),
        ("400 Bad Request", "InvalidStorageClass", "does not know the storage class", "storage.s3 (storageClass)"),
        ("501 Not Implemented", "NotImplemented", "cannot do what was asked", "what storage.s3 asks for"),
    ],
)
def test_a_refusal_names_the_option(demands: Demands, status: str, code: str, message: str, hint: str) -> None:
    demands.proxy.always(answer(status, code))
    with pytest.raises(StorageRefused, match=message) as refused:
        opened(demands).put("a", b"1")
    assert hint in refused.value.hint


def test_large_objects_that_are_rarely_read_get_the_class(s3: S3Server, bucket: str, proxy: S3Proxy) -> None:
    storage = open_uri(
        f"s3://{bucket}/kafka", proxy.endpoint, s3.region, s3=ArchiveS3Options(storage_class="GLACIER_IR")
    )
    for path, size in (
        ("topics/a/large.log", options.SMALLEST_IN_CLASS),
        ("topics/a/in-parts.log", PART_BYTES + 1),
        ("topics/a/small.index", options.SMALLEST_IN_CLASS - 1),
        ("packs/a.pack", options.SMALLEST_IN_CLASS),
        ("catalog/1.json", options.SMALLEST_IN_CLASS),
        ("runs/topics/1.json", options.SMALLEST_IN_CLASS),
    ):
        write(storage, path, size)
    with_class = {
        head.split()[1].decode().partition("/kafka/")[2].partition("?")[0]
        for head in proxy.heads
        if b"x-amz-storage-class: GLACIER_IR" in head
    }
    assert with_class == {"topics/a/large.log", "topics/a/in-parts.log"}
    assert names.TOPICS == options.RARELY_READ


def test_a_class_that_retention_does_not_let_pay_off_is_a_warning(
    kafka: KafkaBroker, s3: S3Server, bucket: str, unique: str
) -> None:
    create_topic(kafka.bootstrap, unique, 1)
    place = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint, "region": s3.region}
    spec = {
        "cluster": {"bootstrapServers": kafka.addresses},
        "topics": {"include": [unique]},
        "storage": {**place, "s3": {"storageClass": "STANDARD_IA"}},
    }
    short = back_up({**spec, "retention": {"maxAge": "29d"}}, "short")
    assert [text for text in short.warnings if "STANDARD_IA bills 30 days of each object" in text]
    long = back_up({**spec, "retention": {"maxAge": "30d"}}, "long")
    assert not [text for text in long.warnings if "STANDARD_IA" in text]


def test_a_bucket_may_be_a_part_of_the_host(
    s3: S3Server, bucket: str, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = proxy.endpoint.replace("127.0.0.1", "store.test")
    asked: list[str] = []
    resolve = socket.getaddrinfo

    def on_loopback(host: str, *more: Any, **named: Any) -> Any:
        asked.append(host)
        return resolve("127.0.0.1", *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", on_loopback)
    storage = open_uri(
        f"s3://{bucket}/kafka", endpoint, s3.region, s3=S3Options.model_validate({"addressing": "Virtual"})
    )
    proxy.always(lambda exchange: exchange.send(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
    assert storage.version("a") is None
    assert asked == [f"{bucket}.store.test"]
    assert proxy.requests == [b"HEAD /kafka/a HTTP/1.1"]
    storage = open_uri(f"s3://{bucket}/kafka", endpoint, s3.region, s3=S3Options())
    assert storage.version("a") is None
    assert asked[1:] == ["store.test"]
    assert proxy.requests[1:] == [f"HEAD /{bucket}/kafka/a HTTP/1.1".encode()]


def write(storage: Storage, path: str, size: int) -> None:
    with storage.writer(path) as writer:
        writer.write(bytes(size))
