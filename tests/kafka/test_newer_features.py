"""A restore into an older cluster names what only newer ones have, and brings back all else.

The cluster of the archive runs the newest Kafka, those that it comes back in each an older one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.contract.run import RunResult
from logkeep_engine.kafka.configs import GROUP
from logkeep_engine.kafka.resource_configs import ResourceConfig
from logkeep_engine.kafka.user_requests import Acl
from tests.cluster import versions
from tests.cluster.kafka import Brokers, KafkaBroker
from tests.cluster.process import wait_until
from tests.cluster.streams import counting
from tests.data.topics import NO_RETENTION, Record, commit_positions, create_topic, produce
from tests.kafka.raw import eventually
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, topic_settings
from tests.kafka.test_cluster_state import control_plane
from tests.kafka.test_restore_groups import next_values
from tests.kafka.test_share_groups import begin_to_share, starts
from tests.kafka.test_versions import cluster, read_by_a_member

LONG_AGO = 1_600_000_000_000
OLDER = tuple(to for of, to in versions.PAIRS if of == versions.NEWEST)
RANGE = Acl("TOPIC", "numbers", "LITERAL", "User:near", "10.1.0.0/16", "READ", "ALLOW")
NO_RANGE = RANGE._replace(principal="User:far", host="10.1.2.3", permission="DENY")
DENIED = RANGE._replace(permission="DENY", operation="WRITE")
"""A broker that knows no ranges would take both ACLs of one for a name that no host has."""
CONFIGS = [
    ResourceConfig(GROUP, "workers", "share.auto.offset.reset", "earliest"),
    ResourceConfig(GROUP, "readers", "consumer.session.timeout.ms", "50000"),
    ResourceConfig(GROUP, "counting", "streams.session.timeout.ms", "50000"),
]
KEPT = {"cleanup.policy": "", "retention.ms": "1000", "retention.bytes": "100", "segment.bytes": "1048576"}


@dataclass(frozen=True)
class Old:
    """A cluster of an older version, the archive of the newer one, and what the restore of everything has told."""

    broker: KafkaBroker
    root: Path
    result: RunResult

    def warnings_of(self, *words: str) -> list[str]:
        """The warnings that have all of these words."""
        return [text for text in self.result.warnings if all(word in text for word in words)]


def everything(broker: Brokers, root: Path, **more: Any) -> dict[str, Any]:
    return {
        "cluster": {"bootstrapServers": broker.addresses},
        "source": {"storage": {"uri": root.as_uri()}},
        "everything": True,
        "acls": {"cluster": True, "anyResource": True, "anyPrincipal": True, "principals": [".*"]},
        **more,
    }


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of a cluster with groups of all kinds, an ACL of a range, and a topic without a cleanup policy."""
    root = tmp_path_factory.mktemp("archive")
    with cluster(versions.NEWEST) as broker:
        control = control_plane(broker)
        create_topic(broker.bootstrap, "__share_group_state", 1, {"cleanup.policy": "delete"})
        for topic in ("numbers", "jobs", "in", "counts"):
            create_topic(broker.bootstrap, topic, 1, NO_RETENTION)
        records = [Record(b"k", b"%d" % number, LONG_AGO + number) for number in range(30)]
        for topic in ("numbers", "in"):
            produce(broker.bootstrap, topic, records)
        create_topic(broker.bootstrap, "for-ever", 1, KEPT)
        create_topic(broker.bootstrap, "for-ever-by-default", 1, {"cleanup.policy": ""})
        for topic in ("for-ever", "for-ever-by-default"):
            produce(broker.bootstrap, topic, records)
        assert control.set_resource_configs(CONFIGS) == []
        assert control.create_acls([RANGE, NO_RANGE, DENIED]) == []
        commit_positions(broker.bootstrap, "plain", {("numbers", 0): 7}, metadata="noted")
        read_by_a_member(broker, "readers", "numbers", 15, "consumer")
        begin_to_share(broker, "workers", "jobs")
        with counting(broker, "counting", "in", "counts"):
            wait_until(lambda: len(committed(broker, "counts")) >= 30, 120, "the program to count")
        eventually(lambda: not any(group.has_members for group in control.listed_groups().values()), 120)
        assert {name: group.kind.lower() for name, group in control.listed_groups().items()} == {
            "plain": "classic",
            "readers": "consumer",
            "workers": "share",
            "counting": "streams",
        }
        assert back_up(backup_spec(broker, root, ".*")).warnings == ()
    return root


