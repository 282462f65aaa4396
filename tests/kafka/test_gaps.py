"""The losses that a backup records, on three brokers that die, hang, come back and are elected against all caution.

Each test is a history in which records seemed to be gone. Waiting is the subject, so the limits are short.
"""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.facts import Gap, Receipt
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import REASON_DELETED, REASON_RETENTION, REASON_TRUNCATED, Piece
from logkeep_engine.backup.pieces import task as tasks
from logkeep_engine.backup.pieces.batches import ChunkWriter
from logkeep_engine.backup.pieces.task import PieceDone
from logkeep_engine.backup.run import backup_run as running
from logkeep_engine.contract.cluster import ClusterSpec
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.kafka.brokers import BrokerPool
from logkeep_engine.kafka.connection import KafkaConnection, Limits, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.storage import open_uri
from logkeep_engine.tasks import TaskRunner
from tests import examples
from tests.cluster.kafka_cluster import KafkaCluster
from tests.kafka.backing_up import Topics, numbers
from tests.kafka.restores import ThreadRunner, backup_spec, try_backup
from tests.runners import Job, Runner

LIMITS = Limits(unknown=1, truncated=1, control=6, outage=6)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(spec: ClusterSpec, environ: Any) -> KafkaConnection:
        return replace(connection_from(spec, environ), limits=LIMITS)

    monkeypatch.setattr(running, "connection_from", connect)


@dataclass
class Backup:
    """Runs of one archive over one topic."""

    cluster: KafkaCluster
    root: Path
    topic: str

    def run(
        self, run_id: str, *, before: Callable[[Any], None] | None = None, runner: TaskRunner | None = None, **more: Any
    ) -> RunResult:
        spec = backup_spec(self.cluster, self.root, self.topic, **more)
        return try_backup(spec, run_id, runner or ThreadRunner(before=before))

    @property
    def state(self) -> ArchiveState:
        return Archive.open(open_uri(self.root.as_uri())).load()

    def settled(self) -> list[tuple[int, int]]:
        state = self.state
        ((topic_id, _),) = [(key, item) for key, item in state.topics.items() if item.name == self.topic]
        return [(start, end) for start, end in state.accounted_for(topic_id, 0)]

    def gaps(self) -> list[tuple[int, int, str]]:
        state = self.state
        return [
            (gap.start, gap.end, gap.reason)
            for topic_id in state.topics
            for gap in state.gaps_in(topic_id, 0, 0, 1 << 40)
        ]


@pytest.fixture
def backup(cluster: KafkaCluster, tmp_path: Path, unique: str) -> Backup:
    return Backup(cluster, tmp_path / "archive", unique)


def once(act: Callable[[], None]) -> Callable[[Any], None]:
    """Done before the first task, and not again."""
    left = [act]

    def before(_: Any) -> None:
        while left:
            left.pop()()

    return before


def test_records_after_a_forgotten_high_watermark_are_no_gap(backup: Backup, cluster: KafkaCluster) -> None:
    """One of a partition's brokers came back first: it has every record, and gives none above the high watermark that
    it remembers until others are in sync."""
    cluster.create_topic(backup.topic, [[1, 2]], {"min.insync.replicas": "2"})
    Topics(cluster).produce(backup.topic, numbers(750))
    strand = once(lambda: cluster.strand(backup.topic, 1))
    result = backup.run("early", before=strand, onDataLoss="Record")
    assert (result.exit_code, result.error_code) == (int(ExitCode.FAILED), "BrokerUnavailable")
    assert "bring their brokers back" in result.message
    assert (backup.gaps(), backup.settled()) == ([], [])
    cluster.restore()
    result = backup.run("early", onDataLoss="Record")
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 750, 0), result.message


