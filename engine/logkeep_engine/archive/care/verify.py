"""Is the archive whole? Reads every object that the catalog names and makes everything anew that can be made anew.

    report = verify(Archive.open(storage))
    for fault in report.faults: print(fault)

Checked: archive.json, every commit and checkpoint (a checkpoint must equal the fold of the commits), that each
partition's coverage has no hole but recorded gaps, from where it was meant to begin (see `beginnings`), that its
segments, and those of its branches, neither overlap nor lie outside it; of each segment the size and SHA-256 of the log
(if it is compressed, also the size of the object, the seek table, and that each frame holds what the table says), every
batch's CRC and offsets, every fact of the catalog entry, that offset and time index equal those made from the log, and
that each aborted transaction ends with an abort marker of its producer. Of segments in the Records and the Avro format:
size and SHA-256, version, every record's offset, every fact of the entry, and that the index of a Records segment is
that of its records.
Of each partition with transactions: whether indexes and markers say the same; where they do not, nothing is lost.
Objects that no commit names are orphans, not faults: a crash leaves them, and so does a task that Spark repeated. But
if there are witnesses of commits that are gone from the catalog's end (see `lost_tail`), or segments of an epoch at
which no commit was made, that is a fault.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any

from logkeep_engine import collector
from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.branches import Branch
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.beginnings import NOT_SETTLED, holes, missing_beginnings
from logkeep_engine.archive.reading.outcomes import known_parts, read_parts
from logkeep_engine.archive.reading.segments import Fault, read_segment, read_transactions
from logkeep_engine.archive.reading.transactions import SegmentFollower, SegmentTransactions, fold
from logkeep_engine.archive.writing.record_files import is_made_again
from logkeep_engine.archive.writing.record_segments import verify_record_segment
from logkeep_engine.errors import ArchiveDamaged, ArchiveMismatch, CorruptBatch, LogkeepError, ObjectMissing
from logkeep_engine.log.segment import AbortedTxn, SegmentBuilder, SegmentSummary
from logkeep_engine.storage import Storage

__all__ = [
    "Fault",
    "VerifyProgress",
    "VerifyReport",
    "check_segment",
    "read_segment",
    "verify",
    "verify_segment",
]


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
    """`objects` counts those that were looked at; `bytes` and `records` are those of segments without fault.

    `orphans`: objects under `topics/` that no commit names. `disagreements`: transactions of which marker and index say
    different things. Nothing is lost by either: readers hold to the marker.
    """

    objects: int
    segments: int
    bytes: int
    records: int
    faults: list[Fault]
    orphans: list[str]
    disagreements: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        return {"whole": self.whole, **asdict(self)}


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
    faults: list[Fault] = []
    objects = 1  # archive.json, read by `open`
    epochs: set[int] = set()
    state, catalog_objects = _verify_catalog(archive, faults, epochs)
    objects += catalog_objects
    if state is None:
        return VerifyReport(objects, 0, 0, 0, faults, [])
    chosen = {topic_id: topic.name for topic_id, topic in state.topics.items() if topics is None or topics(topic.name)}
    tables = [segments for (topic_id, _), segments in sorted(state.segments.items()) if topic_id in chosen]
    tables += [branch.segments for branch in _branches(state) if branch.key[0] in chosen]
    total = sum(map(len, tables))
    faults.extend(_lost_tails(archive, state))
    faults.extend(_verify_continuity(archive.storage, state, chosen, missing_beginnings(archive, state)))
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
        found = checked.faults
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
    faults.extend(_verify_epochs(archive, state.commit, epochs, orphans))
    return VerifyReport(objects, total, good_bytes, good_records, faults, orphans, disagreements)


def _disagreements(
    chosen: Mapping[str, str], state: ArchiveState, key: Partition, transactions: Iterable[SegmentTransactions]
) -> Iterator[str]:
    for item in fold(transactions, state.kept(*key)).disagreements:
        yield f"topic {chosen[key[0]]} partition {key[1]}: {item}"


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """`faults` of a segment's objects, and what it says of transactions: None if it holds records, not batches."""

    faults: list[Fault]
    transactions: SegmentTransactions | None


def verify_segment(storage: Storage, topic: str, entry: SegmentEntry) -> list[Fault]:
    """The faults of one segment's objects; [] if it is whole. `topic` is the name. Bounded memory."""
    return _check_all(storage, topic, entry).faults


