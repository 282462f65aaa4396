"""The offsets at which an erasure may have taken records: nobody expects those of the cluster there."""

from dataclasses import replace

from logkeep_engine.archive.catalog.facts import NOTHING_LEFT, Coverage, PassiveFacts, RemovedSegment, ReplacedSegment
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range
from logkeep_engine.backup.generations import GenerationPolicy, activation
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


def test_an_erased_segment_and_nothing_else_is_told() -> None:
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


def test_what_was_erased_from_a_snapshot_alone_is_told() -> None:
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
