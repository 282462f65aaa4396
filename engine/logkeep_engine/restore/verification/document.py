"""The report of a verification, as a document."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logkeep_engine.archive.care.record_digests import RecordTimes
from logkeep_engine.contract.run import VerificationFacts
from logkeep_engine.restore.verification.aligning import RecordDifference
from logkeep_engine.restore.verification.task import Verdict, VerifiedPartition

FORMAT = 1
_COUNTS = {"verified": "verified", "not_verified": "notVerified", "different": "different"}


@dataclass(frozen=True)
class VerificationReport:
    """The report of one verification. `before` has the times of what each partition must hold. `idle` are the
    partitions that must be empty, with the records that are there. `read` segments had no digests, and were read."""

    run_id: str
    archive_id: str
    cluster_id: str
    start_time: float
    end_time: float
    partitions: tuple[VerifiedPartition, ...]
    idle: Mapping[tuple[str, int], int]
    before: Mapping[tuple[str, int], RecordTimes]
    read: int = 0

    @property
    def outcome(self) -> Verdict:
        """The worst of all partitions."""
        verdicts = {item.verdict for item in self.partitions}
        if Verdict.DIFFERENT in verdicts:
            return Verdict.DIFFERENT
        return Verdict.NOT_VERIFIED if Verdict.NOT_VERIFIED in verdicts or self.taken else Verdict.VERIFIED

    @property
    def taken(self) -> list[tuple[str, int]]:
        """The partitions that must be empty, and are not."""
        return sorted(where for where, records in self.idle.items() if records)

    def count(self, verdict: Verdict) -> int:
        """The number of partitions with a verdict. One that must be empty, and is, is verified."""
        empty = 0
        if verdict is Verdict.VERIFIED:
            empty = len(self.idle) - len(self.taken)
        elif verdict is Verdict.NOT_VERIFIED:
            empty = len(self.taken)
        return sum(item.verdict is verdict for item in self.partitions) + empty

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
        different = [item for item in self.partitions if item.differences]
        if different:
            first = different[0]
            more = f", and {len(different) - 1} more partitions differ" if len(different) > 1 else ""
            return f"{_place(first)}: {first.differences[0]}{more}"
        open_ones = [item for item in self.partitions if item.verdict is Verdict.NOT_VERIFIED]
        if open_ones:
            first = open_ones[0]
            reason = first.reasons[0] if first.reasons else "not all of it was read"
            more = f", and {len(open_ones) - 1} more partitions are not verified" if len(open_ones) > 1 else ""
            return f"{_place(first)} is not verified: {reason}{more}"
        if self.taken:
            topic, partition = self.taken[0]
            return f"topic {topic} partition {partition} is not verified: others have written to it"
        return f"all {self.records} records are those of the archive"

    def facts(self, report: str) -> VerificationFacts:
        """The facts for the result of the run. `report` is where the page lies."""
        return VerificationFacts(
            outcome=self.outcome.value,
            message=self.message,
            partitions=len(self.partitions) + len(self.idle),
            verified=self.count(Verdict.VERIFIED),
            not_verified=self.count(Verdict.NOT_VERIFIED),
            different=self.count(Verdict.DIFFERENT),
            records=self.records,
            end_time=self.end_time,
            report=report,
        )

    def to_json(self) -> bytes:
        """The document, for programs."""
        body = {
            "format": FORMAT,
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
            "partitions": [_partition(item, self.before[item.where]) for item in self.partitions],
            "notEmpty": [[topic, partition, self.idle[topic, partition]] for topic, partition in self.taken],
            "empty": len(self.idle) - len(self.taken),
        }
        return json.dumps(body, indent=1, ensure_ascii=False).encode()


def facts_of(document: bytes, report: str) -> VerificationFacts | None:
    """The facts of a document that was written, None if it is none that this version reads."""
    try:
        body: dict[str, Any] = json.loads(document)
        if body["format"] != FORMAT:
            return None
        counts = {name: body[key] for name, key in _COUNTS.items()}
        return VerificationFacts(
            outcome=Verdict(body["outcome"]).value,
            message=body["message"],
            partitions=sum(counts.values()),
            records=body["records"],
            end_time=body["endTime"],
            report=report,
            **counts,
        )
    except (ValueError, KeyError, TypeError):
        return None


def _place(item: VerifiedPartition) -> str:
    return f"topic {item.target} partition {item.partition}"


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
        "differences": [_difference(found) for found in item.differences],
        "before": _times(before),
        "after": _times(item.times),
    }


def _difference(found: RecordDifference) -> dict[str, Any]:
    return {
        "kind": found.kind.value,
        "sourceOffset": found.source_offset,
        "targetOffset": found.target_offset,
        "records": found.records,
        "fields": list(found.fields),
    }


def _times(times: RecordTimes) -> dict[str, Any]:
    """Buckets of (begin in ms, records, bytes)."""
    return {
        "widthMs": 1 << times.shift,
        "buckets": [[number << times.shift, records, size] for number, records, size in times.buckets],
    }
