"""Is the archive whole? Reads every object that the catalog names, and makes again everything that can be made again.

    report = verify(Archive.open(storage))
    for damage in report.faults: print(damage)

It checks:

- The catalog: archive.json, and every commit and checkpoint. A checkpoint must equal the fold of the commits.
- Each partition: its coverage has no hole but recorded gaps, from where it was meant to begin (see `beginnings`). Its
  segments, those of its branches and those of a generation that is being read neither overlap nor lie outside of it.
  Its indexes of transactions and its markers say the same; where they do not, nothing is lost.
- Each segment of batches: size and digest of the log, every batch's CRC and offsets, and every fact of the catalog
  entry. Offset and time index equal those made from the log. Each aborted transaction ends with an abort marker of its
  producer. If the log is compressed: the size of the object, the seek table, and that each frame holds what the table
  says.
- Each part of a snapshot as a segment of batches, with its index of offsets.
- Each segment in the Records or the Avro format: size and digest, version, every record's offset, and every fact of
  the entry. The index of a Records segment is that of its records.

Objects that no commit names are orphans, not faults: a crash leaves them, and so does a task that Spark repeated. But
if there are witnesses of commits that are gone from the catalog's end (see `lost_tail`), or segments of an epoch at
which no commit was made, that is damage.

A run may remove segments while they are verified, and delete their objects if no lease keeps them. A segment that no
newer commit names is not damage, whatever is left of it. What was removed before is not read, unless a new generation
has replaced it and a run with a hold needs it (see `kept_fronts`).

An incremental verification (`increments`) does not read all segments: of those that it leaves out it compares only the
sizes of their objects, and it does not look for what only all segments of a partition together show. It is the same
with segments whose objects are cold: they are named, and nothing is claimed of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables
from logkeep_engine.archive.catalog.packed import pack
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.catalog_check import (
    check_catalog,
    check_continuity,
    check_epochs,
    lost_tails,
)
from logkeep_engine.archive.maintenance.increments import VerifyCycle
from logkeep_engine.archive.maintenance.segment_check import SegmentCheck, check_all, missing_or_short
from logkeep_engine.archive.pack_table import read_table
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.partition import NeighbouringReads
from logkeep_engine.archive.reading.transactions import fold
from logkeep_engine.archive.writing.record_files import is_made_again
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, ObjectCold, ObjectMissing
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """How many segments are checked, of how many."""

    segments: int
    segments_total: int


@dataclass(frozen=True, slots=True)
class Unread:
    """The segments that an incremental verification has not read, and the bytes of their logs. It was number `done` of
    the `parts` of a cycle; `whole_catalog` tells whether all commits were read."""

    segments: int
    bytes: int
    done: int
    parts: int
    whole_catalog: bool


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`objects` counts those that were looked at; `bytes` and `records` are those of segments without damage.

    `orphans`: objects of topics, and packs, that no commit names. `disagreements`: transactions of which marker
    and index say different things. Nothing is lost by either: readers hold to the marker. `unread` is None if no
    increment was asked for. `cold` names the logs of segments that could not be read, since objects of theirs are cold;
    `bytes` and `records` are without them."""

    objects: int
    segments: int
    bytes: int
    records: int
    faults: list[Damage]
    orphans: list[str]
    disagreements: list[str] = field(default_factory=list)
    unread: Unread | None = None
    cold: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the archive is known to be whole, as far as it was to be read."""
        return not self.faults and not self.cold

    def to_json(self) -> dict[str, Any]:
        unread = {} if self.unread is None else {"unread": asdict(self.unread)}
        found = {"whole": self.whole, **asdict(self), "faults": [damage.to_json() for damage in self.faults]}
        return {key: value for key, value in found.items() if key != "unread"} | unread


def verify(
    archive: Archive,
    *,
    topics: Callable[[str], bool] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
    workers: int = 4,
    cycle: VerifyCycle | None = None,
    anchor: Anchor | None = None,
) -> VerifyReport:
    """Check the archive, or its topics whose name `topics` says yes to (the catalog always), or what the next
    verification of a `cycle` reads, which is stored then. With an `anchor` all commits are read, and those up to it
    must be the ones that were known.

    Memory: about four read blocks a worker. Raises storage errors, since an archive that cannot be read is not known to
    be damaged.
    """
    known = None if cycle is None or anchor is not None else cycle.known(archive)
    catalog = check_catalog(archive, known, anchor)
    state, faults = catalog.state, catalog.damage
    catalog_damaged = bool(faults)
    if state is None:
        return VerifyReport(1 + catalog.objects, 0, 0, 0, faults, [])
    if cycle is not None and cycle.epoch > state.epoch:
        cycle = VerifyCycle(cycle.parts)  # commits are lost: what follows has other segments of the same epochs
    chosen = {topic_id: topic.name for topic_id, topic in state.topics.items() if topics is None or topics(topic.name)}
    faults.extend(lost_tails(archive, state))
    faults.extend(check_continuity(archive.storage, state, chosen, missing_beginnings(archive, state)))
    tables: list[Sequence[SegmentEntry]] = [item.segments for item in held_tables(state, chosen)]
    left_out: list[SegmentEntry] = []
    if cycle is not None and not cycle.is_first:
        tables, left_out = _chosen_by(cycle, tables)
    reading = _Reading(chosen, state, tables, follows=not left_out)
    for entry, checked in _verified(NeighbouringReads(archive.storage), chosen, chain.from_iterable(tables), workers):
        reading.take(entry, checked)
        if on_progress is not None:
            on_progress(reading.progress())
    reading.end_partition()
    listed = _listed(archive.storage, state)
    left = (
        (entry, list(missing_or_short(archive.storage, chosen[entry.topic_id], entry, listed)))
        for entry in (*left_out, *reading.cold)
    )
    faults.extend(_altered_tables(archive.storage, chosen, reading.packs, listed, workers))
    damaged = _still_named(archive, state, [*reading.damaged, *(item for item in left if item[1])])
    faults.extend(chain.from_iterable(damage for _, damage in damaged))
    orphans = [path for path in _orphans(listed, state) if topics is None or _is_chosen(path, topics)]
    if known is None:
        faults.extend(check_epochs(archive, state.commit, catalog.epochs, orphans))
    unread = None
    if cycle is not None:
        unread = Unread(
            len(left_out), sum(entry.bytes for entry in left_out), cycle.done + 1, cycle.parts, known is None
        )
        cycle.after(state, [entry for entry, _ in damaged], catalog.compared, catalog_damaged).store(archive)
    objects = 1 + catalog.objects + reading.objects
    return VerifyReport(
        objects,
        reading.total - len(reading.cold),
        reading.good_bytes,
        reading.records,
        faults,
        orphans,
        reading.disagreements,
        unread,
        [entry.stem(chosen[entry.topic_id]) + entry.log_suffix for entry in reading.cold],
    )


def _chosen_by(
    cycle: VerifyCycle, tables: Iterable[Sequence[SegmentEntry]]
) -> tuple[list[Sequence[SegmentEntry]], list[SegmentEntry]]:
    """Return the segments that the next verification of a cycle reads, and those that it leaves out."""
    wanted: list[Sequence[SegmentEntry]] = []
    left_out: list[SegmentEntry] = []
    for segments in tables:
        some: list[SegmentEntry] = []
        for entry in segments:
            (some if cycle.reads(entry) else left_out).append(entry)
        if some:
            wanted.append(some)
    return wanted, left_out


class _Reading:
    """Adds up what is found in the segments of `tables`, one after another. `follows`: it gets all segments of each
    partition, so transactions can be followed from one to the next."""

    def __init__(
        self,
        chosen: Mapping[str, str],
        state: ArchiveState,
        tables: Iterable[Sequence[SegmentEntry]],
        *,
        follows: bool,
    ) -> None:
        self._chosen, self._state, self._follows = chosen, state, follows
        self.total = sum(map(len, tables))
        self.objects = self.records = self.good_bytes = 0
        self.damaged: list[tuple[SegmentEntry, list[Damage]]] = []
        self.disagreements: list[str] = []
        self.cold: list[SegmentEntry] = []
        self._done = 0
        self._holed = False
        self._transactions: list[SegmentTransactions] = []
        self.packs: dict[str, list[SegmentEntry]] = {}
        """The segments that were read of each pack."""
        self._key: Partition | None = None

    def take(self, entry: SegmentEntry, checked: SegmentCheck | None) -> None:
        """Add the next segment. Those of a partition follow one another, and so do those of a branch. None: objects of
        it are cold, so transactions cannot be followed through it."""
        transactions = self._transactions
        if (entry.topic_id, entry.partition) != self._key or (
            transactions and entry.base_offset < transactions[-1].base_offset
        ):
            self.end_partition()
            self._key = entry.topic_id, entry.partition
        self._done += 1
        if checked is None:
            self.cold.append(entry)
            self._holed = True
            return
        if transactions and entry.base_offset < transactions[-1].next_offset:
            transactions.pop()  # what all of it says is of records that were cut off, too
            self.end_partition()
        if checked.transactions is not None:
            transactions.append(checked.transactions)
        if entry.pack_files is None:
            self.objects += len(entry.objects(self._chosen[entry.topic_id]))
        else:
            pack_path = entry.pack_files.pack(entry)
            self.objects += pack_path not in self.packs
            self.packs.setdefault(pack_path, []).append(entry)
        if checked.damage:
            self.damaged.append((entry, checked.damage))
        else:
            self.good_bytes += entry.bytes
            self.records += entry.records

    def end_partition(self) -> None:
        """Note that no further segment of the partition comes."""
        if self._key is not None and self._follows and not self._holed:
            self.disagreements.extend(_disagreements(self._chosen, self._state, self._key, self._transactions))
        self._transactions.clear()
        self._holed = False

    def progress(self) -> VerifyProgress:
        """Return all that is done so far."""
        return VerifyProgress(self._done, self.total)


def _disagreements(
    chosen: Mapping[str, str], state: ArchiveState, key: Partition, transactions: Iterable[SegmentTransactions]
) -> Iterator[str]:
    for item in fold(transactions, state.kept(*key)).disagreements:
        yield f"topic {chosen[key[0]]} partition {key[1]}: {item}"


def _verified(
    storage: Storage, chosen: dict[str, str], entries: Iterable[SegmentEntry], workers: int
) -> Iterator[tuple[SegmentEntry, SegmentCheck | None]]:
    """Entries in order with what was found of them; a few ahead of the caller. None: objects of it are cold."""
    waiting: deque[tuple[SegmentEntry, Future[SegmentCheck | None]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="logkeep-verify") as pool:
        try:
            for entry in entries:
                waiting.append((entry, pool.submit(_checked, storage, chosen[entry.topic_id], entry)))
                if len(waiting) > 2 * workers:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _checked(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck | None:
    try:
        return check_all(storage, topic, entry)
    except ObjectCold:
        return None


def _listed(storage: Storage, state: ArchiveState) -> dict[str, int]:
    """Return the objects of topics and the packs, and their sizes. Topics' folders of an adopted archive may lie next
    to `archive.json`."""
    first = (segments[0].topic_folder(state.topics[topic_id].name) for topic_id, segments in _named(state) if segments)
    beside = {names.PACKS, *(folder for folder in first if not folder.startswith(names.TOPICS))}
    return {info.path: info.size for prefix in (names.TOPICS, *sorted(beside)) for info in storage.list(prefix)}


def _altered_tables(
    storage: Storage,
    chosen: Mapping[str, str],
    packs: Mapping[str, Sequence[SegmentEntry]],
    listed: Mapping[str, int],
    workers: int,
) -> Iterator[Damage]:
    """Yield the packs whose own table does not have what the catalog has: who has lost the catalog would not find it.
    The segments themselves may be whole."""

    def look(path: str) -> Damage | None:
        try:
            table = read_table(storage, path, listed[path])
        except (ObjectMissing, ObjectCold):
            return None  # retention, or a rule of the store, was faster
        there = {(place.topic_id, place.partition, place.position) for place in table or ()}
        for entry in packs[path]:
            assert entry.pack_files is not None
            if (entry.topic_id, entry.partition, entry.pack_files.position) not in there:
                what = (
                    "the table at its end is missing or altered" if table is None else "the table at its end lacks it"
                )
                return Damage(f"{storage.uri}/{path}", chosen[entry.topic_id], entry.partition, entry.base_offset, what)
        return None

    with ThreadPoolExecutor(workers, thread_name_prefix="logkeep-verify") as pool:
        yield from filter(None, pool.map(look, [path for path in packs if path in listed]))


def _named(state: ArchiveState) -> Iterator[tuple[str, Sequence[SegmentEntry]]]:
    """Yield all segments whose objects may be there, by topic id."""
    for item in chain(held_tables(state, state.topics), removed_tables(state, state.topics)):
        yield item.key[0], item.segments


def _orphans(listed: Mapping[str, int], state: ArchiveState) -> list[str]:
    known = {
        path
        for topic_id, entries in _named(state)
        for entry in entries
        for path in (*entry.objects(state.topics[topic_id].name), *entry.beside(state.topics[topic_id].name))
    }
    return [path for path in listed if path not in known and not is_made_again(path)]


def _is_chosen(path: str, topics: Callable[[str], bool]) -> bool:
    """Return whether an object is of a chosen topic. Of a pack that is unknown without reading it."""
    return not path.startswith(names.PACKS) and topics(path.removeprefix(names.TOPICS).partition("/")[0])


def _still_named(
    archive: Archive, state: ArchiveState, damaged: list[tuple[SegmentEntry, list[Damage]]]
) -> list[tuple[SegmentEntry, list[Damage]]]:
    """Return the segments with damage, without those that no commit names any more which was made since `state`."""
    if not damaged or not archive.continues_after(state.commit):
        return damaged
    topic_ids = {entry.topic_id for entry, _ in damaged}
    try:
        newest = archive.load()
    except (ArchiveDamaged, ArchiveMismatch):
        return damaged
    named = {pack(entry) for table in held_tables(newest, topic_ids) for entry in table.segments}
    return [item for item in damaged if pack(item[0]) in named]
