"""Only a topic that the brokers know by its name and its id is deleted, whatever the state of a restore says."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from logkeep_engine.errors import BrokerUnavailable, StateAltered
from logkeep_engine.kafka.witnesses import Fate, TopicStanding
from logkeep_engine.restore.topics.deleting import known_by_both


class Brokers:
    """Brokers with these topic ids, by name. `silent` topics they do not tell of."""

    def __init__(self, ids: Mapping[str, str], silent: str = "") -> None:
        self._ids, self._silent = ids, silent

    def standings(self, topics: Mapping[str, str]) -> dict[str, TopicStanding]:
        def standing(name: str, topic_id: str) -> TopicStanding:
            if name == self._silent:
                return TopicStanding(Fate.NOT_KNOWN, "a broker says TOPIC_AUTHORIZATION_FAILED")
            if name not in self._ids:
                return TopicStanding(Fate.GONE)
            return TopicStanding(Fate.THERE if self._ids[name] == topic_id else Fate.RECREATED)

        return {name: standing(name, topic_id) for name, topic_id in topics.items()}

    def topics(self) -> list[Any]:
        return [SimpleNamespace(name=name, topic_id=topic_id) for name, topic_id in self._ids.items()]


def known(brokers: Brokers, ids: Mapping[str, str]) -> dict[str, str]:
    return known_by_both(brokers, ids, "the note")  # type: ignore[arg-type]


def test_topics_that_are_gone_or_were_created_again_are_left_out() -> None:
    brokers = Brokers({"a": "1", "b": "2", "c": "3"})
    assert known(brokers, {"a": "1", "b": "old", "gone": "9"}) == {"a": "1"}
    assert known(brokers, {}) == {}


@pytest.mark.parametrize("name", ["drill.0-x", "b"])
def test_the_id_of_a_topic_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(
        StateAltered, match=f"^the note: it says that topic '{name}' has the id 1, which is the id of topic 'a'"
    ) as no:
        known(Brokers({"a": "1", "b": "2", "c": "3"}), {name: "1", "c": "3"})
    assert "nothing was deleted" in no.value.message
    assert "spec.state" in no.value.hint


def test_what_brokers_do_not_tell_is_not_deleted() -> None:
    with pytest.raises(BrokerUnavailable, match="is unknown whether topic 'a' is the one to delete: a broker says"):
        known(Brokers({"a": "1"}, silent="a"), {"a": "1"})
