"""The files beside the segments of the Records format: what the original tool wants to find in a topic's folder.

`index_partition_NNN` lists the segments of a partition, `consumer_offsets_partition_NNN` the positions of consumer
groups in it. Both repeat what the catalog says, so they can be made again at any time, and are replaced as they are: a
kill before leaves old ones, and the next run that succeeds makes them anew. Logkeep itself never reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from logkeep_engine.archive import names
from logkeep_engine.archive.model import ArchiveState, GroupEntry, Partition
from logkeep_engine.formats.records_groups import pack_consumer_offsets
from logkeep_engine.formats.records_names import (
    FileKind,
    SegmentName,
    consumer_offsets_name,
    pack_partition_index,
    parse_name,
    partition_index_name,
)
from logkeep_engine.storage import Storage

_WRITERS = 16  # the objects are small: latency decides


def write_partition_indexes(
    storage: Storage, state: ArchiveState, keys: Iterable[Partition], *, root: str = names.TOPICS
) -> None:
    """Make the partition index of each of `keys` (topic id, partition) from the segments that `state` has.

    A partition without segments gets an index without entries. `root` is the folder of the topics' folders, "" in an
    archive whose folders were adopted where they are.
    """
    work = []
    for topic_id, partition in keys:
        segments = [
            SegmentName(partition, entry.base_offset) for entry in state.segments.get((topic_id, partition), ())
        ]
        path = f"{root}{state.topics[topic_id].name}/{partition_index_name(partition)}"
        work.append((path, pack_partition_index(segments)))
    _put_all(storage, work)


def write_consumer_offsets(
    storage: Storage,
    state: ArchiveState,
    keys: Iterable[Partition],
    groups: Iterable[GroupEntry],
    *,
    root: str = names.TOPICS,
) -> None:
    """Write the positions that `groups` have in each of `keys`; `{}` where none has: the original tool does not restore
    a partition without this file.
    """
    positions = positions_by_partition(groups)
    _put_all(
        storage,
        [
            (
                f"{root}{state.topics[topic_id].name}/{consumer_offsets_name(partition)}",
                pack_consumer_offsets(positions.get((topic_id, partition), {})),
            )
            for topic_id, partition in keys
        ],
    )


def positions_by_partition(groups: Iterable[GroupEntry]) -> dict[Partition, dict[str, int]]:
    """(topic id, partition) -> group -> committed offset."""
    found: dict[Partition, dict[str, int]] = {}
    for group in groups:
        found.setdefault((group.topic_id, group.partition), {})[group.group_id] = group.offset
    return found


def is_made_again(path: str) -> bool:
    """Whether an object is one of these files, by its name: no commit names them, and they are no orphans."""
    file = parse_name(path.rpartition("/")[2])
    return file is not None and file.kind in (FileKind.PARTITION_INDEX, FileKind.CONSUMER_OFFSETS)


def _put_all(storage: Storage, work: Sequence[tuple[str, bytes]]) -> None:
    if not work:
        return
    with ThreadPoolExecutor(min(_WRITERS, len(work)), thread_name_prefix="logkeep-files") as pool:
        for done in [pool.submit(storage.put, path, data) for path, data in work]:
            done.result()
