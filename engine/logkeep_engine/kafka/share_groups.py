"""Start offsets of share groups (KIP-932), read, set and deleted on the engine's own connections.

A share group has no position: its members take records in any order, and the coordinator keeps which of them are done.
The start offset is the one below which all are. So who begins there gets every record that is not done, and some again
that are.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_uvarint
from logkeep_engine.kafka.positions import CommitAnswer, FetchedPosition, FetchedPositions, by_topic

DESCRIBE, ALTER, DELETE = 90, 91, 92
NOT_DONE = 10_000
"""The code of a partition that an answer without an error leaves out. Kafka 4.1 answers so, and sets nothing: its
handler moves the topics of a request into a collection that does not take them (`KafkaApis`)."""
_ID = 16


def _string(text: str) -> bytes:
    raw = text.encode()
    return pack_uvarint(len(raw) + 1) + raw


def _array(items: Sequence[bytes]) -> bytes:
    return pack_uvarint(len(items) + 1) + b"".join(items)


def fetch_starts(group: str) -> Call[FetchedPositions]:
    """Return all start offsets of `group`. A partition that was never read has none."""

    def topic(read: Reader, found: list[FetchedPosition]) -> int:
        name = read.compact_string()
        read.slice(_ID)
        problem = int(Code.NONE)

        def partition() -> None:
            nonlocal problem
            number, offset, epoch, code = read.int32(), read.int64(), read.int32(), read.int16()
            read.compact_string()
            read.tags()
            problem = problem or code
            if offset >= 0:
                found.append(FetchedPosition(name, number, offset, epoch, ""))

        read.compact_array(partition)
        read.tags()
        return problem

    def answer(read: Reader) -> FetchedPositions:
        throttle = read.int32()
        found: list[FetchedPosition] = []
        problem = int(Code.NONE)

        def one() -> None:
            nonlocal problem
            read.compact_string()
            problems = read.compact_array(lambda: topic(read, found))
            problem = read.int16() or next(filter(None, problems), 0)
            read.compact_string()
            read.tags()

        read.compact_array(one)
        return FetchedPositions(problem, throttle, () if problem else tuple(found))

    every_topic = b"\x00"
    return Call(DESCRIBE, 0, (_array([_string(group) + every_topic + NO_TAGS]) + NO_TAGS,), answer, True)


def set_starts(group: str, positions: Sequence[FetchedPosition]) -> Call[CommitAnswer]:
    """Set start offsets of `group`: the coordinator refuses if it has members."""
    rows = [
        _string(topic) + _array([struct.pack(">iq", item.partition, item.offset) + NO_TAGS for item in items]) + NO_TAGS
        for topic, items in by_topic(positions).items()
    ]

    def answer(read: Reader) -> CommitAnswer:
        throttle, code = read.int32(), read.int16()
        read.compact_string()
        codes = {(item.topic, item.partition): code or NOT_DONE for item in positions}

        def topic() -> None:
            name = read.compact_string()
            read.slice(_ID)

            def partition() -> None:
                number, problem = read.int32(), read.int16()
                read.compact_string()
                read.tags()
                codes[name, number] = code or problem

            read.compact_array(partition)
            read.tags()

        read.compact_array(topic)
        return CommitAnswer(codes, throttle)

    return Call(ALTER, 0, (_string(group) + _array(rows) + NO_TAGS,), answer, True)


def delete_starts(group: str, positions: Sequence[FetchedPosition]) -> Call[CommitAnswer]:
    """Delete the start offsets of `group` in all partitions of the topics of `positions`, which is the least that a
    coordinator deletes: it refuses if the group has members."""
    topics = by_topic(positions)
    rows = [_string(topic) + NO_TAGS for topic in topics]

    def answer(read: Reader) -> CommitAnswer:
        throttle, code = read.int32(), read.int16()
        read.compact_string()
        by_name = dict.fromkeys(topics, code or int(Code.UNKNOWN_SERVER_ERROR))

        def topic() -> None:
            name = read.compact_string()
            read.slice(_ID)
            problem = read.int16()
            by_name[name] = code or problem
            read.compact_string()
            read.tags()

        read.compact_array(topic)
        return CommitAnswer({(item.topic, item.partition): by_name[item.topic] for item in positions}, throttle)

    return Call(DELETE, 0, (_string(group) + _array(rows) + NO_TAGS,), answer, True)
