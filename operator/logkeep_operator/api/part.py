"""The base of all parts of a status: how they become JSON, and are read from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError

from logkeep_engine.contract.facts.values import Facts


class StatusPart(Facts):
    """A part of a status. A reader ignores keys that it does not know."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads what is there and has the right shape; the rest is left at its default."""
        while True:
            try:
                return cls.model_validate(value)
            except ValidationError as error:
                value = _without(value, {tuple(problem["loc"]) for problem in error.errors(include_url=False)})


def _without(value: Any, wrong: set[tuple[int | str, ...]]) -> Any:
    """The value without what is wrong in it. An object that lacks a field is left out itself."""
    here = {path[0] for path in wrong if len(path) == 1}
    below = {name: {path[1:] for path in wrong if path[0] == name and len(path) > 1} for name in {p[0] for p in wrong}}
    if isinstance(value, Mapping):
        return {
            name: _without(item, below[name]) if below.get(name) else item
            for name, item in value.items()
            if name not in here
        }
    return [_without(item, below[at]) if below.get(at) else item for at, item in enumerate(value) if at not in here]
