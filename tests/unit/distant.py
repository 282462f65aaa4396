"""A folder that takes its time, as an object store does, and notes how many reads it was asked for at once."""

import time
from threading import Lock

from logkeep_engine.storage import LocalStorage

READ_SECONDS = 0.005


class Distant(LocalStorage):
    """`most`: of the reads that were under way at the same time."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.most = 0
        self._now = 0
        self._lock = Lock()

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        try:
            time.sleep(READ_SECONDS)
            return super().read_range(path, start, end)
        finally:
            with self._lock:
                self._now -= 1
