"""The documents between operator and engine: exact JSON, round trips, refusals, sizes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from logkeep_engine.contract.facts.outcome import LossFact, TopicCoverage, VerificationFacts
from logkeep_engine.contract.facts.progress import PartitionProgress
from logkeep_engine.contract.facts.values import time_if_any
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import TERMINATION_MESSAGE_MAX_BYTES
from logkeep_engine.contract.run import Progress, RunRequest, RunResult
from logkeep_engine.contract.stored import DocumentRefused

PARTITION = PartitionProgress(topic="orders", partition=3, start=10, end=30, at=20, records=10, bytes=1000)
RESULT = RunResult(
    run_id="r1",
    kind="KafkaBackup",
    outcome="Succeeded",
    exit_code=0,
    start_time=1.0,
    end_time=2.0,
    loss=(LossFact(topic="t", partition=0, start=1, end=2, reason="retention"),),
    warnings=("w",),
)

VERIFIED = VerificationFacts(outcome="Verified")


def test_a_request_keeps_the_spec_as_written() -> None:
    request = RunRequest(
        kind="KafkaBackup",
        name="n",
        namespace="ns",
        run_id="r1",
        spec={"snake_key": {"camelKey": [1]}},
        progress_config_map="cm",
        spark_conf={"spark.a_b": "1"},
    )
    assert json.loads(request.to_json()) == {
        "format": 1,
        "kind": "KafkaBackup",
        "name": "n",
        "namespace": "ns",
        "runId": "r1",
        "spec": {"snake_key": {"camelKey": [1]}},
        "progressConfigMap": "cm",
        "sparkConf": {"spark.a_b": "1"},
        "rememberedAs": None,
        "topicsConfigMap": None,
        "reconcile": None,
        "requestedBy": None,
        "uid": None,
        "anchor": None,
        "takeOver": None,
        "release": None,
    }
    assert RunRequest.from_json(request.to_json()) == request


def test_progress_and_result_survive_json() -> None:
    progress = Progress(
        run_id="r1", phase="Running", start_time=1.0, update_time=2.0, partitions=2, partitions_shown=(PARTITION,)
    )
    assert Progress.from_json(progress.to_json()) == progress
    assert RunResult.from_json(RESULT.to_json()) == RESULT
    alone = replace(progress, executors=0)
    assert Progress.from_json(alone.to_json()) == alone


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not complete JSON"),
        ("[]", "not a RunRequest: a list of 0"),
        ('{"format":2}', "RunRequest of format 2"),
        ('{"format":1,"x":1}', r"unknown keys \['x'\]"),
    ],
)
def test_another_format_is_refused(text: str, what: str) -> None:
    with pytest.raises(DocumentRefused, match=what):
        RunRequest.from_json(text)


def test_a_missing_key_is_refused() -> None:
    request = json.loads(RunRequest(kind="KafkaBackup", name="n", namespace="ns", run_id="r1", spec={}).to_json())
    del request["runId"]
    with pytest.raises(DocumentRefused, match="key 'runId' is missing"):
        RunRequest.from_json(json.dumps(request))


@pytest.mark.parametrize("wrong", [5, None, ["r1"]])
def test_a_value_of_another_kind_is_refused(wrong: object) -> None:
    for document in (RESULT, Progress(run_id="r1", phase="Running", start_time=1.0, update_time=2.0)):
        with pytest.raises(DocumentRefused, match="runId is"):
            type(document).from_json(json.dumps({**json.loads(document.to_json()), "runId": wrong}))


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
    assert (
        Progress(
            run_id="r", phase=phase, start_time=0.0, update_time=0.0, offsets_done=done, offsets_total=total
        ).percent
        == percent
    )


def test_a_termination_message_always_fits() -> None:
    result = RunResult(
        run_id="r1",
        kind="KafkaBackup",
        outcome="Failed",
        exit_code=2,
        start_time=1.0,
        end_time=2.0,
        error_code="X",
        message="ä" * 9000,
    )
    text = result.to_termination_message(TERMINATION_MESSAGE_MAX_BYTES)
    assert len(text.encode()) <= TERMINATION_MESSAGE_MAX_BYTES
    assert RunResult.from_json(text).message == "ä" * 499 + "…"


COVERAGE = TopicCoverage(
    protected=12, unmatched=1, left_out=2, patterns_unmatched=("typo",), topics_left_out=("a", "b")
)


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ({"requested_by": "u" * 5000}, "offset_map"),
        ({"offset_map": "s3://b/" + "x" * 4080}, "verification"),
        ({"verification": VerificationFacts(outcome="Verified", report="s3://b/" + "x" * 4000)}, "verification"),
        ({"requested_by": "u" * 5000, "earlier_run": "\x01" * 256, "archive_id": "\x01" * 256}, "offset_map"),
    ],
)
def test_a_termination_message_with_long_addresses_fits(facts: dict[str, Any], kept: str) -> None:
    result = replace(RESULT, **{"offset_map": "s3://b/m", "verification": VERIFIED, **facts})
    text = result.to_termination_message(TERMINATION_MESSAGE_MAX_BYTES)
    assert len(text.encode()) <= TERMINATION_MESSAGE_MAX_BYTES
    read = RunResult.from_json(text)
    assert (read.run_id, read.outcome, read.loss_total) == ("r1", "Succeeded", 0)
    assert getattr(read, kept)


def test_a_termination_message_of_the_longest_ids_fits() -> None:
    ids: dict[str, Any] = dict.fromkeys(("run_id", "kind", "archive_id", "cluster_id", "earlier_run"), "\x01" * 256)
    result = replace(RESULT, **ids, offset_map="s3://b/" + "\x01" * 4000)
    text = result.to_termination_message(TERMINATION_MESSAGE_MAX_BYTES)
    assert len(text.encode()) <= TERMINATION_MESSAGE_MAX_BYTES
    assert RunResult.from_json(text).run_id == result.run_id


def test_coverage_survives_json_and_its_numbers_the_termination_message() -> None:
    result = replace(RESULT, coverage=COVERAGE)
    assert RunResult.from_json(result.to_json()) == result
    assert RunResult.from_json(result.to_termination_message(4096)).coverage == TopicCoverage(
        protected=12, unmatched=1, left_out=2
    )


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
    with pytest.raises(DocumentRefused, match="coverage"):
        RunResult.from_json(json.dumps(document))


@pytest.mark.parametrize("key", ["lossTotal", "warnings", "verification", "earlierRun"])
def test_a_result_without_one_of_its_facts_is_refused(key: str) -> None:
    """A default would say that nothing was lost."""
    body = json.loads(RESULT.to_json())
    del body[key]
    with pytest.raises(DocumentRefused, match=f"no key {key}"):
        RunResult.from_json(json.dumps(body))


def test_a_fact_without_one_of_its_keys_is_refused() -> None:
    body = json.loads(RESULT.to_json())
    del body["loss"][0]["reason"]
    with pytest.raises(DocumentRefused, match="reason"):
        RunResult.from_json(json.dumps(body))


def test_a_key_in_pythons_words_does_not_stand_for_that_of_the_document() -> None:
    body = json.loads(RESULT.to_json())
    body["loss_total"] = body.pop("lossTotal")
    with pytest.raises(DocumentRefused, match="loss_total"):
        RunResult.from_json(json.dumps(body))


@pytest.mark.parametrize(("ms", "time"), [(0, "1970-01-01T00:00:00Z"), (-1, None), (10**17, None), (1 << 62, None)])
def test_a_time_that_no_calendar_has_is_left_out(ms: int, time: str | None) -> None:
    assert time_if_any(ms) == time
