"""The measured work in a process of its own, under the clock: `python -m bench.worker JOB ARGUMENTS`, arguments as
JSON.

The last line of its output is a JSON object: `wall` and `cpu` seconds of the work alone (Python's start and imports
left out), `peak` bytes, and what the job adds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.process import peak_memory

if TYPE_CHECKING:
    from bench import topics
    from bench.engine import Outcome


def floor_backup(bootstrap: str, topic: str, ends: list[int], folder: str, **options: int) -> dict[str, Any]:
    """The floor of a backup."""
    from bench import floor

    return _clocked(lambda: {"bytes": floor.backup(bootstrap, topic, ends, Path(folder), **options)})


def floor_restore(bootstrap: str, topic: str, ends: list[int], target: str) -> dict[str, Any]:
    """The floor of a restore; reading the requests into memory is not counted."""
    from bench import floor

    requests = floor.prebuild(bootstrap, topic, target, ends)
    return _clocked(lambda: {"work": floor.restore(bootstrap, requests)})


def engine(
    kind: str, spec: dict[str, Any], processes: int = 1, one_piece: bool = False, verified: bool = False
) -> dict[str, Any]:
    """A whole run of the engine, tasks in this process or in `processes`. `verified`: its work is the verification."""
    from bench.engine import run_in_process

    movers = VERIFIERS if verified else MOVERS
    return _clocked(lambda: _figures(run_in_process(kind, spec, processes, one_piece=one_piece), movers))


def _figures(outcome: Outcome, movers: tuple[str, ...] = ()) -> dict[str, Any]:
    movers = movers or MOVERS
    moved = [t for t in outcome.times if t.function in movers]
    return {
        "records": outcome.records,
        "bytes": outcome.bytes,
        "run_wall": outcome.wall,
        "work": sum(span for name, span in outcome.spans.items() if name in movers),
        "work_cpu": sum(t.cpu for t in moved),
        "tasks": len(moved),
        "executor": sum(t.wall for t in outcome.times),
        "executor_cpu": sum(t.cpu for t in outcome.times),
        "spans": dict(outcome.spans),
        "times": [asdict(t) for t in outcome.times],
    }


MOVERS = (
    "archive_task",
    "archive_pieces",
    "restore_partition",
    "restore_partitions",
    "restore_divided",
    "convert_chunks",
)
"""The tasks that move records; others check the archive first."""

VERIFIERS = ("make_expected", "verify_partitions")
"""The tasks that verify a restore: digests of the archive's records, and of the target's."""


def decode(bootstrap: str, topic: str, ends: list[int]) -> dict[str, Any]:
    """The engine takes every record of the topic apart."""
    import logkeep_engine.backup.pieces.task
    import logkeep_engine.kafka.connection
    import logkeep_engine.log.codec  # noqa: F401 (what `engine.decode` imports)
    from bench import engine

    return _clocked(lambda: {"records": engine.decode(bootstrap, topic, ends)})


def convert(source: str, target: str, format_name: str) -> dict[str, Any]:
    """A whole conversion, tasks in this process."""
    from bench.engine import convert_in_process

    return _clocked(lambda: _figures(convert_in_process(source, target, format_name)))


def consume(bootstrap: str, topic: str, factor: int, visible: int) -> dict[str, Any]:
    """librdkafka reads the topic."""
    from bench import clients

    return _clocked(lambda: {"records": clients.consume(bootstrap, _topic(topic, factor), visible)})


def produce(bootstrap: str, topic: str, factor: int, target: str) -> dict[str, Any]:
    """librdkafka writes as many records as the topic has."""
    from bench import clients

    return _clocked(lambda: {"records": clients.produce(bootstrap, _topic(topic, factor), target)})


def nothing() -> dict[str, Any]:
    """A bare interpreter with this module's imports."""
    return {}


def _topic(name: str, factor: int) -> topics.Topic:
    from bench import topics  # it imports what only the bench needs

    return topics.named([name])[0].shrunk(factor)


def _clocked(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    started, used = time.perf_counter(), time.process_time()
    found = work()
    return {"work": time.perf_counter() - started, "work_cpu": time.process_time() - used, **found}


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    job.__name__: job for job in (floor_backup, floor_restore, engine, decode, convert, consume, produce, nothing)
}

if __name__ == "__main__":
    found = JOBS[sys.argv[1]](**json.loads(sys.argv[2]))
    print("\n" + json.dumps({**found, "peak": peak_memory()}), flush=True)
    os._exit(0)  # as the driver does: taking down all modules one by one takes a tenth of a second
