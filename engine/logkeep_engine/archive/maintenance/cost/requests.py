"""How many requests an S3 store gets for an archive. docs/cli.md says the same in words.

The numbers of a segment follow from its entry, and from the sizes of parts and blocks. What else a run asks for is
counted as for a run that nothing interrupts. Not counted are requests that are repeated, and those that a run makes
again and again while it lasts: heartbeats, and further commits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from logkeep_engine.archive.catalog.entry import FilePlace, Layout, SegmentEntry
from logkeep_engine.archive.maintenance.as_json import AsJson
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.log.seekable import FRAME_BYTES
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES

LISTED_AT_ONCE = 1000  # the most that S3 lists in a page
DELETED_AT_ONCE = 1000  # the most that S3 deletes in a request
_BEATS_READ = 16  # a run reads the heartbeats of this many runs


@dataclass(frozen=True, slots=True)
class RequestCount(AsJson):
    """Requests by how stores price them. `put`: an object, and of an upload in parts the beginning, each part and the
    end. `get`: an object or a part of one, and HEAD. `read`: the bytes that all of them get."""

    put: int = 0
    get: int = 0
    list: int = 0
    delete: int = 0
    read: int = 0

    def __add__(self, other: RequestCount) -> RequestCount:
        return RequestCount(
            self.put + other.put,
            self.get + other.get,
            self.list + other.list,
            self.delete + other.delete,
            self.read + other.read,
        )

    def times(self, factor: float) -> RequestCount:
        """This many times the requests, rounded."""
        counts = (self.put, self.get, self.list, self.delete, self.read)
        return RequestCount(*(round(factor * count) for count in counts))


NO_REQUESTS = RequestCount()


def puts(size: int) -> int:
    """Return the requests that write an object."""
    return 1 if size <= PART_BYTES else -(-size // PART_BYTES) + 2


def gets(size: int) -> int:
    """Return the requests that read an object block by block. The last one gets less than a block, and so is the
    last."""
    return size // DEFAULT_BLOCK + 1


def lists(objects: int) -> int:
    """Return the requests that list this many objects."""
    return max(1, -(-objects // LISTED_AT_ONCE))


class SegmentRequests(NamedTuple):
    """The requests of a backup, of `verify` and of a restore for a segment, or a part of a snapshot."""

    backup: RequestCount
    verify: RequestCount
    restore: RequestCount


def requests_of(topic: str, entry: SegmentEntry) -> SegmentRequests:
    """Return the requests for a segment of the topic of this name. A backup in a format that names objects by offsets
    first looks whether one is there. A restore checks all of a segment, and then reads the log once more. The requests
    for a pack are shared out to its segments: each has those for the blocks that begin in it."""
    sizes = entry.files.sizes(entry)
    log = sizes.pop(entry.log_suffix)
    if (files := entry.pack_files) is not None:
        place = files.whole(entry)
        read = _crossed(place, 1 << 20)
        return SegmentRequests(
            RequestCount(put=_crossed(place, PART_BYTES) + (2 if place.start <= PART_BYTES < place.end else 0)),
            RequestCount(get=read, read=place.size),
            RequestCount(get=2 * read, read=place.size + log + files.txnindex_bytes),
        )
    indexes, whole = sizes.values(), log + sum(sizes.values())
    batched = is_batched(entry.layout)
    beside = len(entry.beside(topic)) if entry.transactional else 0
    read, transactions = _log_gets(entry), entry.files.txnindex_bytes
    check = read + (len(indexes) if batched else sum(map(gets, indexes))) + beside
    again = read + (1 if transactions else 0)
    return SegmentRequests(
        RequestCount(put=puts(log) + sum(map(puts, indexes)) + beside, get=0 if batched else 1 + len(indexes)),
        RequestCount(get=check + beside, read=whole),
        RequestCount(get=check + again, read=whole + log + transactions),
    )


def _crossed(place: FilePlace, block: int) -> int:
    """Return how many blocks of an object begin in a part of it, so that the parts together have all of its blocks."""
    return -(-place.end // block) - -(-place.start // block)


def to_make_snapshot(entry: SegmentEntry) -> RequestCount:
    """Return the requests that read a segment, or a part of an older snapshot, for a new snapshot. A segment is read
    for the keys, and again for what stays. Where the keys do not fit into memory there are more passes, which no
    catalog shows."""
    passes = 1 if entry.layout is Layout.SNAPSHOT else 2
    return RequestCount(get=passes * _log_gets(entry), read=passes * entry.files.sizes(entry)[entry.log_suffix])


def _log_gets(entry: SegmentEntry) -> int:
    stored = entry.files.stored_bytes
    if not stored:
        return gets(entry.bytes)
    if stored < DEFAULT_BLOCK:
        return 1
    # Frames hold whole batches, and each request gets the frames of a block of the log. One more gets their table.
    batch = max(1, entry.bytes // entry.batches)
    frame = min(entry.bytes, max(batch, FRAME_BYTES // batch * batch))
    frames = -(-entry.bytes // frame)
    return 1 + -(-frames // max(1, DEFAULT_BLOCK // frame))


@dataclass(frozen=True, slots=True)
class CatalogObjects:
    """The objects that runs read in addition to segments. `unfolded` are the commits after the newest checkpoint,
    `beats` the heartbeats of runs, `states` the archived states of the cluster, `runs` all objects of runs. Old commits
    are in `bundles`."""

    commits: int
    unfolded: int
    checkpoints: int
    bundles: int
    beats: int
    states: int
    runs: int
    bytes: int

    @property
    def to_load(self) -> RequestCount:
        """The requests that give the state. The last ones ask for a commit and for a bundle that may not be listed."""
        return RequestCount(get=1 + min(1, self.checkpoints) + self.unfolded + 2, list=lists(self.objects))

    @property
    def objects(self) -> int:
        return self.commits + self.checkpoints + self.bundles

    @property
    def _to_find_lost(self) -> RequestCount:
        return RequestCount(get=min(self.beats, _BEATS_READ), list=lists(self.runs))


def of_a_run(catalog: CatalogObjects, commits: int) -> RequestCount:
    """Return the requests of a backup in addition to those for segments, with this many commits: archive.json (to find
    out whether the store creates conditionally), the plan, the cluster's state, two heartbeats. After each commit the
    run looks for a bundle."""
    own = RequestCount(put=5 + commits, get=4 + commits, list=1)
    return catalog.to_load + catalog._to_find_lost + own


def of_a_verification(catalog: CatalogObjects, objects: int) -> RequestCount:
    """Return the requests of `verify` in addition to those for segments. It lists all `objects` of topics."""
    listed = 1 + 2 * lists(catalog.objects) + lists(catalog.runs) + lists(objects)
    read = 1 + catalog.objects + catalog.states + catalog.beats
    return RequestCount(get=read, list=listed, read=catalog.bytes)


def of_a_restore(catalog: CatalogObjects, partitions: int, listed: int) -> RequestCount:
    """Return the requests of a restore in addition to those for segments, with its state in the archive: a map of
    offsets for each partition, and eight files of the run. `listed` requests list the objects of its topics."""
    own = RequestCount(put=8 + partitions, get=4, list=3 + listed)
    return catalog.to_load + catalog._to_find_lost + own


def to_write_record_files(partitions: int) -> RequestCount:
    """Return the requests of a backup of format Records for the two files next to the segments of each partition.
    Before it writes either kind it looks once whether it is still the newest run."""
    return RequestCount(put=2 * partitions, get=2 * partitions + 4, list=2) if partitions else NO_REQUESTS


def to_delete(objects: int) -> RequestCount:
    """Return the requests that delete this many objects."""
    return RequestCount(delete=-(-objects // DELETED_AT_ONCE))
