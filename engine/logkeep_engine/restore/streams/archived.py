"""An archived partition, as a restore reads it: all of its segments, without what is damaged and may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import open_damaged, open_partition
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.restore.streams.left_out import AbortedRecords
from logkeep_engine.restore.streams.records import Batching
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """An archived partition, as much of it as a restore reads. Pickles without secrets.

    `kept` are the ranges of offsets that the segments stand for. The user allows to continue after the damage of
    `survey`. With `clip` only what is in it is restored. With `batching` the archive holds records, which become
    batches of that size.
    """

    storage: Storage
    topic: str
    segments: Sequence[SegmentEntry]
    kept: Sequence[Range] = ()
    topic_id: str = ""
    partition: int = 0
    survey: DamageSurvey | None = None
    clip: Clip | None = None
    batching: Batching | None = None

    def __str__(self) -> str:
        return f"archived topic {self.topic!r} partition {self.partition}"

    @property
    def key(self) -> Partition:
        return self.topic_id, self.partition

    @property
    def bytes(self) -> int:
        """The bytes of the archived segments."""
        return sum(segment.bytes for segment in self.segments)

    @property
    def damaged(self) -> frozenset[int]:
        """The base offsets of the segments that are damaged."""
        return frozenset(self.survey.damaged if self.survey is not None else ())

    def aborted(self) -> Sequence[AbortedTxn]:
        """Return the aborted transactions, whose records are left out. Raises ArchiveDamaged."""
        if self.survey is not None and self.survey.aborted is not None:
            return self.survey.aborted
        return list(open_partition(self.storage, self.topic, self.segments).transaction_index())

    def stretches(self, segment: SegmentEntry, counted: AbortedRecords | None = None) -> Iterator[memoryview]:
        """Yield views on whole batches of a segment that lie back to back, without what the survey has found damaged.
        What was aborted of them is `counted`. Raises ArchiveDamaged."""
        if self.survey is not None and segment.base_offset in self.survey.damaged:
            yield from self._salvaged(segment, self.survey, counted)
            return
        for stretch, headers in open_partition(self.storage, self.topic, (segment,)).batches():
            if counted is not None:
                counted.note(headers)
            yield stretch

    def _salvaged(
        self, segment: SegmentEntry, survey: DamageSurvey, counted: AbortedRecords | None
    ) -> Iterator[memoryview]:
        known = {(item.start, item.end) for item in survey.lost}
        for item in open_damaged(self.storage, self.topic, (segment,)).batches():
            if not isinstance(item, Damage):
                stretch, headers = item
                if counted is not None:
                    counted.note(headers)
                for at, header in headers:
                    yield memoryview(bytes(stretch[at : at + header.size]))
            elif item.lost is not None and item.lost not in known:
                raise ArchiveDamaged(
                    f"{self.log_path(segment)}: offsets {item.lost[0]} to {item.lost[1] - 1} could be read when the "
                    f"restore was planned: {item.what}",
                    hint="The archive was damaged further in the meantime: start a new restore.",
                )

    def log_path(self, segment: SegmentEntry) -> str:
        """Return where the log of a segment lies, for messages."""
        return f"{self.storage.uri}/{segment.stem(self.topic)}{segment.log_suffix}"
