"""A drill restores, proves, measures and leaves nothing behind, whenever its driver dies."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from logkeep_engine.contract.facts.outcome import DrillFacts
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import BrokerUnavailable, NothingToRestore, RecordsDiffer, RecordsNotVerified
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run import drill as drill_run
from logkeep_engine.restore.run.drill_topics import DrillTopics
from logkeep_engine.restore.run.entry import run_of
from logkeep_engine.restore.sending import without_records as outside
from logkeep_engine.restore.verification.step import verify_restored
from logkeep_engine.tasks import TaskRunner
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.cluster.s3 import S3Server
from tests.cluster.s3_proxy import S3Proxy, lost_answer
from tests.command import logkeep, script
from tests.data.topics import Record, create_topic, produce, random_records
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    committed,
    start_driver,
    transactions,
    wait_for_more,
)
from tests.runners import Job


@pytest.fixture
def prefix(unique: str) -> str:
    return f"{unique}-drill."


def drill_spec(broker: KafkaBroker, root: Path, prefix: str, **more: Any) -> dict[str, Any]:
    return {
        "cluster": {"bootstrapServers": broker.addresses},
        "source": {"storage": {"uri": root.as_uri()}},
        "drill": {"prefix": prefix},
        **more,
    }


def drilled(
    spec: dict[str, Any], run_id: str = "drill-1", runner: TaskRunner | None = None, name: str = "drill"
) -> RunResult:
    request = RunRequest(kind="KafkaRestore", name=name, namespace="team", run_id=run_id, spec=spec)
    return run_of(
        request, parse_restore(spec), lambda: runner or ThreadRunner(), Reporter(run_id), os.environ
    ).perform_or_raise()


def names(broker: KafkaBroker, prefix: str) -> list[str]:
    """The topics of drills that the broker has."""
    topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
    return sorted(name for name in topics if name.startswith(prefix))


def remembered(root: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((root / "runs" / "open-drills").glob("*.json"))]


def numbered(count: int, partition: int = 0) -> Iterator[Record]:
    now = int(time.time() * 1000) - 3_600_000
    for number in range(count):
        yield Record(b"k%d" % number, b"v%d" % number, now + number, [], partition)


@pytest.fixture
def archive(kafka: KafkaBroker, unique: str, tmp_path: Path) -> Path:
    """An archive of the topic `unique`: 700 records in three partitions, one of them empty."""
    create_topic(kafka.bootstrap, unique, 3)
    for partition in range(2):
        produce(kafka.bootstrap, unique, numbered(300, partition))
    transactions(kafka, unique, [60, -5, 40])
    root = tmp_path / "archive"
    back_up(backup_spec(kafka, root, unique))
    return root


def archive_id(archive: Path) -> str:
    return str(json.loads((archive / "archive.json").read_bytes())["archiveId"])


def outcome_of(result: RunResult) -> str:
    return "" if result.verification is None else result.verification.outcome


def facts_of(result: RunResult) -> DrillFacts:
    assert result.drill is not None
    return result.drill


class TestDrill:
    def test_it_proves_measures_and_leaves_a_report_and_nothing_else(
        self, kafka: KafkaBroker, archive: Path, unique: str, prefix: str
    ) -> None:
        before = {path for path in archive.rglob("*") if path.is_file()}
        result = drilled(drill_spec(kafka, archive, prefix))

        facts = facts_of(result)
        assert (result.outcome, result.records, facts.records, facts.partitions) == ("Succeeded", 700, 700, 2)
        assert outcome_of(result) == "Verified"
        assert 0 < facts.recovery_seconds < facts.verified_seconds <= result.end_time - result.start_time
        assert names(kafka, prefix) == []
        assert len(committed(kafka, unique)) == 400
        report = json.loads((archive / "runs/drill-1/drill.json").read_bytes())
        assert facts.report == f"{archive.as_uri()}/runs/drill-1/drill.json"
        assert (report["outcome"], report["recoverySeconds"]) == ("Verified", facts.recovery_seconds)
        ((source, _, target, target_id),) = report["topics"]
        assert (source, target.startswith(prefix), target.endswith(f"-{unique}")) == (unique, True, True)
        assert len(target_id) == 22
        assert Path(report["page"].removeprefix("file://")).read_text().startswith("<!DOCTYPE html>")
        assert json.loads(Path(report["verification"].removeprefix("file://")).read_bytes())["outcome"] == "Verified"
        left = {path.name for path in archive.rglob("*") if path.is_file() and path not in before}
        written = {"alive.json", "drill.json", "result.json", "started.json", "verification.json", "verification.html"}
        assert left == written | {path.name for path in (archive / "digests").rglob("*.json")}
        assert remembered(archive) == []

    def test_the_same_offsets(self, kafka: KafkaBroker, archive: Path, prefix: str) -> None:
        result = drilled(drill_spec(kafka, archive, prefix, offsets="Same"))
        assert outcome_of(result) == "Verified"
        assert names(kafka, prefix) == []

    def test_a_point_without_a_record_proves_nothing(
        self, kafka: KafkaBroker, unique: str, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Too much lies there to look through before: all of it is of a transaction that was open then."""
        create_topic(kafka.bootstrap, unique)
        transactions(kafka, unique, [5])
        back_up(backup_spec(kafka, tmp_path, unique))
        monkeypatch.setattr(outside, "LOOK_BYTES", 0)
        inside = {"offsets": [{"topic": unique, "partition": 0, "offset": 3}]}
        with pytest.raises(NothingToRestore, match="the drill proves nothing"):
            drilled(drill_spec(kafka, tmp_path, prefix, point=inside))
        assert names(kafka, prefix) == []

    def test_a_note_that_a_drill_has_succeeded_is_not_believed(
        self, kafka: KafkaBroker, archive: Path, prefix: str
    ) -> None:
        """Nothing in the cluster bears it out: the topics of a drill are gone. So a driver that starts again drills
        again."""
        forged = RunResult(
            run_id="drill-1",
            kind="KafkaRestore",
            outcome="Succeeded",
            exit_code=0,
            start_time=1.0,
            end_time=2.0,
            archive_id=archive_id(archive),
        )
        (archive / "runs/drill-1").mkdir(parents=True)
        (archive / "runs/drill-1/result.json").write_text(forged.to_json())
        reports = [facts_of(drilled(drill_spec(kafka, archive, prefix))).report for _ in range(2)]
        assert reports == [f"{archive.as_uri()}/runs/drill-1/{name}" for name in ("drill.json", "drill-2.json")]
        for uri in reports:
            report = json.loads(Path(uri.removeprefix("file://")).read_bytes())
            assert (report["outcome"], report["records"]) == ("Verified", 700)
        assert names(kafka, prefix) == []

    def test_a_name_that_is_too_long_is_cut(self, kafka: KafkaBroker, unique: str, prefix: str, tmp_path: Path) -> None:
        long = [f"{unique}{letter * (249 - len(unique))}" for letter in "ab"]
        for topic in long:
            create_topic(kafka.bootstrap, topic)
            produce(kafka.bootstrap, topic, numbered(3))
        back_up(backup_spec(kafka, tmp_path, f"{unique}.*"))
        assert facts_of(drilled(drill_spec(kafka, tmp_path, prefix))).records == 6


