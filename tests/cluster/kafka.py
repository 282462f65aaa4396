"""A real Kafka broker: one KRaft node that is broker and controller, from the jars of the Java registry."""

import os
import secrets
import shutil
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from functools import cache as once
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.cluster import cache, system, tools, versions
from tests.cluster.exercise import exercise
from tests.cluster.pki import Authority, Certificate
from tests.cluster.process import Process, wait_until
from tests.cluster.state import State

_CACHED = "-XX:AOTMode=auto"
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A broker that is ready soon and stays small, of any Java."""
JVM = (*SMALL_JVM, _CACHED)
"""Such a broker with the cache of classes. A benchmark gives its own options."""

SMALL = {
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": ",".join(
        ("PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT", "SASL_PLAINTEXT:SASL_PLAINTEXT", "SSL:SSL", "SASL_SSL:SASL_SSL")
    ),
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",  # a killed broker may register again only after this
    "controlled.shutdown.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "metadata.max.idle.interval.ms": "0",  # a controller with nothing to say writes nothing
    # Each of these threads wakes up several times a second, whether there is something to do or not.
    "num.network.threads": "1",
    "num.io.threads": "2",
    "background.threads": "2",
}
"""Server properties of a node that answers soon and keeps little."""

STEADY = {"broker.heartbeat.interval.ms": "5000", "broker.session.timeout.ms": "30000"}
"""Server properties of a broker that nobody kills: a busy machine may hold it up for seconds, and it is not dead."""

CALM = {
    "log.cleaner.backoff.ms": "15000",
    "log.retention.check.interval.ms": "30000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
}
"""Server properties of a broker where nothing is compacted, too old or given up: at rest it takes a third less."""

USERNAME = "logkeep"
"""Who logs in at secure brokers."""

_TRAIN = "-XX:AOTCacheOutput="
# At the address that it was made for, the cache is mapped and not copied (`logkeep_engine.spark.classes`). Nobody
# reads the JVM's counters. Each start takes a tenth less.
_QUICK = ("-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0", "-XX:-UsePerfData")
# Else Java 25 warns, in the output of tools, of codecs that load libraries and of Kafka's files in memory.
_CALM_JAVA = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")


LATE_MS = int(os.environ.get("LOGKEEP_LATE_MS", "0"))
"""Milliseconds by which brokers learn late what their controllers have decided. Tests must hold with 900 too: on a busy
machine it happens by itself."""


def late_settings(late_ms: int) -> dict[str, str]:
    """Server properties of a broker that learns late; none for 0. It needs `tools.late_class_path`."""
    return {"metric.reporters": "dev.logkeep.bed.LateMetadata", "late.ms": str(late_ms)} if late_ms else {}


def living(bootstrap: str) -> set[int]:
    """The ids of the brokers that the broker at this address names as living, none if it does not answer.

    A broker writes that it has started before it knows of itself. Whoever asks it then is told that there is no broker,
    and librdkafka waits for a controller until it asks again, minutes later.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        return set(admin.list_topics(timeout=10).brokers)
    except KafkaException:
        return set()


def java(
    jvm: Sequence[str] = JVM,
    log_level: str = "INFO",
    class_path: Sequence[str] = (),
    version: str = versions.DEFAULT,
) -> list[str]:
    """The beginning of a command that runs a class of Kafka's. `class_path`: what it needs besides Kafka's jars."""
    logging = [f"-Dlog4j2.configurationFile={tools.FILES / 'log4j2.properties'}", f"-Dlogkeep.log.level={log_level}"]
    classes = ["-cp", ":".join([f"{tools.kafka_jars(version)}/*", *class_path])]
    if not (has_cache(version) and versions.runs_on_new_java(version)):
        jvm = [option for option in jvm if option != _CACHED]
    if not versions.runs_on_new_java(version):
        return ["java", *jvm, *logging, *classes]
    if _CACHED in jvm and not any(option.startswith(_TRAIN) for option in jvm):
        # Java says nothing of a cache that does not fit: tests read the output of tools.
        jvm = [*jvm, f"-XX:AOTCache={class_cache()}", *_QUICK, "-Xlog:disable", "-Xlog:all=error:stderr"]
    return [str(tools.java()), *jvm, *_CALM_JAVA, *logging, *classes]


