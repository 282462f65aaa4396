"""A signal ends a run wherever the main thread is when it comes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from logkeep_engine import interrupt


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Finalized:
    """Is interrupted where Python cannot raise."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_raises_at_once_and_is_noted() -> None:
    interrupt.on(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()
    interrupt.check()


def test_an_interrupt_that_a_finalizer_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[object] = []
    monkeypatch.setattr(interrupt, "_log_unraisable", lambda event: lost.append(event.exc_type))
    interrupt.on(signal.SIGINT, signal.SIGTERM)
    Finalized()
    assert lost == [KeyboardInterrupt]
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()


def test_the_second_signal_does_not_disturb_the_end() -> None:
    interrupt.on(signal.SIGTERM, once=True)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    with pytest.raises(KeyboardInterrupt):
        interrupt.check()


def test_what_a_finalizer_raises_after_a_signal_is_not_shown() -> None:
    """The event loop's does, if a signal comes while it is made."""
    script = """
import os, signal
from logkeep_engine import interrupt

class Loop:
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.handlers = ()

    def __del__(self):
        print(self.handlers)

interrupt.on(signal.SIGINT)
try:
    Loop()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
