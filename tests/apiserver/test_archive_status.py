"""A real API server keeps and shows what a run tells of its archive, and the risk turns by time alone."""

from __future__ import annotations

import time

import pytest

from logkeep_engine.contract.facts.archive import (
    ArchiveReport,
    ArchiveSize,
    Cause,
    Deadlines,
    Recoverable,
    TopicBehind,
    TopicDeadline,
)
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.values import parse_timestamp
from tests.apiserver.operator import Namespace, Operator, result, run_id_of, wait_for
from tests.apiserver.test_operator import start

pytestmark = pytest.mark.timeout(300)

SIZE = ArchiveSize(
    topics=3,
    segments=9,
    objects=27,
    records=70,
    bytes=4096,
    stored_bytes=1536,
    bytes_per_day=2048,
    size="1.5 KiB",
    growth="2.0 KiB/day",
    object_bytes=1 << 30,
    object_bytes_per_day=1 << 28,
)


def report(began: float, deadline: float) -> ArchiveReport:
    return ArchiveReport(
        size=SIZE,
        recovery=Recoverable(
            first_time=time_of(began - 86400),
            last_time=time_of(began),
            topics=3,
            topics_behind=2,
            behind=(
                TopicBehind(
                    topic="clicks", first_time=time_of(began - 86400), last_time=time_of(began - 3600), offsets=41
                ),
                TopicBehind(topic="orders"),
            ),
        ),
        retention=Deadlines(
            check_time=time_of(began + 1),
            deadline=time_of(deadline),
            unknown_topics=1,
            topics=(
                TopicDeadline(
                    topic="clicks",
                    partition=3,
                    deadline=time_of(deadline),
                    oldest_time=time_of(began - 3600),
                    window_seconds=3600,
                    cause=Cause.DELETED,
                ),
            ),
        ),
    )


def test_the_morning_after_a_run(namespace: Namespace, operator: Operator) -> None:
    job = start(namespace)
    began = float(int(time.time()))
    deadline = began + 20
    namespace.write(job, result=result(run_id_of(job), archive=report(began, deadline)))
    namespace.job_ends(job, "Complete")
    namespace.phase("kbak", "nightly", "Succeeded")

    status = namespace.status("kbak", "nightly")
    lines = ("objects", "bytes", "storedBytes", "size", "bytesPerDay", "growth")
    assert {name: status["archive"][name] for name in lines} == {
        "objects": 27,
        "bytes": 4096,
        "storedBytes": 1536,
        "size": "1.5 KiB",
        "bytesPerDay": 2048,
        "growth": "2.0 KiB/day",
    }
    recovery, retention = status["recovery"], status["retention"]
    assert (recovery["topics"], recovery["topicsBehind"]) == (3, 2)
    first, second = recovery["behind"]
    assert (first["topic"], first["offsets"], second) == ("clicks", 41, {"topic": "orders"})
    moment = parse_timestamp(recovery["lastTime"])
    assert moment is not None
    assert moment.timestamp() == began
    (soonest,) = retention["topics"]
    assert (retention["deadline"], retention["unknownTopics"]) == (soonest["deadline"], 1)
    assert (soonest["topic"], soonest["partition"], soonest["windowSeconds"], soonest["cause"]) == (
        "clicks",
        3,
        3600,
        "Deleted",
    )
    assert status["history"][0]["durationSeconds"] >= 0

    def passed() -> bool:
        return namespace.condition("kbak", "nightly", "RetentionRisk").get("reason") == "DeadlinePassed"

    wait_for("the deadline to pass, without anything else", passed)
    assert time.time() >= deadline - 1
    assert "RetentionRisk" in namespace.events("nightly")
    shown = namespace.kubectl("get", "kbak", "nightly").stdout.splitlines()
    columns = dict(zip(("SIZE", "AT RISK"), ("1.5 KiB", "True"), strict=True))
    for head, value in columns.items():
        at = shown[0].index(head)
        assert shown[1][at:].startswith(value), shown
