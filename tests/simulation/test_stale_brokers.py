"""Answers of a broker that knows an old state of its cluster, or of another cluster: a backup takes none for the truth.

Brokers are simulated; each is an answer that a real broker gives while it has not heard of what is newer.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.facts import TopicEntry
from logkeep_engine.backup.planning import planner
from logkeep_engine.backup.planning.divergence import Standings, standings_of
from logkeep_engine.kafka.connection import Limits
from tests.simulation.backing_up import ask_first, backup, state_of, wait_no_longer
from tests.simulation.cluster import UNKNOWN_TOPIC, SimulatedCluster, World
from tests.simulation.faults import FOREVER, Kind, Lie
from tests.simulation.partition_log import batch
from tests.simulation.protocol import Api

LIMITS = Limits(
    unknown=0.3, truncated=0.3, control=1, outage=1, control_pause=0.02, settling=0.02, pause=0.02, longest_pause=0.1
)


@pytest.fixture
def cluster(world: World) -> Iterator[SimulatedCluster]:
    with SimulatedCluster(world, brokers=2) as made:
        yield made


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_no_longer(monkeypatch, LIMITS)


def create(cluster: SimulatedCluster, partitions: int, **configs: str) -> None:
    """Topic orders, with ten records in each partition."""
    cluster.do(lambda: cluster.create("orders", partitions, replicas=2, configs=configs))
    write(cluster)


def write(cluster: SimulatedCluster) -> None:
    rows = [(b"%d" % number, b"value") for number in range(10)]
    for partition in cluster.topics["orders"].partitions:
        cluster.do(lambda to=partition: to.append(batch(rows)))  # type: ignore[misc]


def die(work: object) -> None:
    raise KeyboardInterrupt


def orders(root: Path) -> TopicEntry:
    (topic,) = state_of(root).topics.values()
    return topic


def unknown_configs(times: int) -> Lie:
    return Lie(Kind.CODE, Api.DESCRIBE_CONFIGS, code=UNKNOWN_TOPIC, topic="orders", times=times)


def test_configuration_that_one_broker_does_not_know_is_asked_of_another(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 1, **{"cleanup.policy": "compact"})
    cluster.lies.active = [unknown_configs(1)]
    result = backup(cluster, tmp_path, "one")
    assert result.outcome == "Succeeded", result.message
    assert orders(tmp_path).configs == {"cleanup.policy": "compact"}


def test_configuration_that_no_broker_tells_stays_what_it_was_and_retention_spares_the_topic(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 1, **{"cleanup.policy": "compact"})
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    write(cluster)
    cluster.lies.active = [unknown_configs(FOREVER)]
    result = backup(cluster, tmp_path, "two", retention={"maxAge": "1d"})
    assert (result.outcome, result.error_code) == ("Failed", "BrokerUnavailable"), result.message
    assert orders(tmp_path).configs == {"cleanup.policy": "compact"}
    assert [entry.base_offset for entry in state_of(tmp_path).segments[orders(tmp_path).topic_id, 0]] == [0]
    cluster.lies.active = []
    result = backup(cluster, tmp_path, "two", retention={"maxAge": "1d"})
    assert (result.outcome, result.records) == ("Succeeded", 10), result.message


def test_partitions_that_one_broker_has_not_heard_of_are_unavailable_and_stay_in_the_archive(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 2)
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    write(cluster)
    hidden = cluster.do(cluster.topics["orders"].partitions.pop)
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerUnavailable"), result.message
    assert "'orders' partition 1" in result.message
    assert orders(tmp_path).partitions == 2
    cluster.do(lambda: cluster.topics["orders"].partitions.append(hidden))
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.records) == ("Succeeded", 20), result.message


def not_listed(times: int, node: int | None = None) -> Lie:
    return Lie(Kind.UNKNOWN_TOPIC, Api.METADATA, topic="orders", times=times, node=node)


def test_archived_topic_that_one_broker_does_not_list_is_waited_for(cluster: SimulatedCluster, tmp_path: Path) -> None:
    create(cluster, 2)
    cluster.do(lambda: cluster.create("users", 1))
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    write(cluster)
    cluster.lies.active = [not_listed(1)]
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.records) == ("Succeeded", 20), result.message


@pytest.mark.parametrize("again", [False, True], ids=["same", "recreated"])
def test_archived_topic_that_the_broker_at_hand_never_lists_is_unavailable(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Broker 2 knows no topic orders and is asked first each time."""
    create(cluster, 2)
    cluster.do(lambda: cluster.create("users", 1))
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    if again:
        cluster.do(lambda: cluster.topics.pop("orders"))
        create(cluster, 2)
    else:
        write(cluster)
    ask_first(monkeypatch, 2)
    cluster.lies.active = [not_listed(FOREVER, 2)]
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerUnavailable"), result.message
    assert "'orders'" in result.message
    assert {topic.name for topic in state_of(tmp_path).topics.values()} == {"orders", "users"}
    cluster.lies.active = []
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.records) == ("Succeeded", 20), result.message


