"""`make demo` runs with the parts in its list, and installs the chart with Helm 4; other tests use Helm 3."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)


@pytest.mark.usefixtures("_root")
def test_the_demo_brings_every_record_back_and_asks_for_nothing_outside_its_list() -> None:
    """A part outside the list would be built in the middle of it: `tests.cluster.cache.only` ends it then."""
    command = [sys.executable, "-m", "tests.demo"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    equal = [line for line in done.stdout.splitlines() if line.endswith(" yes           │")]
    assert [line.split()[1] for line in equal] == ["flights", "planes", "weather"]
