"""The part of the API's objects that is kept in memory, and how much of it at once.

A user who may create objects in one namespace can create many, and large ones. The operator serves all namespaces, so
what it keeps of them has a bound. Decisions need little of an object: most of what makes one large is not kept at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from logkeep_engine.contract.names import KEY_PROGRESS, KEY_RESULT
from logkeep_engine.contract.spec import GROUP

MAX_CHILDREN_BYTES = 16 << 20
"""For the children of one kind of one resource. Several resources are looked at at once."""
MAX_SNAPSHOT_BYTES = 64 << 20
"""For a snapshot of everything. The rest gets looks of its own."""
MAX_REQUESTED = 1000
"""KafkaBackupRuns of one KafkaBackup that are read at once. Later ones have their turn when these have ended."""
MAX_ANNOTATION = 256
MAX_OWNERS = 100
_BYTES_OF_VALUE = 64  # an empty object or list
_METADATA = (
    *("name", "generateName", "namespace", "uid", "resourceVersion", "generation"),
    *("creationTimestamp", "deletionTimestamp", "labels", "ownerReferences"),
)
_WRITTEN_BACK = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")
_OWN_ANNOTATIONS = f"{GROUP}/"


class MemoryBound:
    """A bound for the memory of some objects together. It is not meant for several threads."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, body: Any) -> bool:
        """Count one more, if it is within the bound. Returns whether it is."""
        weight = weight_of(body)
        if weight > self._left:
            return False
        self._left -= weight
        return True


def weight_of(body: Any) -> int:
    """About how many bytes of memory a value takes that was read from JSON."""
    try:
        text = json.dumps(body)
    except RecursionError:
        return MAX_SNAPSHOT_BYTES
    return len(text) + _BYTES_OF_VALUE * (text.count(",") + text.count("[") + 4 * text.count("{"))


def written_back(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a resource that a write of its status needs."""
    metadata = body["metadata"]
    kept = {key: metadata[key] for key in _WRITTEN_BACK if key in metadata}
    return {"metadata": kept}


def own_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of an object's metadata that decisions need. Of `managedFields` these are the times."""
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    annotations = own_annotations(metadata.get("annotations") or {})
    times = [{"time": entry["time"]} for entry in metadata.get("managedFields") or () if "time" in entry]
    return {**kept, "annotations": annotations, "managedFields": times[-100:]}


def own_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of Logkeep, with a hash in place of the rest of a long value. Values are compared, and get
    into a status and into annotations of children."""
    return {name: _short(value) for name, value in annotations.items() if name.startswith(_OWN_ANNOTATIONS)}


def own_child(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a Job, Pod or ConfigMap that decisions need."""
    kept: dict[str, Any] = {"metadata": own_metadata(body["metadata"])}
    if kind == "ConfigMap":
        data = body.get("data") or {}
        return {**kept, "data": {key: data[key] for key in (KEY_PROGRESS, KEY_RESULT) if key in data}}
    if kind == "Pod":
        node = (body.get("spec") or {}).get("nodeName")
        return {**kept, "spec": {"nodeName": node} if node else {}, "status": body.get("status") or {}}
    return {**kept, "spec": body.get("spec") or {}, "status": body.get("status") or {}}


def _short(value: str) -> str:
    if len(value) <= MAX_ANNOTATION:
        return value
    return f"{value[: MAX_ANNOTATION // 2]}… sha256:{hashlib.sha256(value.encode()).hexdigest()}"
