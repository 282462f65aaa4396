"""The dry run of a backup: it asks the cluster what there is to archive, as every backup does, and writes nothing.

Not even the archive is made if there is none. No record is read, so what only reading finds out is not in the report:
records that a format cannot hold, and damage in logs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import claim_of
from logkeep_engine.archive.catalog.documents import ArchiveInfo
from logkeep_engine.archive.catalog.facts import RunOutcome
from logkeep_engine.archive.catalog.owner import check_owner
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance import rates
from logkeep_engine.archive.maintenance.cost.requests import puts
from logkeep_engine.archive.maintenance.rates import MeasuredRun, expected_time
from logkeep_engine.archive.maintenance.retaining import empty_holds, with_spec_holds
from logkeep_engine.archive.maintenance.retention_report import planned_retention
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.backup.model.selection import retention_rules
from logkeep_engine.backup.planning.divergence import diverged
from logkeep_engine.backup.planning.planner import BackupPlanner, unavailable
from logkeep_engine.backup.recoverability.coverage import gone_warnings, selection_warnings, unmatched_error
from logkeep_engine.backup.run.summary import class_warnings, data_loss, log_warnings
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.facts.dry_run import DRY_RUN, EXISTS, DryRunReport, PlannedGroup, PlannedTopic, counts_of
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP
from logkeep_engine.contract.run import MAX_LIST, RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaBackupSpec, OnDataLoss
from logkeep_engine.errors import LogkeepError, Refused
from logkeep_engine.frame import DriverRun
from logkeep_engine.kafka.connection import connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.fetch import DEFAULT_MAX_BYTES
from logkeep_engine.report import Reporter, bounded_warnings, dry_run_ended
from logkeep_engine.storage import open_storage

_INDEXES_A_CHUNK = 2
_COMMITS = 4


class BackupDryRun(DriverRun):
    """The dry run of one backup. Its result has a report instead of what was archived."""

    def __init__(
        self, request: RunRequest, spec: KafkaBackupSpec, reporter: Reporter, environ: Mapping[str, str]
    ) -> None:
        super().__init__(request.run_id, request.kind, time.time(), request.requested_by)
        self._request = request
        self._spec = spec
        self._reporter = reporter
        self._environ = environ
        self._done: RunResult | None = None
        self._refusals: list[LogkeepError] = []

    def perform_or_raise(self) -> RunResult:
        return replace(super().perform_or_raise(), outcome=DRY_RUN)

    def execute(self) -> None:
        begun, report = super().result(), DryRunReport()
        self._reporter.phase("Planning")
        try:
            begun, report = self._find_out(begun)
        except Refused as error:
            self._refusals.append(error)
        self._done = dry_run_ended(begun, report, self._refusals, "archive")

    def _find_out(self, begun: RunResult) -> tuple[RunResult, DryRunReport]:
        spec, claim = self._spec, claim_of(self._request)
        storage = open_storage(spec.place, self._environ)
        storage.check()
        connection = connection_from(spec.cluster, self._environ)
        with ControlPlane(connection) as control:
            cluster_id = control.cluster_id()
            begun = replace(begun, cluster_id=cluster_id)
            connection = replace(connection, cluster_id=cluster_id)
            control.only(cluster_id)
            archive, state = Archive.open_to_go_on(storage, cluster_id, spec.format, claim), ArchiveState()
            if archive is not None:
                begun, state = replace(begun, archive_id=archive.info.archive_id), archive.load()
                check_owner(archive, state)
            known = archive or Archive(storage, ArchiveInfo("", cluster_id, "", "", segments=spec.format))
            planner = BackupPlanner(self._run_id, spec, known, control, connection)
            plan = planner.make(state)
        self._refuse(plan, state)
        warnings = [
            *planner.notes,
            *selection_warnings(plan, spec.topics, state.topics),
            *gone_warnings(plan),
            *log_warnings(plan),
            *class_warnings(spec),
        ]
        others = [run.run_id for run in state.running if run.run_id != self._run_id]
        if others:
            warnings.append(f"run {others[0]} is writing this archive, or has died: a run waits until it knows which")
        report = self._amounts(plan, state, storage.uri, makes_archive=archive is None)
        rules = retention_rules(spec)
        warnings += rules.describe_unchosen(state)
        state.retention_holds = tuple(with_spec_holds(state.retention_holds, spec.retention.hold))
        warnings += empty_holds(state, plan.topic_names.values())
        report = replace(report, retention=planned_retention(state, rules, spec.retention.hold))
        return replace(begun, warnings=bounded_warnings(warnings)), report

    def _refuse(self, plan: BackupPlan, state: ArchiveState) -> None:
        """Note what would make the run fail, at its beginning or when all else is archived."""
        names = plan.names_with(state)
        if plan.unavailable:
            self._refusals.append(unavailable(plan.unavailable, MAX_LIST))
        forks = [fork for fork in plan.forks if not fork.branch_id]
        if forks:
            self._refusals.append(diverged(forks, names, self._spec.format))
        if plan.gaps and self._spec.on_data_loss is OnDataLoss.FAIL:
            lost = [
                LossFact(
                    topic=names[gap.topic_id], partition=gap.partition, start=gap.start, end=gap.end, reason=gap.reason
                )
                for gap in plan.gaps
            ]
            self._refusals.append(data_loss(lost))
        missed = unmatched_error(plan, self._spec)
        if missed is not None:
            self._refusals.append(missed)

    def _amounts(self, plan: BackupPlan, state: ArchiveState, uri: str, *, makes_archive: bool) -> DryRunReport:
        records, sizes = Counter[str](), Counter[str]()
        for chunk in plan.chunks:
            records[chunk.topic_id] += chunk.end - chunk.start
            sizes[chunk.topic_id] += chunk.bytes
        topics = tuple(
            PlannedTopic(
                topic=topic.name,
                state=EXISTS,
                partitions=topic.partitions,
                records=records[topic.topic_id],
                bytes=sizes[topic.topic_id],
                counts=counts_of(exact=not records[topic.topic_id]),
            )
            for topic in plan.topics
        )
        size, positions = sizes.total(), Counter(group.group_id for group in plan.groups)
        expected = expected_time(size, _measured(state), self._spec.limits.bytes_per_second_int, uri)
        return DryRunReport(
            topics=len(topics),
            partitions=sum(topic.partitions for topic in topics),
            records=records.total(),
            bytes=size,
            counts=counts_of(exact=not plan.chunks),
            requests=sum(chunk.bytes // DEFAULT_MAX_BYTES + 1 for chunk in plan.chunks),
            storage_requests=sum(puts(chunk.bytes) + _INDEXES_A_CHUNK for chunk in plan.chunks) + _COMMITS,
            seconds=expected.seconds,
            bytes_per_second=expected.rate,
            rate=expected.source,
            groups=len(positions),
            positions=positions.total(),
            topic_list=topics,
            group_list=tuple(PlannedGroup(group=group, positions=count) for group, count in sorted(positions.items())),
            not_checked=tuple(self._not_checked(uri, makes_archive=makes_archive)),
        )

    def _not_checked(self, uri: str, *, makes_archive: bool) -> Iterator[str]:
        yield f"whether {uri} can be written to, and honours conditional creates"
        if makes_archive:
            yield "there is no archive yet: the run creates it"
        if retention_rules(self._spec).is_set:
            yield "what else retention would remove, because of what the run archives and because it ends"
        if self._spec.format is not FormatName.KAFKA:
            yield f"whether format {self._spec.format} can hold all records: that is found by reading them"
        yield "bytes are what the logs take on the brokers' disks, and records are offsets, markers among them"

    def result(self) -> RunResult:
        """Return the report; else the result of a failed run."""
        return self._done or super().result()

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Nothing was begun, so there is nothing to note."""


def _measured(state: ArchiveState) -> MeasuredRun | None:
    """Return the newest backup of the archive that shows how long another takes."""
    for run in reversed(state.runs.values()):
        ended = run.end_time
        if run.kind == BACKUP and run.outcome is RunOutcome.SUCCEEDED and run.attempts == 1 and ended is not None:
            seconds = (ended - run.begin_time) / 1000
            if run.bytes >= rates.LEAST_BYTES and seconds > 0:
                return MeasuredRun(run.run_id, "into this archive", run.bytes, seconds, ended)
    return None
