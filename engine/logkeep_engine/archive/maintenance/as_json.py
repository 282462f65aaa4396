"""Dataclasses as JSON, for commands that describe an archive."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class AsJson:
    """`to_json` of a dataclass: camelCase keys, plain lists and dictionaries."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields by their names."""
        return {_camel(item.name): _plain(getattr(self, item.name)) for item in fields(self)}  # type: ignore[arg-type]


def _plain(value: Any) -> Any:
    if isinstance(value, AsJson):
        return value.to_json()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)
