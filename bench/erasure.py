"""Erasures: `python -m bench.erasure` prints a table. Nothing is started but a process for each row.

One partition of an archive in a folder, of 2 GB in two segments, whose records have a tenth of as many keys, in no
order; the task that takes the records of some keys out of it, as a run gives it to an executor. Speeds are of what was
read: bytes of batches, and records. Peak memory is of the process, a process that has only imported the same taken off;
the keys that are looked for are in it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.compaction import SHAPES, TOPIC, TOPIC_ID, Shape, TaskAlone, peak, write
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.maintenance.rewriting import RewritePlace
from logkeep_engine.erasure.work import ErasureSetting, ErasureWork, erase_task
from logkeep_engine.log.keys import WantedKeys
from logkeep_engine.storage import open_uri

WANTED = ("plain-1k, 10 a key", "zstd-1k, 10 a key", "lz4-1k, 10 a key", "lz4-100, 10 a key")
ASKED = ((0, 0), (1, 0), (1000, 0), (20_000, 0), (20_000, 1_000_000))
"""Numbers of keys: of those that records have, and of others. A list of customers may be long, and a partition has few
of them."""


def measure(shape: Shape) -> Iterator[dict[str, Any]]:
    """Runs the task for each number of keys, in a process of its own, and yields its rows."""
    folder = Path(tempfile.mkdtemp(prefix="logkeep-bench-"))
    try:
        entries = write(shape, folder.as_uri())
        for keys, others in ASKED:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "bench.erasure",
                    "--task",
                    folder.as_uri(),
                    f"--keys={keys}",
                    f"--others={others}",
                ],
                input=pickle.dumps(entries),
                stdout=subprocess.PIPE,
                check=True,
            )
            row = json.loads(done.stdout)
            yield {**row, "bytes": sum(entry.bytes for entry in entries), "records": shape.records}
    finally:
        shutil.rmtree(folder)


def task(uri: str, keys: int, others: int) -> dict[str, float]:
    """The task, in this process. The segments come from the standard input."""
    entries = pickle.load(sys.stdin.buffer)
    work = ErasureWork(0, TOPIC, (TOPIC_ID, 0), 0, b"".join(map(pack, entries)))
    idle = peak()
    wanted = WantedKeys.of(key.to_bytes(8, "big") for key in (*range(keys), *range(1 << 40, (1 << 40) + others)))
    setting = ErasureSetting(RewritePlace(open_uri(uri), 2 + keys + others), wanted)
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    done = erase_task(setting, work, TaskAlone())
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    assert not done.faults, done.faults
    return {
        "keys": keys + others,
        "seconds": seconds,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak": peak() - idle,
        "erased": sum(item.records for item in done.rewritten),
        "written": sum(item.left.bytes for item in done.rewritten if item.left is not None),
    }


def main() -> None:
    """Print a row for each log and number of keys."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task")
    parser.add_argument("--keys", type=int, default=0)
    parser.add_argument("--others", type=int, default=0)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    if chosen.task:
        print(json.dumps(task(chosen.task, chosen.keys, chosen.others)))
        return
    columns = ("log", "keys", "erased records", "s", "CPU s", "peak MB", "MB/s", "records/s", "written MB")
    print(f"| {' | '.join(columns)} |\n| --- |{' ---: |' * (len(columns) - 1)}")
    for shape in SHAPES:
        if shape.name not in WANTED or chosen.only not in shape.name:
            continue
        for row in measure(shape):
            seconds = row["seconds"]
            print(
                f"| {shape.name} | {row['keys']:,} | {row['erased']:,} | {seconds:.2f} | {row['cpu']:.2f} "
                f"| {row['peak'] / 1e6:.0f} | {row['bytes'] / seconds / 1e6:.0f} | {row['records'] / seconds:,.0f} "
                f"| {row['written'] / 1e6:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
