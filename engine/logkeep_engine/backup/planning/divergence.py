"""Asks the leaders whether their logs still begin with what is archived, before a run plans to add to it.

An unclean leader election, or a disk that was lost, cuts a log off below the archived end. Once it has grown again its
end offset says nothing: only leader epochs do (see `archive.catalog.lineage`). Batches of message formats 0 and 1 have
none, and some old brokers report none. Then the logs cannot be compared, and a warning says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.lineage import (
    UNKNOWN,
    Fork,
    Lineage,
    LineageComparison,
    LogStanding,
)
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import BackupPlan
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.errors import BrokerUnavailable, LogDiverged
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.survey import Answers, Ended
from logkeep_engine.kafka.witnesses import Fate

log = logging.getLogger(__name__)

TopicPartition = tuple[str, int]
Ask = Callable[[Mapping[TopicPartition, int | None]], Answers[Ended]]
"""Asks the leader of each partition where a leader epoch ended in its log; None: the leader's own."""

_SHOWN = 3
# So often may a leader change in the middle of a comparison; then the partition counts as one without an answer.
_CHANGES = 5


@dataclass(slots=True)
class Standings:
    """How logs stand to the archive, by topic and partition. `silent` are partitions whose leader gave no answer,
    `unknown` those that brokers do not know, both with the reason.
    """

    found: dict[TopicPartition, LogStanding] = field(default_factory=dict)
    silent: dict[TopicPartition, str] = field(default_factory=dict)
    unknown: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def unanswered(self) -> dict[TopicPartition, str]:
        """The partitions whose state no broker has reported, with the reason. Nothing of them may be
        archived.
        """
        return {**self.silent, **self.unknown}

    def update(self, newer: Standings) -> None:
        """Take over the newer standings of partitions that were compared again."""
        for where in (*newer.found, *newer.silent, *newer.unknown):
            self.found.pop(where, None)
        self.found |= newer.found
        self.silent |= newer.silent
        self.unknown |= newer.unknown


def standings_of(state: ArchiveState, partitions: Mapping[TopicPartition, Partition], ask: Ask) -> Standings:
    """Compare the logs of `partitions` with the archive. The values of `partitions` have topic ids in place of
    names. Raises what `ask` raises.
    """
    return compare_logs({where: state.lineage(*key) for where, key in partitions.items()}, ask)


@dataclass(frozen=True, slots=True)
class ComparedAgain:
    """The logs of a stored plan that were cut off since, and the partitions whose logs could not be compared, with the
    reason. Nothing of either is archived.
    """

    forks: tuple[Fork, ...]
    unanswered: Mapping[Partition, BrokerUnavailable]

    @property
    def left_out(self) -> set[Partition]:
        return {(fork.topic_id, fork.partition) for fork in self.forks} | self.unanswered.keys()


def compare_again(control: ControlPlane, plan: BackupPlan, state: ArchiveState) -> ComparedAgain:
    """Find out which logs were cut off since the plan was stored.

    The question goes by the topic's name, so it is not asked of a topic that has gone since. If that is proved, its
    chunks are tried: they are fetched by its id, and what is lost of them is reported.
    """
    names, without_leader = plan.topic_names, set(plan.unavailable)
    keys = {(chunk.topic_id, chunk.partition) for chunk in plan.chunks}
    partitions = {(names[topic_id], number): (topic_id, number) for topic_id, number in keys}
    ids = control.topic_ids(name for name, _ in partitions)
    other = {where: key[0] for where, key in partitions.items() if ids.get(where[0]) != key[0]}
    asked = {where: key for where, key in partitions.items() if where not in without_leader and where not in other}
    standings = standings_of(state, asked, control.epoch_ends)
    forks = tuple(
        Fork(*partitions[where], standing.fork, state.lineage(*partitions[where]).end)
        for where, standing in standings.found.items()
        if standing.fork is not None
    )
    unanswered = dict(standings.unanswered)
    if other:
        findings = control.findings(other)
        unanswered |= {
            where: findings[where].reason or "a broker does not know its topic"
            for where in other
            if findings[where].fate not in (Fate.GONE, Fate.RECREATED)
        }
    return ComparedAgain(forks, {partitions[where]: no_answer(where, why) for where, why in unanswered.items()})


