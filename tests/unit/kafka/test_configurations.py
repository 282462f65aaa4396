"""Configurations are asked for again, of another broker, if the first one hangs; orders go to the controller."""

import asyncio
from typing import Any

import pytest

from logkeep_engine.errors import ArchiveFenced, BrokerUnavailable, Refused, TopicGone
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.configs import TOPIC, ConfigEntry, DescribedConfigs, OrderResults
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.kafka.encoding import Call
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.topic_requests import CREATE, DeletedTopics
from logkeep_engine.kafka.topics import NewTopicPlan

SECONDS = 0.3
ORDERS = (TOPIC, "orders")
TOPIC_ID = "Rzj82UoXSGijKAanKet95Q"


class Brokers:
    """Stands for connections to brokers, which give the answers of a test in their order."""

    def __init__(self, *answers: Any) -> None:
        self.limits = Limits(control=SECONDS, control_pause=0.01)
        self.waits: list[float] = []
        self.connects = 0
        self._answers = iter(answers)

    def any_node(self) -> int:
        return 1

    async def controller(self) -> int:
        return 2

    def name(self, node: int) -> str:
        return f"broker {node}"

    async def connected(self, *_: int) -> None:
        self.connects += 1
        if self.connects == 1:
            raise RetriableError("broker 2 refuses connections")

    async def ask(self, _: int, call: Call[Any], seconds: float) -> Any:
        self.waits.append(seconds)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def plane(monkeypatch: pytest.MonkeyPatch, brokers: Brokers) -> ControlPlane:
    monkeypatch.setattr(ControlPlane, "_on_a_pool", lambda _, question, reach: asyncio.run(question(brokers)))
    control = ControlPlane(KafkaConnection(("127.0.0.1:1",), limits=brokers.limits))
    control._connected = True
    return control


@pytest.mark.parametrize("effective", [False, True])
def test_a_broker_that_hangs_costs_a_part_of_the_time_only(monkeypatch: pytest.MonkeyPatch, effective: bool) -> None:
    """Requests at the end of a restore must not wait for the dead broker until their whole time is over."""
    brokers = Brokers(RetriableError("it hangs"), DescribedConfigs(0, {ORDERS: {}}, {}))
    control = plane(monkeypatch, brokers)
    found = effective_topic_configs(control, ["orders"]) if effective else control.topic_configs(["orders"])
    assert found == {"orders": {}}
    assert brokers.waits == [pytest.approx(SECONDS / 3)] * 2


def test_an_answer_that_may_get_better_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = DescribedConfigs(0, {}, {ORDERS: (int(Code.COORDINATOR_LOAD_IN_PROGRESS), "")})
    whole = DescribedConfigs(0, {ORDERS: {"retention.ms": ConfigEntry("1", own=True)}}, {})
    assert plane(monkeypatch, Brokers(busy, whole)).topic_configs(["orders"]) == {"orders": {"retention.ms": "1"}}


NOT_KNOWN = DescribedConfigs(0, {}, {ORDERS: (int(Code.UNKNOWN_TOPIC_OR_PARTITION), "")})


@pytest.mark.parametrize("late", [NOT_KNOWN, DescribedConfigs(0, {}, {})])
def test_a_broker_that_says_nothing_of_a_topic_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, late: DescribedConfigs
) -> None:
    """One that has just started learns of the topics later. Without its configuration a topic would be taken for one
    that has none of its own."""
    whole = DescribedConfigs(0, {ORDERS: {"retention.ms": ConfigEntry("1", own=True)}}, {})
    control = plane(monkeypatch, Brokers(late, late, whole))
    assert control.topic_configs(["orders"]) == {"orders": {"retention.ms": "1"}}


def test_a_topic_that_no_broker_knows_for_a_while_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plane(monkeypatch, Brokers(*[NOT_KNOWN] * 100)).topic_configs(["orders"]) == {}


def test_a_topic_that_all_answers_leave_out_is_not_called_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerUnavailable, match=r"configuration of topic 'orders' .*the broker did not answer"):
        plane(monkeypatch, Brokers(*[DescribedConfigs(0, {}, {})] * 100)).topic_configs(["orders"])


