"""`docs/limits.md` has the numbers of the code, and no other row."""

from __future__ import annotations

import re
from pathlib import Path

from logkeep_engine.archive.catalog.kinds import MOST_PARTITIONS
from logkeep_engine.contract import patterns, restored_topics, retention, retrieval, run, running, schedule, values
from logkeep_engine.contract.drill import MAX_PREFIX
from logkeep_engine.contract.erasures import MAX_ERASURES
from logkeep_engine.contract.facts.values import MAX_LISTED
from logkeep_engine.contract.objects import MAX_OBJECT_BYTES
from logkeep_engine.contract.running import ExecutorSpec
from logkeep_engine.contract.values import human_bytes, human_duration
from logkeep_engine.contract.visible import MESSAGE_MAX
from logkeep_engine.erasure.run import READERS_SECONDS
from logkeep_engine.log.memory import TASK_BYTES, unpacked_most
from logkeep_engine.spark.conf import MAX_FAILURES
from logkeep_engine.spark.job_session import EXECUTOR_WAIT_SECONDS, IN_DRIVER_BYTES
from logkeep_operator.api.status import MAX_HISTORY
from logkeep_operator.bounds import MAX_REQUESTED
from logkeep_operator.reconcile.bounded import MAX_STATUS_BYTES
from logkeep_operator.reconcile.problems import NO_EXECUTORS_AFTER, NO_PROGRESS_AFTER
from logkeep_operator.settings import DEFAULT_RUNS

PAGE = Path(__file__).parents[2] / "docs/limits.md"


def _bytes(size: int) -> str:
    return human_bytes(size).replace(".0 ", " ")


def _most(field: str) -> int:
    (bound,) = (found.le for found in ExecutorSpec.model_fields[field].metadata if hasattr(found, "le"))
    return int(bound)


# By the beginning of the row.
LIMITS = {
    "patterns in one list": patterns.MAX_PATTERNS,
    "characters of a pattern": patterns.MAX_PATTERN_LENGTH,
    "holds in": retention.MAX_HOLDS,
    "`retention.keepRuns`": retention.MAX_KEPT,
    "`erasures`": MAX_ERASURES,
    "`segment.maxBytes`": f"{values.MIN_SEGMENT_BYTES >> 20}Mi to {values.MAX_SEGMENT_BYTES} bytes",
    "`segment.packBelow`": f"{values.MAX_PACK_BELOW >> 20}Mi",
    "`limits.bytesPerSecond`": f"{values.MIN_BYTES_PER_SECOND >> 10}Ki or more",
    "`topics.partitionCount`": restored_topics.MAX_PARTITION_COUNT,
    "`topics.holdFor`": restored_topics.MAX_HOLD,
    "characters of `drill.prefix`": MAX_PREFIX,
    "`schedule.jitterSeconds`": schedule.MAX_JITTER_SECONDS,
    "days of `source.retrieval`": retrieval.MAX_DAYS,
    "`spark.executor.instances`": _most("instances"),
    "items of a list": MAX_LISTED,
    "topics in `status.progress.moving`": run.MAX_MOVING,
    "runs in `status.history`": MAX_HISTORY,
    "characters of a message": MESSAGE_MAX,
    "bytes of a status": _bytes(MAX_STATUS_BYTES),
    "memory of a task": _bytes(TASK_BYTES),
    "bytes that a batch may unpack to": _bytes(unpacked_most()),
    "work that the driver does": _bytes(IN_DRIVER_BYTES),
    "partitions of a topic": MOST_PARTITIONS,
    "attempts of a task": MAX_FAILURES,
    "a run without any executor": human_duration(EXECUTOR_WAIT_SECONDS),
    "a driver that has asked": human_duration(NO_EXECUTORS_AFTER.total_seconds()),
    "a driver that is silent": human_duration(NO_PROGRESS_AFTER.total_seconds()),
    "an erasure": human_duration(READERS_SECONDS),
    "a Job of a run": human_duration(running.DEFAULT_DEADLINE_SECONDS),
    "runs that go on at once": DEFAULT_RUNS,
    "KafkaBackupRuns": MAX_REQUESTED,
    "bytes of one object of Kubernetes": _bytes(MAX_OBJECT_BYTES),
}


def test_the_page_has_the_limits_of_the_code() -> None:
    rows = re.findall(r"^\| (.+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    found = {
        next((begin for begin in LIMITS if what.startswith(begin)), what): said for what, said in rows if what != "what"
    }
    assert found == {begin: str(limit) for begin, limit in LIMITS.items()}
