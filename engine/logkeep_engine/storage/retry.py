"""Sends a request to a store again if it has failed for a reason that may pass."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from logkeep_engine.errors import LogkeepError, StorageUnavailable

PATIENCE = 20.0  # seconds during which a request that failed for a reason that may pass is sent again
ATTEMPTS = 3  # at least, however long each took
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 4.0

T = TypeVar("T")


def retried(
    action: Callable[[int], T],
    translate: Callable[[Exception], LogkeepError],
    before_next: Callable[[Exception], None],
) -> T:
    """Do it again until it succeeds, as long as `PATIENCE` and `ATTEMPTS` allow.

    `action` gets the number of its attempt, from 0. `translate` names what it raised: StorageUnavailable may pass, any
    other error is raised at once. `before_next` gets what it raised before it is tried again.
    """
    deadline = time.monotonic() + PATIENCE
    pause = _FIRST_PAUSE
    for attempt in itertools.count():
        try:
            return action(attempt)
        except Exception as error:
            ours = translate(error)
            wait = pause * (0.5 + random.random())
            late = time.monotonic() + wait > deadline
            if not isinstance(ours, StorageUnavailable) or (late and attempt + 1 >= ATTEMPTS):
                raise ours from error
            before_next(error)
        time.sleep(wait)
        pause = min(pause * 2, _LONGEST_PAUSE)
    raise AssertionError("unreachable")
