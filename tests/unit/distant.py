"""A folder that takes its time, as an object store does, and notes how many reads it was asked for at once."""

import time
from threading import Lock

from logkeep_engine.storage import LocalStorage


class Distant(LocalStorage):
    """`most`: of the reads that were under way at the same time, each for so many `seconds`."""

    def __init__(self, uri: str, seconds: float = 0.2) -> None:
        super().__init__(uri)
        self.seconds = seconds
        self.most = 0
        self._now = 0
        self._lock = Lock()

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            time.sleep(self.seconds)
            return super().read_range(path, start, end)
        finally:
            with self._lock:
                self._now -= 1
