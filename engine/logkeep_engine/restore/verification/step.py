"""The step of a restore that verifies it, in the driver: the archive's digests, the tasks, the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from logkeep_engine.contract.run import VerificationFacts
from logkeep_engine.errors import ObjectMissing, RecordsDiffer
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.restore.attempt import RestoreTask
from logkeep_engine.restore.context import Planned, RestoreContext
from logkeep_engine.restore.partitions import restore_task, with_task
from logkeep_engine.restore.plan import pack
from logkeep_engine.restore.verification.document import VerificationReport, facts_of
from logkeep_engine.restore.verification.expected import ExpectedRecords, expected_records
from logkeep_engine.restore.verification.page import page_of
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition, VerifyTask, verify_partitions
from logkeep_engine.storage import Storage

log = logging.getLogger(__name__)

DOCUMENT = "verification.json"
PAGE = "verification.html"


def verify_restored(context: RestoreContext, planned: Planned) -> VerificationFacts:
    """Verify all partitions of a restore, and write the report beside its plan. What differs is in the facts: nothing
    is raised for it."""
    began = time.time()
    context.reporter.phase("Finishing")
    tasks = [
        restore_task(context, planned, topic, partition, number=number)
        for number, (topic, partition) in enumerate(with_task(planned))
        if planned.segments(topic, partition.partition)
    ]
    expected = expected_records(context, tasks)
    work = _work(context, planned, tasks, expected)
    found: list[VerifiedPartition] = []

    def on_result(_: int, partitions: tuple[VerifiedPartition, ...]) -> None:
        found.extend(partitions)

    sizes = [task.bytes for task in tasks]
    packed = pack(sizes, context.slots(len(sizes), sum(sizes), limited=True)) if tasks else []
    context.run_tasks([tuple(work[at] for at in group) for group in packed], verify_partitions, on_result)
    if len(found) != len(work):
        raise RuntimeError(f"{len(found)} of {len(work)} partitions were verified")
    report = VerificationReport(
        run_id=context.run_id,
        archive_id=planned.plan.archive_id,
        cluster_id=planned.plan.cluster_id,
        start_time=began,
        end_time=time.time(),
        partitions=tuple(sorted(found, key=lambda item: item.where)),
        idle=_idle(context, planned),
        before={(task.target, task.target_partition): item.times for task, item in zip(tasks, expected, strict=True)},
        read=sum(item.made for item in expected),
    )
    return _written(context, report)


def earlier_facts(context: RestoreContext) -> VerificationFacts | None:
    """The findings of an earlier start of the run, None if it has found nothing, or a difference. The topics may have
    got their own configuration since, and compact."""
    try:
        document = context.state.storage.read(context.state.file(DOCUMENT))
    except ObjectMissing:
        return None
    facts = facts_of(document, context.state.name(PAGE))
    return None if facts is None or facts.outcome == Verdict.DIFFERENT else facts


def raise_if_different(facts: VerificationFacts) -> None:
    """Raises RecordsDiffer if the target does not have what the archive has."""
    if facts.outcome == Verdict.DIFFERENT:
        raise RecordsDiffer(
            f"the target does not have what the archive has: {facts.message}",
            hint=f"All that was found is in {facts.report}. Somebody else may have written to the topics, or the "
            "cluster has lost or altered records: delete the topics and restore again under another run id.",
        )


def _work(
    context: RestoreContext, planned: Planned, tasks: Sequence[RestoreTask], expected: Sequence[ExpectedRecords]
) -> list[VerifyTask]:
    compacting = _compacting(context, [task.target for task in tasks])
    caveats: dict[tuple[str, int], list[str]] = {}
    for fact in planned.plan.loss:
        what = f"the archive lacks offsets {fact.start} to {fact.end - 1}: {fact.reason}"
        caveats.setdefault((fact.topic, fact.partition), []).append(what)
    return [
        VerifyTask(
            task,
            item.stretches,
            tuple(caveats.get((task.source, task.partition), ())),
            compacts=task.target in compacting,
            offsets=task.extent is not None,
        )
        for task, item in zip(tasks, expected, strict=True)
    ]


def _compacting(context: RestoreContext, topics: Sequence[str]) -> set[str]:
    """The topics that compact now."""
    configs = effective_topic_configs(context.control, sorted(set(topics)))
    return {name for name, values in configs.items() if "compact" in values.get("cleanup.policy", "delete")}


def _idle(context: RestoreContext, planned: Planned) -> dict[tuple[str, int], int]:
    """The partitions of created topics to which nothing is restored, and how many records are there."""
    empty = {
        (topic.target, partition.target): partition.begins
        for topic in planned.plan.topics
        if topic.created
        for partition in topic.partitions
        if not planned.segments(topic, partition.partition)
    }
    ends = context.control.latest_offsets(empty)
    return {where: ends.get(where, begins) - begins for where, begins in empty.items()}


def _written(context: RestoreContext, report: VerificationReport) -> VerificationFacts:
    storage: Storage = context.state.storage
    paths = [context.state.file(name) for name in (DOCUMENT, PAGE)]
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(storage.put, paths, (report.to_json(), page_of(report).encode())))
    facts = report.facts(context.state.name(PAGE))
    log.info("verification: %s, %s", facts.outcome, facts.message)
    return facts
