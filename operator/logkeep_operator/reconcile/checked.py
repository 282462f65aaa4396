"""This module reads documents of drivers and checks everything in them: types, sizes, and that numbers are numbers.

The documents come from a pod that may be of another version, out of memory or not ours. They go into a status that the
API server must be able to store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

from logkeep_engine.contract.anchor import consent_in, is_consent
from logkeep_engine.contract.dry_run import DryRunReport
from logkeep_engine.contract.emitting import EmittedFacts
from logkeep_engine.contract.reconcile import ReconcileFacts
from logkeep_engine.contract.run import (
    ClusterStateFacts,
    DrillFacts,
    HeldTopics,
    LossFact,
    PartitionProgress,
    Progress,
    RunResult,
    TopicCoverage,
    VerificationFacts,
)
from logkeep_operator.api import StatusOutcome

D = TypeVar("D", Progress, RunResult)

MAX_INTEGER = (1 << 63) - 1
MAX_TIME = 253402300799  # the end of the year 9999
MAX_TOPIC = 249  # Kafka's own limit
MAX_ID = 256
MAX_URI = 4096
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")


class Unreadable(ValueError):
    """The document cannot be read, or says something that cannot be."""


def read(kind: type[D], text: str) -> D:
    """Return the checked document. Raises Unreadable."""
    try:
        document = kind.from_json(text)
    except RecursionError as error:
        raise Unreadable(f"{kind.__name__}: nested too deeply") from error
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(_short(f"{type(error).__name__}: {error}")) from error
    try:
        _progress(document) if isinstance(document, Progress) else _result(document)
    except Unreadable as error:
        raise Unreadable(f"{kind.__name__}: {error}") from error
    return document


def _progress(document: Progress) -> None:
    _text("runId", document.run_id, MAX_ID)
    _word("phase", document.phase)
    _times(startTime=document.start_time, updateTime=document.update_time)
    _integers(
        attempt=document.attempt,
        topics=document.topics,
        partitions=document.partitions,
        partitionsDone=document.partitions_done,
        records=document.records,
        bytes=document.bytes,
        offsetsDone=document.offsets_done,
        offsetsTotal=document.offsets_total,
        executors=0 if document.executors is None else document.executors,
    )
    for name, value in (("bytesPerSecond", document.bytes_per_second), ("secondsLeft", document.seconds_left)):
        if value is not None:
            _integer(name, value, 0)
    if document.point is not None:
        _text("point", document.point)
    if document.waits is not None:
        _text("waits", document.waits)
    for topic in document.moving:
        _text("topic", topic.topic, MAX_TOPIC)
        _integers(done=topic.done, total=topic.total)
    for shown in document.partitions_shown:
        _partition(shown)


def _partition(shown: PartitionProgress) -> None:
    _text("topic", shown.topic, MAX_TOPIC)
    _integers(
        partition=shown.partition,
        start=shown.start,
        end=shown.end,
        at=shown.at,
        records=shown.records,
        bytes=shown.bytes,
    )


def _anchors(document: RunResult) -> None:
    """Check the anchor, which must be that of the commit, and the consent."""
    known: tuple[tuple[str, Any, Callable[[str], object]], ...] = (
        ("anchor", document.anchor, is_consent),
        ("takenOver", document.taken_over, consent_in),
    )
    for key, text, read in known:
        if text is not None and not (isinstance(text, str) and read(text)):
            raise Unreadable(f"{key} is {text!r:.100}")
    if document.anchor is not None and document.anchor.partition(":")[0] != str(document.commit):
        raise Unreadable(f"anchor is {document.anchor!r}, and commit {document.commit}")


def _result(document: RunResult) -> None:
    _text("runId", document.run_id, MAX_ID)
    _text("kind", document.kind, MAX_ID)
    _text("outcome", document.outcome, MAX_ID)
    if document.outcome not in (StatusOutcome.SUCCEEDED, StatusOutcome.FAILED, StatusOutcome.DRY_RUN):
        raise Unreadable(f"outcome is {document.outcome!r}")
    _text("errorCode", document.error_code, MAX_ID)
    if document.error_code:
        _word("errorCode", document.error_code)
    _times(startTime=document.start_time, endTime=document.end_time)
    _integers(
        exitCode=document.exit_code,
        topics=document.topics,
        partitions=document.partitions,
        records=document.records,
        bytes=document.bytes,
        segments=document.segments,
        abortedRecords=document.aborted_records,
        groups=document.groups,
        epoch=document.epoch,
        lossTotal=document.loss_total,
        lossOffsets=document.loss_offsets,
    )
    _integer("commit", document.commit, -1)
    _anchors(document)
    _text("archiveId", document.archive_id, MAX_ID)
    _text("clusterId", document.cluster_id, MAX_ID)
    _text("offsetMap", document.offset_map, MAX_URI)
    if document.earlier_run is not None:
        _text("earlierRun", document.earlier_run, MAX_ID)
    if document.earlier_end is not None:
        _times(earlierEnd=document.earlier_end)
    _text("message", document.message)
    for warning in document.warnings:
        _text("warnings", warning)
    for fact in document.loss:
        _loss(fact)
    if document.coverage is not None:
        _coverage(document.coverage)
    if document.verification is not None:
        _verification(document.verification)
    if document.reconciled is not None:
        _reconciled(document.reconciled)
    if document.cluster_state is not None:
        _cluster_state(document.cluster_state)
    if document.drill is not None:
        _drill(document.drill)
    if document.emitted is not None:
        _emitted(document.emitted)
    if document.held_topics is not None:
        _held_topics(document.held_topics)
    if document.dry_run is not None:
        _dry_run(document.dry_run)


def _dry_run(found: DryRunReport) -> None:
    """Numbers were checked when the report was read; texts may have half a character."""
    for name, texts in (
        ("refusals", [item.message for item in found.refusals]),
        ("topics", [text for item in found.topics_shown for text in (item.topic, item.source or "")]),
        ("configs", [text for topic in found.topics_shown for item in topic.configs.items() for text in item]),
        ("groups", [item.group for item in found.groups_shown]),
        ("positions", [text for item in found.positions_shown for text in (item.group, item.topic)]),
        ("notChecked", found.not_checked),
        ("point", [found.point]),
        ("rate", [found.rate]),
    ):
        for text in texts:
            _text(f"dryRun.{name}", text)


def _cluster_state(facts: ClusterStateFacts) -> None:
    _text("clusterState.sourceRun", facts.source_run, MAX_ID)
    _text("clusterState.report", facts.report, MAX_URI)
    for user in facts.users:
        _text("clusterState.users", user)
    for acl in facts.held_back:
        _text("clusterState.heldBack", acl)
    numbers = {
        "acls": facts.acls,
        "aclsAdded": facts.acls_added,
        "aclsRefused": facts.acls_refused,
        "aclsHeldBack": facts.acls_held_back,
        "quotas": facts.quotas,
        "quotasAdded": facts.quotas_added,
        "quotasRefused": facts.quotas_refused,
        "quotasKept": facts.quotas_kept,
        "usersTotal": facts.users_total,
    }
    _integers(**{name: number for name, number in numbers.items() if number is not None})


def _verification(facts: VerificationFacts) -> None:
    _word("verification.outcome", facts.outcome)
    _text("verification.message", facts.message)
    _text("verification.report", facts.report, MAX_URI)
    _times(verificationEndTime=facts.end_time)
    _integers(
        partitions=facts.partitions,
        verified=facts.verified,
        notVerified=facts.not_verified,
        different=facts.different,
        records=facts.records,
    )


def _reconciled(facts: ReconcileFacts) -> None:
    _word("reconciled.outcome", facts.outcome)
    _text("reconciled.message", facts.message)
    _text("reconciled.report", facts.report, MAX_URI)
    _times(reconciledEndTime=facts.end_time)
    _integers(
        partitions=facts.partitions,
        notCompared=facts.not_compared,
        keys=facts.keys,
        stale=facts.stale,
        missing=facts.missing,
    )


def _drill(facts: DrillFacts) -> None:
    _text("drill.report", facts.report, MAX_URI)
    _times(recoverySeconds=facts.recovery_seconds, verifiedSeconds=facts.verified_seconds)
    _integers(partitions=facts.partitions, records=facts.records, bytes=facts.bytes)
    _integers(total=facts.total, cycle=facts.cycle, drilled=facts.drilled, runs=facts.runs)
    _integers(coldSegments=facts.cold_segments)


def _emitted(facts: EmittedFacts) -> None:
    _text("emitted.configMap", facts.config_map, MAX_ID)
    _text("emitted.key", facts.key, MAX_ID)
    _integers(topics=facts.topics)


def _held_topics(held: HeldTopics) -> None:
    _integers(heldTopics=held.total)
    for topic in held.topics:
        _text("heldTopics.topics", topic, MAX_TOPIC)
    for left in held.not_released:
        _text("heldTopics.notReleased", left, MAX_TOPIC + 40)  # and its outcome
    if held.released is not None:
        _integers(released=held.released)
    if held.released_time is not None:
        _times(releasedTime=held.released_time)


def _loss(fact: LossFact) -> None:
    _text("topic", fact.topic, MAX_TOPIC)
    _text("reason", fact.reason)
    _integers(partition=fact.partition, start=fact.start, end=fact.end)


def _coverage(found: TopicCoverage) -> None:
    for name, value in asdict(found).items():
        if isinstance(value, tuple):
            for text in value:  # of a pattern, too
                _text(f"coverage.{name}", text)
        else:
            _integer(f"coverage.{name}", value, 0)


def _text(name: str, value: Any, longest: int | None = None) -> None:
    """A checked text. `longest` None: whoever shows it cuts it."""
    if not isinstance(value, str):
        raise Unreadable(f"{name} is not a text")
    if longest is not None and len(value) > longest:
        raise Unreadable(f"{name} has {len(value)} characters, {longest} are allowed")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Unreadable(f"{name} has half a character") from error


def _word(name: str, value: Any) -> None:
    _text(name, value, MAX_ID)
    if not _WORD.fullmatch(value):
        raise Unreadable(f"{name} is {value!r}, which is not a word")


def _times(**values: Any) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unreadable(f"{name} is not a number")
        if not 0 <= value <= MAX_TIME:  # NaN is neither; a whole number of 400 digits is no float
            raise Unreadable(f"{name} is not a time")


def _integers(**values: Any) -> None:
    for name, value in values.items():
        _integer(name, value, 0)


def _integer(name: str, value: Any, least: int) -> None:
    if type(value) is not int:
        raise Unreadable(f"{name} is not a whole number")
    if not least <= value <= MAX_INTEGER:
        raise Unreadable(f"{name} is not between {least} and {MAX_INTEGER}")


def _short(text: str) -> str:
    """The text without half characters, so that a status can show it."""
    return text[:300].encode(errors="replace").decode()
