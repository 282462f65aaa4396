"""The sentences about a backup that its result, its error and the archive show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logkeep_engine.archive.catalog.facts import Gap
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.backup.model.plan import BackupPlan, Chunk
from logkeep_engine.backup.planning.divergence import branch_warning, uncompared_warning
from logkeep_engine.contract.facts.outcome import LossFact
from logkeep_engine.contract.s3_options import MINIMUM_DAYS
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import DataLoss


def loss_facts(plan: BackupPlan, state: ArchiveState, open_losses: Iterable[Gap]) -> list[LossFact]:
    """Return all that a run, in all its attempts, found gone: in the plan, and by its tasks. `open_losses` are the gaps
    that no commit notes.
    """
    names = plan.names_with(state)
    found = list(open_losses)
    ranges: list[Gap | Chunk] = [*plan.gaps, *(chunk for chunk in plan.chunks if not chunk.generation)]
    for item in ranges:
        found += state.gaps_in(item.topic_id, item.partition, item.start, item.end)
    gaps = {(gap.topic_id, gap.partition, gap.start): gap for gap in found}
    facts = [
        LossFact(topic=names[gap.topic_id], partition=gap.partition, start=gap.start, end=gap.end, reason=gap.reason)
        for gap in gaps.values()
    ]
    return sorted(facts, key=lambda fact: (fact.topic, fact.partition, fact.start))


def done_already(run_id: str) -> str:
    """Return the warning for a run that had succeeded before it was started again."""
    return (
        f"run {run_id} had already succeeded: it did not look for newer records, or for what another spec selects; "
        "another run id archives them"
    )


def class_warnings(spec: KafkaBackupSpec) -> list[str]:
    """Return the warning for objects that retention deletes before their storage class has been paid for."""
    wanted = spec.place.s3.storage_class if spec.place.s3 is not None else None
    days, age = MINIMUM_DAYS.get(wanted or "", 0), spec.retention.max_age_seconds
    if age is None or age >= days * 86_400:
        return []
    return [
        f"storage.s3.storageClass {wanted} bills {days} days of each object, and retention.maxAge "
        f"{spec.retention.max_age} deletes it before: the class costs more than it saves"
    ]


def data_loss(loss: Sequence[LossFact]) -> DataLoss:
    """Return the error of a run with `onDataLoss: Fail`."""
    return DataLoss(
        f"{loss_message(loss)}.",
        hint="Everything else was archived. The loss is not recorded: every run finds it again, until one with "
        "onDataLoss: Record has recorded it and succeeds. To avoid it run more often or keep records longer.",
    )


def loss_message(loss: Sequence[LossFact]) -> str:
    """Return how many offsets are lost, and the first of them; empty if none is."""
    if not loss:
        return ""
    first = "; ".join(
        f"topic {fact.topic!r} partition {fact.partition} offsets [{fact.start}, {fact.end}): {fact.reason}"
        for fact in loss[:3]
    )
    more = f"; and {len(loss) - 3} more" if len(loss) > 3 else ""
    return f"{so_many(sum(fact.end - fact.start for fact in loss), 'offset')} could not be archived: {first}{more}"


def disagreement_message(disagreements: Sequence[str]) -> str:
    """Return the first transaction about which markers and lists of fetches disagree; empty if there is none."""
    if not disagreements:
        return ""
    more = f"; and {len(disagreements) - 1} more transactions" if len(disagreements) > 1 else ""
    return f"{disagreements[0]}{more}"


def log_warnings(plan: BackupPlan) -> list[str]:
    """Return the warnings for logs that were cut off, and for logs that could not be compared with the archive."""
    warnings = [branch_warning(fork, plan.topic_names) for fork in plan.branches]
    return [*warnings, uncompared_warning(plan.uncompared)] if plan.uncompared else warnings
