"""A storage that shows some objects only up to a byte. The bytes after it are a torn tail and must be left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from logkeep_engine.storage import LockedObject, ObjectInfo, ObjectWriter, Storage, StorageAround, UnseenObject


class ClippedStorage(StorageAround):
    """`storage` for reading, with the objects of `ends` (path to size) cut to that size. Writing is refused."""

    def __init__(self, storage: Storage, ends: Mapping[str, int]) -> None:
        super().__init__(storage)
        self._ends = dict(ends)

    def read_range(self, path: str, start: int, end: int | None) -> bytes:
        clip = self._ends.get(path)
        if clip is not None:
            end = clip if end is None else min(end, clip)
            start = min(start, end)
        return self.under.read_range(path, start, end)

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        return [
            replace(info, size=min(info.size, self._ends.get(info.path, info.size))) for info in self.under.list(prefix)
        ]

    def create(self, path: str, data: bytes) -> None:
        raise self._refusal()

    def put(self, path: str, data: bytes) -> None:
        raise self._refusal()

    def writer(self, path: str, *, replaces: str | None = None) -> ObjectWriter:
        raise self._refusal()

    def delete(self, paths: Iterable[str]) -> None:
        raise self._refusal()

    def delete_unseen(self, found: Iterable[UnseenObject]) -> tuple[LockedObject, ...]:
        raise self._refusal()

    def _refusal(self) -> TypeError:
        return TypeError(f"{self.uri} is only read")
