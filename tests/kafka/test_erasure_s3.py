"""Erasures in a bucket: also what no list of objects shows is gone, or the erasure says what is there."""

from collections.abc import Iterator

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.contract.run import RunResult
from logkeep_engine.storage import Storage, open_uri
from tests.cluster.s3 import S3Server
from tests.unit.erasure.erasing import (
    ALICE,
    GONE,
    Inside,
    archive_batches,
    batch_of,
    erase_whole,
    erased,
    seen,
    without,
)

OF_OBJECTS = ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:DeleteObject")
OF_BUCKET = ("s3:ListBucket", "s3:ListBucketMultipartUploads")


@pytest.fixture(scope="module")
def versions() -> Iterator[S3Server]:
    """An S3 server with versions of objects."""
    with S3Server(versions=True) as server:
        yield server


def opened(server: S3Server, bucket: str, keys: tuple[str, str] | None = None) -> Storage:
    access, secret = keys or (server.access_key, server.secret_key)
    environ = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    return open_uri(f"s3://{bucket}/an/archive", server.endpoint, server.region, environ)


def archived(storage: Storage) -> Archive:
    return archive_batches(storage, [[batch_of(0, [ALICE, GONE])], [batch_of(2, [ALICE])]])


def permitted(
    server: S3Server, bucket: str, *, of_bucket: tuple[str, ...] = (), of_objects: tuple[str, ...] = ()
) -> Storage:
    """The archive, as a user sees it that has these rights besides those of an erasure in a bucket without versions."""
    rights = [((*OF_BUCKET, *of_bucket), ""), ((*OF_OBJECTS, *of_objects), "/*")]
    return opened(server, bucket, server.create_user(bucket, *rights))


def erased_here(storage: Storage, *keys: bytes) -> RunResult:
    return erased(storage, *keys, runner=Inside())


def has_key(server: S3Server, bucket: str) -> list[str]:
    return [key for (key, _), data in server.all_bytes(bucket).items() if GONE in data]


def test_older_versions_and_unfinished_uploads_go_too(versions: S3Server, unique: str) -> None:
    bucket = versions.create_versioned_bucket(unique)
    storage = opened(versions, bucket)
    entry = next(iter(archived(storage).load().segments.values()))[0]
    expected = without(seen(storage), GONE)
    versions.begin_upload(bucket, f"an/archive/{entry.stem('orders')}0.log", GONE)
    versions.begin_upload(bucket, "an/archive/topics/orders2/x.log", ALICE)
    storage.put("topics/orders2/x", b"before")
    storage.put("topics/orders2/x", b"after")
    assert erased_here(storage, GONE).outcome == "Succeeded"
    assert has_key(versions, bucket) == []
    assert seen(storage) == expected
    assert versions.uploads(bucket) == ["an/archive/topics/orders2/x.log"]
    others = [key for key, _ in versions.all_bytes(bucket) if key.endswith("orders2/x")]
    assert len(others) == 2, "other topics keep their versions"


def test_an_erasure_that_may_not_delete_versions_says_so_and_continues_later(versions: S3Server, unique: str) -> None:
    bucket = versions.create_versioned_bucket(unique)
    archived(opened(versions, bucket))
    storage = permitted(versions, bucket, of_bucket=("s3:ListBucketVersions",))
    result = erased_here(storage, GONE)
    assert (result.outcome, result.error_code) == ("Failed", "StorageRefused")
    assert "But there may be 3 older versions of its objects that have them: s3://" in result.message
    assert "need s3:DeleteObjectVersion, or a life-cycle rule (NoncurrentVersionExpiration)" in result.message
    assert Archive.open(storage).load().runs["erase-1"].outcome is RunOutcome.FAILED
    assert has_key(versions, bucket)
    storage = permitted(versions, bucket, of_bucket=("s3:ListBucketVersions",), of_objects=("s3:DeleteObjectVersion",))
    result = erased_here(storage, GONE)
    assert (result.outcome, result.records, result.segments) == ("Succeeded", 1, 1)
    assert has_key(versions, bucket) == []


def test_an_erasure_that_may_not_see_versions_succeeds_only_if_the_bucket_never_had_any(
    versions: S3Server, unique: str
) -> None:
    plain, versioned = versions.create_bucket(f"{unique}-p"), versions.create_versioned_bucket(f"{unique}-v")
    for bucket in (plain, versioned):
        archived(opened(versions, bucket))
    result = erased_here(permitted(versions, plain), GONE)
    assert (result.outcome, result.error_code) == ("Failed", "StorageRefused")
    assert "It is unknown whether there are older versions of objects below" in result.message
    assert "need s3:ListBucketVersions, or s3:GetBucketVersioning" in result.message
    lines = ("s3:GetBucketVersioning",)
    assert erased_here(permitted(versions, plain, of_bucket=lines), GONE).outcome == "Succeeded"
    result = erased_here(permitted(versions, versioned, of_bucket=lines), GONE)
    assert (result.outcome, result.error_code) == ("Failed", "StorageRefused")
    assert "the versioning of the bucket is Enabled" in result.message


def test_a_locked_version_keeps_an_erasure_from_its_end(versions: S3Server, unique: str) -> None:
    bucket = versions.create_locked_bucket(unique)
    storage = opened(versions, bucket)
    archive = archived(storage)
    log = next(iter(archive.load().segments.values()))[0].stem("orders") + ".log"
    ((key, version),) = [item for item in versions.all_bytes(bucket) if item[0].endswith(log)]
    versions.hold(bucket, key, on=True, version=version)
    result = erased_here(storage, GONE)
    assert (result.outcome, result.error_code) == ("Failed", "StorageRefused")
    assert log in result.message
    versions.hold(bucket, key, on=False, version=version)
    erase_whole(storage, GONE, runner=Inside())
    assert has_key(versions, bucket) == []


def test_versions_of_a_segment_that_is_damaged_or_deleted_stay_and_bring_it_back(
    versions: S3Server, unique: str
) -> None:
    bucket = versions.create_versioned_bucket(unique)
    storage = opened(versions, bucket)
    archive = archived(storage)
    log = next(iter(archive.load().segments.values()))[1].stem("orders") + ".log"
    content = storage.read(log)
    for broken in (content[:-1] + b"!", None):
        if broken is None:
            storage.delete([log])
        else:
            storage.put(log, broken)
        result = erased_here(storage, GONE)
        assert (result.outcome, result.error_code) == ("Failed", "ArchiveDamaged")
        assert content in [data for (key, _), data in versions.all_bytes(bucket).items() if key.endswith(log)]
    storage.put(log, content)
    erase_whole(storage, GONE, runner=Inside())
    assert has_key(versions, bucket) == []
