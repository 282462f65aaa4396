"""A restore that appends to a topic, which somebody deletes and creates again before the restore has ended: success is
not told of records that went with the topic before.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from logkeep_engine.errors import BrokerUnavailable, TargetChanged, TopicGone
from logkeep_engine.restore.sending import count
from tests.kafka.restores import back_up, bring_back
from tests.simulation.cluster import SimulatedCluster, World
from tests.simulation.partition_log import batch

LOST = "logkeep_engine.restore.sending.count.lost"
FINISH = "logkeep_engine.restore.topics.targets.CreatedTopics.finish"
ARCHIVED = [b"archived-%d" % number for number in range(5)]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[SimulatedCluster, SimulatedCluster]]:
    with World() as world, SimulatedCluster(world, 1, name="source") as source, SimulatedCluster(world, 2) as target:
        yield source, target


@pytest.fixture
def target(clusters: tuple[SimulatedCluster, SimulatedCluster]) -> SimulatedCluster:
    """The cluster to restore to, with a topic that holds records of others."""
    target = clusters[1]
    target.do(target.topics.clear)
    create(target, [b"others"])
    return target


@pytest.fixture
def spec(clusters: tuple[SimulatedCluster, SimulatedCluster], target: SimulatedCluster, tmp_path: Path) -> Any:
    source = clusters[0]
    source.do(source.topics.clear)
    create(source, ARCHIVED)
    storage = {"uri": tmp_path.as_uri()}
    back_up({"cluster": {"bootstrapServers": source.bootstrap}, "topics": {"include": ["orders"]}, "storage": storage})
    return {
        "cluster": {"bootstrapServers": target.bootstrap},
        "source": {"storage": storage},
        "ifTopicExists": "Append",
    }


@pytest.mark.parametrize("killed_at", [LOST, FINISH], ids=["before it has counted", "after it has counted"])
def test_a_topic_created_again_before_the_run_continues(target: SimulatedCluster, spec: Any, killed_at: str) -> None:
    die(spec, killed_at)
    create_again(target)

    with pytest.raises(TargetChanged, match="'orders' is not the topic this restore was planned for"):
        bring_back(spec)

    assert bring_back(spec, "restore-2").records == 5
    assert values(target)[-5:] == ARCHIVED


def test_a_topic_created_again_while_the_run_continues(target: SimulatedCluster, spec: Any) -> None:
    counts = count.lost

    def late(*args: Any) -> Any:
        create_again(target)
        return counts(*args)

    with patch(LOST, late), pytest.raises(TargetChanged, match="is not the topic this restore was planned for"):
        bring_back(spec)


def test_a_topic_deleted_before_the_run_continues(target: SimulatedCluster, spec: Any) -> None:
    die(spec, FINISH)
    target.do(lambda: target.delete("orders"))

    with pytest.raises(TopicGone, match="'orders' is gone"):
        bring_back(spec)


def test_a_topic_that_no_broker_tells_of_when_the_run_continues(target: SimulatedCluster, spec: Any) -> None:
    die(spec, FINISH)
    target.hidden.add("orders")
    try:
        with pytest.raises(BrokerUnavailable, match=r"whether topic 'orders' is the topic .*AUTHORIZATION"):
            bring_back(spec)
    finally:
        target.hidden.clear()
    assert bring_back(spec).records == 5


def test_a_topic_created_again_that_one_broker_still_knows_as_it_was(target: SimulatedCluster, spec: Any) -> None:
    die(spec, FINISH)
    before = dict(target.topics)
    create_again(target)
    target.old_views[2] = before
    try:
        with pytest.raises(BrokerUnavailable, match="brokers do not agree on its topic id"):
            bring_back(spec)
    finally:
        target.old_views.clear()


def test_a_run_into_the_same_topic_continues(target: SimulatedCluster, spec: Any, tmp_path: Path) -> None:
    die(spec, LOST)
    plan = json.loads((tmp_path / "runs" / "restore-1" / "restore-plan.json").read_text())
    assert plan["topics"][0]["targetId"] == target.topics["orders"].printed_id
    assert bring_back(spec).records == 5
    assert values(target) == [b"others", *ARCHIVED]


def die(spec: Any, place: str) -> None:
    """A restore whose driver dies there."""
    with patch(place, side_effect=RuntimeError("power cut")), pytest.raises(RuntimeError, match="power cut"):
        bring_back(spec)


def create_again(cluster: SimulatedCluster) -> None:
    """The topic gets more records of others than the one before had."""
    cluster.do(lambda: cluster.delete("orders"))
    create(cluster, [b"others"] * 20)


def create(cluster: SimulatedCluster, rows: list[bytes]) -> None:
    cluster.do(lambda: cluster.create("orders", 1))
    cluster.do(lambda: cluster.topics["orders"].partitions[0].append(batch([(b"key", row) for row in rows])))


def values(cluster: SimulatedCluster) -> list[bytes]:
    return [record.value or b"" for record in cluster.topics["orders"].partitions[0].log.committed()]
