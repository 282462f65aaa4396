"""Makes generations of compacted partitions active, once they are whole and have caught up with their logs.

    activating = Activating()
    plan = activating.perform(writer, planner, plan, left_out, archive)

A log is read on after the rest was read: its end is asked for, and archived. If a record or a marker came at every
offset of that, no compaction has been there, and the generation is exact from its end on
(`archive.catalog.generations`). If offsets were missing the run asks for the end again, some times. What is not proved
then stays passive, and the next run continues with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import groupby
from operator import itemgetter

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.backup.model.plan import BackupPlan, Piece, open_pieces
from logkeep_engine.backup.pieces.task import PieceDone
from logkeep_engine.backup.planning.generations import activation, whole_generations
from logkeep_engine.backup.planning.planner import BackupPlanner

CATCH_UPS = 5


class Activating:
    """`unread` are partitions of which a passive generation cannot be read to its end any more."""

    def __init__(self) -> None:
        self.unread: set[Partition] = set()
        self._sparse: set[Partition] = set()

    def wants(self, piece: Piece) -> bool:
        """Return whether the piece is to be read: not if it belongs to a generation that cannot be read to its end."""
        return not piece.generation or (piece.topic_id, piece.partition) not in self.unread

    def saw(self, piece: Piece, done: PieceDone) -> None:
        """Note whether offsets were missing in a piece."""
        if not done.dense and not piece.generation:
            self._sparse.add((piece.topic_id, piece.partition))

    def perform(
        self,
        writer: Writer,
        planner: BackupPlanner,
        plan: BackupPlan,
        left_out: Collection[Partition],
        archive: Callable[[BackupPlan], bool],
    ) -> BackupPlan:
        """Make active what can be; returns the plan with what was archived for it. `archive` archives what is open of a
        plan, and tells whether that went well. Nothing is done with partitions that are `left_out`."""
        topic_ids = {topic.topic_id for topic in plan.topics}
        for _ in range(CATCH_UPS):
            left = [key for key in whole_generations(writer.state, topic_ids) if key not in left_out]
            if not left:
                break
            caught = planner.catch_up(plan, writer.state, left)
            self._sparse.clear()
            if caught.plan is not plan:
                plan = caught.plan
                if not archive(plan):
                    break
            unread_keys = {(piece.topic_id, piece.partition) for piece in open_pieces(plan, writer.state)}
            done = sorted(caught.answered - self._sparse - unread_keys)
            for _, keys in groupby(done, itemgetter(0)):  # so that an erasure of a topic deletes nothing of others
                writer.change_generations([activation(writer.state, key) for key in keys])
        return plan
