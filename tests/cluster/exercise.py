"""Everything that clients ask of a broker in tests, once each: the broker then has loaded what tests need."""

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewPartitions, NewTopic

_TOPIC = "exercise"
_RECORDS = 300


def exercise(bootstrap: str) -> None:
    """Create, write, read, alter, describe and delete at the broker at this address, which has an authorizer."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    small = {"segment.bytes": "1048576", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    done = admin.create_topics([NewTopic(_TOPIC, 2), NewTopic(f"{_TOPIC}-compact", 1, config=small)])
    for made in done.values():
        made.result(60)
    _produce(bootstrap)
    _transactions(bootstrap)
    _consume(bootstrap)
    _administer(admin)
    for gone in admin.delete_topics([_TOPIC, f"{_TOPIC}-compact"]).values():
        gone.result(60)


def _produce(bootstrap: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        settings = {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": codec == "lz4",
            "log_level": 0,
        }
        producer = Producer(settings)
        for number in range(_RECORDS):
            topic = _TOPIC if number % 2 else f"{_TOPIC}-compact"
            producer.produce(topic, key=f"key-{number % 50}", value=b"v" * 200, headers={"header": b"1"})
        producer.flush(60)


def _transactions(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": _TOPIC, "log_level": 0})
    producer.init_transactions(60)
    for commits in (True, False):
        producer.begin_transaction()
        producer.produce(_TOPIC, value=b"of a transaction", partition=0)
        producer.flush(60)
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)


def _consume(bootstrap: str) -> None:
    for isolation in ("read_committed", "read_uncommitted"):
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": _TOPIC,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "log_level": 0,
        }
        consumer = Consumer(settings)
        consumer.subscribe([_TOPIC])
        read = consumer.consume(100, timeout=30)
        if not read:
            raise RuntimeError(f"the broker at {bootstrap} gave no record of {_TOPIC}: is it busy?")
        consumer.commit(asynchronous=False)
        consumer.offsets_for_times([TopicPartition(_TOPIC, 0, 0)], timeout=30)
        consumer.close()


def _administer(admin: AdminClient) -> None:
    topic = ConfigResource(ResourceType.TOPIC, _TOPIC)
    broker = ConfigResource(ResourceType.BROKER, "1")
    for described in admin.describe_configs([topic, broker]).values():
        described.result(60)
    entry = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    for altered in admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, _TOPIC, incremental_configs=[entry])]
    ).values():
        altered.result(60)
    for grown in admin.create_partitions([NewPartitions(_TOPIC, 3)]).values():
        grown.result(60)
    for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
        wanted = {
            TopicPartition(_TOPIC, 0): OffsetSpec.for_timestamp(0),
            TopicPartition(_TOPIC, 1): OffsetSpec.for_timestamp(0),
        }
        for offset in admin.list_offsets(wanted, isolation_level=isolation).values():
            offset.result(60)
    for removed in admin.delete_records([TopicPartition(_TOPIC, 0, 10)]).values():
        removed.result(60)
    admin.list_consumer_groups().result(60)
    for group in admin.describe_consumer_groups([_TOPIC]).values():
        group.result(60)
    password = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    user = UserScramCredentialUpsertion(_TOPIC, password, _TOPIC.encode(), b"salt")
    for changed in admin.alter_user_scram_credentials([user]).values():
        changed.result(60)
    anything = (ResourcePatternType.LITERAL, "User:exercise", "*", AclOperation.READ, AclPermissionType.ALLOW)
    for allowed in admin.create_acls([AclBinding(ResourceType.TOPIC, _TOPIC, *anything)]).values():
        allowed.result(60)
    same = AclBindingFilter(ResourceType.TOPIC, _TOPIC, *anything)
    admin.describe_acls(same).result(60)
    for forgotten in admin.delete_acls([same]).values():
        forgotten.result(60)
    for left in admin.delete_consumer_groups([_TOPIC]).values():
        left.result(60)
