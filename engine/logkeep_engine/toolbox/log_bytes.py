"""The bytes of a log in a folder, block by block: the walker (`toolbox.scan`) walks over them."""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.errors import (
    CorruptFrame,
    Refused,
)
from logkeep_engine.log.batch import Buffer
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.log.seekable import SeekTable, decompress_frame, table_bytes
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.files import display

BLOCK = 4 << 20


def file_blocks(storage: Storage, path: str, start: int) -> Iterator[Buffer | DamagedBytes]:
    """Yield the bytes of a plain file from position `start` on."""
    at = start
    while data := storage.read_range(path, at, at + BLOCK):
        yield data
        at += len(data)
        if len(data) < BLOCK:
            return


def _seek_table(storage: Storage, path: str, size: int) -> SeekTable:
    tail = storage.read_range(path, max(0, size - (32 << 10)), size)
    if len(tail) < table_bytes(tail) <= size:
        tail = storage.read_range(path, size - table_bytes(tail), size)
    return SeekTable.parse(tail, size)


def zstd_size(storage: Storage, path: str, size: int) -> int:
    """Return the size of the log in a `.log.zst` of `size` bytes. Raises Refused if its seek table is damaged."""
    try:
        return _seek_table(storage, path, size).size
    except CorruptFrame as error:
        raise Refused(
            f"{display(storage, path)} cannot be read: {error.message}.",
            hint="Inside its archive it can be read by the catalog; `zstd -d` may give back a part of it.",
        ) from error


def frames(storage: Storage, path: str, start: int) -> Iterator[Buffer | DamagedBytes]:
    """Yield the log of a `.log.zst` that no catalog describes."""
    size = next(info.size for info in storage.list(path) if info.path == path)
    table = _seek_table(storage, path, size)
    for frame in table.frames[table.index_at(start) :]:
        plain = bytearray(frame.size)
        try:
            decompress_frame(storage.read_range(path, frame.at, frame.at + frame.stored), memoryview(plain))
        except CorruptFrame as error:
            yield DamagedBytes(
                f"the zstd frame at byte {frame.at} of the object is damaged: {error.message}", frame.size
            )
        else:
            yield memoryview(plain)[max(0, start - frame.start) :]
