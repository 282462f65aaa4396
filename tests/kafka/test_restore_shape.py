"""The shape of the target of a restore: configurations, replicas, topics that are there, and partitions."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ArchiveDamaged, Refused, SpecError, TargetUnsuitable, TopicExists
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.restore.sending.restore_task import RestoreTask
from tests.cluster.kafka import KafkaBroker
from tests.command import logkeep
from tests.data.topics import Record, commit_positions, create_topic, produce, topic_names
from tests.kafka.archived_files import files_of
from tests.kafka.restores import (
    Only,
    ThreadRunner,
    all_committed,
    back_up,
    backup_spec,
    bring_back,
    committed,
    offset_map,
    restore_spec,
    topic_settings,
    without_offsets,
)
from tests.runners import Job, Runner

NOW = int(time.time() * 1000) - 3_600_000  # older records would be deleted where a topic has the default retention


def numbered(count: int, *, start: int = 0, partition: int = 0) -> Iterator[Record]:
    for number in range(start, start + count):
        yield Record(b"k%d" % number, b"v%d" % number, NOW + number, [("h", b"1")], partition)


def archived(kafka: KafkaBroker, topic: str, root: Path, *, partitions: int = 1, **configs: str) -> None:
    """Archive a topic with ten records in each partition."""
    create_topic(kafka.bootstrap, topic, partitions, {key.replace("_", "."): value for key, value in configs.items()})
    for partition in range(partitions):
        produce(kafka.bootstrap, topic, numbered(10, partition=partition))
    back_up(backup_spec(kafka, root, topic), f"backup-{topic}")


def shaped(kafka: KafkaBroker, root: Path, topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A restore of every topic with -copy after its name."""
    spec = restore_spec(kafka, root, **more)
    return {**spec, "topics": {**spec["topics"], **topics}}


class TestConfigurations:
    def test_keys_are_restored_overridden_or_ignored(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        archived(kafka, unique, tmp_path, retention_ms="-1", segment_bytes="2097152", flush_ms="77")
        configs = {"override": {"segment.bytes": "1048576", "file.delete.delay.ms": "5"}, "ignore": ["flush.ms"]}
        assert bring_back(shaped(kafka, tmp_path, {"configs": configs})).warnings == ()
        assert topic_settings(kafka, f"{unique}-copy") == {
            "retention.ms": "-1",
            "segment.bytes": "1048576",
            "file.delete.delay.ms": "5",
        }

    def test_with_the_policy_ignore_only_what_is_overridden_is_set(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path, retention_ms="-1", flush_ms="77")
        bring_back(shaped(kafka, tmp_path, {"configs": {"policy": "Ignore", "override": {"segment.ms": "86400000"}}}))
        assert topic_settings(kafka, f"{unique}-copy") == {"segment.ms": "86400000"}

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [("retention.ms", "long", "Invalid value long"), ("no.such.key", "1", "Unknown topic config name")],
    )
    def test_a_key_that_the_cluster_does_not_take_is_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, key: str, value: str, expected: str
    ) -> None:
        archived(kafka, unique, tmp_path)
        spec = shaped(kafka, tmp_path, {"configs": {"override": {"flush.ms": "1", key: value}}})
        with pytest.raises(Refused, match=f"Topic '{unique}-copy' was refused") as refused:
            bring_back(spec)
        assert "spec.topics.configs.override: " in refused.value.message
        assert key in refused.value.message
        assert expected in refused.value.message
        assert "flush.ms" not in refused.value.message
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)