def test_offsets_that_an_unclean_election_has_cut_off_are_a_gap(backup: Backup, cluster: KafkaCluster) -> None:
    cluster.create_topic(backup.topic, [[1, 2]])
    topics = Topics(cluster)
    topics.produce(backup.topic, numbers(100))
    cluster.broker(2).kill()
    cluster.wait_in_sync(backup.topic, replicas=[1])
    topics.produce(backup.topic, numbers(60))

    def elect() -> None:
        cluster.broker(1).kill()
        cluster.broker(2).start()
        cluster.elect_unclean(backup.topic, 2)

    result = backup.run("only", before=once(elect), onDataLoss="Record")
    assert (result.outcome, result.records) == ("Succeeded", 100), result.message
    assert [(fact.start, fact.end, fact.reason) for fact in result.loss] == [(100, 160, REASON_TRUNCATED)]
    assert backup.gaps() == [(100, 160, REASON_TRUNCATED)]


@dataclass
class Mistaken(Runner):
    """Tasks whose broker knows an old state of the cluster, as one that hung and has not caught up yet: they take all
    for lost."""

    reason: str

    def perform(self, job: Job) -> None:
        for index, work in enumerate(job.work):
            job.on_result(index, tuple(self._lost(piece) for piece in work.pieces))

    def _lost(self, piece: Piece) -> PieceDone:
        gap = Gap(piece.topic_id, piece.partition, piece.start, piece.end, self.reason)
        return PieceDone(piece.number, Receipt(gaps=(gap,)))


@pytest.mark.parametrize("reason", [REASON_DELETED, REASON_RETENTION, REASON_TRUNCATED])
def test_what_one_broker_says_is_not_recorded_if_the_others_know_better(
    backup: Backup, cluster: KafkaCluster, reason: str
) -> None:
    cluster.create_topic(backup.topic, [[1, 2, 3]])
    Topics(cluster).produce(backup.topic, numbers(50))
    result = backup.run("one", runner=Mistaken(reason), onDataLoss="Record")
    assert (result.exit_code, result.error_code) == (int(ExitCode.FAILED), "LossNotProved")
    assert f"'{backup.topic}' partition 0: offsets [0, 50) could not be read" in result.message
    assert "they are there: the leader's log is [0, 50)" in result.message
    assert (backup.gaps(), backup.settled(), result.loss_total) == ([], [], 0)
    assert backup.run("one").records == 50


