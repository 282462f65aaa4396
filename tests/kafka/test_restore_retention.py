"""Records that the target would delete by its own retention are named before the first byte, and kept if that is asked
for: with brokers that look for such records twice a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import read_cluster_state
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading.view import ends_of_runs
from logkeep_engine.cli import app
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import TargetUnsuitable
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.log.compression import Codec
from logkeep_engine.log.records import Record as BatchRecord
from logkeep_engine.log.records import encode
from logkeep_engine.restore.run import restoring as restore_run
from logkeep_engine.storage import open_uri
from tests.cluster import tools
from tests.cluster.kafka import STEADY, Brokers, KafkaBroker
from tests.cluster.kafka_cluster import KafkaCluster
from tests.command import logkeep
from tests.data.topics import NO_RETENTION, Record, create_topic, produce, topic_names
from tests.kafka.raw import each, eventually, plain, run
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    bring_back,
    committed,
    restore_spec,
    start_driver,
    topic_settings,
)
from tests.runners import Job

DAY = 86_400_000
CHECKS = 3.0  # seconds in which a broker looks several times
HELD = {"retention.bytes": "-1", "retention.ms": "-1"}


@pytest.fixture(scope="module")
def keeping_broker() -> Iterator[KafkaBroker]:
    """A cluster that keeps records for ever, by the configuration of its broker."""
    with KafkaBroker(overrides={**STEADY, "log.retention.ms": "-1"}) as broker:
        yield broker


def month_old(count: int = 300) -> list[Record]:
    """Records of thirty days ago, one a second."""
    begin = int(time.time() * 1000) - 30 * DAY
    return [Record(b"k%d" % number, b"v%d" % number, begin + 1000 * number) for number in range(count)]


class OnlyDelete(KafkaBroker):
    """A cluster whose topics must delete old records: it takes no other cleanup policy."""

    def _class_path(self) -> Sequence[str]:
        return tools.policy_class_path()


@pytest.fixture(scope="module")
def deleting_broker() -> Iterator[KafkaBroker]:
    with OnlyDelete(overrides={**STEADY, "alter.config.policy.class.name": "dev.logkeep.bed.OnlyDelete"}) as broker:
        yield broker


async def send(broker: KafkaBroker, topic: str, batch: bytes) -> None:
    async with RawClient(plain(broker.bootstrap)) as client:
        assert [place async for place in client.produce_many(topic, 0, each([batch]))]


def filled(broker: KafkaBroker, topic: str, root: Path, **config: str) -> None:
    """Back up a topic with records of thirty days ago."""
    create_topic(broker.bootstrap, topic, 1, config)
    produce(broker.bootstrap, topic, month_old())
    assert back_up(backup_spec(broker, root, topic)).records == 300


def set_config(broker: Brokers, resource: ConfigResource, key: str, value: str) -> None:
    resource.add_incremental_config(ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def spec_of(broker: Brokers, root: Path, retention: str | None, **configs: Any) -> dict[str, Any]:
    topics: dict[str, Any] = {"rename": [{"from": "(.*)", "to": r"\1-copy"}]}
    if retention is not None:
        topics["retention"] = retention
    return restore_spec(broker, root, topics={**topics, **configs})


def refused(spec: Mapping[str, Any]) -> TargetUnsuitable:
    with pytest.raises(TargetUnsuitable) as error:
        bring_back(spec)
    return error.value


def released(spec: Mapping[str, Any], root: Path, *options: str, run_id: str = "restore-1") -> str:
    file = root.parent / f"{root.name}-restore.yaml"
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "metadata": {"name": "r"}, "spec": dict(spec)}
    file.write_text(yaml.safe_dump(body))
    found = CliRunner().invoke(app, ["release", "-f", str(file), "--run-id", run_id, *options], env={"COLUMNS": "200"})
    assert found.exit_code == 0, found.output
    return found.output


class TestCreatedTopics:
    def test_a_month_into_a_week_is_refused_before_a_topic_is_there(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        filled(kafka, unique, tmp_path, **NO_RETENTION)
        ignored = {"configs": {"ignore": ["retention.ms"]}}
        error = refused(spec_of(kafka, tmp_path, None, **ignored))
        assert f"topic {unique}-copy keeps records for 7d (retention.ms=604800000, the brokers' default)" in str(error)
        assert "it deletes up to 300 of 300 records in 1 archived segment, the oldest of 20" in error.message
        assert f"{unique}-copy" not in topic_names(kafka.bootstrap)
        dry = bring_back({**spec_of(kafka, tmp_path, None, **ignored), "dryRun": True}, "dry-1")
        assert dry.dry_run is not None
        (refusal,) = dry.dry_run.refusals
        assert f"topic {unique}-copy keeps records for 7d" in refusal.message
        # The topic's own configuration keeps them.
        assert bring_back(spec_of(kafka, tmp_path, None)).records == 300
        time.sleep(CHECKS)
        assert len(committed(kafka, f"{unique}-copy")) == 300

    def test_old_records_that_others_hide_are_refused(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        """Behind a record without a time, and, where a time is asked for, after the first record of a batch."""
        timeless, late = f"{unique}-1", f"{unique}-2"
        now, old = int(time.time() * 1000), month_old(50)
        create_topic(kafka.bootstrap, timeless, 1, NO_RETENTION)
        produce(kafka.bootstrap, timeless, old)
        run(send(kafka, timeless, encode([BatchRecord(0, -1, b"k", b"timeless", ())], codec=Codec.NONE, base_offset=0)))
        create_topic(kafka.bootstrap, late, 1, NO_RETENTION)
        produce(kafka.bootstrap, late, [Record(b"k", b"young", now - DAY), *old], config={"linger.ms": 300})
        assert back_up(backup_spec(kafka, tmp_path, f"{unique}-.")).records == 102
        week = spec_of(kafka, tmp_path, None, configs={"ignore": ["retention.ms"]})
        error = refused({**week, "topics": {**week["topics"], "include": [timeless]}})
        assert f"topic {timeless}-copy keeps records for 7d" in error.message
        point = {"timestamp": moment(now - 20 * DAY)}
        error = refused({**week, "topics": {**week["topics"], "include": [late]}, "point": point})
        assert f"topic {late}-copy keeps records for 7d" in error.message
        assert "it deletes up to 51 of at most 51 records in 1 archived segment" in error.message

    def test_only_what_the_point_brings_is_counted(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        """In the refusal, in its dry run, and before the release: of 300 records the point brings 120."""
        root, copy = tmp_path / "archive", f"{unique}-copy"
        filled(kafka, unique, root, **NO_RETENTION)
        first = committed(kafka, unique)[0][4]
        point = {"point": {"asOf": moment(first + 120_000)}}
        week = {"configs": {"override": {"retention.ms": str(7 * DAY)}}}
        text = "it deletes up to 120 of 120 records in 1 archived segment"
        assert text in refused({**spec_of(kafka, root, None, **week), **point}).message
        dry = bring_back({**spec_of(kafka, root, None, **week), **point, "dryRun": True}, "dry-1")
        assert dry.dry_run is not None
        (refusal,) = dry.dry_run.refusals
        assert text in refusal.message
        spec = {**spec_of(kafka, root, "Hold", **week), **point}
        assert bring_back(spec).records == len(committed(kafka, copy)) == 120
        looked = " ".join(released(spec, root, "--dry-run").split())
        assert text in looked
        assert f"{7 * DAY} the brokers' default 120 120" in looked

    def test_what_is_held_is_there_until_it_is_released(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        root = tmp_path / "archive"
        filled(kafka, unique, root, **NO_RETENTION)
        spec = spec_of(kafka, root, "Hold", configs={"override": {"retention.ms": str(7 * DAY)}})
        result = bring_back(spec)
        assert result.held_topics is not None
        assert (result.held_topics.topics, result.held_topics.topic_list) == (1, (f"{unique}-copy",))
        assert "1 topic keeps all records (retention.ms=-1, retention.bytes=-1) until" in result.message
        assert result.warnings == ()
        assert topic_settings(kafka, f"{unique}-copy") == HELD
        time.sleep(CHECKS)
        assert len(committed(kafka, f"{unique}-copy")) == 300
        looked = released(spec, root, "--dry-run")
        assert "up to 300 of 300 records" in " ".join(looked.split())
        assert "This was a dry run: nothing was changed." in looked
        assert topic_settings(kafka, f"{unique}-copy") == HELD
        done = logkeep("diff", "-f", str(tmp_path / "archive-restore.yaml"), "--run-id", "restore-1")
        assert (done.returncode, "held topics" in done.stdout) == (0, True), done.stderr
        ended = released(spec, root)
        assert ("Released" in ended, "dry run" in ended) == (True, False)
        assert topic_settings(kafka, f"{unique}-copy") == {"retention.ms": str(7 * DAY)}
        eventually(lambda: committed(kafka, f"{unique}-copy") == [])
        assert "ReleasedBefore" in released(spec, root)
        done = logkeep("diff", "-f", str(tmp_path / "archive-restore.yaml"), "--run-id", "restore-1")
        assert (done.returncode, "held topics" in done.stdout) == (5, False), done.stderr

    def test_what_is_applied_is_reported_exactly(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        filled(kafka, unique, tmp_path, **NO_RETENTION)
        spec = spec_of(kafka, tmp_path, "Apply", configs={"override": {"retention.ms": str(7 * DAY)}})
        (warning,) = bring_back(spec).warnings
        assert "it deletes up to 300 of 300 records in 1 archived segment, the oldest of 20" in warning
        eventually(lambda: committed(kafka, f"{unique}-copy") == [])

    def test_a_restore_that_dies_leaves_its_topics_held(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        filled(kafka, unique, tmp_path, **NO_RETENTION)
        spec = spec_of(kafka, tmp_path, "Hold", configs={"override": {"retention.ms": str(7 * DAY)}})

        def killed(*_: Any, **__: Any) -> RunResult:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(restore_run, "facts_of_run", killed)  # after the last change of a topic
            with pytest.raises(KeyboardInterrupt):
                bring_back(spec)
        time.sleep(CHECKS)
        assert topic_settings(kafka, f"{unique}-copy") == HELD
        result = bring_back(spec)
        assert (result.records, result.warnings) == (300, ())
        assert topic_settings(kafka, f"{unique}-copy") == HELD
        assert len(committed(kafka, f"{unique}-copy")) == 300


class TestExistingTopics:
    def test_a_topic_that_is_there_is_held_and_gets_back_what_it_had(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        root = tmp_path / "archive"
        filled(kafka, unique, root, **NO_RETENTION)
        there = {"retention.ms": str(2 * DAY), "segment.bytes": "1048576"}
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, there)
        error = refused({**spec_of(kafka, root, None), "ifTopicExists": "Append"})
        assert f"topic {unique}-copy keeps records for 2d (retention.ms={2 * DAY})" in error.message
        spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
        assert bring_back(spec).records == 300
        assert topic_settings(kafka, f"{unique}-copy") == {**there, **HELD}
        time.sleep(CHECKS)
        assert len(committed(kafka, f"{unique}-copy")) == 300
        released(spec, root)
        assert topic_settings(kafka, f"{unique}-copy") == there
        eventually(lambda: committed(kafka, f"{unique}-copy") == [])


class Meanwhile(ThreadRunner):
    """Somebody gives a topic a retention of a day when all records are there, and Kafka deletes them before the restore
    continues."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        super().__init__()
        self._broker = broker
        self._topic = topic

    def perform(self, job: Job) -> None:
        super().perform(job)
        if job.name != "restore_partitions":
            return
        set_config(self._broker, ConfigResource(ConfigResource.Type.TOPIC, self._topic), "retention.ms", str(DAY))
        eventually(lambda: committed(self._broker, self._topic) == [])


