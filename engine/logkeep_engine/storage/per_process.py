"""Connections that each process makes for itself, since none survives a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Holds the connection of this process. Safe for several threads, and in a forked child, which makes its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._making = threading.Lock()
        self._process = 0
        self._made: list[T] = []  # also those of parents: a child that dropped one would close what its parent uses

    def get(self) -> T:
        """Return the connection of this process; the first call makes it."""
        process = os.getpid()
        with self._making:
            if self._process != process:
                self._made.append(self._make())
                self._process = process
            return self._made[-1]
