"""Brokers answer from their own copy of the metadata: what was just set may not be in it yet."""

from collections.abc import Iterable, Iterator, Mapping

import pytest

from logkeep_engine.kafka.configs import ConfigEntry
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import applied_topic_configs

BROKERS_OWN = {"retention.ms": "604800000", "cleanup.policy": "delete", "max.message.bytes": "1048588"}


class Behind(ControlPlane):
    """Brokers that answer with the configuration of before for the first `behind` questions."""

    def __init__(self, before: Mapping[str, str], after: Mapping[str, str], behind: int) -> None:
        super().__init__(KafkaConnection(("127.0.0.1:1",)))
        self.behind = behind
        self._before, self._after = before, after

    def config_entries(self, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, ConfigEntry]]]:
        own = self._before if self.behind > 0 else self._after
        self.behind -= 1
        for name in names:
            if name != "gone":
                yield name, {key: _entry(key, own) for key in {*BROKERS_OWN, *own}}


def _entry(key: str, own: Mapping[str, str]) -> ConfigEntry:
    return ConfigEntry(own.get(key, BROKERS_OWN.get(key)), own=key in own)


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_what_was_set_is_waited_for(behind: int) -> None:
    control = Behind({"retention.ms": "-1"}, {"retention.ms": "1000"}, behind)
    configs, late = applied_topic_configs(control, {"orders": {"retention.ms": "1000"}, "gone": {"retention.ms": "1"}})
    assert (configs["orders"]["retention.ms"], list(configs), late) == ("1000", ["orders"], [])


def test_a_key_that_was_taken_back_is_waited_for_and_the_brokers_default_told() -> None:
    control = Behind({"retention.ms": "-1"}, {}, 2)
    configs, late = applied_topic_configs(control, {"orders": {"retention.ms": None}})
    assert (configs["orders"]["retention.ms"], late) == ("604800000", [])


def test_brokers_that_never_follow_are_reported() -> None:
    control = Behind({"retention.ms": "-1"}, {}, 1 << 30)
    configs, late = applied_topic_configs(control, {"orders": {"retention.ms": None}}, patience=0.3)
    assert (configs["orders"]["retention.ms"], late) == ("-1", ["orders"])
