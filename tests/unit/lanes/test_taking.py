"""A lane takes one test file after the other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes.taking import NICENESS, Answers

ROOT = Path(__file__).parents[3]
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def shared():
    note("up")
    yield
    note("down")

def note(what):
    with open("events", "a") as events:
        events.write(what + "\\n")
"""
TEST = """
def test_it(shared):
    with open("events", "a") as events:
        events.write("{name}\\n")
"""
NICENESS_TEST = """
import os

def test_it():
    with open("events", "a") as events:
        events.write(f"{os.nice(0)}\\n")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository with two beds."""
    for part in ("unit", "kafka"):
        (tmp_path / "tests" / part).mkdir(parents=True)
    (tmp_path / "tests" / "conftest.py").write_text(CONFTEST)
    return tmp_path


def lane(folder: Path, *order: str) -> "subprocess.CompletedProcess[str]":
    """A lane that may take any file of the folder, and is given these in their order."""
    left = iter(order)
    answers = Answers("test", lambda: next(left, None))
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py"))
    command = [sys.executable, "-m", "pytest", "--rootdir=.", "-c/dev/null", "-p", "tests.lanes.taking"]
    with subprocess.Popen(
        [*command, f"--take={answers.theirs.fileno()}", *files],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=[answers.theirs.fileno()],
    ) as running:
        answers.start()
        printed, _ = running.communicate(timeout=300)
    answers.join(30)
    assert not answers.is_alive()
    return subprocess.CompletedProcess(command, running.returncode, printed)


def test_what_is_shared_stays_up_in_its_bed_and_what_is_not_taken_is_not_imported(folder: Path) -> None:
    for path in ("unit/test_a.py", "unit/test_b.py", "kafka/test_c.py"):
        (folder / "tests" / path).write_text(TEST.format(name=path))
    (folder / "tests/unit/test_never.py").write_text("raise RuntimeError('it was imported')")
    (folder / "tests/unit/test_empty.py").write_text("")

    ran = lane(folder, *(f"tests/unit/test_{name}.py" for name in ("b", "empty", "a")), "tests/kafka/test_c.py")

    assert ran.returncode == 0, ran.stdout
    events = (folder / "events").read_text().split()
    assert events == ["up", "unit/test_b.py", "unit/test_a.py", "down", "up", "kafka/test_c.py", "down"]
    assert "3 passed" in ran.stdout


def test_a_file_that_cannot_be_imported_fails_the_lane_and_the_others_run(folder: Path) -> None:
    (folder / "tests/unit/test_broken.py").write_text("raise RuntimeError('no')")
    (folder / "tests/unit/test_good.py").write_text("def test_it(): pass")

    ran = lane(folder, "tests/unit/test_broken.py", "tests/unit/test_good.py")

    assert ran.returncode == 1, ran.stdout
    assert "1 passed" in ran.stdout
    assert "ERROR tests/unit/test_broken.py" in ran.stdout


def test_a_lane_that_is_given_nothing_says_so_by_its_exit_code(folder: Path) -> None:
    (folder / "tests/unit/test_good.py").write_text("def test_it(): pass")
    assert lane(folder).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_lane_leaves_the_processors_to_the_longest_bed(folder: Path) -> None:
    (folder / "tests/e2e").mkdir()
    order = ["tests/e2e/test_first.py", "tests/unit/test_second.py", "tests/kafka/test_third.py"]
    for path in order:
        (folder / path).write_text(NICENESS_TEST)

    ran = lane(folder, *order)

    assert ran.returncode == 0, ran.stdout
    usual = os.nice(0)
    assert (folder / "events").read_text().split() == [str(usual), *[str(min(19, usual + NICENESS))] * 2]
