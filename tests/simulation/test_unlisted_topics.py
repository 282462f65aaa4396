"""Topics that the archive knows and that the broker at hand does not list: what a backup makes of them in the end.

Broker 2 is asked first each time; it has not heard of topic orders, or is silent.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.kafka.queries import ClusterView
from logkeep_engine.kafka.retry import RetriableError
from tests.kafka.restores import bring_back
from tests.simulation.backing_up import ask_first, backup, state_of, wait_no_longer
from tests.simulation.cluster import SimulatedCluster, Topic, World
from tests.simulation.faults import FOREVER, Kind, Lie
from tests.simulation.partition_log import batch
from tests.simulation.protocol import Api

LIMITS = Limits(
    request=0.3,
    unknown=0.3,
    truncated=0.3,
    control=3,
    outage=1,
    control_pause=0.02,
    settling=0.02,
    pause=0.02,
    longest_pause=0.1,
)


@pytest.fixture
def cluster(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    """Three brokers; topics orders, with two partitions, and users, with one."""
    ask_first(monkeypatch, 2)
    wait_no_longer(monkeypatch, LIMITS)
    with SimulatedCluster(world, brokers=3) as made:
        make(made, "orders", 2)
        make(made, "users", 1)
        yield made


def make(cluster: SimulatedCluster, name: str, partitions: int) -> None:
    """A topic led by brokers that are not the second, with ten records in each partition."""
    cluster.do(lambda: cluster.create(name, partitions, replicas=3))
    for partition in cluster.topics[name].partitions:
        if partition.leader == 2:
            cluster.do(lambda of=partition: of.elect(1))  # type: ignore[misc]
    write(cluster, cluster.topics[name])


def write(cluster: SimulatedCluster, topic: Topic) -> None:
    for partition in topic.partitions:
        cluster.do(lambda to=partition: to.append(batch([(b"key", b"value")] * 10)))  # type: ignore[misc]


def not_heard_of(cluster: SimulatedCluster) -> Callable[[object], None]:
    """Broker 2 has not heard of orders until tasks begin."""
    cluster.lies.active = [Lie(Kind.UNKNOWN_TOPIC, Api.METADATA, topic="orders", times=FOREVER, node=2)]
    return lambda work: cluster.lies.active.clear()


def test_partitions_that_it_got_meanwhile_are_archived_too(cluster: SimulatedCluster, tmp_path: Path) -> None:
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    topic = cluster.topics["orders"]
    cluster.do(lambda: cluster.add_partitions(topic, 2, 3))
    write(cluster, topic)
    write(cluster, cluster.topics["users"])
    result = backup(cluster, tmp_path, "two", before=not_heard_of(cluster))
    assert (result.outcome, result.records) == ("Succeeded", 50), result.message
    assert state_of(tmp_path).topics[topic.printed_id].partitions == 4


def test_topic_that_was_created_again_meanwhile_is_archived(cluster: SimulatedCluster, tmp_path: Path) -> None:
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    cluster.do(lambda: cluster.topics.pop("orders"))
    make(cluster, "orders", 1)
    write(cluster, cluster.topics["users"])
    result = backup(cluster, tmp_path, "two", before=not_heard_of(cluster))
    assert (result.outcome, result.records) == ("Succeeded", 20), result.message
    assert len(state_of(tmp_path).topics) == 3


def test_positions_in_a_topic_that_proves_to_be_deleted_stay_in_the_archive(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    cluster.positions["billing"] = {("orders", 0): 4, ("users", 0): 5}
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    old = dict(cluster.topics)
    cluster.do(lambda: cluster.topics.pop("orders"))
    del cluster.positions["billing"]["orders", 0]
    write(cluster, cluster.topics["users"])
    cluster.old_views[1] = old  # it still knows the topic
    result = backup(cluster, tmp_path, "two", before=lambda work: cluster.old_views.clear())
    assert (result.outcome, result.records) == ("Succeeded", 10), result.message
    (warning,) = result.warnings
    assert "'orders'" in warning
    assert "was deleted while the run was planned, or before" in warning
    assert {(entry.topic, entry.offset) for entry in state_of(tmp_path).groups} == {("orders", 4), ("users", 5)}


def test_a_broker_that_gives_no_answer_does_not_bring_back_what_most_say_is_deleted(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    cluster.do(lambda: cluster.topics.pop("orders"))
    write(cluster, cluster.topics["users"])
    view = BrokerPool._view

    async def silent(pool: BrokerPool, node: int, names: Sequence[str]) -> ClusterView:
        if node == 2 and CONSUMER_OFFSETS not in names:
            raise RetriableError("no answer")
        return await view(pool, node, names)

    monkeypatch.setattr(BrokerPool, "_view", silent)
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.records) == ("Succeeded", 10), result.message


def test_what_is_archived_beside_a_topic_that_may_not_be_described_can_be_restored(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    cluster.hidden.add("orders")
    write(cluster, cluster.topics["users"])
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerRefused"), result.message
    assert "If a topic was deleted, and its ACLs with it, exclude it" in result.message
    cluster.hidden.clear()
    copy = {
        "cluster": {"bootstrapServers": cluster.bootstrap},
        "source": {"storage": {"uri": tmp_path.as_uri()}},
        "topics": {"include": ["users"], "rename": [{"from": "users", "to": "copy"}]},
    }
    assert bring_back(copy).records == 20
