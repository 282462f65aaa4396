"""A Kafka cluster that has metadata only: it answers what planning asks, for any number of partitions.

    with SimulatedCluster(Shape(topics=2_000, partitions=50)) as bootstrap: ...

Brokers are listeners of one process of their own, so its memory is not the engine's. They speak the protocol over
loopback: a client connects, asks for versions, and gets answers of the size a real cluster sends. There are no records:
a fetch is not served. `tests.simulation` has brokers with records, and the protocol of both.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import TracebackType

from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from tests.simulation.protocol import Api, Asked, Body, Encoded, decode_request, encode_answer, encode_element

# Lowest and highest version that is answered.
VERSIONS = {
    Api.API_VERSIONS: (0, 3),
    Api.METADATA: (4, 12),
    Api.LIST_OFFSETS: (2, 7),
    Api.DESCRIBE_CONFIGS: (1, 1),
    Api.DESCRIBE_LOG_DIRS: (1, 1),
    Api.FIND_COORDINATOR: (1, 2),
    Api.LIST_GROUPS: (0, 4),
    Api.OFFSET_COMMIT: (6, 6),
    Api.OFFSET_FETCH: (5, 7),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
}
UNSUPPORTED_VERSION, UNKNOWN_TOPIC = 35, 3
EARLIEST = -2
EPOCH = 7
REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a cluster. Each of `groups` has positions in all partitions of `group_topics` topics. The first
    groups are answered with `group_codes`, which are error codes of the protocol."""

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


