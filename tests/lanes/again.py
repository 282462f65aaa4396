"""The second attempt of the tests with real parts that failed in CI: alone, when all lanes have ended.

Five lanes on two processors hold up brokers, nodes and clients for seconds. A test that fails there and not alone shows
a defect of the test, or one of the product that is rare; either is to be mended, and the run names it. Tests that start
nothing get no second attempt, and neither does a run in which more than MOST tests failed: that is no accident.
"""

import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.lanes.relay import Relay

MOST = 2
FIRST_ONLY = ("tests/unit/",)


def candidates(failures: Sequence[str], tests: Collection[str]) -> list[str]:
    """The tests of pytest's lines about failures that may run again, by node id; none if not all of them may.

    `tests` are the node ids of all tests that ran: a line has a message after the id, and both may hold anything.
    """
    found = [_test(line, tests) for line in failures]
    chosen = list(dict.fromkeys(test for test in found if test is not None))
    if None in found or len(chosen) > MOST or any(test.startswith(FIRST_ONLY) for test in chosen):
        return []
    return chosen


def _test(line: str, tests: Collection[str]) -> str | None:
    rest = line.partition(" ")[2]
    return max((test for test in tests if rest == test or rest.startswith(f"{test} - ")), key=len, default=None)


def passes(tests: Sequence[str], root: Path, log: Path) -> bool:
    """Whether the tests pass, one after the other in one pytest, shown as a lane is."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", *tests], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    relay = Relay("again", process.stdout.fileno(), log)
    relay.start()
    code = process.wait()
    relay.join(timeout=10)
    return code == 0
