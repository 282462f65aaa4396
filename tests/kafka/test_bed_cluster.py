"""The three brokers of the test bed do what the other tests rely on."""

from tests.cluster.kafka_cluster import KafkaCluster
from tests.data.topics import high_watermarks
from tests.kafka.backing_up import Topics


def test_brokers_of_a_cluster_are_killed_stopped_and_moved_one_by_one(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3], [2, 3, 1]])
    cluster.move_leader(unique, 1, 3)
    assert cluster.placed(unique, 1).replicas == (3, 2, 1)
    cluster.broker(1).kill()
    assert cluster.wait_for_leader(unique, 0, among=[2, 3]) in (2, 3)
    cluster.wait_in_sync(unique, 0, replicas=[2, 3])
    cluster.broker(3).pause()
    cluster.wait_until_registered(2)
    cluster.wait_in_sync(unique, 1, replicas=[2])
    cluster.restore()
    assert cluster.placed(unique, 1).in_sync == {1, 2, 3}


def test_cluster_keeps_what_was_written_when_all_brokers_are_killed(cluster: KafkaCluster, unique: str) -> None:
    cluster.create_topic(unique, [[1, 2, 3]])
    Topics(cluster).produce(unique, [b"first", b"second"])
    cluster.kill()
    cluster.restore()
    assert high_watermarks(cluster.admin(), [(unique, 0)]) == {(unique, 0): 2}
