"""Several real Kafka brokers and one controller of their own, which outlives them: leaders can be killed, stopped and
moved, and elections happen.

    with KafkaCluster() as cluster:
        cluster.create_topic("orders", [[1, 2, 3]], {"min.insync.replicas": "2"})
        cluster.broker(cluster.leader("orders")).kill()
        cluster.wait_for_leader("orders")
"""

import shutil
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from tests.cluster import system, tools
from tests.cluster.kafka import (
    LATE_MS,
    SMALL,
    format_data_dir,
    java,
    late_settings,
    living,
    new_id,
    write_properties,
)
from tests.cluster.process import Process, wait_until
from tests.cluster.state import State

BROKER_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:AOTMode=auto")
CONTROLLER_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:AOTMode=auto")

_CONTROLLER = 100
_HOST = "127.0.0.1"
_REPLICATED = {
    "default.replication.factor": "3",
    "offsets.topic.replication.factor": "3",
    "share.coordinator.state.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    # A follower that hangs leaves the set of those in sync after this, and one that came back is soon in it again.
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "4194304",
}


@dataclass(frozen=True)
class Placed:
    """Where a partition lies now. `leader` -1 if it has none; `in_sync` are the ids of the ISR."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]


_NOWHERE = Placed(-1, (), frozenset())


class ClusterBroker:
    """One broker of a cluster; its port and data stay the same over all that is done to it."""

    def __init__(self, state: State, number: int, port: int, process: Process) -> None:
        self.id = number
        self.bootstrap = f"{_HOST}:{port}"
        self.data_dir = state.data / f"data-{number}"
        self.process = process
        self.paused = False

    @property
    def serves(self) -> bool:
        """Whether it runs and is not paused."""
        return self.process.running and not self.paused

    @property
    def log(self) -> Path:
        """The log that the broker wrote about itself."""
        return self.process.log

    def launch(self) -> None:
        """Start it; `wait` says when it serves."""
        self.process.start()

    def wait(self) -> None:
        """Until it serves: the controller knows it and has given it its partitions."""
        self.process.wait_ready(lambda: "Kafka Server started" in self.process.output)
        self.process.wait_ready(lambda: self.id in living(self.bootstrap))

    def start(self) -> None:
        """Start it again; returns when it serves."""
        self.launch()
        self.wait()

    def stop(self) -> None:
        """SIGTERM. Leaders move first only with the override `controlled.shutdown.enable`."""
        self.resume()
        self.process.stop()

    def kill(self) -> None:
        """A crash: SIGKILL."""
        self.process.kill()
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered. After the session timeout (3 s) it is fenced."""
        self.process.pause()
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.process.resume()
        self.paused = False


