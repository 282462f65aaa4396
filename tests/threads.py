"""Threads in tests."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def at_once(count: int, act: Callable[[int], None]) -> None:
    """Call `act(0)` to `act(count - 1)` in threads that begin together; returns when all are done, and raises what one
    of them has raised.
    """
    barrier = threading.Barrier(count)

    def begin(number: int) -> None:
        barrier.wait()
        act(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(begin, range(count)))
