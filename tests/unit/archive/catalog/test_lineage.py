"""Where a log parts from an archive: a model of replicas that lead in turn, are cut off, compacted and trimmed."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from logkeep_engine.archive.catalog.lineage import EpochStart, LeaderEpoch, Lineage, LineageComparison, add_epoch, news


@dataclass
class Replica:
    """A log as the leader epoch of each offset, and the cache of epochs that its broker keeps beside it."""

    epochs: list[int] = field(default_factory=list)
    cache: list[EpochStart] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return len(self.epochs)

    def lead(self, epoch: int) -> None:
        """UnifiedLog.assignEpochStartOffset: at the log's end, also if nothing is ever written."""
        self.cache.append((epoch, self.end))

    def append(self, epoch: int) -> None:
        if not self.cache or self.cache[-1][0] != epoch:
            self.cache.append((epoch, self.end))
        self.epochs.append(epoch)

    def cut(self, end: int) -> None:
        del self.epochs[end:]
        self.cache = [entry for entry in self.cache if entry[1] < end]

    def trim(self, start: int) -> None:
        """LeaderEpochFileCache.truncateFromStart: the last entry at or below the log start begins there now."""
        self.start = max(self.start, start)
        below = [entry for entry in self.cache if entry[1] <= self.start]
        self.cache = [(epoch, self.start) for epoch, _ in below[-1:]] + self.cache[len(below) :]

    def follow(self, leader: "Replica") -> None:
        """Truncate to where the logs part, then copy: epochs come with the batches."""
        common = fork_of(self.epochs, leader.epochs)
        self.cut(common)
        for epoch in leader.epochs[common:]:
            self.append(epoch)

    def end_of(self, epoch: int) -> tuple[int, int]:
        """LeaderEpochFileCache.endOffsetFor."""
        if not self.cache or epoch > self.cache[-1][0]:
            return -1, -1
        if epoch == self.cache[-1][0]:
            return epoch, self.end
        below = [entry for entry in self.cache if entry[0] <= epoch]
        following = self.cache[len(below)][1]
        return (below[-1][0] if below else epoch), following


def fork_of(one: list[int], other: list[int]) -> int:
    """An epoch has one leader, so equal epochs at an offset are the same record."""
    for offset, (mine, its) in enumerate(zip(one, other, strict=False)):
        if mine != its:
            return offset
    return min(len(one), len(other))


@dataclass
class Partition:
    """Three replicas; `unclean` elections choose any of them with what it has."""

    random: Random
    replicas: list[Replica] = field(default_factory=lambda: [Replica() for _ in range(3)])
    leader: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self.log.lead(0)

    @property
    def log(self) -> Replica:
        return self.replicas[self.leader]

    def live(self, *, unclean: bool) -> None:
        for _ in range(self.random.randrange(1, 8)):
            for _ in range(self.random.choice((0, 1, 3, 7))):
                self.log.append(self.epoch)
            for replica in self.replicas:
                if replica is not self.log and self.random.random() < 0.15:
                    replica.follow(self.log)
            if self.random.random() < 0.6:
                self.elect(unclean=unclean)

    def elect(self, *, unclean: bool) -> None:
        chosen = self.random.randrange(3)
        if not unclean:
            self.replicas[chosen].follow(self.log)
        self.leader, self.epoch = chosen, self.epoch + 1
        self.log.lead(self.epoch)


def compare(lineage: Lineage, log: Replica) -> LineageComparison:
    comparison = LineageComparison(lineage)
    asked: list[int] = []
    while (question := comparison.question) is not None:
        asked.append(question)
        comparison.answer(*log.end_of(question))
    assert asked == sorted(set(asked), reverse=True)  # it comes to an end
    return comparison


def archived(partition: Partition, kept: list[bool] | None = None, *, first: int = 0) -> Lineage:
    """The lineage in an archive of the leader's log from `first` on; compaction has left the offsets of `kept`."""
    history: list[EpochStart] = []
    last = first
    for offset, epoch in enumerate(partition.log.epochs):
        if offset >= first and (kept is None or kept[offset]):
            add_epoch(history, epoch, offset)
            last = offset + 1
    return Lineage(tuple(history), last, max(first, partition.log.end), partition.epoch)


