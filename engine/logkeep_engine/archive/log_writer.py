"""Writing a segment's log into the archive: as it is, or compressed as a whole.

writer = log_writer(storage, stem, Compression.ZSTD)
writer.write(batches); ...; writer.commit()
SegmentEntry.of(summary, ..., stored_bytes=writer.stored_bytes)
"""

from __future__ import annotations

from logkeep_engine.archive import names
from logkeep_engine.contract.spec import Compression
from logkeep_engine.log.seekable import SeekableWriter
from logkeep_engine.storage import Buffer, ObjectWriter, Storage


class LogWriter(ObjectWriter):
    """The `.log` object of a segment; `stored_bytes` is what its catalog entry says of the object."""

    suffix = names.LOG

    def __init__(self, storage: Storage, stem: str) -> None:
        self._object = storage.writer(stem + self.suffix)

    @property
    def stored_bytes(self) -> int:
        return 0

    def write(self, data: Buffer) -> int:
        """Append whole batches."""
        return self._object.write(data)

    def commit(self) -> None:
        self._object.commit()

    def abort(self) -> None:
        self._object.abort()


class ZstdLogWriter(LogWriter):
    """The `.log.zst` object of a segment, compressed in threads of its own while the caller gets the next batches."""

    suffix = names.LOG_ZST

    def __init__(self, storage: Storage, stem: str) -> None:
        super().__init__(storage, stem)
        self._frames = SeekableWriter(self._object.write)
        self._stored_bytes = 0

    @property
    def stored_bytes(self) -> int:
        """Size of the object; 0 before `commit`."""
        return self._stored_bytes

    def write(self, data: Buffer) -> int:
        return self._frames.write(data)

    def commit(self) -> None:
        try:
            stored = self._frames.finish()
        finally:
            self._frames.close()
        self._object.commit()
        self._stored_bytes = stored

    def abort(self) -> None:
        self._frames.close()
        self._object.abort()


def log_writer(storage: Storage, stem: str, compression: Compression) -> LogWriter:
    """Opens the object of the log at `stem`."""
    return (ZstdLogWriter if compression is Compression.ZSTD else LogWriter)(storage, stem)
