"""Leaders that change while a restore counts what it has written."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from logkeep_engine.restore.sending import count
from tests.kafka.restores import back_up, bring_back
from tests.simulation.cluster import SimulatedCluster, World
from tests.simulation.partition_log import batch

RECORDS = [b"%d" % number for number in range(5)]


@pytest.fixture
def clusters() -> Iterator[tuple[SimulatedCluster, SimulatedCluster]]:
    with World() as world, SimulatedCluster(world, 2, name="source") as source, SimulatedCluster(world, 2) as target:
        yield source, target


def test_records_that_an_election_takes_between_the_two_questions_are_sent_again(
    clusters: tuple[SimulatedCluster, SimulatedCluster], tmp_path: Path
) -> None:
    source, target = clusters
    source.do(lambda: source.create("orders", 1, replicas=2))
    source.do(lambda: source.topics["orders"].partitions[0].append(batch([(b"key", row) for row in RECORDS])))
    storage = {"uri": tmp_path.as_uri()}
    back_up({"cluster": {"bootstrapServers": source.bootstrap}, "topics": {"include": ["orders"]}, "storage": storage})
    ask, rounds = count._ask, []

    def elect_a_replica_without_records() -> None:
        partition = target.topics["orders"].partitions[0]
        (follower,) = (node for node in partition.brokers if node != partition.leader)
        partition.replicas[follower].truncate(0)
        partition.leave_isr(follower)
        partition.elect(follower)
        partition.replicate()

    def asked(*args: Any) -> Any:
        rounds.append(args)
        if len(rounds) == 2:
            target.do(elect_a_replica_without_records)
        return ask(*args)

    with patch("logkeep_engine.restore.sending.count._ask", asked):
        result = bring_back({"cluster": {"bootstrapServers": target.bootstrap}, "source": {"storage": storage}})

    assert result.records == 5
    found = target.do(target.topics["orders"].partitions[0].log.committed)
    assert [record.value for record in found] == RECORDS
