"""`python -m tests.lanes`: every test, in lanes that take one test file after the other.

Lanes are shown while they run, each line with its lane's number. `test-logs/lane-1.log` and so on hold the same by
lane, written as it comes: a run that was killed still shows where it was.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

from tests.lanes import again, memory, plan, times
from tests.lanes.relay import Relay
from tests.lanes.taking import Answers

ROOT = Path(__file__).parents[2]
LOGS = ROOT / "test-logs"
SLOWEST = 30
KEPT = "temporary-files"
"""The folder beside the logs for what failed tests have left of their temporary files."""

_choosing = threading.Lock()


@dataclass
class Lane:
    """One pytest that runs."""

    number: int
    files: list[str]
    process: "subprocess.Popen[bytes]"
    relay: Relay
    times: Path
    began: float

    @classmethod
    def start(
        cls, number: int, files: Sequence[str], queue: plan.Queue, logs: Path, environment: Mapping[str, str]
    ) -> "Lane":
        """Start pytest, which takes one of these files after the other, with these variables besides our own."""
        seconds = logs / f"lane-{number}.times"
        taken: list[str] = []

        def take() -> str | None:
            with _choosing:
                path = queue.take(number)
                taken.extend([path] if path else [])
            return path

        answers = Answers(str(number), take)
        plugins = ["-p", "tests.lanes.times", f"--times={seconds}", "-p", "tests.lanes.taking"]
        # How many tests there are is known at the end, so a percentage would lie.
        settings = ("console_output_style=classic", "tmp_path_retention_policy=failed")
        options = [f"--take={answers.theirs.fileno()}", *(f"--override-ini={setting}" for setting in settings)]
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "pytest", *plugins, *options, *files],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[answers.theirs.fileno()],
        )
        answers.start()
        assert process.stdout is not None
        relay = Relay(str(number), process.stdout.fileno(), logs / f"lane-{number}.log")
        relay.start()
        return cls(number, taken, process, relay, seconds, time.monotonic())

    def wait(self) -> int:
        """Until it has ended and all is shown; returns pytest's exit code, 1 if a signal has ended it."""
        code = self.process.wait()
        if code == pytest.ExitCode.NO_TESTS_COLLECTED and not self.files:
            code = 0  # the others were faster
        self.relay.join(timeout=10)  # a process that a test left behind may hold the pipe
        return code if code >= 0 else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the lanes; returns the highest of pytest's exit codes."""
    options = _parser().parse_args(arguments)
    logs: Path = options.logs
    logs.mkdir(parents=True, exist_ok=True)
    for old in logs.glob("lane-*"):
        old.unlink()
    shutil.rmtree(logs / KEPT, ignore_errors=True)
    files = options.files or plan.test_files(ROOT)
    queue = plan.Queue(files, times.load())
    with memory.temporary_files() as environment:
        numbers = range(1, min(options.lanes, len(files)) + 1)
        lanes = [Lane.start(number, files, queue, logs, environment) for number in numbers]
        signal.signal(signal.SIGTERM, _interrupt(lanes))
        codes: list[int] = []
        while len(codes) < len(lanes):
            with suppress(KeyboardInterrupt):  # the terminal has told the lanes too: they end what they began
                codes.append(lanes[len(codes)].wait())
        if any(codes):
            memory.keep(environment, logs / KEPT)
    _report(lanes)
    for path in queue.left:
        print(f"NOT RUN {path}: the lanes ended before it")
    seconds = times.by_file(times.read(lane.times for lane in lanes))
    times.save(seconds, logs / "durations.json")
    if options.record and not any(codes):
        times.save(seconds)
    if queue.left or not set(codes) <= {0, int(pytest.ExitCode.TESTS_FAILED)}:
        return max(codes) or 1
    return _second_attempt(lanes, logs) if any(codes) and options.again else max(codes)


def _second_attempt(lanes: Sequence[Lane], logs: Path) -> int:
    """0 if the tests that failed may run again, and pass then."""
    failures = [failure for lane in lanes for failure in lane.relay.failures]
    tests = again.candidates(failures, times.read(lane.times for lane in lanes))
    if not tests or not again.passes(tests, ROOT, logs / "lane-again.log"):
        return 1
    for test in tests:
        print(f"PASSED AT THE SECOND ATTEMPT ONLY {test}: a defect to be mended; the first attempt is in test-logs/")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.lanes", description=__doc__)
    parser.add_argument("files", nargs="*", help="test files (default: all)")
    parser.add_argument("--lanes", type=int, default=5, help="how many run side by side")
    parser.add_argument("--record", action="store_true", help="if all pass, keep the durations in tests/durations.json")
    parser.add_argument("--again", action="store_true", help="a second attempt for few tests with real parts")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder of the lanes' logs")
    return parser


def _interrupt(lanes: Sequence[Lane]) -> "signal._HANDLER":
    """Ends the lanes as Ctrl-C does: what tests have started is taken down."""

    def tell(number: int, frame: FrameType | None) -> None:
        for lane in lanes:
            if lane.process.poll() is None:
                os.kill(lane.process.pid, signal.SIGINT)

    return tell


def _report(lanes: Sequence[Lane]) -> None:
    """The tests that took longest and those that failed, of all lanes together."""
    seconds = times.read(lane.times for lane in lanes)
    print(f"\nThe {SLOWEST} slowest tests, their setup and teardown included:")
    for test, took in times.slowest(seconds, SLOWEST):
        print(f"{took:8.1f} s  {test}")
    for lane in lanes:
        spent = sum(times.read([lane.times]).values())
        print(f"Lane {lane.number}: {len(lane.files)} files, {spent:.0f} s in tests")
    for failure in [failure for lane in lanes for failure in lane.relay.failures]:
        print(failure)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
