"""Segments of an archive as files that a broker, and Kafka's own tools, read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from logkeep_engine.archive import names
from logkeep_engine.archive.reading.partition import log_bytes
from logkeep_engine.errors import Refused
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.toolbox.segment import ToolboxSegment
from logkeep_engine.toolbox.source import LogSource


@dataclass(frozen=True, slots=True)
class ExtractedFile:
    """A file that was written, and the `damage` of what it was made of."""

    path: Path
    bytes: int
    damage: tuple[str, ...] = ()


def extract(source: LogSource, folder: Path) -> Iterator[ExtractedFile]:
    """Write the segments of an archive below `folder`, one partition after the other. Raises Refused for a source that
    is not an archive of batches, and for a file that is there already."""
    wanted = [segment for segment in source.segments if segment.has_batches and not segment.is_checkpoint]
    if source.archive is None or (source.segments and not wanted):
        raise Refused(
            "only segments of an archive of format Kafka can be written as a broker's files.",
            hint="For other formats: `logkeep convert --format Kafka` makes such an archive.",
        )
    names_of = {segment.topic_id: segment.topic for segment in wanted}
    several = {topic for topic, count in Counter(names_of.values()).items() if count > 1}
    for segment in wanted:
        below = folder / segment.topic_id if segment.topic in several else folder
        place = below / f"{segment.topic}-{segment.partition}"
        place.mkdir(parents=True, exist_ok=True)
        stem = f"{segment.base_offset:020d}"
        for suffix in (names.INDEX, names.TIMEINDEX, names.TXNINDEX):
            data = segment.beside(suffix)
            if data:
                yield _written(place / (stem + suffix), data)
        yield _log(place / (stem + names.LOG), segment)


def _written(path: Path, data: bytes) -> ExtractedFile:
    _refuse_existing(path)
    path.write_bytes(data)
    return ExtractedFile(path, len(data))


def _log(path: Path, segment: ToolboxSegment) -> ExtractedFile:
    _refuse_existing(path)
    assert segment.entry is not None
    damage: list[str] = []
    size = 0
    with path.open("wb") as file:
        for item in log_bytes(segment.storage, segment.topic, segment.entry):
            if isinstance(item, DamagedBytes):
                damage.append(f"{segment.name}: {item.what}")
            else:
                size += file.write(item)
    if size < segment.entry.bytes and not damage:
        damage.append(f"{segment.name}: {size} bytes, the catalog says {segment.entry.bytes}")
    return ExtractedFile(path, size, tuple(damage))


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise Refused(f"{path} is there already.", hint="Name a new folder.")
