"""The base of all parts of a status: how they become JSON, and are read from it."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Self


@dataclass(frozen=True)
class StatusPart:
    """A part of a status. In JSON its keys are in camelCase, and None and empty lists are left out. A reader ignores
    keys that it does not know."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object."""
        written = {f.name: _encode(getattr(self, f.name)) for f in fields(self)}
        return {camel(name): value for name, value in written.items() if value is not None and value != []}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads what is there and has the right shape; the rest is left at its default."""
        known: dict[str, Any] = {}
        for name, kind in hints(cls).items():
            item = value.get(camel(name))
            if item is not None:
                decoded = _decode(kind, item)
                if decoded is not None:
                    known[name] = decoded
        return cls(**known)


def camel(name: str) -> str:
    """The name of a field as it stands in JSON."""
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _encode(value: Any) -> Any:
    if isinstance(value, StatusPart):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value


_HINTS: dict[type, dict[str, Any]] = {}


def hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a part, by their names."""
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _decode(kind: Any, value: Any) -> Any:
    """The value as `kind`, or None if it has another shape."""
    origin = typing.get_origin(kind)
    if origin is types.UnionType:
        return _decode(next(a for a in typing.get_args(kind) if a is not types.NoneType), value)
    if origin is tuple:
        items = (_decode(typing.get_args(kind)[0], item) for item in value) if isinstance(value, list) else ()
        return tuple(item for item in items if item is not None)
    if is_dataclass(kind):
        return typing.cast(type[StatusPart], kind).from_dict(value) if isinstance(value, Mapping) else None
    if issubclass(kind, StrEnum):
        return kind(value) if value in list(kind) else None
    return value if isinstance(value, kind) and not isinstance(value, bool) else None
