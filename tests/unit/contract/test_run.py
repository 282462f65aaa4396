"""The documents between operator and engine: exact JSON, round trips, refusals, sizes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from logkeep_engine.contract.names import TERMINATION_MESSAGE_MAX_BYTES
from logkeep_engine.contract.run import (
    ContractError,
    LossFact,
    PartitionProgress,
    Progress,
    RunRequest,
    RunResult,
    TopicCoverage,
)

PARTITION = PartitionProgress("orders", 3, 10, 30, 20, 10, 1000)
RESULT = RunResult(
    "r1", "KafkaBackup", "Succeeded", 0, 1.0, 2.0, loss=(LossFact("t", 0, 1, 2, "retention"),), warnings=("w",)
)


def test_a_request_keeps_the_spec_as_written() -> None:
    request = RunRequest("KafkaBackup", "n", "ns", "r1", {"snake_key": {"camelKey": [1]}}, "cm", {"spark.a_b": "1"})
    assert json.loads(request.to_json()) == {
        "format": 1,
        "kind": "KafkaBackup",
        "name": "n",
        "namespace": "ns",
        "runId": "r1",
        "spec": {"snake_key": {"camelKey": [1]}},
        "progressConfigMap": "cm",
        "sparkConf": {"spark.a_b": "1"},
    }
    assert RunRequest.from_json(request.to_json()) == request


def test_progress_and_result_survive_json() -> None:
    progress = Progress("r1", "Running", 1.0, 2.0, partitions=2, partitions_shown=(PARTITION,))
    assert Progress.from_json(progress.to_json()) == progress
    assert RunResult.from_json(RESULT.to_json()) == RESULT
    assert "executors" not in progress.to_json(), "versions that do not know it read the document"
    alone = replace(progress, executors=0)
    assert Progress.from_json(alone.to_json()) == alone


@pytest.mark.parametrize(
    ("text", "what"),
    [("{", "not JSON"), ("[]", "format 'list'"), ('{"format":2}', "format 2"), ('{"format":1,"x":1}', "unknown keys")],
)
def test_another_format_is_refused(text: str, what: str) -> None:
    with pytest.raises(ContractError, match=what):
        RunRequest.from_json(text)


def test_a_missing_key_is_refused() -> None:
    with pytest.raises(ContractError, match="run_id"):
        RunRequest.from_json('{"format":1,"kind":"KafkaBackup","name":"n","namespace":"ns","spec":{}}')


@pytest.mark.parametrize(
    ("phase", "done", "total", "percent"),
    [
        ("Planning", 0, 0, 0),
        ("Checking", 0, 0, 0),
        ("Finishing", 0, 0, 100),
        ("Running", 1, 3, 33),
        ("Running", 5, 3, 100),
    ],
)
def test_percent_goes_by_offsets(phase: str, done: int, total: int, percent: int) -> None:
    assert Progress("r", phase, 0.0, 0.0, offsets_done=done, offsets_total=total).percent == percent


def test_a_termination_message_always_fits() -> None:
    result = RunResult("r1", "KafkaBackup", "Failed", 2, 1.0, 2.0, error_code="X", message="ä" * 9000)
    text = result.to_termination_message(TERMINATION_MESSAGE_MAX_BYTES)
    assert len(text.encode()) <= TERMINATION_MESSAGE_MAX_BYTES
    assert RunResult.from_json(text).message == "ä" * 500


COVERAGE = TopicCoverage(12, 1, 2, patterns_unmatched=("typo",), topics_left_out=("a", "b"))


def test_coverage_survives_json_and_its_numbers_the_termination_message() -> None:
    result = replace(RESULT, coverage=COVERAGE)
    assert RunResult.from_json(result.to_json()) == result
    assert RunResult.from_json(result.to_termination_message(4096)).coverage == TopicCoverage(12, 1, 2)


def test_a_result_without_coverage_is_one_of_an_earlier_version() -> None:
    assert "coverage" not in json.loads(replace(RESULT, coverage=None).to_json())


@pytest.mark.parametrize(
    "wrong",
    [
        "x",
        [1],
        {"protected": "12"},
        {"protected": ["a"]},
        {"patternsUnmatched": 3},
        {"more": 1},
        {"topicsVanished": [1]},
    ],
)
def test_coverage_that_is_none_is_refused(wrong: object) -> None:
    document = {**json.loads(RESULT.to_json()), "coverage": wrong}
    with pytest.raises(ContractError, match="coverage"):
        RunResult.from_json(json.dumps(document))
