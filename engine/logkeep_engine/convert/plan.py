"""Which part of a source a task converts. Pure, and stored before the first task, so that a run that starts again
does the same.

A piece is a range of offsets of one partition that begins where coverage or a segment begins; its segments are those
whose base offset lies in it. Ranges that the target has already are left out, so that converting again adds what the
source has gained.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from logkeep_engine.archive import wire
from logkeep_engine.archive.model import ArchiveState, Gap, GroupEntry, Partition, Range, TopicEntry
from logkeep_engine.convert.source import Source, SourceSegment
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch

PLAN_FILE = "convert-plan.json"
PIECE_BYTES = 128 << 20

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets [start, end) of a partition, and how many bytes of segments they are in the source."""

    number: int
    topic_id: str
    partition: int
    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConvertPlan:
    """What a run does. `options` are those that decide over the bytes that are written, as text."""

    run_id: str
    source: str
    target: str
    options: Mapping[str, str]
    topics: tuple[TopicEntry, ...]
    gaps: tuple[Gap, ...]
    groups: tuple[GroupEntry, ...]
    pieces: tuple[Piece, ...]

    def to_json(self) -> bytes:
        """The document stored in the target."""
        document = {
            "format": _FORMAT,
            "runId": self.run_id,
            "source": self.source,
            "target": self.target,
            "options": dict(self.options),
            "topics": [wire.topic_out(topic) for topic in self.topics],
            "gaps": [asdict(gap) for gap in self.gaps],
            "groups": wire.table_of(wire.GROUP_COLUMNS, map(wire.group_row, self.groups)),
            "pieces": [[piece.topic_id, piece.partition, piece.start, piece.end, piece.bytes] for piece in self.pieces],
        }
        return wire.dumps(document)

    @classmethod
    def from_json(cls, data: bytes, name: str) -> ConvertPlan:
        """Raises ArchiveDamaged for what is no plan; `name` is the object's."""
        try:
            document: dict[str, Any] = json.loads(data)
            if document["format"] != _FORMAT:
                raise ArchiveMismatch(f"{name}: plan format {document['format']!r}, not {_FORMAT}.", hint=wire.NEWER)
            return cls(
                run_id=document["runId"],
                source=document["source"],
                target=document["target"],
                options=document["options"],
                topics=tuple(map(wire.topic_in, document["topics"])),
                gaps=tuple(Gap(**gap) for gap in document["gaps"]),
                groups=tuple(GroupEntry(*row) for row in document["groups"]["rows"]),
                pieces=tuple(Piece(number, *row) for number, row in enumerate(document["pieces"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveDamaged(
                f"{name} is no plan of a conversion: {error}.", hint="Start a run with another --run-id."
            ) from error


def make_plan(
    run_id: str,
    source: Source,
    target: str,
    options: Mapping[str, str],
    state: ArchiveState,
    piece_bytes: int = PIECE_BYTES,
) -> ConvertPlan:
    """All that the target at `state` lacks of `source`."""
    pieces: list[Piece] = []
    for key in sorted(source.coverage):
        for covered in source.coverage[key]:
            for start, end in state.uncovered(*key, *covered):
                for part in cut(source.segments.get(key, ()), start, end, piece_bytes):
                    pieces.append(Piece(len(pieces), *key, *part))
    gaps = [
        gap
        for gap in source.gaps
        if state.uncovered(gap.topic_id, gap.partition, gap.start, gap.end) == [(gap.start, gap.end)]
    ]
    return ConvertPlan(
        run_id, source.identity, target, dict(options), source.topics, tuple(gaps), source.groups, tuple(pieces)
    )


def cut(segments: Iterable[SourceSegment], start: int, end: int, piece_bytes: int) -> list[tuple[int, int, int]]:
    """(start, end, bytes) of the pieces of [start, end): whole segments, until they are `piece_bytes` together."""
    pieces: list[tuple[int, int, int]] = []
    begin, size = start, 0
    for segment in owned(segments, start, end):
        if size >= piece_bytes:
            pieces.append((begin, segment.base_offset, size))
            begin, size = segment.base_offset, 0
        size += segment.bytes
    pieces.append((begin, end, size))
    return pieces


def owned(segments: Iterable[SourceSegment], start: int, end: int) -> Iterator[SourceSegment]:
    """The segments that begin in [start, end)."""
    for segment in segments:
        if segment.base_offset >= end:
            return
        if segment.base_offset >= start:
            yield segment


def segments_of(source: Source, pieces: Sequence[Piece]) -> dict[int, tuple[SourceSegment, ...]]:
    """The segments of each piece by its number, each partition of the source read once."""
    found: dict[int, tuple[SourceSegment, ...]] = {}
    by_partition: dict[Partition, list[Piece]] = {}
    for piece in pieces:
        by_partition.setdefault((piece.topic_id, piece.partition), []).append(piece)
    for key, parts in by_partition.items():
        segments = list(source.segments.get(key, ()))
        at = 0
        for piece in sorted(parts, key=lambda part: part.start):
            while at < len(segments) and segments[at].base_offset < piece.start:
                at += 1
            mine = list(owned(segments[at:], piece.start, piece.end))
            at += len(mine)
            found[piece.number] = tuple(mine)
    return found


def open_pieces(plan: ConvertPlan, state: ArchiveState) -> list[Piece]:
    """The pieces of which the target has nothing yet: a piece is committed whole."""
    return [piece for piece in plan.pieces if state.uncovered(piece.topic_id, piece.partition, piece.start, piece.end)]


def check_covers(source: Source, plan: ConvertPlan) -> None:
    """Raises ArchiveMismatch if the source has lost something of what is planned, since a run was begun."""
    for piece in plan.pieces:
        ranges: Sequence[Range] = source.coverage.get((piece.topic_id, piece.partition), ())
        if not any(start <= piece.start and piece.end <= end for start, end in ranges):
            name = next(topic.name for topic in plan.topics if topic.topic_id == piece.topic_id)
            raise ArchiveMismatch(
                f"The source no longer holds offsets {piece.start} to {piece.end - 1} of topic {name!r} partition "
                f"{piece.partition}, which run {plan.run_id} was begun to convert.",
                hint="Retention may have removed them: convert with a new --run-id into a new folder.",
            )
