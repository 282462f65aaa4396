"""Planning and the catalog at scale: 100,000 partitions, 1,000,000 segments.

    python -m bench.scale                 # every step, a JSON object a line
    python -m bench.scale --only plan

Each step runs in a process of its own, so that its peak memory is its own, the interpreter included. The cluster is
`simulated_cluster`: brokers that speak the protocol, in another process. The engine's own code runs, from
the first question to the last commit. Only tasks are made up: they hand in receipts of segments that nobody wrote.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from bench.simulated_cluster import Shape, SimulatedCluster
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import KafkaFiles, SegmentEntry, SegmentTimes
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import Timing, Writer, begin_run
from logkeep_engine.archive.maintenance.catalog_check import check_catalog
from logkeep_engine.backup.model.plan import Piece
from logkeep_engine.backup.pieces.task import BackupTask, PieceDone
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.digest import Digest
from logkeep_engine.limits import NO_LIMITS, RunLimits
from logkeep_engine.report import Reporter
from logkeep_engine.storage import Storage, open_uri
from logkeep_engine.tasks import PartitionUpdate

ROOT = Path(__file__).parents[1]
PARTITIONS = 100_000
TOPICS = 2_000
RUNS = 10
RECEIPTS_A_COMMIT = 1_000  # a run with many small partitions commits about once a second
SMALL_COMMITS = 10_000
QUICK = Timing(heartbeat=3600, watch=0.1, poll=0.1)
STEP_SECONDS = 900


def measure(only: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of the table: step, seconds, cpu_seconds, peak_mib (of the process, interpreter included), counts."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="logkeep-scale-") as folder:
        for name in STEPS:
            if only and name not in only:
                continue
            command = [sys.executable, "-m", "bench.scale", "--step", name, "--folder", folder]
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=STEP_SECONDS, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"step {name} failed:\n{done.stderr}")
            rows += [json.loads(line) for line in done.stdout.splitlines()]
    return rows


@contextmanager
def step(name: str, **counts: int) -> Iterator[dict[str, int]]:
    """Measures what is done inside; more counts may be added to what it yields."""
    started, cpu = time.perf_counter(), time.process_time()
    yield counts
    tell(name, time.perf_counter() - started, time.process_time() - cpu, counts)


def tell(name: str, seconds: float, cpu_seconds: float, counts: dict[str, int]) -> None:
    """Print a row."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    row = {
        "step": name,
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "peak_mib": peak,
        **counts,
    }
    print(json.dumps(row), flush=True)


class _TimedReporter(Reporter):
    """Tells how long each phase of a run took."""

    def __init__(self, run_id: str, prefix: str, counts: dict[str, int]) -> None:
        super().__init__(run_id, _Sizes(counts))
        self._prefix, self._counts = prefix, counts
        self._phase, self._since, self._cpu = "Start", time.perf_counter(), time.process_time()

    def phase(self, phase: str, *, attempt: int | None = None) -> None:
        super().phase(phase, attempt=attempt)
        if phase != self._phase:
            self.tell()
            self._phase, self._since, self._cpu = phase, time.perf_counter(), time.process_time()

    def tell(self) -> None:
        if self._phase != "Start":
            name = f"{self._prefix}: {self._phase.lower()}"
            tell(name, time.perf_counter() - self._since, time.process_time() - self._cpu, self._counts)


