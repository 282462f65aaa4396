"""A driver may write anything where its progress and its result belong. The operator says so, and continues with what
the Job says."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.facts.values import MAX_LISTED, timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Phase
from logkeep_operator.reconcile import documents
from logkeep_operator.resources import progress_name
from tests.examples import scaled
from tests.unit.operator.world import World, restore_spec

NAN = float("nan")
INFINITE = float("inf")
BEGUN = "2026-11-21T07:00:00Z"


def started(kind: str = "KafkaBackup") -> World:
    restore = restore_spec(source={"storage": {"uri": "s3://bucket/prefix"}})
    world = World(kind, restore if kind == "KafkaRestore" else None)
    world.settle()
    world.driver()
    world.executor(1)
    world.job_is(active=1)
    return world


def written(world: World, **texts: str) -> None:
    """The driver writes these texts to its ConfigMap (as `progress` and `result`)."""
    name = progress_name("nightly", world.run_id)
    data = {f"{key}.json": text for key, text in texts.items()}
    body = {"metadata": {"name": name, "labels": {"logkeep.dev/run": world.run_id}}, "data": data}
    known = world.documents[world.run_id].config_maps
    world.documents[world.run_id] = replace(documents([body])[world.run_id], config_maps=known)


def progress_of(world: World, **changes: Any) -> str:
    return json.dumps(json.loads(world.progress().to_json()) | changes)


def partition(**changes: Any) -> dict[str, Any]:
    known = {"topic": "orders", "partition": 0, "start": 0, "end": 9, "at": 5, "records": 5, "bytes": 50}
    return known | changes


def held(**changes: Any) -> dict[str, Any]:
    known = {"topics": 1, "topicList": [], "released": None, "notReleasedList": [], "releasedTime": None}
    return {"heldTopics": known | changes}


WRONG: dict[str, dict[str, Any]] = {
    "phase is a number": {"phase": 5},
    "phase is without end": {"phase": "Running" * 1000},
    "time is a text": {"startTime": "yesterday"},
    "rate is below none": {"bytesPerSecond": -1},
    "time left is a text": {"secondsLeft": "a while"},
    "a topic that moves has no name": {"moving": [{"topic": 5, "done": 1, "total": 2}]},
    "a topic that moves is done with a text": {"moving": [{"topic": "a", "done": "1", "total": 2}]},
    "time is not a number": {"updateTime": NAN},
    "time is too large for a float": {"updateTime": 10**400},
    "attempt is a text": {"attempt": "two"},
    "attempt is true": {"attempt": True},
    "topics is a list": {"topics": []},
    "partitions is null": {"partitions": None},
    "records is not a number": {"records": NAN},
    "bytes is infinite": {"bytes": INFINITE},
    "bytes does not fit 64 bits": {"bytes": 1 << 64},
    "offsets done is a text": {"offsetsDone": "5"},
    "offsets total is a fraction": {"offsetsTotal": 0.5},
    "offsets total is negative": {"offsetsTotal": -1},
    "partitions shown is a number": {"partitionsShown": 7},
    "partitions shown has numbers": {"partitionsShown": [7]},
    "a partition without a topic": {"partitionsShown": [{"partition": 0}]},
    "a partition's end is a text": {"partitionsShown": [partition(end="9")]},
    "a partition's offset is null": {"partitionsShown": [partition(at=None), partition(at=None)]},
    "a partition's end is not a number": {"partitionsShown": [partition(end=NAN)]},
    "a topic without end": {"partitionsShown": [partition(topic="t" * 900_000)]},
    "a topic that is not text": {"partitionsShown": [partition(topic={"a": 1})]},
    "a topic that is half a character": {"partitionsShown": [partition(topic="\ud800")]},
    "unknown keys": {"more": 1},
    "another format": {"format": 2},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG)
def test_progress_that_cannot_be_read_is_reported_and_ends_with_the_next(changes: dict[str, Any]) -> None:
    world = started()
    written(world, progress=progress_of(world, **changes))
    world.settle()
    assert world.condition("Ready") == ("False", "ProgressUnreadable")
    assert world.status.phase is Phase.RUNNING
    assert world.status.progress is None
    assert world.events.count(("Warning", "ProgressUnreadable")) == 1
    written(world, progress=progress_of(world))
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    assert world.status.progress is not None


@pytest.mark.parametrize("text", ["[" * 4000, "[[[[", "{}", "null", "\0", "1" * 5000, '{"a":' * 2000], ids=range(7))
@pytest.mark.parametrize("where", ["progress", "result", "termination message"])
def test_text_that_is_no_document_does_not_hold_the_status(where: str, text: str) -> None:
    world = started()
    if where == "termination message":
        world.driver(exit_code=1, termination_message=text)
    else:
        written(world, **{where: text})
        world.settle()
        assert world.condition("Ready") == ("False", "ProgressUnreadable")
    world.job_is(active=0, complete=True)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert world.condition("DataLoss")[0] == "Unknown"  # nobody said that nothing was lost


WRONG_RESULTS: dict[str, dict[str, Any]] = {
    "an end in the year 100,000,000": {"endTime": 1e18},
    "an end that is not a number": {"endTime": NAN},
    "an end that is too large for a float": {"endTime": 10**400},
    "an end that is a text": {"endTime": "soon"},
    "an unknown outcome": {"outcome": "Perhaps"},
    "an outcome that is a list": {"outcome": ["Succeeded"]},
    "a code that no condition may have": {"outcome": "Failed", "errorCode": "no room!"},
    "an exit code that is a text": {"exitCode": "0"},
    "warnings that are numbers": {"warnings": [1]},
    "a message that is null": {"message": None},
    "loss that is no list": {"loss": 5},
    "loss with texts for offsets": {"loss": [{"topic": "a", "partition": 0, "start": "1", "end": 2, "reason": ""}]},
    "a commit that is not a number": {"commit": "last"},
    "an id without end": {"archiveId": "a" * 100_000},
    "coverage that is a number": {"coverage": 5},
    "a ConfigMap without end": {"emitted": {"configMap": "a" * 100_000, "key": "k", "topics": 1}},
    "a ConfigMap that is an object": {"emitted": {"configMap": {"a": {}}, "key": "k", "topics": 1}},
    "topics that are a text": {"emitted": {"configMap": "c", "key": "k", "topics": "1"}},
    "held topics without a number": held(topics="3"),
    "held topics with a name without end": held(topicList=["a" * 300]),
    "fewer released topics than none": held(released=-1),
    "a number of released topics that is a text": held(released="1"),
    "a number among the topics that were not released": held(notReleasedList=[5]),
    "a release in the year 100,000,000": held(releasedTime="100000000-01-01T00:00:00Z"),
    "a release at a time that no calendar has": held(releasedTime="2026-99-99T99:99:99Z"),
    "a release at no time": held(releasedTime=NAN),
    "coverage of fewer topics than none": {"coverage": {"protected": -1}},
    "coverage that does not fit 64 bits": {"coverage": {"leftOut": 1 << 63}},
    "coverage with half a character": {"coverage": {"topicsVanished": ["\ud800"]}},
    "an archive that is a number": {"archive": 5},
    "an archive without a size": {"archive": {"recovery": {"lastTime": BEGUN}}},
    "a size that is a text": {"archive": {"size": {"bytes": "1"}, "recovery": {"lastTime": BEGUN}}},
    "a size that does not fit 64 bits": {"archive": {"size": {"bytes": 1 << 63}, "recovery": {"lastTime": BEGUN}}},
    "a recoverable time that is not a number": {"archive": {"size": {}, "recovery": {"lastTime": NAN}}},
    "a recoverable time in the year 100,000,000": {
        "archive": {"size": {}, "recovery": {"lastTime": "100000000-01-01T00:00:00Z"}}
    },
    "a topic behind with half a character": {
        "archive": {"size": {}, "recovery": {"lastTime": BEGUN, "behind": [{"topic": "\ud800"}]}}
    },
    "an archive of a later version": {"archive": {"size": {}, "recovery": {"lastTime": BEGUN}, "more": 1}},
}


@pytest.mark.parametrize("changes", WRONG_RESULTS.values(), ids=WRONG_RESULTS)
def test_a_result_that_cannot_be_read_leaves_the_end_to_the_job(changes: dict[str, Any]) -> None:
    world = started()
    written(world, result=json.dumps(json.loads(world.result().to_json()) | changes))
    world.settle()
    assert world.condition("Ready") == ("False", "ProgressUnreadable")
    world.job_is(active=0, failed=1, failure=("BackoffLimitExceeded", "too often"))
    world.driver("Failed", exit_code=1)
    world.settle()
    assert world.status.phase is Phase.FAILED
    assert "cannot be read" in world.message()


@pytest.mark.parametrize("offsets", [{"start": 9, "end": 20, "at": 5}, {"start": 9, "end": 6, "at": 5}])
def test_a_partition_that_cannot_be_where_it_is_stops_nothing(offsets: dict[str, int]) -> None:
    world = started()
    written(world, progress=progress_of(world, partitionsShown=[partition(**offsets)]))
    world.settle()
    assert world.condition("Ready") == ("False", "Running")
    assert world.status.progress is not None
    (lagging,) = world.status.progress.lagging
    assert (lagging.done, lagging.total) == (0, max(0, offsets["end"] - offsets["start"]))


def test_a_result_with_held_topics_is_read_as_it_is() -> None:
    world = started()
    found = held(released=1, releasedTime=timestamp(world.now), notReleasedList=["orders: NotHeld"])
    written(world, result=json.dumps(json.loads(world.result().to_json()) | found))
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED


def test_a_report_that_cannot_be_read_gives_way_to_the_one_in_the_pod() -> None:
    world = started()
    written(world, result="{")
    world.driver("Succeeded", exit_code=0, termination_message=world.result().to_termination_message(4096))
    world.job_is(active=0, complete=True)
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert world.condition("DataLoss")[0] == "False"
    assert "1100 records" in world.message()


def test_an_attempt_that_failed_is_reported_before_a_report_that_cannot_be_read() -> None:
    world = started()
    written(world, result="{")
    world.driver("Failed", exit_code=137, exit_reason="OOMKilled")
    world.job_is(active=0, failed=1)
    world.settle()
    assert world.condition("Ready") == ("False", "Retrying")
    assert "ran out of memory" in world.message()


def test_long_reasons_of_losses_are_cut() -> None:
    world = started()
    facts = [{"topic": "a", "partition": n, "start": 1, "end": 2, "reason": "r" * 40_000} for n in range(MAX_LISTED)]
    result = json.loads(world.result().to_json()) | {"loss": facts, "lossTotal": 20, "lossOffsets": 20}
    written(world, result=json.dumps(result))
    world.settle()
    assert world.status.phase is Phase.SUCCEEDED
    assert len(world.status.loss) == MAX_LISTED
    assert world.condition("DataLoss")[0] == "True"
    assert len(json.dumps(world.status.to_dict())) < 60_000


# ---- any document at all

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 63, -(1 << 63), 10**400, 1e300, NAN, INFINITE])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["Succeeded", "Failed", "Running", "\ud800", "\0", "x" * 70_000]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def spoiled(draw: st.DrawFn, document: dict[str, Any]) -> str:
    """The document with one to three places changed, or any text."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=40))
    body = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        place: Any = body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and draw(st.booleans()):
                place = place[key]
                continue
            if draw(st.integers(0, 4)) == 0:
                del place[key]
            else:
                place[key] = draw(JSON)
            break
    return json.dumps(body)


REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def sound(value: Any) -> bool:
    """Whether the API server stores it as it is."""
    if isinstance(value, dict):
        return all(sound(item) for item in value.values())
    if isinstance(value, list):
        return all(sound(item) for item in value)
    if isinstance(value, str):
        return value == value.encode(errors="replace").decode()
    return type(value) is int and -(1 << 63) <= value < 1 << 63


@pytest.mark.parametrize("kind", ["KafkaBackup", "KafkaRestore"])
@settings(max_examples=scaled(100), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_document_stops_the_status(kind: str, data: st.DataObject) -> None:
    world = started(kind)
    facts = [{"topic": "a", "partition": 0, "start": 1, "end": 2, "reason": "gone"}]
    covered = TopicCoverage(protected=1, vanished=1, topics_vanished=("b",))
    result = json.loads(world.result(warnings=("w",), coverage=covered).to_json()) | {"loss": facts}
    outcome = data.draw(st.sampled_from([{}, {"outcome": "Failed", "errorCode": "DataLoss", "lossTotal": 1}]))
    texts = {
        "progress": data.draw(spoiled(json.loads(world.progress().to_json()))),
        "result": data.draw(st.just("") | spoiled(result | outcome)),
    }
    message = data.draw(st.just("") | spoiled(result | outcome))
    written(world, **texts)
    world.driver("Running", termination_message=message)
    world.settle()
    world.job_is(active=0, complete=True)
    world.driver("Succeeded", exit_code=0, termination_message=message)
    world.settle()
    status = world.status.to_dict()
    assert world.status.phase in (Phase.SUCCEEDED, Phase.FAILED) or "outcome" not in status["run"]
    assert sound(status), status
    assert len(json.dumps(status)) < 20_000
    for condition in status["conditions"]:
        assert REASON.fullmatch(condition["reason"]), condition
        assert len(condition["message"]) <= 1024
