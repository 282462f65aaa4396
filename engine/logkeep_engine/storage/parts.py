"""Parts of uploads: the memory that they are collected in, and a part as a body that is sent without a copy.

    part = UploadPart()
    part.write(data, memory)            # as much of it as fits; then the part is full
    body = part.opened()                # once for each attempt

A part is large, because each is a request that costs money, so its memory comes in slabs as it fills. All parts but
the last have the same size, since some stores require that. S3 takes 10,000 parts of at least 5 MiB.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

from logkeep_kernel import crc32c

from logkeep_engine.storage.base import PART_BYTES

SLAB_BYTES = 1 << 20
MEMORY_BYTES = 80 << 20
"""The bytes that all writers of a storage collect and send at once, unless writers alone hold more: PART_BYTES each at
most."""


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

    def opened(self) -> UploadBody:
        """Return the bytes as a file, from their beginning."""
        return UploadBody(self)

    def clear(self) -> list[bytearray]:
        """Empty the part, and return its slabs."""
        slabs, self._slabs, self._size, self._crc = self._slabs, [], 0, 0
        return slabs


class UploadBody:
    """A part as botocore takes a body that is not one block: with a length, and the methods of a file.

    Each slab goes to the socket with one call, as it is. So the limit of seconds for a call, of which urllib3 has only
    one for the whole of a body in one block, is one for each megabyte.
    """

    def __init__(self, part: UploadPart) -> None:
        self._views = list(part.views())
        self._size = len(part)
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
