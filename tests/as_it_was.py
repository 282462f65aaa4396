"""The process of a test as the test has found it.

A command that a test calls in its own process takes over signals and the log, as a process of its own may. The tests
after it, and the processes that they fork, must not have its handlers.
"""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def process_as_it_was() -> Iterator[None]:
    """At the end, put back the handlers of signals and of what finalizers raise, the handlers of the log and the levels
    of all loggers."""
    signals = {number: signal.getsignal(number) for number in _SIGNALS}
    unraisable = sys.unraisablehook
    handlers, levels = list(logging.getLogger().handlers), _levels()
    try:
        yield
    finally:
        for number, handler in signals.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
        sys.unraisablehook = unraisable
        logging.getLogger().handlers[:] = handlers
        for name, level in _levels().items():
            if level != levels.get(name, logging.NOTSET):
                logging.getLogger(name).setLevel(levels.get(name, logging.NOTSET))


def _levels() -> dict[str, int]:
    """The levels of all loggers by name; the root's name is empty."""
    known = logging.getLogger().manager.loggerDict
    named = {name: logger.level for name, logger in known.items() if isinstance(logger, logging.Logger)}
    return {"": logging.getLogger().level, **named}
