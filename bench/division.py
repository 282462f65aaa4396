"""Memory and time of restores into another number of partitions, against the number of pairs.

    python -m bench.division                 # 1,000, 10,000 and 100,000 pairs, a JSON object a line
    python -m bench.division --only 10000

Each archived partition has a hundred records of 100 bytes, so what is measured are the pairs: each has a producer id, a
window and a place in the target. Two processes do the tasks, as two slots of executors would, and one is the driver.
`driver_mib` and `task_mib` are peaks, the interpreter included; `task_mib` is that of the largest process of all.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bench import bed, load, process
from bench.bed import Bed
from bench.contenders import environment, worker
from bench.engine import SUFFIX, backup_spec, restore_spec
from bench.topics import FIRST_MS
from tests.data.topics import Record, create_topic, produce

SHAPES = ((25, 40), (125, 80), (250, 400))
"""Partitions of the archived topic, and of the target."""

RECORDS = 100
_TOPIC = "divided"
_MIB = 1 << 20


def measure(here: Bed, archived: int, targets: int) -> dict[str, Any]:
    """The row of a topic with so many partitions that is restored into so many."""
    create_topic(here.bootstrap, _TOPIC, archived)
    produce(here.bootstrap, _TOPIC, _records(archived), compression="lz4")
    storage = here.storage("file", _TOPIC)
    process.run(
        worker("engine", kind="KafkaBackup", spec=backup_spec(here.bootstrap, _TOPIC, storage)), env=environment()
    )
    spec = restore_spec(here.bootstrap, storage)
    spec["topics"] = {**spec["topics"], "partitionCount": targets, "partitioner": "murmur2"}
    broker = here.broker_cpu()
    usage = process.run(worker("engine", kind="KafkaRestore", spec=spec, processes=2), env=environment())
    said = json.loads(usage.output.strip().splitlines()[-1])
    load.delete(here.bootstrap, _TOPIC)
    load.delete(here.bootstrap, _TOPIC + SUFFIX)
    here.drop("file", _TOPIC)
    return {
        "pairs": archived * targets,
        "archived": archived,
        "targets": targets,
        "records": said["records"],
        "seconds": round(said["run_wall"], 2),
        "moving": round(said["work"], 2),
        "cpu": round(usage.cpu, 2),
        "broker_cpu": round(here.broker_cpu() - broker, 2),
        "driver_mib": said["peak"] // _MIB,
        "task_mib": usage.peak // _MIB,
    }


def _records(partitions: int) -> Iterator[Record]:
    for number in range(RECORDS * partitions):
        key, value = b"key-%d" % number, b"%d" % number * 16
        yield Record(key, value[:90], FIRST_MS + number, partition=number % partitions)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a row for each shape."""
    parser = argparse.ArgumentParser(prog="python -m bench.division", description=__doc__)
    parser.add_argument("--only", type=int, default=0, help="pairs")
    only = parser.parse_args(arguments).only
    with bed.started(s3=False) as here:
        for archived, targets in SHAPES:
            if only in (0, archived * targets):
                print(json.dumps(measure(here, archived, targets)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
