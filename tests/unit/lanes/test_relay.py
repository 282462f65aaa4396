"""The output of a lane is seen while it runs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.process import wait_until
from tests.lanes.relay import Relay

ROOT = Path(__file__).parents[3]


def test_lines_have_a_prefix_and_the_log_has_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    relay = Relay("2", reading, tmp_path / "lane-2.log")
    relay.start()
    os.write(writing, b"first\nsec")
    os.write(writing, b"ond\nFAILED tests/x.py::test_y - boom\nno end")
    os.close(writing)
    relay.join(30)
    assert not relay.is_alive()
    os.close(reading)
    assert capsys.readouterr().out == "2| first\n2| second\n2| FAILED tests/x.py::test_y - boom\n2| no end\n"
    assert (tmp_path / "lane-2.log").read_bytes() == b"first\nsecond\nFAILED tests/x.py::test_y - boom\nno end"
    assert relay.failures == ["FAILED tests/x.py::test_y - boom"]


def test_a_line_that_does_not_end_is_shown_as_far_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    relay = Relay("1", reading, tmp_path / "lane-1.log", patience=0.1)
    relay.start()
    seen = ""

    def shown(text: str) -> bool:
        nonlocal seen
        seen += capsys.readouterr().out
        return text in seen

    os.write(writing, b"tests/slow.py ..")
    log = tmp_path / "lane-1.log"
    wait_until(lambda: log.exists() and log.read_bytes() == b"tests/slow.py ..", 30, "the log to have it")
    wait_until(lambda: shown("1| tests/slow.py ..\n"), 30, "the screen to have it")
    os.write(writing, b". [100%]\n")
    os.close(writing)
    relay.join(30)
    os.close(reading)
    assert shown("1| tests/slow.py ..\n1| . [100%]\n")


def lanes(logs: Path, *files: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-u", "-m", "tests.lanes", "--logs", str(logs), *files]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_lanes_run_side_by_side_and_what_took_longest_is_reported(tmp_path: Path) -> None:
    files = ("tests/unit/log/test_segment.py", "tests/unit/formats/test_records_names.py")
    running = lanes(tmp_path, *files)
    printed, _ = running.communicate(timeout=300)
    assert running.returncode == 0, printed
    assert {line[:3] for line in printed.splitlines() if "test session starts" in line} <= {"1| ", "2| "}
    _, _, reported = printed.partition("slowest tests")
    for path in files:
        assert f"  {path}::" in reported
    assert (tmp_path / "durations.json").exists()


def test_a_lane_that_is_killed_is_a_failure(tmp_path: Path) -> None:
    running = lanes(tmp_path, "tests/unit/log/test_segment.py")
    (child,) = _children(running.pid)
    os.kill(child, signal.SIGKILL)
    printed, _ = running.communicate(timeout=300)
    assert running.returncode == 1, printed


def _children(pid: int) -> list[int]:
    listed: list[int] = []

    def some() -> bool:
        listed[:] = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return bool(listed)

    wait_until(some, 60, "the lane to have started")
    return listed
