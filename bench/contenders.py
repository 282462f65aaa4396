"""Who is measured: each contender does one backup or one restore of one topic and says what it took."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bench import clients, load, process
from bench.bed import Bed, size_of
from bench.engine import SUFFIX, backup_spec, restore_spec
from bench.load import Loaded
from bench.peer import Peer
from bench.topics import FIRST_MS
from logkeep_engine.archive.moments import iso
from logkeep_engine.contract.model import replace

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement. Seconds: `wall` of the whole process, `work` of the moving of records alone, `start` until the
    first byte of records arrived at its target; CPU seconds of all processes (`cpu`), of the work alone (`work_cpu`),
    of broker and S3 server. `executor` and `executor_cpu` are the seconds of all tasks, those that only check included.
    Bytes: `wire` as the broker has the batches, `archive` on disk; `peak` of the largest process, `peak_sum` of all.
    `restored`: records in the target afterwards, those of aborted transactions and markers that became records
    included. `steal`: seconds in which the host kept a core of this machine from its work. What is not known is None.
    """

    wall: float
    cpu: float
    broker_cpu: float
    records: int
    wire: int
    peak: int
    work: float | None = None
    work_cpu: float | None = None
    s3_cpu: float = 0.0
    peak_sum: int | None = None
    archive: int | None = None
    start: float | None = None
    tasks: int | None = None
    executor: float | None = None
    executor_cpu: float | None = None
    restored: int | None = None
    steal: float = 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a measurement takes place: `cores` are the contender's (None: all), `factor` by how much topics were cut
    down.
    """

    bed: Bed
    loaded: Loaded
    storage: str = "file"
    cores: tuple[int, ...] | None = None
    factor: int = 1

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self.loaded.topic.name

    @property
    def target(self) -> str:
        """The topic a restore writes to."""
        return self.topic + SUFFIX


Contender = Callable[[Stage], Sample]


def measured(
    stage: Stage,
    command: Sequence[str],
    *,
    records: int,
    seen: Callable[[], bool] | None = None,
    clock: re.Pattern[str] | None = None,
) -> Sample:
    """Run a command as a contender. `clock` finds the seconds of its work in its output; our workers tell in JSON."""
    os.sync()
    broker, s3, steal = stage.bed.broker_cpu(), stage.bed.s3_cpu(), process.stolen()
    usage = process.run(command, env=environment(), cores=stage.cores, seen=seen)
    sample = Sample(
        wall=usage.wall,
        cpu=usage.cpu,
        broker_cpu=stage.bed.broker_cpu() - broker,
        s3_cpu=stage.bed.s3_cpu() - s3,
        records=records,
        wire=stage.loaded.wire_bytes,
        peak=usage.peak,
        peak_sum=usage.peak_sum,
        start=usage.first_byte,
        steal=process.stolen() - steal,
    )
    if clock is not None and (found := clock.search(usage.output)):
        return replace(sample, work=float(found[1]))
    return replace(sample, **_said(usage.output))


def _said(output: str) -> dict[str, Any]:
    """Read the words of a worker of ours about itself; they are fields of a sample only."""
    last = output.strip().splitlines()[-1] if output.strip() else ""
    found = json.loads(last) if last.startswith('{"') else {}
    return {
        name: found[name] for name in ("work", "work_cpu", "peak", "tasks", "executor", "executor_cpu") if name in found
    }


def environment() -> dict[str, str]:
    """Where a child process finds our modules, from any folder."""
    return {"PYTHONPATH": os.pathsep.join(sys.path)}


def worker(job: str, **arguments: Any) -> list[str]:
    """The command of a job of `bench.worker`."""
    return [sys.executable, "-m", "bench.worker", job, json.dumps(arguments)]


# ---- backup


def floor_backup(stage: Stage) -> Sample:
    """The floor of a backup, to files."""
    name = "floor"
    command = worker(
        "floor_backup",
        bootstrap=stage.bed.bootstrap,
        topic=stage.topic,
        ends=stage.loaded.ends,
        folder=str(stage.bed.folder / name),
    )
    try:
        sample = measured(stage, command, records=stage.loaded.topic.records)
        return replace(sample, archive=size_of(stage.bed.folder / name))
    finally:
        stage.bed.drop("file", name)


def engine_backup(stage: Stage, *, processes: int = 1, keep: bool = False, label: str = "", **spec: Any) -> Sample:
    """A backup run whose tasks are in one process, one after the other, or in several. `label` tells archives apart
    that are kept at once.
    """
    name = _archive_name(stage, label)
    wanted = backup_spec(stage.bed.bootstrap, stage.topic, stage.bed.storage(stage.storage, name), **spec)
    stage.bed.drop(stage.storage, name)
    try:
        sample = measured(
            stage, worker("engine", kind="KafkaBackup", spec=wanted, processes=processes), records=stage.loaded.visible
        )
        return replace(sample, archive=size_of(stage.bed.archive(stage.storage, name)))
    finally:
        if not keep:
            stage.bed.drop(stage.storage, name)


def _archive_name(stage: Stage, label: str) -> str:
    return f"engine-{stage.topic}{label and '-'}{label}"


def drop_archives(stage: Stage) -> None:
    """Remove the archives that `engine_backup` and `peer_backup` kept."""
    for name in (f"peer-{stage.topic}", *(_archive_name(stage, label) for label in ("", *FORMATS))):
        stage.bed.drop(stage.storage, name)


FORMATS: dict[str, dict[str, Any]] = {
    "Kafka": {},
    "Records": {"format": "Records"},
    "Avro": {"format": "Avro"},
    "Avro-zstandard": {"format": "Avro", "formatOptions": {"codec": "zstandard"}},
}
"""The part of a spec that chooses each format, by the label of its archive."""


def spark_backup(stage: Stage, *, cores: int = 2) -> Sample:
    """`logkeep backup`, Spark and all; `start` is when the first object of the topic appears."""
    name = f"spark-{stage.topic}"
    spec = backup_spec(stage.bed.bootstrap, stage.topic, stage.bed.storage(stage.storage, name))
    folder = stage.bed.archive(stage.storage, name)
    try:
        sample = _command_line(stage, "backup", spec, cores, lambda: _has_bytes(folder / "topics"))
        return replace(sample, archive=size_of(folder))
    finally:
        stage.bed.drop(stage.storage, name)


def _has_bytes(folder: Path) -> bool:
    """Whether a file with content lies below; a folder that vanishes meanwhile has none."""
    try:
        return any(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    except OSError:
        return False


def _command_line(stage: Stage, verb: str, spec: dict[str, Any], cores: int, seen: Callable[[], bool]) -> Sample:
    file = stage.bed.folder / f"{verb}.yaml"
    kind = {"backup": "KafkaBackup", "restore": "KafkaRestore"}[verb]
    document = {"apiVersion": "logkeep.dev/v1alpha1", "kind": kind, "metadata": {"name": "bench"}, "spec": spec}
    file.write_text(yaml.safe_dump(document))
    command = [sys.executable, "-m", "logkeep_engine.cli", verb, "-f", str(file), "--master", f"local[{cores}]"]
    return measured(stage, command, records=stage.loaded.visible, seen=seen)


def engine_decode(stage: Stage) -> Sample:
    """The engine reads batches, checks them, takes every record apart and drops it, in one thread."""
    command = worker("decode", bootstrap=stage.bed.bootstrap, topic=stage.topic, ends=stage.loaded.ends)
    return measured(stage, command, records=stage.loaded.visible)


def engine_convert(stage: Stage, *, source: str, target: str) -> Sample:
    """A conversion of the archive that `engine_backup` kept under the label `source`; tasks one after the other."""
    name = f"converted-{stage.topic}"
    uris = [stage.bed.storage(stage.storage, n)["uri"] for n in (_archive_name(stage, source), name)]
    try:
        command = worker("convert", source=uris[0], target=uris[1], format_name=FORMATS[target].get("format", target))
        sample = measured(stage, command, records=stage.loaded.visible)
        return replace(sample, archive=size_of(stage.bed.archive(stage.storage, name)))
    finally:
        stage.bed.drop(stage.storage, name)


def librdkafka_consume(stage: Stage) -> Sample:
    """librdkafka reads the records and drops them."""
    visible = stage.loaded.visible
    command = worker("consume", bootstrap=stage.bed.bootstrap, topic=stage.topic, factor=stage.factor, visible=visible)
    return measured(stage, command, records=visible)


def java_consume(stage: Stage) -> Sample:
    """Java's ConsumerPerformance reads the records and drops them; its own clock is the work."""
    visible = stage.loaded.visible
    os.sync()
    broker = stage.bed.broker_cpu()
    usage = process.run(clients.java_consumer(stage.bed.bootstrap, stage.loaded.topic, visible), cores=stage.cores)
    fields = [line.split(", ") for line in usage.output.splitlines() if line.count(", ") >= 9]
    seen = int(fields[-1][4])
    if seen < visible:
        raise process.Failed(f"ConsumerPerformance saw {seen} of {visible} records\n{usage.output}")
    return Sample(
        usage.wall, usage.cpu, stage.bed.broker_cpu() - broker, seen, stage.loaded.wire_bytes, usage.peak,
        work=int(fields[-1][6]) / 1000 + int(fields[-1][7]) / 1000, peak_sum=usage.peak_sum,
    )  # fmt: skip


