"""The things that all steps of a restore work with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TypeVar

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.salvage import DamageSurvey
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.errors import BrokerUnavailable, LogkeepError, ObjectMissing, Refused, TopicGone
from logkeep_engine.kafka.connection import KafkaConnection
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.limits import RunLimits
from logkeep_engine.report import Reporter
from logkeep_engine.restore.model.drill_scope import DrillScope
from logkeep_engine.restore.model.plan import RestorePlan, TopicPlan
from logkeep_engine.restore.model.state import RestoreState
from logkeep_engine.restore.streams.clip import Clip
from logkeep_engine.tasks import Demand, Expect, TaskContext, TaskRunner

_GATHERED = (Refused, BrokerUnavailable, TopicGone, ObjectMissing)


class Refusals:
    """Wraps each check that does not need the one before it, in a `with`. If they are not `gathered`, it does nothing:
    the first error is raised."""

    def __init__(self, *, gathered: bool = False) -> None:
        self.gathered = gathered
        self.found: list[LogkeepError] = []

    def add(self, error: LogkeepError) -> None:
        """Note an error once, however many checks find it. Raises it if errors are not gathered."""
        if not self.gathered:
            raise error
        if all(str(error) != str(known) for known in self.found):
            self.found.append(error)

    def __enter__(self) -> Refusals:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not self.gathered or not isinstance(error, _GATHERED):
            return False
        self.add(error)
        return True


T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class RestoreContext:
    """One run: its spec, the archive that it reads, the place of its state, and the cluster that it writes to.

    `control` and `connection` answer for the cluster `cluster_id` only. `runner_factory` is called when the first tasks
    are ready. `drill` is there if this is an attempt of a drill. `refusals` gathers errors in a dry run, which writes
    nothing. `topics_config_map` is the place for the KafkaTopics of a restore that emits them. `permit` raises if
    another run continues this one; `control` asks it before each change. `only_asked`: a command asks about a run that
    another one has begun, and begins none.
    """

    run_id: str
    spec: KafkaRestoreSpec
    archive: Archive
    state: RestoreState
    cluster_id: str
    control: ControlPlane
    connection: KafkaConnection
    runner_factory: Callable[[], TaskRunner]
    reporter: Reporter
    expect: Expect | None = None
    drill: DrillScope | None = None
    refusals: Refusals = field(default_factory=Refusals)
    topics_config_map: str | None = None
    permit: Callable[[], None] = lambda: None
    only_asked: bool = False

    @property
    def dry_run(self) -> bool:
        """Whether nothing may be written: not to Kafka, not to the archive, not to the state."""
        return self.refusals.gathered

    def slots(self, chunks: int, size: int, *, limited: bool) -> int:
        """Return how many tasks will run at once, after Spark was told what they will do: `size` bytes in this many
        `chunks`. What does not write to the cluster is not `limited`."""
        if self.expect is None or not chunks:
            return self.spec.spark.executor.slots
        rate = self.spec.limits.bytes_per_second_int if limited else None
        return self.expect(Demand(chunks, size, rate))

    def run_tasks(
        self, work: Sequence[T], function: Callable[[T, TaskContext], R], on_result: Callable[[int, R], None]
    ) -> None:
        """Run a function over work items on executors, see `tasks.TaskRunner`. Without work, no runner is started."""
        if work:
            self.permit()
            limits = RunLimits(self.spec.limits.bytes_per_second_int)
            self.runner_factory().run(work, function, on_result, self.reporter.update, limits)


@dataclass(frozen=True)
class Planned:
    """The plan of a run, and the archive at the plan's commit. `fresh`: this driver made the plan, and nothing of it is
    done.
    """

    plan: RestorePlan
    archived: ArchiveState
    fresh: bool

    @cached_property
    def surveys(self) -> dict[Partition, DamageSurvey]:
        """The surveys of the partitions that have one."""
        return {(item.topic_id, item.partition): item.survey for item in self.plan.surveys}

    def clip(self, key: Partition) -> Clip | None:
        """Return the part of an archived partition that is restored; None: all of it."""
        return None if self.plan.point is None else self.plan.point.clip(key)

    def used(self) -> Iterator[tuple[str, SegmentEntry]]:
        """Yield all segments that are restored, each with the name of its archived topic."""
        for topic in self.plan.topics:
            for partition in topic.archived_partitions:
                yield from ((topic.source, entry) for entry in self.segments(topic, partition))

    def segments(self, topic: TopicPlan, partition: int) -> Sequence[SegmentEntry]:
        """Return the archived segments that go to a partition of a target topic."""
        return self.archived.segments.get((topic.topic_id, partition), ())
