"""Which topics no KafkaBackup protects, and which names patterns stand for."""

from typing import Any

import pytest

from logkeep_engine.backup.model.unselected_topics import literal
from logkeep_engine.backup.recoverability.covered import Uncovered, backup_of, is_of, uncovered
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.kafka.topics import PartitionInfo, TopicInfo


def topic(name: str, *, internal: bool = False) -> TopicInfo:
    return TopicInfo(name, "a" * 22, (PartitionInfo(0, 1, (1,)),), 1, internal)


def backup(*include: str, name: str = "nightly", status: dict[str, Any] | None = None, **spec: Any) -> Any:
    document: dict[str, Any] = {"metadata": {"namespace": "team", "name": name}}
    if status is not None:
        document["status"] = status
    whole = {
        "cluster": {"bootstrapServers": ["kafka:9092"]},
        "topics": {"include": list(include)},
        "storage": {"uri": "s3://bucket/prefix"},
        **spec,
    }
    return backup_of(document, parse_backup(whole))


def test_a_topic_that_nothing_chooses_is_uncovered() -> None:
    topics = [topic("users"), topic("orders"), topic("__consumer_offsets", internal=True)]
    assert uncovered(topics, [backup("orders")]) == [Uncovered("users", 1)]
    assert [item.topic for item in uncovered(topics, [], internal=True)] == ["__consumer_offsets", "orders", "users"]


def test_a_backup_that_is_suspended_or_has_never_succeeded_protects_nothing() -> None:
    resting = backup("orders", name="resting", suspend=True)
    failing = backup("ord.*", name="failing", status={})
    assert uncovered([topic("orders")], [resting, failing]) == [
        Uncovered("orders", 1, ("team/resting (suspended)", "team/failing (has never succeeded)"))
    ]
    good = backup("orders", status={"lastSuccessTime": "2026-11-21T07:00:00Z"})
    assert uncovered([topic("orders")], [resting, failing, good]) == []
    assert uncovered([topic("orders")], [backup("orders")]) == [], "a file without a status says nothing of success"


@pytest.mark.parametrize(
    ("status", "servers", "same"),
    [
        (None, ["kafka:9092"], True),
        (None, ["other:9092"], False),
        ({"archive": {"clusterId": "k1"}}, ["other:9092"], True),
        ({"archive": {"clusterId": "k2"}}, ["kafka:9092"], False),
        ({"archive": {}}, ["kafka:9092"], True),
    ],
)
def test_a_backup_belongs_to_the_cluster_of_its_archive(status: Any, servers: list[str], same: bool) -> None:
    assert is_of(backup("orders", status=status), "k1", servers) is same


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("orders", "orders"),
        ("orders.v1", "orders.v1"),
        (r"orders\.v1", "orders.v1"),
        (r"orders\-v1", "orders-v1"),
        ("orders.*", None),
        ("orders?", None),
        ("a|b", None),
        (r"orders\d", None),
        ("[o]rders", None),
    ],
)
def test_a_pattern_without_wildcards_is_the_name_of_a_topic(pattern: str, name: str | None) -> None:
    assert literal(pattern) == name


def test_an_avro_backup_that_is_asked_for_them_covers_the_internal_topics_that_it_adds() -> None:
    topics = [topic("orders"), topic("_schemas"), topic("__consumer_offsets", internal=True)]
    asked: dict[str, Any] = {"topics": {"include": ["orders"], "internal": True}}
    assert uncovered(topics, [backup(format="Avro", **asked)], internal=True) == []
    plain = uncovered(topics, [backup(**asked)], internal=True)
    assert [item.topic for item in plain] == ["__consumer_offsets", "_schemas"]
    asked["topics"]["exclude"] = ["_schemas"]
    excluded = uncovered(topics, [backup(format="Avro", **asked)], internal=True)
    assert [item.topic for item in excluded] == ["_schemas"]
