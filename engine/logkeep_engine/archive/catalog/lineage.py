"""The leaders that have written what an archive holds of a partition, and where a log parts from it. Pure: no I/O.

Each batch carries the epoch of the leader that appended it. Two logs in which a batch of the same epoch lies at the
same offset are equal up to there, since an epoch has one leader. The archive keeps where each epoch begins, as Kafka's
own `leader-epoch-checkpoint` does. It also keeps the last epoch whose leader had everything that the archive accounted
for. `LineageComparison` asks a leader, as a follower does (KIP-101, KIP-279), where its log leaves that history:

    comparison = LineageComparison(lineage)
    while (epoch := comparison.question) is not None:
        comparison.answer(*leader.end_of(epoch))
    if comparison.fork is not None: ...
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

UNKNOWN = -1
"""No leader epoch: batches of old formats have none, and for some partitions no leader was seen."""

EpochStart = tuple[int, int]
"""A leader epoch, and the first offset that is archived of it."""


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    """The first archived batch of leader epoch `epoch`, in the piece that says it, begins at `start`."""

    topic_id: str
    partition: int
    epoch: int
    start: int

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.start < 0 or self.partition < 0:
            raise ValueError(
                f"topic id {self.topic_id} partition {self.partition}: epoch {self.epoch} from offset {self.start} on"
            )


@dataclass(frozen=True, slots=True)
class LeaderSeen:
    """The log of the leader of `epoch` began with all that the archive accounts for of a partition when this is
    committed. Whatever the same run adds is of this epoch or of earlier ones."""

    topic_id: str
    partition: int
    epoch: int

    def __post_init__(self) -> None:
        if self.epoch < 0 or self.partition < 0:
            raise ValueError(f"topic id {self.topic_id} partition {self.partition}: leader epoch {self.epoch}")


@dataclass(frozen=True, slots=True)
class LogStanding:
    """The relation of a partition's log to what is archived of it.

    `leader_epoch` is that of the leader that has answered, UNKNOWN if its log has no epochs. `fork` is the first offset
    at which the log differs from what is archived; None if the log begins with it, or if it is not `known`. `led` is
    the epoch in which the leader has answered, whatever its log has.
    """

    leader_epoch: int
    fork: int | None = None
    known: bool = True
    led: int = field(default=UNKNOWN, compare=False)


@dataclass(frozen=True, slots=True)
class Fork:
    """The log of a partition differs from what is archived from `offset` on; the archive holds it up to `end`. What is
    archived from there on becomes the branch `branch_id`; "": nothing more is archived of the partition."""

    topic_id: str
    partition: int
    offset: int
    end: int
    branch_id: str = ""


def add_epoch(history: list[EpochStart], epoch: int, start: int) -> bool:
    """Add what a piece has seen to a history, which is sorted; False if the history says it already. Pieces come in any
    order, so the lowest offset of an epoch counts."""
    at = bisect_left(history, (epoch,))
    if at < len(history) and history[at][0] == epoch:
        if history[at][1] <= start:
            return False
        history[at] = (epoch, start)
        return True
    history.insert(at, (epoch, start))
    return True


def news(history: Sequence[EpochStart], found: Iterable[LeaderEpoch]) -> list[LeaderEpoch]:
    """Return the items of `found`, all of one partition, that its history does not say yet."""
    known = list(history)
    return [item for item in found if add_epoch(known, item.epoch, item.start)]


@dataclass(frozen=True, slots=True)
class Lineage:
    """A partition's past, as far as an archive knows it. `epochs` are sorted. The last archived batch ends before
    `last`, and the archive accounts for everything below `end`; in between compaction has left nothing, or retention
    was faster. `leader` is the epoch on whose leader all of it was seen, or UNKNOWN.
    """

    epochs: tuple[EpochStart, ...]
    last: int
    end: int
    leader: int = UNKNOWN

    @property
    def newest(self) -> int:
        """The highest epoch that is known of it, or UNKNOWN."""
        return max(self.leader, self.epochs[-1][0] if self.epochs else UNKNOWN)


class LineageComparison:
    """Finds where a log parts from a lineage, by questions and answers of OffsetForLeaderEpoch.

    `question` is the epoch to ask the leader about, None if there is nothing more to ask. `fork` is the first offset at
    which the two differ, None if all that is archived is the beginning of the log. Not `known`: there was nothing to
    ask about, or the log has no epochs; then `fork` says nothing.

    Compaction may have taken all batches of an epoch out of the archive, so that nothing speaks for its end but the
    leader that was seen there: then what lies after the last archived batch counts as equal unless that leader's own
    epoch has ended before.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._epochs = [epoch for epoch, _ in lineage.epochs]
        self._starts = [start for _, start in lineage.epochs]
        self._last = lineage.last
        self._of_leader = lineage.leader >= 0
        self._end = lineage.end if self._of_leader else lineage.last
        self._limit = self._end
        self.known = True
        self.question: int | None = None
        if self._of_leader:
            self.question = lineage.leader
        elif self._epochs:
            self.question = self._epochs[-1]
        else:
            self.known = False

    @property
    def fork(self) -> int | None:
        return self._limit if self.question is None and self.known and self._limit < self._end else None

    def answer(self, epoch: int, end: int) -> None:
        """The leader's largest epoch that is not above the one in question, and where the next one begins in its log;
        (-1, -1): it knows none."""
        asked = self.question
        if asked is None:
            raise ValueError("nothing was asked")
        if epoch < 0:
            self._ask_below(asked)
            self.known = self.question is not None
            return
        higher = min(self._starts[bisect_right(self._epochs, epoch) :], default=None)
        if higher is not None:
            self._limit = min(self._limit, end, higher)
        elif self._of_leader or end < self._last:
            self._limit = min(self._limit, end)
        seen = self._of_leader and epoch == asked
        self._of_leader = False
        if seen or epoch in self._epochs:
            self.question = None
        else:
            self._ask_below(epoch)

    def _ask_below(self, epoch: int) -> None:
        at = bisect_left(self._epochs, epoch)
        self.question = self._epochs[at - 1] if at else None
