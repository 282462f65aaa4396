"""Positions of groups through the control plane, with brokers that have metadata only: many of them, and errors."""

from collections.abc import Iterator

import pytest

from bench.simulated_cluster import Shape, SimulatedCluster
from logkeep_engine.errors import BrokerRefused, BrokerUnavailable, LogkeepError, TopicGone
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.groups import GroupPosition


@pytest.fixture(scope="module")
def simulated() -> Iterator[ControlPlane]:
    with SimulatedCluster(Shape(topics=30, partitions=400, groups=60, group_topics=2)) as bootstrap:
        yield ControlPlane(KafkaConnection(bootstrap))


def test_all_positions_of_more_groups_than_are_asked_at_once_are_read(simulated: ControlPlane) -> None:
    groups = sorted(simulated.listed_groups())
    found = simulated.group_offsets(groups)
    assert (len(groups), len(found.offsets), found.notes) == (60, 60 * 2 * 400, ())
    first = [item for item in found.offsets if item.group_id == "group-001"]
    assert [item.topic for item in (first[0], first[-1])] == ["topic-000002", "topic-000003"]
    assert [item.partition for item in first[:400]] == list(range(400))
    assert (first[0].offset, first[0].leader_epoch, first[0].metadata) == (0, 7, "")


def test_topics_offsets_and_sizes_of_more_partitions_than_fit_a_request_are_read(simulated: ControlPlane) -> None:
    topics = simulated.topics()
    partitions = [(topic.name, part.id) for topic in topics for part in topic.partitions]
    assert len(partitions) == 12_000
    bounds = simulated.bounds(partitions).found
    assert {found.start for found in bounds.values()} == {0}
    ends = {where: found.end for where, found in bounds.items()}
    assert ends.keys() == set(partitions)
    assert simulated.partition_bytes(topics) == {where: end * 300 for where, end in ends.items()}


@pytest.mark.parametrize(
    ("code", "error", "what"),
    [
        (
            30,
            BrokerRefused,
            "The broker does not let this user read the offsets of consumer group 'group-000' "
            r"\(ACL DESCRIBE on the group and its topics\): GROUP_AUTHORIZATION_FAILED",
        ),
        (16, BrokerUnavailable, "Cannot read the offsets of consumer group 'group-000' .*: no answer from 127.0.0.1:"),
        (42, BrokerRefused, "Cannot read the offsets of consumer group 'group-000' .*: INVALID_REQUEST"),
    ],
)
def test_a_coordinator_that_does_not_answer_is_an_error_that_names_the_group(
    code: int, error: type[LogkeepError], what: str
) -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=2, group_topics=1, group_codes=(code,))) as bootstrap:
        groups = sorted(ControlPlane(KafkaConnection(bootstrap)).listed_groups())
        with pytest.raises(error, match=what):
            ControlPlane(KafkaConnection(bootstrap), timeout=3).group_offsets(groups)


def test_a_group_that_vanished_is_noted() -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=2, group_topics=1, group_codes=(69,))) as bootstrap:
        control = ControlPlane(KafkaConnection(bootstrap))
        found = control.group_offsets(control.listed_groups())
    assert [item.group_id for item in found.offsets] == ["group-001"]
    assert found.notes == ("Consumer group 'group-000' vanished or has no committed offsets.",)


def positions(group: str, partitions: int, metadata: str = "") -> list[GroupPosition]:
    return [GroupPosition(group, "topic-000000", partition, 5, -1, metadata) for partition in range(partitions)]


def test_positions_of_many_groups_are_set() -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=120, group_topics=1, group_codes=(25, 0))) as bootstrap:
        control = ControlPlane(KafkaConnection(bootstrap))
        wanted = [item for group in control.listed_groups() for item in positions(group, 1000, "m" * 500)]
        refused = control.set_group_offsets(wanted)
    assert [item.position for item in refused] == positions("group-000", 1000, "m" * 500)
    assert {(item.error, item.has_members) for item in refused} == {("UNKNOWN_MEMBER_ID", True)}


@pytest.mark.parametrize("code", [15, 16, 14])
def test_positions_that_no_coordinator_takes_are_an_error_that_names_the_group(code: int) -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=2, group_topics=1, group_codes=(code,))) as bootstrap:
        control = ControlPlane(KafkaConnection(bootstrap), timeout=1)
        what = r"Cannot set the offsets of consumer group 'group-000' \(ACL READ .*: no answer from 127.0.0.1:"
        with pytest.raises(BrokerUnavailable, match=what):
            control.set_group_offsets(positions("group-000", 3) + positions("group-001", 3))


def test_positions_in_a_topic_that_is_gone_are_an_error_that_says_so() -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=1, group_topics=1, group_codes=(3,))) as bootstrap:
        control = ControlPlane(KafkaConnection(bootstrap), timeout=1)
        what = "Cannot set the offsets of consumer group 'group-000' .*: the topic does not exist"
        with pytest.raises(TopicGone, match=what):
            control.set_group_offsets(positions("group-000", 2))


def test_positions_that_may_not_be_set_are_refused_by_name() -> None:
    with SimulatedCluster(Shape(topics=1, partitions=1, groups=1, group_topics=1, group_codes=(30,))) as bootstrap:
        (refused,) = ControlPlane(KafkaConnection(bootstrap)).set_group_offsets(positions("group-000", 1))
    assert (refused.error, refused.has_members) == ("GROUP_AUTHORIZATION_FAILED", False)
