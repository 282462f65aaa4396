"""A dry run says what a run would do, and what would refuse it, and changes nothing anywhere."""

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ResourceType

from logkeep_engine.archive.maintenance import rates
from logkeep_engine.contract.facts.dry_run import DryRunReport
from logkeep_engine.contract.names import ENV_KAFKA_PASSWORD, ENV_KAFKA_USERNAME
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import LogkeepError
from logkeep_engine.restore.run import dry_run
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import Record, commit_positions, create_topic, produce, topic_names
from tests.kafka.backing_up import Topics
from tests.kafka.restores import (
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    topic_settings,
    transactions,
    without_offsets,
)
from tests.kafka.test_cli import resource
from tests.kafka.test_rights import GROUP, READER, TOPIC, WRITER, Rights

NOW = int(time.time() * 1000) - 3_600_000  # older records would be deleted where a topic has the default retention


def numbered(count: int, partition: int = 0) -> Iterator[Record]:
    return (Record(b"k%d" % n, b"v%d" % n, NOW + n, [], partition) for n in range(count))


def stored(root: Path) -> dict[str, str]:
    """All objects below a folder, with their content."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def cluster_state(broker: KafkaBroker, *topics: str) -> Any:
    """Topics with their partitions, and what the logs of some hold."""
    found = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    ends = {
        str(path.relative_to(broker.data_dir)): path.stat().st_size
        for topic in topics
        for path in broker.data_dir.glob(f"{topic}*/*.log")
    }
    return {name: len(topic.partitions) for name, topic in found.items()}, ends


def find_out(broker: KafkaBroker, root: Path, spec: Mapping[str, Any], topic: str) -> tuple[RunResult, DryRunReport]:
    """The report of a dry run, which has changed neither the archive nor the cluster."""
    before = stored(root), cluster_state(broker, topic)
    result = bring_back({**spec, "dryRun": True}, "dry-1")
    assert (stored(root), cluster_state(broker, topic)) == before
    assert result.outcome == "DryRun"
    assert result.records == 0
    assert result.dry_run is not None
    return result, result.dry_run


class TestWhatWouldBeDone:
    def test_the_run_after_it_does_what_it_has_told(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 2, {"retention.ms": "86400000", "segment.bytes": "1048576"})
        produce(kafka.bootstrap, unique, [*numbered(50), *numbered(30, 1)])
        commit_positions(kafka.bootstrap, f"{unique}-group", {(unique, 0): 20, (unique, 1): 3})
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate", "include": [f"{unique}.*"]})
        result, report = find_out(kafka, tmp_path, spec, unique)
        assert (report.refused, report.refusals) == (0, ())
        assert (report.topics, report.topics_created, report.partitions) == (1, 1, 2)
        assert (report.records, report.counts) == (80, "Exact")
        assert report.bytes > 1000
        assert (report.groups, report.positions) == (1, 2)
        assert [
            (item.group, item.topic, item.partition, item.source_offset, item.record, item.target_offset)
            for item in report.position_list
        ] == [(f"{unique}-group", f"{unique}-copy", number, at, at, at) for number, at in ((0, 20), (1, 3))]
        (topic,) = report.topic_list
        assert (topic.topic, topic.source, topic.state) == (f"{unique}-copy", unique, "New")
        assert (topic.partitions, topic.replicas, topic.records) == (2, 1, 80)
        assert topic.config == "retention.ms=86400000, segment.bytes=1048576"
        assert 1 <= report.requests <= 80
        assert report.storage_requests > 6
        assert (report.bytes_per_second, "a default" in str(report.rate)) == (rates.DEFAULT_RATE, True)
        assert report.seconds is not None
        assert report.seconds >= rates.DEFAULT_START_SECONDS
        assert "would restore 80 records" in result.message
        done = bring_back(spec)
        assert (done.outcome, done.records, done.groups) == ("Succeeded", 80, 2)
        assert topic_settings(kafka, f"{unique}-copy") == {"retention.ms": "86400000", "segment.bytes": "1048576"}

    def test_records_of_transactions_and_of_a_time_are_bounds(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [5, -7, 5])
        back_up(backup_spec(kafka, tmp_path, unique))
        result, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert (report.records, report.aborted_records, report.counts) == (10, 7, "AtMost")
        assert "at most 10 records" in result.message
        assert "and leave out 7 records of aborted transactions" in result.message
        latest = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        point = {"timestamp": latest}
        result, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path, point=point), unique)
        assert "at most" in str(report.point)
        assert "at most" in result.message
        monkeypatch.setattr(dry_run, "_MOST_READ", 10)
        _, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert (report.records, report.aborted_records, report.counts) == (17, None, "AtMost")
        assert any("belong to aborted transactions and are left out, for which" in one for one in report.not_checked)

    @pytest.mark.parametrize("kind", ["any", "same", "divided"])
    def test_records_of_aborted_transactions_are_reported_before_and_after(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, kind: str
    ) -> None:
        create_topic(kafka.bootstrap, unique, 2)
        for partition in range(2):
            transactions(kafka, unique, [5, -7, 5, -1], partition=partition)
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path)
        if kind == "same":
            spec["offsets"] = "Same"
        elif kind == "divided":
            spec["topics"] |= {"partitionCount": 3, "partitioner": "murmur2"}
        _, report = find_out(kafka, tmp_path, spec, unique)
        assert (report.records, report.aborted_records) == (20, 16)
        done = bring_back(spec)
        assert (done.records, done.aborted_records) == (20, 16)

    def test_a_topic_with_transactions_and_none_that_was_aborted_is_counted_exactly(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [5, 5])
        back_up(backup_spec(kafka, tmp_path, unique))
        _, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert (report.records, report.aborted_records, report.counts) == (10, 0, "Exact")

    def test_a_topic_that_is_appended_to_is_reported_as_one_that_exists(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(9))
        back_up(backup_spec(kafka, tmp_path, unique))
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, {"cleanup.policy": "compact"})
        result, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path, ifTopicExists="Append"), unique)
        assert [(topic.state, topic.records) for topic in report.topic_list] == [("Exists", 9)]
        assert (report.topics_created, report.refused) == (0, 0)
        assert any("is compacted: the restored records come after" in warning for warning in result.warnings)

    def test_the_time_is_expected_from_the_last_restore_that_tells_it(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(500))
        back_up(backup_spec(kafka, tmp_path, unique))
        done = bring_back(restore_spec(kafka, tmp_path), "restore-1")
        monkeypatch.setattr(rates, "LEAST_BYTES", 1)
        again = restore_spec(kafka, tmp_path, suffix="-again")
        _, report = find_out(kafka, tmp_path, again, unique)
        assert report.bytes_per_second == int(done.bytes / (done.end_time - done.start_time))
        assert "measured by run restore-1 into this cluster" in str(report.rate)
        _, report = find_out(kafka, tmp_path, {**again, "limits": {"bytesPerSecond": "64Ki"}}, unique)
        if report.bytes_per_second == 64 << 10:  # unless this machine is slower than that
            assert str(report.rate).startswith("spec.limits.bytesPerSecond")

    def test_a_run_that_has_succeeded_would_do_nothing(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3))
        back_up(backup_spec(kafka, tmp_path, unique))
        bring_back(restore_spec(kafka, tmp_path), "dry-1")
        result, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert result.message.startswith("Nothing would be written: run dry-1 has done this restore and ended at 20")
        assert report.topics == 0

    def test_positions_are_reported_at_the_offsets_that_the_restore_gives_them(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        """The records that were aborted, and the markers, are gaps in the source, and not in the target."""
        create_topic(kafka.bootstrap, unique, 1)
        transactions(kafka, unique, [5, -7, 5])
        commit_positions(kafka.bootstrap, f"{unique}-group", {(unique, 0): 8})
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate", "include": [f"{unique}.*"]})
        _, report = find_out(kafka, tmp_path, spec, unique)
        (reported,) = report.position_list
        assert (reported.source_offset, reported.record, reported.target_offset) == (8, 14, 5)
        assert bring_back(spec).outcome == "Succeeded"
        group = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": f"{unique}-group"})
        (position,) = group.committed([TopicPartition(f"{unique}-copy", 0)], timeout=30)
        group.close()
        assert position.offset == reported.target_offset

    def test_positions_that_need_too_much_of_the_archive_are_left_to_another_command(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique, 1)
        produce(kafka.bootstrap, unique, numbered(50))
        commit_positions(kafka.bootstrap, f"{unique}-group", {(unique, 0): 20})
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate", "include": [f"{unique}.*"]})
        monkeypatch.setattr(dry_run, "_MOST_READ", 100)
        _, report = find_out(kafka, tmp_path, spec, unique)
        assert (report.positions, report.position_list) == (1, ())
        assert "`logkeep groups plan` shows it" in report.not_checked[0]

    def test_a_cluster_that_never_had_a_group_gets_no_topic_for_them(self, kafka: KafkaBroker, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, "alone")
        produce(kafka.bootstrap, "alone", numbered(3))
        commit_positions(kafka.bootstrap, "alone-group", {("alone", 0): 2})
        back_up(backup_spec(kafka, tmp_path, "alone"))
        with KafkaBroker() as broker:
            for offsets in ("Any", "Same"):
                spec = restore_spec(broker, tmp_path, consumerGroups={"restore": "Translate"}, offsets=offsets)
                _, report = find_out(broker, tmp_path, spec, "alone")
                assert (report.refused, report.groups) == (0, 1)
                assert [item.target_offset for item in report.position_list] == [2]
            assert topic_names(broker.bootstrap) == set()


class TestWhatWouldBeRefused:
    def test_all_reasons_are_reported_at_once(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        names = [f"{unique}-{letter}" for letter in "abc"]
        for name in names:
            create_topic(kafka.bootstrap, name)
            produce(kafka.bootstrap, name, numbered(20))
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*", segment={"packBelow": "0"}))
        create_topic(kafka.bootstrap, f"{names[0]}-copy")
        (log,) = tmp_path.glob(f"topics/{names[1]}/*/*/*.log")
        data = bytearray(log.read_bytes())
        data[-1] ^= 1
        log.write_bytes(data)
        (index,) = tmp_path.glob(f"topics/{names[2]}/*/*/*.timeindex")
        index.unlink()
        spec = restore_spec(kafka, tmp_path)
        spec["topics"]["replicationFactor"] = 2
        result, report = find_out(kafka, tmp_path, spec, unique)
        codes = sorted(item.reason for item in report.refusals)
        assert codes == ["ArchiveDamaged", "TargetUnsuitable", "TargetUnsuitable", "TopicExists"], report.refusals
        assert report.refused == 4
        (damaged,) = (item.message for item in report.refusals if item.reason == "ArchiveDamaged")
        assert damaged.startswith("2 faults in the archive")
        assert "damage.json" not in damaged
        assert [topic.state for topic in report.topic_list] == ["Exists", "New", "New"]
        assert report.records == 60
        assert result.message.startswith("would be refused for 4 reasons, first: ")

    @pytest.mark.parametrize(
        "changes",
        [
            {"topics": {"include": ["no-such-topic"]}},
            {"recordBatches": {"maxRecords": 5}},
            {"point": {"asOf": "2999-01-01T00:00:00Z"}},
            {"point": {"run": "no-such-run"}},
            {"source": {"storage": {"uri": "file:///no/such/archive"}}},
            {"topics": {"include": [".*"], "rename": [{"from": ".*", "to": "in valid"}]}},
            {"topics": {"include": [".*"], "rename": [{"from": ".*", "to": "a" * 249 + "b"}]}},
            {"topics": {"include": [".*"], "replicationFactor": 9}},
            {},  # the target is there
        ],
    )
    def test_what_refuses_the_run_is_found_by_the_dry_run(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, changes: Mapping[str, Any]
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = {**restore_spec(kafka, tmp_path, suffix=""), **changes}
        _, report = find_out(kafka, tmp_path, spec, unique)
        with pytest.raises(LogkeepError) as refused:
            bring_back(spec)
        assert str(refused.value) in [item.message for item in report.refusals]

    def test_the_plan_of_an_earlier_start_refuses_another_spec(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3))
        back_up(backup_spec(kafka, tmp_path, unique))
        with monkeypatch.context() as patch:
            patch.setattr("logkeep_engine.restore.run.restoring.restore_open_partitions", _dies)
            with pytest.raises(ConnectionAbortedError):
                bring_back(restore_spec(kafka, tmp_path), "dry-1")
        _, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert (report.refused, [topic.state for topic in report.topic_list]) == (0, ["Exists"])
        _, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path, suffix="-other"), unique)
        assert [item.message for item in report.refusals] == [
            "run dry-1 was started with another spec. Use the spec that it was started with, or give this restore its "
            "own run id."
        ]

    def test_a_configuration_that_the_cluster_does_not_take_is_a_warning(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3))
        back_up(backup_spec(kafka, tmp_path, unique))
        own = {"no.such.key": "7", "retention.ms": "-1"}
        monkeypatch.setattr("logkeep_engine.restore.topics.targets.ending_configs", lambda *_: own)
        result, report = find_out(kafka, tmp_path, restore_spec(kafka, tmp_path), unique)
        assert report.refused == 0
        assert [warning for warning in result.warnings if "could not be set" in warning] == [
            next(warning for warning in result.warnings if f"topic {unique}-copy: no.such.key=7 could" in warning)
        ]


class TestBackup:
    def test_the_run_after_it_archives_what_it_has_told(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        root = tmp_path / "archive"
        create_topic(kafka.bootstrap, unique, 2)
        produce(kafka.bootstrap, unique, [*numbered(50), *numbered(30, 1)])
        commit_positions(kafka.bootstrap, f"{unique}-group", {(unique, 0): 20})
        spec = backup_spec(kafka, root, unique, consumerGroups={"include": [f"{unique}.*"]})
        report = dry_backup(spec)
        assert not root.exists()
        assert (report["refused"], report["topics"], report["partitions"], report["records"]) == (0, 1, 2, 80)
        assert (report["groups"], report["positions"], report["counts"]) == (1, 1, "AtMost")
        assert "there is no archive yet: the run creates it" in report["notChecked"]
        assert report["topicList"][0] | {"bytes": 0} == {
            "topic": unique,
            "source": None,
            "state": "Exists",
            "partitions": 2,
            "replicas": None,
            "records": 80,
            "bytes": 0,
            "counts": "AtMost",
            "config": None,
        }
        assert back_up(spec).records == 80
        produce(kafka.bootstrap, unique, numbered(5))
        before = stored(root)
        assert dry_backup(spec)["records"] == 5
        assert stored(root) == before

    def test_all_that_would_make_it_fail_is_reported(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(50))
        back_up(backup_spec(kafka, tmp_path, unique))
        produce(kafka.bootstrap, unique, numbered(20))
        Topics(kafka).delete_records(unique, 60)
        before = stored(tmp_path)
        report = dry_backup(backup_spec(kafka, tmp_path, unique, "no-such-topic"), 2)
        assert [item["reason"] for item in report["refusals"]] == ["DataLoss", "PatternsUnmatched"]
        assert report["records"] == 10
        report = dry_backup(backup_spec(kafka, tmp_path, unique, format="Avro"), 2)
        assert [item["reason"] for item in report["refusals"]] == ["ArchiveMismatch"]
        assert stored(tmp_path) == before


def dry_backup(spec: Mapping[str, Any], code: int = 0) -> dict[str, Any]:
    """The report of `logkeep backup --dry-run`, which ends with this exit code."""
    done = logkeep("backup", "-f", "-", "--dry-run", "-o", "json", stdin=resource("KafkaBackup", spec))
    assert done.returncode == code, done.stderr
    result = json.loads(done.stdout)
    assert (result["outcome"], result["exitCode"]) == ("DryRun", code)
    found: dict[str, Any] = result["dryRun"]
    return found


class TestCommand:
    def test_a_table_says_what_would_be_done(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        create_topic(kafka.bootstrap, unique, 1, {"retention.ms": "86400000"})
        produce(kafka.bootstrap, unique, numbered(50))
        commit_positions(kafka.bootstrap, f"{unique}-group", {(unique, 0): 20})
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate", "include": [f"{unique}.*"]})
        text = resource("KafkaRestore", spec)
        before = stored(tmp_path)
        done = logkeep("restore", "-f", "-", "--dry-run", stdin=text)
        assert done.returncode == 0, done.stderr
        for line in (
            r"outcome +DryRun",
            r"topics +1, 1 to be created",
            r"records +50",
            r"time +about 1\ds at .* a second",
            r"rate +a default",
            r"groups +1, 1 position",
            r"refused +no",
            rf"{unique}-copy +{unique} +new +1 +1 +50 .* retention\.ms=86400000",
            rf"{unique}-group +1",
            rf"{unique}-group +{unique}-copy +0 +20 +20 +\d{{4}}-.* +20",
        ):
            assert re.search(rf"^{line}", done.stdout, re.MULTILINE), (line, done.stdout)
        create_topic(kafka.bootstrap, f"{unique}-copy")
        done = logkeep("restore", "-f", "-", "--dry-run", stdin=text)
        assert done.returncode == 2
        assert re.search(r"^refused +yes", done.stdout, re.MULTILINE), done.stdout
        assert f"refused: TopicExists: topic {unique}-copy already exists on the target cluster" in done.stderr
        assert stored(tmp_path) == before

    def test_a_file_that_asks_for_a_dry_run_gets_one(self, kafka: KafkaBroker, tmp_path: Path) -> None:
        spec = restore_spec(kafka, tmp_path / "none", dryRun=True)
        done = logkeep("restore", "-f", "-", "-o", "json", stdin=resource("KafkaRestore", spec))
        assert done.returncode == 2
        (refusal,) = json.loads(done.stdout)["dryRun"]["refusals"]
        assert refusal["reason"] in ("ArchiveMissing", "BucketMissing")

    def test_a_cluster_that_does_not_answer_is_no_refusal(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        create_topic(kafka.bootstrap, unique)
        produce(kafka.bootstrap, unique, numbered(3))
        back_up(backup_spec(kafka, tmp_path, unique))
        spec = {**restore_spec(kafka, tmp_path), "cluster": {"bootstrapServers": ["127.0.0.1:1"]}}
        done = logkeep("restore", "-f", "-", "--dry-run", stdin=resource("KafkaRestore", spec))
        assert done.returncode == 1
        assert "error: BrokerUnavailable: Cannot reach a Kafka broker of 127.0.0.1:1: " in done.stderr


def _dies(*_: Any) -> None:
    raise ConnectionAbortedError


def test_rights_that_are_missing_are_reported_at_once(
    strict: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_KAFKA_USERNAME, strict.username)
    monkeypatch.setenv(ENV_KAFKA_PASSWORD, strict.password)
    create_topic(strict.bootstrap, unique, 1)
    produce(strict.bootstrap, unique, numbered(50))
    commit_positions(strict.bootstrap, f"{unique}-group", {(unique, 0): 30})
    Topics(strict).delete_records(unique, 20)
    security = {"protocol": "SASL_PLAINTEXT", "sasl": {"mechanism": "PLAIN", "secretRef": {"name": "user"}}}
    cluster = {"bootstrapServers": [strict.sasl_bootstrap], "security": security}
    storage = {"uri": tmp_path.as_uri()}
    rights, with_id = Rights(strict, unique), Rights(strict, "logkeep-")
    rights.grant(READER)
    back_up({"cluster": cluster, "topics": {"include": [unique]}, "storage": storage})
    spec: dict[str, Any] = {
        "cluster": cluster,
        "source": {"storage": storage},
        "offsets": "Same",
        "topics": {"rename": [{"from": "(.*)", "to": r"\1-copy"}]},
        "consumerGroups": {"restore": "Translate"},
        "verify": "Full",
    }
    copy = f"'{unique}-copy'"
    reported = {
        "CREATE": f"not let this user create topic {copy}",
        "WRITE": "Give the user the ACL WRITE on it",
        "READ": f"may not read topic {unique}-copy",
        "ALTER_CONFIGS": "Give the user the ACL ALTER_CONFIGS on it",
        "DELETE": f"Give the user the ACL DELETE on topic {copy}",
        "TRANSACTION": "may not use the transactional id 'logkeep-0'",
        "GROUP": f"read the offsets of consumer group '{unique}-group'",
    }
    rights.grant({TOPIC: ["DESCRIBE"]})
    _, report = find_out(strict, tmp_path, spec, unique)
    messages = [item.message for item in report.refusals]
    assert sorted(key for key, text in reported.items() if any(text in message for message in messages)) == sorted(
        reported
    )
    assert report.refused == len(reported), messages

    everything = {TOPIC: [*WRITER[TOPIC], "DELETE"], GROUP: ["READ"]}
    rights.grant(everything)
    with_id.grant({ResourceType.TRANSACTIONAL_ID: ["WRITE"]})
    _, report = find_out(strict, tmp_path, spec, unique)
    assert report.refusals == ()
    for operation in ("CREATE", "WRITE", "ALTER_CONFIGS", "DELETE"):
        rights.grant(everything, without=operation)
        _, report = find_out(strict, tmp_path, spec, unique)
        assert [reported[operation] in item.message for item in report.refusals] == [True], (operation, report.refusals)
    rights.grant(everything)
    assert bring_back(spec).records == 30
    assert without_offsets(committed(strict, f"{unique}-copy")) == without_offsets(committed(strict, unique))
