"""The door to deleting topics: the brokers are asked for the name of each topic id before it is deleted.

Ids come from objects in place of the state, and a user who may write there could have put the id of any topic into
one. Names are what a spec chooses and confirms. So only a topic that the brokers know by both is deleted, and an id
that is another topic's is refused by name. An id never comes back, so what was true when the brokers were asked is true
when they delete.
"""

from __future__ import annotations

from collections.abc import Mapping

from logkeep_engine.errors import BrokerUnavailable, StateAltered
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.witnesses import Fate
from logkeep_engine.restore.model.state import ALTERED


def known_by_both(control: ControlPlane, ids: Mapping[str, str], said_by: str) -> dict[str, str]:
    """Return those of the topic ids, by name, that the brokers know by this name: the only ones that may be deleted.
    `said_by` is the object that has them, for messages.

    Raises StateAltered for an id that is the id of a topic of another name, and BrokerUnavailable if brokers do not
    report it.
    """
    if not ids:
        return {}
    standings = control.standings(ids)
    for name, standing in standings.items():
        if standing.fate is Fate.NOT_KNOWN:
            raise BrokerUnavailable(
                f"It is unknown whether topic {name!r} is the one to delete: {standing.reason}.",
                hint="Check that the brokers are healthy and that this user may describe the topic, then start the "
                "same run again.",
            )
    there = {name: ids[name] for name, standing in standings.items() if standing.fate is Fate.THERE}
    if len(there) < len(ids):
        _refuse_others(control, {name: topic_id for name, topic_id in ids.items() if name not in there}, said_by)
    return there


def _refuse_others(control: ControlPlane, ids: Mapping[str, str], said_by: str) -> None:
    """Raises StateAltered for the id of a topic that has another name."""
    names = {topic.topic_id: topic.name for topic in control.topics()}
    for name, topic_id in sorted(ids.items()):
        if topic_id in names and names[topic_id] != name:
            raise StateAltered(
                f"{said_by}: it says that topic {name!r} has the id {topic_id}, which is the id of topic "
                f"{names[topic_id]!r}; nothing was deleted",
                hint=ALTERED,
            )