def has_cache(version: str) -> bool:
    """Whether there is a cache of classes for this version of Kafka: for the one that nearly all tests run, since it
    takes longer to make than it saves others."""
    return version == versions.DEFAULT and versions.runs_on_new_java(version)


@once
def class_cache() -> Path:
    """Kafka's classes as a broker has loaded and linked them (JEP 483, JEP 514), ready to be mapped: each start takes
    less than half the time of a processor.

    Made once for a Java and a folder of jars, by a broker that does what tests ask of one.
    """

    def produce(folder: Path) -> None:
        train = (*JVM, f"{_TRAIN}{folder / 'kafka.aot'}")
        rights = {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }
        with KafkaBroker(jvm=train, late_ms=0, secure=True, overrides=rights) as broker:
            exercise(broker.bootstrap)
            broker.process.stop(grace=300)
        if not (folder / "kafka.aot").exists():
            raise RuntimeError("Java made no cache of Kafka's classes when its broker stopped")

    key = cache.digest(str(tools.java()), *_jars(versions.DEFAULT))
    return cache.build("kafka-classes", key, produce, keep=len(versions.KNOWN)) / "kafka.aot"


def _jars(version: str) -> list[str]:
    """Kafka's jars and when each was made: Java compares them with what it sees at each start."""
    jars = sorted(tools.kafka_jars(version).glob("*.jar"))
    return [f"{jar} {jar.stat().st_mtime_ns}" for jar in jars]


@once
def formatted(version: str = versions.DEFAULT) -> Path:
    """The files that Kafka's tool writes into the data folder of a controller: in the folder `plain`, and in `secure`
    with a SCRAM user whose password is in `password`. Nothing in them names a cluster or a node.

    Made once for a folder of jars: each start of a controller has a JVM less to wait for.
    """

    def produce(folder: Path) -> None:
        password = secrets.token_urlsafe(16)
        (folder / "password").write_text(password)
        scram = ["--add-scram", f"SCRAM-SHA-512=[name={USERNAME},password={password}]"]
        for name, more in (("plain", []), ("secure", scram)):
            settings = {
                "process.roles": "controller",
                "node.id": "1",
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": "1@127.0.0.1:1",
                "listeners": "CONTROLLER://127.0.0.1:1",
                "log.dirs": str(folder / name),
            }
            properties = folder / f"{name}.properties"
            write_properties(properties, settings)
            # Without the archive of classes: the broker that makes it has a data folder too.
            tool = [*java(("-XX:TieredStopAtLevel=1",), "WARN", version=version), "kafka.tools.StorageTool", "format"]
            system.run([*tool, "-t", new_id(), "-c", str(properties), *more])
            (folder / name / "meta.properties").unlink()
            properties.unlink()

    return cache.build("kafka-formatted", cache.digest(*_jars(version)), produce, keep=2 * len(versions.KNOWN))


def format_data_dir(
    folder: Path,
    cluster_id: str,
    node: int,
    *,
    controller: bool,
    secure: bool = False,
    version: str = versions.DEFAULT,
) -> None:
    """Make the data folder of a node, with the files that Kafka's tool would write into it.

    A `secure` controller's cluster has the SCRAM user.
    """
    folder.mkdir()
    facts = {"version": "1", "cluster.id": cluster_id, "node.id": str(node), "directory.id": new_id()}
    write_properties(folder / "meta.properties", facts)
    if controller:
        shutil.copytree(formatted(version) / ("secure" if secure else "plain"), folder, dirs_exist_ok=True)


def new_id() -> str:
    """One that Kafka's tool does not take for an option, as it would one with a dash first."""
    return "L" + urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:].rstrip("=")


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Server properties, as Kafka reads them."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


