"""Skewed topics: one partition with most of the bytes, and records that grew, spread over tasks."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.backup.planning import balance
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.tasks import TaskRunner
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import Backups, Topics, folder_spec
from tests.runners import Job, Runner

SMALL, LARGE, EACH = 20, 4000, 2000


@dataclass
class Weighed(Runner):
    """A runner that notes how many bytes each task archived."""

    runner: TaskRunner
    sizes: list[int] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        def note(index: int, result: Any) -> None:
            receipts = [done.receipt for done in result if done.receipt is not None]
            self.sizes.append(sum(segment.bytes for receipt in receipts for segment in receipt.segments))
            job.on_result(index, result)

        replace(job, on_result=note).on(self.runner)


def growing(count: int) -> Iterator[bytes]:
    """Incompressible records: the first half is tiny, the second large."""
    for number in range(count):
        yield secrets.token_bytes(SMALL if number < count // 2 else LARGE)


def test_a_partition_with_most_of_the_bytes_is_spread_over_tasks_of_like_size(
    kafka: KafkaBroker, nursery: Nursery, tmp_path: Path, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "MIN_CHUNK_BYTES", 100_000)
    topics = Topics(kafka)
    topics.create(unique, 64)
    topics.produce(unique, growing(2 * EACH), partition=5, batch=10)
    for partition in range(64):
        if partition != 5:
            topics.produce(unique, (secrets.token_bytes(1000) for _ in range(14)), partition=partition)
    backups = Backups(kafka, folder_spec(tmp_path / "archive"), nursery=nursery)
    weighed: list[Weighed] = []

    def wrap(runner: TaskRunner) -> TaskRunner:
        weighed.append(Weighed(runner))
        return weighed[-1]

    backups.wrap = wrap
    result = backups.run(unique, spark={"executor": {"instances": 4}})
    assert (result.outcome, result.records) == ("Succeeded", 2 * EACH + 63 * 14)
    assert backups.log(unique, 5) == topics.log(unique, 5)
    assert all(backups.log(unique, partition) == topics.log(unique, partition) for partition in (0, 31, 63))
    assert backups.faults() == []
    (run,) = weighed
    assert sum(run.sizes) == result.bytes
    assert max(run.sizes) < 2 * result.bytes / (4 * balance.SHARES_PER_SLOT), "no task has much more than its part"


def test_a_topic_that_cannot_be_read_is_cut_evenly(kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "MIN_CHUNK_BYTES", 1000)
    plan = BackupPlan("run", (), (Chunk("nobody-has-it", "A" * 21 + "g", 0, 0, 100, 1, 100_000),))
    for bootstrap in (kafka.bootstrap, "127.0.0.1:1"):
        connection = connection_from(ClusterSpec(bootstrap_servers=(bootstrap,)), {})
        monkeypatch.setattr(balance, "SAMPLING_SECONDS", 3.0)
        made = balance.balance(plan, 2, connection)
        assert [(chunk.start, chunk.end) for chunk in made.chunks] == [(0, 25), (25, 50), (50, 75), (75, 100)]
