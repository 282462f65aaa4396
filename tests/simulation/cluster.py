"""A Kafka cluster of this process: brokers are listeners on ports of the loopback interface, logs are in memory.

    with World() as world, SimulatedCluster(world, brokers=3, release="3.9") as cluster:
        cluster.do(lambda: cluster.create("orders", partitions=2))
        cluster.bootstrap

One event loop in a thread of its own serves all brokers of all clusters; `do` runs something there, between two
requests. `lies` decides what is answered instead of the truth.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from logkeep_engine.log.batch import walk
from tests.simulation.faults import FOREVER, Kind, Lie, Lies
from tests.simulation.partition_log import NOT_LEADER, Partition, Replica
from tests.simulation.protocol import Api, Asked, Body, decode_request, encode_answer

T = TypeVar("T")

UNKNOWN_SERVER_ERROR, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE = -1, 1, 3, 5
REQUEST_TIMED_OUT, NOT_CONTROLLER, UNSUPPORTED_VERSION, TOPIC_EXISTS = 7, 41, 35, 36
INVALID_REPLICATION_FACTOR, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, OFFSET_NOT_AVAILABLE = 38, 74, 75, 78
UNKNOWN_TOPIC_ID, NOT_AUTHORIZED = 100, 29
_READ = 1 << 3  # org.apache.kafka.common.acl.AclOperation
_OF_TOPICS = _READ | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11
_OF_TOPIC, _OF_BROKER = 1, 4  # where a value of a configuration comes from
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
THROTTLE_MS = 10
SLOW_SECONDS = 0.03
WAIT_SECONDS = 0.004  # of a fetch that finds nothing

# Brokers of a release answer this to ApiVersions, as far as it is simulated: the `validVersions` of the requests in
# that release's `clients/src/main/resources/common/message`. 4.1 as far as the layouts of 3.9 reach.
_RELEASES = {
    "2.4": "0:0-8 1:0-11 2:0-5 3:0-9 8:0-8 9:0-6 10:0-3 16:0-3 18:0-3 19:0-5 20:0-4 22:0-2 23:0-3 32:0-2 35:0-1 44:0-1",
    "3.0": "0:0-9 1:0-12 2:0-7 3:0-11 8:0-8 9:0-8 10:0-4 16:0-4 18:0-3 19:0-7 20:0-6 22:0-4 23:0-4 32:0-4 35:0-2 "
    "44:0-1 60:0-0 61:0-0",
    "3.9": "0:0-11 1:0-17 2:0-9 3:0-12 8:0-9 9:0-9 10:0-6 16:0-5 18:0-4 19:0-7 20:0-6 22:0-5 23:0-4 32:0-4 35:0-4 "
    "44:0-1 60:0-1 61:0-0 75:0-0",
    "4.1": "0:0-11 1:4-17 2:1-9 3:0-12 8:2-9 9:1-9 10:0-6 16:0-5 18:0-4 19:2-7 20:1-6 22:0-5 23:2-4 32:1-4 35:1-4 "
    "44:0-1 60:0-2 61:0-0 75:0-0",
}
RELEASES = {
    release: {
        Api(int(key)): (int(low), int(high))
        for item in text.split()
        for key, _, versions in [item.partition(":")]
        for low, _, high in [versions.partition("-")]
    }
    for release, text in _RELEASES.items()
}


class World:
    """A context manager: the event loop of all simulated brokers, in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="simulated-brokers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def do(self, act: Callable[[], T]) -> T:
        """Run it in the loop's thread."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        self.loop.call_soon_threadsafe(run)
        return done.result()


@dataclass(slots=True)
class Topic:
    """One incarnation."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition]
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def printed_id(self) -> str:
        """The topic id as Kafka's tools print it."""
        return urlsafe_b64encode(self.topic_id.bytes).rstrip(b"=").decode()


