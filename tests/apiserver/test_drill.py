"""A drill on a real API server: its result is at the KafkaBackup, where people look."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import DrillFacts
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_operator import start
from tests.unit.operator.world import restore_spec

pytestmark = pytest.mark.timeout(300)

FACTS = DrillFacts(
    recovery_seconds=725.4,
    verified_seconds=1450.2,
    partitions=10,
    records=1000,
    bytes=10_000,
    report="s3://bucket/runs/r/drill.json",
    total=200,
    cycle=1,
    drilled=10,
    runs=20,
)


def job_of(namespace: Namespace, kind: str, *known: str) -> dict[str, Any]:
    """The Job of a resource of this kind that is none of the known runs."""

    def look() -> dict[str, Any] | None:
        for job in namespace.items("jobs"):
            if job["metadata"]["ownerReferences"][0]["kind"] == kind and run_id_of(job) not in known:
                return job
        return None

    return wait_for(f"the Job of a {kind}", look)


def drilled(namespace: Namespace, status: str) -> dict[str, Any]:
    """The backup when the condition has this status."""

    def look() -> dict[str, Any] | None:
        backup = namespace.get("kbak", "nightly")
        found = {one["type"]: one["status"] for one in backup["status"]["conditions"]}
        return backup if found.get("Verified") == status else None

    return wait_for(f"Verified={status}", look)


def test_the_backup_tells_of_its_drills(namespace: Namespace, operator: Operator) -> None:
    backup = start(namespace)
    namespace.write(backup, result=result(run_id_of(backup)))
    namespace.job_ends(backup, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")

    spec = restore_spec(drill={"share": "5%", "schedule": {"cron": "@daily", "jitterSeconds": 0}})
    assert namespace.apply("KafkaRestore", "drill", spec).returncode == 0
    first = job_of(namespace, "KafkaRestore")
    namespace.write(first, result=result(run_id_of(first), "KafkaRestore", drill=FACTS))
    namespace.job_ends(first, "Complete")
    status = drilled(namespace, "True")["status"]
    shown = status["drill"]
    assert (shown["restore"], shown["outcome"], shown["recoverySeconds"]) == ("drill", "Succeeded", 725)
    assert shown["progress"] == "10/200, all partitions within 20 runs"
    assert status["phase"] == "Succeeded"
    wait_for("the Event", lambda: "DrillSucceeded" in namespace.events("nightly") or None)
    header, row = namespace.kubectl("get", "kbak", "nightly", "-o", "wide").stdout.splitlines()
    assert "VERIFIED" in header
    assert row[header.index("RECOVERY") :].startswith("12m 5s")

    namespace.phase("krst", "drill", "Succeeded")
    changed = {"status": {"nextScheduleTime": "2026-01-01T00:00:00Z"}}
    namespace.patch("krst", "drill", changed, "status")
    second = job_of(namespace, "KafkaRestore", run_id_of(first))
    failed = {"outcome": "Failed", "exit_code": 5, "error_code": "RecordsDiffer", "message": "one record differs"}
    namespace.write(second, result=result(run_id_of(second), "KafkaRestore", **failed))
    namespace.job_ends(second, "Failed", "PodFailurePolicy")
    status = drilled(namespace, "False")["status"]
    assert (status["drill"]["reason"], status["drill"]["lastGoodTime"]) == ("RecordsDiffer", shown["endTime"])
    wait_for("the Event of the backup", lambda: "DrillFailed" in namespace.events("nightly") or None)
    wait_for("the Event of the drill", lambda: "RunFailed" in namespace.events("drill") or None)
