"""Files of archived segments, be they objects of their own or parts of a pack, for tests that look at them or hurt
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import FilePlace, SegmentEntry
from logkeep_engine.storage import Storage, open_uri


@dataclass(frozen=True)
class ArchivedFile:
    """One file of a segment."""

    storage: Storage
    place: FilePlace
    name: str
    """The last part of the name that messages have of it."""

    @classmethod
    def of(cls, storage: Storage, topic: str, entry: SegmentEntry, suffix: str = "") -> ArchivedFile:
        suffix = suffix or entry.log_suffix
        return cls(storage, entry.place(topic, suffix), (entry.stem(topic) + suffix).rpartition("/")[2])

    def read_bytes(self) -> bytes:
        return self.storage.read_range(self.place.path, self.place.start, self.place.end)

    def write_bytes(self, data: bytes | bytearray) -> None:
        """Put other bytes there. Where they are fewer, all that lay after them in the object is gone, too."""
        whole = self.storage.read(self.place.path)
        rest = whole[self.place.end :] if len(data) == self.place.size else b""
        self.storage.put(self.place.path, whole[: self.place.start] + bytes(data) + rest)

    def unlink(self) -> None:
        """Delete the object that it lies in."""
        self.storage.delete([self.place.path])


def files_of(root: Path, topic: str, partition: int = 0, suffix: str = "") -> list[ArchivedFile]:
    """The logs of a partition in the archive in a folder, or its files with this suffix."""
    storage = open_uri(root.as_uri())
    state = Archive.open(storage).load()
    ids = [entry.topic_id for entry in state.topics.values() if entry.name == topic]
    entries = [entry for topic_id in ids for entry in state.segments.get((topic_id, partition), ())]
    wanted = (entry for entry in entries if suffix != names.TXNINDEX or entry.files.txnindex_bytes)
    return [ArchivedFile.of(storage, topic, entry, suffix) for entry in wanted]
