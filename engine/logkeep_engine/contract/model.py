"""The base of all models: unknown fields are refused, names are camelCase in YAML and JSON.

`make crds` writes the CRDs from the models. The string below a field is its description there. `schema` says what only
the API server checks, `rules` has its rules in CEL, `meant` the sentence about a pattern.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

RULES = "x-kubernetes-validations"


class Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        populate_by_name=True,
        defer_build=True,  # a run needs some of the models, and building all of them takes 20 ms
        hide_input_in_errors=True,  # a uri that is refused may hold a password
    )


def schema(**keys: Any) -> Any:
    """Keys of a field in the CRD that the model does not say itself."""
    return Field(json_schema_extra=keys)


def usual(model: type[BaseModel]) -> Any:
    """Return a field that is the model with its defaults unless it is set. The validator of the whole makes it, as if
    the user had written an empty object: a call of the model would build validators of its own."""
    return Field(default={}, validate_default=True)


# A field's default that an installation may change: the API server does not write it into resources.
OF_INSTALLATION = "of-installation"
CHANGEABLE = schema(**{OF_INSTALLATION: True})
SET = schema(**{"x-kubernetes-list-type": "set"})


def map_of(*names: str) -> Any:
    """Mark a list whose items are told apart by some of their fields."""
    return schema(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(names)})


MEANT: dict[str, str] = {}
"""The words that say what a text must be, by the pattern that takes it."""


def meant(pattern: str, what: str) -> str:
    """Note what a text must be that a pattern takes, and return the pattern. The API server, which would show the
    pattern alone, gets a rule with a sentence instead."""
    MEANT[pattern] = what
    return pattern


def rule(text: str, message: str) -> Any:
    """Return a rule of a field, in CEL."""
    return Field(json_schema_extra={RULES: [{"rule": text, "message": message}]})


def rules(*pairs: tuple[str, str]) -> ConfigDict:
    """Return the rules of a model, in CEL, each with its message."""
    return ConfigDict(json_schema_extra={RULES: [{"rule": text, "message": message} for text, message in pairs]})


if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414, so mypy knows the names and types of the changes
else:

    def replace(value, /, **changes):
        """Return a model, or a dataclass, with other values in some fields. Those of a model are checked."""
        if isinstance(value, BaseModel):
            return type(value)(**{**value.__dict__, **changes})
        return dataclasses.replace(value, **changes)
