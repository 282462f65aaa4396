"""The deletion of what still holds erased records, after the commit that no longer names it.

Besides the objects that were replaced, these are: what retention has removed and not deleted yet, objects of the topic
that no commit names (a killed run has left them, and a reader of the bucket finds them), and originals that `logkeep
import --repair` has kept. A pack that no commit names may hold records of any topic. Digests of records stay, but not
those of segments that were replaced. Last come the bytes that no list shows: older versions of objects, and what
writers that were killed have left."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.catalog.facts import Partition
from logkeep_engine.archive.catalog.held_tables import held_tables, removed_tables
from logkeep_engine.archive.catalog.packed import packs_of
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.catalog.writer import Writer
from logkeep_engine.archive.maintenance.kept_digests import DigestsPlace
from logkeep_engine.archive.maintenance.removal import named_packs
from logkeep_engine.archive.writing.record_files import is_made_again
from logkeep_engine.errors import ArchiveDamaged
from logkeep_engine.storage import Storage, UnseenObject

ORIGINALS = "original"
"""The folder of what a repair has replaced, below that of a run."""


def drop_digests(storage: Storage, state: ArchiveState, keys: Collection[Partition]) -> None:
    """Leave out the digests of records that are none of a segment any more. An object that cannot be read, or that no
    trusted key has signed, goes as a whole: it may have digests of what was erased."""
    for key in sorted(keys):
        place = DigestsPlace(storage, state.topics[key[0]].name, *key)
        kept = place.load()
        there = {entry.base_offset: entry.digest for entry in state.segments.get(key, ())}
        left = {base: found for base, found in kept.items() if there.get(base) == found.digest}
        if len(left) < len(kept):
            place.keep(left.values())
        elif not kept and storage.version(place.path) is not None:
            storage.delete([place.path])


def unnamed(writer: Writer, topic: str, topic_ids: Collection[str]) -> list[str]:
    """Return the objects of the topic that no commit names. Raises ArchiveDamaged if commits are lost from the
    catalog's end, or if another tool may have written them: what they hold may be nowhere else."""
    storage = writer.archive.storage
    folder, named = _folder_and_named(writer.state, topic, topic_ids)
    found = [info.path for info in storage.list(folder) if info.path not in named and not is_made_again(info.path)]
    if found and writer.archive.info.imported:
        raise ArchiveDamaged(
            f"{storage.uri}/{found[0]} is named by no commit, and so are {len(found) - 1} other objects of topic "
            f"{topic!r}: another tool may have written them, and they may hold records of the keys.",
            hint="Move them away or delete them, then erase again.",
        )
    return found


def unnamed_packs(writer: Writer) -> list[str]:
    """Return the packs that no commit names: only a killed run knew what they hold."""
    named = _pack_paths(writer.state)
    return [info.path for info in writer.archive.storage.list(names.PACKS) if info.path not in named]


def _pack_paths(state: ArchiveState) -> set[str]:
    removed = {pack for table in removed_tables(state) for pack in packs_of(table.segments.packed)}
    return {names.pack_path(*pack) for pack in named_packs(state) | removed}


def unseen(writer: Writer, topic: str, topic_ids: Collection[str]) -> list[UnseenObject]:
    """Find what may hold records or digests of the topic and no list shows. Versions stay of an object that a commit
    names and that was deleted: the newest of them is all that is left of it. Raises StorageRefused if the
    store does not report it."""
    storage = writer.archive.storage
    folder, named = _folder_and_named(writer.state, topic, topic_ids)
    named |= _pack_paths(writer.state)
    found: list[UnseenObject] = []
    for prefix in (folder, names.PACKS):
        there = {info.path for info in storage.list(prefix)}
        found += (item for item in storage.unseen(prefix) if item.path in there or item.path not in named)
    # A verification may be writing digests just now; what a killed one has left of them holds no records.
    found += [item for item in storage.unseen(f"{names.DIGESTS}{topic}/") if item.is_version]
    if writer.archive.info.imported:
        found += [item for item in storage.unseen(names.RUNS) if _is_original(item.path, topic)]
    return found


def _folder_and_named(state: ArchiveState, topic: str, topic_ids: Collection[str]) -> tuple[str, set[str]]:
    """Return the folder of the topic, and the objects that commits name."""
    entries = list(_entries(state, topic_ids))
    adopted = any(entry.layout is Layout.RECORDS_AT_ROOT for entry in entries)
    folder = f"{topic}/" if adopted else f"{names.TOPICS}{topic}/"
    return folder, {path for entry in entries for path in (*entry.objects(topic), *entry.beside(topic))}


def originals(storage: Storage, topic: str) -> list[str]:
    """Return the objects of the topic that `logkeep import --repair` has replaced and kept."""
    return [info.path for info in storage.list(names.RUNS) if _is_original(info.path, topic)]


def _is_original(path: str, topic: str) -> bool:
    replaced = path.removeprefix(names.RUNS).partition(f"/{ORIGINALS}/")[2]
    return replaced.removeprefix(names.TOPICS).startswith(f"{topic}/")


def _entries(state: ArchiveState, topic_ids: Collection[str]) -> Iterator[SegmentEntry]:
    """Return all segments of these incarnations that have objects, also those that are to be deleted."""
    tables = chain(held_tables(state, topic_ids), removed_tables(state, topic_ids))
    return (entry for table in tables for entry in table.segments)
