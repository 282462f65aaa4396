"""The status and the metrics of a backup tell what it keeps, removes and compares."""

import json
import math
from typing import Any

import pytest

from logkeep_engine.contract.facts.archive import (
    MAX_PATH,
    ArchiveReport,
    ArchiveSize,
    Locked,
    PointKept,
    Recoverable,
    Retained,
    TopicGenerations,
    TopicSnapshots,
)
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_engine.contract.facts.values import time_of, timestamp
from logkeep_operator.api import Status
from logkeep_operator.metrics import Metrics
from tests.unit.operator.test_risk import succeeded
from tests.unit.operator.world import START, World

BEGAN = START.timestamp()
GENERATIONS = (
    TopicGenerations(topic="stock", partitions=3, number=2, reading=1, began=time_of(BEGAN - 86400)),
    TopicGenerations(topic="prices", partitions=1, number=1),
)
RETAINED = Retained(
    run_id="r2",
    removed_segments=2,
    removed_snapshots=1,
    removed_bytes=300,
    deleted_segments=4,
    deleted_bytes=500,
    waiting_segments=3,
    waiting_bytes=400,
    holds=1,
    locked=Locked(objects=2, until=time_of(BEGAN + 3600), legal_holds=1, first="topics/stock/x/0.log"),
    points=2,
    kept=(
        PointKept(run_id="r2", end_time=time_of(BEGAN), rules=("last", "daily")),
        PointKept(run_id="r1", rules=("hold",)),
    ),
)


def report(**changes: Any) -> ArchiveReport:
    return ArchiveReport(
        size=ArchiveSize(topics=2), recovery=Recoverable(last_time=time_of(BEGAN), topics=2), **changes
    )


def metrics_of(world: World, *names: str) -> list[float | None]:
    metrics = Metrics()
    metrics.seen(world.resource.key, world.status, None)
    labels = {"kind": "KafkaBackup", "namespace": "team", "name": "nightly"}
    return [metrics.registry.get_sample_value(f"logkeep_{name}", labels) for name in names]


def test_the_status_says_what_retention_keeps_and_which_generations_are_active() -> None:
    world = World()
    succeeded(world, report(generations=GENERATIONS, retained=RETAINED))
    archive = world.status.to_dict()["archive"]
    assert archive["generations"] == [
        {
            "topic": "stock",
            "partitions": 3,
            "number": 2,
            "reading": 1,
            "began": "2026-11-20T08:00:00Z",
        },
        {"topic": "prices", "partitions": 1, "number": 1, "reading": 0},
    ]
    assert archive["retention"] == {
        "runId": "r2",
        "removedSegments": 2,
        "removedSnapshots": 1,
        "removedBytes": 300,
        "deletedSegments": 4,
        "deletedBytes": 500,
        "waitingSegments": 3,
        "waitingBytes": 400,
        "holds": 1,
        "locked": {
            "objects": 2,
            "until": "2026-11-21T09:00:00Z",
            "legalHolds": 1,
            "first": "topics/stock/x/0.log",
        },
        "points": 2,
        "kept": [
            {"runId": "r2", "endTime": "2026-11-21T08:00:00Z", "rules": ["last", "daily"]},
            {"runId": "r1", "rules": ["hold"]},
        ],
    }


@pytest.mark.parametrize("failed", [True, False])
def test_a_run_without_retention_ends_what_the_last_one_told_unless_it_failed(failed: bool) -> None:
    world = World()
    succeeded(world, report(retained=RETAINED))
    before = world.status.archive
    assert before is not None
    world.annotate("again")
    if failed:
        world.step()
        world.reports(result=world.failed_result(archive=report()))
        world.job_is(active=0, failed=4, failure=("BackoffLimitExceeded", "too often"))
        world.settle()
    else:
        succeeded(world, report())
    after = world.status.archive
    assert after is not None
    assert after.retention == (before.retention if failed else None)


def test_metrics_tell_what_waits_is_locked_and_kept() -> None:
    names = (
        "archive_waiting_bytes",
        "archive_locked_objects",
        "archive_kept_points",
        "keys_compared_timestamp_seconds",
    )
    world = World()
    succeeded(world, report())
    assert metrics_of(world, *names) == [0, 0, 0, 0]
    unknown = metrics_of(world, "stale_keys", "missing_keys")
    assert all(value is not None and math.isnan(value) for value in unknown)
    world.annotate("again")
    succeeded(world, report(retained=RETAINED))
    assert metrics_of(world, *names[:3]) == [400, 2, 2]


def test_metrics_tell_what_was_found_when_keys_were_compared() -> None:
    metrics, key = Metrics(), World().resource.key
    metrics.seen(
        key, Status(reconcile=ReconcileFacts(outcome="StaleKeys", end_time=timestamp(START), stale=12, missing=0)), None
    )
    labels = {"kind": "KafkaBackup", "namespace": "team", "name": "nightly"}
    names = ("stale_keys", "missing_keys", "keys_compared_timestamp_seconds")
    found = [metrics.registry.get_sample_value(f"logkeep_{name}", labels) for name in names]
    assert found == [12, 0, BEGAN]


def test_what_runs_tell_of_an_archive_is_cut_to_fit_into_the_status() -> None:
    longest, most = "t" * 249, 2**62
    kept = Retained(
        locked=Locked(objects=most, first="p" * MAX_PATH),
        points=most,
        kept=(PointKept(run_id="r" * 63, end_time=time_of(BEGAN), rules=("x" * 32,) * 4),) * 100,
        removed_segments=most,
        removed_bytes=most,
        waiting_segments=most,
        waiting_bytes=most,
    )
    generation = TopicGenerations(topic=longest, partitions=most, number=most, began=time_of(BEGAN))
    snapshots = TopicSnapshots(topic=longest, partitions=most, records=most, bytes=most)
    world = World()
    succeeded(world, report(snapshots=(snapshots,) * 100, generations=(generation,) * 100, retained=kept))
    archive = world.status.to_dict()["archive"]
    assert (len(archive["generations"]), len(archive["retention"]["kept"])) == (20, 20)
    assert len(json.dumps(archive)) < 64 << 10
