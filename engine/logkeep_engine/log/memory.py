"""The memory that a task may take, and how much it may therefore unpack. Nothing else in the engine decides this.

    with lent() as work:
        size = decompress_into(codec, packed, work.space(unpacked_most()))

A broker limits what a batch is compressed to, not what it unpacks to: one record of 128 MiB of zeros is a batch of
4 kB. So nothing is unpacked without a bound, and what a batch says about its own size never allocates anything.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from logkeep_engine.contract.names import ENV_TASK_MEMORY
from logkeep_engine.errors import SpecError

TASK_BYTES = 256 << 20
"""The memory that a task takes at most above the interpreter, unless the environment allows more."""

_SHARE = 12
"""One batch may unpack to this part of a task's memory. A record is in memory several times (unpacked, taken out,
packed again, on its way to the store), in addition to everything else that a task holds.
"""

SMALL_BYTES = 2 << 20
SMALL_RECORDS = 1 << 15
"""Batches that unpack to no more may be unpacked by several threads of a task at once; larger batches go one at a
time."""

_KEPT = 2 << 20
"""So much of a workspace stays in memory when it is given back."""

_QUANTITY = re.compile(r"([1-9][0-9]{0,14})(|Ki|Mi|Gi)")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def task_bytes() -> int:
    """Return the memory of a task: the environment's figure, or TASK_BYTES. Raises SpecError for what is not such a
    figure."""
    text = os.environ.get(ENV_TASK_MEMORY)
    if not text:
        return TASK_BYTES
    found = _QUANTITY.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if size < TASK_BYTES:
        raise SpecError(
            f"{ENV_TASK_MEMORY}: {text!r} is not a number of bytes from {TASK_BYTES >> 20}Mi on",
            hint="Write it like 512Mi or 2Gi, or leave it out.",
        )
    return size


def unpacked_most() -> int:
    """Return the most bytes that one batch, or one block of an object, may unpack to."""
    return task_bytes() // _SHARE


def stored_record_most() -> int:
    """Return the most bytes that one record may have in an object of records: what may be unpacked may be written,
    where it takes some more bytes for each of its headers."""
    return unpacked_most() * 5 // 4 + SMALL_BYTES


def block_most() -> int:
    """Return the most bytes that a block of an object of records may unpack to: one record, some of whose schemas have
    its headers twice, and what lies before it in the block."""
    return 2 * unpacked_most() + SMALL_BYTES


def whole_segment_most() -> int:
    """Return the most bytes of a segment of another tool that is one compressed block: nothing else is there in the
    meantime."""
    return task_bytes() * 3 // 4


def checkpoint_most() -> int:
    """Return the most bytes that a frame of a checkpoint may unpack to, in a driver: it holds the metadata of the
    archive, and an archive of a million segments has 200 MB of it."""
    return 4 * task_bytes()


def listed_most() -> int:
    """Return the most records of one batch that are made at once: an object takes some hundred bytes however small it
    is."""
    return unpacked_most() // 64


class ScratchMemory:
    """Memory to unpack one batch after another into. Only the part that is written takes memory. Fresh memory for each
    batch would cost as much as the unpacking.
    """

    def __init__(self, most: int) -> None:
        give_back_what_is_large()  # before a decompressor allocates what a batch claims
        self._most = most
        self._memory = mmap.mmap(-1, most, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._memory)

    @property
    def most(self) -> int:
        return self._most

    def space(self, limit: int) -> memoryview:
        """Return the memory for at most `limit` bytes."""
        return self.view[: min(limit, self._most)]

    def let_go(self) -> None:
        """Give back the memory that a large batch took. It is no longer looked at."""
        if self._most > _KEPT:
            self._memory.madvise(mmap.MADV_DONTNEED, _KEPT)


class _Spare(threading.local):
    """The workspace of a thread. While it is lent out, a second borrower gets a new one."""

    _idle: ScratchMemory | None = None

    def take(self) -> ScratchMemory:
        work, self._idle = self._idle, None
        most = unpacked_most()
        return work if work is not None and work.most == most else ScratchMemory(most)

    def give(self, work: ScratchMemory) -> None:
        work.let_go()
        self._idle = work


_spare = _Spare()


@contextmanager
def lent() -> Iterator[ScratchMemory]:
    """Give a workspace of `unpacked_most()` bytes. What was unpacked into it is gone afterwards."""
    work = _spare.take()
    try:
        yield work
    finally:
        _spare.give(work)


_alone = threading.Lock()
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
_OF_ITS_OWN = 4 << 20
_LEFT_TO_A_THREAD = 16 << 20


@contextmanager
def alone() -> Iterator[None]:
    """One thread of the process at a time: for batches that are not small. Wait for no other inside."""
    with _alone:
        yield


@cache
def give_back_what_is_large() -> None:
    """Have glibc return large blocks to the system when they are freed.

    By itself it learns from each one that is freed to keep the next, up to 32 MiB and for each thread: after a few
    large batches that is as much as all of a task's memory. Other C libraries need no such setting.
    """
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(_M_MMAP_THRESHOLD, _OF_ITS_OWN)
        tell(_M_TRIM_THRESHOLD, _LEFT_TO_A_THREAD)
