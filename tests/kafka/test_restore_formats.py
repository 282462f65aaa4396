"""Restores of archives that hold records (formats Records and Avro) on a real broker."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from logkeep_engine.archive.catalog.entry import Layout
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.contract.archive_format import Compatibility, FormatOptions
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.errors import ArchiveDamaged, SpecError, TargetUnsuitable
from logkeep_engine.log.batch import parse_header
from logkeep_engine.log.codec import PlainRecord
from logkeep_engine.log.compression import Codec
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import open_storage
from tests import examples
from tests.cluster.kafka import KafkaBroker
from tests.cluster.s3 import S3Server
from tests.data.topics import NO_RETENTION, create_topic, topic_names
from tests.kafka.raw import batches as whole_batches
from tests.kafka.record_archives import group, topic_entry, write_archive
from tests.kafka.restores import (
    Only,
    Seen,
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
    wait_for_more,
)

NOW = int(time.time() * 1000) - 3_600_000
CREATE, APPEND = 0, 1
BOTH = pytest.mark.parametrize("layout", [Layout.RECORDS, Layout.AVRO], ids=["records", "avro"])


def numbered(count: int, *, size: int = 0, step: int = 1) -> list[PlainRecord]:
    noise = random.Random(7)
    return [
        PlainRecord(at * step, NOW + at, CREATE, b"k%d" % at, b"v%d " % at + noise.randbytes(size), [("h", b"1")])
        for at in range(count)
    ]


def unusual() -> list[PlainRecord]:
    """Nulls, empty fields, headers of every kind, holes, and all types of timestamps."""
    return [
        PlainRecord(3, NOW + 5, CREATE, None, b"no key", []),
        PlainRecord(4, NOW, CREATE, b"tombstone", None, []),
        PlainRecord(5, NOW + 1, CREATE, b"", b"", []),
        PlainRecord(
            9, NOW + 2, CREATE, b"k", b"twice", [("b", b"2"), ("a", b"1"), ("b", None), ("", b""), ("é", b"3")]
        ),
        PlainRecord(10, NOW + 3, APPEND, b"k", b"append time", [("h", b"x")]),
        PlainRecord(11, None, CREATE, b"k", b"null time", []),
        PlainRecord(20, None, None, b"k", b"no time", []),
        PlainRecord(21, 0, CREATE, b"k", b"1970", []),
    ]


def expected(records: list[PlainRecord], first: int = 0) -> list[Seen]:
    """The records that a consumer sees after a restore of these."""
    return [
        (
            first + at,
            record.key,
            record.value,
            tuple(record.headers),
            -1 if record.timestamp is None else record.timestamp,
        )
        for at, record in enumerate(records)
    ]


def batches_of(kafka: KafkaBroker, topic: str, partition: int = 0) -> list[bytes]:
    logs = sorted(kafka.data_dir.glob(f"{topic}-{partition}/*.log"))
    return [found for log in logs for found in whole_batches(log.read_bytes())]


class TestRecordsComeBack:
    @BOTH
    def test_with_everything_a_consumer_sees(
        self, kafka: KafkaBroker, spark_context: SparkContext, unique: str, tmp_path: Path, layout: Layout
    ) -> None:
        topic = topic_entry(unique, 3, cleanup_policy="compact")
        write_archive(tmp_path, layout, topic, {0: unusual(), 2: numbered(5000)}, limit_bytes=20_000)
        result = bring_back(restore_spec(kafka, tmp_path), runner=SparkRunner(spark_context))
        copy = f"{unique}-copy"
        assert committed(kafka, copy, 0) == expected(unusual())
        assert committed(kafka, copy, 1) == []
        assert committed(kafka, copy, 2) == expected(numbered(5000))
        assert (result.outcome, result.records, result.partitions) == ("Succeeded", 5008, 3)
        assert result.segments > 3
        assert topic_settings(kafka, copy) == {"retention.ms": "-1", "cleanup.policy": "compact"}
        assert offset_map(tmp_path, "restore-1", copy, 0).rows == [(3, 0, 3), (9, 3, 3), (20, 6, 2)]
        assert offset_map(tmp_path, "restore-1", copy, 2).rows == [(0, 0, 5000)]
        assert any("append times" in warning for warning in result.warnings)

    def test_of_the_published_avro_schema_without_what_it_cannot_hold(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        options = FormatOptions(compatibility=Compatibility.STRICT, allow_loss=True)
        records = [
            PlainRecord(0, NOW, CREATE, b"k", b"v", [("a", b"1")]),
            PlainRecord(1, NOW + 1, APPEND, None, b"", []),
            PlainRecord(2, NOW + 2, CREATE, b"k", None, [("a", b"1"), ("b", None), ("a", b"2")]),
            PlainRecord(3, None, None, b"k", b"v", []),
        ]
        write_archive(tmp_path, Layout.AVRO, topic_entry(unique), {0: records}, options=options)
        result = bring_back(restore_spec(kafka, tmp_path))
        held = [*records[:2], PlainRecord(2, NOW + 2, CREATE, b"k", b"", [("a", b"2"), ("b", b"")]), records[3]]
        found = committed(kafka, f"{unique}-copy")
        found[2] = (*found[2][:3], tuple(sorted(found[2][3])), found[2][4])  # the headers of a map have no order
        assert found == expected(held)
        assert result.warnings == ()

    @BOTH
    def test_from_a_backup_of_a_topic(self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout) -> None:
        native, root = tmp_path / "native", tmp_path / "records"
        write_archive(native, Layout.RECORDS, topic_entry(unique), {0: unusual()[:4] + numbered(3000)[30:]})
        bring_back(restore_spec(kafka, native, suffix=""))
        source = committed(kafka, unique)
        back_up(backup_spec(kafka, root, unique, format=layout.name.capitalize()))
        bring_back(restore_spec(kafka, root))
        assert committed(kafka, f"{unique}-copy") == source
        assert len(source) == 2974

    def test_from_an_object_store(
        self,
        kafka: KafkaBroker,
        s3: S3Server,
        bucket: str,
        storage_environment: None,
        unique: str,
        tmp_path: Path,
    ) -> None:
        storage = {"uri": f"s3://{bucket}/kafka", "endpoint": s3.endpoint}
        made = open_storage(StorageSpec.model_validate(storage), os.environ)
        topic = topic_entry(unique)
        groups = [group(unique, topic, 5)]
        write_archive(made, Layout.AVRO, topic, {0: unusual() + numbered(3000)[30:]}, limit_bytes=50_000, groups=groups)
        spec = {
            **restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate"}),
            "source": {"storage": storage},
        }
        result = bring_back(spec)
        assert (result.records, result.groups) == (2978, 1)
        assert committed(kafka, f"{unique}-copy") == expected(unusual() + numbered(3000)[30:])
        assert made.list("runs/restore-1/consumer-groups.json")

    def test_of_a_folder_that_another_tool_wrote(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        topic = TopicEntry(unique, "imported-" + "A" * 13, 2, -1)
        write_archive(
            tmp_path, Layout.RECORDS_AT_ROOT, topic, {0: unusual(), 1: numbered(300)}, limit_bytes=2000, imported=True
        )
        assert [path for path in (tmp_path / "topics").rglob("*") if path.is_file()] == []
        spec = restore_spec(kafka, tmp_path)
        result = bring_back({**spec, "topics": {**spec["topics"], "configs": {"override": NO_RETENTION}}})
        assert committed(kafka, f"{unique}-copy", 0) == expected(unusual())
        assert committed(kafka, f"{unique}-copy", 1) == expected(numbered(300))
        assert topic_settings(kafka, f"{unique}-copy") == NO_RETENTION
        assert not any("replicas" in warning for warning in result.warnings)

    @BOTH
    def test_after_what_a_topic_holds(self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout) -> None:
        copy = f"{unique}-copy"
        create_topic(kafka.bootstrap, copy, 1, NO_RETENTION)
        first = tmp_path / "first"
        write_archive(first, layout, topic_entry(unique), {0: numbered(7)})
        second = tmp_path / "second"
        write_archive(second, layout, topic_entry(unique), {0: unusual()})
        bring_back(restore_spec(kafka, first, ifTopicExists="Append"))
        bring_back(restore_spec(kafka, second, ifTopicExists="Append"))
        assert committed(kafka, copy) == expected(numbered(7)) + expected(unusual(), 7)
        assert offset_map(second, "restore-1", copy).rows == [(3, 7, 3), (9, 10, 3), (20, 13, 2)]


class TestBatches:
    @pytest.mark.parametrize("name", ["None", "Gzip", "Snappy", "Lz4", "Zstd"])
    def test_are_as_the_spec_says(self, kafka: KafkaBroker, unique: str, tmp_path: Path, name: str) -> None:
        write_archive(tmp_path, Layout.RECORDS, topic_entry(unique), {0: numbered(100)}, limit_bytes=1000)
        bring_back(restore_spec(kafka, tmp_path, recordBatches={"maxRecords": 7, "compression": name}))
        headers = [parse_header(found) for found in batches_of(kafka, f"{unique}-copy")]
        assert [header.record_count for header in headers] == [7] * 14 + [2]
        assert {header.codec for header in headers} == {Codec[name.upper()]}
        assert committed(kafka, f"{unique}-copy") == expected(numbered(100))

    @BOTH
    def test_are_few_and_compressed_by_default(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout
    ) -> None:
        write_archive(tmp_path, layout, topic_entry(unique), {0: numbered(30_000)}, limit_bytes=100_000)
        bring_back(restore_spec(kafka, tmp_path))
        headers = [parse_header(found) for found in batches_of(kafka, f"{unique}-copy")]
        assert [header.record_count for header in headers] == [10_000] * 3
        assert {header.codec for header in headers} == {Codec.LZ4}

    def test_are_not_larger_than_the_topic_takes(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        records = numbered(200, size=900)
        write_archive(tmp_path, Layout.RECORDS, topic_entry(unique), {0: records})
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, {**NO_RETENTION, "max.message.bytes": "5000"})
        bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        assert committed(kafka, f"{unique}-copy") == expected(records)
        assert max(map(len, batches_of(kafka, f"{unique}-copy"))) <= 5000

    def test_of_a_new_topic_are_not_larger_than_those_of_the_source_were(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        records = numbered(200, size=900)
        write_archive(tmp_path, Layout.RECORDS, topic_entry(unique, max_message_bytes="20000"), {0: records})
        bring_back(restore_spec(kafka, tmp_path, recordBatches={"compression": "None"}))
        assert committed(kafka, f"{unique}-copy") == expected(records)
        assert max(map(len, batches_of(kafka, f"{unique}-copy"))) <= 20_000

    @BOTH
    def test_a_record_larger_than_a_batch_may_be_comes_back(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout
    ) -> None:
        records = numbered(3, size=3_000_000)
        write_archive(tmp_path, layout, topic_entry(unique, max_message_bytes="4000000"), {0: records})
        bring_back(restore_spec(kafka, tmp_path))
        assert committed(kafka, f"{unique}-copy") == expected(records)

    def test_a_record_that_the_target_cannot_take_is_refused_first(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        write_archive(tmp_path, Layout.RECORDS, topic_entry(unique), {0: numbered(3, size=9000)})
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, {"max.message.bytes": "5000"})
        with pytest.raises(TargetUnsuitable, match=r"takes batches of at most max\.message\.bytes=5000"):
            bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"))
        assert committed(kafka, f"{unique}-copy") == []

    def test_of_kafkas_own_format_stay_as_they_are(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        back_up(backup_spec(kafka, tmp_path, unique))
        with pytest.raises(SpecError) as caught:
            bring_back(restore_spec(kafka, tmp_path, recordBatches={"maxRecords": 5}))
        assert caught.value.message == (
            "spec.recordBatches: the archive has Kafka's own batches, which are restored as they are"
        )


KILLED = ((Layout.RECORDS, "Append"), (Layout.AVRO, "Fail"), (Layout.RECORDS, "Fail"), (Layout.AVRO, "Append"))


class TestStartedAgain:
    @pytest.mark.deep
    @pytest.mark.parametrize(("layout", "mode"), KILLED[: examples.number(2, deep=4)])
    def test_a_driver_killed_in_the_middle_continues_where_it_was(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout, mode: str
    ) -> None:
        """A restore reads each layout in its own way, and knows in each mode what it has written."""
        root, copy = tmp_path / "archive", f"{unique}-copy"
        records = numbered(12_000, size=400, step=2)
        write_archive(root, layout, topic_entry(unique), {0: records}, limit_bytes=600_000)
        if mode == "Append":
            create_topic(kafka.bootstrap, copy, 1, NO_RETENTION)
        batching = {"maxRecords": 50, "compression": "Zstd"}
        spec = restore_spec(kafka, root, ifTopicExists=mode, recordBatches=batching)
        file = tmp_path / "request.json"
        slow = {**spec, "limits": {"bytesPerSecond": "400Ki"}}  # much longer for all of it than until it is killed
        file.write_text(RunRequest(kind="KafkaRestore", name="test", namespace="", run_id="r1", spec=slow).to_json())
        driver = start_driver(file)
        wait_for_more(kafka, copy, driver, 400_000, partitions="0")
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert 0 < len(batches_of(kafka, copy)) < 240
        with pytest.raises(SpecError, match="was started with another spec"):
            bring_back({**spec, "recordBatches": {**batching, "maxRecords": 60}}, "r1")
        assert bring_back(spec, "r1").records == 12_000
        assert committed(kafka, copy) == expected(records)
        assert len(batches_of(kafka, copy)) == 240
        assert len(offset_map(root, "r1", copy).rows) == 12_000

    def test_two_tasks_of_one_partition_at_once_write_every_record_once(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        records = numbered(5000)
        write_archive(tmp_path, Layout.AVRO, topic_entry(unique), {0: records}, limit_bytes=25_000)
        twice = Only(ThreadRunner(copies=2), "restore_partitions")
        bring_back(restore_spec(kafka, tmp_path, recordBatches={"maxRecords": 20}), runner=twice)
        assert committed(kafka, f"{unique}-copy") == expected(records)


class TestDamagedArchive:
    def refused(self, kafka: KafkaBroker, unique: str, root: Path) -> ArchiveDamaged:
        with pytest.raises(ArchiveDamaged) as caught:
            bring_back(restore_spec(kafka, root))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
        assert "nothing was written to Kafka" in caught.value.message
        return caught.value

    def segments(self, root: Path, layout: Layout) -> list[Path]:
        pattern = "topics/*/*_records" if layout is Layout.RECORDS else "topics/*/*/*.data"
        found = sorted(root.glob(pattern))
        assert len(found) > 3
        return found

    @BOTH
    @pytest.mark.parametrize("damage", ["flipped", "short", "gone"])
    def test_costs_the_segment_and_is_reported(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout, damage: str
    ) -> None:
        records = numbered(1000, size=50)
        write_archive(tmp_path, layout, topic_entry(unique), {0: records}, limit_bytes=20_000)
        second = self.segments(tmp_path, layout)[1]
        data = bytearray(second.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "gone":
            second.unlink()
        else:
            second.write_bytes(data if damage == "flipped" else data[:-100])
        assert second.name in self.refused(kafka, unique, tmp_path).message
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
        (fact,) = result.loss
        assert (fact.topic, fact.partition, result.loss_total) == (unique, 0, 1)
        assert result.loss_offsets == fact.end - fact.start
        assert "it is unknown which records of the object are intact" in fact.reason
        left = [record for record in records if not fact.start <= record.offset < fact.end]
        assert 0 < fact.start < fact.end < 1000
        assert committed(kafka, f"{unique}-copy") == expected(left)
        assert any("the archive has" in warning and second.name in warning for warning in result.warnings)

    def test_an_index_that_is_missing_costs_nothing(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        write_archive(tmp_path, Layout.RECORDS, topic_entry(unique), {0: numbered(1000)}, limit_bytes=10_000)
        index = sorted(tmp_path.glob("topics/*/segment_*_index"))[1]
        index.unlink()
        assert index.name in self.refused(kafka, unique, tmp_path).message
        result = bring_back(restore_spec(kafka, tmp_path, onDamagedArchive="Skip"), "restore-2")
        assert result.loss == ()
        assert committed(kafka, f"{unique}-copy") == expected(numbered(1000))

    @BOTH
    def test_after_the_plan_was_made_stops_the_restore(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout
    ) -> None:
        write_archive(tmp_path, layout, topic_entry(unique), {0: numbered(1000)}, limit_bytes=10_000)
        first = self.segments(tmp_path, layout)[0]

        def damage(item: Any) -> None:
            if isinstance(item, tuple):
                first.write_bytes(first.read_bytes()[:-5])

        with pytest.raises(ArchiveDamaged, match=first.name.replace("+", r"\+")):
            bring_back(restore_spec(kafka, tmp_path), runner=ThreadRunner(before=damage))


class TestMemory:
    @pytest.mark.deep
    @pytest.mark.parametrize(
        ("layout", "count", "size"),
        [
            pytest.param(Layout.RECORDS, 120_000, 80, id="small records"),
            pytest.param(Layout.AVRO, 60, 900_000, id="large avro"),
            pytest.param(Layout.AVRO, 120_000, 80, id="small avro"),
        ][: examples.number(2, deep=3)],
    )
    def test_is_bounded_whatever_the_records_are(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, layout: Layout, count: int, size: int
    ) -> None:
        records = numbered(count, size=size)
        partitions = dict.fromkeys(range(4), records)
        write_archive(tmp_path, layout, topic_entry(unique, 4), partitions, limit_bytes=32 << 20)
        assert_little_memory(restore_spec(kafka, tmp_path), 4 * count)
