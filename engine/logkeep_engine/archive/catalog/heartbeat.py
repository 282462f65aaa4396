"""The object by which a run shows that it is alive, and what it has committed: `runs/<run id>/heartbeat.json`.

It is written before the run's first commit, so whoever sees a commit of a run finds its heartbeat; and again after its
last, so that a heartbeat outlives the loss of the commits it speaks of (see `lost_tail`).
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from dataclasses import dataclass

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import NO_COMMIT
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.errors import LogkeepError, StorageUnavailable
from logkeep_engine.log.batch import MAX_OFFSET
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

HEARTBEAT = "heartbeat.json"
_BEAT = StoredDocument(
    "heartbeat",
    1,
    {
        "runId": str,
        "archiveId": str,
        "epoch": int,
        "writer": str,
        "beat": int,
        "commit": int,
        "time": str,
    },
)


@dataclass(frozen=True, slots=True)
class Beat:
    """The content of a heartbeat. `commit` is the last commit of the run, NO_COMMIT before its first."""

    run_id: str
    epoch: int
    commit: int
    archive_id: str

    @classmethod
    def parse(cls, data: bytes) -> Beat:
        """Read a heartbeat. Raises ValueError for anything else."""
        found = _BEAT.loads(data)
        if not 0 < found["epoch"] <= names.MAX_EPOCH or not NO_COMMIT <= found["commit"] <= MAX_OFFSET:
            raise ValueError(f"epoch {found['epoch']}, commit {found['commit']}")
        return cls(found["runId"], found["epoch"], found["commit"], found["archiveId"])


class Heartbeat:
    """Overwrites the run's heartbeat object with something new at each beat, from a thread of its own."""

    def __init__(self, storage: Storage, archive_id: str, run_id: str, epoch: int, interval: float) -> None:
        self._storage = storage
        self._path = names.run_file(run_id, HEARTBEAT)
        self._facts = {"runId": run_id, "archiveId": archive_id, "epoch": epoch, "writer": secrets.token_hex(8)}
        self._interval = interval
        self._beats = 0
        self._commit = NO_COMMIT
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write the first beat, and continue in a thread of its own."""
        self._beat()
        self._thread = threading.Thread(target=self._run, name="logkeep-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def committed(self, number: int) -> None:
        """Note a commit of the run: the next beat says it."""
        self._commit = number
        if self._stopped.is_set():  # a removal, after the run's end
            self.beat_last()

    def beat_last(self) -> None:
        """Write the last commit once more, after `stop`."""
        try:
            self._beat()
        except LogkeepError as error:
            log.warning("last heartbeat not written: %s", error)

    def time_written(self) -> int:
        """Beat once more, and return the time of this beat by the store's clock, in ms since the epoch. Raises
        StorageUnavailable if the store does not list it yet."""
        self._beat()
        info = next((info for info in self._storage.list(self._path) if info.path == self._path), None)
        if info is None:
            raise StorageUnavailable(
                f"{self._storage.uri}/{self._path} was written, but is not listed: the store's time is unknown.",
                hint="Stores may list late; the next run asks again.",
            )
        return int(info.modified * 1000)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._beat()
            except Exception as error:  # the next commit reports what is wrong; a missed beat alone harms nobody
                log.warning("heartbeat not written: %s", error)

    def _beat(self) -> None:
        self._beats += 1
        now = iso(time.time_ns() // 1_000_000)
        beat = {**self._facts, "beat": self._beats, "commit": self._commit, "time": now}
        self._storage.put(self._path, _BEAT.dumps(beat))
