"""The two schemas of the Avro format, and how the schema of an object is read.

`PUBLISHED` is the published schema. `LOSSLESS` adds to it what a Kafka record has besides: the value may be null, and
two fields come after the published ones. Every reader of the published schema that resolves schemas as Avro says still
reads such an object; only where a value is null does it stop, since its own schema has no room for it.

    headerList      every header in order, keys as bytes; null if the map `headers` says all of it (none, or one with a
                    UTF-8 key and a value)
    timestampType   see `TIMESTAMP_TYPES`

The published text gives `key` and `headers` defaults that do not fit their types, which strict parsers refuse. A schema
that was written needs none, so ours has none: both have the same Parsing Canonical Form.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from logkeep_engine.errors import CorruptSegment
from logkeep_engine.formats.base import TimestampKind

NAMESPACE = "ch.tbd.kafka.backuprestore.model.avro"
NAME = "AvroKafkaRecord"

TIMESTAMP_TYPES: Final = {
    "CREATE_TIME": TimestampKind.CREATE,
    "LOG_APPEND_TIME": TimestampKind.APPEND,
    "NO_TIMESTAMP_TYPE": TimestampKind.NONE,
    "CREATE_TIME_NULL": TimestampKind.CREATE_NULL,
}
"""Symbols in their order. `CREATE_TIME_NULL` is create time whose timestamp is -1, `NO_TIMESTAMP_TYPE` is magic 0."""

_HEADERS = [{"type": "map", "values": "bytes"}, "null"]

_COMMON: list[dict[str, Any]] = [
    {"name": "topic", "type": "string"},
    {"name": "partition", "type": "int"},
    {"name": "offset", "type": "long"},
    {"name": "timestamp", "type": "long"},
    {"name": "key", "type": ["bytes", "null"]},
]

_HEADER_LIST = [
    "null",
    {
        "type": "array",
        "items": {
            "type": "record",
            "name": "AvroKafkaHeader",
            "fields": [{"name": "key", "type": "bytes"}, {"name": "value", "type": ["bytes", "null"]}],
        },
    },
]
_TIMESTAMP_TYPE = {"type": "enum", "name": "AvroTimestampType", "symbols": list(TIMESTAMP_TYPES)}


def _record(fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"namespace": NAMESPACE, "type": "record", "name": NAME, "fields": fields}


PUBLISHED: Final[dict[str, Any]] = _record(
    [*_COMMON, {"name": "value", "type": "bytes"}, {"name": "headers", "type": _HEADERS}]
)
"""The schema that `compatibility: strict` writes."""

LOSSLESS: Final[dict[str, Any]] = _record(
    [
        *_COMMON,
        {"name": "value", "type": ["bytes", "null"]},
        {"name": "headers", "type": _HEADERS},
        {"name": "headerList", "type": _HEADER_LIST, "default": None},
        {"name": "timestampType", "type": _TIMESTAMP_TYPE, "default": "CREATE_TIME"},
    ]
)
"""The schema that Logkeep writes by default."""

_FIELDS = [str(field["name"]) for field in LOSSLESS["fields"]]
_PUBLISHED_FIELDS = len(PUBLISHED["fields"])
_NULLABLE = {"key": "bytes", "value": "bytes", "headers": {"type": "map", "values": "bytes"}}


@dataclass(frozen=True, slots=True)
class Shape:
    """How the records of an object are written. `key`, `value` and `headers` are the number of the branch that holds
    the thing itself in a union with null, -1 if the field is not a union. `lossless`: the two added fields are there.
    """

    key: int
    value: int
    headers: int
    lossless: bool


def shape_of(text: bytes) -> Shape:
    """Return the shape that a schema (JSON) describes. Raises `CorruptSegment`, naming what differs, if it is none of
    the two.

    A null that the published text does not allow (its own tool's schema lets values be null), the order of a union's
    branches, defaults, documentation and properties of other languages make no difference.
    """
    try:
        return _shape(json.loads(text))
    except ValueError as problem:
        raise CorruptSegment(f"Its Avro schema is not JSON: {problem}.") from problem
    except (TypeError, AttributeError, RecursionError) as problem:
        raise CorruptSegment(f"Its Avro schema is not a valid schema: {problem}.") from problem


def _shape(schema: object) -> Shape:
    fields = _fields(schema)
    _check_names([name for name, _ in fields])
    types = dict(fields)
    for field in (*_COMMON[:4], *(LOSSLESS["fields"][_PUBLISHED_FIELDS:] if len(types) > _PUBLISHED_FIELDS else ())):
        name = str(field["name"])
        expected = _canonical(field["type"])
        if types[name] != expected:
            _check_symbols(name, types[name])
            raise _differs(name, types[name], expected)
    branches = {name: _branch(name, types[name], base) for name, base in _NULLABLE.items()}
    return Shape(**branches, lossless=len(types) > _PUBLISHED_FIELDS)


def _fields(schema: object) -> list[tuple[str, object]]:
    if not isinstance(schema, dict) or schema.get("type") != "record" or not isinstance(schema.get("fields"), list):
        raise CorruptSegment(f"Its Avro schema is not a record but {_shown(schema)}.", hint=_HINT)
    name = str(schema.get("name"))
    full = name if "." in name else f"{schema.get('namespace', '')}.{name}"
    if full != f"{NAMESPACE}.{NAME}":
        raise CorruptSegment(f"It holds Avro records of {full}, not of {NAMESPACE}.{NAME}.", hint=_HINT)
    return [(str(field.get("name")), _canonical(field.get("type"))) for field in schema["fields"]]


def _check_names(names: list[str]) -> None:
    for name in names:
        if name not in _FIELDS:
            raise CorruptSegment(
                f"Its Avro schema has the field {name}, which this version does not know.",
                hint="If a newer Logkeep wrote it, read it with that version.",
            )
    expected = _FIELDS if len(names) > _PUBLISHED_FIELDS else _FIELDS[:_PUBLISHED_FIELDS]
    for name in expected:
        if name not in names:
            raise CorruptSegment(f"Its Avro schema lacks the field {name}.", hint=_HINT)
    if names != expected:
        raise CorruptSegment(f"Its Avro schema has the fields {', '.join(names)}; expected: {', '.join(expected)}.")


def _check_symbols(name: str, kind: object) -> None:
    if name == "timestampType" and isinstance(kind, dict):
        for symbol in kind.get("symbols", []):
            if symbol not in TIMESTAMP_TYPES:
                raise CorruptSegment(
                    f"Its Avro schema has the timestamp type {symbol}, which this version does not know.",
                    hint="If a newer Logkeep wrote it, read it with that version.",
                )


def _branch(name: str, kind: object, base: object) -> int:
    if kind == base:
        return -1
    if isinstance(kind, list) and len(kind) == 2 and base in kind and "null" in kind:
        return kind.index(base)
    raise _differs(name, kind, base)


def _canonical(kind: Any) -> object:
    """Return a type without what does not matter to a reader."""
    if isinstance(kind, list):
        return [_canonical(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    base = kind.get("type")
    if base == "map":
        return {"type": "map", "values": _canonical(kind.get("values"))}
    if base == "array":
        return {"type": "array", "items": _canonical(kind.get("items"))}
    name = str(kind.get("name", "")).removeprefix(NAMESPACE + ".")
    if base == "enum":
        return {"type": "enum", "name": name, "symbols": kind.get("symbols")}
    if base == "record":
        fields = [
            {"name": field.get("name"), "type": _canonical(field.get("type"))} for field in kind.get("fields", [])
        ]
        return {"type": "record", "name": name, "fields": fields}
    return base


def _differs(name: str, kind: object, expected: object) -> CorruptSegment:
    return CorruptSegment(
        f"The field {name} of its Avro schema is of type {_shown(kind)}; expected: {_shown(expected)}.", hint=_HINT
    )


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"


_MAX_SHOWN = 200
_HINT = "Objects of the published schema of kafka-backup's Avro records and of Logkeep's own can be read."