def peer_backup(peer: Peer, stage: Stage, *, keep: bool = False) -> Sample:
    """The peer's backup, whole process; its own clock if it tells."""
    name = f"peer-{stage.topic}"
    command = peer.command("backup", stage.bed, stage.storage, name, stage.topic, "")
    stage.bed.drop(stage.storage, name)
    try:
        stage.bed.archive(stage.storage, name).mkdir(parents=True)
        sample = measured(stage, command, records=stage.loaded.visible, clock=peer.clock)
        return replace(sample, archive=size_of(stage.bed.archive(stage.storage, name)))
    finally:
        if not keep:
            stage.bed.drop(stage.storage, name)


# ---- restore


def floor_restore(stage: Stage) -> Sample:
    """The floor of a restore: prebuilt requests."""
    topic = stage.loaded.topic
    with _new_target(stage):
        command = worker(
            "floor_restore",
            bootstrap=stage.bed.bootstrap,
            topic=stage.topic,
            ends=stage.loaded.ends,
            target=stage.target,
        )
        return measured(stage, command, records=topic.records)


def engine_restore(stage: Stage, *, processes: int = 1, label: str = "", verified: bool = False) -> Sample:
    """A restore run from an archive that `engine_backup` kept. `verified`: the run verifies what it has restored, and
    its work is that alone, with the digests of the archive made again."""
    spec = restore_spec(stage.bed.bootstrap, _kept_archive(stage, label), **({"verify": "Full"} if verified else {}))
    if verified:
        stage.bed.drop(stage.storage, f"{_archive_name(stage, label)}/digests")
    command = worker("engine", kind="KafkaRestore", spec=spec, processes=processes, verified=verified)
    with _gone_afterwards(stage):
        return measured(stage, command, records=stage.loaded.visible)


