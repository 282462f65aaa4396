"""Stores that keep no versions of objects, and say so in their own ways."""

from datetime import UTC, datetime
from typing import Any

import pytest

from logkeep_engine.contract import names
from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.errors import NotUnderstood
from logkeep_engine.storage.s3.storage import S3Storage
from logkeep_engine.storage.s3.unseen import old_versions, unfinished_uploads

PLACE = BucketPlace("s3://bucket/archive", None, None, names.OWN_KEYS, False)


class Answers:
    """Answers each request with what it has for it, or raises that."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self._answers[method]
        if isinstance(answer, Exception):
            raise answer
        return answer


def versions_of(**answers: Any) -> list[str]:
    requests: Any = Answers(**answers)
    return [item.path for item in old_versions(PLACE, requests, "topics/")]


def test_a_store_that_knows_neither_versions_nor_lists_of_uploads_has_none() -> None:
    unknown = NotUnderstood("cannot do what was asked")
    assert versions_of(list_object_versions=unknown, get_bucket_versioning=unknown) == []
    requests: Any = Answers(list_multipart_uploads=unknown)
    assert [*unfinished_uploads(PLACE, requests, "topics/")] == []


def test_a_store_that_may_have_versions_and_does_not_list_them_is_not_believed() -> None:
    unknown, denied = NotUnderstood("cannot do what was asked"), StorageRefused("denied access")
    for listing, asking in ((unknown, {"Status": "Suspended"}), (denied, {"Status": "Enabled"}), (denied, unknown)):
        with pytest.raises(StorageRefused, match="older versions of objects below s3://bucket/") as caught:
            versions_of(list_object_versions=listing, get_bucket_versioning=asking)
        assert "s3:ListBucketVersions" in str(caught.value)
    assert versions_of(list_object_versions=denied, get_bucket_versioning={}) == []


def test_uploads_that_cannot_be_listed_are_not_taken_for_none() -> None:
    requests: Any = Answers(list_multipart_uploads=StorageRefused("denied access"))
    with pytest.raises(StorageRefused, match="left parts of uploads below") as caught:
        list(unfinished_uploads(PLACE, requests, "topics/"))
    assert "s3:ListBucketMultipartUploads" in str(caught.value)


STRANGE = ["runs//alive.json", "runs/../../other/archive.json", "runs/./a", "/a", "runs/x/", ".."]
"""Keys that S3 takes, and that are no paths of objects: a program that reads or deletes what is listed ends there."""


def test_keys_that_lead_elsewhere_are_no_objects_of_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    found: list[dict[str, Any]] = [
        {
            "Key": f"archive/{path}",
            "Size": 1,
            "LastModified": when,
            "VersionId": "1",
            "UploadId": "1",
            "IsLatest": False,
        }
        for path in (*STRANGE, "runs/r/alive.json")
    ]
    requests: Any = Answers(
        list_objects_v2={"Contents": found},
        list_object_versions={"Versions": found},
        list_multipart_uploads={"Uploads": found},
    )
    storage = S3Storage(PLACE)
    monkeypatch.setattr(storage, "_requests", requests)
    assert [info.path for info in storage.list()] == ["runs/r/alive.json"]
    assert [item.path for item in storage.unseen("")] == ["runs/r/alive.json"] * 2
