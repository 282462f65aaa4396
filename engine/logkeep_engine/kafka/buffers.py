"""Receive buffers that are used again.

An answer of several megabytes in a fresh buffer costs a page fault every 4 KiB, about as much as copying it. `Buffers`
lends out an `AnswerFrame` and takes its memory back when it is released. A frame that is not released is ordinary
garbage.

A released buffer is lent out again only when no view of it is left anywhere, in a traceback or in another thread's hash
for instance: bytes that are still in use never change.
"""

from __future__ import annotations

from typing import Self

KEEP_BYTES = 64 << 20
"""The most bytes of idle buffers that are kept."""

_POOLED = 64 << 10  # smaller answers are not worth keeping
_STEP = 1 << 20


class AnswerFrame:
    """Memory for one answer: `view` has the size that was asked for. Its contents are left over from another answer."""

    __slots__ = ("_buffer", "_lender", "view")

    def __init__(self, buffer: bytearray, size: int, lender: Buffers | None) -> None:
        self._buffer: bytearray | None = buffer
        self._lender = lender
        self.view = memoryview(buffer)[:size]

    @classmethod
    def of(cls, data: bytes) -> Self:
        """Return a frame with these bytes, from no buffer."""
        return cls(bytearray(data), len(data), None)

    def release(self) -> None:
        """Give the memory back; `view` can be read no more. Harmless when called twice."""
        buffer, self._buffer = self._buffer, None
        if buffer is None:
            return
        try:
            self.view.release()
        except BufferError:
            return  # it is being read right now
        if self._lender is not None:
            self._lender.take_back(buffer)


class Buffers:
    """Lends out frames. May be called from any thread: each buffer is taken, and given back, in one step of Python's. A
    lock would stay locked for ever in a process that is forked while another thread holds it."""

    def __init__(self, keep_bytes: int = KEEP_BYTES) -> None:
        self._keep = keep_bytes
        self._idle: dict[int, bytearray] = {}  # by the buffer's identity

    @property
    def idle(self) -> int:
        """How many buffers wait to be lent out."""
        return len(self._idle)

    def lend(self, size: int) -> AnswerFrame:
        """Return a frame of `size` bytes, in the smallest idle buffer that holds it or in a new one."""
        if size < _POOLED:  # and a large idle buffer is not taken for a small answer
            return AnswerFrame(bytearray(size), size, None)
        fitting = (buffer for buffer in list(self._idle.values()) if len(buffer) >= size)
        for buffer in sorted(fitting, key=len):
            if self._idle.pop(id(buffer), None) is not None:  # else another thread was faster
                return AnswerFrame(buffer, size, self)
        # In whole steps, so that the next answer fits although it is a little larger.
        return AnswerFrame(bytearray(-(-size // _STEP) * _STEP), size, self)

    def take_back(self, buffer: bytearray) -> None:
        """Keep the buffer for the next frame, unless there are enough or a view of it is left."""
        if sum(map(len, list(self._idle.values()))) + len(buffer) <= self._keep and not _is_seen(buffer):
            self._idle[id(buffer)] = buffer


def _is_seen(buffer: bytearray) -> bool:
    """Return whether a view of the buffer exists: a bytearray refuses to change its length then. One byte off and on
    moves no memory."""
    try:
        last = buffer.pop()
    except BufferError:
        return True
    buffer.append(last)
    return False
