"""Restores on a real broker: every committed record once and in order, or a refusal before anything is written."""

import json
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from pyspark import SparkContext

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RunOutcome, TopicEntry
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.errors import ArchiveDamaged, SpecError, TargetUnsuitable, TopicExists
from logkeep_engine.kafka.configs import ConfigEntry
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record as LogRecord
from logkeep_engine.log.records import encode
from logkeep_engine.log.segment import AbortedTxn
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import Storage, open_uri
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.data.compare import compare_topics
from tests.data.topics import NO_RETENTION, Record, create_topic, produce, random_records, topic_names
from tests.kafka.archived_files import ArchivedFile, files_of
from tests.kafka.backing_up import FOR_TEST, Topics, numbers
from tests.kafka.raw import batches as whole_batches
from tests.kafka.raw import eventually
from tests.kafka.restores import (
    Only,
    ThreadRunner,
    assert_little_memory,
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    start_driver,
    topic_settings,
    transactions,
    try_backup,
    wait_for_more,
    without_offsets,
)
from tests.runners import Context, Job, Runner
from tests.unit.archive.build import begin, chunk, write_segment
from tests.unit.log.batches import batch, marker, with_header

NOW = int(time.time() * 1000) - 3_600_000  # older records would be deleted where a topic has the default retention


def numbered(count: int, *, start: int = 0, partition: int = 0) -> Iterator[Record]:
    for number in range(start, start + count):
        yield Record(b"k%d" % number, b"v%d" % number, NOW + number, [("h", b"1"), ("h", None)], partition)


def recreated(broker: KafkaBroker, topic: str) -> str:
    """Delete the topic and create it again, empty; returns the id that it had."""
    with ControlPlane(KafkaConnection((broker.bootstrap,))) as control:
        old = control.topic_ids([topic])[topic]
        control.delete_topic_ids({topic: old})
    create_topic(broker.bootstrap, topic)
    return old


