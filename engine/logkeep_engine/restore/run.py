"""One restore from beginning to end, in the driver.

    result = run_restore(request, spec, session.runner, reporter, os.environ)

Plan → check the archive → store the plan → create topics → the partitions, in tasks → count → positions of consumer
groups → the source's configuration → result. Below `runs/<run id>/` lie, in this order, what a driver that starts again
needs to go on:

    restore-plan.json     sources, targets, producer ids, start offsets, what is left out; made once
    offset-maps/...       a partition is done when its map is there
    counted.json          the target has what was sent; from here on the topics get their own configuration
    consumer-groups.json  what became of the positions of consumer groups
    result.json           the end: a run that has succeeded is not done again

Nothing else in the archive is written. A crash at any point leaves topics with the working configuration, which deletes
nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

from logkeep_engine.archive import names
from logkeep_engine.archive.beginnings import NOT_SETTLED, holes, missing_beginnings
from logkeep_engine.archive.catalog import Archive
from logkeep_engine.archive.entry import Layout
from logkeep_engine.archive.model import ArchiveState, Partition, SegmentEntry, TopicEntry
from logkeep_engine.archive.segments import Fault, read_transactions
from logkeep_engine.archive.transactions import Outcomes, SegmentTransactions, fold
from logkeep_engine.archive.verify import check_segment
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import MAX_LIST, LossFact, RunRequest, RunResult
from logkeep_engine.contract.spec import GroupRestore, IfTopicExists, KafkaRestoreSpec, OnDamagedArchive, RecordBatches
from logkeep_engine.errors import (
    ArchiveDamaged,
    BrokerUnavailable,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    Refused,
    SpecError,
    TargetUnsuitable,
    TopicExists,
    TopicGone,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Connection, connection_from
from logkeep_engine.kafka.control import ControlPlane, NewTopicPlan
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.limits import RunLimits
from logkeep_engine.report import Part, Reporter, failed
from logkeep_engine.restore import count, groups, snapshot
from logkeep_engine.restore.keys import first_without_key
from logkeep_engine.restore.offset_map import (
    HEADER_MAX_BYTES,
    OffsetMap,
    PartitionSummary,
    read_offset_map,
    read_summary,
)
from logkeep_engine.restore.plan import (
    NEEDS_PRODUCER_ID,
    NO_TASK,
    ExistingTopic,
    PartitionPlan,
    PartitionSurvey,
    RestorePlan,
    TopicPlan,
    batching_of,
    check_append,
    final_configs,
    pack,
    plan_topic,
    refuse_existing,
    replicas_of,
    retention_warnings,
    topic_facts,
    working_configs,
)
from logkeep_engine.restore.records import Batching
from logkeep_engine.restore.salvage import (
    Lost,
    Survey,
    SurveyTask,
    survey_partition,
    survey_records,
    with_transactions,
)
from logkeep_engine.restore.selection import Choice, select_topics, with_branches
from logkeep_engine.restore.task import RestoreTask, restore_partitions
from logkeep_engine.storage import Storage, open_storage
from logkeep_engine.tasks import TaskContext, TaskRunner

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PLAN = "restore-plan.json"
DAMAGE = "damage.json"
COUNTED = "counted.json"
GROUPS = "consumer-groups.json"
RESULT = "result.json"
OFFSET_MAPS = "offset-maps"

_CHECK_BYTES = 256 << 20  # archived bytes one task of the check reads
_CHECK_SEGMENTS = 500
_CHECKS_PER_SLOT = 4  # tasks of the check for an executor core, so that none waits long for the last one
_AT_ONCE = 32
_FAULTS_SHOWN = 3
_ROUNDS = 5  # a partition may lose what was written once more while the rest is sent again


def run_restore(
    request: RunRequest,
    spec: KafkaRestoreSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: Mapping[str, str],
) -> RunResult:
    """As `restore`, but never raises for what happens in a run: every error becomes a result with its exit code."""
    started = time.time()
    try:
        return restore(request, spec, runner_factory, reporter, environ)
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, Exception) and not isinstance(error, LogkeepError):
            log.exception("unexpected error")
        return replace(failed(_begun(request, started), error), end_time=time.time())


def restore(
    request: RunRequest,
    spec: KafkaRestoreSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: Mapping[str, str],
) -> RunResult:
    """Restore as `spec` says and return the result; a run id that has succeeded returns its result and writes nothing.

    `runner_factory` is called when the first tasks are ready. Raises a LogkeepError when the restore cannot be done;
    the same run can then be started again and goes on where it stopped. The caller hands the result to the reporter.
    """
    if spec.source.storage is None:
        raise SpecError(
            "spec.source.backupRef: it was not resolved to a storage",
            hint="Write spec.source.storage, or use the operator.",
        )
    begun = _begun(request, time.time())
    reporter.phase("Planning")
    storage = open_storage(spec.source.storage, environ)
    storage.check()
    archive = Archive.open(storage)
    begun = replace(begun, archive_id=archive.info.archive_id)
    try:
        result_path = archive.run_file(request.run_id, RESULT)
    except ValueError as error:
        raise SpecError(str(error), hint="Give the run another id.") from error
    earlier = _earlier_result(storage, result_path)
    if earlier is not None:
        log.info("run %s has succeeded before: nothing to do", request.run_id)
        return earlier
    try:
        connection = connection_from(spec.cluster, environ)
        with ControlPlane(connection) as control:
            run = _Restore(request, spec, archive, control, connection, runner_factory, reporter)
            result = replace(run.execute(begun), end_time=time.time())
    except (Exception, KeyboardInterrupt) as error:
        _note_failure(storage, result_path, replace(failed(begun, error), end_time=time.time()))
        raise
    storage.put(result_path, result.to_json().encode())
    return result


def _begun(request: RunRequest, started: float) -> RunResult:
    return RunResult(
        run_id=request.run_id,
        kind=request.kind,
        outcome="Succeeded",
        exit_code=int(ExitCode.OK),
        start_time=started,
        end_time=started,
    )


def _earlier_result(storage: Storage, path: str) -> RunResult | None:
    try:
        result = RunResult.from_json(storage.read(path))
    except ObjectMissing:
        return None
    return result if result.outcome == "Succeeded" else None


def _note_failure(storage: Storage, path: str, result: RunResult) -> None:
    try:
        storage.put(path, result.to_json().encode())
    except LogkeepError as error:  # the failure itself matters more
        log.warning("%s could not be written: %s", path, error)


_Key = tuple[str, int, int]  # topic id, partition, base offset of a segment

# ---- tasks of the check


@dataclass(frozen=True, slots=True)
class CheckTask:
    """Segments to verify: (topic name, entry). Pickles without secrets."""

    storage: Storage
    segments: tuple[tuple[str, SegmentEntry], ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """Every fault of a task's segments, and what each that has transactions says of them."""

    faults: tuple[Fault, ...]
    transactions: tuple[tuple[int, SegmentTransactions], ...]
    """With the segment's place in the task."""


