"""How many examples hypothesis makes, and how many seeds other tests play: few in every run, many in `make test-deep`.

Every run has the same examples for everybody, however slow the machine. The deep profile looks for others; a failure
prints what to paste to see it again.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

from hypothesis import HealthCheck, settings

LIGHT = "light"
DEEP = "deep"
_USUAL = 100  # hypothesis's own number, in which tests count


def register_profiles() -> None:
    """Register both and load the light one; `--hypothesis-profile=deep` on the command line wins."""
    slow: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(LIGHT, max_examples=15, derandomize=True, **slow)
    settings.register_profile(DEEP, max_examples=1000, derandomize=False, print_blob=True, **slow)
    settings.load_profile(LIGHT)


def number(usual: int, deep: int) -> int:
    """How many seeds or rounds a test plays that hypothesis does not count. Such a test is marked `deep`."""
    return deep if settings.get_current_profile_name() == DEEP else usual


def scaled(usual: int, light: int | None = None) -> int:
    """The number for a test that takes `usual` where others take a hundred, in the profile that is loaded.

    A test whose examples are expensive says with `light` how many it makes in every run. `make test-deep` makes as many
    as without.
    """
    if light is not None and settings.get_current_profile_name() != DEEP:
        return light
    return max(2, usual * settings().max_examples // _USUAL)


def covered(*axes: Sequence[Any]) -> Sequence[tuple[Any, ...]]:
    """Values of several axes for one parametrization: all combinations in the deep profile. Every run has each value of
    each axis at least once. Such a test is marked `deep`."""
    if settings.get_current_profile_name() == DEEP:
        return list(product(*axes))
    longest = max(map(len, axes))
    return [tuple(axis[at % len(axis)] for axis in axes) for at in range(longest)]


def positions(count: int, stride: int, edges: int = 16) -> Sequence[int]:
    """Places among `count` bytes or steps where a test breaks something: all of them in the deep profile.

    Every run has the first and the last `edges`, and one of `stride` between them. Such a test is marked `deep`. Choose
    a stride that is no multiple of two, so that each byte of a repeated field is met.
    """
    if settings.get_current_profile_name() == DEEP:
        return range(count)
    return sorted({*range(min(edges, count)), *range(0, count, stride), *range(max(0, count - edges), count)})
