"""How long tests take."""

import subprocess
import sys
from pathlib import Path

from tests.lanes import times

TESTS = """
import os
import time
import pytest

@pytest.fixture(scope="module")
def slow():
    time.sleep(0.2)

def test_first(slow):
    pass

def test_second(slow):
    time.sleep(0.05)

def test_third():
    os._exit(9)
"""


def test_setup_counts_and_what_was_done_before_a_crash_is_there(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    written = tmp_path / "times"
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "--rootdir",
        tmp_path,
        "-c",
        "/dev/null",
    ]
    ended = subprocess.run([*command, "-p", "tests.lanes.times", f"--times={written}", tmp_path], check=False)
    assert ended.returncode == 9
    found = times.read([written, tmp_path / "missing"])
    assert list(found) == ["test_some.py::test_first", "test_some.py::test_second"]
    assert found["test_some.py::test_first"] >= 0.2
    assert found["test_some.py::test_second"] >= 0.05


def test_the_slowest_come_first() -> None:
    assert times.slowest({"a": 1.0, "b": 3.0, "c": 2.0}, 2) == [("b", 3.0), ("c", 2.0)]


def test_a_table_holds_rounded_seconds_of_files(tmp_path: Path) -> None:
    table = tmp_path / "durations.json"
    assert times.load(table) == {}
    tests = {"tests/b.py::one": 61.0, "tests/b.py::Two::two[x::y]": 62.4, "tests/a.py::one": 0.001}
    times.save(times.by_file(tests), table)
    assert times.load(table) == {"tests/a.py": 0.1, "tests/b.py": 120.0}
    assert table.read_text().index("tests/a.py") < table.read_text().index("tests/b.py")
