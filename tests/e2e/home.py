"""The things that a test on the node works with: a place of its own, runs made slow, progress watched."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from tests.cluster import system
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kube_api import Document
from tests.cluster.logkeep import Installation, Resource, backup, restore, small
from tests.cluster.s3 import S3Server
from tests.data.compare import compare_topics
from tests.data.quotas import set_byte_rates
from tests.data.topics import NO_RETENTION, create_topic, produce, random_records


@dataclass(frozen=True)
class Throttle:
    """Makes runs long enough to be disturbed: a broker quota on the bytes a second of all clients together."""

    broker: KafkaBroker

    @contextmanager
    def to(self, bytes_per_second: int) -> Iterator[Callable[[], None]]:
        """Hold the quota for reads and for writes; calling what is yielded lifts it early."""
        set_byte_rates(self.broker.bootstrap, bytes_per_second)
        lifted = False

        def lift() -> None:
            nonlocal lifted
            if not lifted:
                lifted = True
                set_byte_rates(self.broker.bootstrap, None)

        try:
            yield lift
        finally:
            lift()


@dataclass(frozen=True)
class Home:
    """A namespace with the Secret `archive-s3`, and a bucket: what one test needs for its resources."""

    logkeep: Installation
    broker: KafkaBroker
    s3: S3Server
    namespace: str
    bucket: str

    @property
    def uri(self) -> str:
        """The archive of this test's backups."""
        return f"s3://{self.bucket}/archive"

    def fill(self, topic: str, partitions: int, megabytes: int) -> int:
        """A topic of random records of 20 kB; returns how many."""
        create_topic(self.broker.bootstrap, topic, partitions, NO_RETENTION)
        return produce(self.broker.bootstrap, topic, random_records(partitions, megabytes))

    def backup(self, topics: str, executors: int = 1, **spec: Any) -> Resource:
        """Apply a KafkaBackup named `saved` of the topics that match."""
        spec = {"spark": small(executors), **spec}
        return self.apply(backup("saved", self.broker.bootstrap, self.s3, self.uri, [topics], **spec))

    def restore(self, executors: int = 1, **spec: Any) -> Resource:
        """Apply a KafkaRestore named `again` of all of `saved`, as `restored.<topic>`."""
        return self.apply(restore("again", self.broker.bootstrap, "saved", **{"spark": small(executors), **spec}))

    def apply(self, document: Document) -> Resource:
        """Apply any of our kinds."""
        return self.logkeep.apply(self.namespace, document)

    def verify(self) -> None:
        """`logkeep verify` of the archive; raises CommandFailed with the faults."""
        self._command("verify")

    def cost(self, prices: Path) -> Any:
        """`logkeep inspect --cost` of the archive, with the prices in a file."""
        return json.loads(self._command("inspect", "--cost", "--prices", str(prices), "-o", "json"))

    def _command(self, name: str, *options: str) -> str:
        keys = {"AWS_ACCESS_KEY_ID": self.s3.access_key, "AWS_SECRET_ACCESS_KEY": self.s3.secret_key}
        place = ["--endpoint", self.s3.endpoint, "--region", self.s3.region]
        return system.run(
            [sys.executable, "-m", "logkeep_engine.cli", name, self.uri, *place, *options], env=keys
        ).stdout

    def check_restored(self, topic: str, records: int) -> None:
        """Fail unless `restored.<topic>` holds exactly the records of the topic, of which there must be so many."""
        found = compare_topics(self.broker.bootstrap, topic, f"restored.{topic}")
        assert found.equal, found
        assert found.records == records, found

    def positions(self, group: str, topic: str, partitions: int) -> dict[int, int]:
        """The committed offsets of a consumer group in a topic; a negative number where it has none."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": group})
        try:
            places = [TopicPartition(topic, number) for number in range(partitions)]
            return {place.partition: place.offset for place in consumer.committed(places, timeout=60)}
        finally:
            consumer.close()

    def pods(self) -> list[str]:
        """Names of all pods in the namespace."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        return [pod["metadata"]["name"] for pod in self.logkeep.api.items(path)]

    def objects(self) -> dict[str, int]:
        """The objects in the bucket and their sizes."""
        top = self.s3.data_dir / self.bucket
        return {str(file.relative_to(top)): file.stat().st_size for file in top.rglob("*") if file.is_file()}


class ProgressWatch:
    """Collects every different `status.progress` of a resource in a thread, from entering to leaving."""

    def __init__(self, resource: Resource) -> None:
        self.seen: list[Document] = []
        self._resource = resource
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._collect)

    def __enter__(self) -> "ProgressWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()  # the last one may have come since the thread looked

    def _collect(self) -> None:
        while not self._over.is_set():
            self._look()
            time.sleep(0.15)

    def _look(self) -> None:
        progress = self._resource.progress
        if progress and (not self.seen or self.seen[-1] != progress):
            self.seen.append(progress)

    def values(self, name: str) -> list[int]:
        """The values of a field in the order they were seen, each once in a row."""
        found = [progress.get(name, 0) for progress in self.seen]
        return [value for index, value in enumerate(found) if index == 0 or value != found[index - 1]]
