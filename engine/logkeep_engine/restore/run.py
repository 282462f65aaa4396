"""One restore from beginning to end, in the driver.

    result = run_restore(request, spec, session.runner, reporter, os.environ)

Plan → check the archive → store the plan → create topics → the partitions, in tasks → count → positions of consumer
groups → the source's configuration → result. Below `runs/<run id>/` in the place of its state (`state`) lie, in this
order, what a driver that starts again needs to go on:

    started.json          when the last driver was started: the state can be written
    restore-plan.json     sources, targets, producer ids, start offsets, what is left out; made once
    offset-maps/...       a partition is done when its map is there
    counted.json          the target has what was sent; from here on the topics get their own configuration
    consumer-groups.json  what became of the positions of consumer groups
    result.json           the end: a run that has succeeded is not done again

Nothing else is written, and nothing to the archive if the state has another place. A crash at any point leaves topics
with the working configuration, which deletes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading import snapshot
from logkeep_engine.archive.reading.salvage import Survey, survey_partition
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import MAX_LIST, RunRequest, RunResult
from logkeep_engine.contract.spec import GroupRestore, IfTopicExists, KafkaRestoreSpec, RecordBatches
from logkeep_engine.errors import (
    ArchiveDamaged,
    BrokerUnavailable,
    LogkeepError,
    ObjectExists,
    ObjectMissing,
    SpecError,
    TargetUnsuitable,
    TopicGone,
)
from logkeep_engine.kafka.client import RawClient
from logkeep_engine.kafka.connection import Connection, connection_from
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.kafka.queries import NO_TOPIC_ID
from logkeep_engine.limits import RunLimits
from logkeep_engine.report import ProgressRange, Reporter, failed
from logkeep_engine.restore import count, groups
from logkeep_engine.restore.check import ArchiveCheck, check_segments
from logkeep_engine.restore.emptiness import refuse_damaged, refuse_empty, refuse_unfinished, told_empty
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
    RestorePlan,
    TopicPlan,
    batching_of,
    check_append,
    pack,
    plan_topic,
    refuse_existing,
    replicas_of,
    topic_facts,
)
from logkeep_engine.restore.records import Batching
from logkeep_engine.restore.selection import Choice, select_topics, with_branches
from logkeep_engine.restore.state import PLAN, RestoreState, open_state
from logkeep_engine.restore.targets import CreatedTopics, check_same, topic_segments
from logkeep_engine.restore.task import RestoreTask, restore_partitions
from logkeep_engine.storage import Storage, open_storage
from logkeep_engine.tasks import TaskContext, TaskRunner

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

COUNTED = "counted.json"
GROUPS = "consumer-groups.json"
RESULT = "result.json"
OFFSET_MAPS = "offset-maps"

_AT_ONCE = 32
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
    state = open_state(request.run_id, spec, storage, environ)
    try:
        result_path = state.file(RESULT)
    except ValueError as error:
        raise SpecError(str(error), hint="Give the run another id.") from error
    earlier = _earlier_result(state.storage, result_path)
    if earlier is not None:
        if earlier.archive_id != archive.info.archive_id:
            raise SpecError(
                f"run {request.run_id} has succeeded from archive {earlier.archive_id}, not from this one",
                hint="Give this restore a run id of its own.",
            )
        log.info("run %s has succeeded before: nothing to do", request.run_id)
        return earlier
    state.begin(archive)
    try:
        connection = connection_from(spec.cluster, environ)
        with ControlPlane(connection) as control:
            run = _Restore(request, spec, archive, state, control, connection, runner_factory, reporter)
            result = replace(run.execute(begun), end_time=time.time())
    except (Exception, KeyboardInterrupt) as error:
        _note_failure(state.storage, result_path, replace(failed(begun, error), end_time=time.time()))
        raise
    state.storage.put(result_path, result.to_json().encode())
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


# ---- the run


class _Restore:
    def __init__(
        self,
        request: RunRequest,
        spec: KafkaRestoreSpec,
        archive: Archive,
        state: RestoreState,
        control: ControlPlane,
        connection: Connection,
        runner_factory: Callable[[], TaskRunner],
        reporter: Reporter,
    ) -> None:
        self._run_id = request.run_id
        self._spec = spec
        self._archive = archive
        self._state = state
        self._control = control
        self._connection = connection
        self._runner_factory = runner_factory
        self._reporter = reporter
        self._digest = spec_digest(spec)

    def execute(self, result: RunResult) -> RunResult:
        cluster_id = self._control.cluster_id()
        self._connection = replace(self._connection, cluster_id=cluster_id)
        self._control.only(cluster_id)
        known = self._load_plan()
        if known is None:
            plan, state, fresh = *self._make_plan(cluster_id), True
        else:
            self._refuse_other(known, cluster_id)
            check_same(self._control, known)
            archived = self._archive.load_at(known.commit)
            plan, state, fresh = known, with_branches(archived, self._spec.source.topic_ids), False
        topics = CreatedTopics(self._control, state, self._spec.topics.replication_factor)
        counted = self._is_counted()
        if not counted:
            topics.create(plan, fresh=fresh)
        summaries = self._restore_partitions(plan, state, fresh)
        self._reporter.phase("Finishing")
        if not counted:
            summaries = self._count(plan, state, summaries)
        warnings = [*plan.warnings, *_append_time_warnings(summaries.values())]
        moved = self._restore_groups(plan, state)
        warnings += groups.warnings(moved, self._state.name(GROUPS))
        if self._moves_groups and not moved:
            warnings.append(groups.nothing_to_move(state.groups, self._spec.consumer_groups))
        warnings += topics.finish(plan)
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
            offset_map=self._state.name(OFFSET_MAPS),
        )

    # ---- the plan

    def _load_plan(self) -> RestorePlan | None:
        try:
            return RestorePlan.from_json(self._state.storage.read(self._state.file(PLAN)), self._state.name(PLAN))
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
        refuse_unfinished(seen, self._archive.storage.uri, self._spec)
        state = with_branches(seen.state, self._spec.source.topic_ids)
        selection = select_topics(
            state, self._spec.topics, self._spec.source.topic_ids, shows(self._archive.storage, state)
        )
        existing = self._existing(selection.choices)
        warnings = [*seen.warnings, *selection.warnings, *told_empty(state, selection.choices)]
        if self._spec.if_topic_exists is IfTopicExists.FAIL:
            refuse_existing(selection.choices, existing)
        now_ms = int(time.time() * 1000)
        for choice in selection.choices:
            if choice.target in existing:
                facts = topic_facts(topic_segments(state, choice.source))
                warnings += check_append(choice, existing[choice.target], facts, now_ms)
        if self._moves_groups:
            # Groups that may not even be looked at stop the restore now, not when all records are there.
            chosen = groups.select(state.groups, self._spec.consumer_groups)
            self._control.group_offsets(entry.group_id for entry in chosen)
        self._check_replicas([choice for choice in selection.choices if choice.target not in existing])
        self._reporter.phase("Checking")
        check = ArchiveCheck(self._run_id, self._spec, self._archive, self._state, self._run_tasks)
        if not self._spec.allow_empty:
            refuse_empty(self._archive.storage, state, selection.choices)
        findings = check.check(state, selection.choices)
        if not self._spec.allow_empty:
            refuse_damaged(state, selection.choices, findings.surveys)
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
            topic.name: ExistingTopic(
                topic.name,
                len(topic.partitions),
                configs.get(topic.name, {}),
                "" if topic.topic_id == NO_TOPIC_ID else topic.topic_id,
            )
            for topic in found
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
        path = self._state.file(PLAN)
        try:
            self._state.storage.create(path, data)
        except ObjectExists:
            # Also when the answer to this very call was lost: then the object is the same.
            if self._state.storage.read(path) != data:
                raise SpecError(
                    f"run {self._run_id} is being started twice at once",
                    hint="Wait for the other one, or give this restore a run id of its own.",
                ) from None
        return plan

    # ---- the records

    def _restore_partitions(
        self, plan: RestorePlan, state: ArchiveState, fresh: bool
    ) -> dict[tuple[str, int], PartitionSummary]:
        done = {} if fresh else self._done_partitions()
        surveys = plan.surveys_by_partition()
        tasks: list[RestoreTask] = []
        parts: list[ProgressRange] = []
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
                        ProgressRange(
                            number, topic.target, part.partition, first, end, end, summary.records, summary.bytes
                        )
                    )
                    continue
                parts.append(ProgressRange(number, topic.target, part.partition, first, end))
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
            try:
                self._run_tasks([tuple(tasks[at] for at in group) for group in packed], restore_partitions, on_result)
            except ArchiveDamaged as error:
                raise self._explained(error, plan, state) from error
        return done

    def _explained(self, error: ArchiveDamaged, plan: RestorePlan, state: ArchiveState) -> ArchiveDamaged:
        """The error, with other advice if retention has removed something of the plan since."""
        newest = with_branches(self._archive.load(), self._spec.source.topic_ids)
        gone = sum(
            any(
                start <= entry.base_offset < end
                for start, end in newest.removed.get((topic.topic_id, part.partition), ())
            )
            for topic in plan.topics
            for part in topic.partitions
            for entry in _segments(state, topic, part.partition)
        )
        if not gone:
            return error
        return ArchiveDamaged(
            error.message,
            hint=f"Retention has removed {gone} segments of what this restore brings since it was planned: it cannot "
            "come to its end. Delete what it has written, and begin another one with the backup suspended.",
            faults=error.faults,
        )

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
            storage=self._archive.storage,
            state=self._state.storage,
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
        return self._state.file(f"{OFFSET_MAPS}/{topic}/{partition}.json")

    def _done_partitions(self) -> dict[tuple[str, int], PartitionSummary]:
        storage = self._state.storage
        paths = [info.path for info in storage.list(self._state.file(OFFSET_MAPS) + "/")]

        def read(path: str) -> PartitionSummary:
            return read_summary(storage.read_range(path, 0, HEADER_MAX_BYTES), f"{storage.uri}/{path}")

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
            return read_offset_map(self._state.storage.read(path), f"{self._state.storage.uri}/{path}")

        def archived_end(topic_id: str, partition: int) -> int:
            settled = state.accounted_for(topic_id, partition)
            return settled[-1][1] if settled else 0

        chosen = groups.select(state.groups, self._spec.consumer_groups)
        moves = groups.translate(chosen, plan.topics, read_map, archived_end)
        moved = groups.commit(moves, self._control)
        self._state.storage.put(self._state.file(GROUPS), b"".join(groups.report(moved)))
        return moved

    # ---- the end

    def _is_counted(self) -> bool:
        return bool(self._state.storage.list(self._state.file(COUNTED)))

    def _count(
        self, plan: RestorePlan, state: ArchiveState, summaries: dict[tuple[str, int], PartitionSummary]
    ) -> dict[tuple[str, int], PartitionSummary]:
        """All that was written must be there. What the cluster has lost since is sent again; the summaries then."""
        for _ in range(_ROUNDS):
            lost = count.lost(self._control, count.written(plan, summaries), self._connection.limits.outage)
            if not lost:
                check_same(self._control, plan)
                counted = json.dumps({"format": 1, "partitions": len(summaries)}).encode()
                self._state.storage.put(self._state.file(COUNTED), counted)
                return summaries
            log.warning("%s and %d more partitions have lost records since: sent again", lost[0], len(lost) - 1)
            self._state.storage.delete([self._map_path(target.topic, target.partition) for target in lost])
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


def _segments(state: ArchiveState, topic: TopicPlan, partition: int) -> Sequence[SegmentEntry]:
    return state.segments.get((topic.topic_id, partition), ())


def _batching(plan: RestorePlan, topic: TopicPlan, state: ArchiveState) -> Batching | None:
    """Batches are not larger than the source's own producers could make them."""
    if plan.batching is None:
        return None
    own = int(state.topics[topic.topic_id].configs.get("max.message.bytes", plan.batching.max_bytes))
    return replace(plan.batching, max_bytes=min(own, plan.batching.max_bytes))


def _append_time_warnings(summaries: Iterable[PartitionSummary]) -> list[str]:
    topics = sorted({summary.target_topic for summary in summaries if summary.append_time_records})
    if not topics:
        return []
    shown = ", ".join(topics[:10]) + (f" and {len(topics) - 10} more" if len(topics) > 10 else "")
    return [
        f"records of {shown} had append times: they keep the times, but the type of the timestamp is now CreateTime"
    ]


__all__ = ["check_segments", "restore", "run_restore", "spec_digest", "survey_partition"]
