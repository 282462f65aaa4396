"""Removes segments from an archive in two steps: from the catalog, and later their objects.

    writer.end(RunOutcome.SUCCEEDED, groups=groups)
    removed = remove_expired(writer, RetentionLimits(max_age=30 * 86_400_000), now)
    purged = purge(writer, grace=86_400_000)

Readers see the archive as the last successful run left it, without what was removed right after its end. So a kill
between the end and the commit leaves everything. One after the commit leaves objects that no commit names any more; the
catalog has them as unpurged, and a later run that succeeds deletes them. No name of theirs is ever used again, since
the catalog still accounts for their offsets. So a deletion that comes late, even by a run that another has overtaken,
deletes nothing else.

Objects are deleted when their removal is older than the grace, and no running reader began before it (see `leases`). A
pack is deleted when all segments in it are such. Until then each of them stays unpurged, so the catalog always knows
everything that a pack holds.

The time of a removal is that of the commit's object by the store's clock, or the one that the commit has, whichever is
later and not in the future. If the clocks are doubtful, nothing is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, RemovedSegment
from logkeep_engine.archive.catalog.held_tables import held_tables
from logkeep_engine.archive.catalog.packed import PackedSegments, PackId, packs_of
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.unpurged import Unpurged, divided
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.clock import checked_now
from logkeep_engine.archive.maintenance.leases import running_readers
from logkeep_engine.archive.maintenance.points import LAST_ONLY, KeepRules
from logkeep_engine.archive.maintenance.retention import Expired, RetentionLimits, expired
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.writing.record_files import write_partition_indexes
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.values import so_many
from logkeep_engine.storage import LockedObject, Storage

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE = 1000  # a commit, and four requests of S3's DeleteObjects


@dataclass(frozen=True, slots=True)
class Removed:
    """The segments and snapshots that were removed, and the `bytes` of their objects."""

    segments: int
    bytes: int
    snapshots: int = 0

    def __str__(self) -> str:
        snapshots = f" and {so_many(self.snapshots, 'snapshot')}" if self.snapshots else ""
        return f"{so_many(self.segments, 'segment')}{snapshots}, {self.bytes} bytes"


@dataclass(frozen=True, slots=True)
class Purged:
    """The removed segments whose objects were deleted, and the `bytes` of these. `waiting` are those that are there
    still: for their grace, for the runs `readers`, which may read them, for objects that the store keeps `locked`, or
    for other segments in the same packs.
    """

    segments: int = 0
    bytes: int = 0
    waiting: int = 0
    readers: tuple[str, ...] = ()
    locked: tuple[LockedObject, ...] = ()


def remove_expired(
    writer: Writer,
    limits: RetentionLimits,
    now: int,
    keep: KeepRules = LAST_ONLY,
    spared: Collection[str] = (),
) -> Removed:
    """Remove the segments and snapshots that `retention` finds to go at `now` (ms since the epoch), but nothing of the
    `spared` topics. Their objects stay until `purge` deletes them.

    Raises storage errors, and ArchiveFenced if another run has taken over; what is left then is for the next run.
    """
    found = expired(writer.state, limits, now, keep, spared)
    for batch in _batches(found):
        facts = [item.segment for item in batch]
        writer.remove(
            [fact for fact in facts if isinstance(fact, RemovedSegment)],
            [fact for fact in facts if isinstance(fact, RemovedSnapshot)],
        )
    snapshots = sum(isinstance(item.segment, RemovedSnapshot) for item in found)
    removed = Removed(len(found) - snapshots, sum(item.bytes for item in found), snapshots)
    if found:
        log.info("retention removed %s", removed)
    return removed


def purge(
    writer: Writer,
    grace: int = 0,
    topic_ids: Collection[str] | None = None,
    packs: Collection[PackId] = (),
) -> Purged:
    """Delete the objects of segments that were removed `grace` ms ago or earlier, and that no running reader needs.
    `topic_ids`: only those of these topics and `packs`, and what else was removed that shares a pack with them; what
    one commit has removed of others stays, and so does the catalog's word for it.

    Raises storage errors, ArchiveFenced, and ClockDoubtful if there is a grace and it is unknown whether it is over.
    """
    wanted = [_Wanted.of(item, topic_ids) for item in writer.state.unpurged]
    wanted = _with_shared(wanted, packs)
    removals = [item.removal for item in wanted if item.keys]
    keys_of = {item.removal.commit: item.keys for item in wanted}
    over = _with_grace_over(writer, removals, grace) if removals else []
    # Requests, which a run without anything to delete saves.
    readers = running_readers(writer.archive.storage, writer.store_time()) if over else []
    held = {item.commit: [reader.run_id for reader in readers if reader.needs(item.commit)] for item in over}
    due = [item for item in over if not held[item.commit]]
    # Before the objects go: who finds segments by these files finds none that is gone.
    write_indexes(writer, {key for item in due for key in keys_of[item.commit]})
    deleted = _delete_objects(writer, due, keys_of)
    # After the deletion: a kill in between lets the next run delete once more, which does no harm.
    writer.purged(deleted.commits, deleted.packs)
    return Purged(
        len(deleted.segments),
        sum(map(object_bytes, deleted.segments)),
        sum(len(item.segments[key]) for item in removals for key in keys_of[item.commit]) - len(deleted.segments),
        tuple(sorted({run_id for run_ids in held.values() for run_id in run_ids})),
        tuple(deleted.locked),
    )


def deletable(state: ArchiveState, grace: int, now: int) -> tuple[list[int], set[PackId]]:
    """Return the removals, by their commits, and the packs whose objects `purge` would delete at `now`, if no reader
    needs them, and the store keeps none locked."""
    due = [item for item in state.unpurged if item.time + grace <= now]
    keys_of = {item.commit: set(item.segments) for item in due}
    packs = {pack for item in due for pack in _packs_among(item, keys_of[item.commit])}
    commits = [item.commit for item in due if any(_own(item, key) for key in keys_of[item.commit])]
    return commits, packs - _staying_packs(state, due, keys_of)


def _with_grace_over(writer: Writer, removals: Sequence[Unpurged], grace: int) -> list[Unpurged]:
    if not grace:
        return list(removals)
    now = checked_now(writer)
    return [item for item in removals if _removed_at(writer.archive.storage, item, now, grace) + grace <= now]


def _removed_at(storage: Storage, item: Unpurged, now: int, grace: int) -> int:
    """Return the time of a removal, `now` if no clock gives it. Clocks may have been wrong then: one that was ahead is
    not believed, and of two the later one counts. So the store is asked only if the grace is over by the other."""
    if item.time <= now < item.time + grace:
        return item.time
    path = names.commit_path(item.commit)
    written = [int(info.modified * 1000) for info in storage.list(path)]
    return max((time for time in (*written, item.time) if time <= now), default=now)


def write_indexes(writer: Writer, keys: Collection[Partition]) -> None:
    """Make the files next to the segments of the Records format again, which name the segments."""
    state = writer.state
    if writer.archive.info.segments is not FormatName.RECORDS or not keys:
        return
    tables = (state.segments, *(item.segments for item in state.unpurged))
    entries = (entry for table in tables for key in keys for entry in table.get(key, ()))
    adopted = any(entry.layout is Layout.RECORDS_AT_ROOT for entry in entries)
    write_partition_indexes(writer.archive.storage, state, sorted(keys), root="" if adopted else names.TOPICS)


@dataclass(slots=True)
class _Wanted:
    """The partitions `keys` of a removal whose objects are to be deleted; the `packs` of each of its partitions."""

    removal: Unpurged
    keys: set[Partition]
    packs: dict[Partition, set[PackId]]

    @classmethod
    def of(cls, removal: Unpurged, topic_ids: Collection[str] | None) -> _Wanted:
        keys = {key for key in removal.segments if topic_ids is None or key[0] in topic_ids}
        return cls(removal, keys, removal.packs)


def _with_shared(wanted: list[_Wanted], packs: Collection[PackId]) -> list[_Wanted]:
    """Return the same, and all that was removed and shares a pack with these, or lies in `packs`: a pack is deleted as
    a whole."""
    reached: set[PackId] = set()
    # A partition brings packs, and these bring other partitions, until no more come.
    while True:
        found = {*packs, *(pack for item in wanted for key in item.keys for pack in item.packs[key])}
        if found == reached:
            return wanted
        reached = found
        for item in wanted:
            item.keys |= {key for key, some in item.packs.items() if some & reached}


def _staying_packs(
    state: ArchiveState, due: Sequence[Unpurged], keys_of: Mapping[int, Collection[Partition]]
) -> set[PackId]:
    """Return the packs that a segment has which stays: one of the archive, or one that was removed and is not `due`."""
    if not any(_packs_among(item, keys_of[item.commit]) for item in due):
        return set()
    numbers = {item.commit for item in due}
    found = named_packs(state)
    for item in state.unpurged:
        keys = keys_of[item.commit] if item.commit in numbers else ()
        found |= _packs_among(item, item.segments.keys() - set(keys))
    return found


def named_packs(state: ArchiveState) -> set[PackId]:
    """Return the packs that segments of the archive have, without those that were removed."""
    return {pack for table in held_tables(state) for pack in packs_of(table.segments.packed)}


def _packs_among(item: Unpurged, keys: Iterable[Partition]) -> set[PackId]:
    """Return the packs of a removal in these partitions."""
    return {pack for key in keys for pack in item.packs[key]}


@dataclass(slots=True)
class _Deleted:
    """Holds what was deleted: `packs`, the `commits` of removals of which nothing has objects of its own any more, and
    the `segments` of both. What the store keeps is `locked`."""

    packs: set[PackId] = field(default_factory=set)
    commits: list[int] = field(default_factory=list)
    segments: list[SegmentEntry] = field(default_factory=list)
    locked: list[LockedObject] = field(default_factory=list)


def _delete_objects(writer: Writer, due: Sequence[Unpurged], keys_of: Mapping[int, Collection[Partition]]) -> _Deleted:
    """Delete the packs of which no segment stays, and the objects that removals have of these partitions."""
    found, storage = _Deleted(), writer.archive.storage
    packs = {pack for item in due for pack in _packs_among(item, keys_of[item.commit])}
    paths = {names.pack_path(*pack): pack for pack in packs - _staying_packs(writer.state, due, keys_of)}
    found.locked += _delete(storage, paths)
    found.packs = {paths[path] for path in paths.keys() - {item.path for item in found.locked}}
    for item in due:
        keys = keys_of[item.commit]
        own = [entry for key in sorted(keys) for entry in _own(item, key)]
        locked = _delete(storage, {path for entry in own for path in _not_named(writer.state, entry)})
        found.locked += locked
        if own and not locked:
            found.segments += own
            if len(keys) == len(item.segments):
                found.commits.append(item.commit)
        for key in sorted(keys):
            if not item.packs[key].isdisjoint(found.packs):
                gone = divided(item.segments.rows(key), found.packs, own=False)[1]
                found.segments += PackedSegments(key, gone)
    return found


def _delete(storage: Storage, paths: Collection[str]) -> tuple[LockedObject, ...]:
    return storage.delete_unlocked(sorted(paths)) if paths else ()


def _own(item: Unpurged, key: Partition) -> Sequence[SegmentEntry]:
    """Return what a removal has of a partition in objects of its own."""
    return PackedSegments(key, divided(item.segments.rows(key), (), own=True)[1])


def _not_named(state: ArchiveState, entry: SegmentEntry) -> Iterator[str]:
    """Yield the objects of a segment that no segment of the archive has. In formats whose names have no epoch another
    one may have taken the place of a removed one."""
    key = (entry.topic_id, entry.partition)
    tables = [PackedSegments(key, own.rows) for own in state.own_facts(key)]
    topic = state.topics[entry.topic_id].name
    places = [(table, table.position(entry.base_offset)) for table in tables]
    there = [table[at] for table, at in places if at < len(table) and table[at].base_offset == entry.base_offset]
    named = {path for other in there for path in _objects(other, topic)}
    yield from (path for path in _objects(entry, topic) if path not in named)


def _objects(entry: SegmentEntry, topic: str) -> tuple[str, ...]:
    return (*entry.objects(topic), *entry.beside(topic))


def _batches(found: list[Expired]) -> Iterator[list[Expired]]:
    for start in range(0, len(found), SEGMENTS_AT_ONCE):
        yield found[start : start + SEGMENTS_AT_ONCE]
