"""Backups and restores for the tests of this folder, run as the driver runs them."""

import json
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.offset_map import OffsetMap, read_offset_map
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.tasks import TaskContext, TaskRunner
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.compare import read_all_committed, read_committed
from tests.data.topics import end_transaction
from tests.examples import number
from tests.kafka.backing_up import POD, WATCH
from tests.runners import Context, Job, Runner


class ThreadRunner(Runner):
    """Runs tasks in this process, `copies` of each at the same time, after `before`. Work is pickled as for Spark."""

    def __init__(self, *, copies: int = 1, before: Callable[[Any], None] | None = None) -> None:
        self._copies = copies
        self._before = before
        self.functions: list[str] = []

    def perform(self, job: Job) -> None:
        self.functions.append(job.name)
        for index, item in enumerate(job.work):
            if self._before is not None:
                self._before(item)
            results = self._at_once(pickle.dumps(item), job.function)
            assert len(set(map(repr, results))) == 1
            job.on_result(index, results[0])

    def _at_once(self, item: bytes, function: Callable[[Any, TaskContext], Any]) -> list[Any]:
        results: list[Any] = []
        errors: list[BaseException] = []

        def one(number: int) -> None:
            try:
                results.append(function(pickle.loads(item), Context(number)))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(self._copies)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


@dataclass
class Only(Runner):
    """Hands tasks of one function to `runner`, and all others to a plain one."""

    runner: TaskRunner
    name: str

    def perform(self, job: Job) -> None:
        job.on(self.runner if job.name == self.name else ThreadRunner())


class AtOnce(ThreadRunner):
    """Gives all that is to be restored to one task."""

    def perform(self, job: Job) -> None:
        if job.name == "restore_partitions":
            job = replace(job, work=[tuple(task for group in job.work for task in group)])
        super().perform(job)


def backup_spec(broker: Brokers, root: Path, *topics: str, **more: Any) -> dict[str, Any]:
    return {
        "cluster": {"bootstrapServers": broker.addresses},
        "topics": {"include": list(topics)},
        "storage": {"uri": root.as_uri()},
        **more,
    }


def restore_spec(broker: Brokers, root: Path, *, suffix: str = "-copy", **more: Any) -> dict[str, Any]:
    """Every topic comes back with `suffix` after its name."""
    return {
        "cluster": {"bootstrapServers": broker.addresses},
        "source": {"storage": {"uri": root.as_uri()}},
        "topics": {"rename": [{"from": "(.*)", "to": rf"\1{suffix}"}]},
        **more,
    }


@dataclass(frozen=True)
class Archived:
    """A topic of a cluster and a copy of its archive for one test, which restores it as a topic of its own."""

    cluster: KafkaCluster
    topic: str
    root: Path
    copy: str

    @classmethod
    def of(cls, cluster: KafkaCluster, topic: str, archive: Path, root: Path) -> "Archived":
        """Copy the archive, which tests of a module share, into the folder."""
        return cls(cluster, topic, Path(shutil.copytree(archive, root)), f"{topic}-{secrets.token_hex(3)}")

    def spec(self, broker: Brokers | None = None, **more: Any) -> dict[str, Any]:
        """The restore of the topic as `copy`, into its cluster or another one."""
        return restore_spec(broker or self.cluster, self.root, suffix=self.copy.removeprefix(self.topic), **more)


def try_backup(spec: Mapping[str, Any], run_id: str = "backup-1", runner: TaskRunner | None = None) -> RunResult:
    request = RunRequest(kind="KafkaBackup", name="test", namespace="", run_id=run_id, spec=dict(spec))
    return run_backup(
        request, parse_backup(spec), lambda: runner or ThreadRunner(), Reporter(run_id), os.environ, timing=WATCH
    )


def back_up(spec: Mapping[str, Any], run_id: str = "backup-1", runner: TaskRunner | None = None) -> RunResult:
    result = try_backup(spec, run_id, runner)
    assert result.outcome == "Succeeded", result
    return result


def bring_back(spec: Mapping[str, Any], run_id: str = "restore-1", runner: TaskRunner | None = None) -> RunResult:
    request = RunRequest(kind="KafkaRestore", name="test", namespace="", run_id=run_id, spec=dict(spec))
    return run_of(
        request, parse_restore(spec), lambda: runner or ThreadRunner(), Reporter(run_id), os.environ
    ).perform_or_raise()