class TestAnotherCluster:
    def test_records_configuration_and_offset_maps_arrive(
        self, kafka: KafkaBroker, second_kafka: KafkaBroker, spark_context: SparkContext, unique: str, tmp_path: Path
    ) -> None:
        plain, stamped, txn, empty = (f"{unique}-{name}" for name in ("plain", "stamped", "txn", "empty"))
        create_topic(
            kafka.bootstrap, plain, 3, {**NO_RETENTION, "cleanup.policy": "compact,delete", "segment.bytes": "1048576"}
        )
        create_topic(kafka.bootstrap, stamped, 1, {"message.timestamp.type": "LogAppendTime"})
        create_topic(kafka.bootstrap, txn, 1)
        create_topic(kafka.bootstrap, empty, 2)
        for partition in range(2):
            produce(kafka.bootstrap, plain, numbered(3000, partition=partition), compression="zstd")
        produce(kafka.bootstrap, stamped, numbered(500), compression="lz4")
        transactions(kafka, txn, [10, -5, 20, -1, 3])
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))

        spec = {**restore_spec(second_kafka, tmp_path), "topics": {}}
        result = bring_back(spec, runner=SparkRunner(spark_context))

        for topic in (plain, stamped, txn, empty):
            comparison = compare_topics(kafka.bootstrap, topic, topic, target_bootstrap=second_kafka.bootstrap)
            assert comparison.equal, str(comparison)
            assert topic_settings(second_kafka, topic) == topic_settings(kafka, topic)
        assert (result.outcome, result.topics, result.partitions) == ("Succeeded", 4, 7)
        assert result.records == 6000 + 500 + 33
        assert result.cluster_id == second_kafka.cluster_id
        assert (result.loss_total, result.loss) == (0, ())
        assert result.offset_map == f"{tmp_path.as_uri()}/runs/restore-1/offset-maps"
        append_time = [warning for warning in result.warnings if "append times" in warning]
        assert len(append_time) == 1
        assert stamped in append_time[0]
        assert plain not in append_time[0]
        assert offset_map(tmp_path, "restore-1", plain).rows == [(0, 0, 3000)]
        source, target = committed(kafka, txn), committed(second_kafka, txn)
        found = offset_map(tmp_path, "restore-1", txn)
        assert {found.find(record[0]).target for record in source} == {record[0] for record in target}
        assert [found.find(record[0]).target for record in source] == [record[0] for record in target]

    def test_from_an_object_store(
        self,
        kafka: KafkaBroker,
        s3: S3Server,
        bucket: str,
        spark_context: SparkContext,
        unique: str,
        tmp_path: Path,
    ) -> None:
        create_topic(kafka.bootstrap, unique, 2)
        for partition in (0, 1):
            produce(kafka.bootstrap, unique, numbered(200, partition=partition), compression="snappy")
        storage = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint}
        back_up({**backup_spec(kafka, tmp_path, unique), "storage": storage}, runner=SparkRunner(spark_context))
        spec = {**restore_spec(kafka, tmp_path), "source": {"storage": storage}}
        result = bring_back(spec, runner=SparkRunner(spark_context))
        assert result.records == 400
        assert result.offset_map == f"s3://{bucket}/kafka/runs/restore-1/offset-maps"
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)
        assert bring_back(spec) == result

    def test_a_finished_run_is_not_done_again(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))
        first = bring_back(restore_spec(kafka, tmp_path))
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
        runner = ThreadRunner()
        assert bring_back(restore_spec(kafka, tmp_path), runner=runner) == first
        assert runner.functions == []
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
        assert len(committed(kafka, f"{unique}-copy")) == 10

    def test_a_topic_that_was_deleted_by_mistake_and_created_again_comes_back(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        old = recreated(kafka, unique)
        back_up(backup_spec(kafka, tmp_path, unique), run_id="backup-2")

        result = bring_back(restore_spec(kafka, tmp_path))

        assert result.records == 100
        assert [record[1] for record in committed(kafka, f"{unique}-copy")] == [
            b"k%d" % number for number in range(100)
        ]
        (warning,) = (text for text in result.warnings if "created again" in text)
        assert f"{old} (100 records from " in warning
        spec = restore_spec(kafka, tmp_path, suffix="-other")
        new = next(topic for topic in Archive.open(open_uri(tmp_path.as_uri())).load().topics if topic != old)
        spec["source"] = {**spec["source"], "topicIds": {unique: new}}
        spec["allowEmpty"] = True
        assert bring_back(spec, run_id="restore-2").records == 0

    def test_aborted_records_of_a_topic_that_was_created_again_are_not_taken_for_its_records(
        self, kafka: KafkaBroker, topics: Topics, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(100))
        back_up(backup_spec(kafka, tmp_path, unique))
        old = recreated(kafka, unique)
        topics.transaction(unique, numbers(30), commit=False)
        assert back_up(backup_spec(kafka, tmp_path, unique), run_id="backup-2").records == 30
        result = bring_back(restore_spec(kafka, tmp_path))
        assert result.records == 100
        (warning,) = (text for text in result.warnings if "created again" in text)
        assert f"incarnation {old} (100 records from " in warning

    def test_large_batches_need_no_help(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 1, {"max.message.bytes": "6000000"})
        large = Record(b"k", os.urandom(5_000_000), NOW)
        produce(kafka.bootstrap, unique, [large, large], config={"message.max.bytes": 6_000_000})
        back_up(backup_spec(kafka, tmp_path, unique))
        bring_back(restore_spec(kafka, tmp_path))
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)
        assert topic_settings(kafka, f"{unique}-copy") == {"max.message.bytes": "6000000"}

    def test_retention_that_will_delete_what_was_restored_is_reported(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
        produce(kafka.bootstrap, unique, [Record(b"k", b"v", 1_000_000_000_000)])
        archive = back_up(backup_spec(kafka, tmp_path, unique))
        assert archive.records == 1
        assert bring_back(restore_spec(kafka, tmp_path)).warnings == ()
        # The same topic with a retention of its own.
        other = f"{unique}-b"
        create_topic(kafka.bootstrap, other, 1, {"retention.ms": "-1"})
        produce(kafka.bootstrap, other, [Record(b"k", b"v", 1_000_000_000_000)])
        from confluent_kafka import admin as admins

        admin = admins.AdminClient({"bootstrap.servers": kafka.bootstrap})
        changed = admins.AlterConfigOpType.SET
        entry = admins.ConfigEntry("retention.ms", "999999999", incremental_operation=changed)
        root = tmp_path / "b"
        resource = admins.ConfigResource(admins.ConfigResource.Type.TOPIC, other, incremental_configs=[entry])
        with_segment = backup_spec(kafka, root, other)
        back_up(with_segment)
        admin.incremental_alter_configs([resource])[resource].result(30)
        eventually(lambda: topic_settings(kafka, other) == {"retention.ms": "999999999"})
        back_up(with_segment, "backup-2")
        _answer_late(monkeypatch)
        spec = restore_spec(kafka, root)
        (warning,) = bring_back({**spec, "topics": {**spec["topics"], "retention": "Apply"}}).warnings
        assert "(retention.ms=999999999): it deletes up to 1 of 1 record in 1 archived segment" in warning


def _answer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each topic, the first answer after its configuration was altered is the one of before: brokers follow the
    controller a moment later.
    """
    real_alter, real_entries = ControlPlane.alter_topic_configs, ControlPlane.config_entries
    before: dict[str, Mapping[str, ConfigEntry]] = {}

    def alter(self: ControlPlane, name: str, *changes: Any) -> None:
        before.update(real_entries(self, [name]))
        real_alter(self, name, *changes)

    def entries(self: ControlPlane, names: Iterable[str]) -> Iterator[tuple[str, Mapping[str, ConfigEntry]]]:
        for name, answer in real_entries(self, names):
            yield name, before.pop(name, answer)

    monkeypatch.setattr(ControlPlane, "alter_topic_configs", alter)
    monkeypatch.setattr(ControlPlane, "config_entries", entries)


class TestExistingTopics:
    def test_refused_before_anything_is_written(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        names = [f"{unique}-{letter}" for letter in "abc"]
        for name in names:
            create_topic(kafka.bootstrap, name)
            produce(kafka.bootstrap, name, numbered(1))
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))
        for name in names[:2]:
            create_topic(kafka.bootstrap, f"{name}-copy")
        with pytest.raises(TopicExists, match=f"topics {names[0]}-copy, {names[1]}-copy already exist"):
            bring_back(restore_spec(kafka, tmp_path))
        assert f"{names[2]}-copy" not in topic_names(kafka.bootstrap)
        assert not (tmp_path / "runs" / "restore-1" / "restore-plan.json").exists()

    def test_append_writes_after_what_is_there(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, unique, 2)
        produce(kafka.bootstrap, unique, numbered(50), compression="gzip")
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, copy, 3, {"retention.ms": "-1"})
        produce(kafka.bootstrap, copy, numbered(7, start=1000))
        result = bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        records = committed(kafka, copy)
        assert without_offsets(records[7:]) == without_offsets(committed(kafka, unique))
        assert len(records) == 57
        assert offset_map(tmp_path, "restore-1", copy).rows == [(0, 7, 50)]
        assert topic_settings(kafka, copy) == {"retention.ms": "-1"}
        assert result.records == 50

    def test_append_refuses_what_cannot_take_the_records(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 2)
        produce(kafka.bootstrap, unique, [Record(b"k", b"x" * 5000, NOW)])
        back_up(backup_spec(kafka, tmp_path, unique))
        for suffix, partitions, settings, complaint in (
            ("-few", 1, {}, "has 1 partition"),
            ("-stamp", 2, {"message.timestamp.type": "LogAppendTime"}, "LogAppendTime"),
            ("-small", 2, {"max.message.bytes": "1000"}, r"max\.message\.bytes=1000"),
            ("-now", 2, {"message.timestamp.before.max.ms": "1"}, r"older than message\.timestamp\.before\.max\.ms=1"),
        ):
            create_topic(kafka.bootstrap, unique + suffix, partitions, settings)
            with pytest.raises(TargetUnsuitable, match=complaint):
                bring_back(restore_spec(kafka, tmp_path, suffix=suffix, ifTopicExists="Append"))
            assert sum(len(committed(kafka, unique + suffix, number)) for number in range(partitions)) == 0

    def test_append_to_a_compacted_topic_says_what_it_does(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(20))
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, copy, 1, {"cleanup.policy": "compact"})
        result = bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        assert result.records == 20
        assert any(f"topic {copy} is compacted: the restored records come after" in item for item in result.warnings)

    def test_append_to_a_compacted_topic_refuses_records_without_a_key(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        """Before the first record: those with a key stand in front of it."""
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, unique, 2)
        for partition in (0, 1):
            produce(kafka.bootstrap, unique, numbered(20, partition=partition))
        produce(kafka.bootstrap, unique, [Record(None, b"v", NOW, partition=1)])
        produce(kafka.bootstrap, unique, numbered(20, start=20, partition=1))
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, copy, 2, {"cleanup.policy": "compact,delete"})
        with pytest.raises(TargetUnsuitable, match=f"topic {copy} is compacted .* {unique} partition 1 .* offset 20;"):
            bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        assert [committed(kafka, copy, partition) for partition in (0, 1)] == [[], []]

    def test_somebody_who_writes_into_a_created_topic_is_noticed(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))

        def meddle(item: Any) -> None:
            if _restores(item):
                produce(kafka.bootstrap, item[0].topic.target, numbered(1))

        with pytest.raises(TopicExists, match="holds records that this restore has not written"):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=meddle))

    def test_a_later_start_with_another_spec_is_refused(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(RuntimeError, match="power cut"):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=_power_cut))
        with pytest.raises(SpecError, match="was started with another spec"):
            bring_back(restore_spec(kafka, tmp_path, suffix="-other"))
        assert bring_back(restore_spec(kafka, tmp_path)).records == 10


def _restores(item: Any) -> bool:
    return isinstance(item, tuple) and isinstance(item[0], RestoreTask)


def _power_cut(item: Any) -> None:
    if _restores(item):
        raise RuntimeError("power cut")


class TestStartedAgain:
    def test_two_tasks_of_one_partition_at_once_write_every_record_once(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
        produce(kafka.bootstrap, unique, numbered(6000), config={"batch.size": 2000, "linger.ms": 5})
        back_up(backup_spec(kafka, tmp_path, unique))
        for run, mode in (("restore-1", "Fail"), ("restore-2", "Append")):
            suffix = f"-{mode.lower()}"
            if mode == "Append":
                create_topic(kafka.bootstrap, unique + suffix, 1, NO_RETENTION)
            twice = ThreadRunner(copies=2)
            bring_back(
                restore_spec(kafka, tmp_path, suffix=suffix, ifTopicExists=mode),
                run,
                Only(twice, "restore_partitions"),
            )
            comparison = compare_topics(kafka.bootstrap, unique, unique + suffix)
            assert comparison.equal, str(comparison)
            assert comparison.records == 6000
            assert offset_map(tmp_path, run, unique + suffix).rows == [(0, 0, 6000)]

    @pytest.mark.deep
    @pytest.mark.parametrize("mode", ["Append", "Fail"][: examples.number(1, deep=2)])
    def test_a_killed_driver_started_again_writes_every_record_once(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, mode: str
    ) -> None:
        source, copy = f"{unique}-s", f"{unique}-s-copy"
        create_topic(kafka.bootstrap, source, 2, NO_RETENTION)
        produce(kafka.bootstrap, source, random_records(2, 8, record_bytes=1000), config={"batch.size": 16_000})
        root = tmp_path / "archive"
        back_up(backup_spec(kafka, root, source))
        foreign = 0
        if mode == "Append":
            create_topic(kafka.bootstrap, copy, 2, NO_RETENTION)
        slow = restore_spec(kafka, root, ifTopicExists=mode, limits={"bytesPerSecond": "1Mi"})
        file = tmp_path / "request.json"
        file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=slow).to_json())
        for _ in range(examples.number(1, deep=2)):
            driver = start_driver(file, spark=True)
            written = wait_for_more(kafka, copy, driver, 1_500_000)
            assert driver.poll() is None, "the run was over before it could be killed"
            os.killpg(driver.pid, signal.SIGKILL) if mode == "Fail" else driver.kill()
            driver.wait()
            assert written
            if mode == "Append":
                produce(kafka.bootstrap, copy, [Record(b"foreign", b"", NOW, partition=at) for at in (0, 1)])
                foreign += 1
        fast = restore_spec(kafka, root, ifTopicExists=mode)
        file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=fast).to_json())
        driver = start_driver(file, spark=True)
        assert driver.wait(180) == 0, (tmp_path / "driver.log").read_text()[-3000:]
        for partition in (0, 1):
            expected = without_offsets(committed(kafka, source, partition))
            found = committed(kafka, copy, partition)
            ours = [record for record in found if record[1] != b"foreign"]
            assert len(found) - len(ours) == foreign
            assert without_offsets(ours) == expected
            translated = offset_map(root, "r1", copy, partition)
            assert [translated.find(offset).target for offset in range(len(expected))] == [record[0] for record in ours]

    @pytest.mark.parametrize("answer", ["topics", "topic_configs"])
    def test_a_topic_of_an_earlier_start_that_a_broker_does_not_know_yet_is_not_taken_for_another(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(RuntimeError, match="power cut"):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=_power_cut))
        behind = [True, True]
        ask = getattr(ControlPlane, answer)

        def ask_one_that_is_behind(control: ControlPlane, *arguments: Any) -> Any:
            found = ask(control, *arguments)
            if not behind:
                return found
            behind.pop()
            if answer == "topics":
                return [topic for topic in found if topic.name != copy]
            return {name: configs for name, configs in found.items() if name != copy}

        monkeypatch.setattr(ControlPlane, answer, ask_one_that_is_behind)
        assert bring_back(restore_spec(kafka, tmp_path)).records == 10
        assert not behind

    def test_a_crash_before_the_topics_get_their_configuration(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique, 1, {"retention.ms": "123456789", "cleanup.policy": "compact"})
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))
        bring_back(restore_spec(kafka, tmp_path))
        # The run looks as if it had died after each of its last steps: its files are taken away again, newest first.
        run = tmp_path / "runs" / "restore-1"
        for name in ("result.json", "counted.json"):
            (run / name).unlink()
            if name == "result.json":
                produce(kafka.bootstrap, f"{unique}-copy", numbered(1, start=99))
                assert bring_back(restore_spec(kafka, tmp_path)).records == 10
                (run / "result.json").unlink()
        with pytest.raises(TopicExists, match="this restore has not created it"):
            bring_back(restore_spec(kafka, tmp_path))


class TestDamagedArchive:
    @pytest.fixture
    def archived(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> ArchivedFile:
        """300 records in batches of at most ten."""
        create_topic(kafka.bootstrap, unique, 1, NO_RETENTION)
        produce(kafka.bootstrap, unique, numbered(300), config={"batch.num.messages": 10, "linger.ms": 50})
        back_up(backup_spec(kafka, tmp_path, unique))
        (log,) = files_of(tmp_path, unique)
        return log

    def refused(self, kafka: KafkaBroker, unique: str, root: Path) -> ArchiveDamaged:
        with pytest.raises(ArchiveDamaged) as caught:
            bring_back(restore_spec(kafka, root))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
        assert "nothing was written to Kafka" in caught.value.message
        noted = json.loads((root / "runs" / "restore-1" / "damage.json").read_text())["faults"]
        assert len(noted) == len(caught.value.faults) > 0
        return caught.value

    def test_a_flipped_byte_costs_its_batch(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, archived: ArchivedFile
    ) -> None:
        data = bytearray(archived.read_bytes())
        (first,) = struct.unpack_from(">i", data, 8)
        (second,) = struct.unpack_from(">i", data, 12 + first + 8)
        data[12 + first + 12 + second - 1] ^= 1  # its last byte
        archived.write_bytes(data)
        error = self.refused(kafka, unique, tmp_path)
        assert archived.name in error.message
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
        (fact,) = result.loss
        assert (fact.topic, fact.partition, result.loss_total) == (unique, 0, 1)
        assert result.loss_offsets == fact.end - fact.start < 20
        expected = [record for record in committed(kafka, unique) if not fact.start <= record[0] < fact.end]
        assert without_offsets(committed(kafka, f"{unique}-copy")) == without_offsets(expected)
        assert any("the archive has" in warning for warning in result.warnings)
        assert offset_map(tmp_path, "restore-2", f"{unique}-copy").find(fact.start).target == fact.start

    def test_an_object_cut_short_costs_its_tail(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, archived: ArchivedFile
    ) -> None:
        archived.write_bytes(archived.read_bytes()[: archived.place.size // 2])
        assert "the catalog says" in self.refused(kafka, unique, tmp_path).message
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
        (fact,) = result.loss
        assert fact.end == 300
        assert without_offsets(committed(kafka, f"{unique}-copy")) == without_offsets(
            committed(kafka, unique)[: fact.start]
        )

    def test_a_missing_object_is_found_by_a_listing(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, archived: ArchivedFile
    ) -> None:
        archived.unlink()
        assert "the object is missing" in self.refused(kafka, unique, tmp_path).message
        spec = restore_spec(kafka, tmp_path, onDamagedArchive="Skip", allowEmpty=True)
        result = bring_back(spec, "restore-2")
        assert [(fact.start, fact.end) for fact in result.loss] == [(0, 300)]
        assert committed(kafka, f"{unique}-copy") == []

    def test_a_lost_transaction_index_is_made_again_from_the_markers(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [10, -5, 20, -1, 3])
        back_up(backup_spec(kafka, tmp_path, unique, segment={"packBelow": "0"}))
        (index,) = tmp_path.glob(f"topics/{unique}/*/partition=0/*.txnindex")
        index.unlink()
        self.refused(kafka, unique, tmp_path)
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
        assert result.loss == ()
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)

    def test_damage_after_the_plan_was_made_stops_the_restore(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, archived: ArchivedFile
    ) -> None:
        def damage(item: Any) -> None:
            if _restores(item):
                data = bytearray(archived.read_bytes())
                data[-1] ^= 1
                archived.write_bytes(data)

        with pytest.raises(ArchiveDamaged, match=archived.name):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=damage))


TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"


def handmade(
    root: Path,
    name: str,
    batches: list[bytes],
    *,
    end: int,
    finished: bool = True,
    aborted: Sequence[AbortedTxn] = (),
) -> Storage:
    """An archive of one partition with these batches."""
    storage = open_uri(root.as_uri())
    topic = TopicEntry(name, TOPIC_ID, 1, 1, {"retention.ms": "-1"})
    with begin(storage) as writer:
        entry = write_segment(storage, batches, topic=topic, aborted=aborted)
        writer.commit(topics=[topic], receipts=[Receipt((Coverage(TOPIC_ID, 0, entry.base_offset, end),), (entry,))])
        if finished:
            writer.end(RunOutcome.SUCCEEDED)
    return storage


class TestUnusualBatches:
    def test_gaps_append_times_horizons_and_old_messages(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        def some(*offsets: int, codec: Codec = Codec.NONE) -> bytes:
            made = [LogRecord(at, NOW + at, b"k%d" % at, b"v%d" % at, ((b"h", None),)) for at in offsets]
            return encode(made, codec=codec, base_offset=offsets[0])

        batches = [some(3, 4, 9, codec=Codec.ZSTD)]
        batches.append(with_header(some(10, 11, 12), attributes=0x08, max_timestamp=NOW + 999))
        batches.append(with_header(some(20, 21, codec=Codec.LZ4), attributes=0x43))
        batches.append(some(22, 23))
        handmade(tmp_path, unique, batches, end=24)
        result = bring_back(restore_spec(kafka, tmp_path))
        assert [(value, stamp) for _, _, value, _, stamp in committed(kafka, f"{unique}-copy")] == [
            *((b"v%d" % at, NOW + at) for at in (3, 4, 9)),
            *((b"v%d" % at, NOW + 999) for at in (10, 11, 12)),
            *((b"v%d" % at, NOW + at) for at in (20, 21, 22, 23)),
        ]
        assert result.records == 10
        rows = offset_map(tmp_path, "restore-1", f"{unique}-copy").rows
        assert rows == [(3, 0, 2), (9, 2, 4), (20, 6, 4)]

    @pytest.mark.parametrize(("magic", "codec"), [(0, 0), (1, 0), (1, 1)], ids=["magic 0", "magic 1", "magic 1 gzip"])
    def test_messages_of_old_brokers(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, magic: int, codec: int
    ) -> None:
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
        for at in range(3):
            builder.append(at, timestamp=NOW + at, key=b"k", value=b"v%d" % at)
        handmade(tmp_path, unique, [bytes(builder.build()), batch(3, 2)], end=5)
        assert bring_back(restore_spec(kafka, tmp_path)).records == 5
        found = committed(kafka, f"{unique}-copy")
        assert [value for _, _, value, _, _ in found] == [b"v0", b"v1", b"v2", b"v", b"v"]
        assert [stamp for *_, stamp in found][:3] == ([-1] * 3 if magic == 0 else [NOW, NOW + 1, NOW + 2])

    def test_a_rebuilt_batch_above_the_targets_limit_is_cut(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        # Zstd of a higher level than ours may become larger: here the limit of an existing topic is the archived size.
        made = [LogRecord(at, NOW, None, b"x" * 3000) for at in range(0, 40, 2)]
        data = encode(made, codec=Codec.NONE, base_offset=0)
        handmade(tmp_path, unique, [data], end=39)
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, {"max.message.bytes": str(len(data)), **NO_RETENTION})
        bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        assert [value for _, _, value, _, _ in committed(kafka, f"{unique}-copy")] == [b"x" * 3000] * 20


class TestMerged:
    """Batches of one record, which go together."""

    def archive(self, root: Path, name: str, count: int, *, codec: Codec = Codec.NONE) -> None:
        made = (LogRecord(at, NOW + at, b"k%d" % at, b"v%d" % at, ((b"h", None),)) for at in range(count))
        handmade(root, name, [encode([one], codec=codec, base_offset=one.offset) for one in made], end=count)

    def expected(self, count: int) -> list[tuple[Any, ...]]:
        return [(at, b"k%d" % at, b"v%d" % at, (("h", None),), NOW + at) for at in range(count)]

    @pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
    def test_every_record_is_there_in_few_batches(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, codec: Codec
    ) -> None:
        self.archive(tmp_path, unique, 5000, codec=codec)
        result = bring_back(restore_spec(kafka, tmp_path))
        assert result.records == 5000
        assert committed(kafka, f"{unique}-copy") == self.expected(5000)
        assert len(_batches_of(kafka, f"{unique}-copy")) < 30
        assert offset_map(tmp_path, "restore-1", f"{unique}-copy").rows == [(0, 0, 5000)]

    @pytest.mark.deep
    @pytest.mark.parametrize("mode", ["Fail", "Append"][: examples.number(1, deep=2)])
    def test_a_driver_killed_in_the_middle_continues_where_it_was(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, mode: str
    ) -> None:
        root = tmp_path / "archive"
        self.archive(root, unique, 30_000)
        copy = f"{unique}-copy"
        if mode == "Append":
            create_topic(kafka.bootstrap, copy, 1, NO_RETENTION)
        spec = restore_spec(kafka, root, ifTopicExists=mode)
        file = tmp_path / "request.json"
        slow = {**spec, "limits": {"bytesPerSecond": "100Ki"}}  # much longer for all of it than until it is killed
        file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=slow).to_json())
        driver = start_driver(file)
        wait_for_more(kafka, copy, driver, 100_000, partitions="0")
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert 0 < len(committed(kafka, copy)) < 30_000
        assert bring_back(spec, "r1").records == 30_000
        assert committed(kafka, copy) == self.expected(30_000)
        assert offset_map(root, "r1", copy).rows == [(0, 0, 30_000)]


class TestManyPartitions:
    def test_they_share_a_task_and_each_has_its_own_map(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 20)
        for partition in range(0, 20, 2):
            produce(kafka.bootstrap, unique, numbered(100 + partition, partition=partition), compression="lz4")
        back_up(backup_spec(kafka, tmp_path, unique))
        taken: list[int] = []
        note = ThreadRunner(before=lambda item: taken.append(len(item)) if _restores(item) else None)
        result = bring_back(restore_spec(kafka, tmp_path), runner=note)
        assert sum(taken) == 10
        assert max(taken) > 1
        assert result.records == sum(range(100, 120, 2))
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)
        for partition in range(0, 20, 2):
            found = offset_map(tmp_path, "restore-1", f"{unique}-copy", partition)
            assert found.rows == [(0, 0, 100 + partition)]

    def test_a_task_that_is_repeated_does_not_look_again_at_what_is_done(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique, 4)
        for partition in range(4):
            produce(kafka.bootstrap, unique, numbered(50, partition=partition))
        back_up(backup_spec(kafka, tmp_path, unique))
        twice = _Twice(tmp_path)
        assert bring_back(restore_spec(kafka, tmp_path), runner=twice).records == 200
        assert twice.repeated == 4
        comparison = compare_topics(kafka.bootstrap, unique, f"{unique}-copy")
        assert comparison.equal, str(comparison)

    def test_memory_is_bounded_whatever_the_size(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        storage = open_uri((tmp_path / "archive").as_uri())
        topic = TopicEntry(unique, TOPIC_ID, 6, 1, {"retention.ms": "-1"})
        value = os.urandom(900_000)
        with begin(storage) as writer:
            receipts = []
            for partition in range(6):
                made = [LogRecord(at, NOW, None, value) for at in range(60)]
                data = [encode([one], codec=Codec.NONE, base_offset=one.offset) for one in made]
                entry = write_segment(storage, data, topic=topic, partition=partition)
                receipts.append(Receipt((Coverage(TOPIC_ID, partition, 0, 60),), (entry,)))
            writer.commit(topics=[topic], receipts=receipts)
            writer.end(RunOutcome.SUCCEEDED)
        assert_little_memory(restore_spec(kafka, tmp_path / "archive"), 360)


class _Twice(Runner):
    """Runs restore tasks a second time, as another attempt, when the archived logs of what is done are gone."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.repeated = 0

    def perform(self, job: Job) -> None:
        if job.name != "restore_partitions":
            job.on(ThreadRunner())
            return
        for index, item in enumerate(job.work):
            first = job.function(item, Context(0))
            for task in item:
                archived = task.archived
                archived.storage.delete(
                    {entry.place(archived.topic, entry.log_suffix).path for entry in archived.segments}
                )
            assert job.function(item, Context(1)) == first
            self.repeated += len(item)
            job.on_result(index, first)


def _batches_of(kafka: KafkaBroker, topic: str) -> list[bytes]:
    logs = sorted(kafka.data_dir.glob(f"{topic}-0/*.log"))
    return [found for log in logs for found in whole_batches(log.read_bytes())]


class TestViews:
    def test_what_an_unfinished_run_has_archived_is_not_restored(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        back_up(backup_spec(kafka, tmp_path, unique))
        storage = open_uri(tmp_path.as_uri())
        archive = Archive.open(storage, FOR_TEST)
        (topic,) = archive.load().topics.values()
        with begin_run(archive, "dead-run") as writer:
            entry = write_segment(storage, [batch(10, 5)], topic=topic, epoch=2)
            writer.commit(receipts=[Receipt((Coverage(topic.topic_id, 0, 10, 15),), (entry,))])
        result = bring_back(restore_spec(kafka, tmp_path))
        assert result.records == 10
        assert any("dead-run has not succeeded" in warning for warning in result.warnings)

    def test_what_is_archived_after_a_loss_that_nobody_has_accepted_yet_is_restored(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(10))
        spec = backup_spec(kafka, tmp_path, unique)
        back_up(spec)
        produce(kafka.bootstrap, unique, numbered(10))
        Topics(kafka).delete_records(unique, 15)
        failed = try_backup(spec, "backup-2")
        assert (failed.outcome, failed.error_code) == ("Failed", "DataLoss")
        result = bring_back(restore_spec(kafka, tmp_path))
        assert result.records == 15
        assert [(fact.start, fact.end) for fact in result.loss] == [(10, 15)]
        assert any("run backup-2 failed after it had archived all that it could" in it for it in result.warnings)

    def test_without_a_successful_run_a_transaction_is_as_its_index_says(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        """All was below the last stable offset when it was fetched, so the end of each transaction was known then."""
        batches = [
            batch(0, 5, producer_id=1, transactional=True),
            marker(5, 1, commit=True),
            batch(6, 2, producer_id=2, transactional=True),
            batch(8, 2),
            batch(10, 3, producer_id=1, transactional=True),
        ]
        aborted = [AbortedTxn(2, 6, 7, 6)]
        handmade(tmp_path, unique, batches, end=13, finished=False, aborted=aborted)
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"))
        assert len(committed(kafka, f"{unique}-copy")) == 5 + 2 + 3
        assert result.loss == ()
        assert any("no backup of this archive has succeeded" in warning for warning in result.warnings)

    def test_a_marker_is_believed_more_than_the_index_and_it_is_reported(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        batches = [
            batch(0, 5, producer_id=1, transactional=True),
            batch(5, 2, producer_id=2, transactional=True),
            marker(7, 1, commit=False),
            marker(8, 2, commit=True),
            batch(9, 2),
        ]
        handmade(tmp_path, unique, batches, end=11, aborted=[AbortedTxn(2, 5, 6, 5)])
        result = bring_back(restore_spec(kafka, tmp_path))
        assert len(committed(kafka, f"{unique}-copy")) == 2 + 2
        (lines,) = [warning for warning in result.warnings if "marker" in warning]
        assert "producer 1 with offsets 0 to 7 ends with an ABORT marker" in lines
        assert "and 1 more transactions" in lines

    def test_what_is_unknown_of_transactions_is_left_out_and_told(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        """The index is lost, and the log ends before the marker."""
        batches = [
            batch(0, 5, producer_id=1, transactional=True),
            batch(5, 2, producer_id=2, transactional=True),
            marker(7, 2, commit=False),
            batch(8, 2),
        ]
        storage = handmade(tmp_path, unique, batches, end=10, aborted=[AbortedTxn(2, 5, 7, 5)])
        storage.delete(info.path for info in storage.list("topics/") if info.path.endswith(".txnindex"))
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"))
        assert len(committed(kafka, f"{unique}-copy")) == 2
        assert [(fact.start, fact.end) for fact in result.loss] == [(0, 5)]
        assert result.loss[0].reason == "outcome of a transaction of producer 1 is not archived"

    def test_what_a_failed_run_has_not_archived_is_reported_also_at_the_front(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        storage = open_uri(tmp_path.as_uri())
        topic = TopicEntry(unique, TOPIC_ID, 1, 1, {"retention.ms": "-1"})
        with begin(storage) as writer:
            chunks = tuple(Chunk(unique, TOPIC_ID, 0, start, start + 10, 1, 100) for start in (0, 10, 20, 30))
            storage.put("runs/run-1/plan.json", BackupPlan("run-1", (topic,), chunks).to_json())
            writer.commit(
                topics=[topic], receipts=[chunk(storage, start, start + 10, topic=topic) for start in (10, 30)]
            )
            writer.end(RunOutcome.FAILED)
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"))
        assert result.records == 20
        assert [(fact.start, fact.end) for fact in result.loss] == [(0, 10), (20, 30)]
        assert {fact.reason for fact in result.loss} == {
            "neither archived nor recorded as lost: a run did not finish, or had onDataLoss: Fail"
        }
