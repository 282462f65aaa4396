"""Estimates what an archive costs, from its catalog and three lists of objects that the catalog does not name.

Objects of `topics/` are those that the catalog names. Not counted are orphans (`verify` lists them), `.txnparts`, and
the two files for each partition that only the Records format has: their sizes are unknown unless all objects are
listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.cluster_state import CLUSTER_STATE
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition, TopicEntry
from logkeep_engine.archive.catalog.held_tables import TableKind, held_tables, removed_tables
from logkeep_engine.archive.catalog.run_note import HEARTBEAT
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.totals import SegmentBytes
from logkeep_engine.archive.history.compacted import snapshot_of, with_snapshots
from logkeep_engine.archive.maintenance.cost.archive_cost import (
    NOTHING_STORED,
    ArchiveCost,
    BackedUp,
    GrowthFacts,
    OperationCosts,
    Projection,
    RequestCost,
    RetentionFacts,
    StoredKinds,
    StoredObjects,
    TopicCost,
    month_price,
)
from logkeep_engine.archive.maintenance.cost.requests import (
    NO_REQUESTS,
    CatalogObjects,
    RequestCount,
    lists,
    of_a_restore,
    of_a_run,
    of_a_verification,
    requests_of,
    to_delete,
    to_make_snapshot,
    to_write_record_files,
)
from logkeep_engine.archive.maintenance.growth import DAY_MS, growth
from logkeep_engine.archive.maintenance.retention import Expired, RetentionLimits, expired
from logkeep_engine.archive.maintenance.retention_items import object_bytes
from logkeep_engine.archive.moments import moment
from logkeep_engine.archive.reading.incarnations import Shows, as_counted, incarnations, taken
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.contract.prices import Prices
from logkeep_engine.contract.values import human_bytes, human_duration
from logkeep_engine.storage import ObjectInfo, Storage


@dataclass(frozen=True, slots=True)
class ObjectsBeside:
    """The listed objects of three folders."""

    catalog: Sequence[ObjectInfo]
    runs: Sequence[ObjectInfo]
    digests: Sequence[ObjectInfo]

    @classmethod
    def listed(cls, storage: Storage) -> ObjectsBeside:
        """List them. Raises storage errors."""
        return cls(storage.list(names.CATALOG), storage.list(names.RUNS), storage.list(names.DIGESTS))

    def written_since(self, time: int) -> int:
        """Return the bytes of those that were written at `time` (ms since the epoch, the store's clock) or later."""
        found = (*self.catalog, *self.runs, *self.digests)
        return sum(info.size for info in found if info.modified * 1000 >= time)

    def read(self) -> CatalogObjects:
        """Return the objects among them that runs read."""
        commits = [number for info in self.catalog if (number := names.parse_commit(info.path)) is not None]
        bundles = sum(names.parse_bundle(info.path) is not None for info in self.catalog)
        folded = [found[0] for info in self.catalog if (found := names.parse_checkpoint(info.path)) is not None]
        newest = max(folded, default=-1)
        paths = [info.path for info in self.runs]
        return CatalogObjects(
            commits=len(commits) + bundles,
            unfolded=sum(number > newest for number in commits),
            checkpoints=len(folded),
            bundles=bundles,
            beats=sum(path.endswith(f"/{HEARTBEAT}") for path in paths),
            states=sum(path.count("/") == 2 and path.endswith(f"/{CLUSTER_STATE}") for path in paths),
            runs=len(paths),
            bytes=sum(info.size for info in self.catalog),
        )


def stored_of(infos: Sequence[ObjectInfo]) -> StoredObjects:
    """Return how many they are, and their bytes."""
    return StoredObjects(len(infos), sum(info.size for info in infos))


PROJECTED_DAYS = (30, 365)


@dataclass(frozen=True)
class CostQuestion:
    """The `prices` and the limits of a retention that were given, or None."""

    prices: Prices | None = None
    limits: RetentionLimits | None = None


def cost_of(
    archive: Archive, state: ArchiveState, asked: CostQuestion, now: int, shows: Shows = as_counted
) -> ArchiveCost:
    """Return the cost of the archive at `now` (ms since the epoch). `shows` as in `incarnations.taken`. Raises storage
    errors."""
    return _Estimate(archive, state, asked, now).made(shows)


@dataclass
class _Sums:
    """The sums over the segments of a topic. Those of branches are stored, too, and no restore takes them by default.
    `log_bytes` are those before compression.
    `fresh` is what the runs of the growth have added, `fresh_logs` its `log_bytes`."""

    logs: StoredObjects = NOTHING_STORED
    indexes: StoredObjects = NOTHING_STORED
    snapshots: StoredObjects = NOTHING_STORED
    below_snapshots: int | None = None
    backup: RequestCount = NO_REQUESTS
    verify: RequestCount = NO_REQUESTS
    restore: RequestCount = NO_REQUESTS
    log_bytes: int = 0
    fresh_logs: int = 0
    fresh: int = 0
    fresh_requests: RequestCount = NO_REQUESTS

    @property
    def stored(self) -> StoredObjects:
        return self.logs + self.indexes + self.snapshots

    def add(self, topic: str, entry: SegmentEntry, *, fresh: bool, restored: bool) -> None:
        """Add a segment, or a part of a snapshot. `restored`: a restore reads it."""
        sizes = entry.files.sizes(entry)
        log, whole = sizes[entry.log_suffix], sum(sizes.values())
        requests = requests_of(topic, entry)
        self.backup += requests.backup
        self.verify += requests.verify
        if restored:
            self.restore += requests.restore
        if entry.layout is Layout.SNAPSHOT:
            self.snapshots += StoredObjects(len(sizes), whole)
            return
        objects, logs = _objects_of(entry).objects, 1 if entry.pack_files is None else _objects_of(entry).objects
        self.logs += StoredObjects(logs, log)
        self.indexes += StoredObjects(objects - logs, whole - log)
        self.log_bytes += entry.bytes
        if fresh:
            self.fresh_logs += entry.bytes
            self.fresh += whole
            self.fresh_requests += requests.backup


class _Estimate:
    def __init__(self, archive: Archive, state: ArchiveState, asked: CostQuestion, now: int) -> None:
        self._archive = archive
        self._state = state
        self._prices = asked.prices
        self._limits = asked.limits
        self._now = now
        self._beside = ObjectsBeside.listed(archive.storage)
        self._growth = growth(state.runs.values(), now)
        self._sums = {topic_id: _Sums() for topic_id in state.topics}
        self._sum(() if self._growth is None else self._growth.epochs(state))
        self._fresh = sum(sums.fresh for sums in self._sums.values())
        self._grown = self._bytes_grown()

    def made(self, shows: Shows) -> ArchiveCost:
        state, seen, prices = self._state, with_snapshots(self._state), self._prices
        by_name = incarnations(state.topics.values())
        gone, grown = self._expired(), self._growth_facts()
        by_topic = None if gone is None else _bytes_by_topic(gone)
        topics = tuple(self._topic(topic, by_topic) for topic in chain.from_iterable(by_name.values()))
        below = [topic.below_snapshots for topic in topics if topic.below_snapshots is not None]
        stored = self._stored(topics)
        whole = _total(getattr(stored, kind) for kind in StoredKinds.__slots__)
        return ArchiveCost(
            archive_id=self._archive.info.archive_id,
            uri=self._archive.storage.uri,
            time=self._now,
            time_text=moment(self._now),
            currency=None if prices is None else prices.currency,
            storage_class=None if prices is None else prices.storage_class,
            stored=stored,
            objects=whole.objects,
            bytes=whole.bytes,
            month=month_price(whole.bytes, prices),
            growth=grown,
            operations=self._operations([taken(seen, found, shows) for found in by_name.values()], stored),
            below_snapshots=None if not below else sum(below),
            retention=self._retention(gone, stored),
            projections=() if grown is None else tuple(self._projections(whole.bytes, grown, topics)),
            topics=topics,
            runs=tuple(
                BackedUp(run.run_id, run.end_time, run.bytes)
                for run in state.runs.values()
                if run.end_time is not None and run.bytes
            ),
        )

    def _sum(self, fresh: Container[int]) -> None:
        """Add all segments and snapshots to the sums of their topics."""
        state = self._state
        for key in sorted({*state.segments, *state.snapshots}):
            self._sum_partition(key, fresh)
        for table in held_tables(state):
            if table.kind not in (TableKind.LOG, TableKind.SNAPSHOT):
                sums, name = self._sums[table.key[0]], state.topics[table.key[0]].name
                for entry in table.segments:
                    sums.add(name, entry, fresh=entry.archived_first in fresh, restored=False)

    def _sum_partition(self, key: Partition, fresh: Container[int]) -> None:
        """A restore reads a snapshot, if there is one of use, and the segments after its end."""
        sums, name = self._sums[key[0]], self._state.topics[key[0]].name
        snapshots, chosen = self._state.snapshots.get(key, []), snapshot_of(self._state, key)
        end, newest = 0 if chosen is None else chosen.end, snapshots[-1].end if snapshots else 0
        for entry in self._state.segments.get(key, ()):
            sums.add(name, entry, fresh=entry.archived_first in fresh, restored=entry.base_offset >= end)
            if entry.next_offset <= newest:
                sums.below_snapshots = (sums.below_snapshots or 0) + object_bytes(entry)
                sums.backup += to_make_snapshot(entry)
        for snapshot in snapshots:
            sums.below_snapshots = sums.below_snapshots or 0
            for part in snapshot.parts(key):
                sums.add(name, part, fresh=False, restored=snapshot is chosen)
                if snapshot is not snapshots[-1]:
                    sums.backup += to_make_snapshot(part)

    def _topic(self, topic: TopicEntry, gone: Mapping[str, int] | None) -> TopicCost:
        sums = self._sums[topic.topic_id]
        stored = sums.stored
        return TopicCost(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=topic.partitions,
            logs=sums.logs,
            indexes=sums.indexes,
            snapshots=sums.snapshots,
            objects=stored.objects,
            bytes=stored.bytes,
            bytes_per_day=self._topic_growth(sums),
            backup=sums.backup,
            verify=sums.verify,
            restore=sums.restore + RequestCount(list=lists(stored.objects)),
            compacted=topic.is_compacted,
            below_snapshots=sums.below_snapshots,
            retention=None if gone is None else gone[topic.topic_id],
            month=month_price(stored.bytes, self._prices),
        )

    def _bytes_grown(self) -> float:
        """Return the bytes of all objects of segments that were added lately."""
        if self._growth is None:
            return 0.0
        added = SegmentBytes(sum(sums.fresh_logs for sums in self._sums.values()), self._fresh)
        held = SegmentBytes(
            sum(sums.log_bytes for sums in self._sums.values()),
            _total(sums.logs + sums.indexes for sums in self._sums.values()).bytes,
        )
        return self._growth.objects(added, held)

    def _topic_growth(self, sums: _Sums) -> int | None:
        """Return a topic's share of the growth; None if the segments that would show it are gone."""
        if self._growth is None:
            return None
        if not self._fresh:
            return None if self._grown else 0
        return self._growth.per_day(round(self._grown * sums.fresh / self._fresh))

    def _growth_facts(self) -> GrowthFacts | None:
        found = self._growth
        if found is None:
            return None
        days = (found.until - found.since) / DAY_MS
        written = NO_REQUESTS
        for sums in self._sums.values():
            written += sums.fresh_requests
        runs = len(found.runs)
        daily = written.times(1 / days) + self._run().times(runs / days)
        return GrowthFacts(
            since=found.since,
            since_time=moment(found.since),
            runs=runs,
            runs_per_day=runs / days,
            bytes_per_day=found.per_day(round(self._grown)),
            other_per_day=found.per_day(self._beside.written_since(found.since)),
            requests=RequestCost.of(daily, self._prices),
        )

    def _run(self) -> RequestCount:
        """Return the requests of a backup in addition to those for segments, with as many commits as runs have made on
        average."""
        attempts = sum(run.attempts for run in self._state.runs.values())
        return of_a_run(self._beside.read(), round((self._state.commit + 1) / max(1, attempts)))

    def _operations(self, chosen: Iterable[TopicEntry], stored: StoredKinds) -> OperationCosts:
        prices, catalog = self._prices, self._beside.read()
        backup, verify, restore = self._run(), NO_REQUESTS, NO_REQUESTS
        if self._archive.info.segments is FormatName.RECORDS:
            backup += to_write_record_files(len(self._state.segments))
        for sums in self._sums.values():
            backup += sums.backup
            verify += sums.verify
        partitions = listed = 0
        for topic in chosen:
            sums = self._sums[topic.topic_id]
            restore += sums.restore
            partitions += topic.partitions
            listed += lists(sums.stored.objects) if sums.stored.objects else 0
        objects = stored.logs.objects + stored.indexes.objects + stored.snapshots.objects
        return OperationCosts(
            backup=RequestCost.of(backup, prices),
            idle=RequestCost.of(of_a_run(catalog, 2), prices),
            verify=RequestCost.of(verify + of_a_verification(catalog, objects), prices),
            restore=RequestCost.of(restore + of_a_restore(catalog, partitions, listed), prices),
        )

    def _stored(self, topics: Sequence[TopicCost]) -> StoredKinds:
        return StoredKinds(
            logs=_total(topic.logs for topic in topics),
            indexes=_total(topic.indexes for topic in topics),
            snapshots=_total(topic.snapshots for topic in topics),
            removed=_total(_objects_of(entry) for table in removed_tables(self._state) for entry in table.segments),
            catalog=stored_of(self._beside.catalog),
            runs=stored_of(self._beside.runs),
            digests=stored_of(self._beside.digests),
        )

    def _expired(self) -> list[Expired] | None:
        """Return the segments that the limits would remove now."""
        return None if self._limits is None else expired(self._state, self._limits, self._now)

    def _retention(self, gone: Sequence[Expired] | None, stored: StoredKinds) -> RetentionFacts | None:
        if gone is None or self._limits is None:
            return None
        size = sum(item.bytes for item in gone)
        age, most = self._limits.max_age, self._limits.max_bytes
        lines = [f"maxAge {human_duration(age / 1000)}"] if age is not None else []
        lines += [f"maxBytes {human_bytes(most)}"] if most is not None else []
        each = 1 + stored.indexes.objects / max(1, stored.logs.objects)
        return RetentionFacts(
            told=", ".join(lines),
            segments=len(gone),
            bytes=size,
            month=month_price(size, self._prices),
            requests=RequestCost.of(to_delete(round(each * len(gone))), self._prices),
        )

    def _projections(self, now: int, grown: GrowthFacts, topics: Sequence[TopicCost]) -> Iterator[Projection]:
        """Yield the bytes in some days. All objects that are not of segments stay."""
        for days in PROJECTED_DAYS:
            size = now + days * (grown.bytes_per_day + grown.other_per_day)
            left = self._retained(days, now + days * grown.other_per_day, topics)
            yield Projection(
                days=days,
                bytes=size,
                month=month_price(size, self._prices),
                retained=left,
                retained_month=None if left is None else month_price(left, self._prices),
            )

    def _retained(self, days: int, base: int, topics: Sequence[TopicCost]) -> int | None:
        """Return the bytes in some days if the limits are those of every run until then. None without limits, or if
        the growth of a topic is not known."""
        limits = self._limits
        if limits is None or any(topic.bytes_per_day is None for topic in topics):
            return None
        for_ever = {topic_id for topic_id, topic in self._state.topics.items() if topic.is_compacted_only}
        staying = [topic for topic in topics if topic.topic_id in for_ever]
        going = [topic for topic in topics if topic.topic_id not in for_ever]
        here = sum(topic.bytes for topic in going)
        too_old = expired(self._state, RetentionLimits(max_age=limits.max_age), self._now + days * DAY_MS)
        fresh_days = float(days) if limits.max_age is None else min(days, limits.max_age / DAY_MS)
        then = here - sum(item.bytes for item in too_old) + _growth_of(going, fresh_days)
        if limits.max_bytes is not None:
            then = min(then, limits.max_bytes)
        return base - here + then + _growth_of(staying, days)


def _growth_of(topics: Iterable[TopicCost], days: float) -> int:
    return round(sum(topic.bytes_per_day or 0 for topic in topics) * days)


def _total(found: Iterable[StoredObjects]) -> StoredObjects:
    return sum(found, NOTHING_STORED)


def _objects_of(entry: SegmentEntry) -> StoredObjects:
    sizes, files = entry.files.sizes(entry), entry.pack_files
    count = len(sizes) if files is None else int(files.position == 0)  # a pack counts with its first segment
    return StoredObjects(count, sum(sizes.values()))


def _bytes_by_topic(gone: Iterable[Expired]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for item in gone:
        found[item.segment.topic_id] += item.bytes
    return found
