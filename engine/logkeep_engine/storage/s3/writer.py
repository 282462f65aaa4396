"""Objects written to an S3 store as streams."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

from logkeep_kernel import crc32c_combined

from logkeep_engine.errors import LogkeepError, ObjectExists, ObjectMissing
from logkeep_engine.storage.base import ANYTHING, Buffer, ObjectWriter
from logkeep_engine.storage.parts import UploadPart
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.s3.errors import UploadGone
from logkeep_engine.storage.s3.requests import Requests, base64_of


class _Arrived(NamedTuple):
    """A part that has arrived: as the end of the upload names it, its CRC-32C, its size."""

    named: dict[str, Any]
    crc: int
    size: int


class S3Writer(ObjectWriter):
    """One PUT for an object up to PART_BYTES, else a multipart upload: while the caller fills a part, others are on
    their way.
    """

    def __init__(self, place: BucketPlace, requests: Requests, path: str, replaces: str | None) -> None:
        self._key = place.key(path)
        self._name = f"{place.uri}/{path}"
        self._requests = requests
        self._path = path
        self._condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        if replaces == ANYTHING:
            self._condition = {}
        self._connection = requests.connection()
        self._part = UploadPart()
        self._upload: str | None = None
        self._checksums = False  # parts may name their checksums only in an upload that was made with an algorithm
        self._whole = False  # the store compares the checksum and the size of the whole object
        self._parts: list[Future[_Arrived]] = []
        self._settled = 0  # parts from the front that are known to have arrived
        self._size = 0
        self._open = True

    def write(self, data: Buffer) -> int:
        if not self._open:
            raise ValueError(f"{self._path}: write after commit or abort")
        rest = memoryview(data).cast("B")
        total = len(rest)
        self._size += total
        while rest:
            if self._part.full:  # only now: an object of one part is one PUT
                self._send_part()
            rest = rest[self._part.write(rest, self._connection.memory) :]
        return total

    def commit(self) -> None:
        if not self._open:
            raise ValueError(f"{self._path}: commit after commit or abort")
        if self._upload is None:
            self._requests.send("put_object", self._path, self._part if len(self._part) else b"", **self._condition)
        else:
            if len(self._part):
                self._send_part()
            parts = [part.result() for part in self._parts]
            whole = _expected(parts, self._size) if self._whole else {}
            try:
                self._requests.call_long(
                    "complete_multipart_upload",
                    self._path,
                    Key=self._key,
                    UploadId=self._upload,
                    MultipartUpload={"Parts": [part.named for part in parts]},
                    **whole,
                    **self._condition,
                )
            except UploadGone:
                # The answer to a first request may have been lost after the store had done it.
                if not self._is_there(whole.get("ChecksumCRC32C")):
                    raise
                if self._condition:  # then the caller compares what is there
                    raise ObjectExists(f"{self._name} may be of this writer or another.") from None
            self._upload = None
        self._close(reuse=True)

    def abort(self) -> None:
        if not self._open:
            return
        for part in self._parts:
            part.cancel()
        wait(self._parts)  # a part that arrives after the abort would be kept
        if self._upload is not None:
            # The error that led here matters more, and an unfinished upload is invisible.
            with contextlib.suppress(LogkeepError):
                self._requests.call("abort_multipart_upload", self._path, Key=self._key, UploadId=self._upload)
            self._upload = None
        self._close(reuse=False)

    def _close(self, *, reuse: bool) -> None:
        self._open = False
        self._connection.memory.let_go(self._part, reuse=reuse)
        self._parts = []

    def _send_part(self) -> None:
        if self._upload is None:
            answer = self._requests.begin_upload(self._path)
            self._upload = answer["UploadId"]
            self._checksums = bool(answer.get("ChecksumAlgorithm"))
            self._whole = self._checksums and answer.get("ChecksumType") == "FULL_OBJECT"
        while self._settled < len(self._parts) and self._parts[self._settled].done():
            self._parts[self._settled].result()
            self._settled += 1
        number, part = len(self._parts) + 1, self._part
        self._part = UploadPart()
        self._parts.append(self._connection.send(part, lambda: self._upload_part(number, part)))

    def _upload_part(self, number: int, body: UploadPart) -> _Arrived:
        answer = self._requests.send("upload_part", self._path, body, UploadId=self._upload, PartNumber=number)
        named: dict[str, Any] = {"PartNumber": number, "ETag": answer["ETag"]}
        if self._checksums:
            named |= {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
        return _Arrived(named, body.crc32c(), len(body))

    def _is_there(self, checksum: str | None) -> bool:
        """Return whether an object of this size lies there, and of this checksum, if the store reports one."""
        mode = {} if checksum is None else {"ChecksumMode": "ENABLED"}
        try:
            answer = self._requests.call("head_object", self._path, Key=self._key, **mode)
        except ObjectMissing:
            return False
        stored = answer.get("ChecksumCRC32C", checksum)
        return bool(answer["ContentLength"] == self._size and (checksum is None or stored == checksum))


def _expected(parts: Sequence[_Arrived], size: int) -> dict[str, Any]:
    """Return the checksum and size of the object that the store puts together of these parts. It compares before
    anybody sees the object."""
    crc = 0
    for part in parts:
        crc = crc32c_combined(crc, part.crc, part.size)
    return {"ChecksumCRC32C": base64_of(crc), "ChecksumType": "FULL_OBJECT", "MpuObjectSize": size}