_MEASURE = """
import json, sys
from tests.kafka.restores import AtOnce, bring_back

def peak():
    with open("/proc/self/status") as status:
        return next(line.split()[1] for line in status if line.startswith("VmHWM"))

print(peak())
assert bring_back(json.loads(sys.argv[1]), runner=AtOnce()).records == int(sys.argv[2])
print(peak())
"""


def assert_little_memory(spec: Mapping[str, Any], records: int) -> None:
    """Restore `records` records in a process of its own, which must not need much more memory than at its beginning."""
    found = subprocess.run(
        [sys.executable, "-c", _MEASURE, json.dumps(spec), str(records)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = map(int, found.stdout.split())
    assert after - before < 256 << 10, f"{after - before} KiB more than {before}"


def offset_map(root: Path, run_id: str, topic: str, partition: int = 0) -> OffsetMap:
    path = root / "runs" / run_id / "offset-maps" / topic / f"{partition}.json"
    return read_offset_map(path.read_bytes(), str(path))


Seen = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]


def seen(message: Message) -> Seen:
    """Offset, key, value, headers, timestamp."""
    headers = message.headers() or []
    offset = message.offset()
    assert offset is not None
    return (offset, message.key(), message.value(), tuple(headers), message.timestamp()[1])  # type: ignore[arg-type]


def committed(broker: Brokers, topic: str, partition: int = 0) -> list[Seen]:
    """The records that a committed consumer sees."""
    return [seen(message) for message in read_committed(broker.bootstrap, topic, partition)]


def all_committed(broker: Brokers, partitions: Mapping[str, int]) -> dict[tuple[str, int], list[Seen]]:
    """The same of all partitions of topics, of which it is told how many each has, with one consumer."""
    found: dict[tuple[str, int], list[Seen]] = {
        (topic, number): [] for topic, count in partitions.items() for number in range(count)
    }
    for message in read_all_committed(broker.bootstrap, found):
        found[str(message.topic()), int(message.partition() or 0)].append(seen(message))
    return found


def without_offsets(records: Sequence[Seen]) -> list[tuple[Any, ...]]:
    return [record[1:] for record in records]


def topic_settings(broker: Brokers, topic: str) -> dict[str, str]:
    """The settings of the topic itself."""
    return settings_of_topics(broker, [topic])[topic]


def settings_of_topics(broker: Brokers, topics: Collection[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic itself. There may be none."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    described = admin.describe_configs(resources) if resources else {}
    dynamic = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    return {
        resource.name: {name: entry.value for name, entry in answer.result(30).items() if entry.source == dynamic}
        for resource, answer in described.items()
    }


def transactions(broker: Brokers, topic: str, sizes: Sequence[int], *, partition: int = 0) -> None:
    """One transaction for each size, numbered values; those with a negative size are aborted."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{partition}"})
    producer.init_transactions(60)
    number = 0
    for size in sizes:
        producer.begin_transaction()
        for _ in range(abs(size)):
            producer.produce(topic, value=b"%d" % number, key=b"aborted" if size < 0 else b"kept", partition=partition)
            number += 1
        end_transaction(broker.bootstrap, producer, [(topic, partition)], commit=size > 0)


def start_driver(request: Path, *, spark: bool | None = None) -> "subprocess.Popen[bytes]":
    """The driver of a run as a process of its own, which leads its process group; its log lies beside the request.

    It does the tasks in processes beside it, as in a pod that has little to do, or has Spark, whose start takes seconds
    of a processor: the deep profile has it everywhere.
    """
    if spark is None:
        spark = bool(number(0, deep=1))
    log = (request.parent / "driver.log").open("ab")
    environ = {
        **os.environ,
        **POD,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "LOGKEEP_TERMINATION_LOG": str(request.parent / "end"),
    }
    command = [sys.executable, "-m", "logkeep_engine.spark.driver", "--request", str(request)]
    command += ["--master", "local[2]"] if spark else []
    return subprocess.Popen(command, env=environ, stdout=log, stderr=log, start_new_session=True)


def wait_for_more(
    kafka: KafkaBroker, topic: str, driver: "subprocess.Popen[bytes]", more: int = 3_000_000, partitions: str = "[01]"
) -> bool:
    """True when the topic's log has grown by `more` bytes, or the driver has ended."""

    def size() -> int:
        return sum(path.stat().st_size for path in kafka.data_dir.glob(f"{topic}-{partitions}/*.log"))

    before = size()
    for _ in range(9000):
        if size() > before + more or driver.poll() is not None:
            return True
        time.sleep(0.02)
    return False
