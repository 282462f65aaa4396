"""A line each ten seconds says what is being built, how far it is and where: a build that is silent looks like one that
hangs.

`python -m tests.cluster.progress NAME COMMAND...` runs a command as such a step. Only Python's own library is imported
here: `bootstrap.sh` calls it when there is nothing else.
"""

import re
import subprocess
import sys
import threading
import time
from argparse import REMAINDER, ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

EVERY = 10.0
"""Seconds between two lines."""
_WIDTH = 72
_BUILDAH = re.compile(r"(?:\[\d+/\d+\] )?STEP \d+/\d+")


def note(line: str) -> None:
    """Tell the person who waits what takes the time."""
    print(f"logkeep test bed: {line}", file=sys.stderr, flush=True)


class Step:
    """Something that takes long. `tell` says where it is; without it, the last line that its command printed does."""

    def __init__(self, name: str, tell: Callable[[], str] | None = None) -> None:
        self.name = name
        self.began = time.monotonic()
        self.total = 0
        self._tell = tell
        self._last = self._mark = ""
        self._done = 0

    def expect(self, total: int) -> None:
        """From now on each line that its command prints is one thing done, of so many."""
        self.total, self._done = total, 0

    def said(self, line: str) -> None:
        """Take a line that its command has printed."""
        if line.strip():
            self._last = " ".join(line.split())
            self._done += 1
            if found := _BUILDAH.match(self._last):
                self._mark, self._last = found[0], self._last[found.end() :].lstrip(": ")

    def __str__(self) -> str:
        where = self._tell() if self._tell else self._last
        if self._mark:
            where = f"{self._mark}: {where}"
        if self.total:
            where = f"{self._done} of {self.total}, {where}" if where else f"0 of {self.total}"
        short = where if len(where) <= _WIDTH else where[: _WIDTH - 1] + "…"
        return f"{self.name} {time.monotonic() - self.began:.0f} s" + (f" ({short})" if short else "")


class Progress:
    """The steps that go on in this process, and how many of its parts are ready."""

    def __init__(self, every: float = EVERY, say: Callable[[str], None] = note) -> None:
        self._every = every
        self._say = say
        self._lock = threading.Lock()
        self._steps: list[Step] = []
        self._own = threading.local()
        self._printing: tuple[threading.Event, threading.Thread] | None = None
        self._parts = self._ready = 0
        self._began = 0.0

    @contextmanager
    def step(self, name: str, tell: Callable[[], str] | None = None) -> Iterator[Step]:
        """Be in this step: a line tells of it each ten seconds, from whichever thread it goes on in."""
        step, mine = Step(name, tell), self._mine()
        with self._lock:
            if self._printing is None:
                over = threading.Event()
                thread = threading.Thread(target=self._print, args=[over], name="progress", daemon=True)
                self._printing = over, thread
                thread.start()
            self._steps.append(step)
        mine.append(step)
        try:
            yield step
        finally:
            mine.remove(step)
            with self._lock:
                self._steps.remove(step)
                ended, self._printing = (self._printing, None) if not self._steps else (None, self._printing)
            if ended:
                ended[0].set()
                ended[1].join()

    def current(self) -> Step | None:
        """Return the step that this thread is in."""
        mine = self._mine()
        return mine[-1] if mine else None

    def parts(self, count: int) -> None:
        """Say how many parts there are; each `ready` is one of them."""
        self._parts, self._ready, self._began = count, 0, time.monotonic()

    def ready(self, name: str, seconds: float) -> None:
        """Tell that a part is there."""
        with self._lock:
            self._ready += 1
            count = self._ready
        self._say(f"{count} of {self._parts} ready: {name}, after {seconds:.0f} s")

    def line(self) -> str:
        """Return what a person is told now."""
        with self._lock:
            steps = list(self._steps)
        # A step within another says more than that one, which began earlier.
        going_on = "; ".join(map(str, steps))
        if not self._parts:
            return going_on
        return f"{time.monotonic() - self._began:.0f} s, {self._ready} of {self._parts} ready; {going_on}"

    def _mine(self) -> list[Step]:
        if not hasattr(self._own, "steps"):
            self._own.steps = []
        found: list[Step] = self._own.steps
        return found

    def _print(self, over: threading.Event) -> None:
        while not over.wait(self._every):
            self._say(self.line())


here = Progress()
"""That of this process."""


def follow(process: "subprocess.Popen[str]", step: Step, timeout: float, stdin: str | None = None) -> tuple[str, str]:
    """Wait for a process as `communicate` does, and let the step know each line as it comes."""
    printed: tuple[list[str], list[str]] = ([], [])

    def read(stream: Iterable[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line)
            step.said(line)

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=read, args=pair, daemon=True)
        for pair in zip((process.stdout, process.stderr), printed, strict=True)
    ]
    for reader in readers:
        reader.start()
    if process.stdin is not None:
        process.stdin.write(stdin or "")
        process.stdin.close()
    process.wait(timeout)
    for reader in readers:
        reader.join()
    return "".join(printed[0]), "".join(printed[1])


def main(arguments: Sequence[str]) -> int:
    """Run a command as a step, and print what it has printed only if it fails."""
    parser = ArgumentParser(prog="python -m tests.cluster.progress", description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("command", nargs=REMAINDER)
    given = parser.parse_args(arguments)
    none, pipe = subprocess.DEVNULL, subprocess.PIPE
    with (
        here.step(given.name) as step,
        subprocess.Popen(given.command, stdin=none, stdout=pipe, stderr=pipe, text=True, errors="replace") as process,
    ):
        out, err = follow(process, step, timeout=3600)
    if process.returncode:
        print(out + err, end="", file=sys.stderr)
        note(f"{given.name} ended with {process.returncode}; what it said is above")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