def histories(count: int) -> Iterator[tuple[Partition, Random]]:
    for seed in range(count):
        random = Random(seed)
        yield Partition(random), random


def test_fork_is_the_first_offset_that_differs_after_any_history_of_elections() -> None:
    forks = 0
    for partition, random in histories(3000):
        partition.live(unclean=random.random() < 0.5)
        before, lineage = list(partition.log.epochs), archived(partition)
        partition.live(unclean=random.random() < 0.9)
        parted = fork_of(before, partition.log.epochs)
        expected = parted if parted < len(before) else None
        comparison = compare(lineage, partition.log)
        assert (comparison.fork, comparison.known) == (expected, True)
        forks += expected is not None
    assert 500 < forks < 2500


def test_log_that_was_never_cut_off_is_never_called_forked() -> None:
    """Whatever compaction and retention have left of it, in the archive and on the brokers."""
    for partition, random in histories(2000):
        partition.live(unclean=True)
        kept = [random.random() < 0.4 for _ in partition.log.epochs]
        lineage = archived(partition, kept, first=random.randrange(partition.log.end + 1))
        if random.random() < 0.3:
            lineage = replace(lineage, leader=-1)
        partition.live(unclean=False)
        for replica in partition.replicas:
            replica.trim(random.randrange(partition.log.end + 1) if random.random() < 0.5 else 0)
        assert compare(lineage, partition.log).fork is None


def test_fork_below_an_archived_batch_is_found_whatever_compaction_has_left() -> None:
    forks = 0
    for partition, random in histories(2000):
        partition.live(unclean=True)
        before = list(partition.log.epochs)
        kept = [random.random() < 0.4 for _ in before]
        lineage = archived(partition, kept)
        if random.random() < 0.3:
            lineage = replace(lineage, leader=-1)
        partition.live(unclean=True)
        parted = fork_of(before, partition.log.epochs)
        comparison = compare(lineage, partition.log)
        if parted < lineage.last:
            # An epoch of which nothing was archived tells nothing of where it began.
            assert comparison.fork is not None
            assert not any(kept[min(parted, comparison.fork) : max(parted, comparison.fork)])
            forks += 1
        elif parted >= len(before):
            assert comparison.fork is None
    assert forks > 300


def test_log_that_ends_below_the_archive_or_begins_again_is_forked_there() -> None:
    assert compare(Lineage(((3, 0),), 5000, 5000, 3), Replica([3] * 3000, [(3, 0), (4, 3000)])).fork == 3000
    assert compare(Lineage(((3, 0),), 5000, 5000, 3), Replica([], [(7, 0)])).fork == 0


@pytest.mark.parametrize("lineage", [Lineage((), 0, 700), Lineage(((3, 0),), 700, 700, 3)])
def test_without_epochs_on_one_side_nothing_is_known(lineage: Lineage) -> None:
    """An archive that does not say any, and a log in an old message format."""
    comparison = compare(lineage, Replica())
    assert (comparison.known, comparison.fork) == (False, None)


def test_leader_that_knows_only_lower_epochs_is_asked_about_what_the_archive_has_of_them() -> None:
    lineage = Lineage(((1, 0), (3, 40), (5, 70)), 90, 90, 6)
    assert compare(lineage, Replica([1] * 40 + [3] * 20, [(1, 0), (3, 40)])).fork == 60
    assert compare(lineage, Replica([1] * 40 + [2] * 80, [(1, 0), (2, 40)])).fork == 40


def test_history_keeps_the_first_offset_of_each_epoch_in_any_order_of_pieces() -> None:
    history: list[EpochStart] = []
    for epoch, start in [(5, 900), (3, 0), (5, 700), (5, 800), (4, 650)]:
        add_epoch(history, epoch, start)
    assert history == [(3, 0), (4, 650), (5, 700)]
    found = [LeaderEpoch("a" * 22, 0, epoch, start) for epoch, start in [(5, 750), (6, 990), (4, 600)]]
    assert news(history, found) == found[1:]


def test_epoch_that_is_none_is_no_fact() -> None:
    with pytest.raises(ValueError, match="epoch -1"):
        LeaderEpoch("a" * 22, 0, -1, 0)
