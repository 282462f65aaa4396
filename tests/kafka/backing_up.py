"""Backups of a real broker: how the tests fill topics, run backups, and look at what was archived."""

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic
from pyspark import SparkContext

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Timing
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.log.batch import walk
from logkeep_engine.log.records import Record, decode
from logkeep_engine.report import Reporter, Sink
from logkeep_engine.spark.in_driver import InDriverRunner
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import Storage, open_storage
from logkeep_engine.tasks import TaskRunner
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.kfake import Kfake
from tests.cluster.process import wait_until
from tests.data.topics import commit_positions, create_topic, end_transaction, wait_until_led
from tests.kafka.archived_files import ArchivedFile

WATCH = Timing(heartbeat=0.2, watch=2.0, poll=0.1)
"""How the runs of tests watch others in the archive: those that died are not waited for as long as in production."""


FOR_TEST = ArchiveClaim(acts_for="test")
"""The claim of whoever writes once into an archive of these backups, which are all of one name."""

POD = {
    "LOGKEEP_POD_NAME": "nightly-x7k2p",
    "LOGKEEP_POD_IP": "127.0.0.1",
    "LOGKEEP_POD_NAMESPACE": "test",
    "KUBERNETES_SERVICE_HOST": "127.0.0.1",
    "KUBERNETES_SERVICE_PORT": "1",
}
"""The environment of a pod whose driver asks Kubernetes for nothing."""

LARGEST_BATCH = 900_000
"""Bytes of values: a producer cuts larger batches, whatever number of records is asked for."""

MOST_UNANSWERED = 100_000
"""Messages that a producer of a test holds for one broker before it waits."""


