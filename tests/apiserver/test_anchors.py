"""A real API server keeps the anchor of an archive, and of two KafkaBackups of one archive the later gets no Job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.run import RunRequest
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_operator import start
from tests.unit.operator.world import backup_spec, restore_spec

pytestmark = pytest.mark.timeout(300)

FIVE, SIX = f"5:{'5' * 64}", f"6:{'6' * 64}"


def request_of(namespace: Namespace, job: dict[str, object]) -> RunRequest:
    name = f"{job['metadata']['name']}-request"  # type: ignore[index]
    return RunRequest.from_json(namespace.get("configmap", name)["data"]["request.json"])


def succeeds(namespace: Namespace, job: dict[str, object], **of_result: Any) -> None:
    namespace.write(job, result=result(run_id_of(job), **of_result))
    namespace.job_ends(job, "Complete")


def next_job(namespace: Namespace, *before: dict[str, object]) -> dict[str, object]:
    known = {run_id_of(job) for job in before}

    def look() -> dict[str, object] | None:
        return next((job for job in namespace.items("jobs") if run_id_of(job) not in known), None)

    return wait_for("another Job", look)


def annotate(namespace: Namespace, name: str, **values: str) -> None:
    annotations = {f"logkeep.dev/{key.replace('_', '-')}": value for key, value in values.items()}
    namespace.patch("kbak", name, {"metadata": {"annotations": annotations}})


def test_the_anchor_of_a_run_is_given_to_the_next_one_and_to_restores(namespace: Namespace, operator: Operator) -> None:
    first = start(namespace)
    requested = request_of(namespace, first)
    assert (requested.anchor, requested.uid) == (None, namespace.get("kbak", "nightly")["metadata"]["uid"])
    succeeds(namespace, first, anchor=FIVE)
    archive = namespace.phase("kbak", "nightly", "Succeeded")["archive"]
    assert (archive["commit"], archive["anchor"]) == (5, FIVE)

    assert namespace.apply("KafkaRestore", "again", restore_spec()).returncode == 0
    restoring = next_job(namespace, first)
    assert request_of(namespace, restoring).anchor == FIVE

    annotate(namespace, "nightly", run="2")
    second = next_job(namespace, first, restoring)
    assert request_of(namespace, second).anchor == FIVE
    refused: dict[str, Any] = {
        "outcome": "Failed",
        "exit_code": 2,
        "error_code": "ArchiveRolledBack",
        "commit": -1,
        "epoch": 0,
    }
    namespace.write(second, result=result(run_id_of(second), message="It was rolled back.", **refused))
    namespace.job_ends(second, "Failed")
    status = namespace.phase("kbak", "nightly", "Failed")
    assert namespace.condition("kbak", "nightly", "Stalled")["reason"] == "ArchiveRolledBack"
    assert status["archive"]["anchor"] == FIVE

    annotate(namespace, "nightly", take_over=f"3:{'3' * 64}", run="3")
    third = next_job(namespace, first, restoring, second)
    assert request_of(namespace, third).take_over == f"3:{'3' * 64}"
    taken: dict[str, Any] = {"commit": 4, "anchor": f"4:{'4' * 64}", "taken_over": f"3:{'3' * 64}"}
    succeeds(namespace, third, **taken)
    archive = namespace.phase("kbak", "nightly", "Succeeded")["archive"]
    assert (archive["anchor"], archive["takenOver"]) == (taken["anchor"], taken["taken_over"])
    annotate(namespace, "nightly", run="4")
    fourth = request_of(namespace, next_job(namespace, first, restoring, second, third))
    assert (fourth.anchor, fourth.take_over) == (taken["anchor"], None)


def test_of_two_backups_of_one_archive_the_later_gets_no_job(namespace: Namespace, operator: Operator) -> None:
    first = start(namespace)
    succeeds(namespace, first, anchor=FIVE)
    namespace.phase("kbak", "nightly", "Succeeded")
    copied = backup_spec(topics={"include": ["planes"]}, retention={"maxAge": "30d"})
    assert namespace.apply("KafkaBackup", "other", copied).returncode == 0
    ready = namespace.reason("kbak", "other", "ArchiveOwned")
    assert ready["message"].startswith("spec.storage: KafkaBackup nightly writes this archive: no run is started.")
    assert [run_id_of(job) for job in namespace.items("jobs")] == [run_id_of(first)]
    assert "ArchiveOwned" in namespace.events("other")

    annotate(namespace, "other", take_over=FIVE)
    second = next_job(namespace, first)
    requested = request_of(namespace, second)
    assert (requested.name, requested.take_over) == ("other", FIVE)
    succeeds(namespace, second, commit=8, epoch=3, anchor=f"8:{'8' * 64}", taken_over=FIVE)
    namespace.phase("kbak", "other", "Succeeded")
    annotate(namespace, "nightly", run="again")
    ready = namespace.reason("kbak", "nightly", "ArchiveOwned")
    assert "KafkaBackup other writes this archive" in ready["message"]
    assert len(namespace.items("jobs")) == 2


@pytest.mark.parametrize("wrong", ["5", f"05:{'5' * 64}", f"5:{'5' * 63}", f"-1:{'5' * 64}", "new"])
def test_what_is_no_anchor_is_refused_by_the_api_server(namespace: Namespace, wrong: str) -> None:
    source = {"backupRef": {"name": "nightly"}, "expectCommit": wrong}
    answer = namespace.apply("KafkaRestore", "wrong", restore_spec(source=source))
    assert answer.returncode == 1
    assert "spec.source.expectCommit" in answer.stderr
    good = {**source, "expectCommit": SIX}
    assert namespace.apply("KafkaRestore", "good", restore_spec(source=good)).returncode == 0
    assert json.dumps(namespace.get("krst", "good")["spec"]["source"]["expectCommit"]) == f'"{SIX}"'
