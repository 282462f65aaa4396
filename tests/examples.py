"""How many examples hypothesis makes, and how many seeds other tests play: few in every run, many in `make test-deep`.

Every run has the same examples for everybody, however slow the machine. The deep profile looks for others; a failure
prints what to paste to see it again.
"""

from typing import Any

from hypothesis import HealthCheck, settings

LIGHT = "light"
DEEP = "deep"
_USUAL = 100  # hypothesis's own number, in which tests count


def register_profiles() -> None:
    """Register both and load the light one; `--hypothesis-profile=deep` on the command line wins."""
    slow: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile(LIGHT, max_examples=40, derandomize=True, **slow)
    settings.register_profile(DEEP, max_examples=1000, derandomize=False, print_blob=True, **slow)
    settings.load_profile(LIGHT)


def number(usual: int, deep: int) -> int:
    """How many seeds or rounds a test plays that hypothesis does not count. Such a test is marked `deep`."""
    return deep if settings.get_current_profile_name() == DEEP else usual


def scaled(usual: int) -> int:
    """The number for a test that takes `usual` where others take a hundred, in the profile that is loaded."""
    return max(2, usual * settings().max_examples // _USUAL)
