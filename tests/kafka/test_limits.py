"""`spec.limits` of whole runs: the rate over all executors, and how many partitions of a broker are read at once."""

import secrets
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from logkeep_engine.contract.model import replace
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.limits import Places
from logkeep_engine.spark import listener
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.tasks import PartitionUpdate, TaskRunner
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import Backups, Topics, numbers
from tests.kafka.raw import plain, run
from tests.kafka.restores import bring_back, restore_spec
from tests.runners import Job, Runner

RATE = 4 << 20
PARTITIONS = 6
RECORDS, RECORD_BYTES = 270, 10_000  # of each partition


@dataclass
class Timed(Runner):
    """A runner that notes how long its jobs took together, and what they said meanwhile: (seconds, update)."""

    runner: TaskRunner
    started: float = 0.0
    seconds: float = 0.0
    updates: list[tuple[float, PartitionUpdate]] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        self.started = self.started or time.monotonic()

        def note(update: PartitionUpdate) -> None:
            self.updates.append((time.monotonic() - self.started, update))
            job.on_update(update)

        replace(job, on_update=note).on(self.runner)
        self.seconds = time.monotonic() - self.started

    def assert_rate(self, moved: int) -> None:
        """Never more than RATE since the first job was started, and not much less once its first task has begun. A task
        that ends before its first report is due has told nothing."""
        assert self.seconds > moved / RATE
        begun = self.updates[0][0] if self.updates else 0.0
        assert self.seconds - begun < 1.5 * moved / RATE + 60, "tests share the machine"


@pytest.fixture(scope="module")
def loaded(kafka: KafkaBroker) -> str:
    """A topic of incompressible records, about 16 MB."""
    topics = Topics(kafka)
    name = topics.create(f"limits-{secrets.token_hex(4)}", PARTITIONS)
    values = [secrets.token_bytes(RECORD_BYTES) for _ in range(100)]
    for partition in range(PARTITIONS):
        topics.produce(name, (values[number % 100] for number in range(RECORDS)), partition=partition, batch=20)
    return name


def test_backup_and_restore_keep_their_rate_over_all_tasks(
    loaded: str, kafka: KafkaBroker, backups: Backups, spark_context: SparkContext, tmp_path: Path
) -> None:
    size = PARTITIONS * RECORDS * RECORD_BYTES
    limits = {"bytesPerSecond": str(RATE)}

    timed = Timed(SparkRunner(spark_context))
    backups.wrap = lambda runner: timed
    result = backups.run(loaded, limits=limits)
    assert (result.outcome, result.records) == ("Succeeded", PARTITIONS * RECORDS)
    assert result.bytes > size
    timed.assert_rate(result.bytes)
    assert backups.faults() == []

    timed = Timed(SparkRunner(spark_context))
    result = bring_back(restore_spec(kafka, tmp_path / "archive", limits=limits), runner=timed)
    assert (result.outcome, result.records) == ("Succeeded", PARTITIONS * RECORDS)
    timed.assert_rate(result.bytes)


def test_a_sparing_reader_fetches_no_batch_twice(loaded: str, kafka: KafkaBroker) -> None:
    log = Topics(kafka).log(loaded)

    async def fetched(max_bytes: int, *, sparing: bool) -> int:
        total = 0
        async with RawClient(plain(kafka.bootstrap)) as client:
            async for answer in client.stream(loaded, 0, 0, RECORDS, max_bytes=max_bytes, sparing=sparing):
                total += len(answer.data)
        return total

    assert run(fetched(300_000, sparing=True)) == len(log)
    assert run(fetched(300_000, sparing=False)) > 1.3 * len(log), "parts of batches, fetched again"
    assert len(log) <= run(fetched(8 << 20, sparing=True)) < 1.2 * len(log)


def test_one_reader_of_a_broker_does_all_the_work(
    kafka: KafkaBroker, backups: Backups, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = threading.Lock()
    inside, most, entered = 0, 0, 0

    class Counted(Places):
        async def enter(self, broker: int) -> None:
            nonlocal inside, most, entered
            await super().enter(broker)
            with lock:
                inside, entered = inside + 1, entered + 1
                most = max(most, inside)

        def leave(self, broker: int) -> None:
            nonlocal inside
            with lock:
                inside -= 1
            super().leave(broker)

    monkeypatch.setattr(listener, "Places", Counted)
    topics = Topics(kafka)
    topics.create(unique, 24)
    for partition in range(24):
        topics.produce(unique, numbers(200), partition=partition)

    def back_up(readers: int) -> Any:
        nonlocal most, entered
        most = entered = 0
        return backups.run(unique, limits={"readersPerBroker": readers})

    result = back_up(1)
    assert (result.outcome, result.records) == ("Succeeded", 24 * 200)
    assert (most, entered, inside) == (1, 24, 0)

    for partition in range(24):
        topics.produce(unique, numbers(200), partition=partition)
    result = back_up(3)
    assert (result.outcome, result.records) == ("Succeeded", 24 * 200)
    assert most <= 3
    assert entered == 24
    assert backups.faults() == []
