"""Snapshots of compacted partitions: `python -m bench.compaction` prints a table. Nothing is started but a process for
each row.

One partition of an archive in a folder, whose batches have a tenth of as many keys as records, in no order, or each key
once; the task that compacts it, as a run gives it to an executor, or the tasks, if it has too many keys for one. Speeds
are of what was read: records, and bytes of batches. Peak memory is of the process, a process that has only imported the
same taken off. The floor is a copy: a task that reads the same log, checks each CRC, and writes the batches as they are
into parts of a snapshot, without a look at keys. The time of the last pass, which copies, is told apart.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.writing.log_writer import LogSegment
from logkeep_engine.backup.run.snapshots import do_or_tell
from logkeep_engine.compaction.partition import (
    NO_PROGRESS,
    CompactionSetting,
    CompactionWork,
    PartitionCompacted,
    Parts,
    SectionPass,
    place_of,
    time_of,
)
from logkeep_engine.compaction.spreading import Spreading, ranges_of
from logkeep_engine.contract.archive_format import DEFAULT_DIGEST, Compression
from logkeep_engine.limits import UNLIMITED, Throttle
from logkeep_engine.log.batch import headers_of, parse_header
from logkeep_engine.log.compaction import Compactor
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import made_batch
from logkeep_engine.log.transactions import Spans
from logkeep_engine.log.varints import long_varint
from logkeep_engine.storage import open_uri
from logkeep_engine.tasks import PartitionUpdate

COMPACT, COPY = "--task", "--copy"
TOPIC, TOPIC_ID = "state", "aaaaaaaaaaaaaaaaaaaaa_"
_TIME = 1_767_225_600_000
_SEGMENT = 1 << 30
_BATCH = 64  # records whose offsets take one byte; behind them, those that take two


@dataclass(frozen=True, slots=True)
class Shape:
    """A log: records of `value` bytes, so many of them random, in batches of so many records."""

    name: str
    records: int
    keys: int
    value: int
    random: int
    batch: int
    codec: Codec


SHAPES = (
    Shape("plain-1k, 10 a key", 2_000_000, 200_000, 1000, 400, 640, Codec.NONE),
    Shape("zstd-1k, 10 a key", 2_000_000, 200_000, 1000, 330, 640, Codec.ZSTD),
    Shape("lz4-1k, 10 a key", 2_000_000, 200_000, 1000, 330, 640, Codec.LZ4),
    Shape("lz4-100, 10 a key", 5_000_000, 500_000, 84, 40, 6400, Codec.LZ4),
    Shape("plain-1k, 1 a key", 2_000_000, 2_000_000, 1000, 400, 640, Codec.NONE),
    Shape("zstd-1k, 1 a key", 2_000_000, 2_000_000, 1000, 330, 640, Codec.ZSTD),
    Shape("lz4-100, 1 a key", 5_000_000, 5_000_000, 84, 40, 6400, Codec.LZ4),
)
LARGE = (
    Shape("lz4-100, 10^8 records of 10^7 keys", 100_000_000, 10_000_000, 84, 8, 6400, Codec.LZ4),
    Shape("lz4-100, 10^8 records of 10^8 keys", 100_000_000, 100_000_000, 84, 8, 6400, Codec.LZ4),
)


class TaskAlone:
    """The context of a task that nobody watches."""

    attempt = 0
    throttle: Throttle = UNLIMITED

    def report(self, updates: Sequence[PartitionUpdate]) -> None:
        pass


def write(shape: Shape, uri: str) -> list[SegmentEntry]:
    """The segments of a log."""
    chance = np.random.default_rng(1)
    storage = open_uri(uri)
    entries: list[SegmentEntry] = []
    segment: LogSegment | None = None
    keys = chance.permutation(shape.records) % shape.keys
    for at in range(0, shape.records, shape.batch):
        batch = _batch(shape, at, keys[at : at + shape.batch], chance)
        if segment is not None and segment.builder.size + len(batch) > _SEGMENT:
            entries.append(segment.finish())
            segment = None
        if segment is None:
            segment = LogSegment(storage, Compression.PASSTHROUGH, TOPIC, TOPIC_ID, 0, at, 1, 0)
        segment.builder.append(memoryview(batch), headers_of([(0, parse_header(batch))]))
    assert segment is not None
    return [*entries, segment.finish()]


def _batch(shape: Shape, offset: int, keys: np.ndarray, chance: np.random.Generator) -> bytes:
    body = b"".join(
        _rows(shape, start, keys[start:end], chance) for start, end in ((0, _BATCH), (_BATCH, len(keys))) if start < end
    )
    return made_batch(shape.codec, body, count=len(keys), times=(_TIME, _TIME), base_offset=offset)


def _rows(shape: Shape, first: int, keys: np.ndarray, chance: np.random.Generator) -> bytes:
    """Packed records whose offsets all take as many bytes."""
    deltas = np.arange(first, first + len(keys), dtype=np.uint32) << 1
    wide = 1 if first < _BATCH else 2
    tail = long_varint(shape.value)
    length = 2 + wide + 1 + 8 + len(tail) + shape.value + 1
    head = long_varint(length)
    row = np.zeros((len(keys), len(head) + length), np.uint8)
    at = len(head)
    row[:, :at] = np.frombuffer(head, np.uint8)
    at += 2  # attributes, time
    row[:, at] = deltas if wide == 1 else (deltas & 0x7F) | 0x80
    if wide == 2:
        row[:, at + 1] = deltas >> 7
    at += wide
    row[:, at] = 16  # 8 bytes of key
    row[:, at + 1 : at + 9] = keys.astype(">u8").view(np.uint8).reshape(-1, 8)
    at += 9
    row[:, at : at + len(tail)] = np.frombuffer(tail, np.uint8)
    at += len(tail)
    row[:, at : at + shape.random] = chance.integers(0, 256, (len(keys), shape.random), np.uint8)
    row[:, at + shape.random : at + shape.value] = ord("v")
    return row.tobytes()


def measure(shape: Shape, folder: Path) -> dict[str, Any]:
    """Seconds, CPU seconds, peak bytes and what was left, of one task in a process of its own, and the seconds of a
    copy in another one."""
    uri = folder.as_uri()
    entries = write(shape, uri)
    found, copy = (_alone(mode, uri, entries) for mode in (COMPACT, COPY))
    sizes = {"shape": shape.name, "bytes": sum(entry.bytes for entry in entries), "records": shape.records}
    return {**found, **sizes, "copy": copy["seconds"], "copied": copy["left"]}


def _alone(mode: str, uri: str, entries: Sequence[SegmentEntry]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compaction", mode, uri],
        input=pickle.dumps(entries),
        stdout=subprocess.PIPE,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def task(uri: str, work_on: Callable[[CompactionSetting, CompactionWork], list[SegmentEntry]]) -> dict[str, float]:
    """The task, in this process. The segments come from the standard input."""
    entries = pickle.load(sys.stdin.buffer)
    now = _TIME + 1000
    setting = CompactionSetting(open_uri(uri), 2, now, _SEGMENT, DEFAULT_DIGEST)
    end = entries[-1].next_offset
    work = CompactionWork(0, TOPIC, TOPIC_ID, 0, None, tuple(entries), ((0, end),), end, 86_400_000, True)
    before, idle = resource.getrusage(resource.RUSAGE_SELF), peak()
    started = time.perf_counter()
    with _last_passes() as began:
        parts = work_on(setting, work)
    ended = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "seconds": ended - started,
        "copying": ended - min(began, default=started),
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "peak": peak() - idle,
        "left": sum(part.records for part in parts),
        "left_bytes": sum(part.bytes for part in parts),
    }


@contextmanager
def _last_passes() -> Iterator[list[float]]:
    """Notes when compactors begin to copy."""
    began: list[float] = []
    begin = Compactor.begin_copy

    def noted(compactor: Compactor) -> None:
        began.append(time.perf_counter())
        begin(compactor)

    with patch.object(Compactor, "begin_copy", noted):
        yield began


def _copied(setting: CompactionSetting, work: CompactionWork) -> list[SegmentEntry]:
    """The parts of a copy of the log."""
    compactor = Compactor(now=0, horizon=0, aborted=Spans.of(()), map_bytes=0)  # which is asked nothing
    with Parts(setting, place_of(setting, work, 1, 0), time_of(work)) as parts:
        section_pass = SectionPass(setting, work, TaskAlone(), NO_PROGRESS, compactor)
        section_pass.over(work.dirty, lambda stretch, _: parts.write(stretch))
        return parts.finish(work.end - 1)


def _compacted(setting: CompactionSetting, work: CompactionWork) -> list[SegmentEntry]:
    """The parts that the task makes; a partition of too many keys is spread over tasks, one after the other."""
    answer: Any = do_or_tell(setting, work, TaskAlone())
    if isinstance(answer, PartitionCompacted):
        return list(answer.snapshot.parts)
    spreading = Spreading()
    done = None
    parts = spreading.add(work, ranges_of(work, setting.max_bytes))
    rounds: tuple[Callable[[], Sequence[Any]], ...] = (lambda: parts, spreading.shares, spreading.copies)
    for tasks in rounds:
        for item in tasks():
            answer = do_or_tell(setting, item, TaskAlone())
            done = spreading.take(item, answer)
    setting.storage.delete(spreading.objects)
    assert done is not None
    return list(done.snapshot.parts)


def peak() -> int:
    """The highest resident memory of this process so far. Unlike `ru_maxrss` it knows nothing of its parent."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def main() -> None:
    """Print a row for each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(COMPACT)
    parser.add_argument(COPY)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--repeat", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.task:
        print(json.dumps(task(chosen.task, _compacted)))
        return
    if chosen.copy:
        print(json.dumps(task(chosen.copy, _copied)))
        return
    print(
        "| log | s | CPU s | peak MB | MB/s | records/s | left MB | × copy | last pass × copy |\n"
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for shape in LARGE if chosen.large else SHAPES:
        if chosen.only not in shape.name:
            continue
        for _ in range(chosen.repeat):
            folder = Path(tempfile.mkdtemp(prefix="logkeep-bench-"))
            try:
                found = measure(shape, folder)
            finally:
                shutil.rmtree(folder)
            speed, seconds = found["bytes"] / found["seconds"] / 1e6, found["seconds"]
            print(
                f"| {shape.name} | {seconds:.2f} | {found['cpu']:.2f} | {found['peak'] / 1e6:.0f} | {speed:.0f} "
                f"| {found['records'] / seconds:,.0f} | {found['left_bytes'] / 1e6:.0f} "
                f"| {found['copy'] / seconds:.2f} | {found['copy'] / found['copying']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
