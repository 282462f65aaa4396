"""Restores into three brokers that die, hang and elect one another: every committed record once and in order, or a
refusal that says what is missing.
"""

import asyncio
import pickle
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import BrokerUnavailable, TargetUnsuitable
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.limits import Throttle
from logkeep_engine.restore.sending.restore_task import RestoreTask
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.topics import NO_RETENTION, Record, produce, topic_names
from tests.kafka.restores import Archived, back_up, backup_spec, bring_back, committed, offset_map, without_offsets
from tests.runners import Context, Job, Runner

RECORDS = 3000
NOW = 1_700_000_000_000


class Disturbing(Throttle):
    """Lets something happen whenever `after` more bytes were sent, while others wait for their answers."""

    def __init__(self, after: int, act: Callable[[], None], times: int) -> None:
        self._after = self._left = after
        self._act = act
        self._times = times

    async def pace(self, size: int) -> None:
        self._left -= size
        if self._left < 0 and self._times:
            self._times -= 1
            self._left = self._after
            await asyncio.to_thread(self._act)


@dataclass
class Disturbed(Runner):
    """Runs tasks in this process; `before` the first one that restores, and `during` it, something happens. Brokers
    that do not answer are given up soon.
    """

    during: Callable[[], None]
    before: Callable[[], None] = lambda: None
    after: int = 300_000
    times: int = 1
    done: list[str] = field(default_factory=list)

    def perform(self, job: Job) -> None:
        for index, item in enumerate(job.work):
            work, context = pickle.loads(pickle.dumps(item)), Context()
            if job.name == "restore_partitions" and not self.done:
                self.done.append(job.name)
                self.before()
                work = tuple(map(hurried, work))
                context = Context(throttle=Disturbing(self.after, self.during, self.times))
            job.on_result(index, job.function(work, context))


def hurried(task: RestoreTask) -> RestoreTask:
    """The same work, by somebody who does not wait long for an answer."""
    return replace(task, connection=impatient(task.connection))


def impatient(connection: KafkaConnection) -> KafkaConnection:
    return replace(connection, limits=replace(connection.limits, request=5.0))


TOPIC = "on-two-of-three"