class Brokers(Protocol):
    """A cluster, as far as clients see it."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def bootstrap(self) -> str: ...

    @property
    def addresses(self) -> list[str]: ...


class KafkaBroker:
    """Starts on entering the context, on free ports that stay the same over `stop`, `kill` and `start`.

    `host` is the address to listen on and to advertise; with `netns` the broker runs inside that network namespace (a
    `Node`'s, on the node's address, so that pods and host reach it). `overrides` are server properties on top of
    small test defaults. `secure=True` adds three listeners: `sasl_bootstrap` (SASL_PLAINTEXT), `ssl_bootstrap` (SSL,
    client certificates accepted) and `sasl_ssl_bootstrap` (SASL_SSL); SASL is PLAIN and SCRAM-SHA-512 with `username`
    and `password`, TLS is trusted by `ca_pem`. `cluster_id` keeps the same id for a second broker that plays a
    restored cluster. `late_ms`: by how much it may learn late what its controller has decided. `version` is one of
    Kafka that needs no ZooKeeper; for older ones there is `OldBroker`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        netns: str | None = None,
        overrides: Mapping[str, str] | None = None,
        secure: bool = False,
        jvm: Sequence[str] = JVM,
        cluster_id: str | None = None,
        late_ms: int = LATE_MS,
        version: str = versions.DEFAULT,
    ) -> None:
        self.version = version
        self.host = host
        self.netns = netns
        self.secure = secure
        self.username = USERNAME
        self.cluster_id = cluster_id or new_id()
        self._overrides = dict(overrides or {})
        self._jvm = list(jvm)
        self._late_ms = late_ms
        self._running: Process | None = None

    def __enter__(self) -> Self:
        self._state = State.create("kafka")
        self._data = self._state.data / "data"
        try:
            names = ["PLAINTEXT", "CONTROLLER"] + (["SASL_PLAINTEXT", "SSL", "SASL_SSL"] if self.secure else [])
            self._ports = dict(zip(names, system.free_ports(len(names), self.host, self.netns), strict=True))
            if self.secure:
                self._issue_certificates()
            self._hosts = self._state.path / "hosts"
            self._hosts.write_text(f"{self.host} kafka\n")
            self._properties = self._state.path / "server.properties"
            roles = {"process.roles": "broker,controller", "node.id": "1"}
            own = {**late_settings(self._late_ms), **self._own_settings()}
            write_properties(self._properties, {**SMALL, **roles, **self._listeners(), **own, **self._overrides})
            self._format()
            command: list[str | Path] = [*self._java(), "kafka.Kafka", self._properties]
            self._running = Process(self._state, "kafka", command, netns=self.netns)
            self.start()
        except BaseException:
            self._state.destroy(grace=0)
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.kill()
        self._state.destroy(grace=0)

    @cached_property
    def password(self) -> str:
        """The password of `username` at a secure broker."""
        return (formatted(self.version) / "password").read_text()

    @property
    def bootstrap(self) -> str:
        """The PLAINTEXT address, `host:port`."""
        return self._address("PLAINTEXT")

    @property
    def addresses(self) -> list[str]:
        """The PLAINTEXT addresses, as a spec's `bootstrapServers` takes them."""
        return [self.bootstrap]

    @property
    def sasl_bootstrap(self) -> str:
        """The SASL_PLAINTEXT address of a secure broker."""
        return self._address("SASL_PLAINTEXT")

    @property
    def ssl_bootstrap(self) -> str:
        """The SSL address of a secure broker."""
        return self._address("SSL")

    @property
    def sasl_ssl_bootstrap(self) -> str:
        """The SASL_SSL address of a secure broker."""
        return self._address("SASL_SSL")

    def _address(self, listener: str) -> str:
        return system.host_port(self.host, self._ports[listener])

    @property
    def data_dir(self) -> Path:
        """The broker's log folder: `<topic>-<partition>/00000000000000000000.log` and so on."""
        return self._data

    @property
    def log(self) -> Path:
        """The log that the broker wrote about itself."""
        return self.process.log

    @property
    def process(self) -> Process:
        """The broker's process, for signals."""
        if self._running is None:
            raise RuntimeError("the broker is started by entering its context")
        return self._running

    def start(self) -> None:
        """Start it again on the same ports and data; returns when it serves."""
        self.process.start()
        self.process.wait_ready(lambda: "Kafka Server started" in self.process.output)
        if "advertised.listeners" not in self._overrides:  # else somebody in between answers, or does not
            self.process.wait_ready(lambda: bool(living(self.bootstrap)))

    def stop(self) -> None:
        """A clean shutdown."""
        self.process.stop()

    def kill(self) -> None:
        """A crash: SIGKILL."""
        if self._running is not None:
            self._running.kill()

    def wait_until_cleaned(self, topic: str, partition: int = 0) -> None:
        """Until the cleaner has compacted all that lies before the active segment: then it leaves the log as it is."""
        folder = self.data_dir / f"{topic}-{partition}"

        def cleaned() -> bool:
            lines = (self.data_dir / "cleaner-offset-checkpoint").read_text().splitlines()
            reached = [int(line.split()[2]) for line in lines if line.startswith(f"{topic} {partition} ")]
            return bool(reached) and reached[0] >= max(int(log.stem) for log in folder.glob("*.log")) > 0

        wait_until(cleaned, 120, f"the cleaner to be done with {topic}-{partition}")

    def tool(self, main_class: str, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's Java tools where the broker runs. `kafka_tools` has one that needs no broker."""
        command = system.in_namespace(self.netns, [*self._java("WARN"), main_class, *arguments])
        return system.run(command, check=check)

    def collect_logs(self, folder: Path) -> None:
        """Copy what explains a failure."""
        shutil.copy(self.log, folder / f"{self._state.path.name}.log")

    def _java(self, log_level: str = "INFO") -> list[str]:
        # Java asks for the name of each SASL client's address; in a node's namespace no name server ever answers.
        names = [f"-Djdk.net.hosts.file={self._hosts}"] if self.netns else []
        classes = dict.fromkeys([*self._class_path(), *(tools.late_class_path() if self._late_ms else ())])
        return java([*self._jvm, *names], log_level, list(classes), self.version)

    def _class_path(self) -> Sequence[str]:
        """The classes that this kind of broker needs besides Kafka's jars."""
        return ()

    def _own_settings(self) -> Mapping[str, str]:
        """Server properties of this kind of broker; `overrides` win."""
        return {}

    def _format(self) -> None:
        format_data_dir(self.data_dir, self.cluster_id, 1, controller=True, secure=self.secure, version=self.version)

    def _issue_certificates(self) -> None:
        authority = Authority(self._state.path / "pki")
        names = f"DNS:localhost,IP:127.0.0.1,IP:{self.host}"
        self.ca_pem = authority.cert
        self._server = authority.issue("server", "/CN=kafka", names)
        self.client_certificate: Certificate = authority.issue("client", "/CN=logkeep")
        both = self._state.path / "pki" / "server-chain.pem"
        both.write_text(self._server.key.read_text() + self._server.cert.read_text())
        self._keystore = both

    def _listeners(self) -> dict[str, str]:
        listeners = ",".join(f"{name}://{self._address(name)}" for name in self._ports)
        advertised = ",".join(part for part in listeners.split(",") if not part.startswith("CONTROLLER"))
        settings = {
            "log.dirs": str(self.data_dir),
            "listeners": listeners,
            "advertised.listeners": advertised,
            "controller.quorum.voters": f"1@{self._address('CONTROLLER')}",
        }
        if not self.secure:
            return settings
        settings |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "ssl.client.auth": "requested",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca_pem),
        }
        user = f'username="{self.username}" password="{self.password}"'
        package = "org.apache.kafka.common.security"
        plain = f'{package}.plain.PlainLoginModule required {user} user_{self.username}="{self.password}";'
        scram = f"{package}.scram.ScramLoginModule required {user};"
        for listener in ("sasl_plaintext", "sasl_ssl"):
            settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = plain
            settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = scram
        return settings