def test_archived_topic_that_is_deleted_for_all_brokers_is_not_waited_for(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 2)
    cluster.do(lambda: cluster.create("users", 1))
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    cluster.do(lambda: cluster.topics.pop("orders"))
    for run_id in ("two", "three"):
        assert backup(cluster, tmp_path, run_id).outcome == "Succeeded"


def test_archived_topic_that_may_not_be_described_any_more_is_not_left_out_in_silence(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """Brokers leave it out of the list of all topics, and say so only if they are asked for its name."""
    create(cluster, 1)
    cluster.do(lambda: cluster.create("users", 1))
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    cluster.hidden.add("orders")
    cluster.do(lambda: cluster.topics["users"].partitions[0].append(batch([(b"key", b"value")])))
    result = backup(cluster, tmp_path, "two")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerRefused"), result.message
    assert "The brokers do not let this user read topics that the archive knows: 'orders'." in result.message
    assert result.records == 1  # of the others
    result = backup(cluster, tmp_path, "three", topics={"include": [".*"], "exclude": ["orders"]})
    assert (result.outcome, result.records) == ("Succeeded", 0), result.message


def test_a_plan_of_long_ago_takes_no_partition_out_of_the_archive(cluster: SimulatedCluster, tmp_path: Path) -> None:
    create(cluster, 1)
    assert backup(cluster, tmp_path, "early", before=die).outcome == "Failed"
    cluster.do(lambda: cluster.add_partitions(cluster.topics["orders"], 1, 2))
    write(cluster)
    assert backup(cluster, tmp_path, "late").outcome == "Succeeded"
    assert backup(cluster, tmp_path, "early").outcome == "Succeeded"
    assert orders(tmp_path).partitions == 2


def test_partitions_that_are_not_heard_of_when_they_are_asked_again_stay_unavailable(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 3)
    silent = [Lie(Kind.NO_LEADER, Api.METADATA, topic="orders", partition=number, times=FOREVER) for number in (0, 2)]
    cluster.lies.active = [*silent]
    result = backup(cluster, tmp_path, "one")
    assert (result.outcome, result.records) == ("Failed", 10), result.message
    cluster.lies.active = []
    hidden = cluster.do(cluster.topics["orders"].partitions.pop)
    result = backup(cluster, tmp_path, "one")
    assert (result.outcome, result.records) == ("Failed", 20), result.message
    assert "1 partition had no leader or did not answer, and was not archived: 'orders' partition 2" in (result.message)
    cluster.do(lambda: cluster.topics["orders"].partitions.append(hidden))
    result = backup(cluster, tmp_path, "one")
    assert (result.outcome, result.records) == ("Succeeded", 30), result.message


def recreate(cluster: SimulatedCluster) -> None:
    """Topic orders, without records."""
    partitions = len(cluster.topics["orders"].partitions)
    cluster.do(lambda: cluster.delete("orders"))
    cluster.do(lambda: cluster.create("orders", partitions, replicas=2))


def before_comparison(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], None]) -> None:
    """Let this happen when a run has asked for the bounds of logs, and is about to ask for their leader epochs, for the
    `number`-th time."""
    calls = count(1)

    def compare(*args: Any) -> Standings:
        if next(calls) == number:
            action()
        return standings_of(*args)

    monkeypatch.setattr(planner, "standings_of", compare)


