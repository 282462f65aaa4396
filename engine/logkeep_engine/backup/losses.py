"""A record-shaped format cannot hold everything: losses are found before anything is written, told, refused or allowed.

Losses that belong to batches come with every such format: they are said in the result, never refused. Those of records
are counted by `pieces.records.LossChecker` and decided on here.
"""

from __future__ import annotations

from collections.abc import Sequence

from logkeep_engine.backup.plan import BackupPlan
from logkeep_engine.contract.spec import Compatibility, FormatName, FormatOptions, KafkaBackupSpec
from logkeep_engine.errors import FormatLoss
from logkeep_engine.formats.base import OF_BATCHES, Loss, LossKind
from logkeep_engine.formats.losses import LOSS_FILE

MAX_SHOWN = 5


def loses_records(format_name: FormatName, options: FormatOptions) -> bool:
    """Whether the format can lose something of a record; then the records are looked through first."""
    return format_name is FormatName.AVRO and options.compatibility is Compatibility.STRICT


def refuse_losses(losses: Sequence[Loss], spec: KafkaBackupSpec) -> None:
    """Raises FormatLoss if something would be lost that the spec does not allow to lose."""
    if not losses or spec.format_options.allow_loss:
        return
    raise FormatLoss(
        f"Format {spec.format} cannot hold what {_records(sum(loss.count for loss in losses))} carry: "
        f"{_shown(losses)}. Nothing was written.",
        hint="Use formatOptions.compatibility: lossless or format: Kafka, exclude the topic, or accept the loss with "
        "formatOptions.allowLoss: true.",
    )


def format_warnings(spec: KafkaBackupSpec, plan: BackupPlan, losses: Sequence[Loss]) -> list[str]:
    """What the format does not keep, in sentences: of batches always, of records if it was found and allowed."""
    if spec.format is FormatName.KAFKA:
        return []
    topics = [topic.name for topic in plan.topics]
    more = f" and {len(topics) - MAX_SHOWN} more" if len(topics) > MAX_SHOWN else ""
    kinds = ", ".join(kind.value for kind in LossKind if kind in OF_BATCHES)
    warnings = [
        f"Format {spec.format} keeps records, not batches; it does not keep {kinds}. "
        f"Topics: {', '.join(topics[:MAX_SHOWN])}{more}."
    ]
    if losses and spec.format_options.allow_loss:
        warnings.append(
            f"Format {spec.format} could not hold what {_records(sum(loss.count for loss in losses))} carry: "
            f"{_shown(losses)}. All of it is in runs/{plan.run_id}/{LOSS_FILE}."
        )
    return warnings


def _shown(losses: Sequence[Loss]) -> str:
    shown = "; ".join(
        f"{loss.kind.value} in topic {loss.topic!r} partition {loss.partition}, "
        f"{_records(loss.count)} from offset {loss.offset} on"
        for loss in losses[:MAX_SHOWN]
    )
    return shown + (f"; and {len(losses) - MAX_SHOWN} more" if len(losses) > MAX_SHOWN else "")


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
