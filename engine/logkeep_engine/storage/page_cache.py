"""Files that grow at their end, and the memory that the system keeps of them.

What a program writes stays in the page cache: until the disk has it, and after that as long as there is room. An
archive is rarely read soon after it was written, but its bytes push out what others read, count as the pod's memory,
and take fresh pages all the time, which cost more to get than to fill where a hypervisor hands them out. And they wait
for the sync at the end, while the disk has nothing to do.

So what lies after the first STEP_BYTES of a file goes past the page cache (O_DIRECT), from a buffer that is used again
and again. A file system that does not take that gets all through the page cache, and is asked to drop it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import mmap
import os
from collections.abc import Callable
from functools import cache

from logkeep_engine.storage.base import Buffer

STEP_BYTES = 2 << 20
"""The disk is given this much at a time."""

BEHIND_BYTES = 2 * STEP_BYTES
"""So far after the end of the file, the disk should be ready by now. If it is not, the bytes are asked about once
more, and then they stay until the system needs the memory."""

_IDLE = 4  # buffers that are kept; a task writes as many large files at once
_SYNC_FILE_RANGE_WRITE = 2  # begins to write, waits for nothing, takes no error away from `fsync` (linux/fs.h)


class WrittenFile:
    """A file that grows at its end and is not read. Promises nothing before `finish` has returned."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file
        self._size = 0
        self._given = 0  # to the disk
        self._forgotten = 0
        self._may_be_direct = True
        self._aligned: mmap.mmap | None = None  # what waits for a direct write: its first `_waiting` bytes
        self._waiting = 0

    def write(self, data: Buffer) -> int:
        """Take bytes at the end. Returns how many: all of them. Raises OSError."""
        rest = memoryview(data).cast("B")
        total = len(rest)
        if self._may_be_direct:
            room = max(0, STEP_BYTES - self._size)
            self._grow(rest[:room])
            rest = rest[room:]
            while rest and self._may_be_direct:
                rest = self._collect(rest)
        self._grow(rest)
        return total

    def finish(self) -> None:
        """Make all of it durable. Raises OSError."""
        self._drain()
        os.fsync(self._file.fileno())

    def release(self) -> None:
        """Give the buffer back. Nothing is written any more."""
        aligned, self._aligned = self._aligned, None
        if aligned is not None and len(_idle) < _IDLE:
            _idle.append(aligned)

    def _collect(self, data: memoryview) -> memoryview:
        """Collect bytes for a direct write; what is left of them when the buffer was full or cannot be used."""
        if self._aligned is None:
            if not self._direct(True):
                self._may_be_direct = False
                return data
            self._aligned = _idle.pop() if _idle else _new_buffer()
        taken = data[: STEP_BYTES - self._waiting]
        self._aligned[self._waiting : self._waiting + len(taken)] = taken
        self._waiting += len(taken)
        if self._waiting == STEP_BYTES:
            self._write_directly(self._aligned)
        return data[len(taken) :]

    def _write_directly(self, aligned: mmap.mmap) -> None:
        try:
            written = os.write(self._file.fileno(), aligned)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            written = 0  # the file system takes the flag, but not these bytes
        self._size += written
        self._given = self._size
        # a direct write needs an aligned position, which a short one has lost
        if written < STEP_BYTES:
            self._drain(written)
            return
        self._waiting = 0
        self._forget(0, STEP_BYTES)

    def _drain(self, start: int = 0) -> None:
        """Write what was collected through the page cache, as all that follows."""
        self._may_be_direct = False
        if self._aligned is None:
            return
        self._direct(False)
        end, self._waiting = self._waiting, 0
        with memoryview(self._aligned) as collected, collected[start:end] as rest:
            self._grow(rest)
        self.release()

    def _direct(self, on: bool) -> bool:
        """Have writes pass by the page cache or not; False if the file system does not know it."""
        descriptor = self._file.fileno()
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT if on else flags & ~os.O_DIRECT)
        except OSError:
            if not on:
                raise
            return False
        return True

    def _grow(self, data: memoryview) -> None:
        """Write through the page cache. The disk begins with the bytes, and the system forgets earlier ones that are on
        it."""
        while data:
            written = self._file.write(data)
            data = data[written:]
            self._size += written
        if self._size - self._given < STEP_BYTES:
            return
        _begin_to_write()(self._file.fileno(), self._given, self._size - self._given)
        start, end = max(0, self._forgotten - BEHIND_BYTES), self._given - BEHIND_BYTES
        self._given = self._size
        if end > self._forgotten:
            self._forgotten = end
            self._forget(start, end)

    def _forget(self, start: int, end: int) -> None:
        with contextlib.suppress(OSError):  # it is advice, and some file systems take none
            os.posix_fadvise(self._file.fileno(), start, end - start, os.POSIX_FADV_DONTNEED)


def _new_buffer() -> mmap.mmap:
    """Make a buffer of this process alone. By default Python shares such memory with the processes that are forked
    later: several workers would collect their files in the same buffer."""
    return mmap.mmap(-1, STEP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


_idle: list[mmap.mmap] = []
"""Unused buffers, each of STEP_BYTES and at the begin of a page. The last one was used last."""


@cache
def _begin_to_write() -> Callable[[int, int, int], object]:
    """Return a call that hands (descriptor, position, bytes) of a file to the disk. Without it, in other C libraries
    than those of Linux, the disk begins when the system decides."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return lambda descriptor, position, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda descriptor, position, size: call(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)
