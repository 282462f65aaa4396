"""Restores into another number of partitions on three brokers, of which leaders move, die and lose what they had."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.tasks import TaskRunner
from tests import examples
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.topics import NO_RETENTION, Record, produce
from tests.kafka.restores import Archived, back_up, backup_spec, bring_back
from tests.kafka.test_restore_cluster import Disturbed
from tests.kafka.test_restore_division import assert_divided, make_batches, read, spec
from tests.runners import Job, Runner

RECORDS, SOURCES, TARGETS = 1200, 2, 3
NOW = 1_700_000_000_000


TOPIC = "to-be-divided"


@pytest.fixture(scope="module")
def archive(three_brokers: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECORDS records that cannot be compressed, of few keys."""
    root = tmp_path_factory.mktemp("divided") / "archive"
    three_brokers.create_topic(TOPIC, [[1, 2, 3], [2, 3, 1]], NO_RETENTION)
    values = random.Random(7)
    records = [Record(b"k%d" % (number % 30), values.randbytes(250), NOW + number) for number in range(RECORDS)]
    produce(three_brokers.bootstrap, TOPIC, records, config={"batch.size": 20_000})
    back_up(backup_spec(three_brokers, root, TOPIC))
    return root


@pytest.fixture
def archived(cluster: KafkaCluster, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archived:
    """Each pair of partitions has some fifty batches."""
    make_batches(monkeypatch, 1500)
    return Archived.of(cluster, TOPIC, archive, tmp_path / "archive")


class Together(Runner):
    """Gives all archived partitions to one task."""

    def __init__(self, runner: TaskRunner) -> None:
        self._runner = runner

    def perform(self, job: Job) -> None:
        if job.name == "restore_partitions":
            job = replace(job, work=[tuple(task for group in job.work for task in group)])
        job.on(self._runner)


def restore_while(
    archived: Archived,
    mode: str,
    act: Callable[[], None],
    *,
    before: Callable[[], None] = lambda: None,
    after: int,
    times: int = 1,
) -> None:
    """Every record comes back once, and those of each pair in order, whatever happens meanwhile and others write."""
    happened: list[bool] = []

    def during() -> None:
        happened.append(True)
        act()

    runner = Together(Disturbed(during, before, after, times))
    cluster, suffix = archived.cluster, archived.copy.removeprefix(archived.topic)
    found = bring_back(spec(cluster, archived.root, TARGETS, suffix=suffix, ifTopicExists=mode), runner=runner)
    cluster.restore()
    assert (len(happened), found.records) == (times, RECORDS)
    there = read(cluster, archived.copy, TARGETS)
    ours = [[record for record in records if record[1] != b"foreign"] for records in there]
    assert_divided(read(cluster, archived.topic, SOURCES), ours)
    assert min(map(len, ours)) > 0


def foreign(cluster: KafkaCluster, topic: str) -> None:
    """Another producer writes to every partition."""
    records = [Record(b"foreign", b"", NOW, partition=number) for number in range(TARGETS)]
    produce(cluster.bootstrap, topic, records)


def everywhere(cluster: KafkaCluster, topic: str) -> None:
    """The topic is there, and somebody writes to it."""
    cluster.create_topic(topic, [[1, 2, 3], [2, 3, 1], [3, 1, 2]], {**NO_RETENTION, "min.insync.replicas": "2"})
    foreign(cluster, topic)


def test_leaders_that_move(cluster: KafkaCluster, archived: Archived) -> None:
    copy = archived.copy

    def move() -> None:
        for number in range(TARGETS):
            placed = cluster.placed(copy, number)
            cluster.move_leader(copy, number, next(other for other in placed.replicas if other != placed.leader))

    restore_while(archived, "Fail", move, after=70_000, times=2)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["Append", "Fail"][: examples.number(1, deep=2)])
def test_leaders_that_are_killed(cluster: KafkaCluster, archived: Archived, mode: str) -> None:
    copy = archived.copy
    if mode == "Append":
        everywhere(cluster, copy)

    def kill_a_leader() -> None:
        for number in range(TARGETS):
            cluster.wait_in_sync(copy, number)
        cluster.kill(cluster.leader(copy, 1))
        for number in range(TARGETS):
            cluster.wait_for_leader(copy, number)
        if mode == "Append":
            foreign(cluster, copy)

    restore_while(archived, mode, kill_a_leader, after=120_000)


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["Fail", "Append"][: examples.number(1, deep=2)])
def test_what_an_unclean_election_took_is_sent_again(cluster: KafkaCluster, archived: Archived, mode: str) -> None:
    """One partition of the target loses records. The pairs of the others continue where they were."""
    copy = archived.copy
    if mode == "Append":
        cluster.create_topic(copy, [[1, 2]] * TARGETS, NO_RETENTION)

    def alone() -> None:
        for number in {*range(TARGETS)} - {1}:
            cluster.reassign(copy, number, [1, 3])
            cluster.elect(copy, number)
            cluster.wait_for_leader(copy, number, among=[1])
            cluster.wait_in_sync(copy, number)
        cluster.lead_alone(copy, 1)

    def lose() -> None:
        cluster.lose_what_was_alone(copy, 1)

    restore_while(archived, mode, lose, before=alone, after=150_000)
