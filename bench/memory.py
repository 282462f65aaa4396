"""Peak memory of a task against the size of its partition: one partition that grows from 1 to 20 GB.

Backups get the whole partition as one piece, however large (a real plan cuts it into chunks of 120 MiB, which would
make this easy); a restore task has a whole partition always. Needs 40 GB of disk.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from bench import load, process, topics
from bench.bed import Bed
from bench.contenders import environment, worker
from bench.engine import SUFFIX, backup_spec, restore_spec
from bench.topics import Template, Topic
from bench.wire import PRODUCE, Wire, produce_body
from logkeep_engine.log.compression import Codec

SIZES_GB = (1, 5, 10, 20)
RESTORED_UP_TO_GB = 10  # archive, source and target are on the disk together
GB = 10**9
_NAME = "memory"


def measure(here: Bed, sizes_gb: tuple[int, ...] = SIZES_GB) -> list[dict[str, Any]]:
    """Returns what it was, gigabytes, peak bytes and seconds of the task, for each size. Raises RuntimeError if the
    disk is too small."""
    free = shutil.disk_usage(here.folder).free
    if free < 2.2 * max(sizes_gb) * GB:
        raise RuntimeError(f"{free / GB:.0f} GB of disk are free, {2.2 * max(sizes_gb):.0f} are needed")
    topic = Topic(_NAME, "one partition", 1_000_000, 1000, Codec.NONE, 1, random_bytes=430)
    load.create(here.bootstrap, _NAME, 1)
    batches = _endless(topics.pool(topic))
    found: list[dict[str, Any]] = []
    written = 0
    for size in sizes_gb:
        with Wire(here.bootstrap) as wire:
            written += _grow(wire, batches, size * GB - written)
        storage = here.storage("file", _NAME)
        found.append({"what": "backup", "gb": size, **_run("KafkaBackup", backup_spec(here.bootstrap, _NAME, storage))})
        _say(found[-1])
        if size <= RESTORED_UP_TO_GB:
            found.append({"what": "restore", "gb": size, **_run("KafkaRestore", restore_spec(here.bootstrap, storage))})
            _say(found[-1])
            load.delete(here.bootstrap, _NAME + SUFFIX)
        here.drop("file", _NAME)
    load.delete(here.bootstrap, _NAME)
    return found


def _run(kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    usage = process.run(worker("engine", kind=kind, spec=spec, one_piece=True), env=environment())
    said = json.loads(usage.output.strip().splitlines()[-1])
    return {"peak": said["peak"], "work": said["work"], "tasks": said["tasks"]}


def _endless(templates: list[Template]) -> Iterator[bytearray]:
    sequence = 0
    while True:
        for template in templates:
            first = topics.FIRST_MS + sequence
            yield topics.addressed(template, first, (topics.PRODUCER_ID, 0), sequence % (1 << 31))
            sequence += template.records


def _grow(wire: Wire, batches: Iterator[bytearray], size: int) -> int:
    """Append batches until `size` bytes are written; returns how many were."""
    written = flying = 0
    while written < size:
        batch = next(batches)
        wire.send(PRODUCE, 8, *produce_body(_NAME, [(0, batch)]))
        flying += 1
        written += len(batch)
        while flying >= load.IN_FLIGHT or (flying and written == len(batch)):
            wire.take_produce()
            flying -= 1
    for _ in range(flying):
        wire.take_produce()
    return written


def _say(row: dict[str, Any]) -> None:
    print(f"  memory {row['what']} {row['gb']} GB: {row['peak'] / 1e6:.0f} MB", file=sys.stderr, flush=True)
