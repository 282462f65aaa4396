"""The CPU and memory that a measured process is charged with."""

import os
import sys
import time
from pathlib import Path

import pytest

from bench import process


def test_memory_and_cpu_of_grandchildren_count() -> None:
    child = "import time; b = bytearray(b'x' * 50_000_000)\nwhile time.process_time() < .8: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    usage = process.run([sys.executable, "-c", parent])
    assert usage.cpu >= 0.8
    assert usage.peak >= 50_000_000
    assert usage.peak_sum > usage.peak


@pytest.mark.parametrize("look", [process._LOOK_SECONDS, 30.0], ids=["seen", "seen too late"])
def test_an_orphan_is_waited_for_and_counts(monkeypatch: pytest.MonkeyPatch, look: float) -> None:
    monkeypatch.setattr(process, "_LOOK_SECONDS", look)  # a busy machine looks later than it wants
    orphan = "import time; t = time.process_time()\nwhile time.process_time() - t < .8: pass"
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {orphan!r}]); time.sleep(.5)"
    usage = process.run([sys.executable, "-c", parent])
    assert usage.cpu >= 0.8


def test_the_first_byte_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, noticed = tmp_path / "file", tmp_path / "noticed"
    command = f"""
import os, time
open({str(file)!r}, "w").close()
while not os.path.exists({str(noticed)!r}):
    time.sleep(0.02)
"""

    def seen() -> bool:
        """The process continues until it was seen, however late this looks."""
        if file.exists():
            noticed.touch()
        return noticed.exists()

    monkeypatch.setattr(process, "_LOOK_SECONDS", 1.0)
    usage = process.run([sys.executable, "-c", command], seen=seen, timeout=60)
    assert usage.first_byte is not None
    assert usage.first_byte < usage.wall


def test_a_failure_shows_the_end_of_the_output() -> None:
    with pytest.raises(process.Failed, match=r"exit 3\n.*it broke") as failed:
        process.run([sys.executable, "-c", "print('it broke'); raise SystemExit(3)"])
    assert "it broke" in str(failed.value)


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(process.Failed, match="exit -9"):
        process.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.5)


def test_cores_can_be_given() -> None:
    usage = process.run([sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"], cores=[0])
    assert usage.output == "[0]\n"


def test_own_cpu_seconds_are_read() -> None:
    before = process.cpu_of(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert process.cpu_of(os.getpid()) > before
