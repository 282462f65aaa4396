"""A dry run on a real API server: its findings in the status and in the plugin, and the real run after it."""

from __future__ import annotations

from typing import Any

import pytest

from logkeep_engine.contract.model import replace
from tests.apiserver.health import Verdict, judge
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.plugin import administrator
from tests.apiserver.test_operator import start
from tests.unit.operator.test_dry_run import REFUSED, REPORT
from tests.unit.operator.world import restore_spec

pytestmark = pytest.mark.timeout(300)

SOURCE = {"source": {"storage": {"uri": "s3://bucket/prefix"}}}


def test_from_what_would_be_refused_to_the_restore(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace, "KafkaRestore", "again", **SOURCE, dryRun=True)
    first = run_id_of(job)
    dry: dict[str, Any] = {"kind": "KafkaRestore", "outcome": "DryRun", "records": 0, "bytes": 0, "commit": -1}
    many = replace(REFUSED, topic_list=REFUSED.topic_list * 30, topics=30)
    namespace.write(job, result=result(first, dry_run=many, message=many.describe("restore"), **dry))
    namespace.job_ends(job, "Complete")
    namespace.phase("krst", "again", "DryRun")
    stalled = namespace.condition("krst", "again", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "DryRunRefused")
    found = namespace.status("krst", "again")["dryRun"]
    assert (found["refused"], found["topics"], found["records"], found["counts"]) == (1, 30, 80, "Exact")
    assert len(found["topicList"]) == 20
    assert found["refusals"] == [{"reason": "TopicExists", "message": "topic orders-copy already exists."}]
    assert "DryRunRefused" in namespace.events("again")
    wide = namespace.kubectl("get", "krst", "again", "-o", "wide").stdout.splitlines()
    at = wide[0].index("REFUSED")
    assert (wide[1].split()[:3], wide[1][at]) == (["again", "DryRun", "False"], "1")

    assert judge([namespace.get("krst", "again")]) == [Verdict("Failed", "Degraded")]
    logkeep = administrator(namespace)
    shown = logkeep("status", "krst/again")
    assert shown.exit_code == 0, shown.output
    for word in (
        "80 records, 900 B, 30 topics, 1 to be created",
        "for 1 reason",
        "retention.ms=1",
        "and 10 more",
        "7 records of aborted transactions",
    ):
        assert word in shown.stdout, shown.stdout
    assert "refused: TopicExists: topic orders-copy already exists." in shown.stderr
    assert "not checked: whether the state can be written" in shown.stderr

    changed = namespace.apply("KafkaRestore", "again", restore_spec(**SOURCE, dryRun=True, ifTopicExists="Append"))
    assert changed.returncode == 0, changed.stderr
    job = another(namespace, first)
    second = run_id_of(job)
    namespace.write(job, result=result(second, dry_run=REPORT, message=REPORT.describe("restore"), **dry))
    namespace.job_ends(job, "Complete")
    namespace.reason("krst", "again", "DryRunDone")
    assert judge([namespace.get("krst", "again")]) == [Verdict("InProgress", "Suspended")]
    assert "lastSuccessTime" not in namespace.status("krst", "again")

    begun = namespace.apply("KafkaRestore", "again", restore_spec(**SOURCE, ifTopicExists="Append"))
    assert begun.returncode == 0, begun.stderr
    job = another(namespace, first, second)
    namespace.write(job, result=result(run_id_of(job), kind="KafkaRestore"))
    namespace.job_ends(job, "Complete")
    status = namespace.phase("krst", "again", "Succeeded")
    assert [entry["outcome"] for entry in status["history"]] == ["Succeeded", "DryRun", "DryRun"]
    assert "dryRun" not in status


def another(namespace: Namespace, *known: str) -> dict[str, Any]:
    """The Job of another run than these."""
    found: dict[str, Any] = {}

    def look() -> bool:
        for job in namespace.items("jobs"):
            if run_id_of(job) not in known:
                found.update(job)
        return bool(found)

    wait_for("another Job", look)
    return found


def test_a_dry_run_may_become_a_restore_and_a_restore_no_dry_run(namespace: Namespace) -> None:
    specs = [
        restore_spec(dryRun=True),
        restore_spec(dryRun=True, ifTopicExists="Append", topics={"include": ["a"]}),
        restore_spec(dryRun=True, source={"storage": {"uri": "s3://bucket/other"}}),
        restore_spec(verify="Full"),
    ]
    for spec in specs:
        answer = namespace.apply("KafkaRestore", "r", spec)
        assert answer.returncode == 0, answer.stderr
    answer = namespace.apply("KafkaRestore", "r", restore_spec(verify="Full", dryRun=True))
    assert "dryRun cannot be set to true again: the restore has begun; create another KafkaRestore" in answer.stderr
    answer = namespace.apply("KafkaRestore", "r", restore_spec())
    assert "the spec of a KafkaRestore cannot be changed" in answer.stderr
