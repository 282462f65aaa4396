"""The readers beside a restore: Spark, the toolbox, what a reconciliation and the catalog know."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any

from pyspark.sql.datasource import Filter, GreaterThanOrEqual, LessThan

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.replacements import erased_ranges
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.history.compacted import with_snapshots
from logkeep_engine.archive.maintenance.inspect import describe
from logkeep_engine.archive.reading.visible import shows
from logkeep_engine.spark.source import LogkeepReader, SegmentReads
from logkeep_engine.spark.source_options import SourceOptions
from logkeep_engine.spark.source_rows import read_rows
from logkeep_engine.storage import Storage
from logkeep_engine.toolbox.diff import ArchiveSide
from logkeep_engine.toolbox.source import _in_archive  # its door asks for a folder
from tests.model.asking import Fault
from tests.model.restoring import Given, Rows
from tests.model.world import World

_NO_SCHEMA: Any = None


class _Reader(LogkeepReader):
    """A reader of a storage in memory."""

    store: Storage

    def _storage(self) -> Storage:
        return self.store


def spark_rows(world: World, filters: list[Filter], **options: str) -> Rows:
    """The rows that Spark's source reads."""
    reader = _Reader(SourceOptions.parse({"path": world.store.uri, **options}), _NO_SCHEMA)
    reader.store = world.store
    list(reader.pushFilters(filters))
    found: Rows = {}
    for group in reader.partitions():
        assert isinstance(group, SegmentReads)
        for read in group.reads:
            for rows in read_rows(world.store, read):
                key = (read.entry.topic_id, read.entry.partition)
                found.setdefault(key, []).extend((rec.offset, rec.timestamp, rec.key, rec.value) for rec in rows[0])
    world.store.delete([info.path for info in world.store.list("runs/reading.spark-")])  # it has ended
    return found


def spark_given(world: World, topic_id: str) -> Given:
    """Return what Spark's source reads of an incarnation."""
    name = world.topic_of(topic_id).name
    return Given(spark_rows(world, [], topics=name, topicId=topic_id), {name: topic_id})


def spark_filtered(world: World, whole: Given, chance: Random) -> Iterator[Fault]:
    """Filters of times leave out what they leave out of the whole, and options of times what lies outside of the first
    records of these times."""
    times = sorted({row[1] for rows in whole.rows.values() for row in rows if row[1] is not None})
    if not times:
        return
    low, high = sorted((chance.choice(times), chance.choice(times) + chance.choice((0, 1))))
    since = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(low / 1000, UTC))
    before = LessThan(("timestamp",), datetime.fromtimestamp(high / 1000, UTC))
    ((name, topic_id),) = whole.topic_ids.items()
    given = _inside(spark_rows(world, [since, before], topics=name, topicId=topic_id), low, high)
    right = _inside(whole.rows, low, high)
    if given != right:
        yield Fault("another filter", "Spark", f"times {low} to {high}", f"{given} instead of {right}", world.had())
    else:
        world.counts["Spark, filtered: equal"] += 1


def _inside(rows: Rows, low: int, high: int) -> Rows:
    some = {key: [row for row in found if low <= (row[1] or 0) < high] for key, found in rows.items()}
    return {key: found for key, found in some.items() if found}


def compared(world: World, storage: Storage, whole: Given) -> Iterator[Fault]:
    """`logkeep log diff` and the toolbox see what the Spark source sees of the newest incarnations."""
    side = ArchiveSide(_in_archive(Archive.open(storage), ""))
    rows = {
        (whole.topic_ids.get(name, name), number): [
            (rec.offset, rec.timestamp, rec.key, rec.value) for rows in side.rows(name, number) for rec in rows
        ]
        for name, number in side.partitions()
    }
    given, right = ({key: found for key, found in some.items() if found} for some in (rows, whole.rows))
    if given != right:
        yield Fault("different", "diff", "the newest", f"{given} instead of {right}", world.had())
    else:
        world.counts["diff: equal"] += 1


def inspected(world: World, state: ArchiveState, newest: Given) -> Iterator[Fault]:
    """`logkeep inspect` marks the incarnations that a restore takes."""
    described = describe(Archive.open(world.store).info, state, shows=shows(world.store, with_snapshots(state)))
    taken = {topic.name: topic.topic_id for topic in described.topics if topic.taken}
    if taken != newest.topic_ids:
        yield Fault("different", "inspect", "the newest", f"{taken} instead of {newest.topic_ids}", world.had())


def erased_as_lost(world: World, state: ArchiveState) -> Iterator[Fault]:
    """A reconciliation must not count what was erased as lost: of a compacted topic the last of each key."""
    for key, erased in world.reference.erased.items():
        offsets = [at for at, last in erased.items() if at == last or not world.topic_of(key[0]).has_states]
        if "generation" in world.topic_of(key[0]).features:
            continue  # what it has read again since counts, and the cluster has erased it, too
        end = state.accounted_for(*key)[-1][1] if state.accounted_for(*key) else 0
        ranges = erased_ranges(state, key, end)
        snapshots = [(0, snapshot.end) for snapshot in state.snapshots.get(key, ())]
        there = [at for at in offsets if any(low <= at < high for low, high in (*state.kept(*key), *snapshots))]
        lines = [at for at in there if not any(low <= at < high for low, high in ranges)]
        if lines:
            text = f"offsets {lines} were erased, and count as lost: only {ranges} are known"
            yield Fault("false loss", "reconciliation", "the newest", text, world.had())


def forgotten(world: World, state: ArchiveState) -> Iterator[Fault]:
    """Find offsets that the catalog calls kept, and has no segment for."""
    for key, line in world.reference.lines.items():
        if world.topic_of(key[0]).features & {"generation", "cleaned"}:
            continue
        has = [(entry.base_offset, entry.next_offset) for entry in state.segments.get(key, ())]
        kept = [at for at in line.read if any(low <= at < high for low, high in state.kept(*key))]
        lacks = [at for at in kept if not any(low <= at < high for low, high in has)]
        if lacks:
            text = f"partition {key[1]}: offsets {lacks} are in no segment, and do not count as removed"
            yield Fault("forgotten", "the catalog", "the newest", text, world.had())
