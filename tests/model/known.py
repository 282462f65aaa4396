"""Faults that the player finds and passes over until they are mended, each by what goes wrong.

This list may only get shorter. `test_known` has a history of each that fails, until somebody mends it and takes it out
here. A fault that is not in the list makes `make test` red.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.model.asking import Fault


@dataclass(frozen=True)
class Known:
    """A known fault: its name in `test_known`, and how to tell it."""

    name: str
    fits: Callable[[Fault], bool]


KNOWN: tuple[Known, ...] = ()


def known(fault: Fault) -> str:
    """The name of a fault that is known, "" for a new one."""
    return next((item.name for item in KNOWN if item.fits(fault)), "")
