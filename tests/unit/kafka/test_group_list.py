"""A list of groups is whole, or there is none: brokers hear one after the other who coordinates groups now."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import Limits
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.group_list import ListedGroup, ListedGroups, listed_groups
from logkeep_engine.kafka.internal import CONSUMER_OFFSETS
from logkeep_engine.kafka.queries import ClusterView, PartitionView, TopicView
from logkeep_engine.kafka.retry import RetriableError

ALL = (1, 2, 3)


def view(*leaders: int, epoch: int = 5, brokers: Sequence[int] = ALL, in_sync: Sequence[int] = ALL) -> ClusterView:
    """The cluster as one broker knows it: who leads each partition of `__consumer_offsets`."""
    partitions = {
        number: PartitionView(Code.NONE, leader, epoch, ALL, tuple(in_sync)) for number, leader in enumerate(leaders)
    }
    return seen(TopicView(Code.NONE, CONSUMER_OFFSETS, "id", True, partitions), brokers)


def seen(topic: TopicView, brokers: Sequence[int] = ALL) -> ClusterView:
    return ClusterView(0, {node: ("127.0.0.1", 9000 + node) for node in brokers}, (topic,))


def without(code: Code) -> ClusterView:
    return seen(TopicView(code, CONSUMER_OFFSETS, "", False, {}))


Views = Mapping[int, ClusterView | str]


class Scripted:
    """Brokers that answer each question for the cluster, and each for groups, with what comes next. A broker without a
    view is silent, and says why."""

    limits = Limits(settling=0)

    def __init__(self, views: Sequence[Views], lists: Mapping[int, Sequence[str | Code]]) -> None:
        self._views = list(views)
        self._lists = {node: list(some) for node, some in lists.items()}
        self.asked = 0

    async def describe_to_all(self, names: Sequence[str]) -> tuple[dict[int, ClusterView], dict[int, str]]:
        assert list(names) == [CONSUMER_OFFSETS]
        views = self._views.pop(0)
        reported = {node: found for node, found in views.items() if isinstance(found, ClusterView)}
        return reported, {node: found for node, found in views.items() if isinstance(found, str)}

    async def version(self, node: int, api_key: int) -> int:
        return 5

    async def ask(self, node: int, call: Call[Any]) -> ListedGroups:
        self.asked += 1
        answer = self._lists[node].pop(0)
        if isinstance(answer, Code):
            return ListedGroups(answer, 0, ())
        return ListedGroups(Code.NONE, 0, tuple(ListedGroup(name, "consumer", "Empty") for name in answer.split()))

    def name(self, node: int) -> str:
        return f"broker {node}"

    def groups(self) -> list[str]:
        return sorted(asyncio.run(listed_groups(cast(BrokerPool, self))))


def agreed(found: ClusterView, brokers: Sequence[int] = ALL) -> Views:
    return dict.fromkeys(brokers, found)


def test_brokers_that_agree_before_and_after_it_are_asked_once() -> None:
    cluster = Scripted([agreed(view(1, 2)), agreed(view(1, 2))], {1: ["a b"], 2: ["c"], 3: [""]})
    assert (cluster.groups(), cluster.asked) == (["a", "b", "c"], 3)


OLD, NEW = view(1, 2), view(3, 2, epoch=6, brokers=(2, 3), in_sync=(2, 3))


@pytest.mark.parametrize(
    ("views", "why"),
    [
        ([{2: NEW, 3: OLD}], "disagree"),  # broker 1 has died, and broker 3 has not heard that it takes over
        ([{1: OLD, 2: view(1, 3), 3: OLD}], "disagree"),
        ([{1: OLD, 2: view(1, 2, brokers=(1, 2)), 3: OLD}], "disagree"),
        ([{1: OLD, 2: OLD, 3: without(Code.UNKNOWN_TOPIC_OR_PARTITION)}], "disagree"),
        ([{1: "broker 1: connection refused", 2: OLD, 3: OLD}], "connection refused"),
        ([agreed(view(-1, 2))], "partition 0 of __consumer_offsets has no leader: groups would be missing"),
        ([agreed(view(1, 2, brokers=(2, 3)), (2, 3))], "partition 0 of __consumer_offsets has no leader"),
        ([agreed(without(Code.LEADER_NOT_AVAILABLE))], "says LEADER_NOT_AVAILABLE of __consumer_offsets"),
        ([agreed(OLD), agreed(NEW, (2, 3))], "have changed while groups were listed"),
        ([agreed(OLD), agreed(view(1, 2, epoch=6))], "have changed while groups were listed"),
    ],
)
def test_groups_that_might_be_missing_are_trouble_and_no_list(views: Sequence[Views], why: str) -> None:
    with pytest.raises(RetriableError, match=why):
        Scripted(views, {1: ["a"], 2: ["b"], 3: [""]}).groups()


def test_a_coordinator_that_still_reads_its_groups_is_trouble() -> None:
    with pytest.raises(RetriableError, match="broker 2 says COORDINATOR_LOAD_IN_PROGRESS"):
        Scripted([agreed(OLD)], {1: ["a"], 2: [Code.COORDINATOR_LOAD_IN_PROGRESS]}).groups()


def test_where_a_leader_has_died_lately_groups_are_listed_twice() -> None:
    """Broker 3 says that it leads the partition, and has not begun to read it when it is asked first."""
    cluster = Scripted([agreed(NEW, (2, 3)), agreed(NEW, (2, 3))], {2: ["b", "b"], 3: ["", "a"]})
    assert (cluster.groups(), cluster.asked) == (["a", "b"], 4)


def test_who_may_not_see_the_coordinators_gets_the_groups_of_two_lists() -> None:
    hidden = agreed(without(Code.TOPIC_AUTHORIZATION_FAILED))
    cluster = Scripted([hidden, hidden], {1: ["a", "a"], 2: ["", "b"], 3: ["", ""]})
    assert (cluster.groups(), cluster.asked) == (["a", "b"], 6)


@pytest.mark.parametrize(("names", "asked"), [("", 3), ("a", 6)])
def test_a_cluster_in_which_nobody_has_committed_is_asked_once(names: str, asked: int) -> None:
    """One that hides its internal topics, and has groups, is asked twice."""
    absent = agreed(without(Code.UNKNOWN_TOPIC_OR_PARTITION))
    cluster = Scripted([absent, absent], {1: [names, names], 2: ["", ""], 3: ["", ""]})
    assert (cluster.groups(), cluster.asked) == (names.split(), asked)


@pytest.mark.parametrize(
    ("protocol", "kind", "commits", "share"),
    [
        ("consumer", "classic", True, False),
        ("consumer", "consumer", True, False),
        ("", "classic", True, False),
        ("consumer", "", True, False),
        ("streams", "streams", True, False),
        ("streams", "Streams", True, False),
        ("connect", "classic", True, False),
        ("share", "share", False, True),
        ("share", "", False, True),
        ("mesh", "mesh", False, False),
    ],
)
def test_of_which_kind_a_group_is(protocol: str, kind: str, commits: bool, share: bool) -> None:
    group = ListedGroup("g", protocol, "Empty", kind)
    assert (group.commits_positions, group.is_share) == (commits, share)