def test_topic_that_is_created_again_between_two_questions_is_no_log_that_was_cut_off(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log started at offset 1 and parts from the archive at 0, as far as a planner can see."""
    create(cluster, 1)
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    for replica in cluster.topics["orders"].partitions[0].replicas.values():
        cluster.do(lambda of=replica: of.delete_below(1))  # type: ignore[misc]
    before_comparison(monkeypatch, 1, lambda: recreate(cluster))
    result = backup(cluster, tmp_path, "two", onDivergence="Branch")
    assert result.outcome == "Succeeded", result.message
    state = state_of(tmp_path)
    assert (len(state.topics), state.branches, state.gaps) == (2, {}, {})


def test_topic_that_is_created_again_while_it_is_asked_again_is_no_log_that_was_cut_off(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, 2)
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    write(cluster)
    cluster.lies.active = [Lie(Kind.NO_LEADER, Api.METADATA, topic="orders", partition=0, times=FOREVER)]
    before_comparison(monkeypatch, 2, lambda: recreate(cluster))
    result = backup(cluster, tmp_path, "two", before=lambda work: cluster.lies.active.clear(), onDivergence="Branch")
    assert (result.outcome, result.error_code, result.records) == ("Failed", "BrokerUnavailable", 10), result.message
    assert state_of(tmp_path).branches == {}
    result = backup(cluster, tmp_path, "two", onDivergence="Branch")
    assert (result.outcome, result.loss_total) == ("Succeeded", 0), result.message
    assert any("was deleted while the run was planned" in warning for warning in result.warnings)
    assert (state_of(tmp_path).branches, state_of(tmp_path).gaps) == ({}, {})


def test_log_of_another_topic_is_no_log_that_was_cut_off_as_long_as_one_broker_knows_the_old_topic(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2 hung while the topic was created again: it is asked first each time and gives the old topic id, while
    the leader answers for the new log."""
    create(cluster, 1)
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    before = dict(cluster.topics)
    cluster.do(lambda: cluster.topics.pop("orders"))
    cluster.do(lambda: cluster.create("orders", 1, replicas=2))
    cluster.old_views[2] = before
    ask_first(monkeypatch, 2)
    result = backup(cluster, tmp_path, "two", onDivergence="Branch")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerUnavailable"), result.message
    assert "the brokers do not agree on its topic id" in result.message
    assert (state_of(tmp_path).branches, state_of(tmp_path).gaps) == ({}, {})
    cluster.old_views.clear()
    result = backup(cluster, tmp_path, "three", onDivergence="Branch")
    assert result.outcome == "Succeeded", result.message
    assert (len(state_of(tmp_path).topics), state_of(tmp_path).branches) == (2, {})


def test_election_between_two_questions_makes_no_gap_over_records_that_are_written_later(
    cluster: SimulatedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end is of the old leader's log, the leader epoch of the new one, whose log is shorter: a gap between the two
    would be one of the new leader's log."""
    create(cluster, 1)
    partition = cluster.topics["orders"].partitions[0]
    (behind,) = (node for node in partition.brokers if node != partition.leader)

    def elect() -> None:
        partition.elect(behind)
        partition.replicate()

    cluster.do(lambda: partition.leave_isr(behind))
    write(cluster)
    before_comparison(monkeypatch, 1, lambda: cluster.do(elect))
    result = backup(cluster, tmp_path, "one", onDataLoss="Record")
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 10, 0), result.message
    write(cluster)
    result = backup(cluster, tmp_path, "two", onDataLoss="Record")
    assert (result.outcome, result.records) == ("Succeeded", 10), result.message
    assert state_of(tmp_path).gaps == {}


def test_plan_of_a_run_whose_beginning_the_catalog_has_lost_is_not_gone_on_with(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    """It leaves out what lost commits had archived."""
    create(cluster, 1)
    assert backup(cluster, tmp_path, "one").outcome == "Succeeded"
    kept = state_of(tmp_path).commit
    write(cluster)
    assert backup(cluster, tmp_path, "two").outcome == "Succeeded"
    write(cluster)
    assert backup(cluster, tmp_path, "three", before=die).outcome == "Failed"
    for path in (tmp_path / "catalog").iterdir():
        if (names.parse_commit(f"catalog/{path.name}") or 0) > kept:
            path.unlink()
    for _ in range(2):
        result = backup(cluster, tmp_path, "three")
        assert (result.outcome, result.error_code) == ("Failed", "ArchiveDamaged"), result
        assert "Run three has a plan from a start that the catalog does not know" in result.message
    result = backup(cluster, tmp_path, "four")
    assert (result.outcome, result.records) == ("Succeeded", 20), result.message


def test_run_that_has_succeeded_before_says_that_it_looks_for_nothing_new(
    cluster: SimulatedCluster, tmp_path: Path
) -> None:
    create(cluster, 1)
    assert backup(cluster, tmp_path, "nightly").warnings == ()
    write(cluster)
    cluster.do(lambda: cluster.create("more", 1))
    result = backup(cluster, tmp_path, "nightly")
    (warning,) = result.warnings
    assert "run nightly had already succeeded" in warning
    assert "another run id" in warning
    assert backup(cluster, tmp_path, "next").warnings == ()


def test_brokers_of_another_cluster_prove_nothing(cluster: SimulatedCluster, tmp_path: Path) -> None:
    """The bootstrap name leads to another cluster while a backup continues, which has a topic of that name."""
    create(cluster, 1)
    own = cluster.topics["orders"]

    def lead_elsewhere() -> None:
        cluster.cluster_id = "elsewhere"
        cluster.create("orders", 1)

    result = backup(cluster, tmp_path, "one", before=lambda work: cluster.do(lead_elsewhere), onDataLoss="Record")
    assert (result.outcome, result.error_code) == ("Failed", "BrokerUnavailable"), result.message
    assert "belongs to Kafka cluster elsewhere" in result.message
    assert state_of(tmp_path).gaps == {}
    cluster.cluster_id, cluster.topics["orders"] = "simulated", own
    result = backup(cluster, tmp_path, "one")
    assert (result.outcome, result.records) == ("Succeeded", 10), result.message
