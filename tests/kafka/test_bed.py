"""The broker and the S3 server of the test bed do what the other tests rely on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cluster.kafka import KafkaBroker, class_archive
from tests.cluster.kafka_cluster import KafkaCluster
from tests.cluster.s3 import S3Server
from tests.cluster.tiered import TieredBroker, tiered_topic
from tests.data.topics import high_watermarks
from tests.kafka.backing_up import Topics


def test_broker_keeps_address_and_topics_over_a_crash(second_kafka: KafkaBroker, unique: str) -> None:
    broker = second_kafka
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(unique, 1)])[unique].result(30)
    broker.kill()
    broker.start()
    assert unique in admin.list_topics(timeout=30).topics
    dumped = broker.tool("kafka.tools.DumpLogSegments", "--files", next(broker.data_dir.glob(f"{unique}-0/*.log")))
    assert "Log starting offset: 0" in dumped.stdout


def test_broker_maps_the_class_archive_and_tools_do_not_speak_of_it(kafka: KafkaBroker) -> None:
    maps = Path(f"/proc/{kafka.process.pid}/maps").read_text()
    assert str(class_archive()) in maps
    tool = kafka.tool("kafka.tools.StorageTool", "random-uuid")
    assert len(tool.stdout.splitlines()) == 1
    assert tool.stderr == ""


def test_secure_broker_takes_each_protocol(secure_kafka: KafkaBroker) -> None:
    sasl = {"sasl.username": secure_kafka.username, "sasl.password": secure_kafka.password}
    trust = {"ssl.ca.location": str(secure_kafka.ca_pem)}
    client = {
        "ssl.certificate.location": str(secure_kafka.client_certificate.cert),
        "ssl.key.location": str(secure_kafka.client_certificate.key),
    }
    ways: list[dict[str, str | int | float | bool]] = [
        {"bootstrap.servers": secure_kafka.ssl_bootstrap, "security.protocol": "SSL", **trust, **client},
    ]
    for mechanism in ("PLAIN", "SCRAM-SHA-512"):
        login = {"sasl.mechanism": mechanism, **sasl}
        ways.append({"bootstrap.servers": secure_kafka.sasl_bootstrap, "security.protocol": "SASL_PLAINTEXT", **login})
        tls = {"bootstrap.servers": secure_kafka.sasl_ssl_bootstrap, "security.protocol": "SASL_SSL"}
        ways.append({**tls, **login, **trust})
    for way in ways:
        admin = AdminClient(way)
        assert admin.describe_cluster().result(30).cluster_id == secure_kafka.cluster_id


def test_s3_creates_an_object_once(s3: S3Server, bucket: str) -> None:
    storage = s3fs.S3FileSystem(**s3.storage_options)
    storage.pipe_file(f"{bucket}/object", b"first", mode="create")
    with pytest.raises(FileExistsError):
        storage.pipe_file(f"{bucket}/object", b"second", mode="create")
    assert storage.cat_file(f"{bucket}/object") == b"first"


@pytest.fixture
def cluster(three_brokers: KafkaCluster) -> Iterator[KafkaCluster]:
    yield three_brokers
    three_brokers.restore()


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


def test_remote_store_is_slow_and_fails_on_command(tiered: TieredBroker, unique: str) -> None:
    topics = Topics(tiered)
    topics.create(unique, 1, **tiered_topic())
    topics.produce(unique, [b"x" * 1000] * 3000)
    local_start = tiered.wait_until_remote(unique)
    assert 0 < local_start < 3000
    assert len(list(tiered.remote_dir.rglob("*.log"))) >= 2
    assert read_some(tiered, unique, 60) == b"x" * 1000
    tiered.command(delay_ms=1000)  # over remote.fetch.max.wait.ms: nothing comes, and no error
    assert read_some(tiered, unique, 3) is None
    tiered.command(fail=True)
    assert read_some(tiered, unique, 3) is None
    tiered.command()
    assert read_some(tiered, unique, 60) == b"x" * 1000


def read_some(broker: TieredBroker, topic: str, seconds: float) -> bytes | None:
    """The first record of partition 0, or None if the broker gives none for so long."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found = consumer.poll(seconds)
        value = None if found is None or found.error() else found.value()
        return value if isinstance(value, bytes) else None
    finally:
        consumer.close()
