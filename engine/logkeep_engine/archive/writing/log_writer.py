"""Writing segments of batches into the archive: the log as it is, or compressed as a whole, and its indexes.

segment = LogSegment(storage, Compression.ZSTD, topic, topic_id, partition, base_offset, epoch, attempt)
segment.builder.append(data, headers)
entry = segment.finish()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry, SnapshotFiles
from logkeep_engine.archive.catalog.segment_transactions import SegmentFollower
from logkeep_engine.contract.spec import DEFAULT_DIGEST, Compression, DigestAlgorithm
from logkeep_engine.digest import Hasher
from logkeep_engine.log.seekable import SeekableWriter
from logkeep_engine.log.segment import AbortedTxn, SegmentBuilder
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

    def complete(self) -> None:
        """Nothing begins before the last frame is written, which `commit` waits for."""

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
    """Open the object of the log at `stem`."""
    return (ZstdLogWriter if compression is Compression.ZSTD else LogWriter)(storage, stem)


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


class LogSegment(_Making):
    """A segment in the making."""

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
    ) -> None:
        self._stem = names.segment_stem(topic, topic_id, partition, base_offset, epoch, attempt)
        super().__init__(storage, log_writer(storage, self._stem, compression), base_offset, digest)
        self._entry = partial(SegmentEntry.of, topic_id=topic_id, partition=partition, epoch=epoch, attempt=attempt)
        self.transactions = SegmentFollower(base_offset, epoch)

    def finish(self, aborted: Sequence[AbortedTxn] | None = None) -> SegmentEntry:
        """Make the objects visible, indexes first: a `.log` that is there has its indexes beside it.

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
        """The path of a part without the suffix. Raises ValueError as `names.snapshot_name`."""
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
