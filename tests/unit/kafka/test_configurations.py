"""Configurations are asked for again, of another broker, if the first one has just died."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from logkeep_engine.kafka.connection import KafkaConnection, Limits
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs


class Slow:
    """Replaces a client of Kafka's, whose threads would outlive the test. Notes how long it would wait."""

    def __init__(self, waits: list[float]) -> None:
        self._waits = waits

    def describe_configs(self, resources: list[ConfigResource], request_timeout: float) -> dict[ConfigResource, float]:
        self._waits.append(request_timeout)
        return dict.fromkeys(resources, request_timeout)


class DeadAtFirst(ControlPlane):
    """The first broker never answers; the second one knows of no configuration."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        super().__init__(KafkaConnection(("127.0.0.1:1",), limits=Limits(control=0.3, control_pause=0.01)))
        self._connected = True

    def _new_admin(self) -> Any:
        return Slow(self.waits)

    def _connect(self) -> None:
        pass

    def _outcome(self, future: Any) -> tuple[Any, KafkaException | None]:
        return ({}, None) if len(self.waits) > 1 else (None, KafkaException(KafkaError(KafkaError._TIMED_OUT)))


@pytest.mark.parametrize("effective", [False, True])
def test_a_broker_that_died_costs_a_part_of_the_time_only(effective: bool) -> None:
    """Requests at the end of a restore must not wait for the dead broker until their whole time is over."""
    control = DeadAtFirst()
    found = effective_topic_configs(control, ["orders"]) if effective else control.topic_configs(["orders"])
    assert found == {"orders": {}}
    assert control.waits == [pytest.approx(0.1), pytest.approx(0.1)]