def check_segments(task: CheckTask, context: TaskContext) -> Checked:
    """Runs on an executor."""
    faults: list[Fault] = []
    transactions: list[tuple[int, SegmentTransactions]] = []
    for at, (topic, entry) in enumerate(task.segments):
        checked = check_segment(task.storage, topic, entry)
        faults += checked.faults
        if checked.transactions is not None and (entry.transactional or checked.transactions.holed):
            transactions.append((at, checked.transactions))
    return Checked(tuple(faults), tuple(transactions))


# ---- the run


@dataclass(frozen=True, slots=True)
class _Findings:
    """What the check of the archive found, when it may go on."""

    surveys: tuple[PartitionSurvey, ...] = ()
    loss: tuple[LossFact, ...] = ()
    warnings: tuple[str, ...] = ()


class _Restore:
    def __init__(
        self,
        request: RunRequest,
        spec: KafkaRestoreSpec,
        archive: Archive,
        control: ControlPlane,
        connection: Connection,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
    ) -> None:
        self._run_id = request.run_id
        self._spec = spec
        self._archive = archive
        self._storage = archive.storage
        self._control = control
        self._connection = connection
        self._runner_factory = runner_factory
        self._reporter = reporter
        self._digest = spec_digest(spec)

    def execute(self, result: RunResult) -> RunResult:
        cluster_id = self._control.cluster_id()
        known = self._load_plan()
        if known is None:
            plan, state, fresh = *self._make_plan(cluster_id), True
        else:
            self._refuse_other(known, cluster_id)
            archived = snapshot.load_at(self._archive, known.commit)
            plan, state, fresh = known, with_branches(archived, self._spec.source.topic_ids), False
        counted = self._is_counted()
        if not counted:
            self._create_topics(plan, state, fresh)
        summaries = self._restore_partitions(plan, state, fresh)
        self._reporter.phase("Finishing")
        if not counted:
            summaries = self._count(plan, state, summaries)
        warnings = [*plan.warnings, *_append_time_warnings(summaries.values())]
        moved = self._restore_groups(plan, state)
        warnings += groups.warnings(moved, f"{self._storage.uri}/{self._file(GROUPS)}")
        if self._moves_groups and not moved:
            warnings.append(groups.nothing_to_move(state.groups, self._spec.consumer_groups))
        warnings += self._finish_topics(plan, state)
        return replace(
            result,
            cluster_id=cluster_id,
            commit=plan.commit,
            topics=len(plan.topics),
            partitions=sum(topic.partition_count for topic in plan.topics),
            records=sum(summary.records for summary in summaries.values()),
            bytes=sum(summary.bytes for summary in summaries.values()),
            segments=sum(
                len(_segments(state, topic, part.partition)) for topic in plan.topics for part in topic.partitions
            ),
            groups=sum(item.outcome is groups.Outcome.SET for item in moved),
            loss_total=len(plan.loss),
            loss_offsets=sum(fact.end - fact.start for fact in plan.loss),
            loss=plan.loss[:MAX_LIST],
            warnings=tuple(warnings[:MAX_LIST]),
            offset_map=f"{self._storage.uri}/{self._file(OFFSET_MAPS)}",
        )

    def _file(self, name: str) -> str:
        return self._archive.run_file(self._run_id, name)

    # ---- the plan

    def _load_plan(self) -> RestorePlan | None:
        path = self._file(PLAN)
        try:
            return RestorePlan.from_json(self._storage.read(path), f"{self._storage.uri}/{path}")
        except ObjectMissing:
            return None

    def _refuse_other(self, plan: RestorePlan, cluster_id: str) -> None:
        hint = "Give this restore a run id of its own."
        if plan.archive_id != self._archive.info.archive_id:
            raise SpecError(f"run {self._run_id} was begun from archive {plan.archive_id}, not this one", hint=hint)
        if plan.cluster_id != cluster_id:
            raise SpecError(
                f"run {self._run_id} was begun into Kafka cluster {plan.cluster_id}, not {cluster_id}", hint=hint
            )
        if plan.spec_digest != self._digest:
            raise SpecError(f"run {self._run_id} was begun with another spec", hint=hint)

    def _make_plan(self, cluster_id: str) -> tuple[RestorePlan, ArchiveState]:
        batching = batching_of(self._archive.info.segments, self._spec.record_batches)
        seen = snapshot.choose(self._archive)
        state = with_branches(seen.state, self._spec.source.topic_ids)
        selection = select_topics(state, self._spec.topics, self._spec.source.topic_ids)
        existing = self._existing(selection.choices)
        warnings = [*seen.warnings, *selection.warnings]
        if self._spec.if_topic_exists is IfTopicExists.FAIL:
            refuse_existing(selection.choices, existing)
        now_ms = int(time.time() * 1000)
        for choice in selection.choices:
            if choice.target in existing:
                facts = topic_facts(_topic_segments(state, choice.source))
                warnings += check_append(choice, existing[choice.target], facts, now_ms)
        if self._moves_groups:
            # Groups that may not even be looked at stop the restore now, not when all records are there.
            chosen = groups.select(state.groups, self._spec.consumer_groups)
            self._control.group_offsets(entry.group_id for entry in chosen)
        self._check_replicas([choice for choice in selection.choices if choice.target not in existing])
        findings = self._check_archive(state, selection.choices)
        plan = RestorePlan(
            run_id=self._run_id,
            spec_digest=self._digest,
            archive_id=self._archive.info.archive_id,
            commit=state.commit,
            cluster_id=cluster_id,
            topics=self._plan_topics(state, selection.choices, existing),
            surveys=findings.surveys,
            loss=findings.loss,
            warnings=(*warnings, *findings.warnings),
            batching=batching,
        )
        self._check_keys(plan, state)
        return self._store_plan(plan), state

    def _check_replicas(self, created: Sequence[Choice]) -> None:
        """A topic that cannot have its replicas is told of before anything is written."""
        wanted = {choice.target: replicas_of(choice.source, self._spec.topics.replication_factor) for choice in created}
        if wanted:
            name = max(wanted, key=lambda target: wanted[target])
            self._control.check_replicas(name, wanted[name])

    def _existing(self, choices: Sequence[Choice]) -> dict[str, ExistingTopic]:
        wanted = {choice.target for choice in choices}
        found = [topic for topic in self._control.topics() if topic.name in wanted]
        configs: dict[str, dict[str, str]] = {}
        if found and self._spec.if_topic_exists is IfTopicExists.APPEND:
            configs = effective_topic_configs(self._control, [topic.name for topic in found])
        return {
            topic.name: ExistingTopic(topic.name, len(topic.partitions), configs.get(topic.name, {})) for topic in found
        }

    def _plan_topics(
        self, state: ArchiveState, choices: Sequence[Choice], existing: Mapping[str, ExistingTopic]
    ) -> tuple[TopicPlan, ...]:
        appended = [
            (choice.target, partition)
            for choice in choices
            if choice.target in existing
            for partition in range(choice.source.partitions)
        ]
        ends = self._control.latest_offsets(appended)
        missing = [where for where in appended if where not in ends]
        if missing:
            raise TopicGone(
                f"topic {missing[0][0]!r} partition {missing[0][1]} vanished while the restore was planned",
                hint="Try again.",
            )
        return tuple(
            plan_topic(
                choice,
                {
                    partition: state.segments.get((choice.source.topic_id, partition), [])
                    for partition in range(choice.source.partitions)
                },
                existing=existing.get(choice.target),
                end_offsets={
                    partition: ends[choice.target, partition]
                    for partition in range(choice.source.partitions)
                    if (choice.target, partition) in ends
                },
                replicas=self._spec.topics.replication_factor,
            )
            for choice in choices
        )

    def _check_keys(self, plan: RestorePlan, state: ArchiveState) -> None:
        """A compacted topic would refuse a record without a key in the middle of the restore: its records are looked
        through now.
        """
        surveys = plan.surveys_by_partition()
        work = [
            self._task(plan, state, topic, part, surveys, fresh=True)
            for topic in plan.topics
            if topic.compacts
            for part in topic.partitions
            if part.producer_id != NO_TASK
        ]
        found: dict[int, int | None] = {}
        self._run_tasks(work, first_without_key, found.__setitem__)
        for index, offset in sorted(found.items()):
            if offset is not None:
                task = work[index]
                raise TargetUnsuitable(
                    f"topic {task.target} is compacted and refuses records without a key: {task.source} partition "
                    f"{task.partition} has one at offset {offset}; nothing was written",
                    hint=f"Restore under another name, or take compact out of cleanup.policy of {task.target} for the "
                    "time of the restore.",
                )

    def _store_plan(self, plan: RestorePlan) -> RestorePlan:
        wanted = sum(part.producer_id == NEEDS_PRODUCER_ID for topic in plan.topics for part in topic.partitions)

        async def ask() -> list[tuple[int, int]]:
            async with RawClient(self._connection) as client:
                return await _gather([client.init_producer_id] * wanted)

        ids = [producer_id for producer_id, _ in asyncio.run(ask())] if wanted else []
        plan = plan.with_producer_ids(ids)
        data = plan.to_json()
        path = self._file(PLAN)
        try:
            self._storage.create(path, data)
        except ObjectExists:
            # Also when the answer to this very call was lost: then the object is the same.
            if self._storage.read(path) != data:
                raise SpecError(
                    f"run {self._run_id} is being started twice at once",
                    hint="Wait for the other one, or give this restore a run id of its own.",
                ) from None
        return plan

    # ---- the archive's state of health

    def _check_archive(self, state: ArchiveState, choices: Sequence[Choice]) -> _Findings:
        self._reporter.phase("Checking")
        partitions = [(choice.source, partition) for choice in choices for partition in range(choice.source.partitions)]
        used = [
            (topic.name, entry)
            for topic, partition in partitions
            for entry in state.segments.get((topic.topic_id, partition), ())
        ]
        refuse = self._spec.on_damaged_archive is OnDamagedArchive.REFUSE
        faults = self._missing_or_short(used)
        if faults and refuse:
            self._refuse_damaged(faults)
        bad = {fault.object for fault in faults}
        found, transactions = self._verify(used)
        faults += [fault for fault in found if fault.object not in bad]
        if faults and refuse:
            self._refuse_damaged(faults)
        if faults:
            self._note_damage(faults)
        outcomes = {
            (topic.topic_id, partition): self._outcomes(state, topic, partition, transactions)
            for topic, partition in partitions
        }
        surveys = self._survey(state, partitions, faults, outcomes)
        loss = self._loss(state, partitions, surveys)
        warnings = [*_archive_warnings(state, choices, faults), *_transaction_warnings(state, outcomes)]
        return _Findings(surveys, tuple(loss), tuple(warnings))

    def _outcomes(
        self, state: ArchiveState, topic: TopicEntry, partition: int, transactions: Mapping[_Key, SegmentTransactions]
    ) -> Outcomes:
        """What the transaction indexes of a partition do not say."""
        entries = state.segments.get((topic.topic_id, partition), ())
        if not any(entry.transactional for entry in entries):
            return Outcomes()
        said = (transactions.get(_key(entry)) or SegmentTransactions.without(entry) for entry in entries)
        return fold(said, state.kept(topic.topic_id, partition))

    def _loss(
        self, state: ArchiveState, partitions: Sequence[tuple[TopicEntry, int]], surveys: Sequence[PartitionSurvey]
    ) -> list[LossFact]:
        surveyed = {(found.topic_id, found.partition): found.survey.lost for found in surveys}
        beginnings = missing_beginnings(self._archive, state)
        loss = []
        for topic, partition in partitions:
            key = (topic.topic_id, partition)
            never = (Lost(start, end, NOT_SETTLED) for start, end in holes(state, key, beginnings))
            for lost in (*surveyed.get(key, ()), *never):
                loss.append(LossFact(topic.name, partition, lost.start, lost.end, lost.reason))
        return loss

    def _missing_or_short(self, used: Sequence[tuple[str, SegmentEntry]]) -> list[Fault]:
        """One listing a topic tells what is not there or has another size."""
        sizes: dict[str, int] = {}
        for folder in sorted({_folder(topic, entry) for topic, entry in used}):
            sizes.update((info.path, info.size) for info in self._storage.list(folder))
        faults = []
        for topic, entry in used:
            for path, size in entry.objects(topic).items():
                found = sizes.get(path)
                if found != size:
                    what = "the object is missing" if found is None else f"{found} bytes, the catalog says {size}"
                    faults.append(Fault(f"{self._storage.uri}/{path}", topic, entry.partition, entry.base_offset, what))
        return faults

    def _verify(self, used: Sequence[tuple[str, SegmentEntry]]) -> tuple[list[Fault], dict[_Key, SegmentTransactions]]:
        most = _CHECK_BYTES
        if used:
            most = min(
                most, sum(entry.bytes for _, entry in used) // (_CHECKS_PER_SLOT * self._spec.spark.executor.slots)
            )
        work = [CheckTask(self._storage, tuple(group)) for group in _groups(used, most)]
        found: dict[int, Checked] = {}
        self._run_tasks(work, check_segments, found.__setitem__)
        transactions = {
            _key(work[index].segments[at][1]): said
            for index, checked in found.items()
            for at, said in checked.transactions
        }
        return [fault for index in sorted(found) for fault in found[index].faults], transactions

    def _survey(
        self,
        state: ArchiveState,
        partitions: Sequence[tuple[TopicEntry, int]],
        faults: Sequence[Fault],
        outcomes: Mapping[Partition, Outcomes],
    ) -> tuple[PartitionSurvey, ...]:
        """What is to be said of partitions of which not everything is as their indexes say."""
        faulty: dict[tuple[str, int], list[Fault]] = {}
        for fault in faults:
            path = fault.object.removeprefix(f"{self._storage.uri}/")
            faulty.setdefault((fault.topic, fault.partition), []).append(replace(fault, object=path))
        work, keys = [], []
        surveys: dict[Partition, Survey] = {}
        for topic, partition in partitions:
            key = (topic.topic_id, partition)
            segments: Sequence[SegmentEntry] = state.segments.get(key, ())
            found = faulty.get((topic.name, partition), [])
            if found and segments[0].layout is not Layout.KAFKA:
                surveys[key] = survey_records(topic.name, segments, found)
                continue
            objects = {fault.object for fault in found}
            if found or not outcomes[key].indexes_suffice:
                surveys[key] = Survey((), ())
            damaged = [entry for entry in segments if entry.stem(topic.name) + entry.log_suffix in objects]
            if damaged:
                work.append(SurveyTask(self._storage, topic.name, tuple(damaged)))
                keys.append(key)
        done: dict[int, Survey] = {}
        self._run_tasks(work, survey_partition, done.__setitem__)
        surveys.update((keys[index], done[index]) for index in done)
        topics = {topic.topic_id: topic.name for topic, _ in partitions}
        return tuple(
            PartitionSurvey(*key, self._with_transactions(state, topics[key[0]], key, surveys[key], faulty, outcomes))
            for key in sorted(surveys)
        )

    def _with_transactions(
        self,
        state: ArchiveState,
        topic: str,
        key: Partition,
        survey: Survey,
        faulty: Mapping[tuple[str, int], Sequence[Fault]],
        outcomes: Mapping[Partition, Outcomes],
    ) -> Survey:
        objects = {fault.object for fault in faulty.get((topic, key[1]), ())}
        indexed = [entry for entry in state.segments.get(key, ()) if entry.txnindex_bytes]
        readable = [entry for entry in indexed if entry.stem(topic) + names.TXNINDEX not in objects]
        if outcomes[key].indexes_suffice and len(readable) == len(indexed):
            return survey
        index = [txn for entry in readable for txn in read_transactions(self._storage, topic, entry)]
        return with_transactions(survey, outcomes[key], index)

    def _note_damage(self, faults: Sequence[Fault]) -> None:
        body = {"format": 1, "runId": self._run_id, "faults": [asdict(fault) for fault in faults]}
        self._storage.put(self._file(DAMAGE), json.dumps(body, ensure_ascii=False, indent=1).encode())

    def _refuse_damaged(self, faults: Sequence[Fault]) -> None:
        self._note_damage(faults)
        shown = "; ".join(str(fault) for fault in faults[:_FAULTS_SHOWN])
        more = f"; and {len(faults) - _FAULTS_SHOWN} more" if len(faults) > _FAULTS_SHOWN else ""
        raise ArchiveDamaged(
            f"{len(faults)} {'fault' if len(faults) == 1 else 'faults'} in the archive, nothing was written to "
            f"Kafka: {shown}{more}",
            hint=f"All are in {self._storage.uri}/{self._file(DAMAGE)}. Repair the objects from a copy of the "
            "archive, or restore what is "
            "whole with spec.onDamagedArchive: Skip.",
            faults=tuple(str(fault) for fault in faults),
        )

    # ---- topics

    def _create_topics(self, plan: RestorePlan, state: ArchiveState, fresh: bool) -> None:
        wanted = [
            NewTopicPlan(topic.target, topic.partition_count, topic.replication_factor, _working(topic, state))
            for topic in plan.topics
            if topic.created
        ]
        if not fresh:
            there = {topic.name: len(topic.partitions) for topic in self._control.topics()}
            configs = self._control.topic_configs([topic.name for topic in wanted if topic.name in there])
            for topic in wanted:
                if topic.name not in there:
                    continue
                as_created = topic.configs.items() <= configs.get(topic.name, {}).items()
                if there[topic.name] != topic.partitions or not as_created:
                    raise TopicExists(
                        f"topic {topic.name!r} exists, and this restore has not created it: its partitions or its "
                        "configuration are others",
                        hint="Delete it and start the run again, or begin a new restore under another name.",
                    )
            wanted = [topic for topic in wanted if topic.name not in there]
        if wanted:
            self._control.create_topics(wanted)

    def _finish_topics(self, plan: RestorePlan, state: ArchiveState) -> list[str]:
        """Give created topics the source's own configuration; returns what the user should know of it."""
        warnings: list[str] = []
        created = [topic for topic in plan.topics if topic.created]
        for topic in created:
            own, gone = final_configs(state.topics[topic.topic_id].configs, _working(topic, state))
            try:
                self._control.alter_topic_configs(topic.target, own, gone)
            except Refused:
                warnings += self._set_one_by_one(topic.target, own, gone)
        configs = effective_topic_configs(self._control, [topic.target for topic in created])
        now_ms = int(time.time() * 1000)
        for topic in created:
            facts = topic_facts(_topic_segments(state, state.topics[topic.topic_id]))
            warnings += retention_warnings(topic.target, configs.get(topic.target, {}), facts, now_ms)
            wanted = state.topics[topic.topic_id].replication_factor
            if topic.replication_factor < wanted and self._spec.topics.replication_factor is None:
                warnings.append(
                    f"topic {topic.target}: {topic.replication_factor} replicas instead of {wanted}: an earlier "
                    "version planned this run, and took the brokers that were alive then for all"
                )
        return warnings

    def _set_one_by_one(self, name: str, own: Mapping[str, str], gone: Sequence[str]) -> list[str]:
        """The cluster does not know or allow something of the source's configuration: set the rest."""
        self._control.alter_topic_configs(name, {}, gone)
        warnings = []
        for key, value in sorted(own.items()):
            try:
                self._control.alter_topic_configs(name, {key: value})
            except Refused as error:
                warnings.append(f"topic {name}: {key}={value} could not be set: {error.message}")
        return warnings

    # ---- the records

    def _restore_partitions(
        self, plan: RestorePlan, state: ArchiveState, fresh: bool
    ) -> dict[tuple[str, int], PartitionSummary]:
        done = {} if fresh else self._done_partitions()
        surveys = plan.surveys_by_partition()
        tasks: list[RestoreTask] = []
        parts: list[Part] = []
        idle = 0
        for topic in plan.topics:
            for part in topic.partitions:
                if part.producer_id == NO_TASK:
                    idle += 1
                    continue
                segments = _segments(state, topic, part.partition)
                first, end = segments[0].base_offset, segments[-1].next_offset
                number = len(parts)
                summary = done.get((topic.target, part.partition))
                if summary is not None:
                    parts.append(
                        Part(number, topic.target, part.partition, first, end, end, summary.records, summary.bytes)
                    )
                    continue
                parts.append(Part(number, topic.target, part.partition, first, end))
                tasks.append(replace(self._task(plan, state, topic, part, surveys, fresh=fresh), number=number))
        self._reporter.planned(parts, topics=len(plan.topics), idle=idle)
        self._reporter.phase("Running")

        def on_result(_: int, summaries: tuple[PartitionSummary, ...]) -> None:
            for summary in summaries:
                where = summary.target_topic, summary.target_partition
                done[where] = summary
                self._reporter.done(numbers[where], summary.records, summary.bytes)

        if tasks:
            numbers = {(task.target, task.partition): task.number for task in tasks}
            packed = pack([task.bytes for task in tasks], self._spec.spark.executor.slots)
            self._run_tasks([tuple(tasks[at] for at in group) for group in packed], restore_partitions, on_result)
        return done

    def _task(
        self,
        plan: RestorePlan,
        state: ArchiveState,
        topic: TopicPlan,
        part: PartitionPlan,
        surveys: Mapping[tuple[str, int], Survey],
        *,
        fresh: bool,
    ) -> RestoreTask:
        """The work of one partition, which has no number yet."""
        return RestoreTask(
            number=-1,
            storage=self._storage,
            connection=self._connection,
            source=topic.source,
            topic_id=topic.topic_id,
            partition=part.partition,
            target=topic.target,
            created=topic.created,
            fresh=fresh,
            max_batch_bytes=topic.max_batch_bytes,
            rule=plan.rule,
            producer_id=part.producer_id,
            start=part.start,
            segments=tuple(_segments(state, topic, part.partition)),
            survey=surveys.get((topic.topic_id, part.partition)),
            map_path=self._map_path(topic.target, part.partition),
            batching=_batching(plan, topic, state),
            compacts=topic.compacts,
        )

    def _map_path(self, topic: str, partition: int) -> str:
        return self._file(f"{OFFSET_MAPS}/{topic}/{partition}.json")

    def _done_partitions(self) -> dict[tuple[str, int], PartitionSummary]:
        paths = [info.path for info in self._storage.list(self._file(OFFSET_MAPS) + "/")]

        def read(path: str) -> PartitionSummary:
            return read_summary(self._storage.read_range(path, 0, HEADER_MAX_BYTES), f"{self._storage.uri}/{path}")

        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logkeep-maps") as pool:
            return {(found.target_topic, found.target_partition): found for found in pool.map(read, paths)}

    def _run_tasks(
        self, work: Sequence[T], function: Callable[[T, TaskContext], R], on_result: Callable[[int, R], None]
    ) -> None:
        if work:
            limits = RunLimits(self._spec.limits.bytes_per_second_int)
            self._runner_factory().run(work, function, on_result, self._reporter.update, limits)

    # ---- the groups

    @property
    def _moves_groups(self) -> bool:
        return self._spec.consumer_groups.restore is GroupRestore.TRANSLATE

    def _restore_groups(self, plan: RestorePlan, state: ArchiveState) -> list[groups.Moved]:
        if not self._moves_groups:
            return []

        def read_map(topic: str, partition: int) -> OffsetMap:
            path = self._map_path(topic, partition)
            return read_offset_map(self._storage.read(path), f"{self._storage.uri}/{path}")

        def archived_end(topic_id: str, partition: int) -> int:
            settled = state.settled(topic_id, partition)
            return settled[-1][1] if settled else 0

        chosen = groups.select(state.groups, self._spec.consumer_groups)
        moves = groups.translate(chosen, plan.topics, read_map, archived_end)
        moved = groups.commit(moves, self._control)
        self._storage.put(self._file(GROUPS), b"".join(groups.report(moved)))
        return moved

    # ---- the end

    def _is_counted(self) -> bool:
        return bool(self._storage.list(self._file(COUNTED)))

    def _count(
        self, plan: RestorePlan, state: ArchiveState, summaries: dict[tuple[str, int], PartitionSummary]
    ) -> dict[tuple[str, int], PartitionSummary]:
        """All that was written must be there. What the cluster has lost since is sent again; the summaries then."""
        for _ in range(_ROUNDS):
            lost = count.lost(self._control, count.written(plan, summaries), self._connection.limits.outage)
            if not lost:
                self._storage.put(self._file(COUNTED), json.dumps({"format": 1, "partitions": len(summaries)}).encode())
                return summaries
            log.warning("%s and %d more partitions have lost records since: sent again", lost[0], len(lost) - 1)
            self._storage.delete([self._map_path(target.topic, target.partition) for target in lost])
            summaries = self._restore_partitions(plan, state, fresh=False)
        raise BrokerUnavailable(
            f"{lost[0]}: the cluster has lost records that it had acknowledged, {_ROUNDS} times.",
            hint="Check the brokers and unclean.leader.election.enable, then start the same run again.",
        )


