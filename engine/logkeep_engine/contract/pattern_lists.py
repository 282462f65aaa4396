"""Fields of a resource that are lists of regular expressions.

A list is looked at up to its first wrong pattern, and only this many steps of RE2 are taken in. So the time to read a
resource is bounded, whatever it says.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, NoReturn

from pydantic import AfterValidator, Field, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from logkeep_engine.contract.patterns import (
    MAX_PATTERN_LENGTH,
    MAX_PATTERNS,
    NamePatterns,
    Pattern,
    PatternInvalid,
    check_size,
)

PatternText = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN_LENGTH)]


def _readable(patterns: tuple[str, ...]) -> tuple[str, ...]:
    steps = 0
    for at, text in enumerate(patterns):
        try:
            steps += Pattern(text).steps
            check_size(steps)
        except PatternInvalid as error:
            refuse(not_a_pattern(text, error), text, at)
    return patterns


def not_a_pattern(text: str, error: PatternInvalid) -> str:
    """Return the sentence for a field that holds a wrong pattern."""
    return f"{text!r} is not a regular expression: {error}"


def refuse(what: str, given: str, *where: int | str) -> NoReturn:
    """Raises pydantic's error for an item of the list that is being validated."""
    problem = PydanticCustomError("pattern", "{what}", {"what": what})
    raise ValidationError.from_exception_data("patterns", [InitErrorDetails(type=problem, loc=where, input=given)])


def describe_unmatched(field: str, patterns: Sequence[str], chosen: Collection[str], what: str) -> list[str]:
    """Return a sentence for each pattern of a field, or of an option, that matches none of the names that were chosen.
    `what`: of what these are the names."""
    is_option = field.startswith("--")
    return [
        f"{field if is_option else f'{field}[{at}]'} {patterns[at]!r} chooses no {what}"
        for at in NamePatterns(patterns).unmatched(chosen)
    ]


READABLE = AfterValidator(_readable)
Patterns = Annotated[tuple[PatternText, ...], Field(max_length=MAX_PATTERNS), READABLE]
SomePatterns = Annotated[tuple[PatternText, ...], Field(min_length=1, max_length=MAX_PATTERNS), READABLE]
