"""Objects written to an object store as streams: what the writers of all stores share."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from logkeep_kernel import crc32c_combined

from logkeep_engine.errors import LogkeepError, StorageRefused
from logkeep_engine.storage.base import Buffer, ObjectWriter
from logkeep_engine.storage.parts import PartSender, UploadPart

A = TypeVar("A")


class UploadGone(StorageRefused):
    """The upload is not known: ended by another client, or completed by a request whose answer was lost."""


class PartsWriter(ObjectWriter, Generic[A]):
    """One request for an object up to PART_BYTES, else an upload in parts: while the caller fills a part, others are on
    their way.

    A subclass has the requests of its store, and `A` is what the store answers of a part. Its constructor makes none.
    """

    in_order = False
    """Whether the store takes a part only after the one before it."""

    def __init__(self, path: str, sender: PartSender) -> None:
        self._path = path
        self._sender = sender
        self._part = UploadPart()
        self._parts: list[Future[A]] = []
        self._settled = 0  # parts from the front that are known to have arrived
        self._begun = False
        self._size = 0  # of the parts that were sent, as their CRC-32C
        self._crc = 0
        self._open = True

    @abstractmethod
    def _put(self, part: UploadPart) -> None:
        """Write an object of one part, which may be empty, whole."""

    @abstractmethod
    def _begin(self) -> None:
        """Begin an upload in parts."""

    @abstractmethod
    def _send(self, number: int, at: int, part: UploadPart, last: bool) -> A:
        """Send a part, in a thread. `number` counts from 0, and `at` is the place of the part in the object."""

    @abstractmethod
    def _finish(self, parts: Sequence[A]) -> None:
        """Make the object visible. All of its parts have arrived."""

    @abstractmethod
    def _drop(self) -> None:
        """Give up the upload. May raise LogkeepError."""

    def write(self, data: Buffer) -> int:
        if not self._open:
            raise ValueError(f"{self._path}: write after commit or abort")
        rest = memoryview(data).cast("B")
        total = len(rest)
        try:
            while rest:
                if self._part.full:  # only now: an object of one part is one request
                    self._send_part(last=False)
                rest = rest[self._part.write(rest, self._sender.memory) :]
        except BaseException:
            self.abort()  # a commit would make an object that lacks these bytes
            raise
        return total

    def commit(self) -> None:
        if not self._open:
            raise ValueError(f"{self._path}: commit after commit or abort")
        if self._begun:
            self._send_part(last=True)
            self._finish([part.result() for part in self._parts])
        else:
            self._put(self._part)
        self._close(reuse=True)

    def abort(self) -> None:
        if not self._open:
            return
        for part in self._parts:
            part.cancel()
        wait(self._parts)  # a part that arrives after the abort would be kept
        if self._begun:
            with contextlib.suppress(LogkeepError):  # the error that led here matters more, and nothing is visible
                self._drop()
        self._close(reuse=False)

    def _close(self, *, reuse: bool) -> None:
        self._open = False
        self._sender.memory.let_go(self._part, reuse=reuse)
        self._parts = []

    def _send_part(self, *, last: bool) -> None:
        if not self._begun:
            self._begin()
            self._begun = True
        while self._settled < len(self._parts) and (self.in_order or self._parts[self._settled].done()):
            self._parts[self._settled].result()
            self._settled += 1
        number, at, part = len(self._parts), self._size, self._part
        self._part = UploadPart()
        self._size += len(part)
        self._crc = crc32c_combined(self._crc, part.crc32c(), len(part))
        self._parts.append(self._sender.send(part, lambda: self._send(number, at, part, last)))
