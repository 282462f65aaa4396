"""Conversions of what a real broker held, on Spark, between files and S3, and as a user runs them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Coverage, Receipt, RemovedSegment, RunOutcome
from logkeep_engine.archive.catalog.writer import begin_run
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.convert.run import ConvertOptions, run_convert
from logkeep_engine.convert.source import archive_source
from logkeep_engine.report import Reporter
from logkeep_engine.spark.runner import SparkRunner
from logkeep_engine.storage import LocalStorage, Storage, open_uri
from tests import examples
from tests.cluster.s3 import S3Server
from tests.command import logkeep
from tests.data.compare import compare_topics
from tests.kafka.backing_up import Backups, Topics, folder_spec, numbers
from tests.kafka.restores import bring_back, restore_spec
from tests.kafka.test_backup_formats import Consumed, consumed
from tests.kafka.test_cli import assert_refused
from tests.unit.archive.build import ORDERS as BUILT
from tests.unit.archive.build import Batch, archive_of, write_segment
from tests.unit.convert.converting import Seen, contents, folder, tricky

PARTITIONS = 12
RECORDS = 10_000


def filled(topics: Topics, name: str) -> str:
    """A topic with every codec, transactions of both kinds, keys, and no value here and there."""
    topics.create(name, 2)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        topics.produce(name, numbers(200, first=200 * number), codec=codec, key=lambda at: b"key-%d" % at)
    topics.transaction(name, numbers(20), commit=True)
    topics.transaction(name, numbers(20), commit=False)
    topics.transaction(name, numbers(5), commit=False, partition=1)
    topics.produce(name, [b"", b"last"])
    topics.commit_position("readers", name, 17)
    return name


def on_spark(context: SparkContext, source: Storage, target: Storage, format_name: str) -> None:
    done = run_convert(
        "convert-1",
        lambda runner_factory, reporter: archive_source(source),
        target,
        ConvertOptions(FormatName(format_name)),
        lambda: SparkRunner(context),
        Reporter("convert-1"),
    )
    assert done.result.outcome == "Succeeded", done.result.message
    assert [str(fault) for fault in verify(Archive.open(target)).faults] == []


def as_consumed(records: list[Seen]) -> list[Consumed]:
    return [(offset, time, kind, key, value, tuple(headers)) for offset, time, kind, key, value, headers in records]


def test_a_chain_over_all_formats_and_stores_ends_with_what_consumers_read(
    topics: Topics, spark_context: SparkContext, s3: S3Server, bucket: str, tmp_path: Path, unique: str
) -> None:
    name = filled(topics, unique)
    here = {"uri": f"s3://{bucket}/first", "endpoint": s3.endpoint, "region": s3.region}
    backups = Backups(topics.broker, here, lambda: spark_context)
    assert backups.run(name).outcome == "Succeeded"
    expected = {partition: consumed(topics, name, partition) for partition in (0, 1)}
    last = open_uri(f"s3://{bucket}/last", s3.endpoint, s3.region)
    records, avro = folder(tmp_path / "records"), folder(tmp_path / "avro")
    source: Storage = backups.storage
    for target, format_name in ((records, "Records"), (avro, "Avro"), (last, "Kafka")):
        on_spark(spark_context, source, target, format_name)
        found = contents(target)
        assert {partition: as_consumed(found.get((name, partition), [])) for partition in (0, 1)} == expected
        source = target
    before, after = Archive.open(backups.storage).load(), Archive.open(last).load()
    assert before.groups == after.groups
    assert before.topics == after.topics


def test_what_was_converted_there_and_back_can_be_restored(
    topics: Topics, spark_context: SparkContext, tmp_path: Path, unique: str
) -> None:
    name = filled(topics, unique)
    backups = Backups(topics.broker, folder_spec(tmp_path / "first"), lambda: spark_context)
    assert backups.run(name).outcome == "Succeeded"
    on_spark(spark_context, folder(tmp_path / "first"), folder(tmp_path / "avro"), "Avro")
    on_spark(spark_context, folder(tmp_path / "avro"), folder(tmp_path / "again"), "Kafka")
    result = bring_back(restore_spec(topics.broker, tmp_path / "again"))
    assert result.outcome == "Succeeded", result.message
    comparison = compare_topics(topics.broker.bootstrap, name, f"{name}-copy")
    assert comparison.equal, str(comparison)


@pytest.mark.parametrize("format_name", ["Kafka", "Records"])
def test_a_backup_continues_in_an_archive_that_was_converted(
    topics: Topics, spark_context: SparkContext, tmp_path: Path, unique: str, format_name: str
) -> None:
    """It fetches what is new, and nothing of what retention had removed before."""
    name = topics.create(unique)
    first = Backups(topics.broker, folder_spec(tmp_path / "first"), lambda: spark_context)
    for number in range(3):
        topics.produce(name, numbers(100, first=100 * number))
        assert first.run(name).outcome == "Succeeded"
    topics.commit_position("readers", name, 17)
    assert first.run(name).outcome == "Succeeded"
    (_, middle, _) = first.segments(name)
    with begin_run(first.archive, "retention") as writer:
        writer.end(RunOutcome.SUCCEEDED, groups=writer.state.groups)
        writer.remove([RemovedSegment(middle.topic_id, 0, middle.base_offset)])
    on_spark(spark_context, first.storage, folder(tmp_path / "target"), format_name)
    topics.produce(name, numbers(100, first=300))
    backups = Backups(topics.broker, folder_spec(tmp_path / "target"), lambda: spark_context)
    result = backups.run(name, format=format_name)
    assert (result.outcome, result.records) == ("Succeeded", 100), result.message
    assert backups.faults() == []
    assert backups.state().accounted_for(middle.topic_id, 0) == [(0, 400)]
    assert [group.offset for group in backups.state().groups if group.group_id == "readers"] == [17]
    left = [*range(100), *range(200, 400)]
    assert as_consumed(contents(backups.storage)[name, 0]) == [
        record for record in consumed(topics, name) if record[0] in left
    ]
    result = bring_back(restore_spec(topics.broker, tmp_path / "target"))
    assert (result.outcome, result.records) == ("Succeeded", 300), result.message
    assert any("removed by retention from the archive that was converted" in line for line in result.warnings)


@pytest.mark.deep
@pytest.mark.parametrize("format_name", ["Records", "Kafka"][: examples.number(1, deep=2)])
def test_a_run_that_is_killed_continues_where_it_was(tmp_path: Path, format_name: str) -> None:
    """Killed at once with all its workers, as a pod is, when a part of it was committed."""
    source, target = folder(tmp_path / "source"), folder(tmp_path / "target")
    large_archive(source)
    first = source
    if format_name == "Kafka":
        first = folder(tmp_path / "records")
        assert logkeep("convert", source.uri, first.uri, "--format", "Records").returncode == 0
    options = [first.uri, target.uri, "--format", format_name, "--run-id", "killed", "--master", "local[1]"]
    command = [sys.executable, "-m", "tests.kafka.dying", "SIGKILL", "logkeep_engine.cli", "convert", *options]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ, start_new_session=True
    )
    assert running.wait(200) == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)  # Spark and its workers
    before = Archive.open(target).load()
    done_before = sum(entry.records for key in before.segments for entry in before.segments[key])
    assert 0 < done_before < PARTITIONS * RECORDS
    done = logkeep("convert", *options, "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["records"] == PARTITIONS * RECORDS
    assert [str(fault) for fault in verify(Archive.open(target)).faults] == []
    assert contents(target) == contents(source)
    assert Archive.open(target).load().runs["killed"].attempts == 2


def large_archive(storage: LocalStorage) -> None:
    receipts = []
    for partition in range(PARTITIONS):
        batches = [Batch(offset, 500).encode() for offset in range(0, RECORDS, 500)]
        entry = write_segment(storage, batches, partition=partition)
        receipts.append(Receipt((Coverage(BUILT.topic_id, partition, 0, RECORDS),), (entry,)))
    archive_of(storage, *receipts)


class TestCommand:
    def test_a_conversion_says_what_it_did_and_what_was_lost(self, tmp_path: Path) -> None:
        tricky(folder(tmp_path / "source"))
        source, target = (tmp_path / "source").as_uri(), (tmp_path / "target").as_uri()
        done = logkeep("convert", source, target, "--format", "Records", "--run-id", "c1")
        assert done.returncode == 0, done.stderr
        assert "outcome     Succeeded" in done.stdout
        rows = [line.split() for line in done.stdout.splitlines()]
        assert ["compression", "orders", "0", "4", "2"] in rows
        assert "warning: Not in the target: 4 compressed batches, in 1 topic." in done.stderr
        assert logkeep("verify", target).returncode == 0

    def test_a_dry_run_prints_the_report_and_writes_nothing(self, tmp_path: Path) -> None:
        tricky(folder(tmp_path / "source"))
        source, target = (tmp_path / "source").as_uri(), (tmp_path / "target").as_uri()
        strict = ["--format", "Avro", "--compatibility", "strict"]
        done = logkeep("convert", source, target, *strict, "--dry-run", "-o", "json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert document["dryRun"] is True
        assert {"what": "null value", "topic": "orders", "partition": 0, "records": 1, "firstOffset": 1} in document[
            "losses"
        ]
        assert not (tmp_path / "target").exists()
        assert_refused(
            logkeep("convert", source, target, *strict, "--run-id", "c1"), "cannot hold what the records carry"
        )
        assert not (tmp_path / "target").exists()
        assert logkeep("convert", source, target, *strict, "--allow-loss").returncode == 0

    def test_topics_can_be_chosen(self, tmp_path: Path) -> None:
        tricky(folder(tmp_path / "source"))
        source, target = (tmp_path / "source").as_uri(), tmp_path / "target"
        assert logkeep("convert", source, target.as_uri(), "--format", "Avro", "--topic", "no.*").returncode == 0
        assert {name for name, _ in contents(folder(target))} == {"notes"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--format", "Records", "--codec", "snappy"], "--codec is an option of format Avro, not of Records"),
            (["--format", "Records", "--batch-compression", "Lz4"], "--batch-compression is an option of format Kafka"),
            (["--format", "Kafka", "--allow-loss"], "--allow-loss has no effect"),
            (["--format", "Kafka", "--segment-bytes", "64Mi"], "--segment-bytes has no effect: from Kafka to Kafka"),
            (["--format", "Avro", "--exclude", ".*"], "--topic and --exclude leave none of the 2 topics"),
        ],
    )
    def test_options_that_do_not_fit_are_refused(self, tmp_path: Path, options: list[str], message: str) -> None:
        tricky(folder(tmp_path / "source"))
        source, target = (tmp_path / "source").as_uri(), (tmp_path / "target").as_uri()
        done = logkeep("convert", source, target, *options)
        assert done.returncode == 2
        assert_refused(done, message)
        assert not (tmp_path / "target").exists()
