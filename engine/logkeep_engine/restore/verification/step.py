"""The step of a restore that verifies it, in the driver: the archive's digests, the tasks, the report."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from logkeep_engine.archive.maintenance.record_digests import MOST_BUCKETS, RecordTimes, unpacked_stretches
from logkeep_engine.archive.reports import create_report, reports_of
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.model import replace
from logkeep_engine.errors import ObjectExists, ObjectMissing, RecordsDiffer, RecordsNotVerified, SpecError
from logkeep_engine.kafka.effective import effective_topic_configs
from logkeep_engine.log.cleanup import is_compacted
from logkeep_engine.report import ProgressRange
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.plan import pack
from logkeep_engine.restore.sending.restore_task import RestoreTask
from logkeep_engine.restore.sending.work import restore_task, with_task
from logkeep_engine.restore.verification.document import VerificationReport, facts_of
from logkeep_engine.restore.verification.expected import ExpectedRecords, expected_records
from logkeep_engine.restore.verification.idle import GONE, idle_partitions
from logkeep_engine.restore.verification.page import page_of
from logkeep_engine.restore.verification.task import (
    MAX_REASONS,
    Verdict,
    VerifiedPartition,
    VerifyTask,
    shortened,
    verify_partitions,
)

log = logging.getLogger(__name__)

DOCUMENT = "verification.json"
PAGE = "verification.html"
_ALL_BUCKETS = 1 << 17  # of the times of all partitions: the driver holds them


def verify_restored(context: RestoreContext, planned: Planned) -> VerificationFacts:
    """Verify all partitions of a restore, and write the report next to its plan. What differs is in the facts: nothing
    is raised for it. Raises SpecError for a topic that was divided."""
    if any(topic.divided for topic in planned.plan.topics):
        raise SpecError(
            "spec.topics.partitionCount: a target with another number of partitions mixes records of several ones, so "
            "it cannot be compared with the archive",
            hint="Compare with Kafka's own tools, or drill the archive (spec.drill).",
        )
    began = time.time()
    tasks = [
        restore_task(context, planned, topic, partition, number=number)
        for number, (topic, partition) in enumerate(
            (topic, partition)
            for topic, partition in with_task(planned)
            if planned.segments(topic, partition.partition)
        )
    ]
    _announce(context, planned, tasks)
    buckets = max(1, min(MOST_BUCKETS, _ALL_BUCKETS // max(1, len(tasks))))
    caveats = _caveats(planned)
    expected = expected_records(context, tasks, buckets)
    work = _work(context, caveats, tasks, expected)
    found: list[VerifiedPartition] = []
    numbers = {(task.topic.target, task.part.target): task.number for task in tasks}

    def on_result(_: int, partitions: tuple[VerifiedPartition, ...]) -> None:
        for item in partitions:
            context.reporter.done(numbers[item.where], item.records, item.bytes)
            found.append(replace(item, times=RecordTimes.together([item.times], buckets)))

    gone, there = _standing(context, work)
    if gone:
        on_result(-1, tuple(map(_gone, gone)))
    sizes = [task.restored.archived.bytes for task in there]
    packed = pack(sizes, context.slots(len(sizes), sum(sizes), limited=True)) if there else []
    context.run_tasks([tuple(there[at] for at in group) for group in packed], verify_partitions, on_result)
    if len(found) != len(work):
        raise RuntimeError(f"{len(found)} of {len(work)} partitions were verified")
    idle, empty = idle_partitions(context, planned, caveats)
    report = VerificationReport(
        run_id=context.run_id,
        archive_id=planned.plan.archive_id,
        cluster_id=planned.plan.cluster_id,
        start_time=began,
        end_time=time.time(),
        partitions=tuple(sorted(found, key=lambda item: item.where)),
        idle=idle,
        empty=empty,
        before={(task.topic.target, task.part.target): item.times for task, item in zip(tasks, expected, strict=True)},
        read=sum(item.made for item in expected),
    )
    facts = _written(context, report)
    context.reporter.phase("Finishing")
    return facts


def earlier_facts(context: RestoreContext) -> VerificationFacts | None:
    """Return the newest findings of earlier starts of the run, None if there are none, or a difference. The topics may
    have got their own configuration since, and compact."""
    state = context.state
    names = reports_of(state.storage, state.run_id, DOCUMENT)
    if not names:
        return None
    try:
        document = state.storage.read(state.file(names[-1]))
    except ObjectMissing:
        return None
    facts = facts_of(document, state.name(_page_beside(names[-1])))
    return None if facts is None or facts.outcome == Verdict.DIFFERENT else facts


def raise_if_different(facts: VerificationFacts) -> None:
    """Raises RecordsDiffer if the target differs from the archive."""
    error = wrong_with(facts)
    if isinstance(error, RecordsDiffer):
        raise error


def wrong_with(facts: VerificationFacts) -> RecordsDiffer | RecordsNotVerified | None:
    """Return the error that says that the target differs, or that not all of it could be compared; None if it is
    verified."""
    if facts.outcome == Verdict.DIFFERENT:
        return RecordsDiffer(
            f"the target differs from the archive: {facts.message}",
            hint=f"All that was found is in {facts.report}. Others may have written to the topics, or the "
            "cluster has lost or altered records: delete those of the topics that the restore has created, and restore "
            "again under another run id. Leave topics that were there before.",
        )
    if facts.outcome != Verdict.VERIFIED:
        return RecordsNotVerified(
            f"not everything could be compared: {facts.message}",
            hint=f"All that was found is in {facts.report}. Records that others have written, or that retention and "
            "compaction have removed since the restore, cannot be distinguished from lost ones.",
        )
    return None


def describe_not_verified(facts: VerificationFacts) -> tuple[str, ...]:
    """Return the warning of a restore of which not all could be compared."""
    return (f"not verified: {facts.message}",) if facts.not_verified else ()


def _announce(context: RestoreContext, planned: Planned, tasks: Sequence[RestoreTask]) -> None:
    """Tell what will be read back: the progress begins again."""
    partitions = sum(len(topic.partitions) for topic in planned.plan.topics)
    parts = [
        ProgressRange(
            task.number,
            task.topic.target,
            task.part.target,
            task.archived.segments[0].base_offset,
            task.archived.segments[-1].next_offset,
        )
        for task in tasks
    ]
    context.reporter.planned(parts, topics=len(planned.plan.topics), idle=partitions - len(parts))
    context.reporter.phase("Verifying")


def _caveats(planned: Planned) -> dict[tuple[str, int], tuple[str, ...]]:
    """Return the offsets that the archive lacks, as reasons, by source topic and partition."""
    found: dict[tuple[str, int], list[str]] = {}
    for fact in planned.plan.loss:
        what = f"the archive lacks offsets {fact.start} to {fact.end - 1}: {fact.reason}"
        found.setdefault((fact.topic, fact.partition), []).append(what)
    return {where: shortened(reasons, MAX_REASONS) for where, reasons in found.items()}


def _work(
    context: RestoreContext,
    caveats: Mapping[tuple[str, int], tuple[str, ...]],
    tasks: Sequence[RestoreTask],
    expected: Sequence[ExpectedRecords],
) -> list[VerifyTask]:
    compacting = _compacting(context, [task.topic.target for task in tasks])
    return [
        VerifyTask(
            task,
            item.stretches,
            caveats.get((task.archived.topic, task.archived.partition), ()),
            compacts=task.topic.target in compacting,
            offsets=task.part.extent is not None,
        )
        for task, item in zip(tasks, expected, strict=True)
    ]


def _standing(context: RestoreContext, work: Sequence[VerifyTask]) -> tuple[list[VerifyTask], list[VerifyTask]]:
    """Return the partitions that the brokers do not know, and the others. Those without an answer are read, which
    waits."""
    answers = context.control.high_watermarks({_where(task) for task in work})
    known = answers.found.keys() | answers.silent.keys()
    gone = [task for task in work if _where(task) not in known]
    return gone, [task for task in work if _where(task) in known]


def _where(task: VerifyTask) -> tuple[str, int]:
    return task.restored.topic.target, task.restored.part.target


def _gone(task: VerifyTask) -> VerifiedPartition:
    expected = list(unpacked_stretches(task.expected))
    return VerifiedPartition(
        source=task.restored.archived.topic,
        target=task.restored.topic.target,
        partition=task.restored.part.target,
        verdict=Verdict.DIFFERENT,
        expected=sum(stretch.records for stretch in expected),
        records=0,
        bytes=0,
        reasons=(GONE,),
        times=RecordTimes(),
        offsets=(expected[0].start, expected[-1].end) if expected else (0, 0),
        compared_until=expected[0].start if expected else 0,
    )


def _compacting(context: RestoreContext, topics: Sequence[str]) -> set[str]:
    """Return the topics that compact now."""
    configs = effective_topic_configs(context.control, sorted(set(topics)))
    return {name for name, values in configs.items() if is_compacted(values)}


def _written(context: RestoreContext, report: VerificationReport) -> VerificationFacts:
    """Create the page, and then the document: where that lies, a later start finds both. Earlier reports stay."""
    state = context.state
    while True:
        page = create_report(state.storage, state.run_id, PAGE, page_of(report).encode())
        with suppress(ObjectExists):  # then this very call may have written it: its answer was lost
            with state.storage.writer(state.file(_document_beside(page)), replaces=None) as writer:
                for block in report.blocks():
                    writer.write(block)
            break
    facts = report.facts(state.name(page))
    log.info("verification: %s, %s", facts.outcome, facts.message)
    return facts


def _document_beside(page: str) -> str:
    return page.removesuffix(".html") + ".json"


def _page_beside(document: str) -> str:
    return document.removesuffix(".json") + ".html"
