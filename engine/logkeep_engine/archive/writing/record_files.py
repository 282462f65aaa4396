"""The files next to the segments of the Records format. The original tool expects them in a topic's folder.

`index_partition_NNN` lists the segments of a partition, `consumer_offsets_partition_NNN` the positions of consumer
groups in it. Both repeat what the catalog says, so they can be made again at any time: a kill before leaves old ones,
and the next run that succeeds makes them again. Logkeep itself reads them in imports only.

A file is replaced only if it was not written since this writer checked that no newer run has begun. Segments are
replaced in the same way (see `record_writer`). So a writer that outlived its run does not replace its successor's list
with an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.facts import GroupEntry, Partition, TopicEntry
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.errors import ArchiveFenced, ObjectExists, ObjectMissing, StorageUnavailable
from logkeep_engine.formats.records_groups import pack_consumer_offsets
from logkeep_engine.formats.records_names import (
    RECORDS_WIDTH,
    FileKind,
    RecordsName,
    consumer_offsets_name,
    pack_partition_index,
    parse_name,
    partition_index_name,
)
from logkeep_engine.storage import Storage

_WRITERS = 16  # the objects are small: latency, not bandwidth, decides how long writing takes


def write_partition_indexes(
    storage: Storage, state: ArchiveState, keys: Iterable[Partition], *, root: str = names.TOPICS
) -> None:
    """Make the partition index of each of `keys` (topic id, partition) from the segments that `state` has.

    A partition without segments gets an index without entries: by it a reader of the folder, an import too, knows how
    many partitions the topic has. `root` is the folder of the topics' folders, "" in an archive whose folders were
    adopted where they are. Raises ArchiveFenced if a newer run than that of `state` has begun.
    """
    work = []
    for topic_id, partition in keys:
        segments = map(name_of, state.segments.get((topic_id, partition), ()))
        path = f"{root}{state.topics[topic_id].name}/{partition_index_name(partition)}"
        work.append((path, pack_partition_index(segments)))
    _replace_all(storage, state.epoch, work)


def name_of(entry: SegmentEntry) -> RecordsName:
    """Return the segment by the name that the index of its partition has."""
    width, folder = entry.files.sequence_width or RECORDS_WIDTH, names.generation_folder(entry.files.generation)
    return RecordsName(entry.partition, entry.base_offset, width, folder)


def write_consumer_offsets(
    storage: Storage,
    state: ArchiveState,
    keys: Iterable[Partition],
    groups: Iterable[GroupEntry],
) -> None:
    """Write the positions that `groups` have in each of `keys`; `{}` where none has: the original tool does not restore
    a partition without this file. Raises ArchiveFenced if a newer run than that of `state` has begun.
    """
    positions = positions_by_partition(groups)
    _replace_all(
        storage,
        state.epoch,
        [
            (
                f"{names.TOPICS}{state.topics[topic_id].name}/{consumer_offsets_name(partition)}",
                pack_consumer_offsets(positions.get((topic_id, partition), {})),
            )
            for topic_id, partition in keys
        ],
    )


def positions_by_partition(groups: Iterable[GroupEntry]) -> dict[Partition, dict[str, int]]:
    """Return the committed offset of each group by (topic id, partition). Share groups commit none."""
    found: dict[Partition, dict[str, int]] = {}
    for group in groups:
        if not group.share:
            found.setdefault((group.topic_id, group.partition), {})[group.group_id] = group.offset
    return found


def is_made_again(path: str) -> bool:
    """Tells by its name whether an object is one of these files. No commit names them, and they are not orphans."""
    file = parse_name(path.rpartition("/")[2])
    return file is not None and file.kind in (FileKind.PARTITION_INDEX, FileKind.CONSUMER_OFFSETS)


def every_partition(topics: Iterable[TopicEntry]) -> Iterator[Partition]:
    """Yield all partitions of these topics as (topic id, partition), with records or without."""
    for topic in topics:
        for partition in range(topic.partitions):
            yield topic.topic_id, partition


def newest_topics(state: ArchiveState) -> list[TopicEntry]:
    """Return the last incarnation of each topic: its files lie in the folder of that name."""
    return list({topic.name: topic for topic in state.topics.values()}.values())


def _replace_all(storage: Storage, epoch: int, work: Sequence[tuple[str, bytes]]) -> None:
    if not work:
        return
    with ThreadPoolExecutor(min(_WRITERS, len(work)), thread_name_prefix="logkeep-files") as pool:
        found = list(pool.map(storage.version, [path for path, _ in work]))
        _check_newest(storage, epoch)
        writing = [
            pool.submit(_replace, storage, epoch, path, data, version)
            for (path, data), version in zip(work, found, strict=True)
        ]
        for done in writing:
            done.result()


def _replace(storage: Storage, epoch: int, path: str, data: bytes, version: str | None) -> None:
    try:
        with storage.writer(path, replaces=version) as writer:
            writer.write(data)
    except ObjectExists as error:
        if _is_there(storage, path, data):  # the answer to a first request was lost
            return
        _check_newest(storage, epoch)
        raise StorageUnavailable(
            f"{storage.uri}/{path} was written by another writer at the same time.",
            hint="This may be temporary; try again.",
        ) from error


def _is_there(storage: Storage, path: str, data: bytes) -> bool:
    try:
        return storage.read(path) == data
    except ObjectMissing:
        return False


def _check_newest(storage: Storage, epoch: int) -> None:
    archive = Archive.open(storage)
    last = archive.read_commit(archive.listing().last)
    if last.epoch > epoch:
        raise ArchiveFenced(
            f"Run {last.run_id} has taken over the archive at {storage.uri} at epoch {last.epoch}: the files next "
            f"to its segments are not written by a writer of epoch {epoch}.",
        )