class Topics:
    """Makes and fills topics of one broker or of a cluster (whose replicas `KafkaCluster.create_topic` places)."""

    def __init__(self, broker: Brokers) -> None:
        self.broker = broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def create(self, name: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        create_topic(self.broker.bootstrap, name, partitions, settings)
        return name

    def create_compacted(self, name: str) -> None:
        """A topic of offsets 0 to 12,009 of which the broker's cleaner has left a part."""
        self.create(
            name,
            cleanup_policy="compact",
            segment_bytes="1048576",
            min_cleanable_dirty_ratio="0.01",
            max_compaction_lag_ms="200",
        )
        self.produce(name, numbers(12_000, 200), key=lambda number: b"%d" % (number % 50 or number), batch=20)
        self.produce(name, numbers(10), key=lambda number: b"last %d" % number)
        if isinstance(self.broker, Kfake):
            self.broker.wait_until_cleaned(name)
        else:
            self._single().wait_until_cleaned(name)

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)
        if isinstance(self.broker, KafkaCluster):
            self.broker.wait_until_gone(name)
            return
        wait_until(lambda: self._is_gone(name), 60, f"the end of topic {name}")

    def _is_gone(self, name: str) -> bool:
        """Whether the broker knows the topic no more, and its controller takes one of that name: where ZooKeeper has
        the topics, that comes later."""
        if name in self.admin.list_topics(timeout=30).topics:
            return False
        (asked,) = self.admin.create_topics([NewTopic(name, 1)], validate_only=True).values()
        try:
            asked.result(30)
        except KafkaException as problem:
            if problem.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def produce(
        self,
        topic: str,
        values: Iterable[bytes],
        *,
        partition: int = 0,
        codec: str = "none",
        batch: int = 100,
        key: Callable[[int], bytes] | None = None,
    ) -> None:
        """Batches of exactly `batch` records each, and one with what is left."""
        full, numbered = self._producer(codec, batch), enumerate(values)
        # Among several brokers a batch must not overtake one that waits for a broker that leads no more.
        unanswered = MOST_UNANSWERED if isinstance(self.broker, KafkaBroker) else 0
        while some := list(islice(numbered, batch)):
            producer = full
            if len(some) < batch:
                _wait_for_answers(full)
                producer = self._producer(codec, len(some))
            for at, value in some:
                producer.produce(topic, value, key=key(at) if key else None, partition=partition, on_delivery=_refuse)
            if sum(len(value) for _, value in some) > LARGEST_BATCH:
                assert producer.flush(60) == 0
            _wait_for_answers(producer, at_most=unanswered if producer is full else 0)
        _wait_for_answers(full)

    def _producer(self, codec: str, batch: int) -> Producer:
        """It sends as soon as `batch` records are there. A flush would send fewer while they are just coming in."""
        settings = {"bootstrap.servers": self.broker.bootstrap, "compression.type": codec, "linger.ms": 200_000}
        size = {"batch.num.messages": batch, "queue.buffering.max.messages": 2 * MOST_UNANSWERED}
        return Producer({**settings, **size})

    def transaction(
        self, topic: str, values: Iterable[bytes], *, commit: bool, partition: int = 0, batch: int = 10_000
    ) -> None:
        producer = self.open_transaction(topic, values, partition=partition, batch=batch)
        self.end(producer, topic, commit=commit, partition=partition)

    def open_transaction(
        self, topic: str, values: Iterable[bytes], *, partition: int = 0, batch: int = 10_000
    ) -> Producer:
        """A producer whose transaction has sent `values`, at most `batch` records a batch, and is still open."""
        settings = {"transactional.id": secrets.token_hex(8), "batch.num.messages": batch}
        settings |= {"transaction.timeout.ms": 900_000}  # a broker aborts one that is open for longer
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, **settings})
        producer.init_transactions(60)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=_refuse)
        assert producer.flush(120) == 0
        return producer

    def end(self, producer: Producer, topic: str, *, commit: bool, partition: int = 0) -> None:
        """End an open transaction; returns when its marker is in the log."""
        end_transaction(self.broker.bootstrap, producer, [(topic, partition)], commit=commit)

    def commit_position(self, group: str, topic: str, offset: int, partition: int = 0) -> None:
        commit_positions(self.broker.bootstrap, group, {(topic, partition): offset})

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions."""
        before = len(self.admin.list_topics(name, timeout=30).topics[name].partitions)
        self.admin.create_partitions([NewPartitions(name, partitions)])[name].result(30)
        wait_until_led(self.broker.bootstrap, name, range(before, partitions))

    def delete_records(self, topic: str, before: int, partition: int = 0) -> None:
        where = TopicPartition(topic, partition, before)
        for future in self.admin.delete_records([where]).values():
            future.result(30)

    def log(self, topic: str, partition: int = 0) -> bytes:
        """The partition's log as it lies on the broker's disk."""
        files = sorted((self.data_dir / f"{topic}-{partition}").glob("*.log"))
        return b"".join(file.read_bytes() for file in files)

    @property
    def data_dir(self) -> Path:
        """The log folder of the one broker."""
        return self._single().data_dir

    def _single(self) -> KafkaBroker:
        if not isinstance(self.broker, KafkaBroker):
            raise TypeError("a cluster has more than one data folder")
        return self.broker


@dataclass
class Backups:
    """Runs backups into one storage and opens what they made.

    Tasks run on Spark, or, with a `nursery`, in processes of it, as in the driver of a small run: each run takes a
    third less of a processor, and attempts are counted in the same way. `context` gives a Spark where it is wanted: a
    lane in which no test wants one does not start it.
    """

    broker: Brokers
    storage_spec: Mapping[str, Any]
    context: Callable[[], SparkContext] | None = None
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    wrap: Callable[[TaskRunner], TaskRunner] = lambda runner: runner
    timing: Timing = WATCH
    nursery: Nursery | None = None

    def runner(self) -> TaskRunner:
        """Runs tasks where this runs them."""
        if self.nursery is not None:
            return InDriverRunner(self.nursery, 2, self.environ)
        assert self.context is not None
        return SparkRunner(self.context())

    def spec(self, *include: str, **changes: Any) -> dict[str, Any]:
        return {
            "cluster": {"bootstrapServers": self.broker.addresses},
            "topics": {"include": list(include)},
            "storage": dict(self.storage_spec),
            **changes,
        }

    def run(
        self,
        *include: str,
        run_id: str = "",
        sinks: Sequence[Sink] = (),
        reconcile: bool | None = None,
        heal: bool = False,
        **changes: Any,
    ) -> RunResult:
        """One run over the topics that `include` matches; `changes` are fields of the spec. With `reconcile` it looks
        for stale keys, and with `heal` it lets the next one heal them."""
        spec = self.spec(*include, **changes)
        if heal:
            spec["reconcile"] = {"cron": "@daily", "heal": True}
        request = RunRequest(
            kind="KafkaBackup",
            name="test",
            namespace="test",
            run_id=run_id or f"run-{secrets.token_hex(4)}",
            spec=spec,
            reconcile=reconcile,
        )
        reporter = Reporter(request.run_id, *sinks)
        result = run_backup(
            request,
            parse_backup(spec),
            lambda: self.wrap(self.runner()),
            reporter,
            self.environ,
            timing=self.timing,
        )
        reporter.finish(result)
        return result

    @cached_property
    def storage(self) -> Storage:
        """Opened once: the clients of an S3 store take a while to make."""
        return open_storage(StorageSpec.model_validate(dict(self.storage_spec)), self.environ)

    @property
    def archive(self) -> Archive:
        return Archive.open(self.storage, FOR_TEST)

    def state(self) -> ArchiveState:
        return self.archive.load()

    def segments(self, topic: str, partition: int = 0) -> list[SegmentEntry]:
        """The segments of all incarnations of the topic."""
        state = self.state()
        ids = [entry.topic_id for entry in state.topics.values() if entry.name == topic]
        return [entry for topic_id in ids for entry in state.segments.get((topic_id, partition), ())]

    def log(self, topic: str, partition: int = 0) -> bytes:
        """The archived batches of a partition, in order."""
        storage = self.storage
        return b"".join(
            ArchivedFile.of(storage, topic, entry).read_bytes() for entry in self.segments(topic, partition)
        )

    def records(self, topic: str, partition: int = 0) -> list[Record]:
        """The archived records, those of aborted transactions included."""
        log = self.log(topic, partition)
        return [record for at, header in walk(log) if not header.is_control for record in decode(log, at)]

    def faults(self) -> list[str]:
        return [str(fault) for fault in verify(self.archive).faults]


def _wait_for_answers(producer: Producer, *, at_most: int = 0) -> None:
    """Wait until the broker has answered for all messages but `at_most`."""
    wait_until(lambda: producer.poll(0.05) >= 0 and len(producer) <= at_most, 120, "the broker's answers")


def _refuse(error: KafkaError | None, _message: object) -> None:
    if error is not None:
        raise KafkaException(error)


def numbers(count: int, size: int = 100, first: int = 0) -> list[bytes]:
    """Values that tell what they are, not quite compressible."""
    return [b"%d " % (first + number) + secrets.token_hex(size // 2).encode()[: size - 12] for number in range(count)]


def folder_spec(folder: Path) -> dict[str, Any]:
    return {"uri": f"file://{folder}"}