def test_sampled_drills_take_each_partition_once(kafka: KafkaBroker, archive: Path, unique: str, prefix: str) -> None:
    """Two of three partitions have records, and a drill takes one of them."""
    spec = drill_spec(kafka, archive, prefix, offsets="Same")
    spec["drill"]["share"] = "50%"
    facts = [facts_of(drilled(spec, f"drill-{number}")) for number in range(4)]
    assert [one.partitions for one in facts] == [1] * 4
    assert sorted(one.records for one in facts[:2]) == sorted(one.records for one in facts[2:]) == [300, 400]
    assert [(one.cycle, one.drilled, one.total, one.runs) for one in facts] == [
        (1, 1, 2, 2), (1, 2, 2, 2), (2, 1, 2, 2), (2, 2, 2, 2)
    ]  # fmt: skip
    assert names(kafka, prefix) == []


def test_a_part_that_was_not_proved_is_drilled_again(kafka: KafkaBroker, archive: Path, prefix: str) -> None:
    spec = drill_spec(kafka, archive, prefix)
    spec["drill"]["share"] = "50%"
    with pytest.raises(RecordsNotVerified):
        drilled(spec, "drill-1", runner=Spoiled(kafka, prefix))
    failed = json.loads((archive / "runs/drill-1/drill.json").read_bytes())["records"]
    again = facts_of(drilled(spec, "drill-2"))
    assert (again.records, again.drilled) == (failed, 1)


