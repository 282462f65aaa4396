"""Where temporary files of the lanes lie, and that they go."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cluster.state import ENV_MEMORY, State
from tests.lanes.memory import keep, temporary_files


def test_they_lie_in_memory_and_go_with_the_run(tmp_path: Path) -> None:
    with temporary_files(tmp_path, room=1) as environment:
        folder = Path(environment["TMPDIR"])
        assert folder.parent == tmp_path
        (folder / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_without_room_they_lie_where_they_did(tmp_path: Path) -> None:
    for memory, room in ((tmp_path, 1 << 60), (tmp_path / "nowhere", 1)):
        with temporary_files(memory, room) as environment:
            assert environment == {}


def test_what_a_killed_run_has_left_goes_with_the_next(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    left, ours = tmp_path / f"logkeep-lanes-{ended.pid}-x", tmp_path / f"logkeep-lanes-{os.getpid()}-x"
    for folder in (left, ours, tmp_path / "other"):
        folder.mkdir()
    with temporary_files(tmp_path, room=1 << 60):
        assert sorted(tmp_path.iterdir()) == sorted([ours, tmp_path / "other"])


def test_what_failed_tests_have_left_is_kept(tmp_path: Path) -> None:
    memory, kept = tmp_path / "memory", tmp_path / "kept"
    memory.mkdir()
    with temporary_files(memory, room=1) as environment:
        os.mkfifo(memory / "pipe")
        (Path(environment["TMPDIR"]) / "file").write_text("left")
        os.mkfifo(Path(environment["TMPDIR"]) / "pipe")
        keep(environment, kept)
    assert [path.name for path in kept.iterdir()] == ["file"]
    keep({}, kept)


def test_the_data_of_a_part_goes_with_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(ENV_MEMORY, raising=False)
    beside = State.create("part")
    assert beside.data == beside.path
    with temporary_files(tmp_path, room=1) as environment:
        monkeypatch.setenv(ENV_MEMORY, environment[ENV_MEMORY])
        state = State.create("part")
        (state.data / "file").write_text("data")
        assert state.data.parent == Path(environment["TMPDIR"])
        state.destroy()
        assert [path.exists() for path in (state.path, Path(environment["TMPDIR"], state.path.name))] == [False, False]
    beside.destroy()
