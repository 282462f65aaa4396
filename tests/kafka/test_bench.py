"""The benchmark's own parts against a real broker: what it loads, and that floor and engine move all of it."""

from pathlib import Path

import pytest

from bench import clients, floor, load, topics
from bench.contenders import FORMATS, environment
from bench.engine import SUFFIX, backup_spec, convert_in_process, decode, restore_spec, run_in_process
from bench.topics import Topic
from bench.wire import Wire
from bench.worker import MOVERS
from logkeep_engine.contract.model import replace
from tests.cluster.kafka import KafkaBroker


def small(name: str, unique: str, records: int) -> Topic:
    (topic,) = topics.named([name])
    return replace(topic, name=unique, records=records, batch_bytes=(1, 20_000))


def log(broker: KafkaBroker, topic: str, partition: int) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((broker.data_dir / f"{topic}-{partition}").glob("*.log")))


def test_the_floor_copies_the_log_and_sends_it_back(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    loaded = load.load(kafka.bootstrap, small("zstd-1k", unique, 2_001))
    assert (loaded.visible, sum(loaded.ends)) == (2_001, 2_001)
    assert floor.backup(kafka.bootstrap, unique, loaded.ends, tmp_path / "copy") == loaded.wire_bytes
    for partition in range(4):
        assert (tmp_path / "copy" / f"{partition}.log").read_bytes() == log(kafka, unique, partition)
    target = f"{unique}-again"
    load.create(kafka.bootstrap, target, 4)
    requests = floor.prebuild(kafka.bootstrap, unique, target, loaded.ends)
    assert floor.restore(kafka.bootstrap, requests) > 0
    with Wire(kafka.bootstrap) as wire:
        assert tuple(wire.list_offset(target, partition, -1) for partition in range(4)) == loaded.ends
    load.delete(kafka.bootstrap, unique, target)


def test_the_floor_sends_committed_batches_back_as_plain_ones(kafka: KafkaBroker, unique: str) -> None:
    loaded = load.load(kafka.bootstrap, small("txn", unique, 6_000))
    target = f"{unique}-again"
    load.create(kafka.bootstrap, target, 4)
    floor.restore(kafka.bootstrap, floor.prebuild(kafka.bootstrap, unique, target, loaded.ends))
    with Wire(kafka.bootstrap) as wire:
        assert sum(wire.list_offset(target, partition, -1) for partition in range(4)) == loaded.visible
    load.delete(kafka.bootstrap, unique, target)


def test_the_floor_sees_a_damaged_batch(kafka: KafkaBroker, unique: str) -> None:
    loaded = load.load(kafka.bootstrap, small("zstd-1k", unique, 100))
    data = bytearray(log(kafka, unique, 0))
    assert floor.check(memoryview(data), 0, len(data)) == (len(data), loaded.ends[0])
    data[-1] ^= 1
    with pytest.raises(floor.Damaged):
        floor.check(memoryview(data), 0, len(data))


def test_aborted_transactions_are_loaded_and_not_seen(kafka: KafkaBroker, unique: str) -> None:
    loaded = load.load(kafka.bootstrap, small("txn", unique, 6_000))
    assert 0 < loaded.visible < 6_000 < sum(loaded.ends)  # the ends count markers too
    assert clients.consume(kafka.bootstrap, loaded.topic, loaded.visible) == loaded.visible


@pytest.mark.parametrize("processes", [1, 2])
def test_the_engine_runs_as_it_is_measured(
    kafka: KafkaBroker, unique: str, tmp_path: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    load.load(kafka.bootstrap, small("lz4-1k", unique, 1_000))
    storage = {"uri": (tmp_path / "archive").as_uri()}
    backup = run_in_process("KafkaBackup", backup_spec(kafka.bootstrap, unique, storage), processes)
    assert backup.records == 1_000
    assert set(backup.spans) & set(MOVERS)
    restored = run_in_process("KafkaRestore", restore_spec(kafka.bootstrap, storage), processes)
    assert restored.records == 1_000
    assert set(restored.spans) & set(MOVERS)
    load.delete(kafka.bootstrap, unique, unique + SUFFIX)


@pytest.mark.parametrize("label", FORMATS)
def test_formats_run_as_they_are_measured(kafka: KafkaBroker, unique: str, tmp_path: Path, label: str) -> None:
    load.load(kafka.bootstrap, small("lz4-100", unique, 1_000))
    storage = {"uri": (tmp_path / "archive").as_uri()}
    backup = run_in_process("KafkaBackup", backup_spec(kafka.bootstrap, unique, storage, **FORMATS[label]))
    restored = run_in_process("KafkaRestore", restore_spec(kafka.bootstrap, storage))
    converted = convert_in_process(storage["uri"], (tmp_path / "other").as_uri(), "Records")
    for run in (backup, restored, converted):
        assert run.records == 1_000
        assert set(run.spans) & set(MOVERS)
    load.delete(kafka.bootstrap, unique, unique + SUFFIX)


@pytest.mark.parametrize("name", ["lz4-100", "txn"])
def test_every_record_is_taken_apart(kafka: KafkaBroker, unique: str, name: str) -> None:
    loaded = load.load(kafka.bootstrap, small(name, unique, 3_000))
    assert decode(kafka.bootstrap, unique, loaded.ends) == 3_000
    load.delete(kafka.bootstrap, unique)


def test_a_run_that_fails_is_no_figure(kafka: KafkaBroker, tmp_path: Path) -> None:
    storage = {"uri": (tmp_path / "archive").as_uri()}
    with pytest.raises(RuntimeError, match=r"KafkaBackup Failed: .*matches no topic"):
        run_in_process("KafkaBackup", backup_spec(kafka.bootstrap, "there-is-none", storage))
