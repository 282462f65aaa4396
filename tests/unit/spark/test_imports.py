"""The imports of a run's processes: each of them pays for its own, and a small run for hardly anything else."""

import json
import os
import subprocess
import sys

import pytest

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


def packages(script: str) -> set[str]:
    """The packages that a new interpreter has imported after the script."""
    text = f"{script}\nimport json, sys; print(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", text], env=environ, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("process", _STARTS)
def test_a_process_imports_nothing_large_that_it_may_not_need(process: str) -> None:
    found = packages(_STARTS[process])
    assert "logkeep_engine" in found
    assert sorted(found & NOT_NEEDED) == []


def test_tasks_of_spark_import_what_they_need_ahead_and_not_more() -> None:
    found = packages("from logkeep_engine.spark import daemon; daemon.preload({})")
    assert {"logkeep_engine", "pyspark"} <= found
    assert sorted(found & NOT_NEEDED - {"pyspark", "numpy"}) == []  # pyspark imports numpy where it is installed
