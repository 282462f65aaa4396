"""A schedule on a real API server, with an operator that was down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.apiserver.health import Verdict, judge
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_operator import start
from tests.unit.operator.world import backup_spec

pytestmark = pytest.mark.timeout(300)


def midnight(days: int) -> str:
    """The midnight that began today, or that of other days."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (today + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_runs_that_were_missed_while_the_operator_was_down_are_caught_up_by_one(
    namespace: Namespace, operator: Operator
) -> None:
    first = start(namespace, schedule={"cron": "@daily", "jitterSeconds": 0})
    namespace.write(first, result=result(run_id_of(first)))
    namespace.job_ends(first, "Complete")
    status = namespace.phase("kbak", "nightly", "Succeeded")
    assert status["nextScheduleTime"] in (midnight(0), midnight(1)), "midnight may have passed since"
    assert "lastScheduleTime" not in status

    operator.kill()
    namespace.patch("kbak", "nightly", {"status": {"nextScheduleTime": midnight(-3)}}, "status")
    operator.start()

    def others() -> list[dict[str, Any]]:
        return [job for job in namespace.items("jobs") if run_id_of(job) != run_id_of(first)]

    def handled() -> dict[str, Any] | None:
        found = namespace.status("kbak", "nightly")
        return found if "lastScheduleTime" in found else None

    status = wait_for("the run that was missed", handled)
    (second,) = others()
    assert status["lastScheduleTime"] in (midnight(0), midnight(-1))
    assert status["nextScheduleTime"] in (midnight(0), midnight(1))
    assert second["metadata"]["annotations"]["logkeep.dev/run-scheduled"] == status["lastScheduleTime"]
    assert status["nextScheduleTime"] in namespace.kubectl("get", "kbak", "nightly", "-o", "wide").stdout
    assert namespace.kubectl("get", "kbak", "nightly", "-o", "wide").stdout.count("LAST SCHEDULE") == 1

    ready = namespace.condition("kbak", "nightly", "Ready")
    assert judge([namespace.get("kbak", "nightly")]) == [Verdict("Current", "Healthy")]
    namespace.write(second, result=result(run_id_of(second)))
    namespace.job_ends(second, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")
    assert len(others()) == 1
    assert ready["status"] == "True", "a health check does not wait for it"


def test_a_schedule_that_is_none_is_refused_or_invalid(namespace: Namespace, operator: Operator) -> None:
    refused = namespace.apply("KafkaBackup", "refused", backup_spec(schedule={"cron": "every night"}))
    assert refused.returncode != 0
    assert "spec.schedule.cron" in refused.stderr
    applied = namespace.apply("KafkaBackup", "nightly", backup_spec(schedule={"cron": "0 25 * * *"}))
    assert applied.returncode == 0, applied.stderr
    namespace.phase("kbak", "nightly", "Invalid")
    assert "bad hour" in namespace.condition("kbak", "nightly", "Stalled")["message"]
