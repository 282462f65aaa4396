"""Signals that end a run: they raise KeyboardInterrupt in the main thread, and leave a note.

    interrupt.on(signal.SIGTERM)
    ...
    interrupt.check()       # where the work of a run is waited for

Python raises the exception wherever the main thread happens to be. In a finalizer it is printed and lost, and py4j's
talk to the JVM makes that no rare place. So code that waits looks at the note too. An object that was being made then
may fail in its own finalizer: that goes into the log, as it says nothing to the user.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType

log = logging.getLogger(__name__)

_noted = threading.Event()


def on(*numbers: signal.Signals, once: bool = False) -> None:
    """Let these signals interrupt the main thread; with `once` a second one does not disturb the clean end."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if once:
            signal.signal(number, signal.SIG_IGN)
        _noted.set()
        sys.unraisablehook = _log_unraisable
        raise KeyboardInterrupt

    for number in numbers:
        signal.signal(number, interrupt)


def _log_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    log.debug("ignored after a signal, in %r: %r", unraisable.object, unraisable.exc_value)


def check() -> None:
    """Raise KeyboardInterrupt if a signal has come since the last time."""
    if _noted.is_set():
        _noted.clear()
        raise KeyboardInterrupt
