"""Requests to an S3 store, sent until it has answered or patience is over."""

from __future__ import annotations

import os
import threading
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from crc32c import crc32c

from logkeep_engine.errors import LogkeepError
from logkeep_engine.storage.retry import retried
from logkeep_engine.storage.s3.connection import QUICK_ATTEMPTS, S3Connection, connect
from logkeep_engine.storage.s3.errors import is_silence, translate
from logkeep_engine.storage.s3.place import S3Place

T = TypeVar("T")


class Requests:
    """Sends requests about the bucket of a place. Safe for several threads, and in a forked child.

    `method` is one of botocore's S3 client; `path` is what an error is about.
    """

    def __init__(self, place: S3Place, environ: Mapping[str, str]) -> None:
        self._place = place
        self._environ = environ
        self._connecting = threading.Lock()
        self._connection: S3Connection | None = None
        # Kept so that a child process does not close connections that its parent still uses.
        self._inherited: list[S3Connection] = []

    def connection(self) -> S3Connection:
        """This process's own connection; the first call makes it."""
        process = os.getpid()
        with self._connecting:
            connection = self._connection
            if connection is not None and connection.process == process:
                return connection
            if connection is not None:
                self._inherited.append(connection)
            self._connection = connect(self._place, self._environ)
            return self._connection

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a small request, without a body or with a short one."""

        def ask(attempt: int) -> Any:
            connection = self.connection()
            if attempt < QUICK_ATTEMPTS:
                return connection.filesystem.call_s3(method, Bucket=self._place.bucket, **arguments)
            return getattr(connection.bodies, method)(Bucket=self._place.bucket, **arguments)

        return self.retry(ask, path)

    def call_long(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request that may give the store much to do before it answers."""
        return self.retry(
            lambda attempt: getattr(self.connection().bodies, method)(Bucket=self._place.bucket, **arguments), path
        )

    def send(self, method: str, path: str, body: bytes | bytearray, **arguments: Any) -> Any:
        """Send a request with a body and its checksum."""
        checksum = _checksum(body)

        def put(attempt: int) -> Any:
            request = getattr(self.connection().client(attempt, len(body)), method)
            return request(
                Bucket=self._place.bucket, Key=self._place.key(path), Body=body, ChecksumCRC32C=checksum, **arguments
            )

        return self.retry(put, path)

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


def _checksum(body: bytes | bytearray) -> str:
    """CRC-32C as S3 wants it in a header. The store checks it, so that over TLS the payload need not be hashed to sign
    it; without TLS botocore signs a SHA-256 as well.
    """
    return b64encode(crc32c(body).to_bytes(4, "big")).decode()