class SimulatedCluster:
    """A context manager. What changes it runs in `do`, apart from `heal_lies`."""

    def __init__(self, world: World, brokers: int = 3, release: str = "4.1", *, name: str = "simulated") -> None:
        self.world = world
        self.release = release
        self.cluster_id = name
        self.hidden: set[str] = set()  # topics that clients may not describe
        self.unreadable: set[str] = set()  # topics that clients may describe and not read
        self.old_views: dict[int, dict[str, Topic]] = {}  # of brokers that know an old state of the cluster
        self.lies = Lies()
        self.topics: dict[str, Topic] = {}
        self.past: list[Topic] = []  # incarnations that were deleted
        self.brokers = {node: Broker(self, node) for node in range(1, brokers + 1)}
        self.old_ends: dict[tuple[str, int], int] = {}  # told instead of the end: who believes it ends there
        self.positions: dict[str, dict[tuple[str, int], int]] = {}
        self.batches_an_answer = FOREVER  # a segment's end, or that of what is in memory, ends an answer
        self.refusing = False  # nobody gets in: the process that asks is dead
        self.on_request: Callable[[Api], None] = lambda api: None
        self._next_producer = 1000

    def __enter__(self) -> Self:
        for broker in self.brokers.values():
            broker.bind()
        self.do(self._listen)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self._close)
        for broker in self.brokers.values():
            broker.release()

    def _listen(self) -> None:
        for broker in self.brokers.values():
            broker.listen()

    def _close(self) -> None:
        for broker in self.brokers.values():
            broker.close()

    def do(self, act: Callable[[], T]) -> T:
        return self.world.do(act)

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{broker.port}" for broker in self.brokers.values()]

    def alive(self) -> list[int]:
        return [node for node, broker in self.brokers.items() if broker.up]

    def producer_id(self) -> int:
        self._next_producer += 1
        return self._next_producer

    # ---- history

    def create(self, name: str, partitions: int, *, replicas: int = 1, configs: dict[str, str] | None = None) -> Topic:
        topic = Topic(name, uuid.uuid4(), [], dict(configs or {}))
        self.topics[name] = topic
        self.add_partitions(topic, partitions, replicas)
        return topic

    def add_partitions(self, topic: Topic, count: int, replicas: int) -> None:
        nodes = list(self.brokers)
        for _ in range(count):
            first = len(topic.partitions) % len(nodes)
            order = nodes[first:] + nodes[:first]
            alive = [node for node in order if self.brokers[node].up][:replicas]
            partition = Partition(tuple(alive))
            partition.min_isr = int(topic.configs.get("min.insync.replicas", 1))
            topic.partitions.append(partition)

    def delete(self, name: str) -> None:
        self.past.append(self.topics.pop(name))

    def stop_broker(self, node: int) -> None:
        """It is gone with its connections; others lead what it led."""
        self.brokers[node].close()
        for partition in self._partitions():
            if node in partition.brokers:
                partition.lose(node)

    def start_broker(self, node: int) -> None:
        """It is back, and what had no leader has one."""
        broker = self.brokers[node]
        if broker.up:
            return
        broker.listen()
        for partition in self._partitions():
            if node in partition.brokers:
                partition.rejoin(node)

    def drop_connections(self) -> None:
        """All of them, at once."""
        for broker in self.brokers.values():
            broker.drop_connections()

    def heal(self) -> None:
        """Every broker is up, every replica in sync, every answer true."""
        self.lies.heal()
        for node in self.brokers:
            self.start_broker(node)
        for partition in self._partitions():
            partition.heal()

    def _partitions(self) -> Iterable[Partition]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)


