"""A broker of the oldest Kafka that backups are promised to work with, and a ZooKeeper beside it.

    with OldBroker() as broker: ...
    with OldBroker(protocol="2.7") as broker: ...      # as before 2.8: topics have no ids

Kafka 2.8 is the first that has topic ids, and 3.1 the first that fetches by them. Brokers of 2.8 and 3.0 speak the same
versions of all requests that the engine sends. KRaft of 2.8 has no transactions, so it is of no use here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from tests.cluster import system, versions
from tests.cluster.kafka import SMALL_JVM, KafkaBroker, write_properties
from tests.cluster.process import Process


class OldBroker(KafkaBroker):
    """A broker like `KafkaBroker`, but without TLS and SASL. `protocol` is its `inter.broker.protocol.version`."""

    def __init__(self, protocol: str = "", overrides: Mapping[str, str] | None = None) -> None:
        own = {"inter.broker.protocol.version": protocol} if protocol else {}
        super().__init__(overrides={**own, **(overrides or {})}, jvm=SMALL_JVM, late_ms=0, version=versions.OLDEST)
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
        self.process.start()
        # Asked for a topic before its controller takes it for living, this broker never answers.
        self.process.wait_ready(lambda: "[KafkaServer id=1] started" in self.process.output)

    def _format(self) -> None:
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
