"""Merges small segments after a backup: `archive.maintenance.merging` says which, and executors do it.

The run has succeeded by then, and nothing of that makes it fail. A kill leaves packs that no commit names, as one of a
backup's task does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from logkeep_engine.archive.catalog.replacements import Exchange
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.merging import MergeRules, moves_of
from logkeep_engine.contract.archive_format import FormatName, SegmentSpec
from logkeep_engine.contract.values import so_many
from logkeep_engine.errors import ArchiveFenced
from logkeep_engine.tasks import TaskRunner, no_update

if TYPE_CHECKING:
    from logkeep_engine.archive.maintenance.moving import MoveDone

log = logging.getLogger(__name__)

COMMIT_SEGMENTS = 20_000


@dataclass(slots=True)
class Merged:
    """How many segments were merged or copied into how many others, and the `faults` of those that are not whole: they
    stay as they are, and so do those whose objects are `cold`."""

    segments: int = 0
    into: int = 0
    faults: tuple[str, ...] = ()
    cold: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.segments:
            return ""
        return f"merged {so_many(self.segments, 'small segment')} into {self.into}"

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.faults:
            count = so_many(len(self.faults), "damaged segment")
            notes.append(f"{count} could not be merged, `logkeep verify` reports them: first {self.faults[0]}")
        if self.cold:
            count = so_many(len(self.cold), "merge")
            notes.append(f"{count} of small segments left out, since objects are cold: first {self.cold[0]}")
        return notes


def merge_segments(
    writer: Writer, spec: SegmentSpec, runner_factory: Callable[[], TaskRunner], *, first_task: int
) -> Merged:
    """Merge what is due. `first_task`: the number after those of the tasks that this attempt at the run has had. Raises
    what the storage and the runner raise, and ArchiveFenced; what was committed stays so."""
    merged = Merged()
    if writer.archive.info.segments is not FormatName.KAFKA:
        return merged
    rules = MergeRules(spec.merge_count, spec.live_percent, spec.pack_below_int)
    moves = moves_of(writer.state, rules)
    if not moves:
        return merged
    from logkeep_engine.archive.maintenance.moving import move_task, works_of  # most runs have nothing to merge
    from logkeep_engine.archive.maintenance.rewriting import RewritePlace

    waiting: list[Exchange] = []

    def commit() -> None:
        if waiting:
            writer.exchange(waiting)
            merged.segments += len(waiting)
            merged.into += len({item.left for item in waiting})
            waiting.clear()

    def on_result(index: int, done: MoveDone) -> None:
        merged.faults += done.faults
        merged.cold += done.cold
        waiting.extend(done.exchanges)
        if len(waiting) >= COMMIT_SEGMENTS:
            commit()

    works = works_of(moves, rules.below, first_task)
    setting = RewritePlace(writer.archive.storage, writer.epoch)
    runner_factory().run(works, partial(move_task, setting), on_result, no_update)
    commit()
    if merged.faults and writer.archive.continues_after(writer.state.commit):
        # It may have merged the same, and have deleted what was read.
        raise ArchiveFenced(f"Another run has taken over the archive at {writer.archive.storage.uri}.")
    log.info("%s", merged)
    return merged
