"""The report of a verification, as a document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.maintenance.record_digests import RecordTimes
from logkeep_engine.contract.facts.outcome import VerificationFacts
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.stored import StoredDocument
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition

REPORT = StoredDocument(
    "report of a verification",
    1,
    {
        "runId": str,
        "archiveId": str,
        "clusterId": str,
        "startTime": float,
        "endTime": float,
        "outcome": str,
        "message": str,
        "expected": int,
        "records": int,
        "segmentsRead": int,
        "verified": int,
        "notVerified": int,
        "different": int,
        "empty": int,
        "partitions": [dict],
        "idle": [dict],
    },
)
_COUNTS = {"verified": "verified", "not_verified": "notVerified", "different": "different"}


@dataclass(frozen=True, slots=True)
class IdlePartition:
    """A partition to which nothing is restored, and of which more is to be said than that it is empty."""

    target: str
    partition: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class VerificationReport:
    """The report of one verification. `before` has the times of what each partition must hold. Of the partitions to
    which nothing is restored, `empty` are as they must be, and the others are `idle`. `read` segments had no digests,
    and were read."""

    run_id: str
    archive_id: str
    cluster_id: str
    start_time: float
    end_time: float
    partitions: tuple[VerifiedPartition, ...]
    idle: Sequence[IdlePartition]
    empty: int
    before: Mapping[tuple[str, int], RecordTimes]
    read: int = 0

    @property
    def _all(self) -> list[VerifiedPartition | IdlePartition]:
        return [*self.partitions, *self.idle]

    @property
    def outcome(self) -> Verdict:
        """The worst of all partitions."""
        verdicts = {item.verdict for item in self._all}
        if Verdict.DIFFERENT in verdicts:
            return Verdict.DIFFERENT
        return Verdict.NOT_VERIFIED if Verdict.NOT_VERIFIED in verdicts else Verdict.VERIFIED

    def count(self, verdict: Verdict) -> int:
        """Return the number of partitions with a verdict. One that must be empty, and is, is verified."""
        empty = self.empty if verdict is Verdict.VERIFIED else 0
        return sum(item.verdict is verdict for item in self._all) + empty

    @property
    def expected(self) -> int:
        """Records that the target must have."""
        return sum(item.expected for item in self.partitions)

    @property
    def records(self) -> int:
        """Records of the target that were compared."""
        return sum(item.records for item in self.partitions)

    @property
    def message(self) -> str:
        """The finding in one sentence: the first difference, or the first reason."""
        worst = self.outcome
        if worst is Verdict.VERIFIED:
            return f"all {self.records} records are those of the archive"
        items = [item for item in self._all if item.verdict is worst]
        first, more = items[0], len(items) - 1
        others = f", and {more} more partition{'s' if more > 1 else ''}"
        if worst is Verdict.DIFFERENT:
            text = f"{_place(first)}: {_finding(first)}"
            return text + (f"{others} differ{'s' if more == 1 else ''}" if more else "")
        text = f"{_place(first)} is not verified: {_finding(first)}"
        return text + (f"{others} {'is' if more == 1 else 'are'} not verified" if more else "")

    def facts(self, report: str) -> VerificationFacts:
        """Return the facts for the result of the run. `report` is where the page lies."""
        return VerificationFacts(
            run_id=self.run_id,
            outcome=self.outcome.value,
            message=self.message,
            partitions=len(self.partitions) + len(self.idle) + self.empty,
            verified=self.count(Verdict.VERIFIED),
            not_verified=self.count(Verdict.NOT_VERIFIED),
            different=self.count(Verdict.DIFFERENT),
            records=self.records,
            end_time=time_of(self.end_time),
            report=report,
        )

    def blocks(self) -> Iterator[bytes]:
        """Yield the document, for programs: JSON with a line for each partition."""
        head = {
            "runId": self.run_id,
            "archiveId": self.archive_id,
            "clusterId": self.cluster_id,
            "startTime": self.start_time,
            "endTime": self.end_time,
            "outcome": self.outcome.value,
            "message": self.message,
            "expected": self.expected,
            "records": self.records,
            "segmentsRead": self.read,
            "verified": self.count(Verdict.VERIFIED),
            "notVerified": self.count(Verdict.NOT_VERIFIED),
            "different": self.count(Verdict.DIFFERENT),
            "empty": self.empty,
        }
        yield REPORT.head(head)
        yield from _listed("partitions", (_partition(item, self.before[item.where]) for item in self.partitions))
        yield from _listed("idle", map(_idle, self.idle))
        yield b"}\n"


def facts_of(document: bytes, report: str) -> VerificationFacts | None:
    """Return the facts of a document that was written, None if it is none that this version reads."""
    try:
        body = REPORT.loads(document)
        counts = {name: body[key] for name, key in _COUNTS.items()}
        return VerificationFacts(
            run_id=body["runId"],
            outcome=Verdict(body["outcome"]).value,
            message=body["message"],
            partitions=sum(counts.values()),
            records=body["records"],
            end_time=time_of(body["endTime"]),
            report=report,
            **counts,
        )
    except ValueError:  # it is not a report, or its outcome is not a verdict
        return None


def _place(item: VerifiedPartition | IdlePartition) -> str:
    return f"topic {item.target} partition {item.partition}"


def _finding(item: VerifiedPartition | IdlePartition) -> str:
    """Return the first thing that is to be said of a partition that is not verified."""
    if isinstance(item, IdlePartition):
        return item.reason
    if item.verdict is Verdict.DIFFERENT and item.differences:
        return str(item.differences[0])
    lacks = [str(found) for found in item.differences]
    return next(iter((*item.reasons, *lacks)), "not all of it was read")


def _compact(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _listed(name: str, items: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    yield f',\n"{name}":['.encode()
    for number, item in enumerate(items):
        yield (b",\n" if number else b"\n") + _compact(item)
    yield b"]"


def _idle(item: IdlePartition) -> dict[str, Any]:
    return {
        "target": item.target,
        "partition": item.partition,
        "verdict": item.verdict.value,
        "reason": item.reason,
    }


def _partition(item: VerifiedPartition, before: RecordTimes) -> dict[str, Any]:
    return {
        "source": item.source,
        "target": item.target,
        "partition": item.partition,
        "verdict": item.verdict.value,
        "expected": item.expected,
        "records": item.records,
        "bytes": item.bytes,
        "stretches": item.stretches,
        "differing": [list(offsets) for offsets in item.differing],
        "reasons": list(item.reasons),
        "differences": [found.to_json() for found in item.differences],
        "before": _times(before),
        "after": _times(item.times),
    }


def _times(times: RecordTimes) -> dict[str, Any]:
    """Buckets of (begin in ms, records, bytes)."""
    return {
        "widthMs": 1 << times.shift,
        "buckets": [[number << times.shift, records, size] for number, records, size in times.buckets],
    }
