"""Transactions of simulated producers end, as a coordinator ends them: the judgement reads up to the last stable
offset, and a transaction that nobody ends would hide all that a restore has written after it.
"""

from tests.simulation.cluster import SimulatedCluster, World
from tests.simulation.history import Action, History
from tests.simulation.ledger import Fate, Ledger
from tests.simulation.partition_log import Partition, batch

BEHIND = batch([(b"k", b"behind")])


def test_a_transaction_without_a_leader_is_ended_when_there_is_one(world: World) -> None:
    with SimulatedCluster(world, brokers=1) as cluster:
        partition, history = topic_of(cluster)
        cluster.do(lambda: happen(history, "begin_transaction", "stop_broker", "end_transaction"))
        assert set(history.ledger.fates.values()) == {Fate.OPEN}

        cluster.do(cluster.heal)
        cluster.do(lambda: partition.append(BEHIND))
        cluster.do(history.finish)

        assert Fate.OPEN not in history.ledger.fates.values()
        assert b"behind" in values(partition)


def test_a_transaction_whose_marker_was_cut_off_is_ended(world: World) -> None:
    with SimulatedCluster(world, brokers=2) as cluster:
        partition, history = topic_of(cluster)
        cluster.do(lambda: happen(history, "begin_transaction", "lag", "end_transaction", "unclean"))
        assert partition.log.open

        cluster.do(cluster.heal)
        cluster.do(lambda: partition.append(BEHIND))
        cluster.do(history.finish)

        assert b"behind" in values(partition)


def topic_of(cluster: SimulatedCluster) -> tuple[Partition, History]:
    topic = cluster.do(lambda: cluster.create("orders", 1, replicas=len(cluster.brokers)))
    return topic.partitions[0], History(cluster, Ledger())


def happen(history: History, *names: str) -> None:
    for name in names:
        history.happen(Action(name, seed=1))


def values(partition: Partition) -> list[bytes]:
    return [record.value or b"" for record in partition.log.committed()]
