"""Earlier states of an archive, and what of them is there still. Pure.

    last, gone = last_with_generations(earlier, newest)
    found = without_gone(earlier, state_at(archive, last, newest), newest)

Retention takes segments out of an archive, and so does a generation that becomes active. Their objects stay for a
while. Who reads as of commit `last` keeps those that were there then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.packed import PackedSegments, identity_of, offsets_of
from logkeep_engine.archive.catalog.replacements import Identity
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import all_unpurged
from logkeep_engine.archive.history.compacted import snapshot_of, snapshots_then
from logkeep_engine.archive.ranges import add_range


def last_with_generations(
    earlier: ArchiveState, newest: ArchiveState, topic_ids: Iterable[str] | None = None
) -> tuple[int, list[Partition]]:
    """The last commit that has the generations which are active in an earlier state, and the partitions of which
    objects are deleted. `topic_ids`: only these topics."""
    wanted_ids = None if topic_ids is None else set(topic_ids)
    gone, last = [], newest.commit
    for key, known in sorted(newest.generations.items()):
        if wanted_ids is not None and key[0] not in wanted_ids:
            continue
        if generation_of(earlier, key).number == known.number:
            continue
        wanted = set(_needed(earlier, key)) - set(named(newest, key))
        for item in newest.unpurged:
            unnamed = set(identities_of(item.segments[key])) if key in item.segments else set()
            if wanted & unnamed:
                wanted -= unnamed
                last = min(last, item.commit - 1)
        if wanted:
            gone.append(key)
    return max(last, earlier.commit), gone


def without_gone(earlier: ArchiveState, later: ArchiveState, newest: ArchiveState) -> ArchiveState:
    """The earlier state without the segments that `later` has no more, or whose objects are deleted since, and with
    the snapshots of `later`."""
    found = earlier.shared()
    found.segments, found.removed = earlier.segments.copy(), dict(earlier.removed)
    found.snapshots = snapshots_then(earlier, later)
    if later.commit < newest.commit:
        found.snapshots = {
            key: [item for item in held if there.issuperset(identities_of(item.parts(key)))]
            for key, held in found.snapshots.items()
            for there in [_there(later, newest, key)]
        }
    for key in earlier.segments:
        rows = earlier.segments.rows(key)
        if rows == later.segments.rows(key) == newest.segments.rows(key):
            continue
        there, left, removed = _there(later, newest, key), bytearray(), list(found.removed.get(key, ()))
        for row in _rows(earlier.segments[key]):
            if identity_of(row) in there:
                left += row
            else:
                add_range(removed, *offsets_of(row))
        found.segments.replace_rows(key, bytes(left))
        if removed:
            found.removed[key] = removed
    return found


def _there(later: ArchiveState, newest: ArchiveState, key: Partition) -> set[Identity]:
    there = set(named(later, key))
    if later.commit < newest.commit:
        unpurged = all_unpurged(newest.unpurged, key)
        there &= {*named(newest, key), *(identities_of(unpurged[key]) if key in unpurged else ())}
    return there


def _needed(state: ArchiveState, key: Partition) -> Iterator[Identity]:
    """All of which the state of a partition is made: its log, and the snapshot that stands for what is gone of it."""
    if key in state.segments:
        yield from identities_of(state.segments[key])
    snapshot = snapshot_of(state, key, where_needed=True) if key in state.snapshots else None
    if snapshot is not None:
        yield from identities_of(snapshot.parts(key))


def named(state: ArchiveState, key: Partition) -> Iterator[Identity]:
    """Yield all that a state names of a partition: of its log, its snapshots and its branches."""
    if key in state.segments:
        yield from identities_of(state.segments[key])
    branches = state.branches.get(key, ())
    for branch in branches:
        yield from identities_of(branch.segments)
    for held in (state.snapshots.get(key, ()), *(branch.held.snapshots for branch in branches)):
        for item in held:
            yield from identities_of(item.parts(key))


def identities_of(segments: PackedSegments) -> Iterator[Identity]:
    """Yield the identities of segments."""
    return map(identity_of, _rows(segments))


def _rows(segments: PackedSegments) -> Iterator[bytes]:
    return (segments.row(at) for at in range(len(segments)))
