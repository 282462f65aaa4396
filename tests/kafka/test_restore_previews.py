"""Restores of another shape tell beforehand what they would do, and what is refused: replaced and resumed topics,
mapped partitions, drills of chosen ones, and the brokers' own configuration."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.kafka.control import ControlPlane
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import commit_positions, create_topic, produce, topic_names
from tests.kafka.archived_files import files_of
from tests.kafka.restores import back_up, backup_spec, bring_back, committed, restore_spec
from tests.kafka.test_cli import resource
from tests.kafka.test_drill import drill_spec, drilled, facts_of, outcome_of
from tests.kafka.test_dry_run import find_out
from tests.kafka.test_restore_shape import DiesAfter, numbered, positions, topic_id


def target_of(topic: str, to: dict[int, int]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition, "target": target} for partition, target in to.items()]


@pytest.fixture
def source(kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
    """An archived topic of three partitions with 10, 11 and 12 records, and a group in each."""
    create_topic(kafka.bootstrap, unique, 3, {"retention.ms": "-1"})
    for partition in range(3):
        produce(kafka.bootstrap, unique, numbered(10 + partition, start=100 * partition, partition=partition))
        commit_positions(kafka.bootstrap, f"{unique}-g", {(unique, partition): 5 + partition})
    back_up(backup_spec(kafka, tmp_path, unique))
    return unique


@pytest.fixture
def copy(kafka: KafkaBroker, source: str) -> str:
    """A topic with other partitions that has the name of the target."""
    create_topic(kafka.bootstrap, f"{source}-copy", 1, {"retention.ms": "-1"})
    produce(kafka.bootstrap, f"{source}-copy", numbered(4, start=900))
    return f"{source}-copy"


class TestDryRuns:
    def test_a_replaced_topic_is_reported_as_one(
        self, kafka: KafkaBroker, source: str, copy: str, tmp_path: Path
    ) -> None:
        spec = restore_spec(kafka, tmp_path, ifTopicExists="Replace", confirm=[copy])
        before = topic_id(kafka, copy)
        _, report = find_out(kafka, tmp_path, spec, source)
        assert (report.refused, report.topics_created, report.records, report.counts) == (0, 1, 33, "Exact")
        (topic,) = report.topic_list
        assert (topic.state, topic.partitions, topic.replicas) == ("Replaced", 3, 1)
        assert topic_id(kafka, copy) == before
        file = tmp_path / "restore.yaml"
        file.write_text(resource("KafkaRestore", spec))
        reported = logkeep("restore", "-f", file, "--dry-run")
        assert reported.returncode == 0, reported.stderr
        assert "replaced" in reported.stdout
        assert bring_back(spec).records == report.records
        assert topic_id(kafka, copy) not in ("", before)

    def test_all_that_would_refuse_a_replacement_is_reported(
        self, kafka: KafkaBroker, source: str, copy: str, tmp_path: Path
    ) -> None:
        spec = restore_spec(kafka, tmp_path, ifTopicExists="Replace", confirm=["other"])
        spec["topics"] = {**spec["topics"], "replicationFactor": 3}
        _, report = find_out(kafka, tmp_path, spec, source)
        text = " ".join(refusal.message for refusal in report.refusals)
        assert "spec.confirm: other: no topic is restored under this name" in text
        assert f"Topic '{copy}' cannot have 3 replicas" in text
        assert (report.topics, report.records) == (1, 33)

    def test_of_a_resumed_restore_only_what_is_left_is_reported(
        self, kafka: KafkaBroker, source: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConnectionAbortedError):
            bring_back(restore_spec(kafka, tmp_path), runner=DiesAfter(1))
        done = {partition: len(committed(kafka, f"{source}-copy", partition)) for partition in range(3)}
        resume = restore_spec(kafka, tmp_path, ifTopicExists="Resume")
        _, report = find_out(kafka, tmp_path, resume, source)
        assert (report.refused, report.topics_created, report.topics) == (0, 0, 1)
        assert (report.records, report.counts) == (33 - sum(done.values()), "AtMost")
        assert bring_back(resume, "restore-2").records == 33
        result, _ = find_out(kafka, tmp_path, resume, source)
        assert "Nothing would be written: run restore-2 has done this restore" in result.message

    def test_mapped_partitions_are_reported_as_they_are_restored(
        self, kafka: KafkaBroker, source: str, tmp_path: Path
    ) -> None:
        spec = restore_spec(kafka, tmp_path, consumerGroups={"restore": "Translate", "include": [f"{source}-g"]})
        mapped = {**spec["topics"], "partitions": target_of(source, {2: 0, 0: 1})}
        _, report = find_out(kafka, tmp_path, {**spec, "topics": mapped}, source)
        assert (report.refused, report.records, report.counts, report.partitions) == (0, 22, "Exact", 3)
        assert (report.groups, report.positions) == (1, 2)
        done = bring_back({**spec, "topics": mapped})
        assert (done.records, done.groups) == (report.records, report.positions)
        elsewhere = {"rename": [{"from": "(.*)", "to": r"\1-far"}], "replicationFactor": 3}
        far = {**elsewhere, "partitions": target_of(source, {0: 7})}
        _, report = find_out(kafka, tmp_path, {**spec, "topics": far}, source)
        text = " ".join(refusal.message for refusal in report.refusals)
        assert "partition 0 of topic" in text
        assert "cannot have 3 replicas" in text


class TestDrills:
    @pytest.mark.parametrize("offsets", ["Any", "Same"])
    def test_chosen_partitions_are_drilled(self, kafka: KafkaBroker, source: str, tmp_path: Path, offsets: str) -> None:
        (damaged,) = files_of(tmp_path, source, 1)
        damaged.write_bytes(damaged.read_bytes()[:-9] + bytes(9))
        chosen = [{"topic": source, "partition": 0}, {"topic": source, "partition": 2, "target": 1}]
        spec = drill_spec(kafka, tmp_path, f"{source}-drill.", topics={"partitions": chosen}, offsets=offsets)
        result = drilled(spec)
        facts = facts_of(result)
        assert (result.outcome, facts.records, facts.partitions) == ("Succeeded", 22, 2)
        assert outcome_of(result) == "Verified"
        assert [name for name in topic_names(kafka.bootstrap) if name.startswith(f"{source}-drill.")] == []

    def test_a_part_of_the_chosen_partitions_is_drilled_at_a_time(
        self, kafka: KafkaBroker, source: str, tmp_path: Path
    ) -> None:
        chosen = [{"topic": source, "partition": 0}, {"topic": source, "partition": 2}]
        spec = drill_spec(kafka, tmp_path, f"{source}-drill.", topics={"partitions": chosen})
        spec["drill"] = {**spec["drill"], "share": "50%"}
        found = [drilled(spec, f"drill-{number}") for number in (1, 2)]
        assert [outcome_of(result) for result in found] == ["Verified", "Verified"]
        assert sorted(facts_of(result).records for result in found) == [10, 12]
        assert facts_of(found[1]).total == 2


class TestGroupsPlan:
    @pytest.mark.parametrize("offsets", ["Any", "Same"])
    def test_positions_go_to_the_mapped_partition(
        self, kafka: KafkaBroker, source: str, tmp_path: Path, offsets: str
    ) -> None:
        spec = restore_spec(
            kafka,
            tmp_path,
            consumerGroups={"restore": "Translate", "include": [f"{source}-g"]},
            offsets=offsets,
        )
        spec["topics"] = {**spec["topics"], "partitions": target_of(source, {2: 0, 0: 2})}
        file = tmp_path / "restore.yaml"
        file.write_text(resource("KafkaRestore", spec))

        def planned(*options: str) -> list[dict[str, Any]]:
            done = logkeep("groups", "plan", "-f", file, "-o", "json", *options)
            assert done.returncode == 0, done.stderr
            found: list[dict[str, Any]] = json.loads(done.stdout)["positions"]
            return sorted(found, key=lambda row: int(row["partition"]))

        before = planned()
        assert [(row["partition"], row["sourceOffset"], row["targetOffset"]) for row in before] == [
            (0, 7, 7),
            (2, 5, 5),
        ]
        assert [row["record"]["key"] for row in before] == ["k207", "k5"]
        assert bring_back(spec).groups == 2
        assert positions(kafka, f"{source}-g", f"{source}-copy") == {0: 7, 2: 5}
        after = planned("--run-id", "restore-1")
        assert [{**row, "now": None} for row in after] == before
        assert [row["now"] for row in after] == [7, 5]


class TestBrokersOwnConfiguration:
    @pytest.fixture
    def two_in_sync(self) -> Iterator[KafkaBroker]:
        """A broker by whose configuration every topic wants two replicas in sync."""
        with KafkaBroker(overrides={"min.insync.replicas": "2"}) as broker:
            yield broker

    def test_more_replicas_in_sync_than_a_topic_would_have_do_not_stop_a_restore(
        self, two_in_sync: KafkaBroker, source: str, tmp_path: Path
    ) -> None:
        spec = restore_spec(two_in_sync, tmp_path)
        _, report = find_out(two_in_sync, tmp_path, spec, source)
        assert report.refusals == ()
        assert bring_back(spec).records == 33

    def test_brokers_that_count_replicas_which_are_not_there_are_refused(
        self, two_in_sync: KafkaBroker, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Brokers before Kafka 3.7 do so."""
        monkeypatch.setattr(ControlPlane, "caps_replicas_in_sync", lambda _: False)
        spec = restore_spec(two_in_sync, tmp_path)
        what = r"min\.insync\.replicas=2, the default of the brokers, and 1 replica cannot meet that with brokers"
        with pytest.raises(TargetUnsuitable, match=what):
            bring_back(spec)
        _, report = find_out(two_in_sync, tmp_path, spec, source)
        assert [refusal.reason for refusal in report.refusals] == ["TargetUnsuitable"]
        assert f"{source}-copy" not in topic_names(two_in_sync.bootstrap)
        spec["topics"] = {**spec["topics"], "configs": {"override": {"min.insync.replicas": "1"}}}
        assert bring_back(spec, "restore-2").records == 33
