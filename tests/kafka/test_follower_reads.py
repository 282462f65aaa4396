"""Brokers that send readers to followers (KIP-392): backups are whole, and read by topic id."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.kafka import protocol
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.client import Limits, RawClient
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.spark.nursery import Nursery
from logkeep_engine.tasks import TaskRunner
from tests.cluster import tools
from tests.cluster.kafka_cluster import KafkaCluster
from tests.kafka.backing_up import Backups, Topics, folder_spec, numbers
from tests.kafka.raw import plain, run
from tests.runners import Job, Runner

RACKS = {1: "a", 2: "b"}
RECORDS = 2000
TWO_REPLICAS = {
    "default.replication.factor": "2",
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
}


@pytest.fixture(scope="module")
def following() -> Iterator[KafkaCluster]:
    """Two brokers that send every reader to the follower."""
    overrides = {
        **TWO_REPLICAS,
        "replica.selector.class": "dev.logkeep.bed.FollowerSelector",
    }
    with KafkaCluster(2, overrides=overrides, racks=RACKS, class_path=[str(tools.broker_classes())]) as cluster:
        yield cluster


@dataclass
class Noted(Runner):
    """A runner that notes which pieces were read by the topic's name."""

    runner: TaskRunner
    by_name: list[bool] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        def note(index: int, results: Any) -> None:
            self.by_name += [done.by_name for done in results]
            job.on_result(index, results)

        replace(job, on_result=note).on(self.runner)


def backed_up(cluster: KafkaCluster, nursery: Nursery, folder: Path, topic: str) -> tuple[Backups, Noted]:
    backups = Backups(cluster, folder_spec(folder), nursery=nursery)
    noted: list[Noted] = []

    def wrap(runner: TaskRunner) -> TaskRunner:
        noted.append(Noted(runner))
        return noted[-1]

    backups.wrap = wrap
    result = backups.run(topic)
    assert (result.outcome, result.loss) == ("Succeeded", ())
    return backups, noted[-1]


def test_rack_aware_brokers_are_read_by_id(nursery: Nursery, tmp_path: Path, unique: str) -> None:
    overrides = {
        **TWO_REPLICAS,
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
    with KafkaCluster(2, overrides=overrides, racks=RACKS) as cluster:
        cluster.create_topic(unique, [[1, 2], [2, 1]])
        for partition in range(2):
            Topics(cluster).produce(unique, numbers(RECORDS), partition=partition)
        backups, noted = backed_up(cluster, nursery, tmp_path / "archive", unique)
        assert noted.by_name
        assert not any(noted.by_name)
        for partition in range(2):
            assert [record.offset for record in backups.records(unique, partition)] == list(range(RECORDS))


def test_backup_from_followers_is_whole_and_by_id(
    following: KafkaCluster, nursery: Nursery, tmp_path: Path, unique: str
) -> None:
    following.create_topic(unique, [[1, 2]])
    topics = Topics(following)
    topics.produce(unique, numbers(RECORDS))
    topics.transaction(unique, numbers(100), commit=False)
    topics.transaction(unique, numbers(100), commit=True)
    assert redirected(following, unique) == 2
    backups, noted = backed_up(following, nursery, tmp_path / "archive", unique)
    assert noted.by_name == [False]
    assert [record.offset for record in backups.records(unique)] == [
        *range(RECORDS + 100),
        *range(RECORDS + 101, RECORDS + 201),
    ]
    assert sum(segment.transactional for segment in backups.segments(unique)) == 1
    assert backups.faults() == []


def redirected(cluster: KafkaCluster, topic: str) -> int:
    """The broker to which the leader sends a reader; -1 if to none."""

    connection = plain(cluster.broker(1).bootstrap)
    topic_id = ControlPlane(connection).topic_ids([topic])[topic]

    async def work() -> int:
        async with BrokerPool(connection, Limits()) as pool:
            leader = await pool.leader(topic, 0)
            call = protocol.fetch(
                topic, topic_id, 0, leader.epoch, 0, max_bytes=1, max_wait_ms=0, min_bytes=1, committed=True
            )
            return (await pool.send(leader.node, 0, call)).preferred_read_replica

    return run(work())


def test_a_follower_that_is_gone_is_no_obstacle(following: KafkaCluster, unique: str) -> None:
    following.create_topic(unique, [[1, 2]])
    Topics(following).produce(unique, numbers(RECORDS), batch=10)

    topic_id = ControlPlane(plain(following.broker(1).bootstrap)).topic_ids([unique])[unique]

    async def work() -> None:
        async with RawClient(plain(following.broker(1).bootstrap)) as client:
            seen = []
            async for part in client.stream(unique, 0, 0, RECORDS, max_bytes=4000, topic_id=topic_id):
                seen.append(part.next_offset)
                if len(seen) == 20:
                    following.kill(2)
            assert seen[-1] == RECORDS
            assert seen == sorted(seen)

    run(work())
    following.restore()
