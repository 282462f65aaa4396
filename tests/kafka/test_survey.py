"""Questions about many partitions, on three brokers of which one dies, hangs or lags."""

import threading
import time
from dataclasses import replace

from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import Bounds, ControlPlane
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.kafka.survey import Ended
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.topics import commit_positions
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.raw import run

QUICK = Limits(unknown=2, control=4, outage=20)


def connection(cluster: KafkaCluster, limits: Limits | None = None) -> KafkaConnection:
    return KafkaConnection(tuple(cluster.addresses), limits=limits or Limits())


def test_offsets_of_a_leader_that_died_are_asked_of_the_next(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3], [2, 3, 1]])
    Topics(cluster).produce(unique, numbers(500))
    with ControlPlane(connection(cluster)) as control:
        where = [(unique, 0), (unique, 1)]
        expected = {(unique, 0): 500, (unique, 1): 0}
        assert control.latest_offsets(where) == expected
        cluster.broker(1).kill()
        begin = time.monotonic()
        assert control.latest_offsets(where) == expected
        assert control.bounds(where).found == {place: Bounds(0, end) for place, end in expected.items()}
        assert time.monotonic() - begin < 60


def test_no_group_is_missing_while_another_broker_becomes_its_coordinator(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3]])
    groups = {f"{unique}-{number}" for number in range(8)}
    for group in groups:
        commit_positions(cluster.bootstrap, group, {(unique, 0): 1})
    coordinator = cluster.leader(CONSUMER_OFFSETS)
    with ControlPlane(connection(cluster)) as control:
        assert groups <= control.listed_groups().keys()
        cluster.broker(coordinator).kill()
        moved = False
        while not moved:  # the first answer is given when another broker has taken over
            moved = cluster.leader(CONSUMER_OFFSETS) not in (coordinator, -1)
            assert groups <= control.listed_groups().keys()


def test_task_that_starts_while_all_brokers_refuse_waits_for_them(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3]])
    Topics(cluster).produce(unique, numbers(10))
    cluster.kill()
    back = threading.Timer(6, cluster.start)
    back.start()

    async def first() -> int:
        async with RawClient(connection(cluster)) as client:
            return (await client.fetch(unique, 0, 0)).next_offset

    assert run(first()) == 10
    back.join()


def test_offsets_of_a_leader_that_hangs_are_asked_of_the_next(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3]])
    Topics(cluster).produce(unique, numbers(500))
    with ControlPlane(connection(cluster)) as control:
        assert control.bounds([(unique, 0)]).found == {(unique, 0): Bounds(0, 500)}
        cluster.broker(1).pause()
        begin = time.monotonic()
        assert control.bounds([(unique, 0)]).found == {(unique, 0): Bounds(0, 500)}
        assert time.monotonic() - begin < 60


def test_what_nobody_answers_for_is_named_beside_what_is_there(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1], [2], [3]])
    Topics(cluster).produce(unique, numbers(10))
    cluster.broker(2).kill()
    cluster.wait_until_registered(1, 3)
    with ControlPlane(connection(cluster, QUICK)) as control:
        answers = control.bounds([(unique, 0), (unique, 1), (unique, 2), (unique, 7), ("no-such", 0)])
    assert answers.found == {(unique, 0): Bounds(0, 10), (unique, 2): Bounds(0, 0)}
    assert answers.silent == {(unique, 1): "it has no leader"}
    assert set(answers.unknown) == {(unique, 7), ("no-such", 0)}


def test_leader_epochs_tell_where_they_ended_and_where_the_log_ends(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3]])
    topics = Topics(cluster)
    topics.produce(unique, numbers(30))
    with ControlPlane(connection(cluster)) as control:
        (first,) = control.epoch_ends({(unique, 0): None}).found.values()
        cluster.move_leader(unique, 0, 2)
        topics.produce(unique, numbers(12, first=30))
        (now,) = control.epoch_ends({(unique, 0): None}).found.values()
        assert now.current_epoch > first.current_epoch
        assert now == Ended(current_epoch=now.current_epoch, leader_epoch=now.current_epoch, end_offset=42)
        before = control.epoch_ends({(unique, 0): first.leader_epoch}).found[unique, 0]
        assert before == replace(now, leader_epoch=first.leader_epoch, end_offset=30)


def test_log_end_of_a_leader_does_not_wait_for_followers(cluster: KafkaCluster, unique: str) -> None:
    """Its high watermark does: below min.insync.replicas it stays where it was, though all records are there."""
    cluster.create_topic(unique, [[1, 2]], {"min.insync.replicas": "2"})
    Topics(cluster).produce(unique, numbers(100))
    cluster.strand(unique, 1)
    with ControlPlane(connection(cluster, QUICK)) as control:
        answers = control.bounds([(unique, 0)])
        assert answers.found == {}
        assert "OFFSET_NOT_AVAILABLE" in answers.silent[unique, 0]
        assert control.epoch_ends({(unique, 0): None}).found[unique, 0].end_offset == 100
