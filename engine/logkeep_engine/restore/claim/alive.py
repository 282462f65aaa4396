"""The object by which a restore shows that it is still running: `runs/<run id>/alive.json` in the place of its state.

Its driver writes something new to it now and then, and at the end that it has ended. Beside the archive it is also the
restore's lease on what it reads (`archive.maintenance.leases`). Whoever would continue the run of another resource
watches the object first: what changes is alive. So no two clocks are compared.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from logkeep_engine.archive.maintenance.leases import ALIVE, READER_NOTE, ReadingNote
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.errors import ObjectMissing, ObjectTooLarge, RestoreBusy
from logkeep_engine.restore.model.state import RestoreState

log = logging.getLogger(__name__)

BEAT_SECONDS = 10.0
WATCH_SECONDS = 40.0
_LOOK_SECONDS = 1.0


class AliveNote(ReadingNote):
    """Shows that the run of `state` is still running, as long as the context lasts."""

    def __init__(self, state: RestoreState) -> None:
        super().__init__(state.storage, state.run_id)
        self._state = state

    @property
    def interval(self) -> float:
        """The seconds between two beats."""
        return BEAT_SECONDS


def refuse_alive(state: RestoreState) -> dict[str, Any] | None:
    """The note of a run whose driver is no longer running. If it has not said that it has ended, it is watched.

    Raises RestoreBusy if it is still running.
    """
    first = note_of(state)
    if first is None or first.get("ended") is True:
        return first
    log.info(
        "run %s has not ended: watching for %.0f s whether its driver is still running", state.run_id, WATCH_SECONDS
    )
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
    """The error about a run whose driver is still running."""
    return RestoreBusy(
        f"Run {state.run_id} has begun this restore, and its driver is still running; nothing was written.",
        hint="Wait for its end, or stop it: delete or suspend its KafkaRestore, or interrupt its command.",
    )


def note_of(state: RestoreState) -> dict[str, Any] | None:
    """The note of a run; None if it has none, or what stands there is no note: no driver rests on it."""
    try:
        return READER_NOTE.loads(state.storage.read(state.file(ALIVE), most=READER_NOTE.most))
    except (ObjectMissing, ObjectTooLarge, DocumentRefused):
        return None
