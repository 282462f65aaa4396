"""`logkeep storage check` on each kind of store: what is there is found, and a right that is taken away is named."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.spec import API_VERSION
from logkeep_engine.storage import open_uri
from tests.cluster.azure import AzureServer
from tests.cluster.gcs import GcsServer
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import Exchange, S3Proxy, delayed
from tests.command import logkeep
from tests.unit.archive.build import archive_of, chunk


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server(versions=True) as started:
        yield started


def keys_of(server: S3Server) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}


def check(
    uri: str, *options: str, environ: Mapping[str, str], code: int = 0, constants: Mapping[str, float] | None = None
) -> Any:
    done = logkeep("storage", "check", uri, *options, "-o", "json", environ=environ, constants=constants)
    assert done.returncode == code, compact(done.stdout) + done.stderr
    return json.loads(done.stdout)


def compact(text: str) -> str:
    """The document on one line, for a failure."""
    return " ".join(text.split())


def s3_files(server: S3Server, bucket: str) -> list[str]:
    """Names of the files in a bucket, those of unfinished uploads included."""
    return [str(path) for path in (server.data_dir / bucket).rglob("*") if path.is_file()]


def steps_of(report: Any) -> dict[str, tuple[str, str | None]]:
    return {step["step"]: (step["outcome"], step["missingRight"]) for step in report["steps"]}


def failed(report: Any) -> dict[str, tuple[str, str | None]]:
    return {name: found for name, found in steps_of(report).items() if found[0] not in ("ok", "not tried")}


def test_each_kind_of_store_has_all_that_an_archive_needs(
    s3: S3Server, gcs: GcsServer, azure: AzureServer, bucket: str, unique: str, tmp_path: Path
) -> None:
    places: tuple[tuple[str, tuple[str, ...], dict[str, str]], ...] = (
        (f"s3://{bucket}/a", ("--endpoint", s3.endpoint, "--region", s3.region), keys_of(s3)),
        (
            f"gs://{gcs.create_bucket(unique)}/a",
            ("--endpoint", gcs.endpoint),
            {"LOGKEEP_GOOGLE_KEY": gcs.account_key()},
        ),
        (f"az://{azure.create_container(unique)}/a", ("--endpoint", azure.endpoint), {"AZURE_STORAGE_KEY": azure.key}),
        (tmp_path.as_uri() + "/a", (), {}),
    )
    (tmp_path / "a").mkdir()
    for uri, options, environ in places:
        report = check(uri, *options, "--role", "eraser", environ=environ)
        assert failed(report) == {}, report
        assert report["roles"] == ["reader", "writer", "pruner", "eraser"]
        assert (report["usable"], report["left"]) == (True, [])
    assert s3_files(s3, bucket) == []
    assert gcs.objects(unique) == []
    assert azure.objects(unique) == []
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_the_place_is_that_of_a_resource_in_a_file(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    environ = keys_of(s3)
    storage = {"uri": f"s3://{bucket}/a", "endpoint": s3.endpoint, "region": s3.region}
    storage["credentials"] = {"secretRef": {"name": "keys"}}  # type: ignore[assignment]
    file = tmp_path / "archive.yaml"
    file.write_text(yaml.safe_dump({"apiVersion": API_VERSION, "kind": "KafkaArchive", "spec": {"storage": storage}}))
    report = check("-f", str(file), environ=environ, constants=SMALL_PARTS)
    assert (report["uri"], report["usable"]) == (storage["uri"], True)
    lacking = logkeep("storage", "check", "-f", str(file), environ=dict.fromkeys(environ, ""))
    assert lacking.returncode == 2
    assert "AWS_ACCESS_KEY_ID" in lacking.stderr


# ---- rights that are missing

OF_BUCKET = ("s3:ListBucket", "s3:ListBucketVersions", "s3:ListBucketMultipartUploads")
OF_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:DeleteObjectVersion")
SMALL_PARTS: Mapping[str, float] = dict.fromkeys(
    (
        "logkeep_engine.storage.check.PART_BYTES",
        "logkeep_engine.storage.parts.PART_BYTES",
    ),
    5 << 20,
)


def s3_user(server: S3Server, bucket: str, without: str) -> dict[str, str]:
    rights = ((OF_BUCKET, ""), (OF_OBJECTS, "/kafka-prod/*"))
    kept = [([action for action in actions if action != without], where) for actions, where in rights]
    key, secret = server.create_user(bucket, *kept)
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}


@pytest.mark.parametrize(
    ("without", "steps", "roles"),
    [
        ("", (), ["reader", "writer", "pruner"]),
        ("s3:ListBucket", ("list",), []),
        ("s3:GetObject", ("read it",), []),
        ("s3:PutObject", ("create an object",), []),
        ("s3:AbortMultipartUpload", ("write in parts once",), ["reader"]),
        ("s3:DeleteObject", ("delete",), ["reader", "writer"]),
        ("s3:ListBucketVersions", ("see what no list shows",), ["reader", "writer", "pruner"]),
        ("s3:ListBucketMultipartUploads", ("see what no list shows",), ["reader", "writer", "pruner"]),
        ("s3:DeleteObjectVersion", ("delete what no list shows",), ["reader", "writer", "pruner"]),
    ],
)
def test_a_right_of_s3_that_is_missing_is_named(
    server: S3Server, unique: str, without: str, steps: tuple[str, ...], roles: list[str]
) -> None:
    bucket = server.create_versioned_bucket(unique)
    environ = s3_user(server, bucket, without)
    where = (f"s3://{bucket}/kafka-prod", "--endpoint", server.endpoint, "--region", server.region)
    usable = "pruner" in roles
    report = check(*where, environ=environ, code=0 if usable else 2, constants=SMALL_PARTS)
    found = failed(report)
    assert report["roles"] == roles
    assert set(steps) <= set(found), found
    if "pruner" in roles:  # this server ignores the condition in a bucket with versions
        assert found.pop("replace nothing that is gone")[0] == "failed"
        assert set(found) == set(steps)
    for name in steps:
        outcome, right = found[name]
        assert outcome == "denied"
        assert without in str(right)
    assert report["usable"] is usable


def test_a_writer_that_may_not_delete_leaves_what_it_wrote_and_says_where(server: S3Server, unique: str) -> None:
    bucket = server.create_bucket(unique)
    environ = s3_user(server, bucket, "s3:DeleteObject")
    where = (f"s3://{bucket}/kafka-prod", "--endpoint", server.endpoint, "--region", server.region)
    done = logkeep("storage", "check", *where, "--role", "writer", environ=environ, constants=SMALL_PARTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "delete: s3:DeleteObject is missing. s3://" in done.stdout
    assert "these credentials suffice for: reader, writer\n" in done.stdout
    assert f"objects below s3://{bucket}/kafka-prod/checks/" in done.stderr
    assert "which could not be deleted: delete them" in done.stderr
    again = logkeep("storage", "check", *where, environ=keys_of(server), constants=SMALL_PARTS)
    assert again.returncode == 0
    assert f"left: s3://{bucket}/kafka-prod/checks/" in again.stderr
    assert "is of an earlier check that was killed" in again.stderr


@pytest.mark.parametrize(
    ("permissions", "step", "right"),
    [
        ("rcwdx", "list", "blobs/read (SAS: l)"),
        ("lcwdx", "read it", "blobs/read (SAS: r)"),
        ("rldx", "create an object", "blobs/write (SAS: c)"),
        ("rlcdx", "replace it", "blobs/write (SAS: w)"),
        ("rlcwx", "delete", "blobs/delete (SAS: d)"),
    ],
)
def test_a_right_of_azure_that_is_missing_is_named(
    azure: AzureServer, unique: str, permissions: str, step: str, right: str
) -> None:
    container = azure.create_container(unique)
    environ = {"AZURE_STORAGE_SAS_TOKEN": azure.signature(container, permissions)}
    report = check(f"az://{container}/a", "--endpoint", azure.endpoint, environ=environ, code=2, constants=SMALL_PARTS)
    outcome, missing = failed(report)[step]
    assert outcome == "denied"
    assert missing is not None
    assert missing.startswith("Microsoft.Storage/storageAccounts/blobServices/containers/")
    assert right in missing


DENIED = b'{"error": {"code": 403, "message": "does not have access", "errors": [{"reason": "forbidden"}]}}'


def deny(exchange: Exchange) -> None:
    head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: {len(DENIED)}\r\n\r\n"
    exchange.send(head.encode() + DENIED)


@pytest.mark.parametrize(
    ("request_line", "step", "right"),
    [
        (rb"GET /storage/v1/b/[^/]+/o\?", "list", "storage.objects.list"),
        (rb"GET /(download/)?storage/v1/b/[^/]+/o/", "read it", "storage.objects.get"),
        (rb"POST /upload/", "create an object", "storage.objects.create"),
        (rb"DELETE ", "delete", "storage.objects.delete"),
        (rb"GET /storage/v1/b/[^/?]+\?", "see what no list shows", "storage.buckets.get"),
    ],
)
def test_a_right_of_google_that_is_missing_is_named(
    gcs: GcsServer, unique: str, request_line: bytes, step: str, right: str
) -> None:
    bucket = gcs.create_bucket(unique)
    with S3Proxy(gcs) as proxy:
        proxy.always(deny, where=lambda line: re.match(request_line, line) is not None)
        environ = {"LOGKEEP_GOOGLE_KEY": gcs.account_key()}
        where = (f"gs://{bucket}/a", "--endpoint", proxy.endpoint)
        report = check(*where, "--role", "eraser", environ=environ, code=2, constants=SMALL_PARTS)
    outcome, missing = failed(report)[step]
    assert outcome == "denied"
    assert right in str(missing)


# ---- a reader, and a check that is killed


def test_a_reader_is_tried_without_a_write(server: S3Server, unique: str) -> None:
    bucket = server.create_bucket(unique)
    uri = f"s3://{bucket}/kafka-prod"
    storage = open_uri(uri, server.endpoint, server.region, keys_of(server))
    reader = (["s3:ListBucket"], ""), (["s3:GetObject"], "/kafka-prod/*")
    key, secret = server.create_user(bucket, *reader)
    environ = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
    with S3Proxy(server) as proxy:
        where = (uri, "--endpoint", proxy.endpoint, "--region", server.region, "--read-only")
        report = check(*where, environ=environ, code=2)
        assert failed(report) == {"read": ("failed", None)}
        assert "archive.json does not exist" in report["steps"][1]["message"]
        archive_of(storage, chunk(storage, 0, 10))
        assert failed(check(*where, environ=environ)) == {}
        assert {line.split()[0] for line in proxy.requests} <= {b"GET", b"HEAD"}
        key, secret = server.create_user(bucket, (["s3:ListBucket"], ""))
        environ = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        assert failed(check(*where, environ=environ, code=2)) == {"read": ("denied", "s3:GetObject")}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_check_that_is_ended_leaves_nothing_or_is_found(server: S3Server, unique: str, sent: signal.Signals) -> None:
    bucket = server.create_bucket(unique)
    where = (f"s3://{bucket}/a", "--endpoint", server.endpoint, "--region", server.region)
    command = [sys.executable, "-m", "logkeep_engine.cli", "storage", "check", *where]
    with S3Proxy(server) as proxy:
        proxy.always(delayed(3), where=lambda line: b"partNumber" in line)  # then it has much to delete
        command[command.index(server.endpoint)] = proxy.endpoint
        running = subprocess.Popen(
            command, env={**os.environ, **keys_of(server)}, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        wait_until(lambda: any(b"partNumber" in line for line in proxy.requests), 60, "a part to be sent")
        proxy.well()
        running.send_signal(sent)
        _, said = running.communicate(timeout=120)
    assert f"writes below s3://{bucket}/a/checks/" in said
    if sent is signal.SIGTERM:
        assert running.returncode == 130, said
        assert s3_files(server, bucket) == []
    else:
        assert s3_files(server, bucket) != []
        again = logkeep("storage", "check", *where, environ=keys_of(server), constants=SMALL_PARTS)
        assert again.returncode == 0
        assert f"left: s3://{bucket}/a/checks/" in again.stderr


def test_an_endpoint_where_nobody_listens_may_come_back(unique: str) -> None:
    done = logkeep(
        "storage",
        "check",
        f"s3://{unique}/a",
        "--endpoint",
        "http://127.0.0.1:1",
        environ={"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"},
        constants={"logkeep_engine.storage.retry.PATIENCE": 0.1},
    )
    assert done.returncode == 1
    assert "StorageUnavailable: s3://" in done.stderr
    assert "not tried" in done.stdout
