"""A task is killed between any two steps of writing a snapshot. The next attempt makes it again."""

import os
import signal
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.log.batch import walk_checked
from logkeep_engine.storage.base import ANYTHING, ObjectWriter
from logkeep_engine.storage.local import LocalStorage
from tests.unit.archive.build import ORDERS, verify_segment, write_segment
from tests.unit.compaction.made import compact, plain, row

SMALL = 300


class DeadlyStorage(LocalStorage):
    """Kills its process when so many objects have been made visible."""

    def __init__(self, uri: str, objects: int) -> None:
        super().__init__(uri)
        self._left = objects

    def put_all(self, objects: Mapping[str, bytes]) -> None:
        super().put_all(objects)
        self.step()

    def writer(self, path: str, *, replaces: str | None = ANYTHING) -> ObjectWriter:
        found = super().writer(path, replaces=replaces)
        commit = found.commit

        def commit_and_step() -> None:
            commit()
            self.step()

        found.commit = commit_and_step  # type: ignore[method-assign]
        return found

    def step(self) -> None:
        self._left -= 1
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(uri: str, objects: int, dirty: list[SegmentEntry]) -> None:
    compact(DeadlyStorage(uri, objects), dirty, max_bytes=SMALL)


@pytest.mark.parametrize("objects", [1, 2, 3, 4, 6])
def test_a_killed_attempt_is_in_nobodys_way(tmp_path: Path, objects: int) -> None:
    storage = LocalStorage(tmp_path.as_uri())
    dirty = [write_segment(storage, [plain([row(at, b"k%d" % at, b"v" * 40)]) for at in range(6)])]
    child = get_context("fork").Process(target=killed, args=(tmp_path.as_uri(), objects, dirty))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    left = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in tmp_path.rglob("*.checkpoint")}
    assert len(left) == objects // 2
    for data in left.values():
        assert sum(header.size for _, header in walk_checked(data, 1 << 62)) == len(data)
    parts = compact(storage, dirty, attempt=1, max_bytes=SMALL).snapshot.parts
    assert sum(part.records for part in parts) == 6
    for part in parts:
        assert verify_segment(storage, ORDERS.name, part) == []
        assert not part.objects(ORDERS.name).keys() & left.keys()
    assert {path: (tmp_path / path).read_bytes() for path in left} == left
