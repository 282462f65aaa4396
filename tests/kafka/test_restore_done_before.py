"""A restore whose resource is deleted and created again is not done twice: it is known by what lies in the archive."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import RestoreUnfinished, TargetChanged
from logkeep_engine.report import Reporter
from logkeep_engine.restore.run.entry import run_of
from tests.cluster.kafka import KafkaBroker
from tests.cluster.process import wait_until
from tests.data.topics import create_topic, delete_topics, produce, random_records
from tests.kafka.restores import (
    ThreadRunner,
    back_up,
    backup_spec,
    committed,
    restore_spec,
    wait_for_more,
)

NO_RETENTION = {"retention.ms": "-1"}

_DRIVER = """
import sys
from logkeep_engine.contract.run import RunRequest
from tests.kafka.test_restore_done_before import perform

perform(RunRequest.from_json(sys.argv[1]))
"""


def perform(request: RunRequest) -> RunResult:
    return run_of(
        request, parse_restore(request.spec), ThreadRunner, Reporter(request.run_id), os.environ
    ).perform_or_raise()


class GitOps:
    """A KafkaRestore in Git that appends. Each run id is that of a resource which was created again."""

    def __init__(self, kafka: KafkaBroker, topic: str, folder: Path) -> None:
        self._kafka = kafka
        self._folder = folder
        self._copy = f"{topic}-copy"
        self.root = folder / "archive"
        create_topic(kafka.bootstrap, self._copy, 1, NO_RETENTION)

    def run(self, run_id: str, *, again: str = "", **spec: Any) -> RunResult:
        """Restore in this process."""
        return perform(self._request(run_id, again, spec))

    def start(self, run_id: str, **spec: Any) -> "subprocess.Popen[bytes]":
        """Restore in a process of its own, which can be killed."""
        request = self._request(run_id, "", spec).to_json()
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self._folder / "driver.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-c", _DRIVER, request], env=environ, stdout=log, stderr=log)

    def grows(self, driver: "subprocess.Popen[bytes]") -> bool:
        """Wait until the driver has written some records, not all."""
        return wait_for_more(self._kafka, self._copy, driver, 1_000_000, "0") and driver.poll() is None

    def records(self) -> int:
        return len(committed(self._kafka, self._copy))

    def stored(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}

    def _request(self, run_id: str, again: str, changes: dict[str, Any]) -> RunRequest:
        name = "KafkaRestore team/again" + (f", run again: {again}" if again else "")
        spec = restore_spec(self._kafka, self.root, ifTopicExists="Append", **changes)
        return RunRequest(
            kind="KafkaRestore", name="again", namespace="team", run_id=run_id, spec=spec, remembered_as=name
        )


def kill(driver: "subprocess.Popen[bytes]") -> None:
    driver.kill()
    driver.wait()


def archived(kafka: KafkaBroker, topic: str, folder: Path, megabytes: int) -> int:
    """Archive a topic of as many megabytes; the number of its records."""
    create_topic(kafka.bootstrap, topic, 1, NO_RETENTION)
    records = random_records(1, megabytes, record_bytes=1000)
    produce(kafka.bootstrap, topic, records, config={"batch.size": 16_000})
    back_up(backup_spec(kafka, folder / "archive", topic))
    return len(committed(kafka, topic))


def test_a_restore_that_is_created_again_finds_that_it_was_done(
    kafka: KafkaBroker, unique: str, tmp_path: Path
) -> None:
    whole = archived(kafka, unique, tmp_path, 8)
    git = GitOps(kafka, unique, tmp_path)

    # The driver is killed in the middle. Nobody but its own run knows what is left.
    driver = git.start("first", limits={"bytesPerSecond": "2Mi"})
    assert git.grows(driver), (tmp_path / "driver.log").read_text()[-3000:]
    kill(driver)
    with pytest.raises(RestoreUnfinished, match="Run first of KafkaRestore team/again has begun to append"):
        git.run("second")
    # It continues, and its driver is killed when its result is stored and perhaps nobody was told of it.
    driver = git.start("first")
    result = git.root / "runs/first/result.json"
    wait_until(lambda: result.exists() or driver.poll() is not None, 300, "the result of the run")
    kill(driver)
    assert git.records() == whole
    before = git.stored()
    for run_id in ("third", "fourth"):
        again = git.run(run_id)
        assert (again.run_id, again.outcome, again.earlier_run, again.records) == (run_id, "Succeeded", "first", whole)
        assert again.message.startswith("Nothing was written: run first has done this restore and ended at 20")
    assert git.records() == whole
    notes = {f"runs/{run_id}/{name}.json" for run_id in ("third", "fourth") for name in ("started", "result")}
    assert git.stored() - before == notes
    assert git.run("first").earlier_run is None, "the run that has done it says so itself"
    # It was restored without a verification; a resource that is created again may ask for one.
    compared = git.run("compared", verify="Full")
    assert (compared.earlier_run, compared.records, git.records()) == ("first", whole, whole)
    assert compared.verification is not None
    assert compared.verification.message == f"all {whole} records are those of the archive"

    # Wanted once more, by an annotation; and another thing, by the spec.
    assert git.run("fifth", again="2").earlier_run is None
    assert git.run("sixth", again="2").earlier_run == "fifth"
    assert git.records() == 2 * whole
    assert git.run("seventh", onDamagedArchive="Skip").earlier_run is None
    assert git.records() == 3 * whole


def test_another_kafka_cluster_gets_its_restore(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    """After a disaster the resources of Git are created in new clusters, which have nothing yet."""
    whole = archived(kafka, unique, tmp_path, 1)
    git = GitOps(kafka, unique, tmp_path)
    assert git.run("first").earlier_run is None
    with KafkaBroker() as other:
        elsewhere = GitOps(other, unique, tmp_path)
        assert elsewhere.run("second").earlier_run is None
        assert elsewhere.records() == whole
    assert git.run("third").earlier_run == "first"
    assert git.records() == whole


def test_what_is_not_there_any_more_is_not_called_restored(kafka: KafkaBroker, unique: str, tmp_path: Path) -> None:
    """A cluster that was lost may be made again under its old id, and clients create their topics, empty."""
    whole = archived(kafka, unique, tmp_path, 1)
    git = GitOps(kafka, unique, tmp_path)
    into = {"include": [unique], "rename": [{"from": "(.*)", "to": r"\1-made"}]}
    assert git.run("first", topics=into).records == whole
    made = f"{unique}-made"
    assert git.run("second", topics=into).earlier_run == "first"
    delete_topics(kafka.bootstrap, [made])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    wait_until(lambda: made not in admin.list_topics(timeout=30).topics, 60, "the end of a topic")
    with pytest.raises(
        TargetChanged, match=f"run first .* of its 1 topic 1 is not there, the first is '{made}'"
    ) as gone:
        git.run("third", topics=into)
    assert "take another --run-id" in gone.value.hint
    create_topic(kafka.bootstrap, made, 1, NO_RETENTION)
    with pytest.raises(TargetChanged, match=r"run first .* its 1 topic holds nothing of it"):
        git.run("fourth", topics=into)
    assert git.run("fifth", topics=into, again="2").earlier_run is None
    assert len(committed(kafka, made)) == whole
    assert git.run("sixth", topics=into, again="2").earlier_run == "fifth"
