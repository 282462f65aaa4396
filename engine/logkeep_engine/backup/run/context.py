"""The run that the steps of a backup work on: what it has opened, its plan, and what it has found so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import ClusterStateEntry, Gap, Partition, TopicEntry
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.retaining import RetentionDone
from logkeep_engine.backup.model.plan import BackupPlan, Piece, demand_of, open_pieces
from logkeep_engine.backup.pieces.proof import LossBook
from logkeep_engine.backup.planning.planner import BackupPlanner
from logkeep_engine.backup.run.activating import Activating
from logkeep_engine.contract.facts.archive import ArchiveReport
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.errors import LogkeepError
from logkeep_engine.formats.base import Loss
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.limits import RunLimits
from logkeep_engine.report import Reporter
from logkeep_engine.tasks import Expect, TaskRunner

log = logging.getLogger(__name__)


@dataclass
class BackupContext:
    """A run that has begun in the archive. Steps change what comes after `activating`.

    `notes` are warnings, `messages` parts of the message of a success. `failures` are errors with which the run
    continues, and fails in the end. Nothing of partitions that are `not_archived` is archived: their logs may not be
    those of the plan. `tasks` counts those that were begun in this attempt; `repeated`: one of them has written
    something twice.
    """

    spec: KafkaBackupSpec
    environ: MutableMapping[str, str]
    runner_factory: Callable[[], TaskRunner]
    expect: Expect | None
    reporter: Reporter
    writer: Writer
    connection: KafkaConnection
    control: ControlPlane
    planner: BackupPlanner
    plan: BackupPlan
    losses: LossBook
    notes: list[str]
    topics_before: Mapping[str, TopicEntry]
    activating: Activating = field(default_factory=Activating)
    messages: list[str] = field(default_factory=list)
    failures: list[LogkeepError] = field(default_factory=list)
    forks: tuple[Fork, ...] = ()
    not_archived: set[Partition] = field(default_factory=set)
    format_losses: tuple[Loss, ...] = ()
    disagreements: list[str] = field(default_factory=list)
    repeated: bool = False
    tasks: int = 0
    groups: int = 0
    cluster_state: ClusterStateEntry | None = None
    retained: RetentionDone | None = None
    report: ArchiveReport | None = None
    reconciled: ReconcileFacts | None = None
    tried_all: bool = False

    @property
    def run_id(self) -> str:
        return self.writer.run_id

    @property
    def limits(self) -> RunLimits:
        """The limits of all tasks together."""
        limits = self.spec.limits
        return RunLimits(limits.bytes_per_second_int, limits.readers_per_broker)

    def fail(self, failure: LogkeepError) -> None:
        """Note a failure. The run continues with all the rest, and fails in the end."""
        log.error("%s", failure)
        self.failures.append(failure)

    def note(self, what: str, error: LogkeepError) -> None:
        """Make a warning of an error, since everything is in the archive."""
        log.warning("%s", error)
        self.notes.append(f"{what}: {error.message}")

    def say(self, message: str) -> None:
        """Add to the message of the run, if there is something to say."""
        if message:
            self.messages.append(message)

    def left_out(self, item: Gap | Piece) -> bool:
        """Return whether nothing of the partition is archived."""
        return (item.topic_id, item.partition) in self.not_archived

    def open_pieces(self) -> list[Piece]:
        """Return the pieces of the plan for which the archive does not account yet."""
        wanted = (piece for piece in open_pieces(self.plan, self.writer.state) if not self.left_out(piece))
        return [piece for piece in wanted if self.activating.wants(piece)]

    def slots(self, pieces: Sequence[Piece]) -> int:
        """Return how many tasks will run at once, after Spark was told what they will do."""
        if self.expect is None or not pieces:
            return self.spec.spark.executor.slots
        return self.expect(demand_of(pieces, self.spec.limits.bytes_per_second_int))
