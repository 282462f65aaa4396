"""Signals that end a run: they raise KeyboardInterrupt in the main thread, and leave a note.

    interrupt.on(signal.SIGTERM)
    ...
    interrupt.check()       # where the work of a run is waited for

Python raises the exception wherever the main thread happens to be. In a finalizer it is printed and lost, and py4j's
talk to the JVM makes that no rare place. So code that waits looks at the note too.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

_noted = threading.Event()


def on(*numbers: signal.Signals, once: bool = False) -> None:
    """Let these signals interrupt the main thread; with `once` a second one does not disturb the clean end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if once:
            signal.signal(number, signal.SIG_IGN)
        _noted.set()
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come since the last time."""
    if _noted.is_set():
        _noted.clear()
        raise KeyboardInterrupt
