"""Objects of a restore's state in which somebody has put something else in the place of each value."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from logkeep_engine.contract.run import Progress, RunResult
from logkeep_engine.contract.stored import DocumentRefused
from logkeep_engine.errors import LogkeepError
from logkeep_engine.restore.model.offset_map import read_offset_map, read_summary
from logkeep_engine.restore.model.plan import RestorePlan
from tests.unit.archive.catalog.test_forged_values import VALUES, dumped, forged, spots
from tests.unit.restore import test_plan

MAP: dict[str, Any] = {
    "format": 1,
    "source": {"topic": "a", "topicId": "a" * 22, "partition": 0},
    "target": {"topic": "b", "partitions": [[0, 5, 0, 5, 0]]},
    "records": 5,
    "bytes": 9,
    "appendTimeRecords": 0,
    "abortedRecords": 0,
    "rows": [[0, 0, 5]],
}
RESULT = RunResult(
    run_id="r", kind="KafkaRestore", outcome="Succeeded", exit_code=0, start_time=1.0, end_time=2.0, warnings=("w",)
)


def as_map(document: Any) -> bytes:
    """The document as an offset map: its rows are lines."""
    if not isinstance(document, dict) or not isinstance(document.get("rows"), list):
        return dumped(document)
    head = dumped({key: value for key, value in document.items() if key != "rows"})
    return head[:-1] + b',"rows":[\n' + b",\n".join(map(dumped, document["rows"])) + b"\n]}\n"


def read_map(data: bytes) -> None:
    read_summary(data, "map")
    found = read_offset_map(data, "map")
    found.find(3)
    found.find(5)


@pytest.mark.parametrize(
    ("document", "dump", "read"),
    [
        (json.loads(test_plan.TestPlan.PLAN.to_json()), dumped, lambda data: RestorePlan.from_json(data, "plan")),
        (MAP, as_map, read_map),
        (json.loads(RESULT.to_json()), dumped, RunResult.from_json),
        ({"format": 1, "runId": "r", "partitionsShown": [{"topic": "a"}], "moving": []}, dumped, Progress.from_json),
    ],
    ids=["plan", "offset map", "result", "progress"],
)
def test_what_is_no_value_of_a_note_is_reported_as_such(
    document: Any, dump: Callable[[Any], bytes], read: Callable[[bytes], object]
) -> None:
    refused = 0
    for at in spots(document):
        for value in VALUES:
            try:
                read(dump(forged(document, at, value)))
            except (LogkeepError, DocumentRefused):
                refused += 1
    assert refused > len(VALUES)
