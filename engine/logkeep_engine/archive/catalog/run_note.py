"""The note by which a run shows that it is still running: an object in `runs/<run id>/` that it keeps rewriting.

    with RunNote(storage, run_id) as note:      # alive.json: a run that reads an archive
        note.knows(state.commit)
        ...

A run that writes the archive has its note in `heartbeat.json`, which is signed where the catalog is, with its epoch. It
begins before the first commit of the run, so a reader that sees a commit finds the note; and it is written once more
after the last, so that it outlives the loss of the commits it speaks of (`lost_tail`). A run that reads the archive, or
only has its state next to it, has `alive.json`, which is not signed: it is the lease of the run on what it reads
(`archive.maintenance.leases`).

There is one rule for clocks: to find out whether a run is still running, watch its note: what changes is
alive (`watch`). No clock of another machine is compared with one's own.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import StorageUnavailable
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.storage import NOTE_BYTES, Storage

log = logging.getLogger(__name__)

HEARTBEAT = "heartbeat.json"
ALIVE = "alive.json"
BEAT_SECONDS = 10.0
"""The seconds between two beats of a run that reads."""

_NOTE = StoredDocument(
    "note of a run",
    1,
    {
        "writer": str,
        "beat": int,
        "ended": bool,
        "commit": int | None,
        "archiveId": str | None,
        "epoch": int | None,
    },
    most=NOTE_BYTES,
)
_Seen = TypeVar("_Seen")


@dataclass(frozen=True, slots=True)
class SeenNote:
    """The content of a note. `writer` and `beat` change with each driver and each beat. `commit` is the last one of the
    catalog that the run has made, or knows; NO_COMMIT: it has not said. `epoch` and `archive_id` are 0 and "" for a run
    that does not write the archive."""

    writer: str
    beat: int
    ended: bool
    commit: int
    epoch: int
    archive_id: str

    @classmethod
    def parse(cls, data: bytes) -> SeenNote:
        """Read a note. Raises ValueError for anything else."""
        found = _NOTE.loads(data)
        commit = NO_COMMIT if found["commit"] is None else found["commit"]
        epoch = found["epoch"] or 0
        if not 0 <= epoch <= names.MAX_EPOCH or not NO_COMMIT <= commit <= MAX_OFFSET:
            raise ValueError(f"epoch {epoch}, commit {commit}")
        return cls(found["writer"], found["beat"], found["ended"], commit, epoch, found["archiveId"] or "")

    @classmethod
    def read(cls, storage: Storage, run_id: str, name: str = ALIVE) -> SeenNote:
        """Read the note of a run. Raises ObjectMissing, ObjectTooLarge, and ValueError for what is not a note."""
        return cls.parse(storage.read(names.run_file(run_id, name), most=_NOTE.most))


class RunNote:
    """The note of a run, beaten from a thread of its own: made once, beaten, ended."""

    def __init__(
        self,
        storage: Storage,
        run_id: str,
        *,
        name: str = ALIVE,
        interval: float | None = None,
        archive_id: str | None = None,
        epoch: int | None = None,
    ) -> None:
        """A note in the object `name`, beaten every `interval` seconds. `archive_id` and `epoch` are those of a run
        that writes the archive."""
        self._storage = storage
        self._path = names.run_file(run_id, name)
        self.writer = secrets.token_hex(8)
        self._facts = {"writer": self.writer, "archiveId": archive_id, "epoch": epoch}
        self._interval = BEAT_SECONDS if interval is None else interval
        self._beats = 0
        self._commit: int | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def begin(self) -> None:
        """Write the note, and beat from then on. Raises what the storage raises."""
        self.beat()
        # A daemon: a driver that fails without `stop` must end, and its note with it.
        self._thread = threading.Thread(target=self._run, name="logkeep-alive", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Beat no more, as after a crash. Safe to call twice."""
        self._stopped.set()
        # No thread can wait for its own end.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def end(self) -> None:
        """Beat no more, and say that the run has ended. Who watches the run misses nothing if that cannot be said."""
        self.stop()
        with self._logged():
            self.write(ended=True)

    def knows(self, commit: int) -> None:
        """Say that the run knows the catalog up to this commit: it needs nothing that was removed by then."""
        self._commit = commit
        self.beat()

    def committed(self, number: int) -> None:
        """Note a commit of the run. The next beat says it; a removal comes after the last one, and is said at once."""
        self._commit = number
        if self._stopped.is_set():
            self.end()

    def beat(self) -> None:
        """Show once more that the run is still running."""
        self.write(ended=False)

    def write(self, *, ended: bool) -> None:
        """Rewrite the note."""
        self._beats += 1
        note = {**self._facts, "beat": self._beats, "ended": ended, "commit": self._commit}
        self._storage.put(self._path, _NOTE.dumps(note))

    def store_time(self) -> int:
        """Beat once more, and return the time of this beat by the store's clock, in ms since the epoch. Raises
        StorageUnavailable if the store does not list it yet."""
        self.write(ended=self._stopped.is_set())
        info = next((info for info in self._storage.list(self._path) if info.path == self._path), None)
        if info is None:
            raise StorageUnavailable(
                f"{self._storage.uri}/{self._path} was written, but is not listed: the store's time is unknown.",
                hint="Stores may list late; the next run asks again.",
            )
        return int(info.modified * 1000)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            with self._logged():
                self.beat()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the next write of the run reports what is wrong; a missed beat alone does no harm
            log.warning("%s/%s could not be written: %s", self._storage.uri, self._path, error)


def watch(look: Callable[[], _Seen | None], first: _Seen, seconds: float, pause: float = 1.0) -> _Seen | None:
    """Look again until what is seen is not what was seen `first`, or this many seconds are over, and return what was
    seen last. Between two looks comes a `pause`, in seconds."""
    deadline = time.monotonic() + seconds
    seen: _Seen | None = first
    while seen == first and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        seen = look()
    return seen
