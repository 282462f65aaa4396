"""The base of the parts of a status that are the operator's own: how they are read from the API's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import ValidationError

from logkeep_engine.contract.facts.values import Facts

_ROUNDS = 10  # what is left out may leave something incomplete around it, level by level


class StatusPart(Facts):
    """A part of a status. A reader ignores keys that it does not know."""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads what is there and has the right shape; the rest is left at its default. An item or an object that lacks
        a field which it must have is left out as a whole."""
        for _ in range(_ROUNDS):
            try:
                return cls.model_validate(value)
            except ValidationError as error:
                wrong = {_place(problem) for problem in error.errors(include_url=False, include_input=False)}
            if () in wrong:
                break
            value = _without(value, wrong)
        return cls()


def _place(problem: Any) -> tuple[int | str, ...]:
    place: tuple[int | str, ...] = problem["loc"]
    return place[:-1] if problem["type"] == "missing" else place


def _without(value: Any, wrong: set[tuple[int | str, ...]]) -> Any:
    """Return the value without what is at these places."""
    here = {place[0] for place in wrong if len(place) == 1}
    below: dict[int | str, set[tuple[int | str, ...]]] = {}
    for first, *rest in wrong:
        if rest:
            below.setdefault(first, set()).add(tuple(rest))
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    kept = {key: _without(item, below[key]) if key in below else item for key, item in items if key not in here}
    return kept if isinstance(value, Mapping) else list(kept.values())
