"""Finds what lies in a bucket though no list of objects shows it: older versions of objects, and the parts of uploads
that were neither completed nor aborted."""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.errors import ListUnreliable, StorageRefused
from logkeep_engine.storage.base import UnseenObject, is_object_path
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.errors import NotUnderstood
from logkeep_engine.storage.s3.pages import marked
from logkeep_engine.storage.s3.requests import Requests
from logkeep_engine.storage.upload import UploadGone


def old_versions(place: BucketPlace, requests: Requests, prefix: str) -> Iterator[UnseenObject]:
    """Yield the versions of objects below `prefix` that are not current, without markers of deletions, which hold
    nothing. Raises StorageRefused if the store does not report it, unless the bucket has never had versions."""
    try:
        for page in marked(place, requests, prefix, "list_object_versions", "VersionIdMarker"):
            for item in page.get("Versions", ()):
                path = item["Key"][len(place.prefix) :]
                if not item["IsLatest"] and is_object_path(path):
                    yield UnseenObject(path, item["VersionId"], is_version=True)
    except ListUnreliable:
        raise
    except StorageRefused as error:
        _require_no_versions(place, requests, prefix, error)


def unfinished_uploads(place: BucketPlace, requests: Requests, prefix: str) -> Iterator[UnseenObject]:
    """Yield the uploads below `prefix` that were begun and not ended. Raises StorageRefused if the store does not
    report it."""
    try:
        for page in marked(place, requests, prefix, "list_multipart_uploads", "UploadIdMarker"):
            for item in page.get("Uploads", ()):
                path = item["Key"][len(place.prefix) :]
                if is_object_path(path):
                    yield UnseenObject(path, item["UploadId"])
    except NotUnderstood:
        return  # they cannot be seen here, and no run can continue with one
    except ListUnreliable:
        raise
    except StorageRefused as error:
        raise type(error)(
            f"It is unknown whether killed runs have left parts of uploads below {place.name_of(prefix)}: "
            f"{error.message}",
            hint="The credentials need s3:ListBucketMultipartUploads.",
        ) from error


def abort_upload(requests: Requests, place: BucketPlace, item: UnseenObject) -> None:
    """End an upload. One that has ended is not an error."""
    try:
        requests.call("abort_multipart_upload", item.path, Key=place.key(item.path), UploadId=item.id)
    except UploadGone:
        return


def _require_no_versions(place: BucketPlace, requests: Requests, prefix: str, refusal: StorageRefused) -> None:
    where = f"older versions of objects below {place.name_of(prefix)}"
    try:
        status = requests.call("get_bucket_versioning", prefix).get("Status")
    except StorageRefused as error:
        if isinstance(error, NotUnderstood) and isinstance(refusal, NotUnderstood):
            return  # a store without versions
        raise type(refusal)(
            f"It is unknown whether there are {where}: {refusal.message}",
            hint="The credentials need s3:ListBucketVersions, or s3:GetBucketVersioning if the bucket never had any.",
        ) from error
    if status:
        raise type(refusal)(
            f"There may be {where}, because the versioning of the bucket is {status}: {refusal.message}",
            hint="The credentials need s3:ListBucketVersions and s3:DeleteObjectVersion.",
        ) from refusal
