"""Objects written to an S3 store as streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logkeep_engine.errors import ObjectExists, ObjectMissing
from logkeep_engine.storage.base import ANYTHING
from logkeep_engine.storage.parts import UploadPart, base64_of
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.requests import Requests
from logkeep_engine.storage.upload import PartsWriter, UploadGone


class S3Writer(PartsWriter[dict[str, Any]]):
    """A multipart upload. A part is answered as the end of the upload names it."""

    def __init__(self, place: BucketPlace, requests: Requests, path: str, replaces: str | None) -> None:
        self._key = place.key(path)
        super().__init__(path, requests.connection().sender)
        self._name = place.name_of(path)
        self._requests = requests
        self._condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        if replaces == ANYTHING:
            self._condition = {}
        self._upload = ""
        self._checksums = False  # parts may name their checksums only in an upload that was made with an algorithm
        self._whole = False  # the store compares the checksum and the size of the whole object

    def _put(self, part: UploadPart) -> None:
        self._requests.send("put_object", self._path, part if len(part) else b"", **self._condition)

    def _begin(self) -> None:
        answer = self._requests.begin_upload(self._path)
        self._upload = answer["UploadId"]
        self._checksums = bool(answer.get("ChecksumAlgorithm"))
        self._whole = self._checksums and answer.get("ChecksumType") == "FULL_OBJECT"

    def _send(self, number: int, at: int, part: UploadPart, last: bool) -> dict[str, Any]:
        named: dict[str, Any] = {"PartNumber": number + 1}
        answer = self._requests.send("upload_part", self._path, part, UploadId=self._upload, **named)
        named["ETag"] = answer["ETag"]
        if self._checksums:
            named |= {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
        return named

    def _finish(self, parts: Sequence[dict[str, Any]]) -> None:
        whole: dict[str, Any] = {}
        if self._whole:  # it compares before anybody sees the object
            checksum = base64_of(self._crc)
            whole = {"ChecksumCRC32C": checksum, "ChecksumType": "FULL_OBJECT", "MpuObjectSize": self._size}
        try:
            made = self._requests.call_long(
                "complete_multipart_upload",
                self._path,
                Key=self._key,
                UploadId=self._upload,
                MultipartUpload={"Parts": parts},
                **whole,
                **self._condition,
            )
            self._requests.require(made, "ETag", self._path)
        except UploadGone:
            # The answer to a first request may have been lost after the store had done it.
            if not self._is_there(whole.get("ChecksumCRC32C")):
                raise
            if self._condition:  # then the caller compares what is there
                raise ObjectExists(f"{self._name} may be of this writer or another.") from None

    def _drop(self) -> None:
        self._requests.call("abort_multipart_upload", self._path, Key=self._key, UploadId=self._upload)

    def _is_there(self, checksum: str | None) -> bool:
        """Return whether an object of this size lies there, and of this checksum, if the store reports one."""
        mode = {} if checksum is None else {"ChecksumMode": "ENABLED"}
        try:
            answer = self._requests.call("head_object", self._path, Key=self._key, **mode)
        except ObjectMissing:
            return False
        stored = answer.get("ChecksumCRC32C", checksum)
        return bool(answer["ContentLength"] == self._size and (checksum is None or stored == checksum))
