"""Three brokers and unclean elections: a log that was cut off and has grown again is another one than was archived.

What is archived is a (3,000 records) and b, of the leader that was killed. Its follower, which has only a, is elected,
and c is written to it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.verify import verify
from logkeep_engine.backup.run.backup_run import run_backup
from logkeep_engine.compare.account import compare
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import parse_backup
from logkeep_engine.contract.storage import StorageSpec
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.report import Reporter
from logkeep_engine.storage import open_storage
from tests.cluster.kafka_cluster import KafkaCluster
from tests.kafka.backing_up import WATCH, Topics
from tests.kafka.restores import ThreadRunner, backup_spec, bring_back, committed, restore_spec
from tests.runners import Job

COMMON = 3000


@pytest.fixture(autouse=True)
def cluster(three_brokers: KafkaCluster) -> KafkaCluster:
    three_brokers.restore()
    return three_brokers


class History:
    """A topic of one partition on brokers 1, which leads at first, and 2."""

    def __init__(self, cluster: KafkaCluster, name: str, root: Path) -> None:
        self.cluster = cluster
        self.name = name
        self.root = root
        self._runs = 0
        cluster.create_topic(name, [[1, 2]], {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"})

    def write(self, letter: str, count: int, first: int = 0) -> None:
        values = [f"{letter}{number}".encode() for number in range(first, first + count)]
        Topics(self.cluster).produce(self.name, values, batch=500)

    def write_without_follower(self, letter: str, count: int) -> None:
        """The records that only broker 1 has."""
        lose_the_follower([self])
        self.write(letter, count)

    def cut_off(self) -> None:
        """Broker 1 dies, broker 2 comes back with what it has and leads; then broker 1 follows it."""
        cut_off([self])

    def back_up(self, run_id: str = "", runner: ThreadRunner | None = None, **more: Any) -> RunResult:
        self._runs += 1
        spec = backup_spec(self.cluster, self.root, self.name, **more)
        request = RunRequest(
            kind="KafkaBackup", name="test", namespace="", run_id=run_id or f"backup-{self._runs}", spec=spec
        )
        reporter = Reporter(request.run_id)
        return run_backup(
            request, parse_backup(spec), lambda: runner or ThreadRunner(), reporter, os.environ, timing=WATCH
        )

    def restored(self, branch: str = "") -> list[str]:
        """The values of the topic that a restore makes of the archive, or of this branch."""
        self._runs += 1
        suffix = f"-copy-{self._runs}"
        spec = restore_spec(self.cluster, self.root, suffix=suffix)
        if branch:
            spec["source"]["topicIds"] = {self.name: branch}
        result = bring_back(spec, run_id=f"restore{suffix}")
        assert result.outcome == "Succeeded", result
        return [(value or b"").decode() for _, _, value, _, _ in committed(self.cluster, self.name + suffix)]

    @property
    def archive(self) -> Archive:
        return Archive.open(open_storage(StorageSpec(uri=self.root.as_uri()), {}))

    def faults(self) -> list[str]:
        return [str(fault) for fault in verify(self.archive).faults]


def lose_the_follower(histories: Sequence[History]) -> None:
    """Broker 2 dies: from now on only broker 1 has what is written."""
    histories[0].cluster.kill(2)
    for history in histories:
        history.cluster.wait_in_sync(history.name, replicas=[1])


def cut_off(histories: Sequence[History]) -> None:
    """Broker 1 dies, broker 2 comes back with what it has and leads; then broker 1 follows it."""
    cluster = histories[0].cluster
    cluster.kill(1)
    cluster.start(2)
    for history in histories:
        cluster.wait_for_leader(history.name, among=[2])


@dataclass(frozen=True)
class Lengths:
    """How many records of b and c are written."""

    b: int
    c: int


CUT = {
    "grown": Lengths(2000, 4000),
    "shorter": Lengths(4000, 2000),
    "branched": Lengths(2000, 4000),
    "killed-before": Lengths(1000, 500),
    "killed-after": Lengths(1000, 500),
    "records": Lengths(1000, 3000),
}


@pytest.fixture(scope="module")
def cut(three_brokers: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, History]:
    """Histories with one death of broker 1 for all of them: archived before it, and written to after it."""
    three_brokers.restore()
    made = {name: History(three_brokers, name, tmp_path_factory.mktemp(name)) for name in CUT}
    every = list(made.values())
    for history in every:
        history.write("a", COMMON)
    lose_the_follower(every)
    for name, history in made.items():
        history.write("b", CUT[name].b)
        found = history.back_up(format="Records" if name == "records" else "Kafka")
        assert found.records == COMMON + CUT[name].b
    cut_off(every)
    for name, history in made.items():
        history.write("c", CUT[name].c)
    return made


def values(letter: str, count: int) -> list[str]:
    return [f"{letter}{number}" for number in range(count)]


def assert_refused(result: RunResult, name: str, fork: int, end: int) -> None:
    assert (result.exit_code, result.error_code) == (ExitCode.DATA_LOSS, "LogDiverged"), result
    for word in (repr(name), "partition 0", f"offset {fork}", f"offset {end}", "onDivergence: Branch"):
        assert word in result.message


def test_log_that_was_cut_off_and_has_grown_past_the_archive_is_refused(
    cluster: KafkaCluster, cut: Mapping[str, History]
) -> None:
    history = cut["grown"]
    (live,) = compare(
        history.archive, connection_from(ClusterSpec(bootstrap_servers=tuple(cluster.addresses)), {})
    ).partitions
    assert (live.live, live.missing) == (COMMON, [])
    assert f"from offset {COMMON} on the live log is no longer the archived one" in live.failed
    assert_refused(history.back_up(), "grown", COMMON, 5000)
    assert history.restored() == values("a", COMMON) + values("b", 2000)
    assert_refused(history.back_up(), "grown", COMMON, 5000)


def test_log_that_has_not_grown_past_the_archive_again_is_refused(cut: Mapping[str, History]) -> None:
    history = cut["shorter"]
    assert_refused(history.back_up(onDataLoss="Record"), "shorter", COMMON, 7000)
    history.write("c", 3000, first=2000)
    assert_refused(history.back_up(onDataLoss="Record"), "shorter", COMMON, 7000)
    assert history.restored() == values("a", COMMON) + values("b", 4000)


def branch(history: History) -> str:
    state = history.archive.load()
    (topic,) = state.topics.values()
    return state.branch_ids(topic.topic_id)[-1]


def test_old_end_is_kept_beside_and_both_logs_are_restored(cut: Mapping[str, History]) -> None:
    history = cut["branched"]
    result = history.back_up(onDivergence="Branch")
    assert (result.outcome, result.records, result.loss) == ("Succeeded", 4000, ())
    (warning,) = result.warnings
    for word in ("'branched' partition 0", f"offset {COMMON}", "offset 5000", branch(history)):
        assert word in warning
    assert history.faults() == []
    newest = values("a", COMMON) + values("c", 4000)
    oldest = values("a", COMMON) + values("b", 2000)
    assert history.restored() == newest
    assert history.restored(branch(history)) == oldest
    # The next runs add to the newest log, whatever they are told to do.
    history.write("c", 500, first=4000)
    assert history.back_up().records == 500
    assert history.restored() == newest + [f"c{number}" for number in range(4000, 4500)]
    assert history.restored(branch(history)) == oldest


class Killed(BaseException):
    """An exception that no code of ours catches, as a kill is not."""


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after the commit"])
def test_run_that_is_killed_at_the_branch_continues(cut: Mapping[str, History], after: bool) -> None:
    history = cut["killed-after" if after else "killed-before"]
    branch_off = Writer.branch

    def killed(writer: Writer, *facts: Any) -> int:
        if after:
            branch_off(writer, *facts)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "branch", killed)
        with pytest.raises(Killed):
            history.back_up("killed", onDivergence="Branch")
    # A restore sees what the last run that succeeded has left.
    assert history.restored() == values("a", COMMON) + values("b", 1000)
    result = history.back_up("killed", onDivergence="Branch")
    assert (result.outcome, result.records, len(result.warnings)) == ("Succeeded", 500, 1)
    assert history.faults() == []
    assert history.restored() == values("a", COMMON) + values("c", 500)
    assert history.restored(branch(history)) == values("a", COMMON) + values("b", 1000)


def test_records_archive_refuses_and_stays_as_it_is(cut: Mapping[str, History]) -> None:
    """Only its catalog says the leader epochs."""
    history = cut["records"]
    result = history.back_up(format="Records")
    assert (result.error_code, result.records) == ("LogDiverged", 0)
    assert f"'records' partition 0 from offset {COMMON} on" in result.message
    assert "An archive of format Kafka can hold both" in result.message
    assert history.restored() == values("a", COMMON) + values("b", 1000)


def test_log_that_is_cut_off_while_it_is_archived_is_not_mixed(cluster: KafkaCluster, tmp_path: Path) -> None:
    """The plan knows the leader; what a later one wrote at planned offsets settles nothing, at this attempt and at the
    next, and a new run archives the log as it is now."""
    history = History(cluster, "meanwhile", tmp_path)
    history.write("a", COMMON)
    assert history.back_up().records == COMMON
    history.write("b", 500)
    history.write_without_follower("b", 1500)

    class CutOff(ThreadRunner):
        def perform(self, job: Job) -> None:
            history.cut_off()
            history.write("c", 4000)
            super().perform(job)

    result = history.back_up("meanwhile", CutOff())
    assert (result.error_code, result.records) == ("LogDiverged", 0), result
    assert "was cut off while it was archived" in result.message
    assert history.back_up("meanwhile").error_code == "LogDiverged"
    assert history.back_up().records == 4500
    assert history.restored() == values("a", COMMON) + values("b", 500) + values("c", 4000)
