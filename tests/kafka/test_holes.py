"""Holes that a backup of a real broker has left: a later run archives them, or records them as lost."""

from dataclasses import dataclass

import pytest

from logkeep_engine.backup.model.plan import REASON_DELETED, REASON_RECREATED, REASON_RETENTION
from logkeep_engine.backup.planning import plan_builder as making
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.tasks import TaskRunner
from tests import examples
from tests.kafka.backing_up import Backups, Topics, numbers
from tests.runners import Job, Runner


@dataclass
class WithoutChunk(Runner):
    """The task of the chunk that begins at offset `start` never comes to its end, all others do."""

    runner: TaskRunner
    start: int

    def perform(self, job: Job) -> None:
        others = [
            task._replace(pieces=tuple(piece for piece in task.pieces if piece.start != self.start))
            for task in job.work
        ]
        replace(job, work=[task for task in others if task.pieces]).on(self.runner)
        raise BrokerUnavailable("The broker of one chunk is gone.", hint="This may be temporary.")


@pytest.mark.deep
@pytest.mark.parametrize(("hole", "format_name"), examples.covered([0, 1000, 2000], ["Kafka", "Records"]))
def test_chunk_that_failed_is_archived_by_the_next_run(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch, hole: int, format_name: str
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 100 << 10)
    topics.create(unique)
    topics.produce(unique, numbers(3000))
    backups.wrap = lambda runner: WithoutChunk(runner, hole)
    assert backups.run(unique, format=format_name).outcome == "Failed"
    assert backups.state().runs.popitem()[1].records == 2000
    lines = [fault for fault in backups.faults() if "neither archived nor recorded as lost" in fault]
    assert len(lines) == (hole != 2000), "what is missing at the end is not known to be missing"
    backups.wrap = lambda runner: runner
    result = backups.run(unique, format=format_name)
    assert (result.outcome, result.records, result.loss_total) == ("Succeeded", 1000, 0), result.message
    ((topic_id, _),) = backups.state().coverage
    assert backups.state().coverage == {(topic_id, 0): [(0, 3000)]}
    assert format_name != "Kafka" or backups.log(unique) == topics.log(unique)
    assert backups.faults() == []


@pytest.mark.parametrize(
    ("batch", "hole", "log_start"),
    [
        (100, 0, 500),
        (100, 1000, 2500),
        (100, 1000, 3000),
        (300, 0, 1100),
        (300, 0, 1500),
        (300, 1000, 0),
        (300, 1000, 2050),
        (300, 1000, 2400),
    ],
)
def test_hole_that_retention_has_reached_is_recorded_as_lost(
    backups: Backups,
    topics: Topics,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    batch: int,
    hole: int,
    log_start: int,
) -> None:
    monkeypatch.setattr(making, "CHUNK_BYTES", 100 << 10)
    topics.create(unique)
    topics.produce(unique, numbers(3000), batch=batch)
    backups.wrap = lambda runner: WithoutChunk(runner, hole)
    assert backups.run(unique).outcome == "Failed"
    # A batch across a bound, [900, 1200) or [1800, 2100), is all of the chunk in which it begins.
    start, end = (-(-bound // batch) * batch for bound in (hole, hole + 1000))
    (reported,) = backups.faults()
    assert f"offsets [{start}, {end}) are neither archived nor recorded as lost" in reported
    backups.wrap = lambda runner: runner
    topics.delete_records(unique, log_start)
    result = backups.run(unique, onDataLoss="Record")
    assert result.outcome == "Succeeded", result.message
    lost = range(start, min(log_start, end))
    assert [(fact.start, fact.end) for fact in result.loss] == ([(lost.start, lost.stop)] if lost else [])
    assert [record.offset for record in backups.records(unique)] == [at for at in range(3000) if at not in lost]
    assert lost or backups.log(unique) == topics.log(unique)
    assert backups.faults() == []
    again = backups.run(unique)
    assert (again.outcome, again.records, again.loss_total) == ("Succeeded", 0, 0)


@pytest.mark.parametrize("again", [False, True])
def test_hole_of_a_topic_that_was_deleted_is_recorded_as_lost(
    backups: Backups, topics: Topics, unique: str, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Another incarnation may have a hole at the same offsets."""
    monkeypatch.setattr(making, "CHUNK_BYTES", 100 << 10)
    chosen, other = f"{unique}.*", f"{unique}-other"
    topics.create(other)
    topics.create(unique)
    topics.produce(unique, numbers(3000))
    backups.wrap = lambda runner: WithoutChunk(runner, 1000)
    assert backups.run(chosen).outcome == "Failed"
    topics.delete(unique)
    lost = [(1000, 2000, REASON_DELETED)]
    if again:
        topics.create(unique)
        topics.produce(unique, numbers(3000))
        assert backups.run(chosen).outcome == "Failed"
        topics.delete_records(unique, 1500)
        lost = [(1000, 1500, REASON_RETENTION), (1000, 2000, REASON_RECREATED)]
    backups.wrap = lambda runner: runner
    planned = backups.run(chosen, onDataLoss="Fail", dryRun=True).dry_run
    assert planned is not None
    assert [refusal.reason for refusal in planned.refusals] == ["DataLoss"]
    for _ in range(2):  # each run finds it until one records it
        result = backups.run(chosen, onDataLoss="Fail")
        assert (result.exit_code, result.error_code) == (int(ExitCode.DATA_LOSS), "DataLoss"), result.message
        assert sorted((fact.start, fact.end, fact.reason) for fact in result.loss) == lost
        assert f"topic {unique!r} partition 0 offsets [1000, " in result.message
        assert result.archive is not None
        behind = {topic.topic: topic.offsets for topic in result.archive.recovery.behind}
        assert behind == ({unique: 500} if again else {}), "nothing of a topic that was deleted is waited for"
    text = "\n".join(backups.faults())
    assert all(f"offsets [{start}, {end}) are neither archived nor recorded" in text for start, end, _ in lost), text
    result = backups.run(chosen, onDataLoss="Record")
    assert (result.outcome, result.loss_offsets) == ("Succeeded", sum(end - start for start, end, _ in lost))
    assert backups.faults() == []
    result = backups.run(chosen, onDataLoss="Fail")
    assert (result.outcome, result.loss_total) == ("Succeeded", 0), result.message