def compare_logs(lineages: Mapping[TopicPartition, Lineage], ask: Ask) -> Standings:
    """Walk back in all lineages at the same time, with one question to each leader in a round."""
    standings = Standings()
    left = {where: _Walk(lineage) for where, lineage in lineages.items()}
    while left:
        answers = ask({where: walk.question for where, walk in left.items()})
        standings.silent |= answers.silent
        standings.unknown |= answers.unknown
        for where, ended in answers.found.items():
            left[where].take(ended)
        for where, walk in list(left.items()):
            if where not in answers.found:
                del left[where]
            elif walk.changes > _CHANGES:
                standings.silent[where] = "its leader keeps changing"
                del left[where]
            elif (standing := walk.standing) is not None:
                standings.found[where] = standing
                del left[where]
    return standings


class _Walk:
    """The comparison of one partition, begun again if another leader answers than before."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._comparison = LineageComparison(lineage)
        self._leader_epoch: int | None = None
        self._has_epochs = False
        self.changes = 0

    @property
    def question(self) -> int | None:
        return self._comparison.question

    def take(self, ended: Ended) -> None:
        if self._leader_epoch not in (None, ended.current_epoch):
            self.changes += 1
            self._leader_epoch = None
            self._has_epochs = False
            self._comparison = LineageComparison(self._lineage)
            return
        self._leader_epoch = ended.current_epoch
        self._has_epochs = self._has_epochs or ended.leader_epoch >= 0
        if self._comparison.question is not None:
            self._comparison.answer(ended.leader_epoch, ended.end_offset)

    @property
    def standing(self) -> LogStanding | None:
        """The result of the comparison; None while there is more to ask."""
        if self._leader_epoch is None or self._comparison.question is not None:
            return None
        epoch = self._leader_epoch if self._has_epochs else UNKNOWN
        # An empty archive parts from nothing, and a log whose leader never changed was never cut off.
        known = self._comparison.known or self._lineage.end == 0 or epoch == 0
        return LogStanding(epoch, self._comparison.fork, known, self._leader_epoch)


def diverged(forks: Sequence[Fork], names: Mapping[str, str], format_name: FormatName) -> LogDiverged:
    """Return the error of a run that has found logs that no longer are those of the archive; `names` are by topic
    id."""
    shown = "; ".join(
        f"topic {names[fork.topic_id]!r} partition {fork.partition} from offset {fork.offset} on, where the archive "
        f"holds the log as it was up to offset {fork.end}"
        for fork in forks[:_SHOWN]
    )
    more = f"; and {len(forks) - _SHOWN} more" if len(forks) > _SHOWN else ""
    return LogDiverged(
        f"The cluster has cut off what is archived (unclean leader election, or a lost disk) and may have written "
        f"other records since: {shown}{more}. Nothing of {'this partition' if len(forks) == 1 else 'these partitions'} "
        "was archived, so that the two are not mixed; the archive keeps what it has.",
        hint=_BRANCH if format_name is FormatName.KAFKA else _NO_BRANCH,
    )


_NO_BRANCH = (
    "Use another storage.uri for the log as it is now, or exclude the topic with spec.topics.exclude. "
    "An archive of format Kafka can hold both (onDivergence: Branch)."
)
_BRANCH = (
    "With onDivergence: Branch a new run keeps the old end as a branch, which restores find by its id, and archives "
    "the log as it is now; or use another storage.uri, or exclude the topic with spec.topics.exclude."
)


def branch_warning(fork: Fork, names: Mapping[str, str]) -> str:
    """Return the warning for an old end that became a branch."""
    return (
        f"The cluster has cut off topic {names[fork.topic_id]!r} partition {fork.partition} at offset {fork.offset} "
        f"(unclean leader election, or a lost disk). What is archived of it up to offset {fork.end} is kept as branch "
        f"{fork.branch_id}; the log as it is now is archived from offset {fork.offset} on."
    )


def no_answer(where: tuple[str, int], why: str) -> BrokerUnavailable:
    """Return the error of a partition if it is unknown whether its log still begins with what is archived."""
    return BrokerUnavailable(
        f"Topic {where[0]!r} partition {where[1]} was not archived: {why}.",
        hint="Everything else was archived. Bring its brokers back and run again.",
    )


def uncompared_warning(partitions: Sequence[TopicPartition]) -> str:
    """Return the warning for partitions of which the archive has no leader epochs."""
    shown = ", ".join(f"{topic!r} partition {number}" for topic, number in partitions[:_SHOWN])
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return (
        "It is unknown whether logs were cut off before this run, since it was not recorded which leaders wrote what "
        f"is archived: {shown}{more}."
    )
