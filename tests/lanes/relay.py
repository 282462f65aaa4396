"""The relay of a lane's output: to the screen while the lane runs, and to a log of its own."""

import os
import select
import sys
import threading
import time
from pathlib import Path

PATIENCE = 20.0
"""Seconds after which the beginning of a line is shown: pytest prints a dot a test, a line a file."""

_screen = threading.Lock()


class Relay(threading.Thread):
    """Copies what comes through a pipe: byte by byte into a log, line by line with a prefix onto the screen."""

    def __init__(self, name: str, pipe: int, log: Path, patience: float = PATIENCE) -> None:
        super().__init__(name=f"lane-{name}", daemon=True)
        self.failures: list[str] = []
        self._prefix = name
        self._pipe = pipe
        self._log = log
        self._patience = patience

    def run(self) -> None:
        pending, since = b"", time.monotonic()
        with self._log.open("wb", buffering=0) as log:
            while (data := self._read(since + self._patience if pending else None)) != b"":
                if data is None:
                    self._show(pending)
                    pending = b""
                    continue
                log.write(data)
                *lines, rest = (pending + data).split(b"\n")
                if lines or not pending:
                    since = time.monotonic()
                for line in lines:
                    self._show(line)
                pending = rest
        if pending:
            self._show(pending)

    def _read(self, until: float | None) -> bytes | None:
        """The next bytes. None if nothing came until then, no bytes at the end."""
        wait = None if until is None else max(0.0, until - time.monotonic())
        if wait == 0.0 or not select.select([self._pipe], [], [], wait)[0]:
            return None
        return os.read(self._pipe, 1 << 16)

    def _show(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        if text.startswith(("FAILED ", "ERROR ")):
            self.failures.append(text)
        with _screen:
            sys.stdout.write(f"{self._prefix}| {text}\n")
            sys.stdout.flush()
