"""Questions of one control plane share connections, and stay as right as on connections of their own."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from logkeep_engine import interrupt
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.kafka import opening
from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.survey import Survey
from logkeep_engine.kafka.topics import NewTopicPlan
from logkeep_engine.kafka.wire import Wire, open_wire
from tests.cluster.kafka import KafkaBroker
from tests.kafka.backing_up import Backups, Topics, numbers

PLAN_CONNECTIONS = 2  # to the address that was given, and to the leader
BACKUP_CONNECTIONS = 3 * PLAN_CONNECTIONS  # the plan, the estimate of sizes and the report; tasks are other processes


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Wire]:
    """The engine's own connections, in their order."""
    wires: list[Wire] = []

    async def counted(*address: Any, **config: Any) -> Wire:
        wires.append(await open_wire(*address, **config))
        return wires[-1]

    monkeypatch.setattr(opening, "open_wire", counted)
    return wires


@pytest.fixture
def topic(kafka: KafkaBroker, unique: str) -> str:
    ControlPlane(KafkaConnection((kafka.bootstrap,))).create_topics([NewTopicPlan(unique, 1, 1)])
    return unique


@pytest.fixture
def terminated() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    interrupt.on(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_questions_of_a_plan_open_two_connections(kafka: KafkaBroker, topic: str, opened: list[Wire]) -> None:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        control.only(control.cluster_id())
        control.list_topics()
        control.bounds([(topic, 0)])
        control.epoch_ends({(topic, 0): None})
        control.topic_ids([topic])
        assert len(opened) == PLAN_CONNECTIONS
        assert opened[-1].connected()  # the bootstrap address has not said of which cluster it is
    assert all(wire.closed.done() for wire in opened)


def test_a_small_backup_opens_few_connections(
    kafka: KafkaBroker, backups: Backups, topic: str, opened: list[Wire]
) -> None:
    Topics(kafka).produce(topic, numbers(100))
    assert backups.run(topic).outcome == "Succeeded"
    assert len(opened) <= BACKUP_CONNECTIONS + PLAN_CONNECTIONS  # a pause of two seconds within the plan costs two
    assert all(wire.closed.done() for wire in opened)


def test_a_connection_that_the_broker_has_closed_is_opened_again(
    kafka: KafkaBroker, topic: str, opened: list[Wire]
) -> None:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        assert control.latest_offsets([(topic, 0)]) == {(topic, 0): 0}
        for wire in list(opened):
            wire._transport.get_extra_info("socket").shutdown(2)
        assert control.latest_offsets([(topic, 0)]) == {(topic, 0): 0}
    assert len(opened) > PLAN_CONNECTIONS


def test_brokers_of_another_cluster_are_ignored_after_the_first_question(kafka: KafkaBroker, topic: str) -> None:
    limits = Limits(control=2, outage=2)
    with ControlPlane(KafkaConnection((kafka.bootstrap,), limits=limits)) as control:
        assert control.topic_ids([topic])
        control.only("another-cluster")
        with pytest.raises(BrokerUnavailable, match=r"belongs to Kafka cluster .*, not to another-cluster"):
            control.topic_ids([topic])


def test_an_interrupt_during_a_question_closes_all(
    kafka: KafkaBroker, topic: str, opened: list[Wire], monkeypatch: pytest.MonkeyPatch, terminated: None
) -> None:
    topics = Survey.topics

    async def interrupted(survey: Survey, names: Any = None) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.2)
        return await topics(survey, names)

    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        control.topic_ids([topic])
        monkeypatch.setattr(Survey, "topics", interrupted)
        with pytest.raises(KeyboardInterrupt):
            control.topic_ids([topic])
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    assert opened
    assert all(wire.closed.done() for wire in opened)
