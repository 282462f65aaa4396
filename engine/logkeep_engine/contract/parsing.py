"""Reads a resource, or a part of one, into its model. Each problem names its field as the user wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from logkeep_engine.contract.endpoints import ENDPOINT, URL
from logkeep_engine.contract.model import MEANT
from logkeep_engine.contract.s3_options import ArchiveS3Options
from logkeep_engine.contract.storage import URI

M = TypeVar("M", bound=BaseModel)

# Of these, what was written is not repeated, for it may hold a password.
_UNSAID = {ENDPOINT, URL, URI}


class SpecInvalid(ValueError):
    """The resource is wrong; `problems` is a list of (field path, what is wrong)."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{path}: {what}" for path, what in problems))


def parse_model(model: type[M], spec: Mapping[str, Any]) -> M:
    """Return the typed spec. Raises SpecInvalid whose problems name the fields (`spec.topics.include[0]`)."""
    try:
        return model.model_validate(dict(spec))
    except ValidationError as error:
        problems = error.errors()
        raise SpecInvalid(
            [(_path(item["loc"]), _say(item, model)) for item in problems if not _follows(item, problems)]
        ) from error


def parse_s3_options(text: str) -> ArchiveS3Options:
    """Return the options that `name=value,name=value` says, with the names of `storage.s3`. Raises ValueError."""
    named: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        name, is_one, value = (part.strip() for part in item.partition("="))
        if not is_one or name in named:
            raise ValueError(f"{item!r} is not NAME=VALUE" if not is_one else f"{name} is there twice")
        named[name] = value
    try:
        return parse_model(ArchiveS3Options, named)
    except SpecInvalid as error:
        said = ((path.removeprefix("spec").removeprefix("."), what) for path, what in error.problems)
        raise ValueError("; ".join(f"{name}: {what}" if name else what for name, what in said)) from None


def _follows(item: Any, problems: Sequence[Any]) -> bool:
    """Return whether a list is only too short because an item of it is wrong, which is a problem of its own."""
    where = item["loc"]
    return item["type"] == "too_short" and any(
        len(other["loc"]) > len(where) and other["loc"][: len(where)] == where for other in problems
    )


def _path(location: tuple[int | str, ...]) -> str:
    return "spec" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _meant(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return the field that an unknown one is most like, as a question; empty if it is like none."""
    models = {model}
    for part in location[:-1]:
        if isinstance(part, str):  # a number is a place in a list
            inner = (each.model_fields.items() for each in models)
            annotations = [field.annotation for fields in inner for name, field in fields if field.alias == part]
            models = {found for annotation in annotations for found in _models_in(annotation)}
    known = [field.alias or name for each in models for name, field in each.model_fields.items()]
    close = get_close_matches(str(location[-1]), known, 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


def _say(item: Any, model: type[BaseModel]) -> str:
    if item["type"] == "extra_forbidden":
        return f"unknown field{_meant(model, item['loc'])}"
    if item["type"] == "missing":
        return "required"
    if item["type"] == "model_type":  # the message of pydantic names a class, which users do not know
        return "must be an object"
    if item["type"] == "enum":
        return f"{_written(item['input'])} is not {item['ctx']['expected']}"
    if item["type"] == "string_type":
        if isinstance(item["input"], (Mapping, list)):
            return "must be a string"
        return f"{_written(item['input'])} is not a string: write it in quotes"
    if item["type"] == "too_short":
        least = item["ctx"]["min_length"]
        return f"must have at least {least} item{'s' if least > 1 else ''}"
    if item["type"] == "too_long":
        return f"must have at most {item['ctx']['max_length']} items"
    if item["type"] == "string_pattern_mismatch" and item["ctx"]["pattern"] in MEANT:
        meant = MEANT[item["ctx"]["pattern"]]
        return f"must be {meant}" if item["ctx"]["pattern"] in _UNSAID else f"{item['input']!r} is not {meant}"
    return str(item["msg"]).removeprefix("Value error, ")


def _written(value: Any) -> str:
    """Return the value as YAML has it, in single quotes if it is a string."""
    return repr(value) if isinstance(value, str) else json.dumps(value, default=str)
