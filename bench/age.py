"""The catalog of an old archive: a year of hourly backups, in objects of their own and in bundles.

    python -m bench.age                          # 26,298 commits, 1,000,000 segments: in a folder, and in S3
    python -m bench.age --commits 11001 --segments 100000
    python -m bench.age --before ../earlier      # and the unbundled one by the engine of an earlier checkout

Commits are made without runs, which would open the archive for each. Each step runs in a process of its own; its peak
memory is its own, the interpreter included. Where it says S3, a real S3 server answers on the same machine: its
answers are fast, so what counts there is the number of requests and what each takes of a processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logkeep_engine.contract.model import replace

ROOT = Path(__file__).parents[1]
YEAR = 26_298  # three commits of each of 8,766 runs
SEGMENTS = 1_000_000
PARTITIONS = 2_000
BUCKET = "bench"


def make(folder: Path, commits: int, segments: int) -> None:
    """Write the archive: a begin, a data commit and an end for each run, and checkpoints as they fall due."""
    from logkeep_engine.archive import names
    from logkeep_engine.archive.catalog import checkpoint
    from logkeep_engine.archive.catalog.checkpoint import CheckpointPolicy
    from logkeep_engine.archive.catalog.commits import dump_commit, sha256_of
    from logkeep_engine.archive.catalog.documents import ArchiveInfo, dump_info
    from logkeep_engine.archive.catalog.state import ArchiveState

    (folder / names.CATALOG).mkdir(parents=True)
    info = ArchiveInfo("age", "bench", "2026-01-01T00:00:00Z", "bench")
    (folder / names.ARCHIVE).write_bytes(dump_info(info))
    state, policy = ArchiveState(), CheckpointPolicy()
    since = size = last = 0
    for commit in _commits(commits, segments):
        data = dump_commit(replace(commit, previous=state.sha256))
        (folder / names.commit_path(commit.number)).write_bytes(data)
        state.apply(replace(commit, previous=state.sha256, sha256=sha256_of(data)))
        since, size = since + 1, size + len(data)
        if policy.due(since, size, last):
            whole = checkpoint.dump(state, "age")
            (folder / names.checkpoint_path(state.commit, state.epoch)).write_bytes(whole)
            since, size, last = 0, 0, len(whole)


def _commits(count: int, segments: int) -> Iterator[Any]:
    from bench.scale import segment
    from logkeep_engine.archive.catalog.facts import Commit, CommitKind, Coverage, RunOutcome, TopicEntry

    topic = TopicEntry("orders", "aaaaaaaaaaaaaaaaaaaaa_", PARTITIONS, 3, {})
    runs = count // 3
    numbers = iter(range(segments))
    for run in range(runs):
        kinds = (CommitKind.BEGIN, CommitKind.DATA, CommitKind.END)
        for at, kind in enumerate(kinds):
            facts: dict[str, Any] = {"run_kind": "Backup"} if kind is CommitKind.BEGIN else {}
            if kind is CommitKind.END:
                facts = {"outcome": RunOutcome.SUCCEEDED}
            if kind is CommitKind.DATA:
                some = list(itertools.islice(numbers, segments // runs + 1))
                ranges = [(number % PARTITIONS, number // PARTITIONS * 5000) for number in some]
                entries = tuple(segment(topic.topic_id, part, start, start + 5000, run + 1) for part, start in ranges)
                coverage = tuple(Coverage(topic.topic_id, part, start, start + 5000) for part, start in ranges)
                facts = {"segments": entries, "coverage": coverage, "topics": () if run else (topic,)}
            time_of = 1_790_000_000_000 + run * 3_600_000
            yield Commit(run * 3 + at, "age", secrets.token_hex(8), kind, f"run-{run}", run + 1, time_of, **facts)


def step(name: str, uri: str) -> None:
    """Do one step and print its row. Every engine that is measured knows what is imported here."""
    from logkeep_engine.archive.catalog.archive import Archive
    from logkeep_engine.storage import open_uri

    storage = open_uri(uri, os.environ.get("BENCH_ENDPOINT"), "us-east-1")
    started, cpu = time.perf_counter(), time.process_time()
    archive = Archive.open(storage)
    counts: dict[str, int] = {}
    if name == "open":
        counts["segments"] = archive.load().segments.count
    elif name == "verify the catalog":
        counts["objects"] = _verify(archive)
    else:
        counts |= _bundle(archive)
    row = {
        "step": name,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(time.process_time() - cpu, 2),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **counts,
    }
    print(json.dumps(row), flush=True)


def _verify(archive: Any) -> int:
    from logkeep_engine.archive.maintenance import catalog_check

    try:
        found = catalog_check.check_catalog(archive)
        damage, objects = found.damage, found.objects
    except TypeError:  # an engine from before this file
        damage = []
        objects = catalog_check.check_catalog(archive, damage, set())[1]  # type: ignore[arg-type, index]
    if damage:
        raise RuntimeError(str(damage[0]))
    return int(objects)


def _bundle(archive: Any) -> dict[str, int]:
    """Move all commits into bundles, as many runs would."""
    from logkeep_engine.archive.catalog.facts import RunOutcome
    from logkeep_engine.archive.catalog.writer import begin_run
    from logkeep_engine.archive.maintenance.bundling import BundlingDone, bundle_old_commits

    with begin_run(archive, f"bundle-{secrets.token_hex(4)}") as writer:
        writer.checkpoint()
        writer.end(RunOutcome.SUCCEEDED)
    with begin_run(archive, f"bundle-{secrets.token_hex(4)}") as writer:
        writer.end(RunOutcome.SUCCEEDED)
        runs = 0
        while bundle_old_commits(writer, lambda: 10**15) != BundlingDone():
            runs += 1
    return {"runs": runs, "objects": archive.listing().objects}


def _rows(uri: str, steps: Sequence[str], engine: Path, environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    paths = (engine / "engine", ROOT / "operator", ROOT, ROOT / "kernel/built")
    environ = {**os.environ, **environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    for name in steps:
        command = [sys.executable, "-P", str(Path(__file__)), "--step", name, "--uri", uri]
        done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed:\n{done.stderr}")
        yield json.loads(done.stdout.splitlines()[-1])


def measure(commits: int, segments: int, before: Path | None) -> Iterator[dict[str, Any]]:
    """The rows: where, which engine, in bundles or not, and what the steps took."""
    from logkeep_engine.archive import names
    from logkeep_engine.storage import open_uri
    from tests.cluster.s3 import S3Server

    with tempfile.TemporaryDirectory(prefix="logkeep-age-") as made, S3Server() as server:
        local = Path(made) / "archive"
        make(local, commits, segments)
        # The server keeps objects as files, and what it did not get itself has no ETag. One is replaced later.
        shutil.copytree(local, server.data_dir / BUCKET / "archive")
        keys = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
        storage = open_uri(f"s3://{BUCKET}/archive", server.endpoint, server.region, keys)
        storage.put(names.ARCHIVE, (local / names.ARCHIVE).read_bytes())
        for where, uri in (("folder", local.as_uri()), ("S3", f"s3://{BUCKET}/archive")):
            environ = {**keys, "BENCH_ENDPOINT": server.endpoint}
            looks = ("open", "verify the catalog")
            turns = [("before", before, looks)] if before is not None else []
            for engine, path, steps in (*turns, ("now", ROOT, (*looks, "bundle")), ("now, bundled", ROOT, looks)):
                for row in _rows(uri, steps, path, environ):
                    yield {"where": where, "engine": engine, "commits": commits, **row}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows; with `--step` be the process of one of them."""
    parser = argparse.ArgumentParser(prog="bench.age", description="The catalog of an old archive.")
    parser.add_argument("--commits", type=int, default=YEAR)
    parser.add_argument("--segments", type=int, default=SEGMENTS)
    parser.add_argument("--before", type=Path, help="A checkout of an earlier version.")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.step:
        step(arguments.step, arguments.uri)
        return
    for row in measure(arguments.commits, arguments.segments, arguments.before and arguments.before.resolve()):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
