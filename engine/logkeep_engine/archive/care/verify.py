"""Is the archive whole? Reads every object that the catalog names and makes everything anew that can be made anew.

    report = verify(Archive.open(storage))
    for damage in report.faults: print(damage)

It checks:

- The catalog: archive.json, and every commit and checkpoint. A checkpoint must equal the fold of the commits.
- Each partition: its coverage has no hole but recorded gaps, from where it was meant to begin (see `beginnings`). Its
  segments, and those of its branches, neither overlap nor lie outside of it. Its indexes of transactions and its
  markers say the same; where they do not, nothing is lost.
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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

from logkeep_engine.archive import names
from logkeep_engine.archive.care.catalog_check import (
    all_branches,
    all_snapshots,
    check_catalog,
    check_continuity,
    check_epochs,
    lost_tails,
)
from logkeep_engine.archive.care.segment_check import SegmentCheck, check_all
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.segment_transactions import SegmentTransactions
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.reading.beginnings import missing_beginnings
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.archive.reading.transactions import fold
from logkeep_engine.archive.writing.record_files import is_made_again
from logkeep_engine.storage import Storage


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """Segments and bytes of `.log` objects that are checked, of all that will be; faults so far."""

    segments: int
    segments_total: int
    bytes: int
    bytes_total: int
    faults: int


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`objects` counts those that were looked at; `bytes` and `records` are those of segments without damage.

    `orphans`: objects under `topics/` that no commit names. `disagreements`: transactions of which marker and index say
    different things. Nothing is lost by either: readers hold to the marker.
    """

    objects: int
    segments: int
    bytes: int
    records: int
    faults: list[Damage]
    orphans: list[str]
    disagreements: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        return {"whole": self.whole, **asdict(self), "faults": [damage.to_json() for damage in self.faults]}


def verify(
    archive: Archive,
    *,
    topics: Callable[[str], bool] | None = None,
    on_progress: Callable[[VerifyProgress], None] | None = None,
    workers: int = 4,
) -> VerifyReport:
    """Check the archive, or its topics whose name `topics` says yes to (the catalog always).

    Memory: about four read blocks a worker. Raises storage errors, since an archive that cannot be read is not known to
    be damaged.
    """
    faults: list[Damage] = []
    objects = 1  # archive.json, read by `open`
    epochs: set[int] = set()
    state, catalog_objects = check_catalog(archive, faults, epochs)
    objects += catalog_objects
    if state is None:
        return VerifyReport(objects, 0, 0, 0, faults, [])
    chosen = {topic_id: topic.name for topic_id, topic in state.topics.items() if topics is None or topics(topic.name)}
    tables = [segments for (topic_id, _), segments in sorted(state.segments.items()) if topic_id in chosen]
    tables += [branch.segments for branch in all_branches(state) if branch.key[0] in chosen]
    tables += [parts for parts in all_snapshots(state) if parts[0].topic_id in chosen]
    total = sum(map(len, tables))
    faults.extend(lost_tails(archive, state))
    faults.extend(check_continuity(archive.storage, state, chosen, missing_beginnings(archive, state)))
    done_bytes = good_bytes = good_records = 0
    bytes_total = sum(segments.sums()[1] for segments in tables)
    # Entries are made as they come up: a million of them would be a gigabyte.
    entries = chain.from_iterable(tables)
    disagreements: list[str] = []
    transactions: list[SegmentTransactions] = []
    key: Partition | None = None

    def end_partition() -> None:
        """The segments of a partition follow one another, and so do those of a branch."""
        if key is not None:
            disagreements.extend(_disagreements(chosen, state, key, transactions))
        transactions.clear()

    for done, (entry, checked) in enumerate(_verified(archive.storage, chosen, entries, workers), start=1):
        if (entry.topic_id, entry.partition) != key or (
            transactions and entry.base_offset < transactions[-1].base_offset
        ):
            end_partition()
            key = entry.topic_id, entry.partition
        if checked.transactions is not None:
            transactions.append(checked.transactions)
        found = checked.damage
        faults.extend(found)
        done_bytes += entry.bytes
        objects += len(entry.objects(chosen[entry.topic_id]))
        if not found:
            good_bytes += entry.bytes
            good_records += entry.records
        if on_progress is not None:
            on_progress(VerifyProgress(done, total, done_bytes, bytes_total, len(faults)))
    end_partition()
    orphans = _orphans(archive.storage, state, topics)
    faults.extend(check_epochs(archive, state.commit, epochs, orphans))
    return VerifyReport(objects, total, good_bytes, good_records, faults, orphans, disagreements)


def _disagreements(
    chosen: Mapping[str, str], state: ArchiveState, key: Partition, transactions: Iterable[SegmentTransactions]
) -> Iterator[str]:
    for item in fold(transactions, state.kept(*key)).disagreements:
        yield f"topic {chosen[key[0]]} partition {key[1]}: {item}"


def _verified(
    storage: Storage, chosen: dict[str, str], entries: Iterable[SegmentEntry], workers: int
) -> Iterator[tuple[SegmentEntry, SegmentCheck]]:
    """Entries in order with what was found of them; a few ahead of the caller."""
    waiting: deque[tuple[SegmentEntry, Future[SegmentCheck]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="logkeep-verify") as pool:
        try:
            for entry in entries:
                waiting.append((entry, pool.submit(check_all, storage, chosen[entry.topic_id], entry)))
                if len(waiting) > 2 * workers:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _orphans(storage: Storage, state: ArchiveState, topics: Callable[[str], bool] | None) -> list[str]:
    tables: list[tuple[str, Iterable[SegmentEntry]]] = [(key[0], entries) for key, entries in state.segments.items()]
    tables += [(branch.key[0], branch.segments) for branch in all_branches(state)]
    tables += [(parts[0].topic_id, parts) for parts in all_snapshots(state)]
    tables += [(key[0], entries) for item in state.unpurged for key, entries in item.segments.items()]
    known = {
        path
        for topic_id, entries in tables
        if topic_id in state.topics
        for entry in entries
        for path in (*entry.objects(state.topics[topic_id].name), *entry.beside(state.topics[topic_id].name))
    }
    # Topics' folders of an adopted archive may lie beside `archive.json`.
    beside = {f"{path.partition('/')[0]}/" for path in known if not path.startswith(names.TOPICS)}
    found = []
    for prefix in (names.TOPICS, *sorted(beside)):
        for info in storage.list(prefix):
            if info.path not in known and not is_made_again(info.path):
                topic = info.path.removeprefix(names.TOPICS).partition("/")[0]
                if topics is None or topics(topic):
                    found.append(info.path)
    return found
