"""Continues the logs of partitions that were cut off in the cluster as new lines of the archive (see `held_lines`).

branch_off(writer, forks)

One commit does it for all partitions, and nothing that is archived moves. Where what is left of a compacted log is not
exact, because records that had overwritten others were cut off or retention has removed what a snapshot of the old log
stands for, the same commit says that another generation is due: the log is read again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from logkeep_engine.archive.catalog.facts import Branching, GenerationChange, GenerationStep
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.lineage import Fork
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.history.compacted import is_exact_below

log = logging.getLogger(__name__)


def branch_off(writer: Writer, forks: Iterable[Fork]) -> None:
    """Make branches of the archived offsets from these forks on. A fork that has a branch is left out. Raises what
    `Writer.commit` raises."""
    state = writer.state
    # An earlier attempt may have done it.
    wanted = [fork for fork in forks if not state.has_branch((fork.topic_id, fork.partition), fork.branch_id)]
    if wanted:
        branchings = [Branching(fork.topic_id, fork.partition, fork.branch_id, fork.offset) for fork in wanted]
        writer.branch(branchings, _due(state, wanted))
        log.info("%d partitions were cut off in the cluster: their old ends are branches now", len(wanted))


def _due(state: ArchiveState, forks: Iterable[Fork]) -> Iterator[GenerationChange]:
    """Yield the generations that are due since what is left of a log that is compacted, or was, is not exact."""
    for fork in forks:
        key = (fork.topic_id, fork.partition)
        number = generation_of(state, key).number
        if number and state.topics[fork.topic_id].was_compacted and not is_exact_below(state, key, fork.offset):
            yield GenerationChange(*key, number, GenerationStep.DUE)
