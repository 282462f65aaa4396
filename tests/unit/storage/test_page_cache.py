"""Large files pass by the page cache, in buffers that no two processes share."""

import io
import os
import signal
from pathlib import Path

import pytest

from logkeep_engine.storage import page_cache
from logkeep_engine.storage.page_cache import STEP_BYTES, WrittenFile


def begin(path: Path, data: bytes) -> WrittenFile:
    """A file whose last part still waits in its buffer."""
    written = WrittenFile(io.FileIO(path, "wb"))
    written.write(data)
    return written


def end(written: WrittenFile) -> None:
    written.finish()
    written.release()


def test_a_process_that_was_forked_writes_nothing_into_the_files_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is forked from a process that may have idle buffers: both take the same one."""
    monkeypatch.setattr(page_cache, "_idle", [])
    own, others = b"p" * (STEP_BYTES + STEP_BYTES // 2), b"c" * (STEP_BYTES + STEP_BYTES // 2)
    end(begin(tmp_path / "before", own))  # leaves an idle buffer, where the file system takes direct writes
    waiting = begin(tmp_path / "parent", own)
    waiting.release()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            end(begin(tmp_path / "child", others))
        finally:
            os._exit(0)
    written = begin(tmp_path / "own", own)
    assert os.waitpid(child, 0)[1] == 0
    end(written)
    assert (tmp_path / "own").read_bytes() == own
    assert (tmp_path / "child").read_bytes() == others


def test_a_buffer_is_not_shared_with_a_process_that_is_forked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page_cache, "_idle", [])
    end(begin(tmp_path / "before", b"p" * (2 * STEP_BYTES)))
    if not page_cache._idle:
        pytest.skip("this file system takes no direct writes")
    (idle,) = page_cache._idle
    idle[:5] = b"clean"
    child = os.fork()
    if child == 0:
        idle[:5] = b"dirty"
        os._exit(0)
    os.waitpid(child, 0)
    assert idle[:5] == b"clean"
