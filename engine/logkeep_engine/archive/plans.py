"""The stored plans of runs that write an archive, as documents. `backup.model.plan` and `convert.plan` say what is in
them; readers of the archive look into them, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

from logkeep_engine.archive.catalog.facts import Gap, GroupEntry, TopicEntry
from logkeep_engine.contract.stored import StoredDocument

BACKUP_PLAN_FILE = "plan.json"
CONVERT_PLAN_FILE = "convert-plan.json"

_TOPIC = {
    "name": str,
    "topicId": str,
    "partitions": int,
    "replicationFactor": int,
    "configs": {str: str},
}
_GAP = (str, int, int, int, str)  # topic id, partition, start, end, reason
_GROUP = (str, str, str, int, int, int, str, bool)  # the fields of a `GroupEntry`
_NAMES = (int, [str])  # how many there are, and the first of them

BACKUP_PLAN = StoredDocument(
    "plan of a backup",
    1,
    {
        "runId": str,
        "topics": [_TOPIC],
        "chunks": [(int, int, int, int, int, int, int)],  # number of the topic, then the fields of a `Chunk`
        "gaps": [_GAP],
        "forks": [(str, int, int, int, str)],
        "leaders": [(int, int, int)],  # number of the topic, partition, epoch
        "uncompared": [(str, int)],
        "groups": [_GROUP],
        "idle": int,
        "unavailable": [(str, int)],
        "gone": [(str, str)],  # name, topic id
        "begun": int,
        "sight": {"leftOut": _NAMES, "vanished": _NAMES, "unreadable": _NAMES},
        "generations": [(str, int, int, str, int, int)],
    },
)

CONVERT_PLAN = StoredDocument(
    "plan of a conversion",
    1,
    {
        "runId": str,
        "source": str,
        "target": str,
        "options": {str: str},
        "topics": [{**_TOPIC, "compactedUntil": int, "cleanedUntil": int}],
        "gaps": [_GAP],
        "groups": [_GROUP],
        "pieces": [(str, int, int, int, int)],  # topic id, then the fields of a `ConvertChunk`
        "seen": [(str, int, [(int, int, int)])],
        "begins": [(str, int, int)],  # topic id, partition, offset
        "begun": int,
    },
)


def backup_plan_files() -> Iterator[str]:
    """Yield the plan of a backup and, one after another, what its later attempts have added to it: the first that is
    missing is the end."""
    yield BACKUP_PLAN_FILE
    for number in count(2):
        yield f"plan-{number}.json"


def topic_out(topic: TopicEntry) -> dict[str, Any]:
    """Return the topic as a plan has it."""
    return {
        "name": topic.name,
        "topicId": topic.topic_id,
        "partitions": topic.partitions,
        "replicationFactor": topic.replication_factor,
        "configs": dict(topic.configs),
    }


def topic_in(item: Mapping[str, Any]) -> TopicEntry:
    """Return the topic of a plan."""
    return TopicEntry(
        item["name"],
        item["topicId"],
        item["partitions"],
        item["replicationFactor"],
        item["configs"],
        item.get("compactedUntil", 0),
        item.get("cleanedUntil", 0),
    )


def row_out(entry: Gap | GroupEntry) -> list[Any]:
    """Return the fields as a row. `astuple` would copy every value, which takes longer than all the rest of a plan's
    JSON."""
    return [getattr(entry, name) for name in entry.__slots__]
