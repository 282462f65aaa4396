"""A restore that is asked for again finds the run that has done it, by everything that decides what it does."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from logkeep_engine.archive.catalog.facts import Coverage, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ENV_POD_NAMESPACE
from logkeep_engine.contract.restore_spec import IfTopicExists
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ArchiveDamaged, RestoreUnfinished, StateAltered, TargetChanged
from logkeep_engine.restore.model.context import Planned
from logkeep_engine.restore.model.plan import NO_TASK, PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import PLAN, RESULT, RestoreState
from logkeep_engine.restore.planning.restored_before import RestoreKey, begin, check_still_there
from logkeep_engine.storage import LocalStorage
from tests.unit.restore.test_plan import entry

ASKED = RestoreKey("KafkaRestore team/again", "digest", "a1", "k1")
FAIL, APPEND = IfTopicExists.FAIL, IfTopicExists.APPEND


@pytest.fixture
def first(tmp_path: Path) -> RestoreState:
    return RestoreState(LocalStorage(tmp_path.as_uri()), "first")


def end(state: RestoreState, **changes: object) -> RunResult:
    now = time.time()
    result = RunResult(
        run_id=state.run_id,
        kind="KafkaRestore",
        outcome="Succeeded",
        exit_code=0,
        start_time=now - 1,
        end_time=now,
        records=7,
        archive_id="a1",
    )
    result = replace(result, **changes)  # type: ignore[arg-type]
    state.storage.put(state.file(RESULT), result.to_json().encode())
    return result


@pytest.mark.parametrize("mode", [FAIL, APPEND])
def test_a_run_that_has_succeeded_is_found_by_all_later_ones(first: RestoreState, mode: IfTopicExists) -> None:
    assert begin(ASKED, first, mode) is None
    assert begin(ASKED, first, mode) is None, "a driver that starts again is the same run"
    result = end(first)
    assert begin(ASKED, first.of_run("second"), mode) == result
    assert begin(ASKED, first.of_run("third"), mode) == result


@pytest.mark.parametrize(
    "other",
    [
        replace(ASKED, name="KafkaRestore team/other"),
        replace(ASKED, name="KafkaRestore team/again, run again: 2"),
        replace(ASKED, spec_digest="changed"),
        replace(ASKED, archive_id="a2"),
        replace(ASKED, cluster_id="k2"),
    ],
)
def test_another_restore_is_done(first: RestoreState, other: RestoreKey) -> None:
    begin(ASKED, first, APPEND)
    end(first)
    assert begin(other, first.of_run("second"), APPEND) is None
    assert begin(ASKED, first.of_run("third"), APPEND) is not None


def test_a_run_that_has_not_succeeded_is_no_reason_to_do_nothing(first: RestoreState) -> None:
    begin(ASKED, first, FAIL)
    first.storage.put(first.file(PLAN), b"{}")
    end(first, outcome="Failed", exit_code=2)
    second = first.of_run("second")
    assert begin(ASKED, second, FAIL) is None, "what the first one has created is in its way, so nothing comes twice"
    end(second)
    found = begin(ASKED, first.of_run("third"), FAIL)
    assert found is not None
    assert found.run_id == "second"


def test_what_was_appended_in_part_is_not_appended_again(first: RestoreState) -> None:
    begin(ASKED, first, APPEND)
    assert begin(ASKED, first.of_run("second"), APPEND) is None, "without a plan the first one has written nothing"
    second = first.of_run("second")
    second.storage.put(second.file(PLAN), b"{}")
    with pytest.raises(RestoreUnfinished, match="Run second of KafkaRestore team/again has begun to append") as refused:
        begin(ASKED, first.of_run("third"), APPEND)
    assert "logkeep restore --run-id second" in refused.value.hint
    assert "logkeep.dev/run-again" in refused.value.hint
    assert begin(ASKED, second, APPEND) is None, "the run itself goes on"


def test_a_result_of_another_archive_counts_for_nothing(first: RestoreState) -> None:
    begin(ASKED, first, FAIL)
    end(first, archive_id="a2")
    assert begin(ASKED, first.of_run("second"), FAIL) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"runId":"first"}', b'{"format":1}'])
def test_a_note_that_cannot_be_read_is_no_reason_to_restore(first: RestoreState, content: bytes) -> None:
    first.storage.put(ASKED.path, content)
    with pytest.raises(ArchiveDamaged, match="not a note of a run") as refused:
        begin(ASKED, first, FAIL)
    assert "whether this restore was done before" in refused.value.hint


@dataclass
class Cluster:
    """The topics of a Kafka cluster with their ids, and the ends of their logs."""

    ids: dict[str, str]
    ends: dict[tuple[str, int], int]

    def topic_ids(self, names: Iterable[str]) -> dict[str, str]:
        return {name: self.ids[name] for name in names if name in self.ids}

    def latest_offsets(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {where: self.ends[where] for where in partitions if where in self.ends}


def restored(state: RestoreState) -> Planned:
    """A run that has created a topic of two partitions, one of them without records, and appended to another: the
    archive has ten records of each of the other partitions."""
    archived = ArchiveState()
    topics = [TopicEntry("orders", "o" * 22, 2, 1), TopicEntry("users", "u" * 22, 1, 1)]
    coverage = [Coverage(topic.topic_id, 0, 0, 10) for topic in topics]
    archived.add_facts(topics, coverage, [entry(topic_id=topic.topic_id) for topic in topics], ())
    parts = (PartitionPlan(0, 7, 0), PartitionPlan(1, NO_TASK, 0))
    plans = (
        TopicPlan("orders", "o" * 22, "orders", True, 2, 1, 1 << 20, parts),
        TopicPlan("users", "u" * 22, "users", False, 1, 0, 1 << 20, (PartitionPlan(0, 8, 50),), target_id="u1"),
    )
    plan = RestorePlan(state.run_id, "digest", "a1", 3, "k1", plans)
    end(state)
    return Planned(plan, archived, fresh=False)


def check(planned: Planned, cluster: Cluster, records: int = 20, **ids: str) -> None:
    earlier = RunResult(
        run_id="first",
        kind="KafkaRestore",
        outcome="Succeeded",
        exit_code=0,
        start_time=1.0,
        end_time=2.0,
        records=records,
        archive_id="a1",
    )
    check_still_there(earlier, planned, ids, cluster)  # type: ignore[arg-type]


def test_a_restore_was_done_if_the_cluster_has_its_topics(first: RestoreState) -> None:
    planned = restored(first)
    ids = {"orders": "o1", "users": "u1", "other": "x1"}
    check(planned, Cluster(ids, {("orders", 0): 10, ("users", 0): 60}))
    check(planned, Cluster(ids, {("orders", 0): 99, ("users", 0): 99}), orders="o1")


@pytest.mark.parametrize(
    ("cluster", "what"),
    [
        (Cluster({}, {}), "of its 2 topics 2 are not there, the first is 'orders'"),
        (Cluster({"orders": "o1"}, {("orders", 0): 7}), "of its 2 topics 1 is not there, the first is 'users'"),
        (Cluster({"orders": "o1", "users": "u2"}, {("orders", 0): 7}), "the first is 'users'"),
        (Cluster({"orders": "o1", "users": "u1"}, {("orders", 0): 0, ("users", 0): 50}), "hold nothing of it"),
        (
            Cluster({"orders": "o1", "users": "u1"}, {("orders", 0): 9, ("users", 0): 60}),
            "topic 'orders' partition 0 ends at offset 9, not at 10 or later",
        ),
        (
            Cluster({"orders": "o1", "users": "u1"}, {("orders", 0): 10, ("users", 0): 59}),
            "topic 'users' partition 0 ends at offset 59, not at 60 or later",
        ),
        (
            Cluster({"orders": "o2", "users": "u1"}, {("orders", 0): 10, ("users", 0): 60}),
            "topic 'orders' is not the one that it has filled",
        ),
    ],
)
def test_a_cluster_without_its_topics_is_not_called_restored(
    first: RestoreState, cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = restored(first)
    with pytest.raises(TargetChanged, match=f"run first has done this restore into Kafka cluster k1, .*{what}") as no:
        check(planned, cluster, orders="o1")
    assert "take another --run-id" in no.value.hint
    monkeypatch.setenv(ENV_POD_NAMESPACE, "team")
    with pytest.raises(TargetChanged) as of_pod:
        check(planned, cluster, orders="o1")
    assert "logkeep.dev/run-again" in of_pod.value.hint


def test_a_run_that_says_it_had_nothing_to_restore_is_held_to_the_archive(first: RestoreState) -> None:
    empty = Cluster({"orders": "o1", "users": "u1"}, {("orders", 0): 0, ("users", 0): 50})
    with pytest.raises(TargetChanged, match="topic 'orders' partition 0 ends at offset 0, not at 10 or later"):
        check(restored(first), empty, records=0)


@pytest.mark.parametrize("run_id", ["../../topics", "a/b", "", ".hidden"])
def test_a_note_that_names_no_run_is_no_path(first: RestoreState, run_id: str) -> None:
    first.storage.put(ASKED.path, json.dumps({"format": 1, "runId": run_id}).encode())
    with pytest.raises(ArchiveDamaged, match="not a note of a run"):
        begin(ASKED, first, FAIL)


@pytest.mark.parametrize("change", [{"run_id": "other"}, {"earlier_run": "../../topics"}])
def test_a_result_of_another_run_is_refused(first: RestoreState, change: dict[str, str]) -> None:
    begin(ASKED, first, FAIL)
    first.storage.put(first.file(RESULT), replace(end(first), **change).to_json().encode())  # type: ignore[arg-type]
    with pytest.raises(StateAltered, match=r"result\.json: it is not a result of run first"):
        begin(ASKED, first.of_run("second"), FAIL)