def test_nothing_is_proved_while_a_broker_that_may_know_better_is_silent(
    backup: Backup, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(backup.topic, [[1]])
    Topics(cluster).produce(backup.topic, numbers(50))
    # It hangs when all know that it lives and it is asked: once its session has ended, which is soon, it is dead.
    meanwhile(monkeypatch, "findings", lambda: hang_when_asked(monkeypatch, cluster, 3))
    result = backup.run("one", before=once(lambda: Topics(cluster).delete(backup.topic)), onDataLoss="Record")
    assert (result.exit_code, result.error_code) == (int(ExitCode.FAILED), "LossNotProved")
    assert "broker 3" in result.message
    assert backup.gaps() == []
    cluster.restore()
    result = backup.run("one", onDataLoss="Record")
    assert (result.outcome, result.loss_offsets) == ("Succeeded", 50), result.message
    assert backup.gaps() == [(0, 50, REASON_DELETED)]


@pytest.mark.parametrize("policy", ["Fail", "Record"])
def test_topic_that_is_deleted_while_it_is_read(
    backup: Backup, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(tasks, "FETCH_BYTES", 64 << 10)
    cluster.create_topic(backup.topic, [[1, 2, 3]])
    Topics(cluster).produce(backup.topic, numbers(2000, 1000), batch=10)
    absorb = ChunkWriter.absorb
    delete = once(lambda: Topics(cluster).delete(backup.topic))

    def absorb_and_delete(self: ChunkWriter, data: memoryview, aborted: Sequence[tuple[int, int]]) -> None:
        absorb(self, data, aborted)
        delete(None)

    monkeypatch.setattr(ChunkWriter, "absorb", absorb_and_delete)
    result = backup.run("one", onDataLoss=policy)
    assert 0 < result.records < 2000
    (fact,) = result.loss
    assert (fact.start, fact.end, fact.reason) == (result.records, 2000, REASON_DELETED)
    if policy == "Record":
        assert (result.outcome, backup.gaps()) == ("Succeeded", [(result.records, 2000, REASON_DELETED)])
    else:
        assert (result.exit_code, backup.gaps()) == (int(ExitCode.DATA_LOSS), [])
        assert backup.settled() == [(0, result.records)]


def meanwhile(monkeypatch: pytest.MonkeyPatch, method: str, act: Callable[[], None]) -> None:
    """Lets something happen in the cluster before a run asks this for the first time."""
    ask = getattr(ControlPlane, method)
    before = once(act)

    def ask_later(self: ControlPlane, *arguments: Any, **more: Any) -> Any:
        before(None)
        return ask(self, *arguments, **more)

    monkeypatch.setattr(ControlPlane, method, ask_later)


def hang_when_asked(monkeypatch: pytest.MonkeyPatch, cluster: KafkaCluster, broker: int) -> None:
    """Lets a broker hang when it is asked for named topics for the next time. (Any broker may be asked which brokers
    live, and when one that hangs has kept that question waiting, its session has ended.)"""
    view = vars(BrokerPool)["_view"]
    pause = once(cluster.broker(broker).pause)

    async def asked(self: BrokerPool, node: int, names: Sequence[str]) -> Any:
        if node == broker and names:
            pause(None)
        return await view(self, node, names)

    monkeypatch.setattr(BrokerPool, "_view", asked)


@pytest.mark.deep
@pytest.mark.parametrize("early", [False, True][: examples.number(1, deep=2)])
def test_same_run_finishes_when_the_partitions_are_back_that_gave_no_answer(
    backup: Backup, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    """Their broker was dead before the run was planned, or died while it was."""
    # Until its session has ended brokers name it as living, and questions that need all of them fail.
    monkeypatch.setattr(sys.modules[__name__], "LIMITS", replace(LIMITS, control=20))
    cluster.create_topic(backup.topic, [[1], [2]])
    topics = Topics(cluster)
    for partition in (0, 1):
        topics.produce(backup.topic, numbers(100), partition=partition)
    if early:
        cluster.broker(2).kill()
        cluster.wait_until_registered(1, 3)
    else:
        meanwhile(monkeypatch, "bounds", lambda: cluster.broker(2).kill())
    result = backup.run("late")
    expected = (int(ExitCode.FAILED), "BrokerUnavailable", 100)
    assert (result.exit_code, result.error_code, result.records) == expected, result.message
    text = f"1 partition had no leader or did not answer, and was not archived: '{backup.topic}' partition 1"
    assert text in result.message
    cluster.restore()
    topics.produce(backup.topic, numbers(11))
    result = backup.run("late")
    assert (result.outcome, result.records, result.partitions) == ("Succeeded", 200, 2), result.message
    assert sorted(path.name for path in (backup.root / "runs" / "late").glob("plan*")) == ["plan-2.json", "plan.json"]
    assert backup.run("next").records == 11


def test_estimates_of_sizes_neither_fail_a_run_nor_hold_it_up(
    backup: Backup, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create_topic(backup.topic, [[1, 2, 3]])
    Topics(cluster).produce(backup.topic, numbers(100))
    meanwhile(monkeypatch, "partition_bytes", lambda: cluster.broker(1).kill())
    begin = time.monotonic()
    result = backup.run("one")
    assert (result.outcome, result.records) == ("Succeeded", 100), result.message
    assert time.monotonic() - begin < 90


@pytest.mark.parametrize("again", [True, False])
def test_topic_that_goes_while_a_run_is_planned_is_reported(
    backup: Backup, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    cluster.create_topic(backup.topic, [[1, 2, 3]])
    topics = Topics(cluster)
    topics.produce(backup.topic, numbers(100))

    def recreate() -> None:
        topics.delete(backup.topic)
        if again:
            cluster.create_topic(backup.topic, [[2, 1, 3]])
            topics.produce(backup.topic, numbers(7))

    meanwhile(monkeypatch, "listed_groups", recreate)
    result = backup.run("one")
    if again:
        assert (result.outcome, result.topics, result.records) == ("Succeeded", 1, 7), result.message
        (warning,) = result.warnings
        assert "was deleted while the run was planned, or before; another topic has its name" in warning
    else:
        assert (result.exit_code, result.error_code) == (int(ExitCode.REFUSED), "NoTopicMatches")
