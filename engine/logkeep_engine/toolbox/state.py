"""The records of Kafka's coordinators that lie in an archive or in log folders, decoded.

for entry in history(source): ...           # every record, in order
for record in last_state(source): ...       # what is in force at the end
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from logkeep_engine.errors import Refused, UndecodableRecord
from logkeep_engine.log.damage import DamagedBytes
from logkeep_engine.toolbox.files import display
from logkeep_engine.toolbox.offsets import StateRecord, StateTopic, decode_state_record, state_of, state_topic
from logkeep_engine.toolbox.source import LogSelection, LogSource, open_source
from logkeep_engine.toolbox.transactions import outcomes


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A record where it was found. `problem`: it could not be decoded, or read; then `record` is None.

    `aborted`: it was written in a transaction that was aborted; `undecided`: in one whose end is not there. Neither is
    in force.
    """

    topic: StateTopic
    partition: int
    offset: int
    timestamp: int | None
    aborted: bool
    record: StateRecord | None
    problem: str = ""
    undecided: bool = False

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "topic": self.topic.value,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "aborted": self.aborted,
            "undecided": self.undecided,
        }
        return document | (self.record.to_json() if self.record is not None else {"problem": self.problem})


def open_state(
    where: str, chosen: StateTopic | None = None, *, endpoint: str | None = None, region: str | None = None
) -> list[tuple[StateTopic, LogSource]]:
    """Return the coordinators' topics at `where`, or `chosen` only. A log whose topic its folder does not name is taken
    to be of `chosen`. If a topic was deleted and made again, it is the one that a restore would take. Raises Refused if
    there is none, or a partition lies in two folders.
    """
    whole = open_source(where, endpoint=endpoint, region=region).in_place().taken()
    found = []
    for topic in StateTopic if chosen is None else (chosen,):
        selection = LogSelection(topics=(topic.value,))
        names = selection.topics if chosen is None else (*selection.topics, "")
        segments = tuple(segment for segment in whole.segments if segment.topic in names)
        topics = tuple(entry for entry in whole.topics if entry.name in names)
        if segments or topics:
            found.append((topic, replace(whole, segments=segments, topics=topics)))
    if not found:
        wanted = chosen.value if chosen is not None else " or ".join(StateTopic)
        there = {segment.topic for segment in whole.segments} | {entry.name for entry in whole.topics}
        others = sorted(name for name in there if state_topic(name) is None)
        raise Refused(
            f"{where}: there is no topic {wanted}.",
            hint=f"There are: {', '.join(name or '(a log without a name)' for name in others[:20]) or 'no others'}. "
            "A backup holds internal topics with spec.topics.internal: true; --as says what a log without a name is.",
        )
    for topic, source in found:
        _check_once(topic, source)
    return found


def _check_once(topic: StateTopic, source: LogSource) -> None:
    """Refuse a partition in two folders: its last records are in force, and it is unknown which of them is later."""
    folders: dict[int, str] = {}
    for log in source.partitions():
        other = folders.setdefault(log.partition, log.folder)
        if log.topic and other != log.folder:
            both = " and ".join(display(source.storage, folder) for folder in (other, log.folder))
            raise Refused(f"partition {log.partition} of topic {topic} is in {both}.", hint="Name one of them.")


def history(source: LogSource, topic: StateTopic) -> Iterator[StateEntry]:
    """Yield every record of the topic, by partition and offset."""
    for (_, _, partition, _), segments in source.partitions().items():
        ended = outcomes(segments, source.state)
        for segment in segments:
            damages: list[DamagedBytes] = []
            for header, records in segment.found(damages.append):
                aborted = header is not None and header in ended.aborted
                undecided = header is not None and not aborted and header in ended.undecided
                for record in records:
                    try:
                        decoded, problem = decode_state_record(topic, record.key, record.value), ""
                    except UndecodableRecord as error:
                        decoded, problem = None, error.message
                    place = (topic, partition, record.offset, record.timestamp)
                    yield StateEntry(*place, aborted, decoded, problem, undecided)
                while damages:
                    yield _damaged(topic, partition, damages.pop(0))
            for damage in damages:
                yield _damaged(topic, partition, damage)


def last_state(entries: Iterator[StateEntry], problems: list[StateEntry]) -> Iterator[StateRecord]:
    """Yield the records in force after all entries. Entries that could not be read are put into `problems`."""

    def decoded() -> Iterator[StateRecord]:
        for entry in entries:
            if entry.record is None:
                problems.append(entry)
            elif not entry.aborted and not entry.undecided:
                yield entry.record

    yield from state_of(decoded())


def _damaged(topic: StateTopic, partition: int, damage: DamagedBytes) -> StateEntry:
    return StateEntry(topic, partition, damage.offset, None, False, None, f"damage: {damage.what}")
