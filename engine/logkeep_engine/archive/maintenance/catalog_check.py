"""The check of the catalog: its commits and checkpoints, and whether they leave offsets out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from logkeep_engine import collector
from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.anchor import AnchorCheck
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim
from logkeep_engine.archive.catalog.cluster_state import check_cluster_state, state_path
from logkeep_engine.archive.catalog.commit_reader import CatalogListing
from logkeep_engine.archive.catalog.comparison import CheckpointComparison
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.generations import PASSIVE
from logkeep_engine.archive.catalog.packed import PackedSegments
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.maintenance.increments import ComparedCheckpoint
from logkeep_engine.archive.ranges import Range
from logkeep_engine.archive.reading.beginnings import NOT_ACCOUNTED_FOR, holes
from logkeep_engine.archive.reading.damage import Damage
from logkeep_engine.contract.anchor import Anchor
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveRolledBack,
    ArchiveUnsigned,
    LogkeepError,
    ObjectMissing,
    ObjectTooLarge,
)
from logkeep_engine.log.memory import task_bytes
from logkeep_engine.storage import Storage


@dataclass(slots=True)
class CatalogCheck:
    """The findings of the check of a catalog. `state` is None if it cannot be known. `objects` counts those of the
    catalog that were read, and those that its commits name; `epochs` are those of the commits that were read.
    `compared` is the newest checkpoint that is the fold of the commits."""

    state: ArchiveState | None
    objects: int
    damage: list[Damage] = field(default_factory=list)
    epochs: set[int] = field(default_factory=set)
    compared: ComparedCheckpoint | None = None


@collector.paused()
def check_catalog(archive: Archive, known: ArchiveState | None = None, anchor: Anchor | None = None) -> CatalogCheck:
    """Read all commits and checkpoints, or those after a `known` state, and compare what they say, and all of it with
    an `anchor`."""
    listing = archive.listing()
    state = known or ArchiveState()
    found = CatalogCheck(state, listing.objects)
    # Read one at a time, when the fold has come to it: each is as large as the state.
    unread: dict[int, list[str]] = {}
    for number, _, info in listing.checkpoints:
        if number > state.commit:
            unread.setdefault(number, []).append(info.path)
    if known is not None:
        newer = sum(number > known.commit for number in listing.commits)
        found.objects = newer + sum(map(len, unread.values())) + 1
    try:
        _fold(archive, listing, found, state, unread, AnchorCheck(ArchiveClaim(anchor)))
        return found
    except ArchiveRolledBack as error:
        found.damage.append(_catalog_damage(archive, names.CATALOG, error))
        return found
    except (ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned, *WRONG) as error:
        bad = state.commit + 1
        found.damage.append(_catalog_damage(archive, listing.object_of(bad), error))
    _read_checkpoints(archive, unread, found.damage)
    # A checkpoint may know what damaged commits do not say any more.
    named = {listing.object_of(bad)}
    for number in range(bad + 1, listing.last + 1):
        if (path := listing.object_of(number)) in named:
            continue  # a damaged bundle is named once
        try:
            found.epochs.add(archive.read_commit(number).epoch)
        except (ArchiveDamaged, ArchiveMismatch) as error:
            named.add(path)
            found.damage.append(_catalog_damage(archive, path, error))
    try:
        found.state = archive.load()
    except (ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned):
        found.state = None
    return found


def _fold(
    archive: Archive,
    listing: CatalogListing,
    found: CatalogCheck,
    state: ArchiveState,
    unread: dict[int, list[str]],
    check: AnchorCheck,
) -> None:
    """Add the commits to the state, and compare each checkpoint with it. Raises what reading and adding do."""
    comparison = CheckpointComparison(state)
    for commit in archive.read_commits(range(state.commit + 1, listing.last + 1)):
        archive.is_signed(commit)
        state.apply(commit)
        check.note(state)
        comparison.applied(commit)
        found.epochs.add(commit.epoch)
        if commit.cluster_state is not None:
            found.objects += 1
            if (wrong := check_cluster_state(archive, commit)) is not None:
                found.damage.append(_catalog_damage(archive, state_path(commit.run_id), wrong))
        for path in unread.pop(commit.number, ()):
            sha256 = _compare_checkpoint(archive, path, state, comparison, found.damage)
            found.compared = found.compared if sha256 is None else ComparedCheckpoint(path, sha256)
    _read_checkpoints(archive, unread, found.damage)
    found.damage.extend(_checkpoints_ahead(archive, unread, state.commit))
    archive.require_signature(state, state.commit)
    check.check(archive.storage.uri, state, "", partial(archive.hash_under, state))


def _checkpoints_ahead(archive: Archive, paths: Iterable[int], last: int) -> Iterator[Damage]:
    """Faults of checkpoints that hold more than the commits which are there."""
    for number in paths:
        if number > last:
            name = f"{archive.storage.uri}/{names.CATALOG}"
            what = f"a checkpoint holds commits up to {number}, but the last commit is {last}: later ones are lost"
            yield Damage(name, "", -1, None, what)


def lost_tails(archive: Archive, state: ArchiveState) -> Iterator[Damage]:
    """Yield a damage for each known loss of commits from the catalog's end."""
    for tail in archive.lost_tails(state, thorough=True):
        yield Damage(f"{archive.storage.uri}/{tail.witness}", "", -1, None, str(tail))


