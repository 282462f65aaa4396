"""Peak memory of a task against data that unpack to far more than they take, and batches of very many records.

Two topics of four partitions, so that a task has several of them at once. `bombs`: in each codec a record of 128 MiB of
zeros, which format Kafka moves as it is. `fits`: in each codec a record of just under what a task unpacks, and a batch
of 300,000 empty records, for the formats that must take batches apart.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench import load, process
from bench.bed import Bed
from bench.contenders import environment, worker
from bench.engine import SUFFIX, backup_spec, restore_spec
from bench.topics import FIRST_MS
from bench.wire import PRODUCE, Wire, produce_body
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.memory import unpacked_most
from logkeep_engine.log.records import Record, encode

PARTITIONS = 4
BOMB_BYTES = 128 << 20
MANY = 300_000
_COMPRESSED = tuple(codec for codec in Codec if codec is not Codec.NONE)
_CASES = (("bombs", "Kafka"), ("fits", "Kafka"), ("fits", "Records"), ("fits", "Avro"))


def measure(here: Bed) -> list[dict[str, Any]]:
    """Returns what it was, topic, format, peak bytes and seconds, of a backup and a restore of each."""
    _fill(here, "bombs", [_zeros(codec, BOMB_BYTES) for codec in _COMPRESSED])
    most = unpacked_most() - 100
    _fill(here, "fits", [*(_zeros(codec, most) for codec in _COMPRESSED), _many(Codec.ZSTD)])
    found: list[dict[str, Any]] = []
    for topic, name in _CASES:
        storage = here.storage("file", f"{topic}-{name}")
        specs = (
            ("backup", "KafkaBackup", {**backup_spec(here.bootstrap, topic, storage), "format": name}),
            ("restore", "KafkaRestore", restore_spec(here.bootstrap, storage)),
        )
        for what, kind, spec in specs:
            usage = process.run(worker("engine", kind=kind, spec=spec), env=environment())
            said = json.loads(usage.output.strip().splitlines()[-1])
            found.append({"what": what, "topic": topic, "format": name, "peak": said["peak"], "work": said["work"]})
            print(f"  hostile {what} {topic} {name}: {said['peak'] / 1e6:.0f} MB", file=sys.stderr, flush=True)
        load.delete(here.bootstrap, topic + SUFFIX)
        here.drop("file", f"{topic}-{name}")
    for topic in ("bombs", "fits"):
        load.delete(here.bootstrap, topic)
    return found


def _zeros(codec: Codec, size: int) -> bytes:
    return encode([Record(0, FIRST_MS, b"k", bytes(size))], codec=codec, base_offset=0)


def _many(codec: Codec) -> bytes:
    return encode([Record(at, FIRST_MS, None, None) for at in range(MANY)], codec=codec, base_offset=0)


def _fill(here: Bed, topic: str, batches: list[bytes]) -> None:
    """Every batch in every partition, beginning with another one in each."""
    load.create(here.bootstrap, topic, PARTITIONS)
    with Wire(here.bootstrap) as wire:
        for partition in range(PARTITIONS):
            for at in range(len(batches)):
                batch = batches[(at + partition) % len(batches)]
                wire.send(PRODUCE, 8, *produce_body(topic, [(partition, bytearray(batch))]))
                wire.take_produce()
