"""The fields that this version reads and writes of each kind, and those that a CRD has. Where a CRD lacks one, the API
server drops it silently from every object.

Fields are trees: names with the fields below them. None stands for a value whose fields are not listed, such as a
number or a map.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from logkeep_engine.contract.facts.values import Only
from logkeep_engine.contract.spec import GROUP, VERSION
from logkeep_operator.api.kinds import RESOURCES

Fields = Mapping[str, "Fields | None"]

_PRESERVED = "x-kubernetes-preserve-unknown-fields"
_OF_KIND = "x-kubernetes-group-version-kind"


@cache
def known_fields(kind: str) -> Fields:
    """Return the fields of `spec` and `status` that this version may read or write."""
    found = RESOURCES[kind]
    return {"spec": _of_model(found.spec, kind), "status": _of_model(found.status, kind)}


def fields_of(model: type[BaseModel], kind: str) -> dict[str, FieldInfo]:
    """Return the fields that a model has for a kind of resource, by their names in JSON."""
    return {
        field.alias or name: field
        for name, field in model.model_fields.items()
        if all(kind in mark.kinds for mark in field.metadata if isinstance(mark, Only))
    }


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a field, or of its items; None for a plain value."""
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    if typing.get_origin(annotation) is dict:
        return None
    return next(filter(None, map(model_in, typing.get_args(annotation))), None)


def served_fields(document: Mapping[str, Any]) -> dict[str, Fields]:
    """Return the fields of the kinds in an OpenAPI document of the API server. Raises ValueError if it is none."""
    try:
        schemas = document["components"]["schemas"].values()
        return {str(kind): _tops(schema) for schema in schemas for kind in _kinds(schema)}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def lacking(served: Fields, known: Fields) -> Iterator[str]:
    """Yield the paths of known fields that are not served. Where a field is not, those below it are not named."""
    for name, below in known.items():
        if name not in served:
            yield name
            continue
        found = served[name]
        if below is not None and found is not None:
            yield from (f"{name}.{path}" for path in lacking(found, below))


def own_fields(value: Any, known: Fields | None) -> Any:
    """Return a value without the fields that are not known: the type of a status has those of other kinds, too."""
    if known is None:
        return value
    if isinstance(value, list):
        return [own_fields(item, known) for item in value]
    return {name: own_fields(item, known[name]) for name, item in value.items() if name in known}


def keeps_more(metadata: Mapping[str, Any], served: Fields) -> bool:
    """Return whether an object was written with fields of `spec` or `status` that are not served. They are hidden, and
    come back with the CRD that has them, but the next write of the object would delete them."""
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
    return {name: _of_schema(parts[name]) for name in ("spec", "status") if name in parts}


def _of_model(model: type[BaseModel], kind: str) -> Fields:
    below = ((name, model_in(field.annotation)) for name, field in fields_of(model, kind).items())
    return {name: None if part is None else _of_model(part, kind) for name, part in below}


def _of_schema(schema: Mapping[str, Any]) -> Fields | None:
    """Return the fields of a JSON schema: of those of its items, if it is one of a list."""
    if schema.get(_PRESERVED):
        return None
    if "items" in schema:
        return _of_schema(schema["items"])
    if schema.get("type") != "object" or ("additionalProperties" in schema and not schema.get("properties")):
        return None
    return {name: _of_schema(part) for name, part in schema.get("properties", {}).items()}