class TestReplicas:
    def test_more_replicas_in_sync_than_replicas_are_restored(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path, min_insync_replicas="1")
        configs = {"override": {"min.insync.replicas": "2"}}
        result = bring_back(shaped(kafka, tmp_path, {"replicationFactor": 1, "configs": configs}))
        assert (result.outcome, result.records) == ("Succeeded", 10)
        assert topic_settings(kafka, f"{unique}-copy") == {"min.insync.replicas": "2"}

    def test_more_replicas_than_brokers_are_refused_before_anything_is_written(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path)
        with pytest.raises(TargetUnsuitable, match="cannot have 3 replicas"):
            bring_back(shaped(kafka, tmp_path, {"replicationFactor": 3}))
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)

    def test_throttled_replicas_are_not_restored(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        archived(kafka, unique, tmp_path, leader_replication_throttled_replicas="0:1", retention_ms="-1")
        bring_back(shaped(kafka, tmp_path, {}))
        assert topic_settings(kafka, f"{unique}-copy") == {"retention.ms": "-1"}
        assert len(committed(kafka, f"{unique}-copy")) == 10


def topic_id(kafka: KafkaBroker, topic: str) -> str:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        return control.topic_ids([topic]).get(topic, "")


class TestReplace:
    @pytest.fixture
    def copy(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
        """A topic with other partitions and records than the one that was archived under its name."""
        archived(kafka, unique, tmp_path, partitions=2, retention_ms="-1")
        create_topic(kafka.bootstrap, f"{unique}-copy", 3, {"flush.ms": "77"})
        produce(kafka.bootstrap, f"{unique}-copy", numbered(5, start=100, partition=2))
        return f"{unique}-copy"

    def spec(self, kafka: KafkaBroker, root: Path, *confirm: str, **more: Any) -> dict[str, Any]:
        return restore_spec(kafka, root, ifTopicExists="Replace", confirm=list(confirm), **more)

    def test_a_confirmed_topic_is_deleted_and_created_again(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        before = topic_id(kafka, copy)
        assert bring_back(self.spec(kafka, tmp_path, copy)).records == 20
        assert topic_id(kafka, copy) not in ("", before)
        assert topic_settings(kafka, copy) == {"retention.ms": "-1"}
        for partition in (0, 1):
            assert committed(kafka, copy, partition) == committed(kafka, unique, partition)
        again = self.spec(kafka, tmp_path, copy, offsets="Same")
        assert bring_back(again, "restore-2").records == 20
        assert committed(kafka, copy, 1) == committed(kafka, unique, 1)

    def test_a_topic_that_is_not_there_is_created(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        spec = self.spec(kafka, tmp_path, f"{unique}-new")
        spec["topics"] = {"rename": [{"from": "(.*)", "to": r"\1-new"}]}
        assert bring_back(spec).records == 20

    def test_what_is_not_confirmed_is_refused_and_nothing_is_deleted(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        archived(kafka, f"{unique}-b", tmp_path)
        create_topic(kafka.bootstrap, f"{unique}-b-copy")
        before = topic_id(kafka, copy), topic_id(kafka, f"{unique}-b-copy")
        with pytest.raises(TopicExists, match=f"{unique}-b-copy: to be replaced, but not named in spec.confirm"):
            bring_back(self.spec(kafka, tmp_path, copy))
        with pytest.raises(SpecError, match=f"spec.confirm: {unique}: no topic is restored under this name"):
            bring_back(self.spec(kafka, tmp_path, copy, f"{unique}-b-copy", unique))
        assert before == (topic_id(kafka, copy), topic_id(kafka, f"{unique}-b-copy"))

    def test_what_cannot_be_created_again_is_not_deleted(self, kafka: KafkaBroker, copy: str, tmp_path: Path) -> None:
        before = topic_id(kafka, copy)
        spec = self.spec(kafka, tmp_path, copy)
        for topics, what in (
            ({"replicationFactor": 3}, f"Topic '{copy}' cannot have 3 replicas"),
            ({"configs": {"override": {"flush.ms": "soon"}}}, "flush.ms"),
        ):
            with pytest.raises(Refused, match=what):
                bring_back({**spec, "topics": {**spec["topics"], **topics}})
        assert topic_id(kafka, copy) == before

    def test_it_continues_after_a_crash_at_any_step_and_deletes_nothing_twice(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def dies(item: Any) -> None:
            if type(item) is tuple:
                raise ConnectionAbortedError

        def crash(step: str, *, after: bool) -> None:
            """Let the driver die in front of a step, or after it."""
            real = getattr(ControlPlane, step)

            def dying(control: ControlPlane, *arguments: Any) -> Any:
                if after:
                    real(control, *arguments)
                raise ConnectionAbortedError

            with monkeypatch.context() as patched:
                patched.setattr(ControlPlane, step, dying)
                with pytest.raises(ConnectionAbortedError):
                    bring_back(self.spec(kafka, tmp_path, copy))

        old = topic_id(kafka, copy)
        crash("delete_topic_ids", after=False)
        assert topic_id(kafka, copy) == old
        crash("delete_topic_ids", after=True)
        crash("create_topics", after=False)
        assert topic_id(kafka, copy) == ""
        crash("create_topics", after=True)
        new = topic_id(kafka, copy)
        assert new not in ("", old)
        with pytest.raises(ConnectionAbortedError):
            bring_back(self.spec(kafka, tmp_path, copy), runner=ThreadRunner(before=dies))
        crash("epoch_ends", after=True)  # it counts what it has written
        assert len(committed(kafka, copy)) == 10
        crash("alter_topic_configs", after=False)
        crash("alter_topic_configs", after=True)
        assert bring_back(self.spec(kafka, tmp_path, copy)).records == 20
        assert topic_id(kafka, copy) == new
        for partition in (0, 1):
            assert committed(kafka, copy, partition) == committed(kafka, unique, partition)

    def test_brokers_that_delete_no_topics_are_reported(
        self, kafka: KafkaBroker, unique: str, copy: str, tmp_path: Path
    ) -> None:
        with KafkaBroker(overrides={"delete.topic.enable": "false"}) as broker:
            create_topic(broker.bootstrap, copy, 1, {"retention.ms": "-1"})
            produce(broker.bootstrap, copy, numbered(3))
            with pytest.raises(Refused, match=rf"Cannot delete topic '{copy}'.*delete\.topic\.enable"):
                bring_back(self.spec(broker, tmp_path, copy))
            assert len(committed(broker, copy)) == 3


class TestResume:
    @pytest.fixture
    def begun(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
        """A topic of three partitions; the restore `restore-1` was killed when it had done one and begun another."""
        create_topic(kafka.bootstrap, unique, 3, {"retention.ms": "-1"})
        for partition in range(3):
            produce(kafka.bootstrap, unique, numbered(3000, partition=partition), config={"batch.size": 20_000})
        back_up(backup_spec(kafka, tmp_path, unique))
        return unique

    def test_it_continues_with_what_another_restore_has_begun(
        self, kafka: KafkaBroker, begun: str, tmp_path: Path
    ) -> None:
        copy = f"{begun}-copy"
        with pytest.raises(ConnectionAbortedError):
            bring_back(restore_spec(kafka, tmp_path), runner=DiesAfter(1))
        before = topic_id(kafka, copy)
        there = [len(committed(kafka, copy, partition)) for partition in range(3)]
        assert sorted(there) == [0, 0, 3000]
        with pytest.raises(TopicExists):
            bring_back(restore_spec(kafka, tmp_path), "restore-2")
        resume = restore_spec(kafka, tmp_path, ifTopicExists="Resume")
        with pytest.raises(ConnectionAbortedError):
            bring_back(resume, "restore-3", runner=DiesAfter(1))
        assert bring_back(resume, "restore-4").records == 9000
        assert topic_id(kafka, copy) == before
        for partition in range(3):
            assert committed(kafka, copy, partition) == committed(kafka, begun, partition)
            assert offset_map(tmp_path, "restore-4", copy, partition).rows == [(0, 0, 3000)]
        assert topic_settings(kafka, copy) == {"retention.ms": "-1"}
        again = bring_back(resume, "restore-5")
        assert (again.earlier_run, again.records) == ("restore-4", 9000)
        assert bring_back(resume, "restore-4").records == 9000

    def test_records_behind_those_of_others_are_known_again(
        self, kafka: KafkaBroker, begun: str, tmp_path: Path
    ) -> None:
        copy = f"{begun}-copy"
        create_topic(kafka.bootstrap, copy, 3, {"retention.ms": "-1"})
        produce(kafka.bootstrap, copy, numbered(5, start=90_000))
        with pytest.raises(ConnectionAbortedError):
            bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Append"), runner=DiesAfter(2))
        produce(kafka.bootstrap, copy, numbered(5, start=91_000))
        # As if it had been killed before it could say that it was done.
        for path in (tmp_path / "runs" / "restore-1" / "offset-maps").rglob("*.json"):
            path.unlink()
        assert bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Resume"), "restore-2").records == 9000
        for partition in range(3):
            found = [record for record in without_offsets(committed(kafka, copy, partition)) if record[0] is not None]
            ours = [record for record in found if int(record[0][1:]) < 90_000]
            assert ours == without_offsets(committed(kafka, begun, partition))

    def test_a_restore_that_had_written_all_gets_its_end(self, kafka: KafkaBroker, begun: str, tmp_path: Path) -> None:
        copy = f"{begun}-copy"
        bring_back(restore_spec(kafka, tmp_path))
        (tmp_path / "runs" / "restore-1" / "result.json").unlink()
        produce(kafka.bootstrap, copy, numbered(1, start=99))
        assert bring_back(restore_spec(kafka, tmp_path, ifTopicExists="Resume"), "restore-2").records == 9000
        assert len(committed(kafka, copy)) == 3001

    def test_what_is_unknown_is_refused_and_without_topics_it_begins(
        self, kafka: KafkaBroker, begun: str, tmp_path: Path
    ) -> None:
        copy = f"{begun}-copy"
        resume = restore_spec(kafka, tmp_path, ifTopicExists="Resume")
        with pytest.raises(ConnectionAbortedError):
            bring_back(restore_spec(kafka, tmp_path), runner=DiesAfter(1))
        for other in (
            {**resume, "onDamagedArchive": "Skip"},
            {**resume, "state": {"uri": (tmp_path / "other").as_uri()}},
        ):
            with pytest.raises(TopicExists, match=f"{copy}: they exist already, and .* has no restore with the same"):
                bring_back(other, "restore-2")
        assert sum(len(committed(kafka, copy, partition)) for partition in range(3)) == 3000
        elsewhere = {**resume, "topics": {"rename": [{"from": "(.*)", "to": r"\1-new"}]}}
        assert bring_back(elsewhere, "restore-3").records == 9000


class DiesAfter(Runner):
    """Dies when it has restored some partitions, one after the other."""

    def __init__(self, partitions: int) -> None:
        self._left = partitions

    def perform(self, job: Job) -> None:
        if job.name != "restore_partitions":
            ThreadRunner().perform(job)
            return
        tasks = [task for group in job.work for task in group]
        ThreadRunner().perform(replace(job, work=[(task,) for task in tasks[: self._left]]))
        raise ConnectionAbortedError


class TestPartitions:
    @pytest.fixture
    def source(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> str:
        """A topic of four partitions with 10, 11, 12 and 13 records, whose archive is damaged in partition 1."""
        create_topic(kafka.bootstrap, unique, 4, {"retention.ms": "-1"})
        for partition in range(4):
            produce(kafka.bootstrap, unique, numbered(10 + partition, start=100 * partition, partition=partition))
            commit_positions(kafka.bootstrap, f"{unique}-g", {(unique, partition): 5 + partition})
        back_up(backup_spec(kafka, tmp_path, unique))
        (damaged,) = files_of(tmp_path, unique, 1)
        damaged.write_bytes(damaged.read_bytes()[:-9] + bytes(9))
        return unique

    def chosen(self, kafka: KafkaBroker, root: Path, topic: str, *wanted: int, **more: Any) -> dict[str, Any]:
        return shaped(kafka, root, {"partitions": [{"topic": topic, "partition": number} for number in wanted]}, **more)

    def mapped(self, kafka: KafkaBroker, root: Path, topic: str, to: dict[int, int], **more: Any) -> dict[str, Any]:
        wanted = [{"topic": topic, "partition": partition, "target": target} for partition, target in to.items()]
        return shaped(kafka, root, {"partitions": wanted}, **more)

    @pytest.mark.parametrize("offsets", ["Any", "Same"])
    def test_only_chosen_ones_are_restored_and_verified(
        self, kafka: KafkaBroker, source: str, tmp_path: Path, offsets: str
    ) -> None:
        spec = self.chosen(kafka, tmp_path, source, 0, 3, verify="Full", offsets=offsets)
        result = bring_back({**spec, "consumerGroups": {"restore": "Translate", "include": [f"{source}-g"]}})
        copy = f"{source}-copy"
        assert (result.records, result.groups, result.loss_total) == (23, 2, 0)
        assert result.verification is not None
        assert result.verification.outcome == "Verified", result.verification
        for partition in range(4):
            assert committed(kafka, copy, partition) == (
                committed(kafka, source, partition) if partition in (0, 3) else []
            )
        assert positions(kafka, f"{source}-g", copy) == {0: 5, 3: 8}

    @pytest.mark.parametrize("offsets", ["Any", "Same"])
    def test_a_mapping_takes_records_offset_maps_and_groups_along(
        self, kafka: KafkaBroker, source: str, tmp_path: Path, offsets: str
    ) -> None:
        spec = self.mapped(kafka, tmp_path, source, {3: 0, 0: 2}, verify="Full", offsets=offsets)
        spec["consumerGroups"] = {"restore": "Translate", "include": [f"{source}-g"]}
        with pytest.raises(ConnectionAbortedError):
            bring_back(spec, runner=ThreadRunner(before=_dies_when_it_restores))
        result = bring_back(spec, runner=Only(ThreadRunner(copies=2), "restore_partitions"))
        copy = f"{source}-copy"
        assert (result.records, result.groups) == (23, 2)
        assert result.verification is not None
        assert result.verification.outcome == "Verified", result.verification
        found = list(all_committed(kafka, {copy: 4}).values())
        assert found == [committed(kafka, source, 3), [], committed(kafka, source, 0), []]
        assert positions(kafka, f"{source}-g", copy) == {0: 8, 2: 5}
        assert offset_map(tmp_path, "restore-1", copy, 2).rows == [(0, 0, 10)]

    def test_append_writes_after_the_partition_of_the_target(
        self, kafka: KafkaBroker, source: str, tmp_path: Path
    ) -> None:
        copy = f"{source}-copy"
        create_topic(kafka.bootstrap, copy, 1, {"retention.ms": "-1"})
        produce(kafka.bootstrap, copy, numbered(4, start=900))
        with pytest.raises(TargetUnsuitable, match=r"to go to partition 3, and topic .* has 1 partition; nothing"):
            bring_back(self.mapped(kafka, tmp_path, source, {2: 3}, ifTopicExists="Append"))
        bring_back(self.mapped(kafka, tmp_path, source, {2: 0}, ifTopicExists="Append"), "restore-2")
        assert without_offsets(committed(kafka, copy)[4:]) == without_offsets(committed(kafka, source, 2))
        assert offset_map(tmp_path, "restore-2", copy).rows == [(0, 4, 12)]

    def test_what_is_not_there_is_refused(self, kafka: KafkaBroker, source: str, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match=r"spec\.topics\.partitions\[1\]: the archived topic .* has no partition 4"):
            bring_back(self.chosen(kafka, tmp_path, source, 0, 4))
        with pytest.raises(SpecError, match=r"spec\.topics\.partitions\[0\]: topic 'other' is not restored"):
            bring_back(self.chosen(kafka, tmp_path, "other", 0))
        with pytest.raises(TargetUnsuitable, match=r"is to go to partition 4, and topic .* has 4 partitions"):
            bring_back(self.mapped(kafka, tmp_path, source, {0: 4}))
        with pytest.raises(ArchiveDamaged):
            bring_back(self.chosen(kafka, tmp_path, source, 0, 1))
        assert f"{source}-copy" not in topic_names(kafka.bootstrap)


def _dies_when_it_restores(item: Any) -> None:
    if type(item) is tuple and isinstance(item[0], RestoreTask):
        raise ConnectionAbortedError


def positions(kafka: KafkaBroker, group: str, topic: str) -> dict[int, int]:
    with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
        found = control.group_offsets([group]).offsets
    return {item.partition: item.offset for item in found if item.topic == topic}


class TestTopicsInGit:
    def test_the_topics_of_a_restore_become_resources_and_nothing_is_restored(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        archived(kafka, unique, tmp_path, partitions=2, retention_ms="-1")
        spec = shaped(kafka, tmp_path, {"configs": {"override": {"flush.ms": "5"}}})
        resource = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "spec": spec}
        (tmp_path / "restore.yaml").write_text(yaml.safe_dump(resource))
        emit = ("restore", "-f", tmp_path / "restore.yaml", "--emit-topics", tmp_path / "topics.yaml")
        done = logkeep(*emit, "--strimzi-cluster", "prod")
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        assert "1 KafkaTopic is in" in done.stderr
        (found,) = yaml.safe_load_all((tmp_path / "topics.yaml").read_text())
        assert found["metadata"] == {"name": f"{unique}-copy", "labels": {"strimzi.io/cluster": "prod"}}
        assert found["spec"]["config"] == {"flush.ms": "5", "retention.ms": "-1"}
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
        assert not list(tmp_path.glob("**/restore-plan.json"))
        bring_back(spec)
        assert topic_settings(kafka, f"{unique}-copy") == found["spec"]["config"]
        printed = logkeep(*emit[:-1], "-", "--strimzi-cluster", "prod")
        assert list(yaml.safe_load_all(printed.stdout)) == [found]
        for more, what in (
            ((), "--strimzi-cluster must name the Kafka resource"),
            (("--strimzi-cluster", "prod", "--verify", "Full"), "--verify has no effect with --emit-topics"),
            (("--strimzi-cluster", "prod", "--run-id", "a"), "--run-id has no effect with --emit-topics"),
        ):
            refused = logkeep(*emit, *more)
            assert refused.returncode == 2
            assert what in refused.stderr
        refused = logkeep("restore", "-f", tmp_path / "restore.yaml", "--strimzi-cluster", "prod")
        assert "--strimzi-cluster has no effect without --emit-topics" in refused.stderr
