"""The topics that drills have created, as the place of their state remembers them: `runs/open-drills/<attempt>.json`.

An attempt writes down the names of its topics before it creates them, and their topic ids before the first record. The
object is deleted when the topics are. So an attempt that was killed leaves an object that names what it has left, and a
later one deletes that: by topic id, which no other topic ever has.

The object is a claim: a user who may write to the place of the state could have put it there. So a topic is deleted
only if the brokers know the id by the name that is noted, the name begins with the prefix of the spec and the attempt's
random part, and the topic carries the mark of the attempt: a number in its configuration that nothing else sets, and
that it has from its creation on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from logkeep_engine.archive.names import RUNS, run_file
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import TargetUnsuitable, TopicExists
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.queries import NO_TOPIC_ID
from logkeep_engine.restore.model.drill_scope import TOKEN_DIGITS, DrillScope
from logkeep_engine.restore.topics.deleting import known_by_both
from logkeep_engine.storage import Storage
from logkeep_engine.stored import reading

_OPEN = StoredDocument(
    "note of a drill's topics",
    1,
    {
        "runId": str,
        "resource": str,
        "clusterId": str,
        "prefix": str,
        "token": str,
        "time": float,
        "topics": {str: str},
    },
)
_FOLDER = "open-drills"
# A controller that was asked to create a topic does so, or not at all, within this time.
_CREATED_WITHIN = 600.0
_PATIENCE = 30.0
_PAUSE = 0.2
NOT_KNOWN = ""
_TOKEN = re.compile(rf"[0-9a-f]{{{TOKEN_DIGITS}}}")


@dataclass(frozen=True)
class OpenDrill:
    """One attempt that may have topics. `topics` has the topic id of each name, NOT_KNOWN as long as it is not
    known."""

    run_id: str
    resource: str
    cluster_id: str
    scope: DrillScope
    begun: float
    topics: Mapping[str, str]

    @property
    def path(self) -> str:
        """The object that remembers the attempt."""
        return run_file(_FOLDER, f"{self.run_id}.{self.scope.token}.json")

    def to_json(self) -> bytes:
        return _OPEN.dumps(
            {
                "runId": self.run_id,
                "resource": self.resource,
                "clusterId": self.cluster_id,
                "prefix": self.scope.prefix,
                "token": self.scope.token,
                "time": self.begun,
                "topics": dict(self.topics),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, name: str) -> OpenDrill:
        """Return the attempt in the object `name`. Raises ArchiveMismatch and ArchiveDamaged."""
        hint = "The object was altered. Look for topics that a drill has left, and delete the object."
        with reading(_OPEN, data, name, hint=hint) as body:
            scope = DrillScope(body["prefix"], body["token"])
            if not _TOKEN.fullmatch(scope.token):
                raise ValueError("a token that no drill makes")
            if not all(topic.startswith(scope.beginning) for topic in body["topics"]):
                raise ValueError("names of topics that do not belong to the drill")
            found = cls(body["runId"], body["resource"], body["clusterId"], scope, float(body["time"]), body["topics"])
            if not name.endswith(found.path):
                raise ValueError("a run or a token that is not in the name of the object")
            return found


class DrillTopics:
    """The topics of one attempt, in the cluster and in place of the state."""

    def __init__(self, storage: Storage, drill: OpenDrill) -> None:
        self._storage = storage
        self.drill = drill

    def announce(self) -> None:
        """Note the names, before the first topic is created."""
        self._storage.put(self.drill.path, self.drill.to_json())

    def remember(self, control: ControlPlane) -> None:
        """Note the topic ids, before the first record is written. Raises TopicExists for a topic that the attempt has
        not created."""
        deadline = time.monotonic() + _PATIENCE
        while missing := sorted(set(self.drill.topics) - set(self._found(control))):
            if time.monotonic() > deadline:
                raise TopicExists(
                    f"topic {missing[0]!r} is not the one that this drill has created",
                    hint="Topics of this name were created or deleted in the meantime. Try again.",
                )
            time.sleep(_PAUSE)  # a broker may learn of the topics later than the one that was asked before

    def delete(self, control: ControlPlane) -> list[str]:
        """Delete the topics that the attempt has created, wait until they are gone, and forget them. Returns the topics
        that are there, as they were noted, and do not carry the mark of the attempt: these stay, and so does the note.

        Raises StateAltered for a note with the id of a topic of another name, and BrokerRefused and BrokerUnavailable;
        what is left stays remembered.
        """
        ids = self._found(control)
        there = known_by_both(control, ids, f"{self._storage.uri}/{self.drill.path}")
        own = _marked(control, list(there), self.drill.scope.mark) if there else {}
        if own:
            control.delete_topic_ids({name: topic_id for name, topic_id in own.items() if there[name] == topic_id})
        left = sorted(set(there) - set(own))
        unknown = len(ids) < len(self.drill.topics)
        if not left and (not unknown or time.time() - self.drill.begun > _CREATED_WITHIN):
            self._storage.delete([self.drill.path])
        return left

    def _found(self, control: ControlPlane) -> dict[str, str]:
        """Return the topic ids of all topics that the attempt has created, as far as they are there, after they were
        noted."""
        unknown = [name for name, topic_id in self.drill.topics.items() if topic_id == NOT_KNOWN]
        found = _marked(control, unknown, self.drill.scope.mark) if unknown else {}
        if found:
            self.drill = replace(self.drill, topics={**self.drill.topics, **found})
            self._storage.put(self.drill.path, self.drill.to_json())
        return {name: topic_id for name, topic_id in self.drill.topics.items() if topic_id != NOT_KNOWN}


def _marked(control: ControlPlane, names: list[str], mark: Mapping[str, str]) -> dict[str, str]:
    """Return the topic ids of the topics with these names that have the mark in their configuration."""
    before = control.topic_ids(names)
    if NO_TOPIC_ID in before.values():
        raise TargetUnsuitable(
            f"the brokers give topic {min(before)!r} no topic id, and a drill deletes its topics by id",
            hint="Drill into a cluster in KRaft mode. Delete the topics that begin with the prefix of this drill.",
        )
    configs = control.topic_configs(before)
    after = control.topic_ids(before)
    return {
        name: topic_id
        for name, topic_id in before.items()
        if mark.items() <= configs.get(name, {}).items() and after.get(name) == topic_id
    }


def open_drills(storage: Storage) -> Iterator[OpenDrill]:
    """Yield the attempts that may have topics, of all resources that keep their state here."""
    for info in storage.list(f"{RUNS}{_FOLDER}/"):
        yield OpenDrill.from_json(storage.read(info.path), f"{storage.uri}/{info.path}")
