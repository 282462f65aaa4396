"""The object by which a restore shows that it goes on: `runs/<run id>/alive.json` in the place of its state.

Its driver writes something new to it now and then, and at the end that it has ended. Who would go on with the run of
another resource watches the object first: what changes is alive. So no two clocks are compared.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from logkeep_engine.errors import LogkeepError, ObjectMissing, RestoreBusy
from logkeep_engine.restore.state import RestoreState

log = logging.getLogger(__name__)

ALIVE = "alive.json"
BEAT_SECONDS = 10.0
WATCH_SECONDS = 40.0
_LOOK_SECONDS = 1.0
_FORMAT = 1


class AliveNote:
    """Shows that the run of `state` goes on, as long as the context lasts."""

    def __init__(self, state: RestoreState) -> None:
        self._state = state
        self._writer = secrets.token_hex(8)
        self._beats = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="logkeep-alive", daemon=True)

    def __enter__(self) -> Self:
        self.write(ended=False)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        with self._logged():
            self.write(ended=True)

    def _go_on(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            with self._logged():
                self.beat()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except LogkeepError as error:  # only those who would resume miss it
            log.warning("%s could not be written: %s", self._state.name(ALIVE), error)

    def beat(self) -> None:
        """Show once more that the run goes on."""
        self.write(ended=False)

    def write(self, *, ended: bool) -> None:
        """Write the note anew."""
        self._beats += 1
        note = {"format": _FORMAT, "writer": self._writer, "beat": self._beats, "ended": ended}
        self._state.storage.put(self._state.file(ALIVE), json.dumps(note).encode())


def refuse_alive(state: RestoreState) -> dict[str, Any] | None:
    """The note of a run whose driver does not go on. If it has not said that it has ended, it is watched.

    Raises RestoreBusy if it goes on.
    """
    first = note_of(state)
    if first is None or first.get("ended") is True:
        return first
    log.info("run %s has not ended: watching for %.0f s whether its driver goes on", state.run_id, WATCH_SECONDS)
    deadline = time.monotonic() + WATCH_SECONDS
    while time.monotonic() < deadline:
        time.sleep(min(_LOOK_SECONDS, WATCH_SECONDS))
        now = note_of(state)
        if now is None or now.get("ended") is True:
            return now
        if now != first:
            raise busy(state)
    return first


def busy(state: RestoreState) -> RestoreBusy:
    """The error about a run whose driver goes on."""
    return RestoreBusy(
        f"Run {state.run_id} has begun this restore, and its driver goes on; nothing was written.",
        hint="Wait for its end, or stop it: delete or suspend its KafkaRestore.",
    )


def note_of(state: RestoreState) -> dict[str, Any] | None:
    """The note of a run; None if it has none: earlier versions write none, and no driver rests on it."""
    try:
        note = json.loads(state.storage.read(state.file(ALIVE)))
    except (ObjectMissing, ValueError):
        return None
    return note if isinstance(note, dict) else None
