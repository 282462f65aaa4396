"""The imports of a run's processes: each of them pays for its own, and a small run for hardly anything else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import logkeep_engine

# fmt: off
NOT_NEEDED = {
    "aiobotocore", "aiohttp", "botocore", "fastavro", "fsspec", "kubernetes", "numpy", "pandas", "pyarrow", "pyspark",
    "requests", "rich", "s3fs", "typer", "urllib3", "yaml",
}
# fmt: on
"""Packages that take long to import. A process needs one of them for some runs, and loads it then, or never."""

_STARTS = {
    "a backup's driver": "from logkeep_engine.spark import driver; from logkeep_engine.backup.run import backup_run",
    "a restore's driver": "from logkeep_engine.spark import driver; from logkeep_engine.restore.run import entry",
}


def modules(script: str) -> set[str]:
    """The modules that a new interpreter has imported after the script."""
    text = f"{script}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def packages(script: str) -> set[str]:
    """The packages that a new interpreter has imported after the script."""
    return {name.partition(".")[0] for name in modules(script)}


@pytest.mark.parametrize("process", _STARTS)
def test_a_process_imports_nothing_large_that_it_may_not_need(process: str) -> None:
    found = packages(_STARTS[process])
    assert "logkeep_engine" in found
    assert sorted(found & NOT_NEEDED) == []


def test_tasks_of_spark_import_what_they_need_ahead_and_not_more() -> None:
    found = packages("from logkeep_engine.spark import daemon; daemon.preload({})")
    assert {"logkeep_engine", "pyspark"} <= found
    assert sorted(found & NOT_NEEDED - {"pyspark", "numpy"}) == []  # pyspark imports numpy where it is installed


@pytest.mark.parametrize("program", ["cli", "cli.kubectl"])
def test_a_command_imports_the_rooms_that_it_works_in_when_it_runs(program: str) -> None:
    rooms = {file.parent.name for file in Path(logkeep_engine.__path__[0]).glob("*/__init__.py")} - {"cli", "contract"}
    imported = modules(f"import logkeep_engine.{program}")
    found = {room for room in rooms if f"logkeep_engine.{room}" in imported}
    assert {"storage", "archive", "kafka"} < rooms
    assert found == set()
