"""The entries of offset and time indexes, compared with the batches of their log."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from logkeep_engine.archive import names
from logkeep_engine.errors import CorruptIndex
from logkeep_engine.log.segment import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    OffsetEntry,
    TimeEntry,
    read_offset_index,
    read_time_index,
    without_preallocated,
)
from logkeep_engine.toolbox.scan import Batch
from logkeep_engine.toolbox.segment import ToolboxSegment

ENTRY_BYTES = {names.INDEX: OFFSET_ENTRY_BYTES, names.TIMEINDEX: TIME_ENTRY_BYTES}


class EntryCheck:
    """Compares the entries of offset and time index with the batches one after another, like Kafka's dump tool."""

    def __init__(self, segment: ToolboxSegment, found: Mapping[str, bytes | None]) -> None:
        self.faults: dict[str, list[str]] = {suffix: [] for suffix in (names.INDEX, names.TIMEINDEX)}
        self._base = segment.base_offset
        self._offsets: list[OffsetEntry] = []
        self._times: list[TimeEntry] = []
        self._at_offset = self._at_time = 0
        self._latest = -1
        for suffix, data in found.items():
            if suffix in self.faults and data is not None:
                self._read(suffix, without_preallocated(data, ENTRY_BYTES[suffix]))

    def note(self, batch: Batch) -> None:
        header = batch.header
        while self._at_offset < len(self._offsets):
            entry = self._offsets[self._at_offset]
            if entry.position > batch.position:
                break
            self._at_offset += 1
            if entry.position < batch.position:
                self._add(names.INDEX, f"position {entry.position} of offset {entry.offset} is inside a batch")
            elif entry.offset != header.last_offset:
                what = (
                    f"offset {entry.offset} at position {entry.position}, where a batch ends with {header.last_offset}"
                )
                self._add(names.INDEX, what)
        self._latest = max(self._latest, header.max_timestamp)
        while self._at_time < len(self._times) and self._times[self._at_time].offset <= header.last_offset:
            time = self._times[self._at_time]
            self._at_time += 1
            if time.offset < header.base_offset:
                self._add(names.TIMEINDEX, f"offset {time.offset} of timestamp {time.timestamp} is in no batch")
            elif time.timestamp != header.max_timestamp:
                what = f"timestamp {time.timestamp} of offset {time.offset}, where a batch has {header.max_timestamp}"
                self._add(names.TIMEINDEX, what)
            elif time.timestamp < self._latest:
                what = f"timestamp {time.timestamp} of offset {time.offset}, before which there is {self._latest}"
                self._add(names.TIMEINDEX, what)

    def finish(self) -> None:
        for entry in self._offsets[self._at_offset :]:
            self._add(names.INDEX, f"position {entry.position} of offset {entry.offset} is past the end of the log")
        for time in self._times[self._at_time :]:
            self._add(names.TIMEINDEX, f"offset {time.offset} of timestamp {time.timestamp} is past the end of the log")

    def _add(self, suffix: str, what: str) -> None:
        self.faults[suffix].append(what)

    def _read(self, suffix: str, data: bytes) -> None:
        try:
            if suffix == names.INDEX:
                self._offsets = read_offset_index(data, self._base)
                rows = [(entry.offset, entry.position) for entry in self._offsets]
            else:
                self._times = read_time_index(data, self._base)
                rows = [(time.timestamp, time.offset) for time in self._times]
        except CorruptIndex as error:
            self._add(suffix, error.message.rstrip("."))
            return
        numbers = ("offset", "position") if suffix == names.INDEX else ("timestamp", "offset")
        lowest = min((row[0 if suffix == names.INDEX else 1] for row in rows), default=self._base)
        if lowest < self._base:
            self._add(suffix, f"offset {lowest} is below the segment's base offset {self._base}")
        for before, after in pairwise(rows):
            for which, name in enumerate(numbers):
                if after[which] <= before[which]:
                    self._add(suffix, f"{name} {after[which]} follows {before[which]}; it must rise")
