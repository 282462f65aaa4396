"""Earlier states of an archive, and what of them is there still. Pure.

    last, gone = last_with_generations(earlier, newest)
    found = without_gone(earlier, state_at(archive, last, newest), newest)

Retention takes segments out of an archive, also those of lines that no kept point has. Their objects stay for a while.
Who reads as of commit `last` keeps those that were there then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import generation_of
from logkeep_engine.archive.catalog.held_lines import PartitionFacts
from logkeep_engine.archive.catalog.held_snapshots import HeldSnapshot
from logkeep_engine.archive.catalog.packed import ROW_BYTES, PackedSegments, identity_of
from logkeep_engine.archive.catalog.replacements import Identity
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import all_unpurged
from logkeep_engine.archive.history.compacted import snapshot_of, snapshots_then
from logkeep_engine.archive.ranges import Range, add_range


def last_with_generations(
    earlier: ArchiveState, newest: ArchiveState, topic_ids: Iterable[str] | None = None
) -> tuple[int, list[Partition]]:
    """Return the last commit that has the generations which are active in an earlier state, and the partitions of which
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
        if wanted and not _stood_for(earlier, newest, key, wanted):
            gone.append(key)
    return max(last, earlier.commit), gone


def _stood_for(earlier: ArchiveState, newest: ArchiveState, key: Partition, gone: Collection[Identity]) -> bool:
    """Return whether a snapshot of what the earlier state shows stands for all that is gone of it. It may have been
    made when that run had ended, so the state does not name it."""
    end = max((item.end for item in snapshots_then(earlier, newest).get(key, ())), default=0)
    log = earlier.segments.get(key)
    ends = [] if log is None else zip(identities_of(log), (entry.next_offset for entry in log), strict=True)
    below = {identity for identity, segment_end in ends if segment_end <= end}
    below |= {
        one for item in earlier.snapshots.get(key, ()) if item.end <= end for one in identities_of(item.parts(key))
    }
    return below.issuperset(gone)


def without_gone(earlier: ArchiveState, later: ArchiveState, newest: ArchiveState) -> ArchiveState:
    """Return the earlier state without the segments that `later` has no more, or whose objects are deleted since, and
    with the snapshots of `later`."""
    earlier = earlier.following(later)  # it may name what was merged since, and then removed
    found = earlier.shared()
    found.copy_tables()
    found.lines = dict(earlier.lines)
    snapshots = snapshots_then(earlier, later)
    for key in {*earlier.segments, *earlier.snapshots, *earlier.lines, *snapshots}:
        held = snapshots.get(key, [])
        there = _there(later, newest, key) if held or _differs(earlier, later, newest, key) else None
        if there is not None and later.commit < newest.commit:
            held = [item for item in held if there.issuperset(identities_of(item.parts(key)))]
        if there is not None and _differs(earlier, later, newest, key):
            _put(found, key, [_left(key, facts, there) for facts in earlier.own_facts(key)], held)
        elif held:
            found.snapshots[key] = held
        else:
            found.snapshots.pop(key, None)
    return found


def _differs(earlier: ArchiveState, later: ArchiveState, newest: ArchiveState, key: Partition) -> bool:
    """Return whether something of the log of a partition may be gone since."""
    lines = key in earlier.lines or key in later.lines or key in newest.lines
    return lines or not earlier.segments.rows(key) == later.segments.rows(key) == newest.segments.rows(key)


def _left(key: Partition, own: PartitionFacts, there: Collection[Identity]) -> PartitionFacts:
    """Return what is left of a line if this is there."""
    left, cuts, removed = bytearray(), dict[int, Range](), list(own.removed)
    table = own.table(key)
    for at, row in enumerate(_rows(table)):
        if identity_of(row) in there:
            if at in table.cuts:
                cuts[len(left) // ROW_BYTES] = table.cuts[at]
            left += row
        else:
            add_range(removed, *table.span(at))
    return replace(own, rows=bytes(left), removed=removed, cuts=cuts)


def _put(state: ArchiveState, key: Partition, own: Sequence[PartitionFacts], snapshots: list[HeldSnapshot]) -> None:
    """Let this lie on the lines of a partition, with the snapshots of the one that the state shows."""
    shown = state.line_number(key)
    facts = [replace(one, snapshots=snapshots if number == shown else []) for number, one in enumerate(own)]
    if key in state.lines:
        state.lines[key] = [replace(line, held=one) for line, one in zip(state.lines[key], facts, strict=True)]
        state.show(key)
    else:
        state.hold(key, facts[0])


def _there(later: ArchiveState, newest: ArchiveState, key: Partition) -> set[Identity]:
    there = set(named(later, key))
    if later.commit < newest.commit:
        unpurged = all_unpurged(newest.unpurged, key)
        there &= {*named(newest, key), *(identities_of(unpurged[key]) if key in unpurged else ())}
    return there


def _needed(state: ArchiveState, key: Partition) -> Iterator[Identity]:
    """Yield all of which the state of a partition is made: its log, and the snapshot that stands for what is gone of
    it."""
    if key in state.segments:
        yield from identities_of(state.segments[key])
    snapshot = snapshot_of(state, key, where_needed=True) if key in state.snapshots else None
    if snapshot is not None:
        yield from identities_of(snapshot.parts(key))


def named(state: ArchiveState, key: Partition) -> Iterator[Identity]:
    """Yield all that a state names of a partition: of its lines and their snapshots."""
    for own in state.own_facts(key):
        yield from identities_of(PackedSegments(key, own.rows))
        for item in own.snapshots:
            yield from identities_of(item.parts(key))


def identities_of(segments: PackedSegments) -> Iterator[Identity]:
    """Yield the identities of segments."""
    return map(identity_of, _rows(segments))


def _rows(segments: PackedSegments) -> Iterator[bytes]:
    return (segments.row(at) for at in range(len(segments)))
