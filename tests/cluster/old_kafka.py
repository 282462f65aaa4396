"""A broker of Kafka 3.0, the last version that knows topic ids and does not fetch by them.

    with OldBroker() as broker: ...                    # KRaft
    with OldBroker(protocol="2.7") as broker: ...      # with ZooKeeper, as before 2.8: topics have no ids

Brokers of 2.8 and 3.0 speak the same versions of all requests that the engine sends.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tests.cluster import system, tools
from tests.cluster.kafka import SMALL_JVM, KafkaBroker, write_properties
from tests.cluster.process import Process


class OldBroker(KafkaBroker):
    """A broker like `KafkaBroker`, but without TLS and SASL. With `protocol` (`inter.broker.protocol.version`) it has a
    ZooKeeper beside it."""

    def __init__(self, protocol: str = "") -> None:
        super().__init__(overrides={"inter.broker.protocol.version": protocol} if protocol else {}, late_ms=0)
        self._protocol = protocol
        self._zookeeper: Process | None = None

    def __exit__(self, *arguments: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._zookeeper is not None:
            self._zookeeper.kill()
        super().__exit__(*arguments)

    def __enter__(self) -> Self:
        try:
            return super().__enter__()
        except BaseException:
            if self._zookeeper is not None:
                self._zookeeper.kill()
            raise

    def start(self) -> None:
        """Start it again on the same ports and data; returns when it serves."""
        # Asked for a topic before its controller takes it for living, this broker never answers.
        kraft = ("Kafka Server started", "The broker has been unfenced")
        signs = ("[KafkaServer id=1] started",) if self._protocol else kraft
        self.process.start()
        self.process.wait_ready(lambda: all(sign in self.process.output for sign in signs))

    def _java(self, log_level: str = "INFO") -> list[str]:
        logging = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}"
        return ["java", *SMALL_JVM, logging, "-cp", f"{tools.old_kafka_jars()}/*"]

    def _format(self) -> None:
        if self._protocol:
            self._start_zookeeper()
        else:
            self.tool("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", self._properties)

    def _start_zookeeper(self) -> None:
        (port,) = system.free_ports(1, self.host, self.netns)
        facts = dict(line.split("=", 1) for line in self._properties.read_text().splitlines())
        kraft = ("process.roles", "node.id", "controller.quorum.voters", "controller.listener.names")
        listeners = f"PLAINTEXT://{self.bootstrap}"
        with_zookeeper = {"zookeeper.connect": f"{self.host}:{port}", "broker.id": "1", "listeners": listeners}
        write_properties(
            self._properties, {**{key: value for key, value in facts.items() if key not in kraft}, **with_zookeeper}
        )
        settings = self._state.path / "zookeeper.properties"
        write_properties(
            settings,
            {
                "dataDir": str(self._state.path / "zookeeper-data"),
                "clientPort": str(port),
                "clientPortAddress": self.host,
                "admin.enableServer": "false",
            },
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        self._zookeeper = Process(self._state, "zookeeper", [*self._java(), main, settings])
        self._zookeeper.start()
        self._zookeeper.wait_ready(lambda: system.accepts(self.host, port))
