"""Requests to S3, counted by the server: how many a backup and a restore send, and how many that makes in a TiB.

The S3 server writes a line for every request into its access log. Requests for objects of segments grow with the bytes;
those for the catalog and for a run's own files are a fixed number for each run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from bench import contenders, load
from bench.bed import Bed
from bench.contenders import Sample, Stage
from bench.topics import Topic

TIB = 1 << 40
WRITES = ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
"""The requests that stores count in the price class of PUT, among those that grow with bytes."""

_LINE = re.compile(r" s3_(\w+) (\S+) ")  # operation, key (a dash for a listing)


def measure(here: Bed, topic: Topic, factor: int) -> dict[str, Any]:
    """Back up a topic to S3 and restore it: requests by kind, bytes, task seconds."""
    stage = Stage(here, load.load(here.bootstrap, topic), "s3", None, factor)
    found: dict[str, Any] = {"topic": topic.name, "wire": stage.loaded.wire_bytes}
    runs: dict[str, Callable[[], Sample]] = {
        "backup": lambda: contenders.engine_backup(stage, keep=True),
        "restore": lambda: contenders.engine_restore(stage),
    }
    for verb, run in runs.items():
        at = here.access_log.stat().st_size if here.access_log.exists() else 0
        sample = run()
        with here.access_log.open() as log:
            log.seek(at)
            counted = count(log)
        found[verb] = {
            "segments": dict(counted["segments"]),
            "run": dict(counted["run"]),
            "seconds": sample.executor,
            "cpu": sample.executor_cpu,
            "archive": sample.archive or found.get("backup", {}).get("archive"),
        }
    contenders.drop_archives(stage)
    return found


def count(lines: Iterable[str]) -> dict[str, Counter[str]]:
    """Requests of an access log by operation: for objects of segments, and for what a run has once."""
    counted: dict[str, Counter[str]] = {"segments": Counter(), "run": Counter()}
    for line in lines:
        found = _LINE.search(line)
        if found:
            counted["segments" if "/topics/" in found[2] or "/packs/" in found[2] else "run"][found[1]] += 1
    return counted


def writes(counted: Mapping[str, int]) -> int:
    """How many of these requests write."""
    return sum(counted.get(name, 0) for name in WRITES)


def per_tib(number: float, wire: int) -> float:
    """So many for these bytes are how many for a TiB."""
    return number * TIB / wire
