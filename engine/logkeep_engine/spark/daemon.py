"""The process next to an executor that forks its Python workers: `spark.python.daemon.module`.

pyspark's own daemon imports pyspark before it forks; this one imports the engine as well, so that a worker's first task
does not. Nothing here starts a thread or opens a connection: those do not outlive a fork.
"""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Mapping, Sequence

from logkeep_engine.collector import paused
from logkeep_engine.contract.visible import log_warnings_alone

ENV_PRELOAD = "LOGKEEP_PRELOAD"
"""The driver sets it to `s3` if the tasks will talk to S3."""

_ALWAYS = (
    "logkeep_engine.spark.runner",
    "logkeep_engine.backup.pieces.task",
    "logkeep_engine.restore.sending.task",
)
_S3 = ("logkeep_engine.storage.s3", "botocore.session", "botocore.httpsession", "botocore.auth")


def preload(environ: Mapping[str, str] = os.environ) -> None:
    """Import what tasks will need. A module that cannot be imported becomes the task's error, with its name."""
    _import(_ALWAYS)
    if environ.get(ENV_PRELOAD) == "s3":
        import_s3()


def import_s3() -> None:
    """Import what talking to S3 needs."""
    _import(_S3)


def _import(names: Sequence[str]) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def main() -> None:
    """Serve Spark until it closes the standard input."""
    with paused():
        preload()
        from pyspark.daemon import manager

    log_warnings_alone()
    gc.freeze()  # workers share these pages as long as no garbage collection writes to them
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
