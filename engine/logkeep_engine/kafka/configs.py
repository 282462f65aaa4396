"""Requests about configurations: of topics, brokers, groups and client metrics.

Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from logkeep_engine.kafka.encoding import NO_TAGS, Call, Reader, pack_array, pack_string, pack_uvarint

TOPIC, BROKER, CLIENT_METRICS, GROUP = "TOPIC", "BROKER", "CLIENT_METRICS", "GROUP"
OF_METRICS, OF_ALL = 0, 1
"""Versions of the request to list resources."""

LIST, DESCRIBE, ALTER = 74, 32, 44
Resource = tuple[str, str]
"""The kind of the resource and its name."""

_TYPES = {TOPIC: 2, BROKER: 4, CLIENT_METRICS: 16, GROUP: 32}
_NAMES = {number: name for name, number in _TYPES.items()}
_LISTED = (CLIENT_METRICS, GROUP)
_OWN = {TOPIC: 1, CLIENT_METRICS: 7, GROUP: 8}
"""The number of the source of a value that was set on the resource itself."""
_OF_BROKERS = frozenset({2, 3, 4})  # dynamic of one broker, dynamic of all, in the file of the broker
_SET, _DELETE = 0, 1
_ENTRY = struct.Struct(">bbb")  # read-only, source, secret


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A key as a broker has it. `value` is None for a secret. `own`: it was set on the resource itself.
    `of_brokers`: it was set for the brokers."""

    value: str | None
    own: bool = False
    of_brokers: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class ListedConfigs:
    """The resources with a configuration, or the protocol's error code."""

    throttle_ms: int
    code: int
    resources: tuple[Resource, ...]


@dataclass(frozen=True, slots=True)
class DescribedConfigs:
    """The configuration of each resource by key, and the codes and reasons of those that are not reported."""

    throttle_ms: int
    entries: Mapping[Resource, Mapping[str, ConfigEntry]]
    refused: Mapping[Resource, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class OrderResults:
    """The code and the reason of each resource, or topic, of an order."""

    throttle_ms: int
    results: Mapping[Resource, tuple[int, str]]


def list_resources(version: int = OF_ALL) -> Call[ListedConfigs]:
    """Return all groups and client metrics that have a configuration; in version 0 client metrics only. Needs the ACL
    DESCRIBE_CONFIGS on the cluster."""

    def resource(read: Reader) -> Resource:
        name = read.compact_string()
        kind = read.int8() if version >= OF_ALL else _TYPES[CLIENT_METRICS]
        read.tags()
        return _NAMES.get(kind, str(kind)), name

    def answer(read: Reader) -> ListedConfigs:
        throttle, code = read.int32(), read.int16()
        return ListedConfigs(throttle, code, tuple(read.compact_array(lambda: resource(read))))

    kinds = bytes(_TYPES[kind] for kind in _LISTED)
    body = pack_uvarint(len(kinds) + 1) + kinds if version >= OF_ALL else b""
    return Call(LIST, version, (body + NO_TAGS,), answer, flexible=True)


def describe_configs(wanted: Iterable[Resource]) -> Call[DescribedConfigs]:
    """Return the configurations of these. Needs the ACL DESCRIBE_CONFIGS on each topic and group, and for brokers and
    client metrics on the cluster. A broker reports only its own configuration."""
    every_key = struct.pack(">i", -1)
    rows = [struct.pack(">b", _TYPES[kind]) + pack_string(name) + every_key for kind, name in wanted]

    def entry(read: Reader, own: int | None) -> tuple[str, ConfigEntry]:
        key, value = read.string(), read.nullable_string()
        _, source, secret = read.unpack(_ENTRY)
        for _ in range(read.int32()):  # synonyms: not asked for, and some servers send them all the same
            read.string(), read.nullable_string(), read.int8()
        return key, ConfigEntry(value, source == own, source in _OF_BROKERS, bool(secret))

    def answer(read: Reader) -> DescribedConfigs:
        found: dict[Resource, Mapping[str, ConfigEntry]] = {}
        refused: dict[Resource, tuple[int, str]] = {}

        def one() -> None:
            code, reason = read.int16(), read.string()
            kind, name = read.int8(), read.string()
            resource = _NAMES.get(kind, str(kind)), name
            own = _OWN.get(resource[0])
            entries = dict(read.array(lambda: entry(read, own)))
            if code:
                refused[resource] = code, reason
            else:
                found[resource] = entries

        throttle = read.int32()
        read.array(one)
        return DescribedConfigs(throttle, found, refused)

    return Call(DESCRIBE, 1, (pack_array(rows) + b"\x00",), answer)  # the last byte: no synonyms


def alter_configs(
    wanted: Iterable[tuple[Resource, Mapping[str, str | None]]], *, only_check: bool = False
) -> Call[OrderResults]:
    """Set these values of each resource; None takes a key back to its default, and other keys stay. Needs the ACL
    ALTER_CONFIGS on each topic and group, and for client metrics on the cluster. `only_check`: nothing is changed, and
    the answer is the same."""

    def change(key: str, value: str | None) -> bytes:
        return pack_string(key) + struct.pack(">b", _DELETE if value is None else _SET) + pack_string(value)

    rows = [
        struct.pack(">b", _TYPES[kind]) + pack_string(name) + pack_array(change(*item) for item in values.items())
        for (kind, name), values in wanted
    ]

    def one(read: Reader) -> tuple[Resource, tuple[int, str]]:
        result = read.int16(), read.string()
        kind, name = read.int8(), read.string()
        return (_NAMES.get(kind, str(kind)), name), result

    def answer(read: Reader) -> OrderResults:
        return OrderResults(read.int32(), dict(read.array(lambda: one(read))))

    return Call(ALTER, 0, (pack_array(rows) + bytes([only_check]),), answer)
