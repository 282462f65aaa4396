"""Somebody with the right to create KafkaBackupRuns, and no other, asks for runs: on a real API server, with the real
operator and its rights."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.conftest import chart
from tests.apiserver.operator import Namespace, Operator, progress, result, run_id_of, wait_for
from tests.apiserver.plugin import Plugin, account
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(500)


class Command:
    """`kubectl logkeep run nightly --wait` as a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.stdout = self.stderr = ""

    def goes_on(self) -> None:
        """Raises AssertionError with what it said if it has ended."""
        if self.process.poll() is not None:
            raise AssertionError(f"it has ended: {self.process.communicate()}")

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self.stdout, self.stderr = self.process.communicate(timeout=240)
        return self.process.returncode


Start = Callable[..., Command]


@pytest.fixture
def runner(namespace: Namespace, tmp_path: Path) -> Plugin:
    """Somebody who is bound to the chart's role for asking, and to nothing else."""
    namespace.api.kubectl("apply", "-f", "-", stdin=chart("--show-only", "templates/user-roles.yaml"))
    kubeconfig = account(namespace, tmp_path, [], "night-shift")
    subject = f"--serviceaccount={namespace.name}:night-shift"
    namespace.kubectl("create", "rolebinding", "asks", "--clusterrole=logkeep-run", subject)
    return Plugin(kubeconfig, namespace.name)


def succeed_first(namespace: Namespace) -> str:
    """A backup whose first run has succeeded; the run's id."""
    answer = namespace.apply("KafkaBackup", "nightly", backup_spec())
    assert answer.returncode == 0, answer.stderr
    job = namespace.job()
    namespace.write(job, result=result(run_id_of(job)))
    namespace.job_ends(job, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")
    return run_id_of(job)


@pytest.fixture
def waiting(runner: Plugin) -> Iterator[Start]:
    """Start the command, which continues while the test plays the cluster."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> Command:
        started.append(runner.start("run", "nightly", "--wait", "--timeout", "200", *arguments))
        return Command(started[-1])

    yield start
    for process in started:
        process.kill()
        process.communicate()


def next_job(namespace: Namespace, before: str, *commands: Command) -> dict[str, Any]:
    """Wait for the Job of the run for which the commands wait."""

    def look() -> dict[str, Any] | None:
        for command in commands:
            command.goes_on()
        return next((job for job in namespace.items("jobs") if run_id_of(job) != before), None)

    return wait_for("the Job of another run", look, timeout=150)


def test_who_may_only_ask_gets_a_run_and_its_outcome(
    namespace: Namespace, operator: Operator, runner: Plugin, waiting: Start
) -> None:
    first = succeed_first(namespace)
    for refused in (["status"], ["topics"], ["logs", "nightly"], ["inspect", "nightly"]):
        assert runner(*refused).exit_code == 2
    command = waiting("--ttl", "600", "-o", "json")
    job = next_job(namespace, first, command)
    run_id = run_id_of(job)
    namespace.pod(job, "driver", phase="Running")
    namespace.write(job, progress(run_id, 250))
    (requested,) = namespace.items("kafkabackupruns")
    name = requested["metadata"]["name"]
    wait_for("25 percent", lambda: namespace.status("kbrun", name).get("percent") == 25)
    shown = namespace.kubectl("get", "kbrun").stdout.splitlines()
    assert shown[1].split()[:5] == [name, "nightly", "Running", run_id, "250"]
    namespace.write(job, result=result(run_id))
    namespace.job_ends(job, "Complete")
    assert command.end() == 0, command.stderr
    reported = json.loads(command.stdout)
    assert (reported["status"]["phase"], reported["status"]["runId"]) == ("Succeeded", run_id)
    assert f"run {run_id}, 25%, 250 records" in command.stderr
    owner = namespace.get("kbrun", name)["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("KafkaBackup", "nightly")
    namespace.kubectl("wait", "--for=condition=Ready", f"kbrun/{name}", "--timeout=30s")
    assert "annotations" not in namespace.get("kbak", "nightly")["metadata"]


def test_a_run_that_fails_gives_its_exit_code_and_two_who_ask_share_one(
    namespace: Namespace, operator: Operator, waiting: Start
) -> None:
    first = succeed_first(namespace)
    operator.kill()
    both = [waiting(), waiting()]
    wait_for("two who ask", lambda: len(namespace.items("kafkabackupruns")) == 2, timeout=150)
    operator.start()
    job = next_job(namespace, first, *both)
    ended = result(run_id_of(job), outcome="Failed", exit_code=3, error_code="ArchiveFenced", message="Another writes.")
    namespace.write(job, result=ended)
    namespace.job_ends(job, "Failed", "PodFailurePolicy", "exit code 3")
    for command in both:
        assert command.end() == 3, command.stderr
        assert "error: ArchiveFenced: Another writes." in command.stderr
    assert {item["status"]["runId"] for item in namespace.items("kafkabackupruns")} == {run_id_of(job)}
    namespace.phase("kbak", "nightly", "Failed")


def test_without_the_backup_it_ends_and_the_object_waits_for_it(
    namespace: Namespace, operator: Operator, waiting: Start
) -> None:
    command = waiting()
    assert command.end() == 2, command.stderr
    assert "there is no KafkaBackup 'nightly'" in command.stderr
    (requested,) = namespace.items("kafkabackupruns")
    answer = namespace.apply("KafkaBackup", "nightly", backup_spec())
    assert answer.returncode == 0, answer.stderr
    job = namespace.job()
    namespace.write(job, result=result(run_id_of(job)))
    namespace.job_ends(job, "Complete")
    status = wait_for("its end", lambda: _succeeded(namespace, requested["metadata"]["name"]))
    assert status["runId"] == run_id_of(job)


def _succeeded(namespace: Namespace, name: str) -> dict[str, Any] | None:
    status = namespace.status("kbrun", name)
    return status if status.get("phase") == "Succeeded" else None


def test_what_was_asked_cannot_be_changed_and_goes_after_its_time(namespace: Namespace, operator: Operator) -> None:
    wrong = namespace.apply("KafkaBackupRun", "wrong", {"backupRef": {"name": "nightly"}, "ttlSecondsAfterFinished": 5})
    assert "should be greater than or equal to 60" in wrong.stderr
    unknown = namespace.apply("KafkaBackupRun", "wrong", {"backupRef": {"name": "nightly"}, "topics": []})
    assert "topics" in unknown.stderr
    namespace.apply("KafkaBackupRun", "one", {"backupRef": {"name": "nightly"}})
    changed = namespace.apply("KafkaBackupRun", "one", {"backupRef": {"name": "weekly"}})
    assert "spec cannot be changed; create another KafkaBackupRun" in changed.stderr
    over = {"phase": "Succeeded", "runId": "r", "endTime": "2026-11-01T00:00:00Z"}
    namespace.patch("kbrun", "one", {"status": over}, "status")
    wait_for("it to go", lambda: namespace.find("kbrun", "one") is None)
