"""A Kafka cluster that has metadata only: it answers what planning asks, for any number of partitions.

    with SimulatedCluster(Shape(topics=2_000, partitions=50)) as bootstrap: ...

Brokers are listeners of one process of their own, so its memory is not the engine's. They speak the protocol over
loopback: a client connects, asks for versions, and gets answers of the size a real cluster sends. There are no records:
a fetch is not served. Layouts are those of `clients/src/main/resources/common/message/*.json` in Apache Kafka 4.1.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

API_VERSIONS, METADATA, LIST_OFFSETS, DESCRIBE_CONFIGS, DESCRIBE_LOG_DIRS = 18, 3, 2, 32, 35
FIND_COORDINATOR, LIST_GROUPS, OFFSET_COMMIT, OFFSET_FETCH = 10, 16, 8, 9
# Lowest and highest version that is answered, and the first one in the compact encoding.
VERSIONS = {
    API_VERSIONS: (0, 3, 3),
    METADATA: (4, 12, 9),
    LIST_OFFSETS: (2, 7, 6),
    DESCRIBE_CONFIGS: (1, 1, 4),
    DESCRIBE_LOG_DIRS: (1, 1, 2),
    FIND_COORDINATOR: (1, 2, 3),
    LIST_GROUPS: (0, 4, 3),
    OFFSET_COMMIT: (6, 6, 8),
    OFFSET_FETCH: (5, 7, 6),
}
UNSUPPORTED_VERSION, UNKNOWN_TOPIC = 35, 3
EARLIEST = -2
NO_TAGS = b"\x00"
REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """What the cluster looks like. Each of `groups` has positions in all partitions of `group_topics` topics; the first
    of them are answered with `group_codes`, error codes of the protocol."""

    topics: int
    partitions: int
    brokers: int = 3
    groups: int = 20
    group_topics: int = 50
    start: int = 0
    group_codes: tuple[int, ...] = ()


class SimulatedCluster:
    """A context manager: the cluster's bootstrap addresses, and the process that serves them."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> tuple[str, ...]:
        command = [sys.executable, "-m", "bench.simulated_cluster", json.dumps(asdict(self._shape))]
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)
        assert self._process.stdout is not None
        ports = json.loads(self._process.stdout.readline())
        return tuple(f"127.0.0.1:{port}" for port in ports)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()


class Request:
    """Reads the fields of a request, in the plain or the compact encoding."""

    def __init__(self, data: bytes, at: int, flexible: bool) -> None:
        self._data, self._at, self._flexible = data, at, flexible

    def number(self, layout: str) -> int:
        (value,) = struct.unpack_from(">" + layout, self._data, self._at)
        self._at += struct.calcsize(">" + layout)
        return int(value)

    def skip(self, count: int) -> None:
        self._at += count

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def string(self) -> str | None:
        length = self.uvarint() - 1 if self._flexible else self.number("h")
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def count(self) -> int:
        """Of the array that follows; -1 for null."""
        return self.uvarint() - 1 if self._flexible else self.number("i")

    def tags(self) -> None:
        if self._flexible:
            for _ in range(self.uvarint()):
                self.uvarint()
                self.skip(self.uvarint())