class Spoiled(ThreadRunner):
    """Somebody else writes to the topic of the drill before it is verified."""

    def __init__(self, broker: KafkaBroker, prefix: str) -> None:
        super().__init__()
        self._broker, self._prefix = broker, prefix

    def perform(self, job: Job) -> None:
        if job.name == "verify_partitions":
            for topic in names(self._broker, self._prefix):
                produce(self._broker.bootstrap, topic, numbered(1))
        super().perform(job)


class TestNotGood:
    def test_what_is_not_verified_fails_the_drill(self, kafka: KafkaBroker, archive: Path, prefix: str) -> None:
        spec = drill_spec(kafka, archive, prefix)
        with pytest.raises(RecordsNotVerified, match="others have written 1 record "):
            drilled(spec, runner=Spoiled(kafka, prefix))
        assert names(kafka, prefix) == []
        failure = json.loads((archive / "runs/drill-1/result.json").read_bytes())
        assert (failure["errorCode"], failure["verification"]["outcome"]) == ("RecordsNotVerified", "NotVerified")
        assert failure["drill"]["records"] == 700
        assert json.loads((archive / "runs/drill-1/drill.json").read_bytes())["outcome"] == "NotVerified"

    def test_a_difference_fails_the_drill(
        self, kafka: KafkaBroker, archive: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second record of what is restored has another value than the archive's."""
        genuine = verify_restored

        def verify_another(context: Any, planned: Any) -> Any:
            for path in (archive / "digests").rglob("*.json"):
                path.unlink()
            found = genuine(context, planned)
            return type(found)(**{**vars(found), "outcome": "Different", "message": "one record"})

        monkeypatch.setattr(drill_run, "verify_restored", verify_another)
        with pytest.raises(RecordsDiffer, match="restored topics of the drill differ from the archive: one record"):
            drilled(drill_spec(kafka, archive, prefix))
        assert names(kafka, prefix) == []

    @pytest.mark.parametrize("error", [BrokerUnavailable("gone"), KeyboardInterrupt("gone")])
    def test_an_error_or_an_interruption_on_the_way_leaves_no_topic(
        self, kafka: KafkaBroker, archive: Path, prefix: str, error: BaseException
    ) -> None:
        class Failing(ThreadRunner):
            def perform(self, job: Job) -> None:
                super().perform(job)
                if job.name == "restore_partitions":
                    assert len(names(kafka, prefix)) == 1
                    raise error

        spec = drill_spec(kafka, archive, prefix)
        with pytest.raises(type(error), match="gone"):
            drilled(spec, runner=Failing())
        assert (names(kafka, prefix), remembered(archive)) == ([], [])
        assert drilled(spec).outcome == "Succeeded"

    def test_topics_that_cannot_be_deleted_are_named(
        self, kafka: KafkaBroker, archive: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: Any) -> None:
            raise BrokerUnavailable("no controller")

        spec = drill_spec(kafka, archive, prefix)
        with monkeypatch.context() as patched:
            patched.setattr(ControlPlane, "delete_topic_ids", refuse)
            with pytest.raises(BrokerUnavailable, match="no controller"):
                drilled(spec)
        (left,) = remembered(archive)
        assert list(left["topics"]) == names(kafka, prefix) != []
        drilled(spec, "drill-2")  # another run of the same resource
        assert (names(kafka, prefix), remembered(archive)) == ([], [])


_DRIVER = """
import os, signal, sys
from logkeep_engine.contract.run import RunRequest
from logkeep_engine.restore.run import drill as run
from logkeep_engine.restore.run.drill_topics import DrillTopics
from logkeep_engine.restore.topics.targets import CreatedTopics
from tests.kafka.test_drill import drilled

import json
where, when, spec = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
owner, _, name = where.rpartition(".")
owner = {"run": run, "DrillTopics": DrillTopics, "CreatedTopics": CreatedTopics}[owner]
genuine = getattr(owner, name)

def dying(*arguments, **more):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    genuine(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, dying)
drilled(spec)
"""


def killed(spec: dict[str, Any], where: str, when: str = "after") -> None:
    """Begin a drill in a process of its own, which is killed before or after this step."""
    found = script(_DRIVER, where, when, json.dumps(spec))
    assert found.returncode == -9, found.stderr


class TestKilled:
    @pytest.mark.parametrize(
        ("where", "when", "topics"),
        [
            ("DrillTopics.announce", "after", 0),
            ("CreatedTopics.create", "after", 1),  # their ids are not noted yet
            ("DrillTopics.remember", "after", 1),
            ("run.restore_open_partitions", "after", 1),
            ("run.verify_restored", "after", 1),
            ("DrillTopics.delete", "after", 0),
        ],
    )
    def test_the_next_attempt_deletes_what_is_left_and_begins_again(
        self, kafka: KafkaBroker, archive: Path, prefix: str, where: str, when: str, topics: int
    ) -> None:
        spec = drill_spec(kafka, archive, prefix)
        killed(spec, where, when)
        wait_until(lambda: len(names(kafka, prefix)) == topics, 60, "the topics of the killed drill")
        assert drilled(spec).outcome == "Succeeded"
        assert names(kafka, prefix) == []
        # An attempt whose topics were not seen may still get one, so it is remembered for a while.
        assert [list(item["topics"].values()) for item in remembered(archive)] == (
            [[""]] if where == "DrillTopics.announce" else []
        )

    def test_the_next_run_of_the_resource_deletes_it_too_and_another_resource_does_not(
        self, kafka: KafkaBroker, archive: Path, prefix: str
    ) -> None:
        spec = drill_spec(kafka, archive, prefix)
        killed(spec, "run.restore_open_partitions")
        left = names(kafka, prefix)
        assert len(left) == 1
        drilled(spec, "drill-2", name="another")
        assert names(kafka, prefix) == left
        drilled(spec, "drill-3")
        assert (names(kafka, prefix), remembered(archive)) == ([], [])


def test_a_driver_that_is_told_to_end_deletes_its_topics(
    kafka: KafkaBroker, archive: Path, unique: str, prefix: str, tmp_path: Path
) -> None:
    """Kubernetes tells it so when the resource is deleted or suspended."""
    produce(kafka.bootstrap, unique, random_records(2, 6))  # at 64 KiB/s more than a minute of work
    back_up(backup_spec(kafka, archive, unique), "backup-2")
    spec = drill_spec(kafka, archive, prefix, limits={"bytesPerSecond": "64Ki"})
    request = tmp_path / "request.json"
    request.write_text(
        RunRequest(kind="KafkaRestore", name="drill", namespace="team", run_id="drill-1", spec=spec).to_json()
    )
    driver = start_driver(request)
    try:
        (name,) = wait_for_topics(kafka, prefix, driver)
        assert wait_for_more(kafka, name, driver, 1)
        assert driver.poll() is None, "it has ended too early"
        os.kill(driver.pid, signal.SIGTERM)
        assert driver.wait(120) == ExitCode.INTERRUPTED
    finally:
        driver.kill()
    assert (names(kafka, prefix), remembered(archive)) == ([], [])


def wait_for_topics(kafka: KafkaBroker, prefix: str, driver: "subprocess.Popen[bytes]") -> list[str]:
    wait_until(lambda: bool(names(kafka, prefix)) or driver.poll() is not None, 120, "the topics of the drill")
    return names(kafka, prefix)


class TestOthersTopics:
    def test_a_topic_that_was_created_again_is_not_deleted(
        self, kafka: KafkaBroker, archive: Path, prefix: str
    ) -> None:
        spec = drill_spec(kafka, archive, prefix)
        killed(spec, "run.restore_open_partitions")
        (name,) = names(kafka, prefix)
        with ControlPlane(KafkaConnection((kafka.bootstrap,))) as control:
            control.delete_topic_ids(control.topic_ids([name]))
        create_topic(kafka.bootstrap, name)
        assert drilled(spec).outcome == "Succeeded"
        assert (names(kafka, prefix), remembered(archive)) == ([name], [])

    def test_a_topic_without_the_mark_of_the_drill_is_not_deleted(
        self, kafka: KafkaBroker, archive: Path, prefix: str
    ) -> None:
        """Somebody has created a topic under the name that an attempt had noted, and not created yet."""
        spec = drill_spec(kafka, archive, prefix)
        killed(spec, "DrillTopics.announce")
        (left,) = remembered(archive)
        (name,) = left["topics"]
        create_topic(kafka.bootstrap, name)
        assert drilled(spec).outcome == "Succeeded"
        assert names(kafka, prefix) == [name]
        assert [list(item["topics"].values()) for item in remembered(archive)] == [[""]]

    def test_a_name_that_exists_is_refused(
        self, kafka: KafkaBroker, archive: Path, unique: str, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another topic gets the name between the plan and the creation."""
        genuine = DrillTopics.announce

        def announce(topics: DrillTopics) -> None:
            genuine(topics)
            create_topic(kafka.bootstrap, min(topics.drill.topics))

        monkeypatch.setattr(DrillTopics, "announce", announce)
        with pytest.raises(Exception, match="exists already"):
            drilled(drill_spec(kafka, archive, prefix))
        assert len(names(kafka, prefix)) == 1


class TestCommand:
    def test_a_file_of_a_restore_is_drilled(self, kafka: KafkaBroker, archive: Path, unique: str) -> None:
        spec = {**drill_spec(kafka, archive, ""), "topics": {"include": [unique]}}
        del spec["drill"]
        done = logkeep("drill", "-f", "-", "--run-id", "d1", stdin=document(spec))
        assert done.returncode == 0, done.stderr
        for word in ("recovery seconds", "verified after seconds", "Verified: all 700", "/runs/d1/drill.json"):
            assert word in done.stdout
        assert [name for name in names(kafka, "logkeep-drill-") if name.endswith(unique)] == []

    def test_a_restore_that_would_rename_is_refused(self, kafka: KafkaBroker, archive: Path, prefix: str) -> None:
        spec = drill_spec(kafka, archive, prefix, topics={"rename": [{"from": "a", "to": "b"}]})
        done = logkeep("drill", "-f", "-", stdin=document(spec))
        assert done.returncode == 2
        assert "topics.rename has no effect with drill" in done.stderr


def document(spec: dict[str, Any]) -> str:
    body = {"apiVersion": "logkeep.dev/v1alpha1", "kind": "KafkaRestore", "metadata": {"name": "drill"}, "spec": spec}
    return yaml.safe_dump(body)


@pytest.mark.usefixtures("storage_environment")
def test_a_drill_continues_when_the_answer_to_its_note_is_lost(
    kafka: KafkaBroker, s3: S3Server, bucket: str, proxy: S3Proxy, unique: str, prefix: str, tmp_path: Path
) -> None:
    create_topic(kafka.bootstrap, unique, 1)
    produce(kafka.bootstrap, unique, numbered(100))
    storage = {"uri": f"s3://{bucket}/archive", "endpoint": proxy.endpoint, "region": s3.region}
    back_up({**backup_spec(kafka, tmp_path, unique), "storage": storage})
    proxy.meet(lost_answer, where=lambda line: line.startswith(b"PUT") and b"/open-drills/" in line)
    assert drilled({**drill_spec(kafka, tmp_path, prefix), "source": {"storage": storage}}).outcome == "Succeeded"
    assert names(kafka, prefix) == []
