"""JSON that others have written: how deep its objects and lists may lie in each other, and how many values it may have.

Python's parser ends a text that nests too deeply (about a thousand levels) with RecursionError, which is not a
ValueError. The Kubernetes API takes 10,000 levels, in fields whose content is free and in `managedFields`. One such
resource must not stop a client that lists all of them.

A list of empty lists takes twenty times as much memory as its text. So the values of a large text are counted first.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any

MOST_LEVELS = 50
"""The most levels of what a resource says in a field whose content is free. Affinities of pods have less than ten."""

MOST_VALUES = 32 << 20
WRONG = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, struct.error)
"""The errors of Python for values of a document that are of another kind than its reader takes them for: infinity has
no integer, a list has no keys, a number of more than 64 bits fits in no array."""
_KEPT_LEVELS = 200
_SMALL = 1 << 20  # a text of this many characters takes some ten MiB, whatever it says
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)


def loads(text: str | bytes, *, most: int = MOST_VALUES) -> Any:
    """Return the value of a JSON text. Raises ValueError if it is not JSON, nests too deeply, or has more than `most`
    values, about 64 bytes each."""
    if len(text) > _SMALL and (values := _values(text)) > most:
        raise ValueError(f"it has about {values} values, more than {most}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def loads_cut(data: bytes) -> Any:
    """Return the value of a JSON text that nests as deep as it likes: where that is too deep, what lies below 200
    levels is null. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        return loads(_cut(data))


def _values(text: str | bytes) -> int:
    """About how many values there are: never much less than there are. An object counts more than a list."""
    if isinstance(text, str):
        return text.count(",") + text.count("[") + 4 * text.count("{")
    return text.count(b",") + text.count(b"[") + 4 * text.count(b"{")


def check_levels(value: Any) -> None:
    """Raises ValueError for a value that nests too deeply."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [item for some in level if isinstance(some, (dict, list)) for item in _items(some)]
        if not level:
            return
    raise ValueError(f"it nests deeper than {MOST_LEVELS} levels")


def _items(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _cut(data: bytes) -> bytes:
    """Return the text with null in place of each object and list that lies too deep."""
    kept: list[bytes] = []
    at = level = begin = 0
    for token in _TOKEN.finditer(data):
        first = token[0][:1]
        if first in b"[{":
            level += 1
            if level == _KEPT_LEVELS + 1:
                begin = token.start()
        elif first in b"]}":
            if level == _KEPT_LEVELS + 1:
                kept += (data[at:begin], b"null")
                at = token.end()
            level -= 1
    return b"".join((*kept, data[at:]))
