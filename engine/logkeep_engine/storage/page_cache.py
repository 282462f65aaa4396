"""The memory that the system keeps of a file that is being written.

What a program writes stays in the page cache: until the disk has it, and after that as long as there is room. Nobody
reads an archive soon after it was written, but its bytes push out what others read, count as the pod's memory, and
take fresh pages all the time, which cost more to get than to fill where a hypervisor hands them out. And they wait for
the sync at the end, while the disk has nothing to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import cache

STEP_BYTES = 2 << 20
"""The disk is given so much at a time."""

BEHIND_BYTES = 2 * STEP_BYTES
"""So far behind the end of the file, the disk should be ready by now. If it is not, the bytes are asked about once
more, and then they stay until the system wants the memory."""

_SYNC_FILE_RANGE_WRITE = 2  # begins to write, waits for nothing, takes no error away from `fsync` (linux/fs.h)


class WrittenFile:
    """A file that grows at its end and is not read. Promises nothing: only `fsync` makes bytes durable."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = 0
        self._given = 0  # to the disk
        self._forgotten = 0

    def grow(self, written: int) -> None:
        """Note bytes at the end: the disk begins with them, and the system forgets earlier ones that are on it."""
        self._size += written
        if self._size - self._given < STEP_BYTES:
            return
        _begin_to_write()(self._descriptor, self._given, self._size - self._given)
        start, end = max(0, self._forgotten - BEHIND_BYTES), self._given - BEHIND_BYTES
        self._given = self._size
        if end > self._forgotten:
            self._forgotten = end
            with contextlib.suppress(OSError):  # it is advice, and some file systems take none
                os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


@cache
def _begin_to_write() -> Callable[[int, int, int], object]:
    """A call that hands (descriptor, position, bytes) of a file to the disk. Without it, in other C libraries than
    those of Linux, the disk begins when the system wants it to."""
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return lambda descriptor, position, size: None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return lambda descriptor, position, size: call(descriptor, position, size, _SYNC_FILE_RANGE_WRITE)
