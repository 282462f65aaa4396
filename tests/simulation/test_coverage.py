"""Backups tell what they do not protect: patterns that choose nothing, topics that vanished or that the user may not
see, topics that were left out. Patterns without wildcards must choose a topic unless the spec says otherwise.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.reading.view import choose
from logkeep_engine.contract.facts.outcome import TopicCoverage
from logkeep_engine.contract.run import RunResult
from logkeep_engine.storage import open_uri
from tests.kafka.restores import ThreadRunner, try_backup
from tests.simulation.backing_up import backup_spec, state_of
from tests.simulation.cluster import NOT_AUTHORIZED, SimulatedCluster, World
from tests.simulation.faults import FOREVER, Kind, Lie
from tests.simulation.partition_log import batch
from tests.simulation.protocol import Api


@pytest.fixture(scope="module")
def shared(world: World) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(world, 1) as made:
        yield made


@pytest.fixture
def cluster(shared: SimulatedCluster) -> Iterator[SimulatedCluster]:
    """A cluster with the topics flights, users and users.v1."""
    shared.do(shared.topics.clear)
    for name in ("flights", "users", "users.v1"):
        create(shared, name)
    yield shared
    shared.positions.clear()
    shared.hidden.clear()
    shared.unreadable.clear()
    shared.lies.active = []


def create(cluster: SimulatedCluster, name: str) -> None:
    cluster.do(lambda: cluster.create(name, 1))
    cluster.do(lambda: cluster.topics[name].partitions[0].append(batch([(b"key", b"value")])))


def backup(
    cluster: SimulatedCluster,
    root: Path,
    *include: str,
    run_id: str = "one",
    exclude: list[str] | None = None,
    runner: ThreadRunner | None = None,
    **more: Any,
) -> RunResult:
    topics = {"include": list(include), "exclude": exclude or []}
    return try_backup(backup_spec(cluster, root, topics=topics, **more), run_id, runner)


def archived(root: Path) -> list[str]:
    state = state_of(root)
    return sorted(state.topics[topic_id].name for topic_id, _ in state.segments)


def coverage(result: RunResult) -> TopicCoverage:
    assert result.coverage is not None
    return result.coverage


def test_a_name_that_chooses_no_topic_fails_the_run_when_all_else_is_archived(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    result = backup(cluster, tmp_path, "flights", r"orders\.does-not-exist", "users.v2")
    assert (result.outcome, result.error_code, result.exit_code) == ("Failed", "PatternsUnmatched", 2), result
    assert r"spec.topics.include[1] 'orders\\.does-not-exist' chooses no topic" in result.message
    assert "spec.topics.include[2] 'users.v2' chooses no topic" in result.message
    assert "Everything else was archived, with the positions of consumer groups; retention waits" in result.message
    assert archived(tmp_path) == ["flights"]
    found = coverage(result)
    assert (found.protected, found.unmatched, found.left_out) == (1, 2, 2)
    assert found.patterns_unmatched == (r"orders\.does-not-exist", "users.v2")
    assert found.topics_left_out == ("users", "users.v1")


def test_a_name_that_the_spec_itself_leaves_out_is_not_said_to_be_missing(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, "__consumer_offsets")
    result = backup(cluster, tmp_path, "flights", "users", "__consumer_offsets", exclude=["us.*"])
    assert (result.outcome, result.error_code) == ("Failed", "PatternsUnmatched"), result
    assert "include[1] 'users' chooses no topic of the cluster: spec.topics.exclude excludes it." in result.message
    assert "of the cluster: it is Kafka's own, which spec.topics.internal leaves out." in result.message


def test_a_broker_that_says_nothing_of_what_the_user_may_do_is_not_taken_for_a_refusal(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers do not tell a user of a topic that he may not even describe: an empty answer is no answer."""
    monkeypatch.setattr("tests.simulation.cluster._OF_TOPICS", 0)
    result = backup(cluster, tmp_path, ".*")
    assert (result.outcome, coverage(result).protected, coverage(result).unreadable) == ("Succeeded", 3, 0), result


