"""The losses that a format of records causes: a run looks for them before it writes, and reports, refuses or allows
them.

Losses that belong to batches come with every such format. The result reports them, and nothing refuses them. Losses of
records are counted by `pieces.records.LossChecker`, and this module decides about them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.backup.model.plan import BackupPlan, Piece, pack
from logkeep_engine.backup.pieces.task import PieceDone, PieceFailure, archive_pieces
from logkeep_engine.backup.pieces.writer import BackupSetting
from logkeep_engine.contract.archive_format import Compatibility, FormatName, FormatOptions
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import BatchTooLarge, CorruptBatch, FormatLoss, LogDiverged, ObjectMissing, RecordsWithheld
from logkeep_engine.formats.base import OF_BATCHES, Loss, LossKind
from logkeep_engine.formats.losses import LOSS_FILE, dump_losses, load_losses, load_unchecked, merge_losses
from logkeep_engine.tasks import TaskContext

log = logging.getLogger(__name__)

Work = tuple[Piece, ...]
ArchivePieces = Callable[[Work, TaskContext], tuple[PieceDone, ...]]
OnPieces = Callable[[int, tuple[PieceDone, ...]], None]
RunTasks = Callable[[Sequence[Work], ArchivePieces, OnPieces], None]
"""Runs a function over work items on executors, see `tasks.TaskRunner`."""

MAX_SHOWN = 5


def loses_records(format_name: FormatName, options: FormatOptions) -> bool:
    """Return whether the format can lose something of a record, so that the records must be looked through first."""
    return format_name is FormatName.AVRO and options.compatibility is Compatibility.STRICT


@dataclass(frozen=True)
class LossFindings:
    """The losses that a format would cause. `failures`, by the numbers of chunks: these chunks could not be looked
    through, and must not be archived.
    """

    losses: tuple[Loss, ...] = ()
    failures: Mapping[int, PieceFailure] = field(default_factory=dict)


class LossSearch:
    """Looks through the records of a run for what the format cannot hold, before anything of them is written.

    Each chunk is read once, whatever attempts the run has: the findings are stored.
    """

    def __init__(self, archive: Archive, run_id: str, setting: BackupSetting, slots: int) -> None:
        self._storage = archive.storage
        self._path = names.run_file(run_id, LOSS_FILE)
        self._setting = replace(setting, checking=True)
        self._slots = slots

    def search(self, pieces: Sequence[Piece], chunks: int, run_tasks: RunTasks) -> LossFindings:
        """Return the findings in all chunks of the plan, which has this many `chunks`. Only `pieces` of those that were
        not looked through before are read.
        """
        known, left = self._stored(pieces, chunks)
        pieces = [piece for piece in pieces if piece.number in left]
        if not pieces:
            return LossFindings(known)
        found: list[tuple[int, Loss]] = []
        failures: dict[int, PieceFailure] = {}

        def on_result(index: int, done: tuple[PieceDone, ...]) -> None:
            for result in done:
                found.extend((result.number, loss) for loss in result.losses)
                if result.failure is not None:
                    failures[result.number] = not_looked_through(result.failure)
                    log.error("%s", failures[result.number])

        work = pack(pieces, self._slots)
        log.info("looking for what format %s cannot hold, in %d chunks", self._setting.format, len(pieces))
        run_tasks(work, partial(archive_pieces, self._setting), on_result)
        whole = merge_losses((*known, *(loss for number, loss in found if number not in failures)))
        self._storage.put(self._path, dump_losses(whole, failures, chunks))
        return LossFindings(merge_losses((*known, *(loss for _, loss in found))), failures)

    def _stored(self, pieces: Sequence[Piece], chunks: int) -> tuple[tuple[Loss, ...], frozenset[int]]:
        """Return the losses that earlier attempts have found, and the chunks of `pieces` that are left."""
        left = frozenset(piece.number for piece in pieces)
        try:
            stored = self._storage.read(self._path)
        except ObjectMissing:
            return (), left
        return load_losses(stored), left & load_unchecked(stored, chunks)


def not_looked_through(failure: PieceFailure) -> PieceFailure:
    """Return the failure of a piece that was read to look for losses of the format."""
    left = "It was not checked for what the format cannot hold, so nothing of its chunk was archived in this attempt."
    if isinstance(failure, LogDiverged):
        return failure
    if isinstance(failure, (RecordsWithheld, BatchTooLarge)):
        return type(failure)(failure.message, hint=f"{left} {failure.hint}")
    return CorruptBatch(failure.message, hint=f"{left} Move the leadership to an intact replica.")


def refuse_losses(losses: Sequence[Loss], spec: KafkaBackupSpec) -> None:
    """Raises FormatLoss if something would be lost that the spec does not allow to lose."""
    if not losses or spec.format_options.allow_loss:
        return
    raise FormatLoss(
        f"Format {spec.format} cannot hold what {so_many(sum(loss.count for loss in losses), 'record')} carry: "
        f"{_shown(losses)}. Nothing was written.",
        hint="Use formatOptions.compatibility: lossless or format: Kafka, exclude the topic, or accept the loss with "
        "formatOptions.allowLoss: true.",
    )


def format_warnings(spec: KafkaBackupSpec, plan: BackupPlan, losses: Sequence[Loss]) -> list[str]:
    """Return the warnings for losses of the format: always those of batches, and those of records if the spec allows
    them."""
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
            f"Format {spec.format} could not hold what {so_many(sum(loss.count for loss in losses), 'record')} carry: "
            f"{_shown(losses)}. All of it is in runs/{plan.run_id}/{LOSS_FILE}."
        )
    return warnings


def _shown(losses: Sequence[Loss]) -> str:
    shown = "; ".join(
        f"{loss.kind.value} in topic {loss.topic!r} partition {loss.partition}, "
        f"{so_many(loss.count, 'record')} from offset {loss.offset} on"
        for loss in losses[:MAX_SHOWN]
    )
    return shown + (f"; and {len(losses) - MAX_SHOWN} more" if len(losses) > MAX_SHOWN else "")