def _check_all(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck:
    """Check as `check_segment` does, and what no reader depends on."""
    found = check_segment(storage, topic, entry)
    if found.transactions is not None and not found.faults:
        found.faults.extend(_verify_parts(storage, topic, entry, found.transactions))
    return found


def check_segment(storage: Storage, topic: str, entry: SegmentEntry) -> SegmentCheck:
    """Like `verify_segment`, with what the same pass tells of transactions."""
    if entry.layout is not Layout.KAFKA:
        return SegmentCheck(verify_record_segment(storage, topic, entry), None)
    faults: list[Fault] = []
    # The log is read to its end whatever is found, so that one pass names all damage.
    builder = SegmentBuilder(entry.base_offset, lambda _: None, hashed=False)
    known = known_parts(storage, topic, entry)
    follower = SegmentFollower(entry.base_offset, known.epoch if known is not None else entry.epoch)

    def on_fault(fault: Fault, lost: Range | None) -> None:
        faults.append(fault)
        if lost is not None:
            follower.cut(lost[1])

    for run, headers in read_segment(storage, topic, entry, on_fault=on_fault):
        try:
            builder.append(run, headers)
            follower.note(run, headers)
        except (CorruptBatch, ValueError) as error:
            offset = headers[0][1].base_offset
            faults.append(_fault(storage, topic, entry, entry.log_suffix, offset, str(error)))
            follower.cut(headers[-1][1].next_offset)
    whole = not faults
    if whole:
        summary = builder.finish()
        faults.extend(_verify_facts(storage, topic, entry, summary))
        faults.extend(_verify_index(storage, topic, entry, names.INDEX, summary.index))
        faults.extend(_verify_index(storage, topic, entry, names.TIMEINDEX, summary.timeindex))
    else:
        # Indexes cannot be held against a damaged log, but that they are there can be said.
        for suffix, size in ((names.INDEX, entry.index_bytes), (names.TIMEINDEX, entry.timeindex_bytes)):
            faults.extend(_verify_size(storage, topic, entry, suffix, size)[1])
    index, wrong = _transaction_index(storage, topic, entry)
    faults.extend(wrong)
    faults.extend(_verify_transactions(storage, topic, entry, index or (), follower.ends() if whole else None))
    transactions = follower.finish(entry.next_offset, index)
    return SegmentCheck(faults, transactions)


def _verify_facts(storage: Storage, topic: str, entry: SegmentEntry, summary: SegmentSummary) -> Iterator[Fault]:
    found = SegmentEntry.of(
        summary, topic_id=entry.topic_id, partition=entry.partition, epoch=entry.epoch, attempt=entry.attempt
    )
    found = replace(
        found,
        # Held against the log when it was read.
        sha256=entry.sha256,
        stored_bytes=entry.stored_bytes,
        # Told by the index objects themselves, checked below.
        index_bytes=entry.index_bytes,
        timeindex_bytes=entry.timeindex_bytes,
        txnindex_bytes=entry.txnindex_bytes,
        txnindex_sha256=entry.txnindex_sha256,
    )
    for item in fields(SegmentEntry):
        expected, actual = getattr(entry, item.name), getattr(found, item.name)
        if expected != actual:
            what = f"{item.name} is {actual}, the catalog says {expected}"
            yield _fault(storage, topic, entry, entry.log_suffix, entry.base_offset, what)


def _verify_size(
    storage: Storage, topic: str, entry: SegmentEntry, suffix: str, size: int
) -> tuple[bytes | None, list[Fault]]:
    """The object's content if it is there with the catalog's size, and what is wrong with it."""
    try:
        data = storage.read(entry.stem(topic) + suffix)
    except ObjectMissing:
        return None, [_fault(storage, topic, entry, suffix, entry.base_offset, "the object is missing")]
    if len(data) != size:
        what = f"{len(data)} bytes, the catalog says {size}"
        return None, [_fault(storage, topic, entry, suffix, entry.base_offset, what)]
    return data, []


def _verify_index(storage: Storage, topic: str, entry: SegmentEntry, suffix: str, made: bytes) -> list[Fault]:
    size = entry.index_bytes if suffix == names.INDEX else entry.timeindex_bytes
    data, faults = _verify_size(storage, topic, entry, suffix, size)
    if data is not None and data != made:
        return [_fault(storage, topic, entry, suffix, entry.base_offset, "it is not the index of the log")]
    return faults


def _transaction_index(
    storage: Storage, topic: str, entry: SegmentEntry
) -> tuple[Sequence[AbortedTxn] | None, list[Fault]]:
    """The entries, None if they cannot be read, and what is wrong then."""
    try:
        return read_transactions(storage, topic, entry), []
    except ArchiveDamaged as error:
        path = f"{storage.uri}/{entry.stem(topic)}{names.TXNINDEX}"
        what = error.message.partition("): ")[2].rstrip(".") or error.message
        return None, [Fault(path, topic, entry.partition, None, what)]


def _verify_transactions(
    storage: Storage, topic: str, entry: SegmentEntry, index: Sequence[AbortedTxn], ends: set[tuple[int, int]] | None
) -> list[Fault]:
    return [
        _fault(storage, topic, entry, names.TXNINDEX, item.last_offset, what)
        for item in index
        if (what := _wrong_transaction(item, ends))
    ]


def _verify_parts(storage: Storage, topic: str, entry: SegmentEntry, made: SegmentTransactions) -> Iterator[Fault]:
    """The object that saves reading the log for its transactions; it need not be there."""
    data = read_parts(storage, topic, entry)
    if data is not None and data != made.to_json(entry):
        what = "it is not what the log says; it can be deleted, the log holds the same"
        yield _fault(storage, topic, entry, names.TXNPARTS, entry.base_offset, what)


def _wrong_transaction(item: AbortedTxn, ends: set[tuple[int, int]] | None) -> str:
    if not 0 <= item.first_offset <= item.last_offset:
        return f"a transaction of producer {item.producer_id} with offsets {item.first_offset} to {item.last_offset}"
    if ends is not None and (item.producer_id, item.last_offset) not in ends:
        return f"no transaction of producer {item.producer_id} ends there"
    return ""


def _verified(
    storage: Storage, chosen: dict[str, str], entries: Iterable[SegmentEntry], workers: int
) -> Iterator[tuple[SegmentEntry, SegmentCheck]]:
    """Entries in order with what was found of them; a few ahead of the caller."""
    waiting: deque[tuple[SegmentEntry, Future[SegmentCheck]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="logkeep-verify") as pool:
        try:
            for entry in entries:
                waiting.append((entry, pool.submit(_check_all, storage, chosen[entry.topic_id], entry)))
                if len(waiting) > 2 * workers:
                    first, result = waiting.popleft()
                    yield first, result.result()
            while waiting:
                first, result = waiting.popleft()
                yield first, result.result()
        finally:
            pool.shutdown(cancel_futures=True)


@collector.paused()
def _verify_catalog(archive: Archive, faults: list[Fault], epochs: set[int]) -> tuple[ArchiveState | None, int]:
    """The state, or None if it cannot be known; the number of the catalog's objects. `epochs` gets those that began."""
    listing = archive.listing()
    count = len(listing.commits) + len(listing.checkpoints)
    # Read one at a time, when the fold has come to it: each is as large as the state.
    unread: dict[int, list[str]] = {}
    for number, _, info in listing.checkpoints:
        unread.setdefault(number, []).append(info.path)
    state = ArchiveState()
    try:
        for commit in archive.read_commits(range(max(listing.commits, default=-1) + 1)):
            state.apply(commit)
            epochs.add(commit.epoch)
            for path in unread.pop(commit.number, ()):
                _compare_checkpoint(archive, path, state, faults)
        _read_checkpoints(archive, unread, faults)
        faults.extend(_checkpoints_ahead(archive, unread, state.commit))
        return state, count
    except (ArchiveDamaged, ArchiveMismatch, ValueError, KeyError) as error:
        bad = state.commit + 1
        faults.append(_catalog_fault(archive, names.commit_path(bad), error))
    _read_checkpoints(archive, unread, faults)
    # A checkpoint may know what damaged commits do not say any more.
    for number in range(bad + 1, max(listing.commits) + 1):
        try:
            epochs.add(archive.read_commit(number).epoch)
        except (ArchiveDamaged, ArchiveMismatch) as error:
            faults.append(_catalog_fault(archive, names.commit_path(number), error))
    try:
        return archive.load(), count
    except (ArchiveDamaged, ArchiveMismatch):
        return None, count


def _checkpoints_ahead(archive: Archive, paths: Iterable[int], last: int) -> Iterator[Fault]:
    """Faults of checkpoints that hold more than the commits which are there."""
    for number in paths:
        if number > last:
            name = f"{archive.storage.uri}/{names.CATALOG}"
            what = f"a checkpoint holds commits up to {number}, the last commit there is {last}: later ones are lost"
            yield Fault(name, "", -1, None, what)


def _lost_tails(archive: Archive, state: ArchiveState) -> Iterator[Fault]:
    for tail in archive.lost_tails(state, thorough=True):
        yield Fault(f"{archive.storage.uri}/{tail.witness}", "", -1, None, str(tail))


def _verify_epochs(archive: Archive, last: int, epochs: set[int], orphans: list[str]) -> Iterator[Fault]:
    """Faults of segments whose epoch no commit of the catalog has. `last` is the last commit of which the epoch is
    known."""
    written: dict[int, list[str]] = {}
    for path in orphans:
        segment = names.parse_segment(path)
        if segment is not None and segment.epoch not in epochs:
            written.setdefault(segment.epoch, []).append(path)
    if not written:
        return
    # A run may have begun since the catalog was read: it did so before it wrote them.
    now = archive.load()
    later = {commit.epoch for commit in archive.read_commits(range(last + 1, now.commit + 1))}
    for epoch, paths in sorted(written.items()):
        if epoch not in later:
            first = names.parse_segment(paths[0])
            assert first is not None
            what = (
                f"it is of epoch {epoch}, at which no commit was made, with {len(paths)} objects in all: "
                "the commits that named them are lost"
            )
            yield Fault(f"{archive.storage.uri}/{paths[0]}", first.topic, first.partition, first.base_offset, what)


def _compare_checkpoint(archive: Archive, path: str, state: ArchiveState, faults: list[Fault]) -> None:
    folded = _read_checkpoint(archive, path, faults)
    if folded is not None and not folded.same_facts(state):
        name = f"{archive.storage.uri}/{path}"
        faults.append(Fault(name, "", -1, None, "it is not the fold of the commits"))


def _read_checkpoints(archive: Archive, paths: dict[int, list[str]], faults: list[Fault]) -> None:
    """Only whether they can be read: there are no commits to compare them with."""
    for path in (path for some in paths.values() for path in some):
        _read_checkpoint(archive, path, faults)


def _read_checkpoint(archive: Archive, path: str, faults: list[Fault]) -> ArchiveState | None:
    try:
        return archive.read_checkpoint(path)
    except (ArchiveDamaged, ArchiveMismatch, ObjectMissing) as error:
        faults.append(_catalog_fault(archive, path, error))
        return None


def _catalog_fault(archive: Archive, path: str, error: Exception) -> Fault:
    message = error.message if isinstance(error, LogkeepError) else str(error)
    name = f"{archive.storage.uri}/{path}"
    return Fault(name, "", -1, None, message.removeprefix(f"{name}: ").rstrip("."))


def _verify_continuity(
    storage: Storage, state: ArchiveState, chosen: dict[str, str], beginnings: Mapping[Partition, int]
) -> Iterator[Fault]:
    for topic_id, partition in state.partitions():
        if topic_id not in state.topics:
            name = f"{storage.uri}/{names.CATALOG}"
            yield Fault(name, "", -1, None, f"partition {partition} of topic id {topic_id}, which no commit names")
            continue
        if topic_id not in chosen:
            continue
        topic = chosen[topic_id]
        folder = f"{storage.uri}/{_folder(state, topic_id, partition)}"
        for start, end in holes(state, (topic_id, partition), beginnings):
            yield Fault(folder, topic, partition, start, f"offsets [{start}, {end}) are {NOT_SETTLED}")
        coverage = state.coverage.get((topic_id, partition), [])
        yield from _verify_order(storage, topic, coverage, state.segments.get((topic_id, partition), ()))
    for branch in _branches(state):
        if branch.key[0] in chosen:
            # A segment across the offset at which the log was cut off belongs to the branch as a whole.
            first = [(entry.base_offset, branch.offset) for entry in branch.segments[:1]]
            coverage = [item for item in first if item[0] < item[1]] + branch.held.coverage
            yield from _verify_order(storage, chosen[branch.key[0]], coverage, branch.segments)


def _branches(state: ArchiveState) -> list[Branch]:
    return [branch for _, branches in sorted(state.branches.items(), key=_key) for branch in branches]


def _key(item: tuple[Partition, list[Branch]]) -> Partition:
    return item[0]


def _verify_order(
    storage: Storage, topic: str, coverage: Sequence[Range], entries: Iterable[SegmentEntry]
) -> Iterator[Fault]:
    at = -1
    for entry in entries:
        name, partition = f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix}", entry.partition
        if entry.base_offset < at:
            yield Fault(name, topic, partition, entry.base_offset, f"it overlaps the segment that ends before {at}")
        at = max(at, entry.next_offset)
        covers = bisect_right(coverage, entry.base_offset, key=_start)
        if not covers or coverage[covers - 1][1] <= entry.base_offset:
            yield Fault(name, topic, partition, entry.base_offset, "it begins outside of its coverage")


def _start(covered: Range) -> int:
    return covered[0]


def _folder(state: ArchiveState, topic_id: str, partition: int) -> str:
    entry = next(iter(state.segments.get((topic_id, partition), ())), None)
    topic = state.topics[topic_id].name
    if entry is None or entry.layout is Layout.KAFKA:
        return f"{names.TOPICS}{topic}/{topic_id}/partition={partition}"
    return entry.stem(topic).rpartition("/")[0]


def _orphans(storage: Storage, state: ArchiveState, topics: Callable[[str], bool] | None) -> list[str]:
    tables: list[tuple[str, Iterable[SegmentEntry]]] = [(key[0], entries) for key, entries in state.segments.items()]
    tables += [(branch.key[0], branch.segments) for branch in _branches(state)]
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


def _fault(storage: Storage, topic: str, entry: SegmentEntry, suffix: str, offset: int | None, what: str) -> Fault:
    return Fault(f"{storage.uri}/{entry.stem(topic)}{suffix}", topic, entry.partition, offset, what)
