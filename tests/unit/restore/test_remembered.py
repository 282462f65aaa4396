"""A restore that is asked for again finds the run that has done it, by everything that decides what it does."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.spec import IfTopicExists
from logkeep_engine.errors import ArchiveDamaged, RestoreUnfinished, TargetChanged
from logkeep_engine.restore.plan import NO_TASK, PartitionPlan, RestorePlan, TopicPlan
from logkeep_engine.restore.remembered import Asked, begin, check_still_there
from logkeep_engine.restore.state import PLAN, RESULT, RestoreState
from logkeep_engine.storage import LocalStorage

ASKED = Asked("KafkaRestore team/again", "digest", "a1", "k1")
FAIL, APPEND = IfTopicExists.FAIL, IfTopicExists.APPEND


@pytest.fixture
def first(tmp_path: Path) -> RestoreState:
    return RestoreState(LocalStorage(tmp_path.as_uri()), "first")


def end(state: RestoreState, **changes: object) -> RunResult:
    now = time.time()
    result = RunResult(state.run_id, "KafkaRestore", "Succeeded", 0, now - 1, now, records=7, archive_id="a1")
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
def test_another_restore_is_done(first: RestoreState, other: Asked) -> None:
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


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format":2,"runId":"first"}', b'{"format":1}'])
def test_a_note_that_cannot_be_read_is_no_reason_to_restore(first: RestoreState, content: bytes) -> None:
    first.storage.put(ASKED.path, content)
    with pytest.raises(ArchiveDamaged, match="does not name a run") as refused:
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


def restored(state: RestoreState) -> RunResult:
    """A run that has created a topic of two partitions, one of them without records, and appended to another."""
    parts = (PartitionPlan(0, 7, 0), PartitionPlan(1, NO_TASK, 0))
    topics = (
        TopicPlan("orders", "o", "orders", True, 2, 1, 1 << 20, parts),
        TopicPlan("users", "u", "users", False, 1, 0, 1 << 20, (PartitionPlan(0, 8, 50),), target_id="u1"),
    )
    plan = RestorePlan(state.run_id, "digest", "a1", 3, "k1", topics)
    state.storage.put(state.file(PLAN), plan.to_json())
    return end(state)


def check(first: RestoreState, earlier: RunResult, cluster: Cluster) -> None:
    check_still_there(earlier, first.of_run("second"), cluster)  # type: ignore[arg-type]


def test_a_restore_was_done_if_the_cluster_has_its_topics(first: RestoreState) -> None:
    earlier = restored(first)
    ids = {"orders": "o1", "users": "u1", "other": "x1"}
    check(first, earlier, Cluster(ids, {("orders", 0): 7, ("users", 0): 60}))
    check(first, earlier, Cluster(ids, {("orders", 0): 0, ("users", 0): 51}))
    check(first, replace(earlier, records=0), Cluster(ids, {("orders", 0): 0, ("users", 0): 50}))


@pytest.mark.parametrize(
    ("cluster", "what"),
    [
        (Cluster({}, {}), "of its 2 topics 2 are not there, the first is 'orders'"),
        (Cluster({"orders": "o1"}, {("orders", 0): 7}), "of its 2 topics 1 are not there, the first is 'users'"),
        (Cluster({"orders": "o1", "users": "u2"}, {("orders", 0): 7}), "the first is 'users'"),
        (Cluster({"orders": "o1", "users": "u1"}, {("orders", 0): 0, ("users", 0): 50}), "hold nothing of it"),
    ],
)
def test_a_cluster_without_its_topics_is_not_called_restored(first: RestoreState, cluster: Cluster, what: str) -> None:
    earlier = restored(first)
    with pytest.raises(TargetChanged, match=f"run first has done this restore into Kafka cluster k1, .*{what}") as no:
        check(first, earlier, cluster)
    assert "logkeep.dev/run-again" in no.value.hint