class _Sizes:
    """A sink that notes how large the largest progress document was."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def progress(self, progress: Any) -> None:
        self._counts["progress_bytes"] = max(self._counts.get("progress_bytes", 0), len(progress.to_json().encode()))

    def result(self, result: Any) -> None:
        self.progress(result)

    def emit(self, name: str, changes: Any) -> None:
        raise NotImplementedError


class _MadeUpTasks:
    """A runner whose tasks hand in one segment a piece at once."""

    def run(
        self,
        work: Sequence[BackupTask],
        function: Any,
        on_result: Callable[[int, Any], None],
        on_update: Callable[[PartitionUpdate], None],
        limits: RunLimits = NO_LIMITS,
    ) -> None:
        epoch = function.args[0].epoch
        for index, task in enumerate(work):
            on_result(index, tuple(PieceDone(piece.number, receipt_of(piece, epoch)) for piece in task.pieces))


def receipt_of(piece: Piece, epoch: int) -> Receipt:
    """The receipt that the task of a piece would hand in."""
    entry = segment(piece.topic_id, piece.partition, piece.start, piece.end, epoch)
    return Receipt((Coverage(piece.topic_id, piece.partition, piece.start, piece.end),), (entry,))


def segment(topic_id: str, partition: int, start: int, end: int, epoch: int) -> SegmentEntry:
    """A segment as large as its offsets, with a hash of its own."""
    count = end - start
    return SegmentEntry(
        topic_id=topic_id,
        partition=partition,
        epoch=epoch,
        attempt=0,
        base_offset=start,
        next_offset=end,
        records=count,
        batches=max(1, count // 50),
        bytes=count * 300,
        digest=Digest.of(f"{topic_id}{partition}{start}".encode()),
        codecs={"zstd": max(1, count // 50)},
        max_batch_bytes=16_384,
        times=SegmentTimes(1_790_000_000_000 + start, 1_790_000_000_000 + end),
        files=KafkaFiles(index_bytes=8 * (count * 300 // 4096), timeindex_bytes=12 * (count * 300 // 4096) + 12),
    )


def _backup(name: str, shape: Shape, folder: Path) -> None:
    """A whole run of the driver over a simulated cluster."""
    counts = {"topics": shape.topics, "partitions": shape.topics * shape.partitions}
    uri = f"file://{folder}/{name}"
    with SimulatedCluster(shape) as bootstrap:
        spec = {
            "cluster": {"bootstrapServers": list(bootstrap)},
            "topics": {"include": ["topic-.*"]},
            "storage": {"uri": uri},
        }
        reporter = _TimedReporter(name, name, counts)
        request = RunRequest(kind="KafkaBackup", name="scale", namespace="bench", run_id=name, spec=spec)
        runner = cast(Any, _MadeUpTasks)
        result = run_backup(request, parse_backup(spec), runner, reporter, os.environ)
        if result.outcome != "Succeeded":
            raise RuntimeError(result.message)
        counts |= {
            "segments": result.segments,
            "plan_bytes": open_uri(uri).read(f"runs/{name}/plan.json").__len__(),
            "commits": result.commit,
        }
        reporter.tell()


def plan(folder: Path) -> None:
    """100,000 partitions in 2,000 topics."""
    _backup("run-topics", Shape(TOPICS, PARTITIONS // TOPICS), folder)


def plan_one_topic(folder: Path) -> None:
    """100,000 partitions in one topic, read by one group."""
    _backup("run-one-topic", Shape(1, PARTITIONS, groups=1), folder)


def plan_many_topics(folder: Path) -> None:
    """100,000 topics of one partition."""
    _backup("run-many-topics", Shape(PARTITIONS, 1), folder)


def _topics() -> list[TopicEntry]:
    rng = random.Random(4)
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    settings = {"cleanup.policy": "delete", "retention.ms": "604800000"}
    return [
        TopicEntry(f"topic-{number:06d}", "".join(rng.choices(letters, k=22)), PARTITIONS // TOPICS, 3, settings)
        for number in range(TOPICS)
    ]


def _fill(writer: Writer, topics: Sequence[TopicEntry], run: int) -> int:
    receipts = (
        receipt_of(Piece(0, topic.name, topic.topic_id, partition, run * 5000, run * 5000 + 5000, 1, 0), writer.epoch)
        for topic in topics
        for partition in range(topic.partitions)
    )
    commits = 0
    while part := list(itertools.islice(receipts, RECEIPTS_A_COMMIT)):
        writer.commit(topics=topics, receipts=part)
        commits += 1
    return commits


def _catalog(folder: Path) -> Storage:
    return open_uri(f"file://{folder}/catalog")


def commits(folder: Path) -> None:
    """Ten runs that commit 100,000 segments each, a thousand receipts a commit, checkpoints as they fall due."""
    archive = Archive.create_or_open(_catalog(folder), "scale")
    topics = _topics()
    writer = None
    for run in range(RUNS):
        with step(f"run {run + 1} of {RUNS}: commit", partitions=PARTITIONS) as counts:
            # The state is the one that the run before has: a driver holds one, not ten.
            writer = begin_run(archive, f"run-{run}", wait=QUICK)
            counts["commits"] = _fill(writer, topics, run)
            writer.end(RunOutcome.SUCCEEDED)
            counts["segments"] = writer.state.segments.count
            counts["catalog_bytes"] = sum(info.size for info in archive.storage.list("catalog/"))


def open_now(folder: Path) -> None:
    """Open the archive as the next run would."""
    archive = Archive.open(_catalog(folder))
    with step("open") as counts:
        state = archive.load()
        counts |= {"segments": state.segments.count, "partitions": len(state.segments)}


def checkpoint(folder: Path) -> None:
    """Write a checkpoint of everything."""
    with begin_run(Archive.open(_catalog(folder)), "checkpoint", wait=QUICK) as writer:
        with step("write a checkpoint", segments=writer.state.segments.count):
            writer.checkpoint()
        writer.end(RunOutcome.SUCCEEDED)


def small_commits(folder: Path) -> None:
    """Ten thousand commits of one receipt each on top: what a run of hours leaves."""
    topics = _topics()
    with begin_run(Archive.open(_catalog(folder)), "small", wait=QUICK) as writer:
        with step("commits of one segment", commits=SMALL_COMMITS):
            for number, (topic, partition) in enumerate(itertools.product(topics, range(PARTITIONS // TOPICS))):
                if number == SMALL_COMMITS:
                    break
                start = RUNS * 5000
                piece = Piece(0, topic.name, topic.topic_id, partition, start, start + 5000, 1, 0)
                writer.commit(receipts=[receipt_of(piece, writer.epoch)])
        writer.end(RunOutcome.SUCCEEDED)


def open_commits(folder: Path) -> None:
    """Open it from commits alone: what a reader without any checkpoint does."""
    archive = Archive.open(_catalog(folder))
    listing = archive.listing()
    hidden = [info.path for _, _, info in listing.checkpoints]
    kept = {path: archive.storage.read(path) for path in hidden}
    archive.storage.delete(hidden)
    try:
        with step("open without checkpoints", commits=len(listing.commits)) as counts:
            counts["segments"] = archive.load().segments.count
    finally:
        for path, data in kept.items():
            archive.storage.put(path, data)


def verify_catalog(folder: Path) -> None:
    """Fold all commits and compare every checkpoint, as `logkeep verify` does first."""
    archive = Archive.open(_catalog(folder))
    with step("verify the catalog", checkpoints=len(archive.listing().checkpoints)) as counts:
        found = check_catalog(archive)
        assert found.state is not None
        counts |= {"objects": found.objects, "segments": found.state.segments.count}


def one_partition(folder: Path) -> None:
    """One partition with 100,000 segments, committed a hundred at a time, out of order."""
    archive = Archive.create_or_open(open_uri(f"file://{folder}/one"), "scale")
    topic = replace(_topics()[0], partitions=1)
    with begin_run(archive, "run-1", wait=QUICK) as writer:
        numbers = list(range(PARTITIONS))
        random.Random(1).shuffle(numbers)
        with step("one partition: commit", segments=PARTITIONS) as counts:
            writer.commit(topics=[topic])
            for at in range(0, PARTITIONS, 100):
                writer.commit(receipts=_receipts(topic, numbers[at : at + 100], writer.epoch))
            counts["commits"] = writer.state.commit
        writer.end(RunOutcome.SUCCEEDED)
    with step("one partition: open") as counts:
        counts["segments"] = archive.load().segments.count


def _receipts(topic: TopicEntry, numbers: Iterable[int], epoch: int) -> list[Receipt]:
    return [
        receipt_of(Piece(0, topic.name, topic.topic_id, 0, number * 5000, number * 5000 + 5000, 1, 0), epoch)
        for number in numbers
    ]


STEPS: dict[str, Callable[[Path], None]] = {
    "plan": plan,
    "plan-one-topic": plan_one_topic,
    "plan-many-topics": plan_many_topics,
    "commits": commits,
    "open": open_now,
    "checkpoint": checkpoint,
    "small-commits": small_commits,
    "open-small-commits": open_now,
    "open-commits": open_commits,
    "verify": verify_catalog,
    "one-partition": one_partition,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the rows; with `--step` be the process of one of them."""
    parser = argparse.ArgumentParser(prog="bench.scale", description="Planning and the catalog at scale.")
    parser.add_argument("--only", nargs="*", choices=list(STEPS), default=())
    parser.add_argument("--step", choices=list(STEPS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.step:
        STEPS[arguments.step](arguments.folder)
        return
    for row in measure(arguments.only):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
