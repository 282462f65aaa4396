"""How many requests an S3 store gets for an archive. docs/cli.md says the same in words.

The numbers of a segment follow from its entry, and from the sizes of parts and blocks. What a run asks for besides is
that of a run which nothing interrupts. Not counted are requests that are repeated, and those that a run makes again and
again while it lasts: heartbeats, and further commits.
"""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.archive.care.as_json import AsJson
from logkeep_engine.archive.catalog.entry import Layout, SegmentEntry
from logkeep_engine.archive.reading.partition import is_batched
from logkeep_engine.log.seekable import FRAME_BYTES
from logkeep_engine.storage import DEFAULT_BLOCK, PART_BYTES

LISTED_AT_ONCE = 1000
DELETED_AT_ONCE = 1000
_BEATS_READ = 16  # a run reads the heartbeats of so many runs


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
        """So many times the requests, rounded."""
        counts = (self.put, self.get, self.list, self.delete, self.read)
        return RequestCount(*(round(factor * count) for count in counts))


NO_REQUESTS = RequestCount()


def puts(size: int) -> int:
    """The requests that write an object."""
    return 1 if size <= PART_BYTES else -(-size // PART_BYTES) + 2


def gets(size: int) -> int:
    """The requests that read an object block by block. The last one gets less than a block, and so is the last."""
    return size // DEFAULT_BLOCK + 1


def lists(objects: int) -> int:
    """The requests that list so many objects."""
    return max(1, -(-objects // LISTED_AT_ONCE))


def to_write(topic: str, entry: SegmentEntry) -> RequestCount:
    """The requests of a backup for a segment. A format that names objects by offsets first looks whether one is there.
    `topic` is the topic's name."""
    sizes = entry.files.sizes(entry)
    looks = 0 if _batched(entry) else len(sizes)
    return RequestCount(put=sum(map(puts, sizes.values())) + _beside(topic, entry), get=looks)


def to_verify(topic: str, entry: SegmentEntry) -> RequestCount:
    """The requests of `verify` for a segment."""
    asked = to_check(topic, entry)
    return asked + RequestCount(get=_beside(topic, entry))


def to_check(topic: str, entry: SegmentEntry) -> RequestCount:
    """The requests that check a segment and its indexes, as a restore does before its first record."""
    others = [size for suffix, size in entry.files.sizes(entry).items() if suffix != entry.log_suffix]
    indexes = len(others) if _batched(entry) else sum(map(gets, others))
    read = sum(entry.files.sizes(entry).values())
    return RequestCount(get=_log_gets(entry) + indexes + _beside(topic, entry), read=read)


def to_restore(topic: str, entry: SegmentEntry) -> RequestCount:
    """The requests of a restore for a segment: it checks all of it, and then reads the log once more."""
    transactions = entry.files.txnindex_bytes
    again = RequestCount(
        get=_log_gets(entry) + (1 if transactions else 0),
        read=entry.files.sizes(entry)[entry.log_suffix] + transactions,
    )
    return to_check(topic, entry) + again


def _batched(entry: SegmentEntry) -> bool:
    return entry.layout is Layout.SNAPSHOT or is_batched(entry.layout)


def _beside(topic: str, entry: SegmentEntry) -> int:
    return len(entry.beside(topic)) if entry.transactional else 0


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
    """The objects that runs read beside segments. `unfolded` are the commits behind the newest checkpoint, `beats` the
    heartbeats of runs, `states` the archived states of the cluster, `runs` all objects of runs."""

    commits: int
    unfolded: int
    checkpoints: int
    beats: int
    states: int
    runs: int
    bytes: int

    @property
    def to_load(self) -> RequestCount:
        """The requests that give the state. The last one asks for a commit that may not be listed yet."""
        return RequestCount(get=1 + min(1, self.checkpoints) + self.unfolded + 1, list=lists(self.objects))

    @property
    def objects(self) -> int:
        return self.commits + self.checkpoints

    @property
    def _to_find_lost(self) -> RequestCount:
        return RequestCount(get=min(self.beats, _BEATS_READ), list=lists(self.runs))


def of_a_run(catalog: CatalogObjects, commits: int) -> RequestCount:
    """The requests of a backup beside those for segments, with so many commits: archive.json (to find out whether the
    store creates conditionally), the plan, the cluster's state, two heartbeats."""
    own = RequestCount(put=5 + commits, get=4, list=1)
    return catalog.to_load + catalog._to_find_lost + own


def of_a_verification(catalog: CatalogObjects, objects: int) -> RequestCount:
    """The requests of `verify` beside those for segments. It lists all `objects` of topics."""
    listed = 1 + 2 * lists(catalog.objects) + lists(catalog.runs) + lists(objects)
    read = 1 + catalog.commits + catalog.checkpoints + catalog.states + catalog.beats
    return RequestCount(get=read, list=listed, read=catalog.bytes)


def of_a_restore(catalog: CatalogObjects, partitions: int, listed: int) -> RequestCount:
    """The requests of a restore beside those for segments, with its state in the archive: a map of offsets for each
    partition, and eight files of the run. `listed` requests list the objects of its topics."""
    own = RequestCount(put=8 + partitions, get=4, list=3 + listed)
    return catalog.to_load + catalog._to_find_lost + own


def to_write_record_files(partitions: int) -> RequestCount:
    """The requests of a backup of format Records for the two files beside the segments of each partition. Before it
    writes either kind it looks once whether it is still the newest run."""
    return RequestCount(put=2 * partitions, get=2 * partitions + 4, list=2) if partitions else NO_REQUESTS


def to_delete(objects: int) -> RequestCount:
    """The requests that delete so many objects."""
    return RequestCount(delete=-(-objects // DELETED_AT_ONCE))
