"""The notes by which runs that read an archive show that they are still running: `runs/<run id>/alive.json`. Nothing is
deleted that such a run may need: the note is its lease.

    with RunNote(archive.storage, run_id) as note:
        state = archive.load()
        note.knows(state.commit)
        ...

    readers = running_readers(storage, now)
    kept = [reader for reader in readers if reader.needs(removal.commit)]

A note is rewritten every few seconds, and once more at its end. A run that was killed writes no end, so its lease
lapses: LAPSE_MS after the last beat, by the store's clock alone.

The note says up to which commit its run knows the catalog. The run may still read what a later commit has removed.
Until it says so, it may have begun before any commit.

Commands and Spark jobs that read an archive are not runs. Their notes have names that begin with `READING`, and a
run that looks for readers deletes those that have lapsed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.archive.catalog.run_note import ALIVE, RunNote, SeenNote
from logkeep_engine.archive.names import RUNS, run_file
from logkeep_engine.errors import LogkeepError, ObjectMissing, ObjectTooLarge
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

LAPSE_MS = 3_600_000
"""ms after its last beat until a run counts as gone. A Job starts its driver again within minutes."""
READING = "reading."
SHARED_BEAT_SECONDS = 300.0

_shared_beats: dict[str, float] = {}


class SharedNote(RunNote):
    """The note of all Spark tasks that read the state of an archive at one commit. They begin and end in many
    processes, and none knows which is the last, so no process ends the note: it lapses. A process writes it every five
    minutes at most. If it cannot be written, the tasks read without a lease."""

    def __init__(self, storage: Storage, commit: int) -> None:
        super().__init__(storage, f"{READING}spark-{commit}", interval=SHARED_BEAT_SECONDS)
        self._commit = commit

    def end(self) -> None:
        """Leave the note to those who read still."""
        self.stop()

    def beat(self) -> None:
        """Show that the archive is being read."""
        key, now = f"{self._storage.uri}/{self._path}", time.monotonic()
        if now - _shared_beats.get(key, -self._interval) >= self._interval:
            _shared_beats[key] = now  # also if it is refused: it will be again
            with self._logged():
                super().beat()


@contextmanager
def reading(storage: Storage, run_id: str, commit: int) -> Iterator[None]:
    """Give a lease for a run that has loaded the catalog up to this commit, and otherwise writes nothing there: its
    note is deleted at the end. If it cannot be written, as with credentials that may only read, there is no lease."""
    note = RunNote(storage, run_id)
    try:
        note.knows(commit)
    except LogkeepError as error:
        log.warning("without a lease, only the grace period of retention protects what this run reads: %s", error)
        yield
        return
    try:
        with note:
            yield
    finally:
        _forget(storage, [run_file(run_id, ALIVE)])


def _forget(storage: Storage, notes: list[str]) -> None:
    try:
        storage.delete(notes)
    except LogkeepError as error:
        # They lapse anyway: whether one can be deleted changes nothing.
        log.info("notes of readers that have ended stay: %s", error)


@dataclass(frozen=True, slots=True)
class RunningReader:
    """A run that reads the archive. `commit` is the last one of the catalog that it knows; NO_COMMIT: it has not
    said."""

    run_id: str
    commit: int

    def needs(self, commit: int) -> bool:
        """Return whether the run may read what this commit has removed."""
        return self.commit < commit


def running_readers(storage: Storage, now: int) -> list[RunningReader]:
    """Return the runs that read the archive at `now`, in ms since the epoch by the store's clock. Notes of commands and
    Spark jobs that have lapsed are deleted."""
    notes = [info for info in storage.list(RUNS) if info.path.endswith(f"/{ALIVE}")]
    alive = [info.path for info in notes if int(info.modified * 1000) > now - LAPSE_MS]
    lapsed = {info.path for info in notes if info.path.startswith(f"{RUNS}{READING}")}.difference(alive)
    if lapsed:
        _forget(storage, sorted(lapsed))
    found = (_reader_of(storage, path) for path in alive)
    return [reader for reader in found if reader is not None]


def _reader_of(storage: Storage, path: str) -> RunningReader | None:
    run_id = path.removeprefix(RUNS).removesuffix(f"/{ALIVE}")
    try:
        note = SeenNote.read(storage, run_id)
    except ObjectMissing:
        return None
    except (ValueError, ObjectTooLarge):
        return RunningReader(run_id, NO_COMMIT)  # cut short, or of a newer version: a reader was there at least
    return None if note.ended else RunningReader(run_id, note.commit)