class Broker:
    """One listener. It keeps its port while it is down."""

    def __init__(self, cluster: SimulatedCluster, node: int) -> None:
        self.node = node
        self.port = 0
        self.up = False
        self._cluster = cluster
        self._socket: socket.socket | None = None
        self._server: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._answers: dict[Api, Callable[[Asked], Body]] = {
            Api.METADATA: self._metadata,
            Api.DESCRIBE_CLUSTER: self._describe_cluster,
            Api.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            Api.LIST_OFFSETS: self._list_offsets,
            Api.OFFSET_FOR_LEADER_EPOCH: self._epoch_ends,
            Api.FETCH: self._fetch,
            Api.PRODUCE: self._produce,
            Api.INIT_PRODUCER_ID: self._init_producer_id,
            Api.CREATE_TOPICS: self._create_topics,
            Api.DELETE_TOPICS: self._delete_topics,
            Api.DESCRIBE_CONFIGS: self._describe_configs,
            Api.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            Api.DESCRIBE_LOG_DIRS: self._log_dirs,
            Api.DESCRIBE_PRODUCERS: self._describe_producers,
            Api.FIND_COORDINATOR: self._coordinator,
            Api.LIST_GROUPS: self._list_groups,
            Api.OFFSET_FETCH: self._offset_fetch,
            Api.OFFSET_COMMIT: self._offset_commit,
        }

    # ---- connections

    def bind(self) -> None:
        """Take a port, and keep it also while the broker is down: a socket that does not listen is in its place."""
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port = self._place.getsockname()[1]

    def release(self) -> None:
        self._place.close()

    def listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(64)
        listener.setblocking(False)
        self._socket = listener
        self.up = True
        self._server = self._cluster.world.loop.create_task(self._accept(listener))

    def close(self) -> None:
        self.up = False
        if self._server is not None:
            self._server.cancel()
            self._server = None
        if self._socket is not None:
            self._cluster.world.loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        self.drop_connections()

    def drop_connections(self) -> None:
        for task in self._connections:
            task.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._cluster.refusing:
                client.close()
                continue
            client.setblocking(False)
            task = loop.create_task(self._serve(client))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, client: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=client, limit=1 << 20)
        try:
            while True:
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                await self._one(decode_request(await reader.readexactly(length)), writer)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            pass
        finally:
            writer.transport.abort()

    async def _one(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        cluster = self._cluster
        cluster.on_request(asked.api)
        if not self.up or cluster.refusing:
            raise ConnectionResetError
        lie = cluster.lies.of_request(asked.api, self.node)
        kind = lie.kind if lie is not None else None
        if kind is Kind.DROPPED:
            raise ConnectionResetError
        if kind is Kind.SILENCE:
            await asyncio.Event().wait()
        body = self._throttled(asked) if kind is Kind.THROTTLED else self._answer(asked)
        data = encode_answer(asked, body)
        if kind is Kind.LOST_ANSWER:
            raise ConnectionResetError
        if kind is Kind.SLOW:
            await asyncio.sleep(SLOW_SECONDS)
        elif asked.api is Api.FETCH and asked.body["max_wait_ms"] and not _has_records(body):
            await asyncio.sleep(WAIT_SECONDS)
        frame = struct.pack(">i", len(data)) + data
        if kind is Kind.CUT_ANSWER:
            writer.write(frame[: len(frame) // 2])
            await writer.drain()
            raise ConnectionResetError
        writer.write(frame)
        await writer.drain()

    def _answer(self, asked: Asked) -> Body:
        versions = RELEASES[self._cluster.release]
        lowest, highest = versions.get(asked.api, (1, 0))
        if asked.api is Api.API_VERSIONS:
            keys = [{"api_key": key, "min_version": low, "max_version": high} for key, (low, high) in versions.items()]
            return {"error_code": 0 if asked.version <= highest else UNSUPPORTED_VERSION, "api_keys": keys}
        if not lowest <= asked.version <= highest:
            raise ConnectionResetError  # as a broker does
        return self._answers[asked.api](asked)

    def _throttled(self, asked: Asked) -> Body:
        """Over its quota a client gets its answer with a time to wait, and a fetch gets it without the partitions."""
        if asked.api is Api.FETCH:
            return {"throttle_time_ms": THROTTLE_MS}
        return {**self._answer(asked), "throttle_time_ms": THROTTLE_MS}

    # ---- what is there

    def _lie(self, api: Api, topic: str, partition: int | None, *kinds: Kind) -> Lie | None:
        return self._cluster.lies.of_part(api, self.node, topic, partition, kinds or None)

    def _find(self, name: str | None, topic_id: uuid.UUID | None = None) -> Topic | None:
        if name:
            return self._cluster.topics.get(name)
        return next((topic for topic in self._cluster.topics.values() if topic.topic_id == topic_id), None)

    def _partition(self, topic: Topic | None, number: int, epoch: int) -> tuple[Partition | None, int]:
        """The partition if this broker leads it at this epoch, else the error code."""
        if topic is None or number >= len(topic.partitions):
            return None, UNKNOWN_TOPIC
        partition = topic.partitions[number]
        if epoch >= 0 and epoch < partition.epoch:
            return None, FENCED_LEADER_EPOCH
        if epoch > partition.epoch:
            return None, UNKNOWN_LEADER_EPOCH
        if partition.leader != self.node:
            return None, NOT_LEADER
        return partition, 0

    # ---- metadata

    def _brokers(self, api: Api) -> list[Body]:
        nodes = self._cluster.alive()
        if len(nodes) > 1 and self._lie(api, "", None, Kind.MISSING_BROKER) is not None:
            nodes.remove(next(node for node in nodes if node != self.node))
        return [
            {"node_id": node, "host": "127.0.0.1", "port": self._cluster.brokers[node].port, "rack": None}
            for node in nodes
        ]

    def _controller(self) -> int:
        return min(self._cluster.alive(), default=-1)

    def _metadata(self, asked: Asked) -> Body:
        wanted = asked.body["topics"]
        if wanted is None or (asked.version == 0 and not wanted):
            topics = [self._describe(asked.api, topic) for topic in self._known().values()]
            topics = [topic for topic in topics if topic["error_code"] not in (UNKNOWN_TOPIC, NOT_AUTHORIZED)]
        else:
            topics = []
            for item in wanted:
                found = self._known().get(item["name"]) if item["name"] else self._find(None, item.get("topic_id"))
                unknown = {"error_code": UNKNOWN_TOPIC, "name": item["name"], "topic_id": item.get("topic_id", _ZERO)}
                topics.append(self._describe(asked.api, found) if found is not None else unknown)
        if asked.body.get("include_topic_authorized_operations"):
            for topic in topics:
                denied = _READ if topic["name"] in self._cluster.unreadable else 0
                topic["topic_authorized_operations"] = _OF_TOPICS & ~denied
        return {
            "brokers": self._brokers(asked.api),
            "cluster_id": self._cluster.cluster_id,
            "controller_id": self._controller(),
            "topics": topics,
        }

    def _known(self) -> dict[str, Topic]:
        """The topics as this broker has heard of them."""
        return self._cluster.old_views.get(self.node, self._cluster.topics)

    def _describe(self, api: Api, topic: Topic) -> Body:
        if self._lie(api, topic.name, None, Kind.UNKNOWN_TOPIC) is not None:
            return {"error_code": UNKNOWN_TOPIC, "name": topic.name}
        if topic.name in self._cluster.hidden:
            return {"error_code": NOT_AUTHORIZED, "name": topic.name}
        return {
            "error_code": 0,
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partitions": [
                self._describe_partition(api, topic, number, partition)
                for number, partition in enumerate(topic.partitions)
            ],
        }

    def _describe_partition(self, api: Api, topic: Topic, number: int, partition: Partition) -> Body:
        leader, epoch = partition.leader, partition.epoch
        lie = self._lie(api, topic.name, number, Kind.NO_LEADER, Kind.STALE_LEADER)
        if lie is not None and lie.kind is Kind.NO_LEADER:
            leader = -1
        elif lie is not None:
            others = [node for node in partition.brokers if node != leader]
            leader, epoch = (others[0] if others else leader), max(0, epoch - 1)
        return {
            "error_code": LEADER_NOT_AVAILABLE if leader < 0 else 0,
            "partition_index": number,
            "leader_id": leader,
            "leader_epoch": epoch,
            "replica_nodes": list(partition.brokers),
            "isr_nodes": list(partition.isr),
            "eligible_leader_replicas": [],
            "last_known_elr": [],
            "offline_replicas": [node for node in partition.brokers if not self._cluster.brokers[node].up],
        }

    def _describe_cluster(self, asked: Asked) -> Body:
        brokers = [{**broker, "broker_id": broker["node_id"]} for broker in self._brokers(Api.METADATA)]
        if asked.body.get("include_fenced_brokers"):
            brokers += [
                {"broker_id": node, "host": "127.0.0.1", "port": broker.port, "rack": None, "is_fenced": True}
                for node, broker in self._cluster.brokers.items()
                if not broker.up
            ]
        return {
            "error_message": None,
            "cluster_id": self._cluster.cluster_id,
            "controller_id": self._controller(),
            "brokers": brokers,
        }

    def _describe_topic_partitions(self, asked: Asked) -> Body:
        topics = []
        for item in asked.body["topics"]:
            topic = self._find(item["name"])
            unknown = {"error_code": UNKNOWN_TOPIC, "name": item["name"]}
            topics.append(unknown if topic is None else self._describe(Api.METADATA, topic))
        return {"topics": topics}

    # ---- offsets

    def _list_offsets(self, asked: Asked) -> Body:
        committed = asked.body.get("isolation_level", 0) == 1
        return {
            "topics": [
                {
                    "name": topic["name"],
                    "partitions": [
                        {
                            "partition_index": part["partition_index"],
                            **self._offset(topic["name"], part, committed),
                        }
                        for part in topic["partitions"]
                    ],
                }
                for topic in asked.body["topics"]
            ]
        }

    def _offset(self, name: str, part: Body, committed: bool) -> Body:
        number, timestamp = part["partition_index"], part["timestamp"]
        lie = self._lie(Api.LIST_OFFSETS, name, number)
        if lie is not None and lie.kind is Kind.CODE:
            return {"error_code": lie.code}
        if lie is not None and lie.kind is Kind.NO_OFFSET:
            return {"offset": -1}
        partition, code = self._partition(self._find(name), number, part.get("current_leader_epoch", -1))
        if partition is None:
            return {"error_code": code}
        log = partition.log
        known = partition.knows_high_watermark
        partition.answered()
        if timestamp == LATEST and not known and log.epochs and log.high_watermark < log.end:
            return {"error_code": OFFSET_NOT_AVAILABLE}
        offset = self._offset_at(partition, log, timestamp, committed)
        if lie is not None and lie.kind is Kind.STALE_OFFSET and timestamp == LATEST:
            offset = max(log.start, _batch_start(log, offset - 1))
            place = (self._cluster.topics[name].printed_id, number)
            self._cluster.old_ends[place] = min(offset, self._cluster.old_ends.get(place, offset))
        return {"offset": offset, "leader_epoch": partition.epoch if offset >= 0 else -1}

    def _offset_at(self, partition: Partition, log: Replica, timestamp: int, committed: bool) -> int:
        if timestamp == LATEST:
            return log.last_stable if committed else log.high_watermark
        if timestamp == EARLIEST:
            return log.start
        if timestamp == EARLIEST_LOCAL:
            return max(log.start, partition.local_start)
        if timestamp == LATEST_TIERED:
            return partition.local_start - 1 if partition.local_start > log.start else -1
        found = (batch.base for batch in log.batches if batch.header.max_timestamp >= timestamp >= 0)
        return next(found, -1)

    def _epoch_ends(self, asked: Asked) -> Body:
        topics = []
        for item in asked.body["topics"]:
            answers = []
            for part in item["partitions"]:
                number = part["partition"]
                answer: Body = {"partition": number}
                lie = self._lie(asked.api, item["topic"], number, Kind.CODE)
                partition, code = self._partition(
                    self._find(item["topic"]), number, part.get("current_leader_epoch", -1)
                )
                if lie is not None:
                    answer["error_code"] = lie.code
                elif partition is None:
                    answer["error_code"] = code
                else:
                    answer["leader_epoch"], answer["end_offset"] = partition.log.epoch_end(part["leader_epoch"])
                answers.append(answer)
            topics.append({"topic": item["topic"], "partitions": answers})
        return {"topics": topics}

    # ---- records out

    def _fetch(self, asked: Asked) -> Body:
        room = asked.body["max_bytes"]
        committed = asked.body["isolation_level"] == 1
        responses = []
        for item in asked.body["topics"] or ():
            topic = self._find(item.get("topic"), item.get("topic_id"))
            parts = []
            for part in item["partitions"]:
                answer = self._fetch_one(topic, part, committed, room, by_id="topic_id" in item)
                room -= len(answer.get("records") or b"")
                parts.append({"partition_index": part["partition"], **answer})
            responses.append(
                {"topic": item.get("topic", ""), "topic_id": item.get("topic_id", _ZERO), "partitions": parts}
            )
        return {"responses": responses}

    def _fetch_one(self, topic: Topic | None, part: Body, committed: bool, room: int, *, by_id: bool) -> Body:
        nothing: Body = {"high_watermark": -1, "aborted_transactions": [], "records": b""}
        if topic is None:
            return {**nothing, "error_code": UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC}
        number, offset = part["partition"], part["fetch_offset"]
        lie = self._lie(Api.FETCH, topic.name, number)
        kind = lie.kind if lie is not None else None
        if lie is not None and kind is Kind.CODE:
            return {**nothing, "error_code": lie.code}
        partition, code = self._partition(topic, number, part["current_leader_epoch"])
        if partition is None:
            return {**nothing, "error_code": code}
        log = partition.log
        if kind is Kind.OUT_OF_RANGE or not log.start <= offset <= log.end:
            return {**nothing, "error_code": OFFSET_OUT_OF_RANGE}
        partition.answered()
        watermark, stable = log.high_watermark, log.last_stable
        if kind is Kind.LATE_WATERMARK:
            watermark = max(log.start, _batch_start(log, watermark - 1))
            stable = min(stable, watermark)
        head: Body = {
            "high_watermark": watermark,
            "last_stable_offset": stable,
            "log_start_offset": log.start,
        }
        until = stable if committed else watermark
        if kind is Kind.EMPTY and offset < partition.local_start and offset < until:
            return {**head, "aborted_transactions": None, "records": b""}
        data, last = _read(log, offset, until, min(room, part["partition_max_bytes"]), self._cluster.batches_an_answer)
        aborted = [item for item in log.aborted if item.last >= offset and item.first < last] if committed else []
        if kind is Kind.ABORTED_MISSING and aborted:
            aborted = aborted[:-1]
        listed = [{"producer_id": item.producer_id, "first_offset": item.first} for item in aborted]
        return {**head, "aborted_transactions": listed if committed else None, "records": _damaged(data, kind)}

    # ---- records in

    def _produce(self, asked: Asked) -> Body:
        return {
            "responses": [
                {
                    "name": item["name"],
                    "partition_responses": [
                        {"index": part["index"], "error_message": None, **self._append(item["name"], part)}
                        for part in item["partition_data"]
                    ],
                }
                for item in asked.body["topic_data"]
            ]
        }

    def _append(self, name: str, part: Body) -> Body:
        number = part["index"]
        lie = self._lie(Api.PRODUCE, name, number)
        if lie is not None and lie.kind is Kind.CODE:
            return {"error_code": lie.code, "base_offset": -1}
        partition, code = self._partition(self._find(name), number, -1)
        if partition is None:
            return {"error_code": code, "base_offset": -1}
        if lie is not None and lie.kind is Kind.FORGOTTEN_PRODUCER:
            for replica in partition.replicas.values():
                replica.producers.clear()
        code, base = partition.append(part["records"])
        if lie is not None and lie.kind is Kind.APPENDED_WITH_ERROR:
            return {"error_code": REQUEST_TIMED_OUT, "base_offset": -1}
        return {"error_code": code, "base_offset": base}

    def _init_producer_id(self, asked: Asked) -> Body:
        lie = self._lie(asked.api, "", None, Kind.CODE)
        if lie is not None:
            return {"error_code": lie.code}
        return {"producer_id": self._cluster.producer_id(), "producer_epoch": 0}

    def _describe_producers(self, asked: Asked) -> Body:
        topics = []
        for item in asked.body["topics"]:
            answers = []
            for number in item["partition_indexes"]:
                partition, code = self._partition(self._find(item["name"]), number, -1)
                producers = [] if partition is None else list(partition.log.producers.items())
                open_ = {} if partition is None else partition.log.open
                answers.append(
                    {
                        "partition_index": number,
                        "error_code": code,
                        "error_message": None,
                        "active_producers": [
                            {
                                "producer_id": producer_id,
                                "producer_epoch": state.epoch,
                                "last_sequence": state.recent[-1][1],
                                "current_txn_start_offset": open_.get(producer_id, -1),
                            }
                            for producer_id, state in producers
                        ],
                    }
                )
            topics.append({"name": item["name"], "partitions": answers})
        return {"topics": topics}

    # ---- topics

    def _create_topics(self, asked: Asked) -> Body:
        answers = []
        for item in asked.body["topics"]:
            lie = self._lie(asked.api, item["name"], None)
            answer: Body = {"name": item["name"], "error_message": None}
            if lie is not None and lie.kind is Kind.CODE:
                answer["error_code"] = lie.code
            elif item["name"] in self._cluster.topics:
                answer["error_code"] = TOPIC_EXISTS
            elif max(1, item["replication_factor"]) > len(self._cluster.alive()):
                answer["error_code"] = INVALID_REPLICATION_FACTOR
            elif not asked.body.get("validate_only"):
                replicas = item["replication_factor"] if item["replication_factor"] > 0 else 1
                configs = {entry["name"]: entry["value"] for entry in item["configs"]}
                made = self._cluster.create(
                    item["name"], max(1, item["num_partitions"]), replicas=replicas, configs=configs
                )
                answer["topic_id"] = made.topic_id
                if lie is not None and lie.kind is Kind.MADE_WITH_ERROR:
                    answer["error_code"] = REQUEST_TIMED_OUT
            answers.append(answer)
        return {"topics": answers}

    def _delete_topics(self, asked: Asked) -> Body:
        names = asked.body.get("topic_names") or [item["name"] for item in asked.body.get("topics") or ()]
        answers = []
        for name in names:
            known = name in self._cluster.topics
            if known:
                self._cluster.delete(name)
            answers.append({"name": name, "error_code": 0 if known else UNKNOWN_TOPIC, "error_message": None})
        return {"responses": answers}

    def _describe_configs(self, asked: Asked) -> Body:
        results = []
        for resource in asked.body["resources"]:
            topic = self._find(resource["resource_name"]) if resource["resource_type"] == 2 else None
            lie = self._lie(asked.api, resource["resource_name"], None, Kind.CODE)
            code = lie.code if lie is not None else UNKNOWN_TOPIC if topic is None and _of_topic(resource) else 0
            results.append(
                {
                    "error_code": code,
                    "error_message": None,
                    "resource_type": resource["resource_type"],
                    "resource_name": resource["resource_name"],
                    "configs": [
                        {"name": name, "value": value, "config_source": source}
                        for name, value, source in self._configs(resource, topic)
                        if code == 0
                    ],
                }
            )
        return {"results": results}

    def _configs(self, resource: Body, topic: Topic | None) -> list[tuple[str, str, int]]:
        """Names, values and sources of a configuration. A broker, and so a topic by default, deletes nothing."""
        if not _of_topic(resource):
            return [("log.retention.ms", "-1", _OF_BROKER)]
        own = {} if topic is None else topic.configs
        default = [] if "retention.ms" in own else [("retention.ms", "-1", _OF_BROKER)]
        return [*((name, value, _OF_TOPIC) for name, value in own.items()), *default]

    def _alter_configs(self, asked: Asked) -> Body:
        answers = []
        for resource in asked.body["resources"]:
            topic = self._find(resource["resource_name"])
            answer: Body = {
                "error_message": None,
                "resource_type": resource["resource_type"],
                "resource_name": resource["resource_name"],
            }
            lie = self._lie(asked.api, resource["resource_name"], None, Kind.CODE)
            if lie is not None or topic is None:
                answer["error_code"] = lie.code if lie is not None else UNKNOWN_TOPIC
            else:
                for entry in resource["configs"]:
                    if entry["config_operation"] == 1:
                        topic.configs.pop(entry["name"], None)
                    else:
                        topic.configs[entry["name"]] = entry["value"]
            answers.append(answer)
        return {"responses": answers}

    def _log_dirs(self, asked: Asked) -> Body:
        topics = []
        for item in asked.body["topics"] or ():
            topic = self._find(item["topic"])
            parts = [] if topic is None else [n for n in item["partitions"] if n < len(topic.partitions)]
            if topic is not None:
                here = [(n, topic.partitions[n].replicas.get(self.node)) for n in parts]
                sizes = [
                    {"partition_index": n, "partition_size": sum(len(batch.data) for batch in replica.batches)}
                    for n, replica in here
                    if replica is not None
                ]
                topics.append({"name": topic.name, "partitions": sizes})
        return {"results": [{"log_dir": "/data", "topics": topics}]}

    # ---- groups

    def _coordinator(self, asked: Asked) -> Body:
        lie = self._lie(asked.api, "", None, Kind.CODE)
        node = self._controller()
        place = {
            "node_id": node,
            "host": "127.0.0.1",
            "port": self._cluster.brokers[node].port if node > 0 else -1,
            "error_code": 0 if lie is None else lie.code,
            "error_message": None,
        }
        return {**place, "coordinators": [{**place, "key": key} for key in asked.body.get("coordinator_keys", ())]}

    def _list_groups(self, asked: Asked) -> Body:
        groups = self._cluster.positions if self.node == self._controller() else {}
        return {
            "groups": [
                {"group_id": group, "protocol_type": "consumer", "group_state": "Empty", "group_type": "classic"}
                for group in groups
            ]
        }

    def _offset_fetch(self, asked: Asked) -> Body:
        lie = self._lie(asked.api, "", None, Kind.CODE)
        if lie is not None:
            return {"error_code": lie.code}
        topics: dict[str, list[Body]] = {}
        for (topic, number), offset in self._cluster.positions.get(asked.body.get("group_id") or "", {}).items():
            topics.setdefault(topic, []).append({"partition_index": number, "committed_offset": offset})
        return {"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}

    def _offset_commit(self, asked: Asked) -> Body:
        positions = self._cluster.positions.setdefault(asked.body["group_id"], {})
        topics = []
        for item in asked.body["topics"]:
            parts = []
            for part in item["partitions"]:
                lie = self._lie(asked.api, item["name"], part["partition_index"], Kind.CODE)
                if lie is None:
                    positions[item["name"], part["partition_index"]] = part["committed_offset"]
                parts.append({"partition_index": part["partition_index"], "error_code": 0 if lie is None else lie.code})
            topics.append({"name": item["name"], "partitions": parts})
        return {"topics": topics}


_ZERO = uuid.UUID(int=0)


def _of_topic(resource: Body) -> bool:
    return bool(resource["resource_type"] == 2)


def _has_records(body: Body) -> bool:
    return any(
        part.get("records") or part.get("error_code")
        for item in body.get("responses", ())
        for part in item["partitions"]
    )


def _batch_start(log: Replica, offset: int) -> int:
    """The base of the batch that `offset` lies in, or the offset."""
    return next((batch.base for batch in log.batches if batch.base <= offset < batch.next), offset)


def _read(log: Replica, offset: int, until: int, most: int, batches: int) -> tuple[bytes, int]:
    """Batches from the one `offset` lies in, whole below `until`, and where they end. The first is whole whatever its
    size; the last may be cut off."""
    data = bytearray()
    last = offset
    for batch in log.batches:
        if batch.next <= offset or batch.base >= until:
            continue
        if data and len(data) + len(batch.data) > most:
            data += batch.data[: most - len(data)]
            break
        data += batch.data
        last = batch.next
        batches -= 1
        if batches <= 0:
            break
    return bytes(data), last


def _damaged(data: bytes, kind: Kind | None) -> bytes:
    if not data:
        return data
    if kind is Kind.FLIPPED:
        # Behind the CRC, which covers neither offset, length nor leader epoch: nobody could notice those.
        first = next(header.size for _, header in walk(data))
        at = (21 + first) // 2
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
    if kind is Kind.CUT_BATCH:
        return data[: max(1, len(data) - 7)]
    if kind is Kind.DUPLICATED:
        return data + data
    return data


__all__ = ["RELEASES", "SimulatedCluster", "Topic", "World"]
