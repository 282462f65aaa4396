"""Orders about users whose answers are lost."""

import asyncio
from typing import Any

import pytest

from logkeep_engine.errors import BrokerRefused, BrokerUnavailable
from logkeep_engine.kafka.codes import Code
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.retry import RetriableError
from logkeep_engine.kafka.user_requests import Acl, Results, is_sendable

OF_CLUSTER = Acl("CLUSTER", "kafka-cluster", "LITERAL", "User:other", "*", "ALTER", "ALLOW")


class Refuses:
    """Stands for connections to brokers that let nobody set ACLs. The first answers get lost."""

    limits = Limits()

    def __init__(self, lost: int) -> None:
        self._lost = lost

    def any_node(self) -> int:
        return 1

    async def controller(self) -> int:
        return 1

    def name(self, _: int) -> str:
        return "broker 1"

    async def connected(self, *_: int) -> None:
        """The connection is open."""

    async def ask(self, *_: Any) -> Results:
        self._lost -= 1
        if self._lost >= 0:
            raise RetriableError("the answer is lost")
        return Results(0, ((Code.CLUSTER_AUTHORIZATION_FAILED, ""),))


@pytest.mark.parametrize(("lost", "error"), [(0, BrokerRefused), (1, BrokerUnavailable)])
def test_acls_that_may_have_taken_the_right_to_repeat_them_are_not_called_refused(
    monkeypatch: pytest.MonkeyPatch, lost: int, error: type[Exception]
) -> None:
    brokers = Refuses(lost)
    monkeypatch.setattr(ControlPlane, "_on_a_pool", lambda _, question, reach: asyncio.run(question(brokers)))
    control = ControlPlane(KafkaConnection(("127.0.0.1:1",)), timeout=30.0)
    control._connected = True
    with pytest.raises(error):
        control.create_acls([OF_CLUSTER])


@pytest.mark.parametrize(
    ("changes", "sendable"),
    [
        ({}, True),
        ({"resource": "99", "operation": "15"}, True),
        ({"resource": "cluster"}, False),
        ({"operation": ""}, False),
        ({"permission": "-3"}, False),
        ({"pattern": "1000"}, False),
        ({"pattern": "\u0663"}, False),
    ],
)
def test_an_acl_with_a_word_that_is_none_of_kafkas_is_not_sent(changes: dict[str, str], sendable: bool) -> None:
    acl = Acl("TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW")._replace(**changes)
    assert is_sendable(acl) is sendable


def test_an_order_that_is_given_again_asks_for_permission_again(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, asked = Refuses(2), list[int]()
    monkeypatch.setattr(ControlPlane, "_on_a_pool", lambda _, question, reach: asyncio.run(question(brokers)))
    control = ControlPlane(KafkaConnection(("127.0.0.1:1",)), timeout=30.0)
    control._connected = True
    control.only_while(lambda: asked.append(1))
    with pytest.raises(BrokerUnavailable):
        control.create_acls([OF_CLUSTER])
    assert len(asked) == 3