def spec_digest(spec: KafkaRestoreSpec) -> str:
    """Changes with everything that decides what is restored to where; not with Spark's settings or how to log in."""
    storage = spec.source.storage
    decides: dict[str, object] = {
        "uri": storage.uri.rstrip("/") if storage is not None else "",
        "topics": spec.topics.model_dump(mode="json", by_alias=True, exclude_none=True),
        "ifTopicExists": spec.if_topic_exists.value,
        "onDamagedArchive": spec.on_damaged_archive.value,
    }
    # Only where they say something: the digest of a run begun by a version that does not know them stays what it was.
    if spec.record_batches != RecordBatches():
        decides["recordBatches"] = spec.record_batches.model_dump(mode="json", by_alias=True)
    if spec.source.topic_ids:
        decides["topicIds"] = dict(spec.source.topic_ids)
    if spec.consumer_groups.restore is not GroupRestore.NONE:
        decides["consumerGroups"] = spec.consumer_groups.model_dump(mode="json", by_alias=True)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()


async def _gather(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await call()

    return list(await asyncio.gather(*(one(call) for call in calls)))


def _groups(used: Iterable[tuple[str, SegmentEntry]], most: int) -> Iterable[list[tuple[str, SegmentEntry]]]:
    group: list[tuple[str, SegmentEntry]] = []
    size = 0
    for topic, entry in used:
        if group and (size + entry.bytes > most or len(group) >= _CHECK_SEGMENTS):
            yield group
            group, size = [], 0
        group.append((topic, entry))
        size += entry.bytes
    if group:
        yield group


def _segments(state: ArchiveState, topic: TopicPlan, partition: int) -> Sequence[SegmentEntry]:
    return state.segments.get((topic.topic_id, partition), ())


def _topic_segments(state: ArchiveState, topic: TopicEntry) -> list[SegmentEntry]:
    return [
        entry for partition in range(topic.partitions) for entry in state.segments.get((topic.topic_id, partition), ())
    ]


def _working(topic: TopicPlan, state: ArchiveState) -> dict[str, str]:
    return working_configs(topic_facts(_topic_segments(state, state.topics[topic.topic_id])))


def _key(entry: SegmentEntry) -> _Key:
    return entry.topic_id, entry.partition, entry.base_offset


def _folder(topic: str, entry: SegmentEntry) -> str:
    """Where the objects of the topic lie."""
    match entry.layout:
        case Layout.KAFKA:
            return f"{names.TOPICS}{topic}/{entry.topic_id}/"
        case Layout.RECORDS_AT_ROOT:
            return f"{topic}/"
        case Layout.RECORDS | Layout.AVRO:
            return f"{names.TOPICS}{topic}/"


def _batching(plan: RestorePlan, topic: TopicPlan, state: ArchiveState) -> Batching | None:
    """Batches are not larger than the source's own producers could make them."""
    if plan.batching is None:
        return None
    own = int(state.topics[topic.topic_id].configs.get("max.message.bytes", plan.batching.max_bytes))
    return replace(plan.batching, max_bytes=min(own, plan.batching.max_bytes))


def _archive_warnings(state: ArchiveState, choices: Sequence[Choice], faults: Sequence[Fault]) -> list[str]:
    warnings = []
    for choice in choices:
        topic = choice.source
        gaps = [gap for partition in range(topic.partitions) for gap in state.gaps.get((topic.topic_id, partition), ())]
        if gaps:
            first = gaps[0]
            warnings.append(
                f"topic {topic.name}: {sum(gap.end - gap.start for gap in gaps)} offsets are not in the "
                "archive, first "
                f"partition {first.partition} offsets {first.start} to {first.end - 1}: {first.reason}"
            )
        removed = [
            (partition, *offsets)
            for partition in range(topic.partitions)
            for offsets in state.removed_between(topic.topic_id, partition)
        ]
        if removed:
            partition, start, end = removed[0]
            warnings.append(
                f"topic {topic.name}: {sum(end - start for _, start, end in removed)} offsets between others were "
                f"removed by retention, first partition {partition} offsets {start} to {end - 1}"
            )
    if faults:
        word = "fault" if len(faults) == 1 else "faults"
        warnings.append(f"the archive has {len(faults)} {word}, first: {faults[0]}")
    return warnings


def _transaction_warnings(state: ArchiveState, outcomes: Mapping[Partition, Outcomes]) -> list[str]:
    """Where a transaction index was not believed."""
    warnings = []
    for (topic_id, partition), found in outcomes.items():
        if found.disagreements:
            more = len(found.disagreements) - 1
            warnings.append(
                f"topic {state.topics[topic_id].name} partition {partition}: {found.disagreements[0]}"
                + (f"; and {more} more transactions" if more else "")
            )
    return warnings


def _append_time_warnings(summaries: Iterable[PartitionSummary]) -> list[str]:
    topics = sorted({summary.target_topic for summary in summaries if summary.append_time_records})
    if not topics:
        return []
    shown = ", ".join(topics[:10]) + (f" and {len(topics) - 10} more" if len(topics) > 10 else "")
    return [
        f"records of {shown} had append times: they keep the times, but the type of the timestamp is now CreateTime"
    ]


__all__ = ["check_segments", "restore", "run_restore", "spec_digest", "survey_partition"]
