"""The proof that offsets are really lost, before a commit notes a gap.

A task hands in offsets as gaps if it finds them deleted, cut off, or below the log's start. Such a gap is a suspicion:
the task has asked one broker, in the middle of whatever happens. A gap in the catalog is for ever, since no later run
asks for its offsets. So the driver lets the cluster prove each gap before it commits it (`kafka.witnesses`), with the
reason that the proof gives. A gap that is not proved is not committed: its piece fails, and so does the run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from logkeep_engine.archive.catalog.facts import Gap, Partition, Receipt
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import REASON_DELETED, REASON_RECREATED, REASON_RETENTION, REASON_TRUNCATED
from logkeep_engine.errors import LossNotProved
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.witnesses import Fate, Finding

_HINT = (
    "Nothing of these offsets was recorded as lost: the next attempt reads them. Check that all brokers are running "
    "and that the partition's replicas are in sync."
)


@dataclass(frozen=True, slots=True)
class Proof:
    """The ranges of a suspected gap: those in `lost` are lost for sure, those in `left` may not be."""

    lost: tuple[Gap, ...]
    left: tuple[Gap, ...]


class LossBook:
    """The gaps that a run has found, and whether commits note them. With `onDataLoss: Fail` no commit does, so that
    every run reports them until a user has decided.
    """

    def __init__(self, control: ControlPlane, *, record: bool) -> None:
        self._lost: list[Gap] = []
        self._control = control
        self.topics: Mapping[str, str] = {}
        """Names of the run's topics, and of those that the archive has, by topic id."""
        self._record = record

    def open(self, state: ArchiveState) -> list[Gap]:
        """Return the gaps that no commit notes. A neighbour may have archived some offsets of a gap before they were
        gone."""
        return [
            replace(gap, start=start, end=end)
            for gap in self._lost
            for start, end in state.uncovered(gap.topic_id, gap.partition, gap.start, gap.end)
        ]

    def name(self, topic_id: str) -> str:
        """Return the name of a topic."""
        return self.topics[topic_id]

    def prove(self, gaps: Sequence[Gap]) -> tuple[list[Receipt], list[tuple[Gap, LossNotProved]]]:
        """Return the receipts of proved gaps, and the gaps that are not proved, with the reason. Raises what the
        control plane raises.
        """
        if not gaps:
            return [], []
        findings = self._findings({(gap.topic_id, gap.partition) for gap in gaps})
        lost: list[Gap] = []
        left: list[tuple[Gap, LossNotProved]] = []
        for gap in gaps:
            name = self.topics[gap.topic_id]
            finding = findings[gap.topic_id, gap.partition]
            proof = judge(gap, finding)
            lost += proof.lost
            left += ((part, _not_proved(name, part, finding)) for part in proof.left)
        self._lost += lost
        return [Receipt(gaps=(gap,)) for gap in lost] if self._record else [], left

    def _findings(self, partitions: Collection[Partition]) -> dict[Partition, Finding]:
        """Ask for the truth about these partitions: of one incarnation of each topic at a time, since questions have
        names."""
        incarnations: dict[str, list[str]] = {}
        for topic_id in {topic_id for topic_id, _ in partitions}:
            incarnations.setdefault(self.topics[topic_id], []).append(topic_id)
        found: dict[Partition, Finding] = {}
        for ids in zip_longest(*incarnations.values()):
            asked = {(self.topics[key[0]], key[1]): key for key in partitions if key[0] in ids}
            findings = self._control.findings({where: key[0] for where, key in asked.items()})
            found |= {key: findings[where] for where, key in asked.items()}
        return found


def judge(gap: Gap, finding: Finding) -> Proof:
    """Tell what a finding proves of a suspected gap."""
    match finding.fate:
        case Fate.GONE:
            return Proof((replace(gap, reason=REASON_DELETED),), ())
        case Fate.RECREATED:
            return Proof((replace(gap, reason=REASON_RECREATED),), ())
        case Fate.NOT_KNOWN:
            return Proof((), (gap,))
    start, end = finding.log_start, finding.log_end
    lost = (
        *_range_of(gap, gap.start, min(gap.end, start), REASON_RETENTION),
        *_range_of(gap, max(gap.start, start, end), gap.end, REASON_TRUNCATED),
    )
    return Proof(lost, _range_of(gap, max(gap.start, start), min(gap.end, end), gap.reason))


def _range_of(gap: Gap, start: int, end: int, reason: str) -> tuple[Gap, ...]:
    return (replace(gap, start=start, end=end, reason=reason),) if start < end else ()


def _not_proved(topic: str, gap: Gap, finding: Finding) -> LossNotProved:
    where = f"Topic {topic!r} partition {gap.partition}: offsets [{gap.start}, {gap.end})"
    if finding.fate is Fate.NOT_KNOWN:
        return LossNotProved(
            f"{where} could not be read ({gap.reason}?), and it is not proved that they are lost: {finding.reason}.",
            hint=_HINT,
        )
    return LossNotProved(
        f"{where} could not be read ({gap.reason}?), but they are there: the leader's log is "
        f"[{finding.log_start}, {finding.log_end}).",
        hint=_HINT,
    )
