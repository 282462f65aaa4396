"""Writing segments of batches into the archive: the log as it is, or compressed as a whole, and its indexes.

segment = LogSegment(storage, Compression.ZSTD, topic, topic_id, partition, base_offset, epoch, attempt)
segment.builder.append(data, headers)
entry = segment.finish()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry, SnapshotFiles
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower
from logkeep_engine.archive.writing.packs import HeldObject, TaskPacks
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, Compression, DigestAlgorithm
from logkeep_engine.contract.model import replace
from logkeep_engine.digest import Hasher
from logkeep_engine.log.seekable import SeekableWriter
from logkeep_engine.log.segment import AbortedTxn, SegmentBuilder
from logkeep_engine.storage import Buffer, ObjectWriter, Storage


class LogWriter(ObjectWriter):
    """The `.log` object of a segment; `stored_bytes` is what its catalog entry says of the object. A log of less than
    `held_below` bytes stays in memory."""

    suffix = names.LOG

    def __init__(self, storage: Storage, stem: str, held_below: int = 0) -> None:
        path = stem + self.suffix
        self._object: ObjectWriter = HeldObject(storage, path, held_below) if held_below else storage.writer(path)

    @property
    def stored_bytes(self) -> int:
        return 0

    def held(self) -> bytearray | None:
        """Return the whole content, if it has stayed in memory: nothing is taken any more. None if it becomes an object
        of its own."""
        return self._object.held if isinstance(self._object, HeldObject) else None

    def write(self, data: Buffer) -> int:
        """Append whole batches."""
        return self._object.write(data)

    def complete(self) -> None:
        self._object.complete()

    def commit(self) -> None:
        self._object.commit()

    def abort(self) -> None:
        self._object.abort()


class SnapshotWriter(LogWriter):
    """The `.checkpoint` object of a part of a snapshot."""

    suffix = names.CHECKPOINT


class ZstdLogWriter(LogWriter):
    """The `.log.zst` object of a segment, compressed in threads of its own while the caller gets the next batches."""

    suffix = names.LOG_ZST

    def __init__(self, storage: Storage, stem: str, held_below: int = 0) -> None:
        super().__init__(storage, stem, held_below)
        self._frames = SeekableWriter(self._object.write)
        self._stored_bytes = 0

    @property
    def stored_bytes(self) -> int:
        """Size of the object; 0 before `held` and `commit`."""
        return self._stored_bytes

    def held(self) -> bytearray | None:
        if isinstance(self._object, HeldObject) and self._object.held is not None:
            self._finish()
        return super().held()

    def write(self, data: Buffer) -> int:
        return self._frames.write(data)

    def complete(self) -> None:
        """Nothing begins before the last frame is written, which `commit` waits for."""

    def commit(self) -> None:
        if not self._stored_bytes:
            self._finish()
        self._object.commit()

    def _finish(self) -> None:
        """Write the last frames and the seek table."""
        try:
            self._stored_bytes = self._frames.finish()
        finally:
            self._frames.close()

    def abort(self) -> None:
        self._frames.close()
        self._object.abort()


def log_writer(storage: Storage, stem: str, compression: Compression, held_below: int = 0) -> LogWriter:
    """Open the object of the log at `stem`."""
    return (ZstdLogWriter if compression is Compression.ZSTD else LogWriter)(storage, stem, held_below)


class _Making:
    """A log in the making: the batches that `builder` is given. Nothing of it is visible before it is finished."""

    def __init__(self, storage: Storage, writer: LogWriter, base_offset: int, digest: DigestAlgorithm) -> None:
        self._storage = storage
        self._writer = writer
        self._hasher = Hasher(digest)
        self.builder = SegmentBuilder(base_offset, self._write)

    def _write(self, data: Buffer) -> None:
        self._hasher.update(data)
        self._writer.write(data)

    def abort(self) -> None:
        """Drop the log."""
        self._writer.abort()


@dataclass(frozen=True, slots=True)
class Packing:
    """Segments whose log has less than `below` bytes as it is stored go into these `packs`."""

    packs: TaskPacks
    below: int


class LogSegment(_Making):
    """A segment in the making: with its own objects, or, with `packing` and if it stays small, in a pack."""

    def __init__(
        self,
        storage: Storage,
        compression: Compression,
        topic: str,
        topic_id: str,
        partition: int,
        base_offset: int,
        epoch: int,
        attempt: int,
        digest: DigestAlgorithm = DEFAULT_DIGEST,
        packing: Packing | None = None,
    ) -> None:
        self._stem = names.segment_stem(topic, topic_id, partition, base_offset, epoch, attempt)
        writer = log_writer(storage, self._stem, compression, 0 if packing is None else packing.below)
        super().__init__(storage, writer, base_offset, digest)
        self._topic, self._packing = topic, packing
        self._entry = partial(SegmentEntry.of, topic_id=topic_id, partition=partition, epoch=epoch, attempt=attempt)
        self.transactions = SegmentFollower(base_offset, epoch)

    def finish(self, aborted: Sequence[AbortedTxn] | None = None) -> SegmentEntry:
        """Make the objects visible, indexes first: a `.log` that is there has its indexes next to it. In a pack they
        are visible once that is committed.

        `aborted`: the entries of its transaction index, in the order of their ends, if all transactional batches were
        shown to `transactions`.
        """
        for transaction in aborted or ():
            self.builder.add_aborted(transaction)
        summary = self.builder.finish()
        digest = self._hasher.digest()
        entry = self._entry(summary, digest, stored_bytes=0)
        self._writer.complete()
        beside: dict[str, bytes] = {}
        if summary.transactional and aborted is not None:
            found = self.transactions.finish(summary.next_offset, aborted)
            beside[names.TXNPARTS] = found.to_json(entry)
        beside |= {names.INDEX: summary.index, names.TIMEINDEX: summary.timeindex}
        if summary.txnindex:
            beside[names.TXNINDEX] = summary.txnindex
        if self._packing is not None and (log := self._writer.held()) is not None:
            entry = self._entry(summary, digest, stored_bytes=self._writer.stored_bytes)
            return self._packing.packs.take(self._topic, entry, log, beside)
        self._storage.put_all({self._stem + suffix: data for suffix, data in beside.items()})
        self._writer.commit()
        return self._entry(summary, digest, stored_bytes=self._writer.stored_bytes)


@dataclass(frozen=True, slots=True)
class SnapshotPlace:
    """The place of a snapshot: its partition, the run's epoch and the task's attempt that write it, its end, and the
    leader epoch of the last batch below that."""

    topic: str
    topic_id: str
    partition: int
    epoch: int
    attempt: int
    end: int
    leader_epoch: int

    def stem(self, part: int) -> str:
        """Return the path of a part without the suffix. Raises ValueError as `names.snapshot_name`."""
        folder = names.snapshots_folder(self.topic, self.topic_id, self.partition, self.epoch, self.attempt)
        return folder + names.snapshot_name(self.end, self.leader_epoch, part)


class SnapshotSegment(_Making):
    """A part of a snapshot in the making. The caller gives it the header and the footer."""

    def __init__(
        self, storage: Storage, place: SnapshotPlace, part: int, base_offset: int, digest: DigestAlgorithm
    ) -> None:
        self._place = place
        self._part = part
        self._stem = place.stem(part)
        super().__init__(storage, SnapshotWriter(storage, self._stem), base_offset, digest)

    def finish(self) -> SegmentEntry:
        """Make the objects visible, the index first."""
        place, summary = self._place, self.builder.finish()
        entry = SegmentEntry.of(
            summary,
            self._hasher.digest(),
            topic_id=place.topic_id,
            partition=place.partition,
            epoch=place.epoch,
            attempt=place.attempt,
        )
        self._writer.complete()
        self._storage.put_all({self._stem + names.INDEX: summary.index})
        self._writer.commit()
        return replace(entry, files=SnapshotFiles(len(summary.index), place.end, place.leader_epoch, self._part))
