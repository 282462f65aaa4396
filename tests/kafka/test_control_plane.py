"""The control plane on a real broker."""

import time

import pytest
from confluent_kafka import Producer, TopicPartition

from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import (
    BrokerRefused,
    BrokerUnavailable,
    Refused,
    TargetUnsuitable,
    TopicExists,
    TopicGone,
)
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from logkeep_engine.kafka.control import Bounds, ControlPlane
from logkeep_engine.kafka.groups import GroupPosition
from logkeep_engine.kafka.protocol import parse_topic_id
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.topics import NewTopicPlan
from tests.cluster.kafka import KafkaBroker
from tests.data.topics import commit, end_transaction
from tests.kafka.raw import batch, eventually, plain, run


@pytest.fixture
def control(kafka: KafkaBroker) -> ControlPlane:
    return ControlPlane(replace(plain(kafka.bootstrap), limits=Limits(unknown=1)))


def secure(broker: KafkaBroker, protocol: str, mechanism: str | None, password: str | None = None) -> KafkaConnection:
    addresses = {
        "SSL": broker.ssl_bootstrap,
        "SASL_PLAINTEXT": broker.sasl_bootstrap,
        "SASL_SSL": broker.sasl_ssl_bootstrap,
    }
    security: dict[str, object] = {"protocol": protocol}
    if mechanism:
        security["sasl"] = {"mechanism": mechanism, "secretRef": {"name": "login"}}
    environ = {"LOGKEEP_KAFKA_USERNAME": broker.username, "LOGKEEP_KAFKA_PASSWORD": password or broker.password}
    if protocol != "SASL_PLAINTEXT":
        environ["LOGKEEP_KAFKA_CA_FILE"] = str(broker.ca_pem)
    if protocol == "SSL":
        environ["LOGKEEP_KAFKA_CERT_FILE"] = str(broker.client_certificate.cert)
        environ["LOGKEEP_KAFKA_KEY_FILE"] = str(broker.client_certificate.key)
    spec = ClusterSpec.model_validate({"bootstrapServers": [addresses[protocol]], "security": security})
    return connection_from(spec, environ)


WAYS = [
    ("SSL", None),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-512"),
]


def test_topics_have_ids_partitions_and_their_own_configuration(
    kafka: KafkaBroker, control: ControlPlane, unique: str
) -> None:
    ids = control.create_topics([NewTopicPlan(unique, 3, 1, {"retention.ms": "-1", "compression.type": "producer"})])
    topic = next(topic for topic in control.topics() if topic.name == unique)
    assert control.cluster_id() == kafka.cluster_id
    assert control.broker_count() == 1
    assert (topic.topic_id, topic.replication_factor, topic.internal) == (ids[unique], 1, False)
    assert [(part.id, part.leader, part.replicas) for part in topic.partitions] == [(n, 1, (1,)) for n in range(3)]
    on_disk = kafka.data_dir / f"{unique}-0" / "partition.metadata"
    eventually(on_disk.exists)
    assert f"topic_id: {ids[unique]}" in on_disk.read_text()
    assert len(parse_topic_id(topic.topic_id).bytes) == 16
    assert control.topic_configs([unique, "no-such"]) == {
        unique: {"compression.type": "producer", "retention.ms": "-1"}
    }
    assert control.topic_ids([unique, "no-such"]) == ids


def test_topic_of_the_same_name_gets_another_id(control: ControlPlane, unique: str) -> None:
    first = control.create_topics([NewTopicPlan(unique, 1, 1)])
    control.delete_topic_ids(first)
    assert control.topic_ids([unique]) == {}
    assert control.create_topics([NewTopicPlan(unique, 1, 1)]) != first


@pytest.mark.parametrize("address", ["192.0.2.1:9092", "kafka-0.kafka-headless.prod.svc.cluster.local:9092"])
def test_an_advertised_address_that_cannot_be_reached_is_named(address: str) -> None:
    """The bootstrap address answers: it is not what is wrong."""
    with KafkaBroker(overrides={"advertised.listeners": f"PLAINTEXT://{address}"}) as broker:
        limits = Limits(connect=1, control=3, outage=3)
        connection = replace(plain(broker.bootstrap), limits=limits)
        with pytest.raises(BrokerUnavailable) as caught:
            ControlPlane(connection).cluster_id()
        text = f"a broker of {broker.bootstrap} answers, but names addresses of brokers that cannot be reached from "
        assert f"{text}here: broker 1 ({address})" in caught.value.message
        assert "advertised.listeners" in caught.value.hint

        async def connect() -> None:
            async with BrokerPool(connection, limits) as pool:
                await pool.connected(1, 0)

        with pytest.raises(RetriableError, match=r"^broker 1 ") as trouble:
            run(connect())
        assert address in trouble.value.reason
        assert "advertised.listeners" in trouble.value.hint