@pytest.fixture(scope="module", params=OLDER)
def old(request: pytest.FixtureRequest, archive: Path) -> Iterator[Old]:
    with cluster(request.param) as broker:
        result = bring_back(everything(broker, archive), f"into-{request.param}")
        assert result.outcome == "Succeeded", result
        yield Old(broker, archive, result)


def test_acls_of_a_range_of_addresses_are_refused_by_name(old: Old) -> None:
    """An older cluster would take the range for the name of a host, and nobody would be let in, or kept out."""
    assert set(control_plane(old.broker).acls().items or ()) == {NO_RANGE}
    level = control_plane(old.broker).features()["metadata.version"]
    why = f"the host is a range of addresses, which needs metadata.version 32 (Kafka 4.4), and the cluster has {level}"
    (reported,) = old.warnings_of("ACLs could not be set")
    assert reported.startswith(f"2 ACLs could not be set: {RANGE} ({why}); {DENIED} ({why}); 1 of them denies")
    state = old.result.cluster_state
    assert state is not None
    assert (state.acls, state.acls_added, state.acls_refused) == (3, 1, 2)


def test_groups_that_commit_positions_come_back_and_continue(old: Old) -> None:
    """The first member makes of each the kind that its cluster has."""
    listed = control_plane(old.broker).listed_groups()
    assert {"plain", "readers", "counting"} <= set(listed)
    assert next_values(old.broker, "plain", "numbers", 23) == [b"%d" % number for number in range(7, 30)]
    assert next_values(old.broker, "readers", "numbers", 15) == [b"%d" % number for number in range(15, 30)]
    control = control_plane(old.broker)
    assert [(item.topic, item.offset) for item in control.group_offsets(["counting"]).offsets] == [("in", 30)]


def test_a_share_group_is_set_where_there_are_share_groups_and_named_elsewhere(old: Old) -> None:
    if versions.at_least(old.broker.version, "4.2"):
        assert [item.topic for item in starts(old.broker, "workers")] == ["jobs"]
        assert old.warnings_of("workers") == []
        return
    assert "workers" not in control_plane(old.broker).listed_groups()
    assert old.warnings_of("1 share group would get no start offset: 'workers'")
    assert old.warnings_of("share group 'workers': 1 position not set, first topic jobs partition 0")


def test_configurations_of_groups_come_back_where_groups_have_them_and_are_named_elsewhere(old: Old) -> None:
    found = {item[1:] for item in control_plane(old.broker).resource_configs().items or ()}
    if versions.at_least(old.broker.version, "4.2"):
        assert found == {item[1:] for item in CONFIGS}
        return
    assert found == set()
    (reported,) = old.warnings_of("3 configurations could not be set")
    assert all(f"{item.key}={item.value} of group '{item.name}'" in reported for item in CONFIGS)


def test_features_with_a_higher_level_are_named(old: Old) -> None:
    (reported,) = old.warnings_of("features of the source had a higher level")
    has = control_plane(old.broker).features()["metadata.version"]
    assert f"metadata.version 33 (here {has})" in reported


def test_a_topic_without_a_cleanup_policy_keeps_its_records_for_ever(old: Old) -> None:
    """Brokers before 4.2 take the empty policy, too, and delete nothing."""
    assert topic_settings(old.broker, "for-ever") == KEPT
    assert topic_settings(old.broker, "for-ever-by-default") == {"cleanup.policy": ""}
    create_topic(old.broker.bootstrap, "short-lived", 1, {**KEPT, "cleanup.policy": "delete"})
    produce(old.broker.bootstrap, "short-lived", [Record(b"k", b"v", LONG_AGO)])
    eventually(lambda: committed(old.broker, "short-lived") == [], 120)
    for topic in ("for-ever", "for-ever-by-default"):
        assert [record[2] for record in committed(old.broker, topic)] == [b"%d" % number for number in range(30)]


def test_nothing_else_is_reported(old: Old) -> None:
    """A restore without losses has no warning that somebody has to read."""
    known = ("ACLs could not be set", "features of the source", "share group", "configurations could not be set")
    assert [text for text in old.result.warnings if not any(word in text for word in known)] == []