def check_epochs(archive: Archive, last: int, epochs: set[int], orphans: list[str]) -> Iterator[Damage]:
    """Faults of segments whose epoch no commit of the catalog has. `last` is the last commit of which the epoch is
    known."""
    written: dict[int, list[str]] = {}
    for path in orphans:
        segment, pack = names.parse_segment(path), names.parse_pack(path)
        epoch = segment.epoch if segment is not None else pack[0] if pack is not None else None
        if epoch is not None and epoch not in epochs:
            written.setdefault(epoch, []).append(path)
    if not written:
        return
    # A run may have begun since the catalog was read: it did so before it wrote them.
    now = archive.load()
    later = {commit.epoch for commit in archive.read_commits(range(last + 1, now.commit + 1))}
    for epoch, paths in sorted(written.items()):
        if epoch not in later:
            first = names.parse_segment(paths[0])
            what = (
                f"it is of epoch {epoch}, at which no commit was made, with {len(paths)} objects in all: "
                "the commits that named them are lost"
            )
            name = f"{archive.storage.uri}/{paths[0]}"
            if first is None:
                yield Damage(name, "", -1, None, what)
            else:
                yield Damage(name, first.topic, first.partition, first.base_offset, what)


def _compare_checkpoint(
    archive: Archive, path: str, state: ArchiveState, comparison: CheckpointComparison, damage: list[Damage]
) -> str | None:
    """Compare a checkpoint with the state. Returns the hash of its content if its bytes are those of the state."""
    name = f"{archive.storage.uri}/{path}"
    try:
        data = archive.storage.read(path, most=task_bytes())
        sha256 = comparison.sha256_if_same(data, archive.info.archive_id, name)
    except (ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned, ObjectMissing, ObjectTooLarge) as error:
        damage.append(_catalog_damage(archive, path, error))
        return None
    if sha256 is None:  # it may say the same in other words
        folded = _read_checkpoint(archive, path, damage)
        if folded is not None and not folded.same_facts(state):
            damage.append(Damage(name, "", -1, None, "it is not the fold of the commits"))
    return sha256


def _read_checkpoints(archive: Archive, paths: dict[int, list[str]], damage: list[Damage]) -> None:
    """Only whether they can be read: there are no commits to compare them with."""
    for path in (path for some in paths.values() for path in some):
        _read_checkpoint(archive, path, damage)


def _read_checkpoint(archive: Archive, path: str, damage: list[Damage]) -> ArchiveState | None:
    try:
        return archive.read_checkpoint(path)
    except (ArchiveDamaged, ArchiveMismatch, ArchiveUnsigned, ObjectMissing, ObjectTooLarge) as error:
        damage.append(_catalog_damage(archive, path, error))
        return None


def _catalog_damage(archive: Archive, path: str, error: Exception) -> Damage:
    message = error.message if isinstance(error, LogkeepError) else str(error)
    name = f"{archive.storage.uri}/{path}"
    return Damage(name, "", -1, None, message.removeprefix(f"{name}: ").rstrip("."))


def check_continuity(
    storage: Storage, state: ArchiveState, chosen: dict[str, str], beginnings: Mapping[Partition, int]
) -> Iterator[Damage]:
    """Faults of partitions with offsets that nothing accounts for, or whose segments overlap or lie outside of their
    coverage. `chosen` are the topics, name by id."""
    for topic_id, partition in state.partitions():
        if topic_id not in state.topics:
            name = f"{storage.uri}/{names.CATALOG}"
            yield Damage(name, "", -1, None, f"partition {partition} of topic id {topic_id}, which no commit names")
            continue
        if topic_id not in chosen:
            continue
        topic = chosen[topic_id]
        folder = f"{storage.uri}/{_folder(state, topic_id, partition)}"
        for start, end in holes(state, (topic_id, partition), beginnings):
            yield Damage(folder, topic, partition, start, f"offsets [{start}, {end}) are {NOT_ACCOUNTED_FOR}")
        coverage = state.coverage.get((topic_id, partition), [])
        yield from _verify_order(storage, topic, coverage, state.segments.get((topic_id, partition), ()))
    for key in sorted(state.lines):
        if key[0] in chosen:
            for own in state.own_facts(key):
                yield from _verify_order(storage, chosen[key[0]], own.coverage, PackedSegments(key, own.rows))
    yield from _check_passive(storage, state, chosen)


def _check_passive(storage: Storage, state: ArchiveState, chosen: Mapping[str, str]) -> Iterator[Damage]:
    """Faults of generations that are being read."""
    passive = state.of_generation(PASSIVE)
    for (topic_id, partition), entries in passive.segments.items():
        if topic_id in chosen:
            coverage = passive.coverage.get((topic_id, partition), [])
            yield from _verify_order(storage, chosen[topic_id], coverage, entries)


def _verify_order(
    storage: Storage, topic: str, coverage: Sequence[Range], entries: Iterable[SegmentEntry]
) -> Iterator[Damage]:
    at = -1
    for entry in entries:
        name, partition = f"{storage.uri}/{entry.stem(topic)}{entry.log_suffix}", entry.partition
        if entry.base_offset < at:
            yield Damage(name, topic, partition, entry.base_offset, f"it overlaps the segment that ends before {at}")
        at = max(at, entry.next_offset)
        covers = bisect_right(coverage, entry.base_offset, key=_start)
        if not covers or coverage[covers - 1][1] <= entry.base_offset:
            yield Damage(name, topic, partition, entry.base_offset, "it begins outside of its coverage")


def _start(covered: Range) -> int:
    return covered[0]


def _folder(state: ArchiveState, topic_id: str, partition: int) -> str:
    entry = next(iter(state.segments.get((topic_id, partition), ())), None)
    topic = state.topics[topic_id].name
    if entry is None:
        return f"{names.TOPICS}{topic}/{topic_id}/partition={partition}"
    return entry.stem(topic).rpartition("/")[0]