@pytest.mark.parametrize("listener", ["sasl_bootstrap", "ssl_bootstrap"])
def test_a_listener_that_wants_more_than_plaintext_is_reported_by_what_it_does(
    secure_kafka: KafkaBroker, listener: str
) -> None:
    address: str = getattr(secure_kafka, listener)
    with pytest.raises(BrokerUnavailable) as caught:
        ControlPlane(replace(plain(address), limits=Limits(connect=3, control=6, outage=6))).cluster_id()
    text = f"Cannot reach a Kafka broker of {address}: {address}: the connection was closed. Tried for 6 s."
    assert caught.value.message in (text, text.replace(f": {address}:", f": no broker answers: {address}:"))
    assert "the security protocol" in caught.value.hint


def test_many_topics_are_described_in_pieces(
    control: ControlPlane, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logkeep_engine.kafka.topics._TOPICS_A_REQUEST", 3)
    monkeypatch.setattr("logkeep_engine.kafka.survey.TOPICS_A_REQUEST", 3)
    monkeypatch.setattr("logkeep_engine.kafka.survey.PARTITIONS_A_REQUEST", 4)
    names = [f"{unique}-{number}" for number in range(10)]
    ids = control.create_topics([NewTopicPlan(name, 2, 1) for name in names])
    assert control.topic_ids(names) == ids
    assert sorted(control.topic_configs(names)) == names
    expected = {(name, part): 0 for name in names for part in (0, 1)}
    eventually(lambda: control.latest_offsets(expected) == expected)
    control.delete_topic_ids(ids)


def test_refused_topics_say_why(control: ControlPlane, unique: str) -> None:
    control.create_topics([NewTopicPlan(unique, 1, 1)])
    with pytest.raises(TopicExists, match=unique):
        control.create_topics([NewTopicPlan(unique, 1, 1)])
    with pytest.raises(TargetUnsuitable, match=r"cannot have 3 replicas.*Brokers of the cluster: 1"):
        control.create_topics([NewTopicPlan(f"{unique}-x", 1, 3)])
    with pytest.raises(Refused, match=r"cleanup\.policy=perhaps"):
        control.create_topics([NewTopicPlan(f"{unique}-y", 1, 1, {"cleanup.policy": "perhaps"})])
    with pytest.raises(Refused, match="was refused"):
        control.create_topics([NewTopicPlan("no spaces", 1, 1)])


def test_configuration_is_changed_in_parts(control: ControlPlane, unique: str) -> None:
    control.create_topics([NewTopicPlan(unique, 1, 1, {"retention.ms": "5000", "segment.ms": "7000"})])
    control.alter_topic_configs(unique, {"max.message.bytes": "4000"}, ["retention.ms"])
    changed = {"max.message.bytes": "4000", "segment.ms": "7000"}
    eventually(lambda: control.topic_configs([unique])[unique] == changed)
    with pytest.raises(Refused, match=r"max\.message\.bytes"):
        control.alter_topic_configs(unique, {"max.message.bytes": "many", "segment.ms": "9"})
    assert control.topic_configs([unique])[unique] == changed
    with pytest.raises(TopicGone, match=f"{unique}-z"):
        control.alter_topic_configs(f"{unique}-z", {"segment.ms": "9000"})


def test_last_stable_offset_stays_below_an_open_transaction(
    kafka: KafkaBroker, control: ControlPlane, unique: str
) -> None:
    control.create_topics([NewTopicPlan(unique, 1, 1)])
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(unique, b"a")
    end_transaction(kafka.bootstrap, producer, [(unique, 0)])
    producer.begin_transaction()
    producer.produce(unique, b"b")
    producer.flush(120)
    where = [(unique, 0)]
    assert control.latest_offsets(where) == {(unique, 0): 3}
    assert control.bounds([*where, (unique, 5), ("no-such", 0)]).found == {(unique, 0): Bounds(0, 2)}
    producer.abort_transaction(30)
    eventually(lambda: control.bounds(where).found == {(unique, 0): Bounds(0, 4)})


def test_partition_bytes_are_those_on_disk(kafka: KafkaBroker, control: ControlPlane, unique: str) -> None:
    control.create_topics([NewTopicPlan(unique, 2, 1)])

    async def write() -> None:
        async with RawClient(plain(kafka.bootstrap)) as client:
            await client.produce(unique, 1, batch([b"x" * 5000]))

    run(write())
    log = kafka.data_dir / f"{unique}-1" / "00000000000000000000.log"
    topics = [topic for topic in control.topics() if topic.name == unique]
    expected = {(unique, 0): 0, (unique, 1): log.stat().st_size}
    eventually(lambda: control.partition_bytes(topics) == expected)  # the broker makes one log after the other
    assert log.stat().st_size > 5000


def test_group_positions_with_metadata_and_vanished_groups(
    kafka: KafkaBroker, control: ControlPlane, unique: str
) -> None:
    control.create_topics([NewTopicPlan(unique, 2, 1)])
    positions = [TopicPartition(unique, 0, 7, metadata="note", leader_epoch=0), TopicPartition(unique, 1, 0)]
    commit(kafka.bootstrap, unique, positions)
    assert unique in control.listed_groups()
    found = control.group_offsets([unique, "no-such"])
    assert found.offsets == (
        GroupPosition(unique, unique, 0, 7, 0, "note"),
        GroupPosition(unique, unique, 1, 0, -1, ""),
    )
    assert found.notes == ("Consumer group 'no-such' vanished or has no committed offsets.",)


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_both_planes_over_tls_and_login(
    secure_kafka: KafkaBroker, unique: str, protocol: str, mechanism: str | None
) -> None:
    connection = secure(secure_kafka, protocol, mechanism)
    control = ControlPlane(connection)
    control.create_topics([NewTopicPlan(unique, 1, 1)])

    async def both_ways() -> bytes:
        async with RawClient(connection) as client:
            await client.produce(unique, 0, batch([b"hello"]))
            return bytes((await client.fetch(unique, 0, 0)).data)

    assert b"hello" in run(both_ways())
    assert control.partition_bytes(control.topics())[unique, 0] > 60


@pytest.mark.parametrize(("protocol", "mechanism"), [way for way in WAYS if way[1]])
def test_wrong_password_is_refused_at_once(secure_kafka: KafkaBroker, protocol: str, mechanism: str) -> None:
    connection = secure(secure_kafka, protocol, mechanism, password="not-the-password")

    async def enter() -> None:
        async with RawClient(connection):
            pass

    for attempt in (lambda: run(enter()), lambda: ControlPlane(connection, connect_timeout=90, timeout=90).topics()):
        begin = time.monotonic()
        with pytest.raises(BrokerRefused, match=r"refused user 'logkeep'.*LOGKEEP_KAFKA_PASSWORD") as caught:
            attempt()
        assert time.monotonic() - begin < 60
        assert "not-the-password" not in str(caught.value)


def test_certificate_of_an_unknown_authority_is_refused_at_once(secure_kafka: KafkaBroker) -> None:
    connection = replace(secure(secure_kafka, "SSL", None), ca_file=str(secure_kafka.client_certificate.cert))

    async def enter() -> None:
        async with RawClient(connection):
            pass

    with pytest.raises(BrokerRefused, match="not trusted"):
        run(enter())
    with pytest.raises(BrokerRefused, match="not trusted"):
        ControlPlane(connection).topics()


def test_nobody_at_the_address_names_it_in_time() -> None:
    connection = replace(plain("127.0.0.1:1"), limits=Limits(outage=1))
    begin = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        ControlPlane(connection, connect_timeout=3).topics()

    async def enter() -> None:
        async with RawClient(connection):
            pass

    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1.*connection refused"):
        run(enter())
    assert time.monotonic() - begin < 60


def test_tls_at_a_listener_without_it_is_told_in_words(kafka: KafkaBroker) -> None:
    spec = ClusterSpec.model_validate({"bootstrapServers": [kafka.bootstrap], "security": {"protocol": "SSL"}})
    connection = replace(connection_from(spec, {}), limits=Limits(outage=1))

    async def enter() -> None:
        async with RawClient(connection):
            pass

    with pytest.raises(BrokerUnavailable, match=rf"{kafka.bootstrap}: connection reset\.") as caught:
        run(enter())
    assert "Check the addresses, the security protocol" in caught.value.hint
