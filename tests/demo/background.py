"""Keeps what the demo started after its command has returned.

Everything the test bed starts belongs to a process and is swept away when that is gone. So the demo runs in a child
with a session of its own, which stays; the command returns when the child says that the demo is over. The child is
found by its state folder.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.cluster import cache
from tests.cluster.process import wait_until
from tests.cluster.state import State

Work = Callable[[ExitStack, Path | None], int]
"""Starts parts on the stack and returns an exit code; the folder is for files of the kept demo."""


def run(work: Work) -> int:
    """Run `work` in the child and return its exit code; what it put on the stack stays up."""
    kept = _kept()
    if kept:
        print(f"a demo is up already ({kept[0].path}); stop it first: make demo-stop", file=sys.stderr)
        return 2
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _stay(work, writer)
        os._exit(0)
    os.close(writer)
    try:
        said = os.read(reader, 1)
    except KeyboardInterrupt:
        os.kill(child, signal.SIGINT)
        os.waitpid(child, 0)
        raise
    return said[0] if said else 1


def stop() -> int:
    """Take down the kept demo and wait until it is gone."""
    kept = _kept()
    if not kept:
        print("no demo is up")
    for state in kept:
        os.kill(int((state.path / "owner").read_text().split()[0]), signal.SIGTERM)
        wait_until(partial(_gone, state.path), 120, "the demo to stop")
        print("stopped")
    return 0


def _gone(folder: Path) -> bool:
    return not folder.exists()


def _kept() -> list[State]:
    states = [State(path) for path in (cache.root() / "run").glob("demo-*")]
    return [state for state in states if state.owned]


def _stay(work: Work, writer: int) -> None:
    os.setsid()
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # unwinds the stack, as Ctrl-C does
    with ExitStack() as stack:
        state = State.create("demo")
        stack.callback(state.destroy, grace=0)
        try:
            code = work(stack, state.path)
        except KeyboardInterrupt:
            return
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # whoever reads this command's output must see its end
            os.dup2(null, stream)
        os.write(writer, bytes([code]))
        os.close(writer)
        signal.sigwait(signals)