class KafkaCluster:
    """Starts on entering the context; brokers have the ids 1, 2, 3 and so on.

    `overrides` are server properties of all nodes, on top of small test defaults. `racks` give brokers their
    `broker.rack`. `class_path`: what brokers load besides Kafka's jars. `late_ms`: by how much they may learn late what
    the controller has decided, one after the other. The controller answers as long as the context lives: only brokers
    are killed.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        overrides: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
        jvm: Sequence[str] = BROKER_JVM,
        class_path: Sequence[str] = (),
        late_ms: int = LATE_MS,
    ) -> None:
        self.cluster_id = new_id()
        self._ids = range(1, brokers + 1)
        self._overrides = dict(overrides or {})
        self._racks = dict(racks or {})
        self._jvm = list(jvm)
        self._class_path = [*class_path, *(tools.late_class_path() if late_ms else ())]
        self._late_ms = late_ms
        self._brokers: dict[int, ClusterBroker] = {}

    def __enter__(self) -> Self:
        self._state = State.create("kafka-cluster")
        try:
            controller_port, *ports = system.free_ports(1 + len(self._ids), _HOST)
            voters = {"controller.quorum.voters": f"{_CONTROLLER}@{_HOST}:{controller_port}"}
            self._controller = self._prepare_controller(controller_port, voters)
            self._controller.start()
            for number, port in zip(self._ids, ports, strict=True):
                self._brokers[number] = self._prepare_broker(number, port, voters)
            self.start()
            self.wait_until_registered()  # a client that hears of fewer brokers drops what it asks of the others
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()
        self._controller.kill()
        self._state.destroy(grace=0)

    # ---- brokers

    @property
    def brokers(self) -> list[ClusterBroker]:
        """All of them, by id, also those that do not run."""
        return list(self._brokers.values())

    def broker(self, number: int) -> ClusterBroker:
        """The broker with this id."""
        return self._brokers[number]

    @property
    def addresses(self) -> list[str]:
        """The addresses of all brokers, as a spec's `bootstrapServers` takes them."""
        return [broker.bootstrap for broker in self.brokers]

    @property
    def bootstrap(self) -> str:
        """The same in one word, as librdkafka takes them."""
        return ",".join(self.addresses)

    def start(self, *numbers: int) -> None:
        """Start these brokers (all that do not run, if none is named) side by side; returns when they serve."""
        wanted = [self.broker(n) for n in numbers] or [b for b in self.brokers if not b.process.running]
        for broker in wanted:
            broker.launch()
        for broker in wanted:
            broker.wait()

    def kill(self, *numbers: int) -> None:
        """SIGKILL to these brokers, or to all, at the same time."""
        wanted = [self.broker(number) for number in numbers] or self.brokers
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(ClusterBroker.kill, wanted))

    def lead_alone(self, topic: str, partition: int = 0) -> None:
        """Broker 1 leads the partition, and the other replica, on broker 2, gets nothing of what is written now."""
        self.alter_topic(topic, {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})
        self.reassign(topic, partition, [1, 2])
        self.elect(topic, partition)
        self.wait_for_leader(topic, partition, among=[1])
        self.kill(2)
        self.wait_in_sync(topic, partition, replicas=[1])

    def lose_what_was_alone(self, topic: str, partition: int = 0) -> None:
        """Behind `lead_alone`: an unclean election makes broker 2 the leader, which has nothing of it."""
        self.kill(1)
        self.start(2)
        self.wait_for_leader(topic, partition, among=[2])

    def strand(self, topic: str, number: int, partition: int = 0) -> None:
        """Leave this broker as the partition's only replica in sync, and let it come back alone: it leads with all its
        records, and with a high watermark that it has forgotten. With `min.insync.replicas` above 1 that rises only
        when another replica is back. (It is not killed: Kafka 4.1 takes a replica that crashed for one that may have
        lost records, and elects it only where clusters are older.)
        """
        self.kill(*(other for other in self.placed(topic, partition).replicas if other != number))
        self.wait_in_sync(topic, partition, replicas=[number])
        self.broker(number).stop()
        (self.broker(number).data_dir / "replication-offset-checkpoint").unlink()  # it is written every few seconds
        self.start(number)
        self.wait_for_leader(topic, partition, among=[number])

    def restore(self) -> None:
        """Every broker runs, is registered and in sync with all that it has replicas of: as at the beginning."""
        for broker in self.brokers:
            if broker.paused:
                broker.resume()
        self.start()
        self.wait_until_registered()
        self.wait_in_sync()

    # ---- what the cluster knows

    def admin(self) -> AdminClient:
        """A client of the brokers that serve now, which knows nothing of earlier leaders.

        Keep it in a name of its own while it is asked: what it has under way ends with it.
        """
        serving = ",".join(broker.bootstrap for broker in self.brokers if broker.serves)
        return AdminClient({"bootstrap.servers": serving, "log_level": 0})

    def wait_until_registered(self, *numbers: int) -> None:
        """Until each broker that serves knows exactly these brokers as living, or all of the cluster."""
        wanted = frozenset(numbers or self._ids)
        living = f"the brokers {sorted(wanted)} to be the living ones"
        wait_until(lambda: self._all_know(lambda view: frozenset(view.brokers) == wanted), 60, living)

    def _all_know(self, holds: Callable[[ClusterMetadata], bool]) -> bool:
        """Whether it holds of the cluster as each broker that serves knows it: one that hung knows it as it was."""
        for broker in self.brokers:
            if broker.serves:
                admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
                try:
                    if not holds(admin.list_topics(timeout=30)):
                        return False
                except KafkaException:
                    return False
        return True

    def wait_until_gone(self, topic: str) -> None:
        """Until no broker that serves knows the topic: one that learns late leads it and gives its records."""
        wait_until(lambda: self._all_know(lambda view: topic not in view.topics), 60, f"the end of topic {topic}")

    def placed(self, topic: str, partition: int = 0) -> Placed:
        """Where a partition lies. Waits for it: a broker may not know it yet."""
        found = _NOWHERE

        def known() -> bool:
            nonlocal found
            found = self._try_placed(topic, partition)
            return found is not _NOWHERE

        wait_until(known, 60, f"a broker that knows {topic}-{partition}")
        return found

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the broker that leads the partition, -1 if none does."""
        return self.placed(topic, partition).leader

    def wait_for_leader(self, topic: str, partition: int = 0, *, among: Sequence[int] = ()) -> int:
        """Until a broker that serves leads the partition, one of `among` if some are named; returns its id."""
        wanted = set(among or self._ids)
        leader = -1

        def led() -> bool:
            nonlocal leader  # asked once more, another broker may not know the topic yet
            leader = self._try_placed(topic, partition).leader
            return leader in wanted and self.broker(leader).serves

        wait_until(led, 60, f"a leader of {topic}-{partition} among {sorted(wanted)}")
        return leader

    def wait_in_sync(self, topic: str | None = None, partition: int = 0, *, replicas: Sequence[int] = ()) -> None:
        """Until exactly `replicas` are in sync, or all that the partition has; without a topic: of all partitions."""
        if topic is not None:
            name = topic

            def in_sync() -> bool:
                found = self._try_placed(name, partition)
                return found.leader >= 0 and found.in_sync == frozenset(replicas or found.replicas)

            wait_until(in_sync, 60, f"{name}-{partition} to be in sync on {list(replicas) or 'all its replicas'}")
            return

        def in_sync_there(view: ClusterMetadata) -> bool:
            partitions = [part for found in view.topics.values() for part in found.partitions.values()]
            return all(len(part.isrs) == len(part.replicas) for part in partitions)

        wait_until(lambda: self._all_know(in_sync_there), 60, "all partitions to be in sync")

    def _try_placed(self, topic: str, partition: int) -> Placed:
        try:
            found = self.admin().list_topics(topic, timeout=30).topics[topic].partitions[partition]
        except (KafkaException, KeyError):
            return _NOWHERE
        return Placed(found.leader, tuple(found.replicas), frozenset(found.isrs))

    # ---- what is changed

    def create_topic(
        self, name: str, replicas: Sequence[Sequence[int]], config: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic with these replicas of each partition, the first the leader; returns when all are in sync."""
        assignment = [list(ids) for ids in replicas]
        new = NewTopic(name, len(assignment), replica_assignment=assignment, config=dict(config or {}))
        admin = self.admin()
        admin.create_topics([new], operation_timeout=20)[name].result(30)
        wait_until(lambda: self._all_know(lambda view: name in view.topics), 60, f"all brokers to know topic {name}")
        for partition, ids in enumerate(replicas):
            self.wait_for_leader(name, partition, among=ids)
            self.wait_in_sync(name, partition, replicas=ids)

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Set configurations of a topic."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        admin = self.admin()
        admin.incremental_alter_configs([resource])[resource].result(30)

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make a replica in sync the leader: it becomes the first of the replicas, and the preferred one is elected."""
        placed = self.placed(topic, partition)
        if placed.leader == to:
            return
        others = [number for number in placed.replicas if number != to]
        self.reassign(topic, partition, [to, *others])
        self.elect(topic, partition, ElectionType.PREFERRED)
        self.wait_for_leader(topic, partition, among=[to])

    def elect_unclean(self, topic: str, number: int, partition: int = 0) -> None:
        """Let a replica lead that is not in sync, when no other can: what it does not have is cut off for good."""
        wait_until(lambda: self._try_placed(topic, partition).leader < 0, 60, f"{topic}-{partition} to have no leader")
        self.elect(topic, partition, ElectionType.UNCLEAN)
        self.wait_for_leader(topic, partition, among=[number])

    def elect(self, topic: str, partition: int = 0, kind: ElectionType = ElectionType.PREFERRED) -> None:
        """Ask the controller for an election: PREFERRED, or UNCLEAN among replicas that are not in sync."""
        where = TopicPartition(topic, partition)
        admin = self.admin()
        for problem in admin.elect_leaders(kind, [where]).result(60).values():
            if problem is not None and problem.code() != KafkaError.ELECTION_NOT_NEEDED:
                raise KafkaException(problem)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Give a partition these replicas, in this order; returns when it has them."""
        serving = next(broker for broker in self.brokers if broker.serves)
        _alter_reassignment(serving.bootstrap, topic, partition, replicas)
        wanted = tuple(replicas)
        wait_until(
            lambda: self._try_placed(topic, partition).replicas == wanted, 60, f"{topic}-{partition} on {wanted}"
        )

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        for process in (self._controller, *(broker.process for broker in self.brokers)):
            shutil.copy(process.log, folder / f"{self._state.path.name}-{process.name}.log")

    # ---- preparing

    def _prepare_controller(self, port: int, voters: Mapping[str, str]) -> Process:
        data = self._state.data / "data-controller"
        properties = self._write(
            _CONTROLLER,
            {"process.roles": "controller", "listeners": f"CONTROLLER://{_HOST}:{port}", "log.dirs": str(data)},
            voters,
        )
        format_data_dir(data, self.cluster_id, _CONTROLLER, controller=True)
        return Process(self._state, "controller", [*java(CONTROLLER_JVM), "kafka.Kafka", properties])

    def _prepare_broker(self, number: int, port: int, voters: Mapping[str, str]) -> ClusterBroker:
        own = {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{_HOST}:{port}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{port}",
            "log.dirs": str(self._state.data / f"data-{number}"),
            **late_settings(self._late_ms),
        }
        if number in self._racks:
            own["broker.rack"] = self._racks[number]
        properties = self._write(number, own, voters)
        process = Process(
            self._state, f"broker-{number}", [*java(self._jvm, class_path=self._class_path), "kafka.Kafka", properties]
        )
        broker = ClusterBroker(self._state, number, port, process)
        format_data_dir(broker.data_dir, self.cluster_id, number, controller=False)
        return broker

    def _write(self, number: int, own: Mapping[str, str], voters: Mapping[str, str]) -> Path:
        path = self._state.path / f"server-{number}.properties"
        write_properties(path, {**SMALL, **_REPLICATED, "node.id": str(number), **own, **voters, **self._overrides})
        return path


def _alter_reassignment(address: str, topic: str, partition: int, replicas: Sequence[int]) -> None:
    """AlterPartitionReassignments version 0, which librdkafka does not know. Any broker hands it to the controller."""
    name = topic.encode()
    body = struct.pack(">ib", 30_000, 2) + bytes([len(name) + 1]) + name
    body += struct.pack(">bib", 2, partition, len(replicas) + 1) + struct.pack(f">{len(replicas)}i", *replicas)
    body += bytes(3)  # no tagged fields: of the partition, of the topic, of the request
    client = b"test-bed"
    head = struct.pack(">hhih", 45, 0, 1, len(client)) + client + b"\x00"
    request = head + body
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        content = answer.read(size)
    (code,) = struct.unpack_from(">h", content, 9)  # after correlation id, tags and throttle time
    if code:
        raise RuntimeError(f"reassigning {topic}-{partition} to {list(replicas)}: error {code}")