@pytest.fixture(scope="module")
def archive(three_brokers: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RECORDS records that cannot be compressed, of a topic with two replicas."""
    root = tmp_path_factory.mktemp("cluster") / "archive"
    three_brokers.create_topic(TOPIC, [[1, 2]], NO_RETENTION)
    values = random.Random(7)
    records = [Record(b"k%d" % number, values.randbytes(250), NOW + number) for number in range(RECORDS)]
    produce(three_brokers.bootstrap, TOPIC, records, config={"batch.size": 20_000})
    back_up(backup_spec(three_brokers, root, TOPIC))
    return root


@pytest.fixture
def archived(cluster: KafkaCluster, archive: Path, tmp_path: Path) -> Archived:
    return Archived.of(cluster, TOPIC, archive, tmp_path / "archive")


def bring_back_into(archived: Archived, mode: str, runner: Runner) -> RunResult:
    if mode == "Append":
        archived.cluster.create_topic(archived.copy, [[1, 2]], NO_RETENTION)
    return bring_back(archived.spec(ifTopicExists=mode), runner=runner)


def assert_all_there(archived: Archived, found: RunResult) -> None:
    assert found.records == RECORDS
    expected = committed(archived.cluster, archived.topic)
    there = committed(archived.cluster, archived.copy)
    assert len(expected) == RECORDS
    assert without_offsets(there) == without_offsets(expected)
    where = offset_map(archived.root, "restore-1", archived.copy)
    assert [where.find(record[0]).target for record in expected] == [record[0] for record in there]


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["Append", "Fail"][: examples.number(1, deep=2)])
def test_what_an_unclean_election_took_is_sent_again(cluster: KafkaCluster, archived: Archived, mode: str) -> None:
    copy = archived.copy

    def alone() -> None:
        cluster.lead_alone(copy)

    def lose() -> None:
        cluster.lose_what_was_alone(copy)

    found = bring_back_into(archived, mode, Disturbed(lose, alone))
    cluster.restore()
    assert_all_there(archived, found)


def test_topics_get_their_replicas_while_brokers_are_down(cluster: KafkaCluster, archived: Archived) -> None:
    """The controller knows brokers that have died: they get their replicas when they come back."""
    cluster.kill(2, 3)
    cluster.wait_until_registered(1)
    found = bring_back(archived.spec())
    assert cluster.placed(archived.copy).in_sync == {1}
    cluster.restore()
    assert len(cluster.placed(archived.copy).replicas) == 2
    assert not any("replicas" in warning for warning in found.warnings)
    assert_all_there(archived, found)


def test_fewer_replicas_are_taken_only_where_the_spec_says_so(
    cluster: KafkaCluster, second_kafka: KafkaBroker, archived: Archived
) -> None:
    with pytest.raises(TargetUnsuitable, match="cannot have 2 replicas") as caught:
        bring_back(archived.spec(second_kafka))
    assert (
        "Brokers of the cluster: 1. If fewer replicas are enough, lower spec.topics.replicationFactor"
        in caught.value.hint
    )
    assert archived.copy not in topic_names(second_kafka.bootstrap)
    spec = archived.spec(second_kafka)
    spec["topics"] = {**spec["topics"], "replicationFactor": 1}
    assert bring_back(spec).records == RECORDS


def test_a_leader_that_hangs_is_left_behind(cluster: KafkaCluster, archived: Archived) -> None:
    """SIGSTOP: its connections stay open, and nobody answers. When it wakes up it is a follower."""
    copy = archived.copy

    def hang() -> None:
        leader = cluster.leader(copy)
        cluster.broker(leader).pause()
        cluster.wait_for_leader(copy, among=[number for number in cluster.placed(copy).replicas if number != leader])

    found = bring_back_into(archived, "Fail", Disturbed(hang))
    cluster.restore()
    assert_all_there(archived, found)


def test_min_insync_replicas_raised_meanwhile_is_waited_for(cluster: KafkaCluster, archived: Archived) -> None:
    """A follower dies and the topic wants two replicas in sync: what was written waits until it is back."""
    copy = archived.copy
    back: list[threading.Timer] = []

    def raise_it() -> None:
        placed = cluster.placed(copy)
        (follower,) = (number for number in placed.replicas if number != placed.leader)
        cluster.kill(follower)
        cluster.wait_in_sync(copy, replicas=[placed.leader])
        cluster.alter_topic(copy, {"min.insync.replicas": "2"})
        back.append(threading.Timer(3, cluster.start, [follower]))
        back[0].start()

    found = bring_back_into(archived, "Append", Disturbed(raise_it))
    back[0].join()
    cluster.restore()
    assert_all_there(archived, found)


def test_append_under_kills(cluster: KafkaCluster, archived: Archived) -> None:
    """The leader is killed again and again, and other producers write between: nothing is missing, nothing twice."""
    copy = archived.copy
    cluster.create_topic(copy, [[1, 2, 3]], {**NO_RETENTION, "min.insync.replicas": "2"})

    def kill_the_leader() -> None:
        produce(cluster.bootstrap, copy, [Record(b"foreign", b"", NOW)])
        leader = cluster.leader(copy)
        cluster.kill(leader)
        cluster.wait_for_leader(copy)
        cluster.start(leader)
        cluster.wait_in_sync(copy)

    result = bring_back(
        archived.spec(ifTopicExists="Append"),
        runner=Disturbed(kill_the_leader, after=200_000, times=2),
    )
    cluster.restore()
    assert result.records == RECORDS
    expected = committed(cluster, archived.topic)
    there = committed(cluster, copy)
    ours = [record for record in there if record[1] != b"foreign"]
    assert len(there) - len(ours) == 2
    assert without_offsets(ours) == without_offsets(expected)
    where = offset_map(archived.root, "restore-1", copy)
    assert [where.find(record[0]).target for record in expected] == [record[0] for record in ours]


@pytest.mark.deep
@pytest.mark.parametrize("comes_back", ["at once", "afterwards"][: examples.number(1, deep=2)])
def test_a_broker_that_dies_while_a_topic_is_replaced(
    cluster: KafkaCluster, archived: Archived, monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    """SIGKILL of the old topic's leader after the deletion, before the creation: it comes back with the old log."""
    copy = archived.copy
    cluster.create_topic(copy, [[1, 2], [2, 3], [3, 1]], NO_RETENTION)
    for partition in range(3):
        produce(cluster.bootstrap, copy, [Record(b"old", b"old", NOW, [], partition)])
    old = cluster.placed(copy).leader
    delete = ControlPlane.delete_topic_ids

    def delete_and_kill(control: ControlPlane, topics: Mapping[str, str]) -> None:
        delete(control, topics)
        monkeypatch.undo()
        cluster.kill(old)
        if comes_back == "at once":
            cluster.start(old)

    monkeypatch.setattr(ControlPlane, "delete_topic_ids", delete_and_kill)
    spec = archived.spec(ifTopicExists="Replace", confirm=[copy])
    try:
        found = bring_back(spec)
    except BrokerUnavailable:  # brokers may name the dead one as the controller until they know: a Job starts again
        found = bring_back(spec)
    cluster.restore()
    assert_all_there(archived, found)
    with ControlPlane(KafkaConnection(tuple(cluster.addresses))) as control:
        (there,) = (topic for topic in control.topics() if topic.name == copy)
    assert len(there.partitions) == 1, "the old topic had three"
