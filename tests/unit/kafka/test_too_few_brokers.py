"""Topics that cannot have their replicas now: refused where the cluster has fewer brokers, else waited for."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.errors import BrokerUnavailable, LogkeepError, TargetUnsuitable
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.topics import NewTopicPlan, PartitionInfo, TopicInfo


class ShortOfBrokers(ControlPlane):
    """A controller that refuses three replicas `refusals` times. `known`: what it says of registered brokers; None: it
    is too old to tell. Brokers 1 and 2 are alive, and a topic has the `replicas`."""

    def __init__(
        self, known: frozenset[int] | None, refusals: int = 1_000_000, replicas: tuple[int, ...] = (1, 2)
    ) -> None:
        super().__init__(KafkaConnection(("127.0.0.1:1",), limits=Limits(outage=0.2, control=0.1, control_pause=0.01)))
        self._known = known
        self._replicas = replicas
        self.left = refusals

    def registered(self) -> frozenset[int] | None:
        return self._known

    def _cluster(self) -> Any:
        return SimpleNamespace(brokers={1: ("one", 9092), 2: ("two", 9092)})

    def list_topics(self, names: Sequence[str] | None = None) -> tuple[list[TopicInfo], dict[str, str]]:
        partitions = (PartitionInfo(0, 1, self._replicas), PartitionInfo(1, 1, (1,)))
        return [TopicInfo("orders", "id", partitions, len(self._replicas), internal=False)], {}

    def _ask_to_create(
        self, plans: Sequence[NewTopicPlan], *, validate_only: bool = False
    ) -> list[tuple[NewTopicPlan, int, str]]:
        assert validate_only
        self.left -= 1
        return [] if self.left < 0 else [(plans[0], Code.INVALID_REPLICATION_FACTOR, "only 2 brokers")]


@pytest.mark.parametrize(
    ("known", "replicas", "error", "hint"),
    [
        (frozenset({1, 2}), (1, 2), TargetUnsuitable, "Brokers of the cluster: 2. If fewer"),
        (
            frozenset({1, 2, 3}),
            (1, 2),
            BrokerUnavailable,
            "The cluster has 3 brokers, and only 2 are alive: wait for the",
        ),
        (None, (1, 2), TargetUnsuitable, "Brokers of the cluster: 2. If fewer"),
        (None, (3, 1), BrokerUnavailable, "The cluster has 3 brokers, and only 2 are alive: wait for the others"),
    ],
)
def test_too_few_brokers(
    known: frozenset[int] | None, replicas: tuple[int, ...], error: type[LogkeepError], hint: str
) -> None:
    with pytest.raises(error, match="Topic 'copy' cannot have 3 replicas: only 2 brokers") as caught:
        ShortOfBrokers(known, replicas=replicas).check_replicas("copy", 3)
    assert hint in caught.value.hint
    assert "lower spec.topics.replicationFactor" in caught.value.hint


def test_brokers_that_come_back_are_waited_for() -> None:
    control = ShortOfBrokers(frozenset({1, 2, 3}), refusals=3)
    control.check_replicas("copy", 3)
    assert control.left < 0