class Fields:
    """Writes the fields of an answer, in the plain or the compact encoding."""

    def __init__(self, flexible: bool) -> None:
        self.tags = NO_TAGS if flexible else b""
        self._flexible = flexible

    def string(self, text: str | None) -> bytes:
        raw = b"" if text is None else text.encode()
        if self._flexible:
            return _uvarint(0 if text is None else len(raw) + 1) + raw
        return struct.pack(">h", -1 if text is None else len(raw)) + raw

    def array(self, items: Iterable[bytes]) -> bytes:
        parts = list(items)
        head = _uvarint(len(parts) + 1) if self._flexible else struct.pack(">i", len(parts))
        return head + b"".join(parts)

    def numbers(self, items: Iterable[int]) -> bytes:
        return self.array(struct.pack(">i", item) for item in items)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class _Facts:
    """Names, leaders, offsets and sizes, all made from a topic's number."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.names = [f"topic-{number:06d}" for number in range(shape.topics)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.groups = [f"group-{number:03d}" for number in range(shape.groups)]

    def number(self, name: str | None) -> int | None:
        return None if name is None else self._numbers.get(name)

    def topic_id(self, topic: int) -> bytes:
        return hashlib.md5(self.names[topic].encode()).digest()

    def leader(self, topic: int, partition: int) -> int:
        return (topic + partition) % self.shape.brokers + 1

    def replicas(self, topic: int, partition: int) -> list[int]:
        first = self.leader(topic, partition) - 1
        return [(first + at) % self.shape.brokers + 1 for at in range(min(REPLICAS, self.shape.brokers))]

    def end(self, topic: int, partition: int) -> int:
        """Very different from one partition to the next: some are empty, one in a thousand is huge."""
        mixed = (topic * 2_654_435_761 + partition * 40_503) % 1_000
        if mixed == 0:
            return 100_000_000
        return self.shape.start if mixed < 100 else self.shape.start + mixed * 100

    def size(self, topic: int, partition: int) -> int:
        return (self.end(topic, partition) - self.shape.start) * 300


class _Broker:
    """Answers the requests of one listener."""

    def __init__(self, node: int, facts: _Facts, ports: list[int]) -> None:
        self._node, self._facts, self._ports = node, facts, ports
        self._answers: dict[int, Callable[[Request, Fields, int], bytes]] = {
            METADATA: self._metadata,
            LIST_OFFSETS: self._list_offsets,
            DESCRIBE_CONFIGS: self._describe_configs,
            DESCRIBE_LOG_DIRS: self._log_dirs,
            FIND_COORDINATOR: self._coordinator,
            LIST_GROUPS: self._list_groups,
            OFFSET_COMMIT: self._offset_commit,
            OFFSET_FETCH: self._offset_fetch,
        }
        self._topic_metadata = cache(self._make_topic_metadata)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                answer = self._answer(await reader.readexactly(length))
                writer.write(struct.pack(">i", len(answer)) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def _answer(self, data: bytes) -> bytes:
        key, version, correlation = struct.unpack_from(">hhi", data)
        if key == API_VERSIONS:
            return struct.pack(">i", correlation) + self._api_versions(version)
        lowest, highest, compact = VERSIONS[key]
        if not lowest <= version <= highest:
            raise ConnectionError(f"request {key} version {version} is not simulated")
        flexible = version >= compact
        request = Request(data, 8, False)
        request.string()  # client id, never compact
        request = Request(data, request._at, flexible)
        request.tags()
        out = Fields(flexible)
        return struct.pack(">i", correlation) + out.tags + self._answers[key](request, out, version)

    def _api_versions(self, version: int) -> bytes:
        out = Fields(version == 3)
        code = 0 if version <= 3 else UNSUPPORTED_VERSION
        if code:  # such an answer has the layout of version 0
            out = Fields(False)
        keys = out.array(struct.pack(">hhh", key, low, high) + out.tags for key, (low, high, _) in VERSIONS.items())
        throttle = struct.pack(">i", 0) if version >= 1 and not code else b""
        return struct.pack(">h", code) + keys + throttle + out.tags

    def _metadata(self, request: Request, out: Fields, version: int) -> bytes:
        wanted: list[str | None] = []
        count = request.count()
        for _ in range(count):
            if version >= 10:
                request.skip(16)
            wanted.append(request.string())
            request.tags()
        every = count < 0
        topics = self._facts.names if every else wanted
        brokers = out.array(
            struct.pack(">i", node) + out.string("127.0.0.1") + struct.pack(">i", port) + out.string(None) + out.tags
            for node, port in enumerate(self._ports, start=1)
        )
        operations = struct.pack(">i", -(2**31)) if 8 <= version <= 10 else b""
        return (
            struct.pack(">i", 0)
            + brokers
            + out.string("simulated-cluster-0001")
            + struct.pack(">i", 1)
            + out.array(self._topic_metadata(version, name) for name in topics)
            + operations
            + out.tags
        )

    def _make_topic_metadata(self, version: int, name: str | None) -> bytes:
        out = Fields(version >= 9)
        topic = self._facts.number(name)
        parts = range(self._facts.shape.partitions) if topic is not None else range(0)
        return (
            struct.pack(">h", 0 if topic is not None else UNKNOWN_TOPIC)
            + out.string(name)
            + (b"" if version < 10 else self._facts.topic_id(topic) if topic is not None else bytes(16))
            + b"\x00"
            + out.array(self._partition_metadata(version, out, topic or 0, part) for part in parts)
            + (struct.pack(">i", -(2**31)) if version >= 8 else b"")
            + out.tags
        )

    def _partition_metadata(self, version: int, out: Fields, topic: int, part: int) -> bytes:
        replicas = out.numbers(self._facts.replicas(topic, part))
        return (
            struct.pack(">hii", 0, part, self._facts.leader(topic, part))
            + (struct.pack(">i", 7) if version >= 7 else b"")
            + replicas
            + replicas
            + (out.numbers([]) if version >= 5 else b"")
            + out.tags
        )

    def _list_offsets(self, request: Request, out: Fields, version: int) -> bytes:
        request.skip(4 + 1)  # replica, isolation level
        topics = []
        for _ in range(request.count()):
            name = request.string()
            topic = self._facts.number(name)
            parts = []
            for _ in range(request.count()):
                part = request.number("i")
                request.skip(4 if version >= 4 else 0)
                timestamp = request.number("q")
                request.tags()
                code, offset = UNKNOWN_TOPIC, -1
                if topic is not None:
                    code = 0
                    offset = self._facts.shape.start if timestamp == EARLIEST else self._facts.end(topic, part)
                epoch = struct.pack(">i", 7) if version >= 4 else b""
                parts.append(struct.pack(">ihqq", part, code, -1, offset) + epoch + out.tags)
            request.tags()
            topics.append(out.string(name) + out.array(parts) + out.tags)
        return struct.pack(">i", 0) + out.array(topics) + out.tags

    def _describe_configs(self, request: Request, out: Fields, version: int) -> bytes:
        results = []
        for _ in range(request.count()):
            kind = request.number("b")
            name = request.string()
            keys = request.count()
            asked = {request.string() for _ in range(keys)} if keys >= 0 else None
            entries = [entry for key, entry in _configs().items() if asked is None or key in asked]
            head = struct.pack(">h", 0) + out.string(None) + struct.pack(">b", kind) + out.string(name)
            results.append(head + out.array(entries))
        return struct.pack(">i", 0) + out.array(results)

    def _log_dirs(self, request: Request, out: Fields, version: int) -> bytes:
        topics = []
        for _ in range(request.count()):
            name = request.string()
            topic = self._facts.number(name)
            parts = [request.number("i") for _ in range(request.count())]
            if topic is not None:
                sizes = (struct.pack(">iqqb", part, self._facts.size(topic, part), 0, 0) for part in parts)
                topics.append(out.string(name) + out.array(sizes))
        folder = struct.pack(">h", 0) + out.string("/var/lib/kafka/data") + out.array(topics)
        return struct.pack(">i", 0) + out.array([folder])

    def _coordinator(self, request: Request, out: Fields, version: int) -> bytes:
        return (
            struct.pack(">ih", 0, 0)
            + out.string(None)
            + struct.pack(">i", 1)
            + out.string("127.0.0.1")
            + struct.pack(">i", self._ports[0])
        )

    def _list_groups(self, request: Request, out: Fields, version: int) -> bytes:
        state = out.string("Stable") if version >= 4 else b""
        groups = self._facts.groups if self._node == 1 else []
        listed = out.array(out.string(group) + out.string("consumer") + state + out.tags for group in groups)
        return (struct.pack(">i", 0) if version >= 1 else b"") + struct.pack(">h", 0) + listed + out.tags

    def _offset_commit(self, request: Request, out: Fields, version: int) -> bytes:
        group = self._facts.groups.index(request.string() or "")
        codes = self._facts.shape.group_codes
        code = codes[group] if group < len(codes) else 0
        request.skip(4)  # generation
        request.string()
        topics = []
        for _ in range(request.count()):
            name = request.string()
            parts = []
            for _ in range(request.count()):
                parts.append(struct.pack(">ih", request.number("i"), code))
                request.skip(12)  # offset and leader epoch
                request.string()
            topics.append(out.string(name) + out.array(parts))
        return struct.pack(">i", 0) + out.array(topics)

    def _offset_fetch(self, request: Request, out: Fields, version: int) -> bytes:
        group = self._facts.groups.index(request.string() or "")
        shape = self._facts.shape
        if group < len(shape.group_codes):
            return struct.pack(">i", 0) + out.array([]) + struct.pack(">h", shape.group_codes[group]) + out.tags
        topics = []
        for at in range(min(shape.group_topics, shape.topics)):
            topic = (group * shape.group_topics + at) % shape.topics
            parts = (
                struct.pack(">iqi", part, shape.start, 7) + out.string("") + struct.pack(">h", 0) + out.tags
                for part in range(shape.partitions)
            )
            topics.append(out.string(self._facts.names[topic]) + out.array(parts) + out.tags)
        return struct.pack(">i", 0) + out.array(topics) + struct.pack(">h", 0) + out.tags


@cache
def _configs() -> dict[str, bytes]:
    """The thirty-odd entries of a topic of Kafka 4.1: two set on the topic itself (source 1), the rest defaults (5)."""
    out = Fields(False)
    own = {"retention.ms": "604800000", "cleanup.policy": "delete"}
    defaults = {f"some.default.setting.number.{number}": "9223372036854775807" for number in range(30)}

    def entry(name: str, value: str, source: int) -> bytes:
        synonym = out.string(name) + out.string(value) + struct.pack(">b", source)
        head = out.string(name) + out.string(value) + struct.pack(">bbb", 0, source, 0)
        return head + out.array([synonym] if source == 1 else [])

    return {name: entry(name, value, 1) for name, value in own.items()} | {
        name: entry(name, value, 5) for name, value in defaults.items()
    }


async def _serve(shape: Shape) -> None:
    facts = _Facts(shape)
    ports: list[int] = []
    servers = []
    for node in range(1, shape.brokers + 1):
        server = await asyncio.start_server(_Broker(node, facts, ports).serve, "127.0.0.1", 0, limit=1 << 20)
        servers.append(server)
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(_serve(Shape(**json.loads(sys.argv[1]))))
