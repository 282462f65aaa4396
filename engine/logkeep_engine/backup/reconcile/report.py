"""The report of a reconciliation. It names offsets and counts, and no key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from logkeep_engine.archive.catalog.facts import GenerationChange, GenerationStep, Partition
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.backup.reconcile.task import KeyVerdict, ReconciledPartition
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_engine.contract.facts.values import time_of
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import KeysMissing, NotReconciled
from logkeep_engine.log.key_comparison import KeyCounts

# ---- healing

# Heals stale keys: another generation of a partition becomes due, and the next backup reads it.
#
# Only the log itself can bring back a tombstone that the archive lacks, so all of the log is read again (see
# `backup.planning.generations`). One commit says of which partitions, and the archive keeps it until their
# generations are active, however often a backup dies in the meantime. A kill before that commit leaves nothing: the
# next reconciliation finds the keys again.


CHANGED = "a new generation of it has become active since it was compared: compare again"
FIRST = "its first generation is not active yet: compare again after the next backup"
WRONG = "the archive lacks records that it must have: keep it as it is, and start a new one"


def to_heal(partitions: Iterable[ReconciledPartition]) -> list[ReconciledPartition]:
    """Return the partitions with stale keys."""
    return [item for item in partitions if item.counts.stale]


def make_due(writer: Writer, report: ReconcileReport, compared: ArchiveState) -> ReconcileReport:
    """Make new generations due of the partitions with stale keys, in one commit; returns the report that says so.
    `compared`: the state in which they were found. Raises what the writer does."""
    reported, changes = {}, []
    for item in to_heal(report.partitions):
        key, state = item.key, writer.state
        reported[key] = WRONG if item.counts.wrong else why_not(state, compared, key)
        known = generation_of(state, key)
        if not reported[key] and not known.due:
            changes.append(GenerationChange(*key, known.number, GenerationStep.DUE))
    writer.change_generations(changes)
    return replace(report, healing=reported)


def why_not(state: ArchiveState, compared: ArchiveState, key: Partition) -> str:
    """Return the reason why a partition that was compared cannot have a new generation; empty if it can."""
    number = generation_of(state, key).number
    if not number:
        return FIRST
    return CHANGED if number != generation_of(compared, key).number else ""


FORMAT = 1
MOST_OFFSETS = 20
"""This many offsets of each kind the report names for a partition."""

_WORST_FIRST = (KeyVerdict.KEYS_MISSING, KeyVerdict.NOT_COMPARED, KeyVerdict.STALE_KEYS)


@dataclass(frozen=True)
class ReconcileReport:
    """The report of one reconciliation, which lies at the URI `document` once it is kept. `not_archived` are compacted
    topics of which the archive has nothing yet. `healing`: the partitions that were to get a new generation, and why
    one gets none (empty: it is due)."""

    run_id: str
    archive_id: str
    cluster_id: str
    start_time: float
    end_time: float
    partitions: tuple[ReconciledPartition, ...]
    not_archived: tuple[str, ...] = ()
    document: str = ""
    healing: Mapping[Partition, str] = field(default_factory=dict)

    @property
    def outcome(self) -> KeyVerdict:
        """The worst of all partitions."""
        verdicts = {item.verdict for item in self.partitions}
        return next((verdict for verdict in _WORST_FIRST if verdict in verdicts), KeyVerdict.SAME)

    @property
    def counts(self) -> KeyCounts:
        """Those of all partitions."""
        return sum((item.counts for item in self.partitions), KeyCounts())

    def of(self, verdict: KeyVerdict) -> list[ReconciledPartition]:
        """Return the partitions with this verdict."""
        return [item for item in self.partitions if item.verdict is verdict]

    @property
    def message(self) -> str:
        """The finding in one sentence."""
        compared = len(self.partitions) - len(self.of(KeyVerdict.NOT_COMPARED))
        counts = self.counts
        text = f"{so_many(counts.keys, 'key')} of {so_many(compared, 'compacted partition')} compared"
        parts = []
        if counts.wrong:
            parts.append(f"the archive lacks the last record of {_in(counts.wrong, self.of(KeyVerdict.KEYS_MISSING))}")
        if counts.stale:
            stale = [item for item in self.partitions if item.counts.stale]
            parts.append(f"{_in(counts.stale, stale)} alive in the archive and gone from the cluster")
        if failed := self.of(KeyVerdict.NOT_COMPARED):
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            parts.append(f"not compared: {place(failed[0])}{more}: {failed[0].failed}")
        return "; ".join([text, *(parts or ["no stale keys"]), *self._healing()])

    def _healing(self) -> Iterator[str]:
        """Yield the sentences about what was done to heal it."""
        due = sum(not why for why in self.healing.values())
        if due:
            yield f"the next backup reads {so_many(due, 'partition')} again"
        left = [item for item in self.partitions if self.healing.get(item.key)]
        if left:
            more = f", and {len(left) - 1} more" if len(left) > 1 else ""
            yield f"not healed: {place(left[0])}{more}: {self.healing[left[0].key]}"

    def facts(self) -> ReconcileFacts:
        """Return the facts for the result of a run."""
        counts = self.counts
        return ReconcileFacts(
            run_id=self.run_id,
            outcome=self.outcome.value,
            message=self.message,
            partitions=len(self.partitions),
            not_compared=len(self.of(KeyVerdict.NOT_COMPARED)),
            keys=counts.keys,
            stale=counts.stale,
            missing=counts.wrong,
            end_time=time_of(self.end_time),
            report=self.document,
        )

    def raise_if_wrong(self) -> None:
        """Raises KeysMissing if the archive lacks what it must have, NotReconciled if not all could be compared."""
        if self.outcome is KeyVerdict.KEYS_MISSING:
            raise KeysMissing(
                f"{self.message}.",
                hint="The archive accounts for these offsets but does not hold the records. "
                f"{self.document} names them. Check the archive with `logkeep verify`, keep it, and start a new one "
                "(another storage.uri).",
            )
        if self.outcome is KeyVerdict.NOT_COMPARED:
            raise NotReconciled(
                f"{self.message}.",
                hint=f"{self.document} names all partitions that could not be compared. Compare again.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return the document that is kept, and that the command prints."""
        return {
            "format": FORMAT,
            "runId": self.run_id,
            "archiveId": self.archive_id,
            "clusterId": self.cluster_id,
            "startTime": self.start_time,
            "endTime": self.end_time,
            "outcome": self.outcome.value,
            "message": self.message,
            "notArchived": list(self.not_archived),
            "partitions": [{**_partition(item), **self._healing_of(item)} for item in self.partitions],
        }

    def _healing_of(self, item: ReconciledPartition) -> dict[str, str]:
        why = self.healing.get(item.key)
        return {} if why is None else {"healing": why or "Due"}

    def content(self) -> bytes:
        """Return the object that is kept."""
        return json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def place(item: ReconciledPartition) -> str:
    """Return the name of a partition in a sentence."""
    return f"topic {item.topic} partition {item.partition}"


def _in(keys: int, where: list[ReconciledPartition]) -> str:
    more = f" and {so_many(len(where) - 1, 'more partition')}" if len(where) > 1 else ""
    return f"{so_many(keys, 'key')} ({place(where[0])}{more})"


def _partition(item: ReconciledPartition) -> dict[str, Any]:
    found, counts = item.keys, item.counts
    reported: dict[str, Any] = {
        "topic": item.topic,
        "topicId": item.topic_id,
        "partition": item.partition,
        "verdict": item.verdict.value,
        "archivedEnd": item.archived_end,
    }
    if found is None:
        return {**reported, "reason": item.failed}
    return {
        **reported,
        "logStart": found.start,
        "logEnd": found.end,
        "keys": counts.keys,
        "stale": counts.stale,
        "expired": counts.expired,
        "missing": counts.missing,
        "differing": counts.differing,
        "withoutKey": counts.without_key,
        "shares": found.shares,
        "staleOffsets": list(found.stale[:MOST_OFFSETS]),
        "missingOffsets": list(found.wrong[:MOST_OFFSETS]),
    }
