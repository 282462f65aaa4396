"""Is what could not be read really lost?

A task that finds offsets deleted, cut off or below the log's start hands them in as gaps, which are suspicions: it has
asked one broker, in the middle of whatever goes on. A gap in the catalog is for ever, since no later run asks for its
offsets. So the driver lets the cluster prove each one before it commits it (`kafka.witnesses`), and records what was
proved, with the reason that the proof gives. What is not proved is not recorded: its piece fails, and so does the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from logkeep_engine.archive.model import Gap, Receipt
from logkeep_engine.backup.plan import REASON_DELETED, REASON_RECREATED, REASON_RETENTION, REASON_TRUNCATED
from logkeep_engine.errors import LossNotProved
from logkeep_engine.kafka.control import ControlPlane
from logkeep_engine.kafka.witnesses import Fate, Finding

_HINT = (
    "Nothing of these offsets was recorded as lost: the next attempt reads them. Check that all brokers are running "
    "and that the partition's replicas are in sync."
)


@dataclass(frozen=True, slots=True)
class Proof:
    """`lost` are the parts of a suspected gap that are lost for sure, `left` those of which that is not known."""

    lost: tuple[Gap, ...]
    left: tuple[Gap, ...]


def prove(
    control: ControlPlane, gaps: Sequence[Gap], topics: Mapping[str, str]
) -> tuple[list[Gap], list[LossNotProved]]:
    """What of these suspected gaps is lost, and an error for each of which nothing is. `topics`: name by topic id.

    A gap of which a part is lost is no error: the rest of it was not lost when the cluster was asked, and stays open.
    """
    if not gaps:
        return [], []
    findings = control.findings({(topics[gap.topic_id], gap.partition): gap.topic_id for gap in gaps})
    lost: list[Gap] = []
    errors: list[LossNotProved] = []
    for gap in gaps:
        name = topics[gap.topic_id]
        finding = findings[name, gap.partition]
        found = judge(gap, finding)
        lost += found.lost
        if not found.lost:
            errors.append(_not_proved(name, gap, finding))
    return lost, errors


def judge(gap: Gap, finding: Finding) -> Proof:
    """What a finding proves of a suspected gap."""
    match finding.fate:
        case Fate.GONE:
            return Proof((replace(gap, reason=REASON_DELETED),), ())
        case Fate.RECREATED:
            return Proof((replace(gap, reason=REASON_RECREATED),), ())
        case Fate.NOT_KNOWN:
            return Proof((), (gap,))
    below = replace(gap, end=min(gap.end, finding.log_start), reason=REASON_RETENTION)
    above = replace(gap, start=max(gap.start, finding.log_end), reason=REASON_TRUNCATED)
    there = replace(gap, start=max(gap.start, finding.log_start), end=min(gap.end, finding.log_end))
    return Proof(tuple(_filled(below, above)), tuple(_filled(there)))


def _filled(*gaps: Gap) -> Iterator[Gap]:
    return (gap for gap in gaps if gap.start < gap.end)


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


def without_gaps(receipt: Receipt) -> Receipt | None:
    """What a task has archived, without what it takes for lost; None if nothing is left."""
    return replace(receipt, gaps=()) if receipt.coverage else None


def as_receipts(gaps: Iterable[Gap]) -> list[Receipt]:
    """Gaps to commit."""
    return [Receipt(gaps=(gap,)) for gap in gaps]
