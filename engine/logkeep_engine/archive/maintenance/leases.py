"""The notes by which runs that read an archive show that they are still running: `runs/<run id>/alive.json`. Nothing is
deleted that such a run may need: the note is its lease.

    with ReadingNote(archive.storage, run_id) as note:
        state = archive.load()
        note.reads(state.commit)
        ...

    readers = running_readers(storage, now)
    kept = [reader for reader in readers if reader.needs(removal.commit)]

A note is rewritten every few seconds, and once more at its end. A run that was killed writes no end, so its lease
lapses: LAPSE_MS after the last beat, by the store's clock alone.

The note says up to which commit its run knows the catalog. The run may still read what a later commit has removed.
Until it says so, it may have begun before any commit.

Commands and Spark jobs that read an archive are no runs. Their notes have names that begin with `READING`, and whoever
looks for readers deletes those that have lapsed.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.archive.names import RUNS, run_file
from logkeep_engine.contract.stored import DocumentRefused, StoredDocument
from logkeep_engine.errors import LogkeepError, ObjectMissing, ObjectTooLarge
from logkeep_engine.storage import NOTE_BYTES, Storage

log = logging.getLogger(__name__)

ALIVE = "alive.json"
BEAT_SECONDS = 10.0
LAPSE_MS = 3_600_000
"""ms after its last beat until a run counts as gone. A Job starts its driver again within minutes."""
READING = "reading."
SHARED_BEAT_SECONDS = 300.0

READER_NOTE = StoredDocument(
    "note of a reader",
    1,
    {"writer": str, "beat": int, "ended": bool, "commit": int | None},
    most=NOTE_BYTES,
)
_shared_beats: dict[str, float] = {}


class ReadingNote:
    """Shows that a run that reads the archive is still running, as long as the context lasts."""

    def __init__(self, storage: Storage, run_id: str) -> None:
        self._place = storage
        self._path = run_file(run_id, ALIVE)
        self._writer = secrets.token_hex(8)
        self._beats = 0
        self._commit: int | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="logkeep-alive", daemon=True)

    def __enter__(self) -> Self:
        self._begin()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        self._end()

    def _begin(self) -> None:
        self.write(ended=False)

    def _end(self) -> None:
        with self._logged():
            self.write(ended=True)

    @property
    def interval(self) -> float:
        """The seconds between two beats."""
        return BEAT_SECONDS

    def _go_on(self) -> None:
        while not self._stopped.wait(self.interval):
            with self._logged():
                self.beat()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except LogkeepError as error:  # only those who would resume or remove miss it
            log.warning("%s/%s could not be written: %s", self._place.uri, self._path, error)

    def reads(self, commit: int) -> None:
        """Say that the run knows the catalog up to this commit: it needs nothing that was removed by then."""
        self._commit = commit
        self.beat()

    def beat(self) -> None:
        """Show once more that the run is still running."""
        self.write(ended=False)

    def write(self, *, ended: bool) -> None:
        """Rewrite the note."""
        self._beats += 1
        note = {"writer": self._writer, "beat": self._beats, "ended": ended, "commit": self._commit}
        self._place.put(self._path, READER_NOTE.dumps(note))


class SharedNote(ReadingNote):
    """The note of all Spark tasks that read the state of an archive at one commit. They begin and end in many
    processes, and none knows which is the last, so nobody ends the note: it lapses. A process writes it every five
    minutes at most. If it cannot be written, the tasks read without a lease."""

    def __init__(self, storage: Storage, commit: int) -> None:
        super().__init__(storage, f"{READING}spark-{commit}")
        self._commit = commit

    def _begin(self) -> None:
        self.show()

    def _end(self) -> None:
        """Leave the note to those who read still."""

    @property
    def interval(self) -> float:
        return SHARED_BEAT_SECONDS

    def show(self) -> None:
        """Show that somebody reads."""
        with self._logged():
            self.beat()

    def beat(self) -> None:
        key, now = f"{self._place.uri}/{self._path}", time.monotonic()
        if now - _shared_beats.get(key, -self.interval) >= self.interval:
            _shared_beats[key] = now  # also if it is refused: it will be again
            super().beat()


@contextmanager
def reading(storage: Storage, run_id: str, commit: int) -> Iterator[None]:
    """A lease for a run that has loaded the catalog up to this commit, and otherwise writes nothing there: its note is
    deleted at the end. If it cannot be written, as with credentials that may only read, there is no lease."""
    note = ReadingNote(storage, run_id)
    try:
        note.reads(commit)
    except LogkeepError as error:
        log.warning("without a lease only the grace of retention keeps what this run reads: %s", error)
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
        log.info("notes of readers that have ended stay: %s", error)


@dataclass(frozen=True, slots=True)
class RunningReader:
    """A run that reads the archive. `commit` is the last one of the catalog that it knows; NO_COMMIT: it has not
    said."""

    run_id: str
    commit: int

    def needs(self, commit: int) -> bool:
        """Whether the run may read what this commit has removed."""
        return self.commit < commit


def running_readers(storage: Storage, now: int) -> list[RunningReader]:
    """The runs that read the archive at `now`, in ms since the epoch by the store's clock. Notes of commands and Spark
    jobs that have lapsed are deleted."""
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
        note = READER_NOTE.loads(storage.read(path, most=READER_NOTE.most))
    except ObjectMissing:
        return None
    except (DocumentRefused, ObjectTooLarge):
        return RunningReader(run_id, NO_COMMIT)  # cut short, or of a newer version: somebody has been there at least
    if note["ended"]:
        return None
    return RunningReader(run_id, NO_COMMIT if note["commit"] is None else note["commit"])
