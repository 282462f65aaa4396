"""The interface of a storage over S3 requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from logkeep_engine.errors import ObjectMissing, StorageDenied, StorageRefused, StorageUnavailable
from logkeep_engine.storage.base import (
    ANYTHING,
    WHOLE_BYTES,
    ColdObject,
    LockedObject,
    ObjectInfo,
    ObjectWriter,
    Storage,
    UnseenObject,
    is_object_path,
)
from logkeep_engine.storage.object_store import PastEndError
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.cold import cold_objects, retrieve
from logkeep_engine.storage.s3.errors import MAY_PASS
from logkeep_engine.storage.s3.pages import listed
from logkeep_engine.storage.s3.requests import Requests
from logkeep_engine.storage.s3.unseen import abort_upload, old_versions, unfinished_uploads
from logkeep_engine.storage.s3.writer import S3Writer

_DELETE_AT_ONCE = 1000  # S3's limit of DeleteObjects
_LOOKS_AT_ONCE = 16


class S3Storage(Storage):
    """A prefix of a bucket, through botocore. Pickles without credentials: a worker process takes those of its own
    environment."""

    def __init__(self, place: BucketPlace, environ: Mapping[str, str] = os.environ) -> None:
        self._place = place
        self._requests = Requests(place, environ)
        self.uri = place.uri

    def __repr__(self) -> str:
        return f"S3Storage({self.uri!r}, endpoint={self._place.where!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (S3Storage, (self._place,))

    def check(self) -> None:
        self._requests.call("list_objects_v2", "", MaxKeys=1, Prefix=self._place.prefix)

    def create(self, path: str, data: bytes) -> None:
        self._requests.send("put_object", path, data, IfNoneMatch="*")

    def put(self, path: str, data: bytes) -> None:
        self._requests.send("put_object", path, data)

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        return S3Writer(self._place, self._requests, path, replaces)

    def version(self, path: str) -> str | None:
        try:
            answer = self._requests.call("head_object", path, Key=self._place.key(path))
        except ObjectMissing:
            return None
        if not answer.get("ETag"):
            raise StorageRefused(
                f"{self.uri}/{path}: the store names no ETag for it, so it cannot be replaced without a race.",
                hint="Was it copied into the store past its S3 interface? Upload it again through the interface.",
            )
        return str(answer["ETag"])

    def read(self, path: str, *, most: int = WHOLE_BYTES) -> bytes:
        return self._get(path, {}, 0, most)

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        if end is not None and end <= start:
            return b""
        wanted: dict[str, str] = {}
        if start or end is not None:
            wanted["Range"] = f"bytes={start}-" if end is None else f"bytes={start}-{end - 1}"
        return self._get(path, wanted, 0 if end is None else end - start, None)

    def _get(self, path: str, wanted: Mapping[str, str], expected: int, most: int | None) -> bytes:
        """Get an object, or a part of it: about `expected` bytes, 0 if that is not known, and at most `most`."""

        def get(attempt: int) -> bytes:
            client = self._requests.connection().client(attempt, expected)
            answer = client.get_object(Bucket=self._place.bucket, Key=self._place.key(path), **wanted)
            body = answer["Body"]
            try:
                if most is not None and answer["ContentLength"] > most:
                    raise self.too_large(path, answer["ContentLength"], most)
                data: bytes = body.read()
            finally:
                body.close()
            if len(data) != answer["ContentLength"]:
                raise TimeoutError(f"{len(data)} of {answer['ContentLength']} bytes arrived")
            return data

        try:
            return self._requests.retry(get, path)
        except PastEndError:
            return b""

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return sorted(self._list(prefix, None), key=lambda info: info.path)

    def list_in_pages(self, prefix: str, size: int) -> Sequence[ObjectInfo]:
        return sorted(self._list(prefix, size), key=lambda info: info.path)

    def _list(self, prefix: str, page: int | None) -> Iterator[ObjectInfo]:
        for answer in listed(self._place, self._requests, prefix, page):
            for item in answer.get("Contents", ()):
                path = item["Key"][len(self._place.prefix) :]
                # Others are "folders" that some tools make, and keys that no request of ours may name.
                if is_object_path(path):
                    modified = item["LastModified"].timestamp()
                    yield ObjectInfo(path, item["Size"], modified, item.get("StorageClass", ""))

    def cold(self, listed: Iterable[ObjectInfo]) -> tuple[ColdObject, ...]:
        return cold_objects(self._place, self._requests, listed)

    def retrieve(self, cold: ColdObject, days: int, tier: str) -> None:
        retrieve(self._place, self._requests, cold, days, tier)

    def delete(self, paths: Iterable[str]) -> None:
        for failed in self._delete([{"Key": self._place.key(path)} for path in paths]):
            raise self._not_deleted(failed)

    def delete_unlocked(self, paths: Iterable[str]) -> tuple[LockedObject, ...]:
        return self._delete_unlocked([{"Key": self._place.key(path)} for path in paths])

    def unseen(self, prefix: str) -> tuple[UnseenObject, ...]:
        versions = old_versions(self._place, self._requests, prefix)
        return (*versions, *unfinished_uploads(self._place, self._requests, prefix))

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        versions: list[dict[str, str]] = []
        for item in found:
            if item.is_version:
                versions.append({"Key": self._place.key(item.path), "VersionId": item.id})
            else:
                abort_upload(self._requests, self._place, item)
        return self._delete_unlocked(versions)

    def _delete_unlocked(self, objects: Sequence[dict[str, str]]) -> tuple[LockedObject, ...]:
        failed = [*self._delete(objects)]
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="logkeep-locks") as pool:
            found = [*pool.map(self._lock_of, failed)]
        for item, lock in zip(failed, found, strict=True):
            if lock is None:
                raise self._not_deleted(item)
        return tuple(lock for lock in found if lock is not None)

    def _delete(self, objects: Sequence[dict[str, str]]) -> Iterator[dict[str, Any]]:
        """Delete objects, or versions of some; what the store answers of each that it has not deleted."""
        for start in range(0, len(objects), _DELETE_AT_ONCE):
            batch = objects[start : start + _DELETE_AT_ONCE]
            asked = {"Objects": batch, "Quiet": True}
            answer = self._requests.call_long("delete_objects", batch[0]["Key"], Delete=asked)
            yield from answer.get("Errors", ())

    def _not_deleted(self, failed: dict[str, Any]) -> StorageUnavailable | StorageRefused:
        version = f" of version {failed['VersionId']}" if failed.get("VersionId") else ""
        text = f"s3://{self._place.bucket}/{failed.get('Key')}{version} was not deleted: {failed.get('Code')}."
        if failed.get("Code") in MAY_PASS:
            return StorageUnavailable(text, hint="Try again.")
        kind = StorageDenied if failed.get("Code") == "AccessDenied" else StorageRefused
        if version:
            rule = "or a life-cycle rule (NoncurrentVersionExpiration) must expire older versions"
            return kind(text, hint=f"The credentials need s3:DeleteObjectVersion, {rule}.")
        return kind(text, hint="The credentials need s3:DeleteObject.")

    def _lock_of(self, failed: dict[str, Any]) -> LockedObject | None:
        """Return the lock of an object that was not deleted; None if it has none, or the store does not report it."""
        key = str(failed.get("Key"))
        if failed.get("Code") in MAY_PASS:
            return None
        path = key[len(self._place.prefix) :]
        version = {"VersionId": failed["VersionId"]} if failed.get("VersionId") else {}
        try:
            answer = self._requests.call("head_object", path, Key=key, **version)
        except (StorageRefused, ObjectMissing):
            return None
        until, legal_hold = answer.get("ObjectLockRetainUntilDate"), answer.get("ObjectLockLegalHoldStatus") == "ON"
        if until is None and not legal_hold:
            return None
        return LockedObject(path, None if until is None else until.timestamp(), legal_hold)
