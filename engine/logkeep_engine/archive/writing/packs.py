"""Writing packs: objects that hold small segments of several partitions, one after the other.

packs = TaskPacks(storage, epoch, task, attempt)
entry = packs.take("orders", entry, log, {names.INDEX: ..., names.TIMEINDEX: ...})
packs.commit()          # only now a commit may name the segments
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import PackFiles, SegmentEntry
from logkeep_engine.archive.pack_table import table_out
from logkeep_engine.storage import Buffer, ObjectWriter, Storage

PACK_BYTES = 64 << 20
"""A pack of this size takes no further segment."""


class TaskPacks:
    """The packs of one attempt at a task. Safe for several threads."""

    def __init__(self, storage: Storage, epoch: int, task: int, attempt: int) -> None:
        self._storage = storage
        self._epoch, self._task, self._attempt = epoch, task, attempt
        self._number = 0
        self._lock = threading.Lock()
        self._pack: _OpenPack | None = None

    def take(self, topic: str, entry: SegmentEntry, log: Buffer, beside: Mapping[str, Buffer]) -> SegmentEntry:
        """Append a segment: its log, as an object of its own would hold it, and the indexes next to it by suffix.
        Returns its entry there. No commit may name it before `commit`."""
        with self._lock:
            if self._pack is None:
                path = names.pack_path(self._epoch, self._task, self._attempt, self._number)
                self._pack = _OpenPack(self._storage.writer(path))
            old = entry.files
            files = PackFiles(
                old.index_bytes,
                old.timeindex_bytes,
                old.txnindex_bytes,
                old.txnindex_sha256,
                old.stored_bytes,
                self._task,
                self._number,
                self._pack.size,
                len(beside.get(names.TXNPARTS, b"")),
            )
            found = replace(entry, epoch=self._epoch, attempt=self._attempt, files=files)
            self._pack.add(topic, found, files, {files.suffix: log, **beside})
            if self._pack.size >= PACK_BYTES:
                self._end()
            return found

    def commit(self) -> None:
        """Make all packs visible. Durable when this returns."""
        with self._lock:
            self._end()

    def abort(self) -> None:
        """Drop the pack that is open. Harmless after `commit`."""
        with self._lock:
            if self._pack is not None:
                self._pack.abort()
            self._pack = None

    def _end(self) -> None:
        if self._pack is not None:
            self._pack.commit()
            self._pack = None
            self._number += 1


class _OpenPack:
    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._table: list[dict[str, object]] = []
        self.size = 0

    def add(self, topic: str, entry: SegmentEntry, files: PackFiles, content: Mapping[str, Buffer]) -> None:
        start, sizes = self.size, files.all_sizes(entry)
        for suffix, size in sizes.items():
            data = content[suffix]
            if len(data) != size:
                where = f"{suffix} of topic {topic} partition {entry.partition}"
                raise ValueError(f"{where} has {len(data)} bytes, its entry says {size}")
            self._writer.write(data)
            self.size += size
        self._table.append(
            {
                "topic": topic,
                "topicId": entry.topic_id,
                "partition": entry.partition,
                "baseOffset": entry.base_offset,
                "nextOffset": entry.next_offset,
                "position": start,
                "files": sizes,
                "bytes": entry.bytes,
                str(entry.digest.algorithm): entry.digest.hex,
            }
        )

    def commit(self) -> None:
        try:
            self._writer.write(table_out(self._table, self.size))
            self._writer.commit()
        except BaseException:
            self._writer.abort()
            raise

    def abort(self) -> None:
        self._writer.abort()


class HeldObject(ObjectWriter):
    """An object that stays in memory as long as it has less than `below` bytes. Then it is written like any other."""

    def __init__(self, storage: Storage, path: str, below: int) -> None:
        self._storage, self._path, self._below = storage, path, below
        self._held: bytearray | None = bytearray()
        self._object: ObjectWriter | None = None

    @property
    def held(self) -> bytearray | None:
        """All of its bytes; None if they are on their way to an object of their own."""
        return self._held

    def write(self, data: Buffer) -> int:
        if self._held is not None:
            if len(self._held) + len(data) < self._below:
                self._held += data
                return len(data)
            before, self._held = self._held, None
            self._object = self._storage.writer(self._path)
            self._object.write(before)
        assert self._object is not None
        return self._object.write(data)

    def complete(self) -> None:
        if self._object is not None:
            self._object.complete()

    def commit(self) -> None:
        """Make the object visible if it has become one of its own."""
        if self._object is not None:
            self._object.commit()

    def abort(self) -> None:
        self._held = None
        if self._object is not None:
            self._object.abort()