def engine_restore_to_point(stage: Stage) -> Sample:
    """A restore to the time of the middle record of the first partition, exact by record time: a batch is cut there."""
    shares = stage.loaded.topic.shares
    before = shares[0] // 2
    point = {"timestamp": iso(FIRST_MS + before)}
    spec = restore_spec(stage.bed.bootstrap, _kept_archive(stage), point=point)
    with _gone_afterwards(stage):
        command = worker("engine", kind="KafkaRestore", spec=spec)
        return measured(stage, command, records=sum(min(share, before) for share in shares))


def engine_drill(stage: Stage) -> Sample:
    """A drill: the archive is restored into topics of the drill's own, verified fully, and these are deleted."""
    stage.bed.drop(stage.storage, f"{_archive_name(stage, '')}/digests")
    spec = {
        "cluster": {"bootstrapServers": [stage.bed.bootstrap]},
        "source": {"storage": _kept_archive(stage)},
        "drill": {},
    }
    return measured(stage, worker("engine", kind="KafkaRestore", spec=spec), records=stage.loaded.visible)


def _kept_archive(stage: Stage, label: str = "") -> dict[str, str]:
    return stage.bed.storage(stage.storage, _archive_name(stage, label))


def spark_restore(stage: Stage, *, cores: int = 2) -> Sample:
    """`logkeep restore` of the same archive; `start` is when the first record is in the broker's log."""
    spec = restore_spec(stage.bed.bootstrap, _kept_archive(stage))
    with _gone_afterwards(stage):
        return _command_line(stage, "restore", spec, cores, lambda: stage.bed.broker_bytes(stage.target) > 0)


def librdkafka_produce(stage: Stage) -> Sample:
    """librdkafka writes as many records."""
    with _new_target(stage):
        command = worker(
            "produce", bootstrap=stage.bed.bootstrap, topic=stage.topic, factor=stage.factor, target=stage.target
        )
        return measured(stage, command, records=stage.loaded.topic.records)


def java_produce(stage: Stage) -> Sample:
    """Java's ProducerPerformance writes as many records; its own clock is the work."""
    topic = stage.loaded.topic
    payloads = clients.payload_file(topic, stage.bed.folder / "payloads")
    with _new_target(stage):
        os.sync()
        broker = stage.bed.broker_cpu()
        command = clients.java_producer(stage.bed.bootstrap, topic, stage.target, payloads)
        usage = process.run(command, cores=stage.cores)
        rates = re.findall(r"(\d+) records sent, ([\d.]+) records/sec", usage.output)
        sent, rate = int(rates[-1][0]), float(rates[-1][1])
        return Sample(
            usage.wall, usage.cpu, stage.bed.broker_cpu() - broker, sent, stage.loaded.wire_bytes, usage.peak,
            work=sent / rate, peak_sum=usage.peak_sum,
        )  # fmt: skip


def peer_restore(peer: Peer, stage: Stage) -> Sample:
    """The peer's restore of the archive that `peer_backup` kept."""
    command = peer.command("restore", stage.bed, stage.storage, f"peer-{stage.topic}", stage.topic, stage.target)
    with _new_target(stage):
        sample = measured(stage, command, records=stage.loaded.visible, clock=peer.clock)
        found = _end_offsets(stage)
        if found < stage.loaded.visible:
            raise process.Failed(f"the peer restored {found} of {stage.loaded.visible} records of {stage.topic}")
        return replace(sample, restored=found)


def _end_offsets(stage: Stage) -> int:
    from bench.wire import Wire

    with Wire(stage.bed.bootstrap) as wire:
        return sum(wire.list_offset(stage.target, n, -1) for n in range(stage.loaded.topic.partitions))


class _gone_afterwards:  # noqa: N801 (used as a function)
    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        load.delete(self._stage.bed.bootstrap, self._stage.target)

    def __exit__(self, *_: object) -> None:
        load.delete(self._stage.bed.bootstrap, self._stage.target)


class _new_target(_gone_afterwards):  # noqa: N801
    def __enter__(self) -> None:
        super().__enter__()
        load.create(self._stage.bed.bootstrap, self._stage.target, self._stage.loaded.topic.partitions)