class TestRecordsThatAreDeletedMeanwhile:
    @pytest.mark.parametrize("retention", [None, "Hold"])
    def test_a_created_topic_has_lost_them(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, retention: str | None
    ) -> None:
        filled(kafka, unique, tmp_path, **NO_RETENTION)
        result = bring_back(spec_of(kafka, tmp_path, retention), runner=Meanwhile(kafka, f"{unique}-copy"))
        (warning,) = result.warnings
        assert f"topic {unique}-copy has deleted up to 300 records of this restore" in warning
        assert (result.held_topics is None) == (retention is None)  # it has its own configuration at the end

    def test_a_topic_that_was_there_has_lost_them(self, kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
        filled(kafka, unique, tmp_path, **NO_RETENTION)
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, NO_RETENTION)
        produce(kafka.bootstrap, f"{unique}-copy", month_old(7))
        spec = {**spec_of(kafka, tmp_path, None), "ifTopicExists": "Append"}
        deleted, going = bring_back(spec, runner=Meanwhile(kafka, f"{unique}-copy")).warnings
        assert f"topic {unique}-copy has deleted up to 300 records of this restore" in deleted
        assert going.startswith(f"topic {unique}-copy keeps records for 1d (retention.ms={DAY}): it deletes up to 300")

    def test_a_topic_that_somebody_has_changed_is_not_said_to_be_held(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        root = tmp_path / "archive"
        filled(kafka, unique, root, **NO_RETENTION)
        create_topic(kafka.bootstrap, f"{unique}-copy", 1, NO_RETENTION)
        spec = {**spec_of(kafka, root, "Hold"), "ifTopicExists": "Append"}
        result = bring_back(spec, runner=Meanwhile(kafka, f"{unique}-copy"))
        assert result.held_topics is None
        assert "keeps all records" not in result.message
        *_, reported = result.warnings
        assert reported.endswith(f"another retention while they were restored, so they are not held: {unique}-copy")
        assert "NotHeld" in released(spec, root)


class TestHoldFor:
    def end_of(self, spec: Mapping[str, Any], folder: Path, run_id: str = "restore-1") -> RunResult:
        """The result of a driver that is told to release the topics of a run."""
        folder.mkdir(exist_ok=True)
        request = RunRequest(
            kind="KafkaRestore", name="test", namespace="", run_id=run_id, spec=dict(spec), release=True
        )
        (folder / "request.json").write_text(request.to_json())
        driver = start_driver(folder / "request.json", spark=False)
        code = driver.wait(120)
        result = RunResult.from_json((folder / "end").read_text())
        assert code == result.exit_code, (folder / "driver.log").read_text()
        return result

    def test_topics_are_held_for_a_time_and_then_released_by_the_driver(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        root, copy, other = tmp_path / "archive", f"{unique}-1-copy", f"{unique}-2-copy"
        for topic in (f"{unique}-1", f"{unique}-2"):
            create_topic(kafka.bootstrap, topic, 1, NO_RETENTION)
            produce(kafka.bootstrap, topic, month_old())
        assert back_up(backup_spec(kafka, root, f"{unique}-.")).records == 600
        keeps = {"configs": {"override": {"retention.ms": str(7 * DAY)}}}
        spec = spec_of(kafka, root, "Hold", holdFor="5s", **keeps)
        result = bring_back(spec)
        assert f"until they are released: {copy}, {other}" in result.message
        note = root / "runs/restore-1/result.json"
        before = note.read_bytes()
        # Somebody has made it longer: the spec that counts is that of the driver that releases.
        early = self.end_of(spec_of(kafka, root, "Hold", holdFor="1h", **keeps), tmp_path / "early")
        assert (early.outcome, early.error_code, early.exit_code) == ("Failed", "Refused", 2)
        assert "run restore-1 holds its topics until" in early.message
        set_config(kafka, ConfigResource(ConfigResource.Type.TOPIC, other), "retention.ms", str(90 * DAY))
        eventually(lambda: topic_settings(kafka, other)["retention.ms"] == str(90 * DAY))
        assert topic_settings(kafka, copy) == HELD
        assert len(committed(kafka, copy)) == 300
        eventually(lambda: time.time() > result.end_time + 5)
        found = self.end_of(spec, tmp_path / "release")
        assert replace(found, held_topics=result.held_topics) == RunResult.from_json(before)
        assert found.held_topics is not None
        assert (found.held_topics.topics, found.held_topics.released) == (2, 1)
        assert topic_settings(kafka, copy) == {"retention.ms": str(7 * DAY)}
        eventually(lambda: committed(kafka, copy) == [])
        assert len(committed(kafka, other)) == 300
        assert note.read_bytes() == before
        again = self.end_of(spec, tmp_path / "again")  # as after a driver that was killed before it could tell
        assert again.held_topics is not None
        assert (again.held_topics.topics, again.held_topics.released) == (2, 1)
        assert "ReleasedBefore" in released(spec, root)
        assert "NotHeld" in released(spec, root)

    def test_a_resource_that_finds_the_restore_done_releases_what_that_one_holds(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        root, copy = tmp_path / "archive", f"{unique}-copy"
        filled(kafka, unique, root, **NO_RETENTION)
        keeps = {"configs": {"override": {"retention.ms": str(7 * DAY)}}}
        first = bring_back(spec_of(kafka, root, "Hold", holdFor="500w", **keeps))
        spec = {**spec_of(kafka, root, "Hold", holdFor="1s", **keeps), "ifTopicExists": "Resume"}
        found = bring_back(spec, "restore-2")
        assert (found.earlier_run, found.earlier_end) == ("restore-1", first.end_time)
        assert found.held_topics == first.held_topics
        eventually(lambda: time.time() > first.end_time + 1)
        ended = self.end_of(spec, tmp_path / "release", "restore-2")
        assert ended.held_topics is not None
        assert (ended.run_id, ended.held_topics.topics, ended.held_topics.released) == ("restore-2", 1, 1)
        assert topic_settings(kafka, copy) == {"retention.ms": str(7 * DAY)}
        eventually(lambda: committed(kafka, copy) == [])
        again = bring_back(spec, "restore-3")  # also after Kafka has deleted the records
        assert again.earlier_run == "restore-1"


class TestDefaultsOfTheSource:
    def test_for_ever_by_default_does_not_become_a_week(
        self, keeping_broker: KafkaBroker, kafka: KafkaBroker, unique: str, tmp_path: Path
    ) -> None:
        root = tmp_path / "archive"
        filled(keeping_broker, unique, root)
        archive = Archive.open(open_uri(root.as_uri()))
        state = read_cluster_state(archive, next(ends_of_runs(archive, archive.load().commit)))
        assert state is not None
        assert state.defaults == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
        assert "(retention.ms=604800000, the brokers' default)" in refused(spec_of(kafka, root, None)).message
        spec = spec_of(kafka, root, "Hold")
        (warning,) = bring_back(spec).warnings
        assert "1 topic had retention.ms=-1 from the brokers of the source, and would get" in warning
        assert "their release sets retention.ms=-1" in warning
        released(spec, root)
        assert topic_settings(kafka, f"{unique}-copy") == {"retention.ms": "-1"}
        time.sleep(CHECKS)
        assert len(committed(kafka, f"{unique}-copy")) == 300


def test_the_broker_that_keeps_least_counts(unique: str, tmp_path: Path) -> None:
    """Somebody has changed the default of the first broker, and has not come to the second."""
    with KafkaCluster(2, overrides=STEADY) as cluster:
        create_topic(cluster.bootstrap, unique, 1, NO_RETENTION)
        produce(cluster.bootstrap, unique, month_old())
        assert back_up(backup_spec(cluster, tmp_path, unique)).records == 300
        set_config(cluster, ConfigResource(ConfigResource.Type.BROKER, "1"), "log.retention.ms", "-1")
        with ControlPlane(plain(cluster.addresses[0])) as control:
            keys = ["log.retention.ms", "log.retention.hours"]
            first, second = {"log.retention.ms": "-1", "log.retention.hours": "168"}, {"log.retention.hours": "168"}
            eventually(lambda: control.configs_of_brokers(keys) == [first, second])
        spec = spec_of(cluster, tmp_path, None, configs={"ignore": ["retention.ms"]})
        said = f"topic {unique}-copy keeps records for 7d (retention.ms=604800000, the brokers' default)"
        assert said in refused(spec).message
        create_topic(cluster.bootstrap, f"{unique}-copy", 1)
        assert said in refused({**spec, "ifTopicExists": "Append"}).message


@pytest.mark.parametrize("policy", ["", "compact"])
class TestRefusedCleanupPolicy:
    """The topic stays with the policy that deletes. The brokers' default of a week would take its records of a month
    ago, and so would the retention that it has had without effect."""

    def test_a_topic_deletes_nothing_instead(
        self, kafka: KafkaBroker, deleting_broker: KafkaBroker, unique: str, tmp_path: Path, policy: str
    ) -> None:
        filled(kafka, unique, tmp_path, **{"cleanup.policy": policy, "retention.ms": "1000", "flush.ms": "77"})
        spec = spec_of(deleting_broker, tmp_path, None)
        text = f"topic {unique}-copy: cleanup.policy={policy} could not be set: "
        instead = "So that it still deletes nothing, it has retention.ms=-1, retention.bytes=-1."
        result = bring_back(spec)
        (warning,) = result.warnings
        assert warning.startswith(text)
        assert "POLICY_VIOLATION" in warning or "must have cleanup.policy=delete" in warning
        assert warning.endswith(instead)
        found = topic_settings(deleting_broker, f"{unique}-copy")
        assert found == {**HELD, "cleanup.policy": "delete", "flush.ms": "77"}
        time.sleep(CHECKS)
        assert len(committed(deleting_broker, f"{unique}-copy")) == 300

    def test_its_release_deletes_nothing_either(
        self, kafka: KafkaBroker, deleting_broker: KafkaBroker, unique: str, tmp_path: Path, policy: str
    ) -> None:
        root = tmp_path / "archive"
        filled(kafka, unique, root, **{"cleanup.policy": policy, "retention.ms": "1000"})
        spec = spec_of(deleting_broker, root, "Hold")
        assert len(bring_back(spec).warnings) == 1
        assert "Released" in released(spec, root)
        assert topic_settings(deleting_broker, f"{unique}-copy") == {**HELD, "cleanup.policy": "delete"}
        time.sleep(CHECKS)
        assert len(committed(deleting_broker, f"{unique}-copy")) == 300


def test_a_drill_says_what_a_restore_would_lose(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    filled(kafka, unique, tmp_path, **NO_RETENTION)
    configs = {"override": {"retention.ms": str(7 * DAY)}}
    spec = restore_spec(kafka, tmp_path, topics={"configs": configs}, drill={})
    result = bring_back(spec)
    assert result.verification is not None
    assert result.verification.outcome == "Verified"
    (warning,) = result.warnings
    assert f"a restore into such topics would lose records: topic {unique} keeps records for 7d" in warning
    assert "it deletes up to 300 of 300 records" in warning
