"""The offsets at which an erasure may have taken records: nobody expects those of the cluster there."""

from dataclasses import replace

import pytest

from logkeep_engine.archive.catalog.facts import NOTHING_LEFT, Coverage, PassiveFacts, RemovedSegment, ReplacedSegment
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range
from logkeep_engine.backup.planning.generations import GenerationPolicy, activation
from tests.unit.archive.build import ORDERS
from tests.unit.archive.catalog.test_branches import KEY, archive, begun, commit
from tests.unit.archive.catalog.test_snapshots import part, snapshot
from tests.unit.archive.catalog.test_state import entry


def hundred() -> ArchiveState:
    """An archive of a hundred offsets of a compacted topic, in segments of ten."""
    state = begun()
    commit(state, topics=(replace(ORDERS, configs={"cleanup.policy": "compact"}),))
    archive(state, 0, 100, 1)
    return state


def erase(state: ArchiveState, base: int, until: int | None = None) -> None:
    """An erasure takes records of the segment at `base`; the last that is left of it lies below `until`."""
    left = () if until is None else (replace(entry(base, until, epoch=2), records=1),)
    commit(state, replaced=(ReplacedSegment(*KEY, 0, base, 0 if left else NOTHING_LEFT),), segments=left)


def read_again(state: ArchiveState, start: int = 0) -> None:
    """A new generation becomes active; the log begins at `start` now."""
    policy = GenerationPolicy(0, 1)  # its cycle is over
    commit(state, generations=tuple(policy.changes(state, KEY, start, compacted=True, whole=True)))
    front = (entry(max(start, 4), 40, epoch=3), entry(40, 100, epoch=3))
    commit(state, passive=PassiveFacts((Coverage(*KEY, start, 100),), front))
    commit(state, generations=(activation(state, KEY),))


def erased(state: ArchiveState) -> list[Range]:
    return erased_ranges(state, KEY, 100)


def test_an_erased_segment_and_nothing_else_is_reported() -> None:
    state = hundred()
    erase(state, 20, 30)
    erase(state, 90, 100)
    assert erased(state) == [(20, 30), (90, 100)]
    erase(state, 70)
    assert erased(state) == [(20, 30), (70, 80), (90, 100)]
    erase(state, 20, 30)  # once more, another key
    assert erased(state) == [(20, 30), (70, 80), (90, 100)]


def test_retention_and_snapshots_hide_nothing_of_it() -> None:
    state = hundred()
    erase(state, 20, 30)
    commit(state, snapshots=(snapshot(100, 25),))
    assert erased(state) == [(20, 30)]
    replaced = ReplacedSegment(*KEY, 0, 25, 0, snapshot=100)
    commit(state, replaced=(replaced,), segments=(replace(part(25, 90, 100, 1, epoch=2), records=1),))
    assert erased(state) == [(20, 30)]
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in range(0, 90, 10)))
    assert erased(state) == [(20, 90)], "it is unknown now that nothing of the other segments was erased"


def test_what_was_erased_from_a_snapshot_alone_is_reported() -> None:
    """Retention had removed the log below, so no segment was replaced."""
    state = hundred()
    commit(state, snapshots=(snapshot(60, 25),))
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in range(0, 40, 10)))
    replaced = ReplacedSegment(*KEY, 0, 25, 0, snapshot=60)
    commit(state, replaced=(replaced,), segments=(replace(part(25, 50, 60, 1, epoch=2), records=1),))
    assert erased(state) == [(25, 40)], "the log from 40 on tells for itself"
    commit(state, removed=(RemovedSegment(*KEY, 40),))
    assert erased(state) == [(25, 50)]


def test_a_new_generation_has_read_again_what_was_erased() -> None:
    state = hundred()
    erase(state, 20, 30)
    erase(state, 70)
    read_again(state)
    assert erased(state) == [], "a key that is missing there now was lost"
    commit(state, replaced=(ReplacedSegment(*KEY, 1, 40, 0),), segments=(replace(entry(40, 100, epoch=4), records=1),))
    assert erased(state) == [(40, 100)]


def test_what_is_merged_after_an_erasure_was_not_read_again() -> None:
    """The merged segment was written later than what the erasure has left of the snapshot, and archived before it."""
    state = hundred()
    commit(state, snapshots=(snapshot(60, 25),))
    commit(state, removed=tuple(RemovedSegment(*KEY, base) for base in range(0, 40, 10)))
    replaced = ReplacedSegment(*KEY, 0, 25, 0, snapshot=60)
    commit(state, replaced=(replaced,), segments=(part(25, 50, 60, 1, epoch=2),))
    assert erased(state) == [(25, 40)]
    merged = replace(entry(40, 100, epoch=3), bytes=600, first_epoch=1, last_epoch=1)
    commit(state, replaced=tuple(ReplacedSegment(*KEY, 0, base, 0) for base in range(40, 100, 10)), segments=(merged,))
    assert erased(state) == [(25, 40)]


@pytest.mark.parametrize(
    ("replaced", "segments", "why"),
    [
        ([(0, 0, 1)], [(0, 10)], "is replaced by number 1 of 1 segments"),
        ([(0, 0, -2)], [(0, 10)], "is replaced by number -2 of 1 segments"),
        ([(0, 0, 1 << 40)], [(0, 10)], "is replaced by number 1099511627776 of 1 segments"),
        ([(0, 0, 0)], [(0, 10), (10, 20)], "1 of 2 segments replace nothing"),
        ([(0, 0, NOTHING_LEFT)], [(0, 10)], "1 of 1 segments replace nothing"),
        ([(0, 0, 0), (1, 0, 0)], [(0, 10)], "segment 0 of .* is replaced by one that is elsewhere, too"),
        ([(1, 0, 0)], [(0, 10)], "there is no segment 0"),
        ([(-1, 0, 0)], [(0, 10)], "there is no segment 0"),
        ([(0, 5, 0)], [(0, 10)], "there is no segment 5"),
        ([(0, 0, 0)], [(0, 20)], "segment 0 of .* has more than what it replaces"),
        ([(0, 10, 0)], [(0, 20)], "segment 10 of .* has more than what it replaces"),
        ([(0, 0, 0), (0, 20, 0)], [(0, 30)], "segment 0 of .* lacks a part of what it replaces"),
        ([(0, 0, 0), (0, 0, 0)], [(0, 10)], "segment 0 of .* lacks a part of what it replaces"),
    ],
)
def test_a_commit_that_replaces_what_it_cannot_is_damage(
    replaced: list[tuple[int, int, int]], segments: list[tuple[int, int]], why: str
) -> None:
    state = hundred()
    with pytest.raises(ValueError, match=why):
        commit(
            state,
            replaced=tuple(ReplacedSegment(*KEY, line, base, by) for line, base, by in replaced),
            segments=tuple(entry(*span, epoch=2) for span in segments),
        )


def test_no_segment_has_more_records_than_what_it_replaces() -> None:
    state = hundred()
    more = replace(entry(0, 10, epoch=2), records=11)
    with pytest.raises(ValueError, match=r"segment 0 of .* has more than what it replaces"):
        commit(state, replaced=(ReplacedSegment(*KEY, 0, 0, 0),), segments=(more,))
