"""Two days of five-minute runs over 300 partitions of a simulated cluster, counted at the storage.

    python -m bench.merging_runs                       # 576 runs with merges, then as many without; JSON
    python -m bench.merging_runs --runs 100 --every 20

The runs are the product's own, and the mix of partitions is that of `bench.merging` with a tenth of its bytes. The
grace is none, so what is merged is deleted by the next run. Counted is what a store would count: the objects that are
there, and requests by kind. A deletion is one request for a thousand objects.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest.mock import patch

from bench.merging import Kind, kinds_of
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.storage import LocalStorage, ObjectWriter
from tests.kafka.restores import back_up
from tests.simulation.backing_up import backup_spec
from tests.simulation.cluster import SimulatedCluster, World
from tests.simulation.partition_log import batch

PARTITIONS = 300
RUNS = 576
SMALLER = 10
AT_ONCE = 1000  # objects of a deletion
OVERHEAD = 80  # of a batch and its record


class Counted:
    """Patches the storage so that it counts requests, and the bytes of objects that are written."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self._patches = [patch.object(LocalStorage, name, made) for name, made in self._made().items()]

    def _made(self) -> dict[str, Callable[..., Any]]:
        create, put, writer = LocalStorage.create, LocalStorage.put, LocalStorage.writer
        read, read_range, read_into = LocalStorage.read, LocalStorage.read_range, LocalStorage.read_into
        listed, delete = LocalStorage.list, LocalStorage.delete

        def counted(function: Callable[..., Any], kind: str) -> Callable[..., Any]:
            def call(storage: LocalStorage, path: str = "", *rest: Any, **more: Any) -> Any:
                # A heartbeat comes with time, and this run has no more of it than a busy machine gives.
                if not path.endswith("heartbeat.json"):
                    self._note(kind, path)
                return function(storage, path, *rest, **more)

            return call

        def written(storage: LocalStorage, path: str, *, replaces: str | None = "*") -> ObjectWriter:
            self._note("PUT", path)
            return writer(storage, path, replaces=replaces)

        def deleted(storage: LocalStorage, paths: Iterable[str]) -> None:
            some = list(paths)
            self.requests["DELETE"] += -(-len(some) // AT_ONCE)
            delete(storage, some)

        return {
            "create": counted(create, "PUT"),
            "put": counted(put, "PUT"),
            "writer": written,
            "read": counted(read, "GET"),
            "read_range": counted(read_range, "GET"),
            "read_into": counted(read_into, "GET"),
            "list": counted(listed, "LIST"),
            "delete": deleted,
        }

    def _note(self, kind: str, path: str) -> None:
        self.requests[kind] += 1
        if path.startswith("packs/"):
            self.requests[f"{kind} of packs"] += 1

    def __enter__(self) -> Counted:
        for item in self._patches:
            item.start()
        return self

    def __exit__(self, *_: object) -> None:
        for item in self._patches:
            item.stop()


def _fill(source: SimulatedCluster, kinds: Sequence[Kind], rng: random.Random) -> None:
    """Send what comes between two runs."""
    for log, kind in zip(source.topics["orders"].partitions, kinds, strict=True):
        if kind.every == 1 or rng.random() * kind.every < 1:
            size = max(1, int(rng.expovariate(SMALLER / kind.size)) - OVERHEAD)
            log.append(batch([(b"", rng.randbytes(size))]))


def _objects(root: Path) -> tuple[Counter[str], Counter[str]]:
    counts, sizes = Counter[str](), Counter[str]()
    for path in root.rglob("*"):
        if path.is_file():
            part = path.relative_to(root).parts[0]
            counts[part] += 1
            sizes[part] += path.stat().st_size
    return counts, sizes


def play(runs: int, every: int, merge_count: int) -> list[dict[str, Any]]:
    """Return the rows: what is there after `every` so many runs, and the requests of these runs."""
    rng, rows = random.Random(7), []
    kinds = kinds_of(PARTITIONS, 5)
    with tempfile.TemporaryDirectory(prefix="logkeep-merging-") as folder, World() as world:
        root = Path(folder)
        with SimulatedCluster(world, 1, name="source") as source:
            source.do(lambda: source.create("orders", PARTITIONS))
            segment = {"mergeCount": merge_count, "packBelow": "800Ki"}
            spec = backup_spec(source, root, segment=segment, retention={"grace": "0s"})
            counted: list[Counter[str]] = []
            cpu = time.process_time()
            for run in range(1, runs + 1):
                source.do(lambda: _fill(source, kinds, rng))
                with Counted() as found:
                    back_up(spec, f"run-{run}")
                counted.append(found.requests)
                if run % every == 0 or run == runs:
                    rows.append({"merge_count": merge_count, "runs": run, **_row(root, counted)})
                    rows[-1]["cpu_seconds_a_run"] = round((time.process_time() - cpu) / len(counted), 3)
                    print(json.dumps(rows[-1]), flush=True)
                    counted, cpu = [], time.process_time()
        report = verify(Archive.open(LocalStorage(root.as_uri())))
        print(json.dumps({"records": report.records, "faults": len(report.faults), "orphans": len(report.orphans)}))
    return rows


def _row(root: Path, counted: Sequence[Counter[str]]) -> dict[str, Any]:
    counts, sizes = _objects(root)
    kinds = sorted({kind for item in counted for kind in item})
    archive = Archive.open(LocalStorage(root.as_uri()))
    started, cpu = time.perf_counter(), time.process_time()
    state = archive.load()
    row: dict[str, Any] = {
        "rows": state.segments.count,
        "removed_rows": sum(item.segments.count for item in state.unpurged),
        "live_bytes": sum(entry.bytes for some in state.segments.values() for entry in some),
        "open_seconds": round(time.perf_counter() - started, 3),
        "open_cpu_seconds": round(time.process_time() - cpu, 3),
        "objects": dict(counts),
        "bytes": dict(sizes),
    }
    for kind in kinds:
        some = [item[kind] for item in counted]
        row[kind] = {"mean": round(fmean(some), 1), "most": max(some)}
    return row


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(prog="bench.merging_runs", description="Runs with merges, and without.")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--every", type=int, default=96)
    parser.add_argument("--merge-count", type=int, nargs="*", default=[16, 0])
    options = parser.parse_args(argv)
    for merge_count in options.merge_count:
        play(options.runs, options.every, merge_count)


if __name__ == "__main__":
    main()
