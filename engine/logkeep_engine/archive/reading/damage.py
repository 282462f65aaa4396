"""Damage of an archive: bytes that are not as they were written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.ranges import Range
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.storage import Storage

_HINT = "Restore the object from a copy of the archive. With onDamagedArchive: Skip a restore continues without it."


@dataclass(frozen=True, slots=True)
class Damage:
    """An `object` of the archive is not what the catalog says, at `offset`.

    A reader that continues after damage hands it out between what is whole. Then `lost` are the offsets [start, end)
    that the reader cannot read; None: nothing is lost. `topic` "" and `partition` -1: the catalog itself is damaged.
    """

    object: str
    topic: str
    partition: int
    offset: int | None
    what: str
    lost: Range | None = None

    def __str__(self) -> str:
        where = f" (topic {self.topic} partition {self.partition}" if self.topic else ""
        if self.offset is not None:
            where += f" offset {self.offset}" if where else f" (offset {self.offset}"
        return f"{self.object}{where}{')' if where else ''}: {self.what}"

    def to_json(self) -> dict[str, Any]:
        """Return the damage as reports show it."""
        document = asdict(self)
        del document["lost"]
        return document

    def error(self, hint: str = _HINT) -> ArchiveDamaged:
        """Return the error of a reader that does not continue after this damage."""
        return ArchiveDamaged(f"{self}.", hint=hint)


def damage_of(
    storage: Storage, topic: str, entry: SegmentEntry, path: str, what: str, offset: int | None = None
) -> Damage:
    """Return a damage of the object `path` of a segment, at `offset` or at its first."""
    at = entry.base_offset if offset is None else offset
    return Damage(f"{storage.uri}/{path}", topic, entry.partition, at, what)


OnDamage = Callable[[Damage], None]
"""A reader calls this with each damage that it meets, and continues after it."""
