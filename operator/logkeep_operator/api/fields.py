"""The fields that this version reads and writes of each kind, and those that a CRD has. Where a CRD lacks one, the API
server drops it from every object without a word.

Fields are trees: names with the fields below them. None stands for a value whose fields are not listed, such as a
number or a map.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from logkeep_engine.contract.asking import KafkaBackupRunSpec
from logkeep_engine.contract.names import BACKUP, BACKUP_RUN, RESTORE
from logkeep_engine.contract.spec import GROUP, VERSION, KafkaBackupSpec, KafkaRestoreSpec
from logkeep_operator.api.asked import AskedStatus
from logkeep_operator.api.part import StatusPart, camel, hints
from logkeep_operator.api.status import Status

Fields = Mapping[str, "Fields | None"]

_PARTS: Mapping[str, tuple[type[BaseModel], type[StatusPart]]] = {
    BACKUP: (KafkaBackupSpec, Status),
    BACKUP_RUN: (KafkaBackupRunSpec, AskedStatus),
    RESTORE: (KafkaRestoreSpec, Status),
}
OTHERS: Mapping[str, frozenset[str]] = {
    BACKUP: frozenset(
        {
            *("offsetMap", "verification", "clusterState", "lastHandledRetry", "lastHandledRunAgain", "restoredBy"),
            *("progress.point", "dryRun.clusterState", "emitted", "heldTopics"),
        }
    ),
    BACKUP_RUN: frozenset(),
    RESTORE: frozenset(
        {
            *("lastHandledRun", "lastHandledBackupRuns", "coverage", "recovery", "retention", "reconcile"),
            *("archive.anchor", "archive.writeTime", "archive.takenOver", "archive.topics", "archive.segments"),
            *("archive.objects", "archive.records", "archive.bytes", "archive.storedBytes", "archive.size"),
            *("archive.bytesPerDay", "archive.growth", "archive.snapshots", "archive.generations"),
            *("archive.retention", "dryRun.retention"),
        }
    ),
}
"""Fields that the type of a status has for other kinds of resources."""
_PRESERVED = "x-kubernetes-preserve-unknown-fields"
_OF_KIND = "x-kubernetes-group-version-kind"


@cache
def known_fields(kind: str) -> Fields:
    """The fields of `spec` and `status` that this version may read or write."""
    spec, status = _PARTS[kind]
    model = spec.model_json_schema(by_alias=True)
    return {"spec": _of_schema(model, model.get("$defs", {})), "status": _of_type(status, OTHERS[kind], "")}


def served_fields(document: Mapping[str, Any]) -> dict[str, Fields]:
    """The fields of the kinds in an OpenAPI document of the API server. Raises ValueError if it is none."""
    try:
        schemas = document["components"]["schemas"].values()
        return {str(kind): _tops(schema) for schema in schemas for kind in _kinds(schema)}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def lacking(served: Fields, known: Fields) -> Iterator[str]:
    """The paths of known fields that are not served. Where a field is not, those below it are not named."""
    for name, below in known.items():
        if name not in served:
            yield name
            continue
        found = served[name]
        if below is not None and found is not None:
            yield from (f"{name}.{path}" for path in lacking(found, below))


def own_fields(value: Any, known: Fields | None) -> Any:
    """A value without the fields that are not known: the type of a status has those of other kinds, too."""
    if known is None:
        return value
    if isinstance(value, list):
        return [own_fields(item, known) for item in value]
    return {name: own_fields(item, known[name]) for name, item in value.items() if name in known}


def keeps_more(metadata: Mapping[str, Any], served: Fields) -> bool:
    """Whether an object was written with fields of `spec` or `status` that are not served. They are hidden, and come
    back with the CRD that has them, but the next write of the object would delete them."""
    for entry in metadata.get("managedFields") or ():
        written = entry.get("fieldsV1")
        if not isinstance(written, Mapping):
            continue
        for part in ("spec", "status"):
            below, known = written.get(f"f:{part}"), served.get(part)
            if isinstance(below, Mapping) and known is not None and _has_more(below, known):
                return True
    return False


def _has_more(written: Mapping[str, Any], served: Fields) -> bool:
    for key, below in written.items():
        if not key.startswith("f:"):
            # An item of a list has the fields of the list.
            if isinstance(below, Mapping) and _has_more(below, served):
                return True
            continue
        name = key.removeprefix("f:")
        if name not in served:
            return True
        known = served[name]
        if known is not None and isinstance(below, Mapping) and _has_more(below, known):
            return True
    return False


def _kinds(schema: Mapping[str, Any]) -> Iterable[str]:
    return (kind["kind"] for kind in schema.get(_OF_KIND, ()) if (kind["group"], kind["version"]) == (GROUP, VERSION))


def _tops(schema: Mapping[str, Any]) -> Fields:
    parts = schema.get("properties", {})
    return {name: _of_schema(parts[name], {}) for name in ("spec", "status") if name in parts}


def _of_schema(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Fields | None:
    """The fields of a JSON schema: of those of its items, if it is one of a list."""
    if schema.get(_PRESERVED):
        return None
    if "anyOf" in schema:  # "or null"
        schema = next((one for one in schema["anyOf"] if one.get("type") != "null"), {})
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "items" in schema:
        return _of_schema(schema["items"], definitions)
    if schema.get("type") != "object" or ("additionalProperties" in schema and not schema.get("properties")):
        return None
    return {name: _of_schema(part, definitions) for name, part in schema.get("properties", {}).items()}


def _of_type(kind: Any, others: frozenset[str], path: str) -> Fields | None:
    """The fields of a part of a status."""
    if typing.get_origin(kind) is types.UnionType:
        kind = next(option for option in typing.get_args(kind) if option is not types.NoneType)
    if typing.get_origin(kind) is tuple:
        kind = typing.get_args(kind)[0]
    if not is_dataclass(kind):
        return None
    found = {camel(name): hint for name, hint in hints(typing.cast(type, kind)).items()}
    return {
        name: _of_type(hint, others, f"{path}{name}.") for name, hint in found.items() if f"{path}{name}" not in others
    }
