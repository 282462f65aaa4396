"""Requests to an S3 store, sent until it has answered or patience is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, TypeVar

from logkeep_engine.errors import LogkeepError, StorageRefused
from logkeep_engine.storage.base import PART_BYTES
from logkeep_engine.storage.parts import UploadBody, UploadPart, base64_of, changed, crc32c_of
from logkeep_engine.storage.per_process import PerProcess
from logkeep_engine.storage.place import BucketPlace
from logkeep_engine.storage.retry import retried
from logkeep_engine.storage.s3.connection import S3Connection, connect
from logkeep_engine.storage.s3.errors import NotUnderstood, is_silence, translate
from logkeep_engine.storage.s3.options import class_of

log = logging.getLogger(__name__)

T = TypeVar("T")


class Checks(IntEnum):
    """The checks that the store is asked for when it is sent an object.

    Also without a checksum of ours the store has that of the signature: botocore signs the SHA-256 of a body that has
    none. That is of the bytes as they are sent, so we compare ourselves what lay in memory.
    """

    NOTHING = 0
    BODIES = 1
    """Each body, by its CRC-32C."""
    OBJECTS = 2
    """Also the object that it puts together of the parts of an upload."""


_OF_UPLOADS = {
    Checks.NOTHING: {},
    Checks.BODIES: {"ChecksumAlgorithm": "CRC32C"},
    Checks.OBJECTS: {"ChecksumAlgorithm": "CRC32C", "ChecksumType": "FULL_OBJECT"},
}


class Requests:
    """Sends requests about the bucket of a place. Safe for several threads, and in a forked child.

    `method` is one of botocore's S3 client; `path` is what an error is about.
    """

    def __init__(self, place: BucketPlace, environ: Mapping[str, str]) -> None:
        self._place = place
        self._connection = PerProcess(lambda: connect(place, environ))
        self._checks = Checks.OBJECTS

    def connection(self) -> S3Connection:
        """This process's own connection; the first call makes it."""
        return self._connection.get()

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a small request, without a body or with a short one."""

        def ask(attempt: int) -> Any:
            return getattr(self.connection().client(attempt, 0), method)(Bucket=self._place.bucket, **arguments)

        return self.retry(ask, path)

    def call_long(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request that may give the store much to do before it answers."""
        return self.retry(
            lambda attempt: getattr(self.connection().bodies, method)(Bucket=self._place.bucket, **arguments), path
        )

    def begin_upload(self, path: str) -> Any:
        """Begin a multipart upload. The answer says what the store will check (`ChecksumAlgorithm`, `ChecksumType`)."""
        arguments = {"Key": self._place.key(path), **class_of(self._place, path, PART_BYTES)}
        answer = self._checked(
            Checks.OBJECTS,
            lambda checks: self.call("create_multipart_upload", path, **arguments, **_OF_UPLOADS[checks]),
        )
        self.require(answer, "UploadId", path)
        return answer

    def send(self, method: str, path: str, body: bytes | UploadPart, **arguments: Any) -> Any:
        """Send a request with a body and its checksum. The answer has an ETag."""
        checksum = base64_of(crc32c_of(body))
        if method == "put_object":
            arguments |= class_of(self._place, path, len(body))

        def put(attempt: int, checks: Checks) -> Any:
            if not checks and isinstance(body, UploadPart) and not body.whole:
                raise changed(self._place.name_of(path))
            request = getattr(self.connection().client(attempt, len(body)), method)
            checked = {"ChecksumCRC32C": checksum} if checks else {}
            return request(
                Bucket=self._place.bucket,
                Key=self._place.key(path),
                Body=UploadBody(body) if isinstance(body, UploadPart) else body,
                **checked,
                **arguments,
            )

        answer = self._checked(Checks.BODIES, lambda checks: self.retry(lambda attempt: put(attempt, checks), path))
        self.require(answer, "ETag", path)
        return answer

    def require(self, answer: Mapping[str, Any], name: str, path: str) -> None:
        """Raises StorageRefused if what the store says that it has done lacks this: then it may have done nothing."""
        if not answer.get(name):
            raise StorageRefused(
                f"{self._place.name_of(path)}: {self._place.where} says that it was written, and names no {name}.",
                hint=f"Check {self._place.keys.part('endpoint')}: a proxy may answer in place of the store.",
            )

    def _checked(self, most: Checks, request: Callable[[Checks], T]) -> T:
        """Have the store check as much as it can. One that does not understand is asked for less, and if it then does
        what it was asked for, this process asks it for no more."""
        checks = min(most, self._checks)
        while True:
            try:
                done = request(checks)
            except NotUnderstood:
                if checks is Checks.NOTHING:
                    raise
                checks = Checks(checks - 1)
                continue
            if checks < min(most, self._checks):
                self._checks = checks
                what = "whole objects" if checks else "bodies"
                log.info("%s does not check the CRC-32C of %s that it is sent.", self._place.where, what)
            return done

    def retry(self, action: Callable[[int], T], path: str) -> T:
        """Do it again while it fails for a reason that may pass. `action` gets the number of its attempt, from 0."""
        try:
            self.connection()  # making the first client takes a while of its own, which is not the store's
        except Exception as error:
            raise self._translate(error, path) from error
        return retried(action, lambda error: self._translate(error, path), self._drop_silent)

    def _translate(self, error: Exception, path: str) -> LogkeepError:
        return translate(error, self._place, path)

    def _drop_silent(self, error: Exception) -> None:
        if is_silence(error):
            self.connection().drop_idle()
