"""`make demo` runs with the parts in its list, and installs the chart with Helm 4; other tests use Helm 3. The shell
that `make demo KEEP=1` offers has the commands of the docs.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from logkeep_engine import __version__
from tests.cluster import system
from tests.demo import story
from tests.e2e.home import Home

pytestmark = pytest.mark.timeout(900)


@pytest.mark.usefixtures("_root")
def test_the_demo_brings_every_record_back_and_asks_for_nothing_outside_its_list() -> None:
    """A part outside the list would be built in the middle of it: `tests.cluster.cache.only` ends it then."""
    command = [sys.executable, "-m", "tests.demo"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    equal = [line for line in done.stdout.splitlines() if line.endswith(" yes           │")]
    assert [line.split()[1] for line in equal] == ["flights", "planes", "weather"]


def test_in_the_shell_of_a_kept_demo_the_commands_of_the_docs_work(home: Home, tmp_path: Path) -> None:
    story.write_environment(tmp_path, home.logkeep.node, home.broker, home.s3)
    words = f"kubectl logkeep status -n {home.namespace}; kubectl logkeep --version; logkeep --version"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
    done = system.run([*command, "bash", "-euc", f"source {tmp_path}/env; {words}"])
    assert done.stdout.splitlines()[-2:] == [f"logkeep {__version__}"] * 2
    assert f"namespace {home.namespace}" in done.stdout + done.stderr
