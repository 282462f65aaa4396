"""Parts of uploads: the memory that they are collected in, the threads that send them, and a part as a body that is
sent without a copy.

    part = UploadPart()
    part.write(data, sender.memory)     # as much of it as fits; then the part is full
    body = UploadBody(part)             # once for each attempt

A part is large, because each is a request that costs money, so its memory comes in slabs as it fills. All parts but
the last have the same size, since some stores require that. S3 takes 10,000 parts of at least 5 MiB, Azure 50,000;
Google takes any number, of a multiple of 256 KiB.
"""

from __future__ import annotations

import io
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from logkeep_kernel import crc32c

from logkeep_engine.errors import StorageRefused
from logkeep_engine.storage.base import PART_BYTES

SLAB_BYTES = 1 << 20
MEMORY_BYTES = 80 << 20
"""The bytes that all writers of a storage collect and send at once, unless writers alone hold more: PART_BYTES each at
most."""
_PARTS_AT_ONCE = 4  # parts under way of all writers of a storage together

T = TypeVar("T")


class UploadMemory:
    """Lends out slabs, and counts what is lent. May be called from any thread.

    Slabs are used again: in fresh memory every megabyte would cost 250 page faults.
    """

    def __init__(self, size: int = MEMORY_BYTES) -> None:
        self._most = size // SLAB_BYTES
        self._lent = 0
        self._sending = 0
        self._idle: list[bytearray] = []
        self._changed = threading.Condition()

    @property
    def lent(self) -> int:
        """Bytes that parts hold."""
        return self._lent * SLAB_BYTES

    def take(self) -> bytearray:
        """Return a slab. Waits while all memory is lent and a part is on its way, which gives its own back.

        If none is, it lends more: the writers that hold all may be waiting for each other.
        """
        with self._changed:
            while self._lent >= self._most and self._sending:
                self._changed.wait()
            self._lent += 1
            return self._idle.pop() if self._idle else bytearray(SLAB_BYTES)

    def begin_sending(self) -> None:
        """A part is on its way; `end_sending` must follow, whatever happens to it."""
        with self._changed:
            self._sending += 1

    def end_sending(self, part: UploadPart, *, reuse: bool) -> None:
        """The part is no longer on its way, and is let go."""
        with self._changed:
            self._sending -= 1
        self.let_go(part, reuse=reuse)

    def let_go(self, part: UploadPart, *, reuse: bool) -> None:
        """Take back the slabs of a part. Without `reuse` they are forgotten: a request that was given up may still be
        reading them.
        """
        slabs = part.clear()
        with self._changed:
            self._lent -= len(slabs)
            if reuse:
                self._idle += slabs[: max(0, self._most - self._lent - len(self._idle))]
            self._changed.notify_all()


class UploadPart:
    """Up to PART_BYTES in slabs. Not safe for several threads."""

    __slots__ = ("_crc", "_size", "_slabs")

    def __init__(self) -> None:
        self._slabs: list[bytearray] = []
        self._size = 0
        self._crc = 0

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether it takes no more."""
        return self._size >= PART_BYTES

    def write(self, data: memoryview, memory: UploadMemory) -> int:
        """Copy bytes from the front of `data`, and return how many: fewer than there are: the caller continues."""
        at = self._size % SLAB_BYTES
        if not at:
            self._slabs.append(memory.take())
        count = min(len(data), SLAB_BYTES - at)
        memoryview(self._slabs[-1])[at : at + count] = data[:count]
        self._crc = crc32c(data[:count], self._crc)
        self._size += count
        return count

    def views(self) -> Iterator[memoryview]:
        """Yield the bytes, slab by slab."""
        for number, slab in enumerate(self._slabs):
            yield memoryview(slab)[: self._size - number * SLAB_BYTES]

    def crc32c(self) -> int:
        """CRC-32C of the bytes as they were handed in: whatever happens to the slabs until they have arrived, the store
        sees it."""
        return self._crc

    @property
    def whole(self) -> bool:
        """Whether the slabs still hold the bytes that were handed in."""
        crc = 0
        for view in self.views():
            crc = crc32c(view, crc)
        return crc == self._crc

    def clear(self) -> list[bytearray]:
        """Empty the part, and return its slabs."""
        slabs, self._slabs, self._size, self._crc = self._slabs, [], 0, 0
        return slabs


class PartSender:
    """Threads that send parts, and the memory of the parts, for all writers of a storage in one process."""

    def __init__(self) -> None:
        self.memory = UploadMemory()
        self._free = threading.BoundedSemaphore(_PARTS_AT_ONCE)
        self._sending = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="logkeep-send")

    def send(self, part: UploadPart, action: Callable[[], T]) -> Future[T]:
        """Begin to send a part, which is let go when it has arrived or failed. Waits while _PARTS_AT_ONCE are under
        way.
        """
        self._free.acquire()
        self.memory.begin_sending()
        sending = self._sending.submit(action)
        sending.add_done_callback(lambda done: self._sent(part, done))
        return sending

    def _sent(self, part: UploadPart, done: Future[Any]) -> None:
        self.memory.end_sending(part, reuse=not done.cancelled() and done.exception() is None)
        self._free.release()


class UploadBody:
    """Bytes as botocore and Azure's library take a body that is not one block: with a length, and the methods of a
    file.

    Each slab goes to the socket with one call, as it is. So the limit of seconds for a call, of which urllib3 has only
    one for the whole of a body in one block, is one for each megabyte.
    """

    def __init__(self, content: bytes | UploadPart) -> None:
        self._views = slabs_of(content)
        self._size = len(content)
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def read(self, _size: int = -1) -> memoryview | bytes:
        """The rest of the slab, whatever `_size` is: those who read send or hash what comes. b"" at the end."""
        if self._at >= self._size:
            return b""
        number, start = divmod(self._at, SLAB_BYTES)
        found = self._views[number][start:]
        self._at += len(found)
        return found

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to another place, as in a file. Returns it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at


def slabs_of(content: bytes | UploadPart, start: int = 0) -> list[memoryview]:
    """Return the bytes from `start` on without a copy, in pieces of SLAB_BYTES at most."""
    if isinstance(content, UploadPart):
        slabs = list(content.views())
    else:
        slabs = [memoryview(content)[at : at + SLAB_BYTES] for at in range(0, len(content), SLAB_BYTES)]
    whole, rest = divmod(start, SLAB_BYTES)
    return [slab[0 if number else rest :] for number, slab in enumerate(slabs[whole:])]


def crc32c_of(content: bytes | UploadPart) -> int:
    """Return the CRC-32C, of a part as its bytes were handed in."""
    return content.crc32c() if isinstance(content, UploadPart) else crc32c(content)


def base64_of(crc: int) -> str:
    """Return a CRC-32C as S3 and Google write it. The store checks it, so that over TLS the payload need not be hashed
    to sign it; without TLS botocore signs a SHA-256 as well.
    """
    return b64encode(crc.to_bytes(4, "big")).decode()


def changed(name: str) -> StorageRefused:
    """Return the error for an object, or a part of it, whose bytes are not those that were handed in."""
    return StorageRefused(
        f"{name}: bytes of the object have changed in memory, or on their way to the store.",
        hint="Start the run again. If it happens again, have the memory of the node checked.",
    )