def test_a_change_is_given_again_when_its_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    done = OrderResults(0, {ORDERS: (int(Code.NONE), "")})
    old = OrderResults(0, {ORDERS: (int(Code.NOT_CONTROLLER), "")})
    brokers = Brokers(RetriableError("the answer is lost"), old, done)
    control = plane(monkeypatch, brokers)
    control.alter_topic_configs("orders", {"retention.ms": "1"})
    assert control.changed
    assert len(brokers.waits) == 3
    gone = OrderResults(0, {ORDERS: (int(Code.UNKNOWN_TOPIC_OR_PARTITION), "")})
    with pytest.raises(TopicGone):
        plane(monkeypatch, Brokers(gone)).alter_topic_configs("orders", {"retention.ms": "1"})


def test_topics_are_not_created_twice_when_the_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second order would be refused for the very topics of the first. A connection that cannot be opened has
    carried none."""
    brokers = Brokers(RetriableError("the answer is lost"), AssertionError("asked twice"))
    control = plane(monkeypatch, brokers)
    with pytest.raises(BrokerUnavailable, match="It is unknown whether topics were created: the answer is lost"):
        control.create_topics([NewTopicPlan("orders", 1, 1)])
    assert (brokers.connects, len(brokers.waits)) == (2, 1)


def test_an_order_to_create_topics_has_the_whole_time_and_is_given_again_if_no_topic_was_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Brokers may answer when all is created only. Each topic has a reason of its own."""
    old = {(TOPIC, name): (int(Code.NOT_CONTROLLER), f"not for {name}") for name in ("orders", "sales")}
    refused = {place: (int(Code.POLICY_VIOLATION), "no.") for place in old}
    brokers = Brokers(OrderResults(0, old), OrderResults(0, refused))
    with pytest.raises(Refused, match=r"Topic 'orders' was refused: no\."):
        plane(monkeypatch, brokers).create_topics([NewTopicPlan("orders", 1, 1), NewTopicPlan("sales", 1, 1)])
    assert brokers.waits == [SECONDS, SECONDS]


def test_a_deletion_that_is_given_again_asks_for_permission_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run may have taken over in between."""
    busy = DeletedTopics(0, {TOPIC_ID: int(Code.NOT_CONTROLLER)})
    brokers = Brokers(RetriableError("the answer is lost"), busy, AssertionError("asked without permission"))
    control, left = plane(monkeypatch, brokers), iter([None, None, ArchiveFenced("another run is still running")])

    def permit() -> None:
        refusal = next(left)
        if refusal is not None:
            raise refusal

    control.only_while(permit)
    with pytest.raises(ArchiveFenced):
        control.delete_topic_ids({"orders": TOPIC_ID})
    assert len(brokers.waits) == 2
    assert not control.changed


def test_who_may_configure_a_topic_is_not_known_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = (int(Code.TOPIC_AUTHORIZATION_FAILED), "")
    control = plane(monkeypatch, Brokers(OrderResults(0, {ORDERS: denied, ("TOPIC", "sales"): (0, "")})))
    assert control.unconfigurable(["orders", "sales"]) == ["orders"]
    control = plane(monkeypatch, Brokers(OrderResults(0, {ORDERS: denied})))
    with pytest.raises(BrokerUnavailable, match="configuration of topic 'sales'"):
        control.unconfigurable(["orders", "sales"])


def test_what_is_only_checked_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = OrderResults(0, {ORDERS: (int(Code.POLICY_VIOLATION), "no.")})
    brokers = Brokers(RetriableError("the answer is lost"), refused)
    control = plane(monkeypatch, brokers)
    plan = NewTopicPlan("orders", 1, 1, {"retention.ms": "1"})
    assert str(control.refusal(plan)) == "Topic 'orders' was refused: no. Its configuration was: retention.ms=1."
    assert not control.changed
    assert CREATE == 19


def test_topics_that_the_answer_leaves_out_are_not_called_created(monkeypatch: pytest.MonkeyPatch) -> None:
    control = plane(monkeypatch, Brokers(OrderResults(0, {})))
    with pytest.raises(BrokerUnavailable, match="the broker did not answer"):
        control.create_topics([NewTopicPlan("orders", 1, 1)])
    assert not control.changed
