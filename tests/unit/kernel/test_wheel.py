"""One wheel holds operator, engine and kernel, for every version of Python that we support."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import logkeep_engine
from tests.cluster import system, wheel

CODE = """
import sys
import logkeep_engine.cli, logkeep_kernel, logkeep_operator, pyspark_logkeep
from logkeep_engine.cli.explain import reasons
for module in (logkeep_engine, logkeep_kernel, logkeep_operator, pyspark_logkeep):
    print(module.__file__)
assert "ArchiveOwned" in reasons(), "the pages about reasons are there, too"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return wheel.build(tmp_path_factory.mktemp("wheel"))


def test_one_wheel_is_for_all_versions_of_python(made: Path) -> None:
    assert made.name == f"logkeep-{logkeep_engine.__version__}-cp311-abi3-linux_{platform.machine()}.whl"


def test_the_wheel_holds_all_of_it(made: Path, tmp_path: Path) -> None:
    system.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", tmp_path, made])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert {Path(line).relative_to(tmp_path).parts[0].partition(".")[0] for line in done.stdout.split()} == {
        "logkeep_engine",
        "logkeep_kernel",
        "logkeep_operator",
        "pyspark_logkeep",
    }


def test_without_a_compiler_it_is_said_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(system.CommandFailed) as failed:
        wheel.build(tmp_path, within=(), environment={"PATH": str(tmp_path)})
    assert "can't find Rust compiler" in str(failed.value)
    assert "This package requires Rust >=1.85" in str(failed.value)
