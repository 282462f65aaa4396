"""Topics that a restore holds are released by the same run, started again, on a real API server."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import HeldTopics
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.model import replace
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.unit.operator.world import restore_spec

pytestmark = pytest.mark.timeout(300)

HELD = HeldTopics(topics=2, topic_list=("orders", "payments"))


def spec(hold_for: str, **more: Any) -> dict[str, Any]:
    topics = {"retention": "Hold", "holdFor": hold_for}
    return restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}}, topics=topics, **more)


def restored(namespace: Namespace, hold_for: str) -> dict[str, Any]:
    """A restore that has succeeded and holds topics; its Job."""
    answer = namespace.apply("KafkaRestore", "again", spec(hold_for))
    assert answer.returncode == 0, answer.stderr
    job = namespace.job()
    namespace.write(job, result=result(run_id_of(job), kind="KafkaRestore", held_topics=HELD))
    namespace.job_ends(job, "Complete")
    namespace.phase("krst", "again", "Succeeded")
    return job


def next_job(namespace: Namespace, last: dict[str, Any]) -> dict[str, Any]:
    """Wait for the Job that takes the place of the last one."""

    def look() -> dict[str, Any] | None:
        return next((job for job in namespace.items("jobs") if job["metadata"]["uid"] != last["metadata"]["uid"]), None)

    return wait_for("another Job", look)


def held(namespace: Namespace) -> dict[str, Any]:
    found: dict[str, Any] = namespace.status("krst", "again").get("heldTopics", {})
    return found


def test_topics_are_released_in_time_whatever_becomes_of_the_operator(namespace: Namespace, operator: Operator) -> None:
    first = restored(namespace, "1d")
    assert held(namespace)["topicList"] == ["orders", "payments"]
    assert "2 held topics to be released at " in namespace.condition("krst", "again", "Ready")["message"]
    before = namespace.status("krst", "again")["run"]

    operator.kill()
    assert namespace.apply("KafkaRestore", "again", spec("1s")).returncode == 0
    operator.start()
    second = next_job(namespace, first)
    assert second["metadata"]["name"] == first["metadata"]["name"]
    name = f"{second['metadata']['name']}-request"
    request = json.loads(namespace.get("configmap", name)["data"]["request.json"])
    assert (request["runId"], request["release"]) == (run_id_of(first), True)
    wait_for("the release", lambda: namespace.condition("krst", "again", "ScheduledRun").get("status") == "True")
    assert namespace.condition("krst", "again", "Ready")["status"] == "True"

    operator.kill()
    namespace.kubectl("delete", "job", second["metadata"]["name"])
    operator.start()
    third = next_job(namespace, second)
    released = replace(HELD, released=1, not_released_list=("payments: NotHeld",), released_time=time_of(time.time()))
    operator.kill()
    namespace.write(third, result=result(run_id_of(third), kind="KafkaRestore", held_topics=released))
    namespace.job_ends(third, "Complete")
    operator.start()
    wait_for("the end", lambda: "releasedTime" in held(namespace))
    found = held(namespace)
    assert (found["topics"], found["released"], found["notReleasedList"]) == (2, 1, ["payments: NotHeld"])
    status = namespace.phase("krst", "again", "Succeeded")
    assert status["run"] == before
    assert [entry["outcome"] for entry in status["history"]] == ["Succeeded"]
    ready = namespace.condition("krst", "again", "Ready")
    assert (ready["status"], ready["reason"]) == ("True", "RunSucceeded")
    assert ready["message"].startswith("1 of 2 held topics released at ")
    wait_for("the event", lambda: "TopicsReleased" in namespace.events("again"))


def test_a_release_that_fails_is_reported_and_ends_when_the_resource_is_suspended(
    namespace: Namespace, operator: Operator
) -> None:
    first = restored(namespace, "1s")
    second = next_job(namespace, first)
    words = {"error_code": "BrokerUnavailable", "message": "No broker answers."}
    failure = result(run_id_of(second), kind="KafkaRestore", outcome="Failed", exit_code=1, **words)
    namespace.write(second, result=failure)
    namespace.job_ends(second, "Failed", "BackoffLimitExceeded", "")
    ready = namespace.reason("krst", "again", "ReleaseFailed")
    assert ready["status"] == "False"
    assert "BrokerUnavailable: No broker answers." in ready["message"]
    assert namespace.condition("krst", "again", "Reconciling")["status"] == "True"
    assert held(namespace)["failures"] == 1
    status = namespace.phase("krst", "again", "Succeeded")
    assert status["run"]["outcome"] == "Succeeded"

    assert namespace.apply("KafkaRestore", "again", spec("1s", suspend=True)).returncode == 0
    namespace.phase("krst", "again", "Suspended")
    assert "Topics are held until then." in namespace.condition("krst", "again", "Ready")["message"]
    # A longer time ends the attempts, too.
    assert namespace.apply("KafkaRestore", "again", spec("7d")).returncode == 0
    namespace.phase("krst", "again", "Succeeded")
    namespace.reason("krst", "again", "RunSucceeded")
    assert "failures" not in held(namespace)
