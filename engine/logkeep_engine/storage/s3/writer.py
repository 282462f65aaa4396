"""Objects written to an S3 store as streams."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, wait
from typing import Any

from logkeep_engine.errors import LogkeepError, ObjectExists, ObjectMissing
from logkeep_engine.storage.base import ANYTHING, DEFAULT_BLOCK, Buffer, ObjectWriter
from logkeep_engine.storage.s3.errors import UploadGone
from logkeep_engine.storage.s3.place import S3Place
from logkeep_engine.storage.s3.requests import Requests


class S3Writer(ObjectWriter):
    """One PUT for a small object, else a multipart upload: while the caller fills a block, others are on their way."""

    def __init__(self, place: S3Place, requests: Requests, path: str, replaces: str | None) -> None:
        self._key = place.key(path)
        self._name = f"{place.uri}/{path}"
        self._requests = requests
        self._path = path
        self._condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        if replaces == ANYTHING:
            self._condition = {}
        self._connection = requests.connection()
        self._block: bytearray | None = None
        self._filled = 0
        self._upload: str | None = None
        self._checksums = False  # parts may name their checksums only in an upload that was made with an algorithm
        self._parts: list[Future[dict[str, Any]]] = []
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
            if self._block is None:
                self._block = self._connection.take_block()
            count = min(len(rest), DEFAULT_BLOCK - self._filled)
            memoryview(self._block)[self._filled : self._filled + count] = rest[:count]
            self._filled += count
            rest = rest[count:]
            if self._filled == DEFAULT_BLOCK:
                self._send_part()
        return total

    def commit(self) -> None:
        if not self._open:
            raise ValueError(f"{self._path}: commit after commit or abort")
        if self._upload is None:
            self._requests.send("put_object", self._path, self._content(), **self._condition)
        else:
            if self._filled:
                self._send_part()
            parts = [part.result() for part in self._parts]
            try:
                self._requests.call_long(
                    "complete_multipart_upload",
                    self._path,
                    Key=self._key,
                    UploadId=self._upload,
                    MultipartUpload={"Parts": parts},
                    **self._condition,
                )
            except UploadGone:
                # The answer to a first request may have been lost after the store had done it.
                if not self._is_there():
                    raise
                if self._condition:  # then the caller compares what is there
                    raise ObjectExists(f"{self._name} may be of this writer or another.") from None
            self._upload = None
        self._close()

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
        self._close()

    def _close(self) -> None:
        self._open = False
        if self._block is not None:
            self._connection.give_back(self._block)
            self._block = None
        self._parts = []

    def _content(self) -> bytes:
        return b"" if self._block is None else bytes(memoryview(self._block)[: self._filled])

    def _send_part(self) -> None:
        if self._upload is None:
            answer = self._requests.call(
                "create_multipart_upload", self._path, Key=self._key, ChecksumAlgorithm="CRC32C"
            )
            self._upload = answer["UploadId"]
            self._checksums = bool(answer.get("ChecksumAlgorithm"))
        while self._settled < len(self._parts) and self._parts[self._settled].done():
            self._parts[self._settled].result()
            self._settled += 1
        number = len(self._parts) + 1
        if self._filled == DEFAULT_BLOCK and self._block is not None:
            block, self._block = self._block, None
            self._parts.append(self._connection.send(lambda: self._send_block(number, block)))
        else:
            rest = self._content()
            self._parts.append(self._connection.send(lambda: self._upload_part(number, rest)))
        self._filled = 0

    def _send_block(self, number: int, block: bytearray) -> dict[str, Any]:
        part = self._upload_part(number, block)
        self._connection.give_back(block)  # not after a failure: a request given up may still be reading it
        return part

    def _upload_part(self, number: int, body: bytes | bytearray) -> dict[str, Any]:
        answer = self._requests.send("upload_part", self._path, body, UploadId=self._upload, PartNumber=number)
        part: dict[str, Any] = {"PartNumber": number, "ETag": answer["ETag"]}
        if self._checksums:
            part |= {name: answer[name] for name in answer if name.startswith("Checksum") and name != "ChecksumType"}
        return part

    def _is_there(self) -> bool:
        try:
            answer = self._requests.call("head_object", self._path, Key=self._key)
        except ObjectMissing:
            return False
        return bool(answer["ContentLength"] == self._size)