def test_a_run_that_only_misses_a_name_keeps_the_positions_of_groups_and_removes_nothing(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    cluster.positions["billing"] = {("flights", 0): 1}
    for run_id in ("one", "one", "two"):  # the first driver may die between the run's end and its report
        result = backup(cluster, tmp_path, "flights", "typo", run_id=run_id, retention={"maxAge": "1s"})
        assert (result.outcome, result.error_code) == ("Failed", "PatternsUnmatched"), result
        assert result.groups == 1
    chosen = choose(Archive.open(open_uri(tmp_path.as_uri())))
    assert not chosen.warnings, "a restore takes all of it"
    assert [(entry.group_id, entry.offset) for entry in chosen.state.groups] == [("billing", 1)]
    assert not chosen.state.removed
    assert "'typo' chooses no topic" in chosen.state.runs["two"].message
    result = backup(cluster, tmp_path, "flights", run_id="three", retention={"maxAge": "1s"})
    assert (result.outcome, archived(tmp_path)) == ("Succeeded", [])


def test_a_pattern_with_wildcards_that_chooses_no_topic_is_reported(cluster: SimulatedCluster, tmp_path: Path) -> None:
    result = backup(cluster, tmp_path, "flights", "orders.*")
    assert result.outcome == "Succeeded", result.message
    assert result.warnings == ("spec.topics.include[1] 'orders.*' chooses no topic of the cluster.",)
    assert (coverage(result).protected, coverage(result).unmatched) == (1, 1)


@pytest.mark.parametrize(
    ("policy", "pattern", "outcome"),
    [("Warn", "orders", "Succeeded"), ("Fail", "orders", "Failed"), ("Fail", "ord[e]rs", "Failed")],
)
def test_the_spec_decides_whether_it_fails(
    cluster: SimulatedCluster, tmp_path: Path, policy: str, pattern: str, outcome: str
) -> None:
    result = backup(cluster, tmp_path, "flights", pattern, onUnmatched=policy)
    assert (result.outcome, coverage(result).unmatched) == (outcome, 1), result.message
    assert any("include[1]" in warning for warning in result.warnings)


def test_a_topic_that_vanished_is_reported_until_somebody_excludes_it(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    assert backup(cluster, tmp_path, ".*").outcome == "Succeeded"
    cluster.do(lambda: cluster.topics.pop("users"))
    for run_id in ("two", "three"):
        result = backup(cluster, tmp_path, ".*", run_id=run_id)
        assert result.outcome == "Succeeded", result.message
        (warning,) = result.warnings
        assert "1 topic of the archive is no longer in the cluster: 'users'" in warning
        assert (coverage(result).protected, coverage(result).vanished) == (2, 1)
        assert coverage(result).topics_vanished == ("users",)
    result = backup(cluster, tmp_path, ".*", run_id="four", onUnmatched="Fail")
    assert (result.outcome, result.error_code) == ("Failed", "PatternsUnmatched")
    result = backup(cluster, tmp_path, ".*", run_id="five", exclude=["users"], onUnmatched="Fail")
    assert (result.outcome, result.warnings, coverage(result).vanished) == ("Succeeded", (), 0)


def test_a_topic_that_the_user_may_not_see_is_reported_by_its_name(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """Brokers leave it out of the list of all topics, and say so only if they are asked for its name."""
    cluster.hidden.add("users")
    result = backup(cluster, tmp_path, "flights", "users", onUnmatched="Warn")
    assert result.outcome == "Succeeded", result.message
    assert any("do not let this user read 1 topic" in warning for warning in result.warnings), result.warnings
    assert (coverage(result).unmatched, coverage(result).unreadable) == (1, 1)
    assert coverage(result).topics_unreadable == ("users",)
    result = backup(cluster, tmp_path, "flights", "users", run_id="two")
    assert (result.outcome, result.error_code) == ("Failed", "PatternsUnmatched")
    assert "ACL" in result.message


def test_an_archived_topic_that_the_user_may_not_see_any_more_is_reported(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    assert backup(cluster, tmp_path, ".*").outcome == "Succeeded"
    cluster.hidden.add("users")
    result = backup(cluster, tmp_path, ".*", run_id="two", onUnmatched="Warn")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerRefused"), result.message
    assert (coverage(result).protected, coverage(result).unreadable) == (2, 1)


def test_a_topic_that_the_user_may_see_and_not_read_is_left_out_and_told(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """It had ended the run for all others at its first fetch."""
    cluster.unreadable.add("users")
    result = backup(cluster, tmp_path, ".*")
    assert result.outcome == "Succeeded", result.message
    assert any("do not let this user read 1 topic" in warning for warning in result.warnings), result.warnings
    found = coverage(result)
    assert (found.protected, found.unreadable, found.left_out, found.unmatched) == (2, 1, 0, 0)
    result = backup(cluster, tmp_path, "flights", "users", run_id="two")
    assert (result.outcome, result.error_code) == ("Failed", "PatternsUnmatched")
    assert "'users' chooses no topic that the user may read" in result.message
    result = backup(cluster, tmp_path, "users", run_id="three", onUnmatched="Warn")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerRefused"), result
    assert "do not let this user read any topic" in result.message


def test_an_archived_topic_that_the_user_may_not_read_any_more_fails_the_run_when_all_else_is_archived(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    assert backup(cluster, tmp_path, ".*").outcome == "Succeeded"
    for name in ("flights", "users"):
        cluster.do(lambda to=cluster.topics[name]: to.partitions[0].append(batch([(b"key", b"value")])))  # type: ignore[misc]
    cluster.unreadable.add("users")
    cluster.lies.active = [Lie(Kind.CODE, Api.FETCH, code=NOT_AUTHORIZED, topic="users", times=FOREVER)]
    result = backup(cluster, tmp_path, ".*", run_id="two", onUnmatched="Warn")
    assert (result.outcome, result.error_code, result.records) == ("Failed", "BrokerRefused", 1), result
    assert (coverage(result).protected, coverage(result).unreadable) == (2, 1)
    seen = choose(Archive.open(open_uri(tmp_path.as_uri())))
    assert seen.state.runs["two"].records == 1, "a restore takes what it has archived"
    assert "ACL READ" in result.message


@pytest.mark.parametrize("right", ["hidden", "unreadable"])
def test_a_topic_that_is_refused_does_not_keep_others_from_being_asked_again(
    cluster: SimulatedCluster, tmp_path: Path, right: str
) -> None:
    assert backup(cluster, tmp_path, ".*").outcome == "Succeeded"
    for name in ("flights", "users.v1"):
        cluster.do(lambda to=cluster.topics[name]: to.partitions[0].append(batch([(b"key", b"value")])))  # type: ignore[misc]
    getattr(cluster, right).add("users")
    flights = cluster.topics["flights"].partitions[0]
    leader = flights.leader
    cluster.do(lambda: setattr(flights, "leader", -1))
    comes_back = ThreadRunner(before=lambda work: cluster.do(lambda: setattr(flights, "leader", leader)))
    result = backup(cluster, tmp_path, ".*", run_id="two", runner=comes_back)
    assert (result.outcome, result.error_code, result.records) == ("Failed", "BrokerRefused", 2), result
    assert (coverage(result).protected, coverage(result).unreadable) == (2, 1)


def test_a_run_that_is_started_again_tells_what_its_plan_saw(cluster: SimulatedCluster, tmp_path: Path) -> None:
    def die(work: object) -> None:
        raise KeyboardInterrupt

    include = ("flights", "orders")
    interrupted = backup(cluster, tmp_path, *include, runner=ThreadRunner(before=die))
    assert (interrupted.error_code, coverage(interrupted).protected) == ("Interrupted", 0)
    again = backup(cluster, tmp_path, *include)
    assert again.error_code == "PatternsUnmatched"
    assert (coverage(again).protected, coverage(again).unmatched, coverage(again).left_out) == (1, 1, 2)


def test_a_run_that_continues_keeps_what_its_plan_has_seen(cluster: SimulatedCluster, tmp_path: Path) -> None:
    def die(work: object) -> None:
        raise KeyboardInterrupt

    backup(cluster, tmp_path, "flights", runner=ThreadRunner(before=die))
    plan = json.loads((tmp_path / "runs" / "one" / "plan.json").read_text())
    assert plan["sight"] == {"leftOut": [2, ["users", "users.v1"]], "vanished": [0, []], "unreadable": [0, []]}
    result = backup(cluster, tmp_path, "flights")
    assert (result.outcome, coverage(result).protected) == ("Succeeded", 1), result.message