class _Facts:
    """Names, leaders, offsets and sizes, all made from a topic's number."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.names = [f"topic-{number:06d}" for number in range(shape.topics)]
        self._numbers = {name: number for number, name in enumerate(self.names)}
        self.groups = [f"group-{number:03d}" for number in range(shape.groups)]

    def number(self, name: str | None) -> int | None:
        return None if name is None else self._numbers.get(name)

    def topic_id(self, topic: int) -> uuid.UUID:
        return uuid.UUID(bytes=hashlib.md5(self.names[topic].encode()).digest())

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
        self._answers: dict[Api, Callable[[Asked], Body]] = {
            Api.METADATA: self._metadata,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.DESCRIBE_CONFIGS: self._describe_configs,
            Api.DESCRIBE_LOG_DIRS: self._log_dirs,
            Api.FIND_COORDINATOR: self._coordinator,
            Api.LIST_GROUPS: self._list_groups,
            Api.OFFSET_COMMIT: self._offset_commit,
            Api.OFFSET_FETCH: self._offset_fetch,
            Api.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
        }
        self._known: dict[tuple[int, str | None], Encoded] = {}

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
        asked = decode_request(data)
        lowest, highest = VERSIONS[asked.api]
        if asked.api is Api.API_VERSIONS:
            keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in VERSIONS.items()]
            code = 0 if asked.version <= highest else UNSUPPORTED_VERSION
            return encode_answer(asked, {"error_code": code, "api_keys": keys})
        if not lowest <= asked.version <= highest:
            raise ConnectionError(f"request {asked.api.name} version {asked.version} is not simulated")
        return encode_answer(asked, self._answers[asked.api](asked))

    def _metadata(self, asked: Asked) -> Body:
        topics = asked.body["topics"]
        names = self._facts.names if topics is None else [topic["name"] for topic in topics]
        return {
            "brokers": [
                {"node_id": node, "host": "127.0.0.1", "port": port, "rack": None}
                for node, port in enumerate(self._ports, start=1)
            ],
            "cluster_id": "simulated-cluster-0001",
            "controller_id": 1,
            "topics": [self._topic_metadata(asked, name) for name in names],
        }

    def _topic_metadata(self, asked: Asked, name: str | None) -> Encoded:
        """Made once for each version."""
        known = self._known.get((asked.version, name))
        if known is None:
            known = encode_element(asked, "topics", self._describe(name))
            self._known[asked.version, name] = known
        return known

    def _describe(self, name: str | None) -> Body:
        if name == CONSUMER_OFFSETS:  # broker 1 coordinates all groups
            partition = {"leader_id": 1, "leader_epoch": EPOCH, "replica_nodes": [1], "isr_nodes": [1]}
            return {"name": name, "topic_id": uuid.UUID(int=1), "partitions": [{"partition_index": 0, **partition}]}
        topic = self._facts.number(name)
        if topic is None:
            return {"error_code": UNKNOWN_TOPIC, "name": name}
        return {
            "name": name,
            "topic_id": self._facts.topic_id(topic),
            "partitions": [self._partition_metadata(topic, part) for part in range(self._facts.shape.partitions)],
        }

    def _partition_metadata(self, topic: int, part: int) -> Body:
        replicas = self._facts.replicas(topic, part)
        return {
            "partition_index": part,
            "leader_id": self._facts.leader(topic, part),
            "leader_epoch": EPOCH,
            "replica_nodes": replicas,
            "isr_nodes": replicas,
        }

    def _list_offsets(self, asked: Asked) -> Body:
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [self._offset(topic["name"], part) for part in topic["partitions"]],
                }
                for topic in asked.body["topics"]
            ]
        }

    def _offset(self, name: str | None, part: Body) -> Body:
        topic, number = self._facts.number(name), part["partition_index"]
        if topic is None:
            return {"partition_index": number, "error_code": UNKNOWN_TOPIC}
        offset = self._facts.shape.start if part["timestamp"] == EARLIEST else self._facts.end(topic, number)
        return {"partition_index": number, "offset": offset, "leader_epoch": EPOCH}

    def _epoch_ends(self, asked: Asked) -> Body:
        return {
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [self._epoch_end(topic["topic"], part["partition"]) for part in topic["partitions"]],
                }
                for topic in asked.body["topics"]
            ]
        }

    def _epoch_end(self, name: str | None, number: int) -> Body:
        topic = self._facts.number(name)
        if topic is None:
            return {"partition": number, "error_code": UNKNOWN_TOPIC}
        return {"partition": number, "leader_epoch": EPOCH, "end_offset": self._facts.end(topic, number)}

    def _describe_configs(self, asked: Asked) -> Body:
        results = []
        for resource in asked.body["resources"]:
            keys = resource["configuration_keys"]
            entries = [entry for entry in _configs(asked.version).items() if keys is None or entry[0] in keys]
            results.append(
                {
                    "error_message": None,
                    "resource_type": resource["resource_type"],
                    "resource_name": resource["resource_name"],
                    "configs": [entry for _, entry in entries],
                }
            )
        return {"results": results}

    def _log_dirs(self, asked: Asked) -> Body:
        topics = []
        for item in asked.body["topics"]:
            topic = self._facts.number(item["topic"])
            if topic is not None:
                sizes = [
                    {"partition_index": part, "partition_size": self._facts.size(topic, part)}
                    for part in item["partitions"]
                ]
                topics.append({"name": item["topic"], "partitions": sizes})
        return {"results": [{"log_dir": "/var/lib/kafka/data", "topics": topics}]}

    def _coordinator(self, asked: Asked) -> Body:
        return {"error_message": None, "node_id": 1, "host": "127.0.0.1", "port": self._ports[0]}

    def _list_groups(self, asked: Asked) -> Body:
        groups = self._facts.groups if self._node == 1 else []
        return {
            "groups": [{"group_id": group, "protocol_type": "consumer", "group_state": "Stable"} for group in groups]
        }

    def _offset_commit(self, asked: Asked) -> Body:
        group = self._facts.groups.index(asked.body["group_id"])
        codes = self._facts.shape.group_codes
        code = codes[group] if group < len(codes) else 0
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {"partition_index": part["partition_index"], "error_code": code} for part in topic["partitions"]
                    ],
                }
                for topic in asked.body["topics"]
            ]
        }

    def _offset_fetch(self, asked: Asked) -> Body:
        group = self._facts.groups.index(asked.body["group_id"])
        shape = self._facts.shape
        if group < len(shape.group_codes):
            return {"error_code": shape.group_codes[group]}
        positions = [
            {"partition_index": part, "committed_offset": shape.start, "committed_leader_epoch": EPOCH}
            for part in range(shape.partitions)
        ]
        numbers = [
            (group * shape.group_topics + at) % shape.topics for at in range(min(shape.group_topics, shape.topics))
        ]
        return {"topics": [{"name": self._facts.names[number], "partitions": positions} for number in numbers]}


@cache
def _configs(version: int) -> dict[str, Encoded]:
    """The thirty-odd entries of a topic of Kafka 4.1: two set on the topic itself (source 1), the rest defaults (5)."""
    own = {"retention.ms": "604800000", "cleanup.policy": "delete"}
    defaults = {f"some.default.setting.number.{number}": "9223372036854775807" for number in range(30)}

    def entry(name: str, value: str, source: int) -> Encoded:
        synonym = {"name": name, "value": value, "source": source}
        body = {"name": name, "value": value, "config_source": source, "synonyms": [synonym] if source == 1 else []}
        return encode_element(Asked(Api.DESCRIBE_CONFIGS, version, 0, None, {}), "results.configs", body)

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
