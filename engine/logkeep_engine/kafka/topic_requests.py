"""Requests that create and delete topics.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from logkeep_engine.kafka.configs import TOPIC, OrderResults, Resource
from logkeep_engine.kafka.encoding import INT32, NO_TAGS, Call, Reader, pack_array, pack_string, pack_uvarint
from logkeep_engine.kafka.protocol import parse_topic_id
from logkeep_engine.kafka.queries import printed_topic_id

CREATE, DELETE = 19, 20


@dataclass(frozen=True, slots=True)
class DeletedTopics:
    """The protocol's error code for each topic id that was to be deleted."""

    throttle_ms: int
    codes: dict[str, int]


def create_topics(
    wanted: Sequence[tuple[str, int, int, Mapping[str, str]]], *, timeout_ms: int, only_check: bool = False
) -> Call[OrderResults]:
    """Create topics: name, partitions, replicas (-1: the broker's default) and configuration of each. Needs the ACL
    CREATE on the cluster or the topics. Only the controller of a cluster with ZooKeeper does it. `only_check`: nothing
    is created, and the answer is the same."""

    def row(name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> bytes:
        assigned = pack_array([])
        values = pack_array(pack_string(key) + pack_string(value) for key, value in configs.items())
        return pack_string(name) + struct.pack(">ih", partitions, replicas) + assigned + values

    def one(read: Reader) -> tuple[Resource, tuple[int, str]]:
        return (TOPIC, read.string()), (read.int16(), read.string())

    def answer(read: Reader) -> OrderResults:
        return OrderResults(read.int32(), dict(read.array(lambda: one(read))))

    body = pack_array(row(*item) for item in wanted) + INT32.pack(timeout_ms) + bytes([only_check])
    return Call(CREATE, 4, (body,), answer)  # the first version with the brokers' default of replicas (KIP-464)


def delete_topics(ids: Sequence[str], *, timeout_ms: int) -> Call[DeletedTopics]:
    """Delete the topics that have these ids, and no other of the same name. Needs the ACL DELETE on the topics."""
    # No name: the id alone says which topic goes.
    items = b"".join(b"\x00" + parse_topic_id(wanted).bytes + NO_TAGS for wanted in ids)
    body = pack_uvarint(len(ids) + 1) + items + INT32.pack(timeout_ms) + NO_TAGS

    def one(read: Reader) -> tuple[str, int]:
        read.compact_string()
        topic_id, code = read.slice(16).tobytes(), read.int16()
        read.compact_string()
        read.tags()
        return printed_topic_id(topic_id), code

    def answer(read: Reader) -> DeletedTopics:
        throttle = read.int32()
        return DeletedTopics(throttle, dict(read.compact_array(lambda: one(read))))

    return Call(DELETE, 6, (body,), answer, True)  # the first version that takes ids (KIP-516)
