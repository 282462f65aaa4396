"""JSON documents that Logkeep stores and reads again: one declaration has a document's format number, its keys, and the
kinds of their values.

    PLAN = StoredDocument("restore plan", 1, {"runId": str, "ends": [(str, int)], "point": Maybe({"seen": int})})
    storage.put(path, PLAN.dumps({"runId": "nightly-1", "ends": [["orders", 7]], "point": None}))
    body = PLAN.loads(storage.read(path, most=PLAN.most))

A document that is read back is a claim: another version may have written it, or any writer of the bucket. So
nothing is guessed. A format number or a key that this version does not know is refused by name, for it may change what
the rest means; so is a key that is missing, and a value of another kind.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

from pydantic import ValidationError

from logkeep_engine.contract import nesting

Shape = Any
"""The kind that a value must be of. It looks like the value itself:

    str, int, float, bool, dict     a value of this type, and of no other; a float may be a whole number
    int | None                      one of these
    [shape]                         a list, each item of this shape
    (shape, shape)                  a row: a list of this many items
    {"key": shape}                  an object with these keys
    {str: shape}                    an object with any keys
    Maybe(shape)                    null, or of this shape
"""

_NONE = type(None)


@dataclass(frozen=True)
class Maybe:
    """Null, or a value of this shape."""

    shape: Shape


class DocumentRefused(ValueError):
    """A stored document cannot be taken for what it should be."""


class DocumentUnknown(DocumentRefused):
    """Another version has written it: its format number or a key is not known."""


class DocumentDamaged(DocumentRefused):
    """It is cut short or was altered."""


@dataclass(frozen=True)
class StoredDocument:
    """A kind of document, which messages call `what`. Its keys are `format`, which is this number, and those of
    `shape`; each of them is always there. An object of this kind has at most `most` bytes."""

    what: str
    format: int
    shape: Mapping[str, Shape]
    most: int = 1 << 30

    def dumps(self, body: Mapping[str, Any], *, indent: int | None = None) -> bytes:
        """Return the bytes to store. Raises ValueError unless `body` has exactly the keys of this kind."""
        if body.keys() != self.shape.keys():
            raise ValueError(f"{self.what}: keys {sorted(body.keys() ^ self.shape.keys())}")
        separators = (",", ":") if indent is None else None
        document = {"format": self.format, **body}
        text = json.dumps(document, ensure_ascii=False, separators=separators, indent=indent)
        # Texts of others may hold half of a surrogate pair, for which plain UTF-8 has no bytes.
        return text.encode("utf-8", "surrogatepass")

    def head(self, body: Mapping[str, Any]) -> bytes:
        """Return the beginning of a document whose other keys the caller writes after it."""
        text = json.dumps({"format": self.format, **body}, ensure_ascii=False, separators=(",", ":"))
        return text[:-1].encode("utf-8", "surrogatepass")

    def loads(self, data: str | bytes) -> dict[str, Any]:
        """Return the values by their keys, without the format. Raises DocumentUnknown and DocumentDamaged."""
        document = self.body_of(data)
        self.check(document)
        return document

    def body_of(self, data: str | bytes) -> dict[str, Any]:
        """Return the same, for who checks keys and kinds itself."""
        if len(data) > self.most:
            raise DocumentDamaged(f"not a {self.what}: {len(data)} bytes, of at most {self.most}")
        try:
            document = nesting.loads(data)
        except ValueError as error:
            raise DocumentDamaged(f"not a {self.what}: it is not complete JSON: {error}") from error
        if not isinstance(document, dict):
            raise DocumentDamaged(f"not a {self.what}: {shown_value(document)}, not an object")
        if "format" not in document:
            raise DocumentDamaged(f"not a {self.what}: it has no format number")
        found = document.pop("format")
        # Not `isinstance`, which takes `true` for the number 1.
        if type(found) is not int or found != self.format:
            raise DocumentUnknown(f"{self.what} of format {found!r:.100}; this version reads {self.format}")
        return document

    def check(self, body: Any) -> None:
        """Check keys and kinds. Raises DocumentUnknown and DocumentDamaged."""
        try:
            _check(body, self.shape, "")
        except DocumentUnknown as error:
            raise DocumentUnknown(f"{self.what}: {error}") from None
        except DocumentDamaged as error:
            raise DocumentDamaged(f"not a {self.what}: {error}") from None


def _check(value: Any, shape: Shape, where: str) -> None:
    if isinstance(shape, Maybe):
        if value is not None:
            _check(value, shape.shape, where)
    elif isinstance(shape, Mapping):
        _check_object(value, shape, where)
    elif isinstance(shape, list):
        _check_list(value, shape[0], where)
    elif isinstance(shape, tuple):
        _check_row(value, shape, where)
    elif not _is_one(value, shape):
        raise DocumentDamaged(f"{where or 'it'} is {shown_value(value)}")


def _check_object(value: Any, shape: Mapping[Any, Shape], where: str) -> None:
    if type(value) is not dict:
        raise DocumentDamaged(f"{where or 'it'} is {shown_value(value)}, not an object")
    if str in shape:
        for key, item in value.items():
            _check(item, shape[str], f"{where}[{key!r:.100}]")
        return
    if value.keys() != shape.keys():
        within = f" of {where}" if where else ""
        if unknown := sorted(value.keys() - shape.keys()):
            raise DocumentUnknown(f"unknown keys {unknown!r:.200}{within}")
        raise DocumentDamaged(f"key {min(shape.keys() - value.keys())!r}{within} is missing")
    for key, item in shape.items():
        if type(value[key]) is not item or item is float:
            _check(value[key], item, f"{where}.{key}" if where else key)


def _check_list(value: Any, shape: Shape, where: str) -> None:
    if type(value) is not list:
        raise DocumentDamaged(f"{where or 'it'} is {shown_value(value)}, not a list")
    # Plans have 100,000 rows: the types of one that was good are those of a good one.
    rows_of_plain = isinstance(shape, tuple) and not any(isinstance(kind, (Maybe, dict, list, tuple)) for kind in shape)
    good: set[tuple[type, ...]] = set()
    for number, item in enumerate(value):
        kinds = tuple(map(type, item)) if rows_of_plain and type(item) is list else ()
        if kinds not in good:
            _check(item, shape, f"{where}[{number}]")
            if kinds and float not in kinds:  # infinity is of a good type
                good.add(kinds)


def _check_row(value: Any, shape: tuple[Shape, ...], where: str) -> None:
    if type(value) is not list or len(value) != len(shape):
        raise DocumentDamaged(f"{where or 'it'} is {shown_value(value)}, not a row of {len(shape)}")
    for number, (item, kind) in enumerate(zip(value, shape, strict=True)):
        _check(item, kind, f"{where}[{number}]")


def _is_one(value: Any, shape: Shape) -> bool:
    """Return whether a value is of a type, or of one of several."""
    kinds = shape.__args__ if isinstance(shape, UnionType) else (_NONE if shape is None else shape,)
    if type(value) is float:
        return float in kinds and math.isfinite(value)
    return type(value) in kinds or (type(value) is int and float in kinds)


def shown_value(value: Any) -> str:
    """Return a value, for messages."""
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return ascii(value)[:100]


def refused(what: str, error: ValidationError) -> DocumentRefused:
    """Return the error for a document that a model does not take: another version, or damage."""
    problems = error.errors(include_url=False)
    unknown = [problem["loc"] for problem in problems if problem["type"] == "extra_forbidden"]
    if unknown:
        keys = sorted(str(path[-1]) for path in unknown if path[:-1] == unknown[0][:-1])
        within = f" of {_path(unknown[0][:-1])}" if unknown[0][:-1] else ""
        return DocumentUnknown(f"{what}: unknown keys {keys!r:.200}{within}")
    path = _path(problems[0]["loc"])
    if problems[0]["type"] == "missing":
        return DocumentDamaged(f"not a {what}: key {path!r:.100} is missing")
    given = shown_value(problems[0]["input"])
    return DocumentDamaged(f"not a {what}: {path or 'it'} is {given}: {problems[0]['msg']!a:.200}")


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
