"""Names of the archive's objects, relative to its URI. Numbers are padded, so that names sort as their numbers do.

archive.json
verified.json                                        what incremental verifications have read
catalog/00000000000000000042.json                    a commit
catalog/00000000000000000040-0000000003.checkpoint   the fold of commits 0..40, written at epoch 3
catalog/00000000000000000007.bundle                  the commits 7000..7999
packs/<epoch>-<task>-<attempt>-<number>.pack         small segments of several partitions, with their indexes
topics/<topic>/<topic id>/partition=<n>/00000000000000001000.0000000003[-<attempt>].log .index .timeindex .txnindex
                                                     or .log.zst instead of .log
topics/<topic>/<topic id>/partition=<n>/snapshots/<epoch>[-<attempt>]/<end offset>-<leader epoch>[.<part>].checkpoint
                                                     <part>.keys <share>.dead, until the snapshot is made
runs/<run id>/...
digests/<topic>/<topic id>/<n>.json                  digests of the records of a partition

In an archive of format Records or Avro topics/ has the folders and names that these formats publish instead:

topics/<topic>/segment_partition_000_from_offset_0000001000_records  _index
topics/<topic>/partition=<n>/<topic>+<n>-<sequence>.data

What is read for a generation of a compacted partition lies in a folder generation=<number> there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from logkeep_engine.formats.records_names import RECORDS_WIDTH
from logkeep_engine.log.batch import MAX_OFFSET

ARCHIVE = "archive.json"
VERIFIED = "verified.json"
CATALOG = "catalog/"
TOPICS = "topics/"
PACKS = "packs/"
RUNS = "runs/"
DIGESTS = "digests/"

LOG = ".log"
LOG_ZST = ".log.zst"  # instead of `.log`, if the segment is compressed as a whole
INDEX = ".index"
TIMEINDEX = ".timeindex"
TXNINDEX = ".txnindex"  # there is none without entries
# Segments with transactions may have one, which saves reading them: see `catalog.segment_transactions`. No catalog
# names it.
TXNPARTS = ".txnparts"
SUFFIXES = (LOG, LOG_ZST, INDEX, TIMEINDEX, TXNINDEX, TXNPARTS)
RECORDS = "_records"
RECORDS_INDEX = "_index"
DATA = ".data"
CHECKPOINT = ".checkpoint"  # KIP-630's suffix of a snapshot
# Next to parts of a snapshot that several tasks make, until it is made: hashes of keys, and numbers of dead records.
KEYS = ".keys"
DEAD = ".dead"

_MAX_SHOWN = 100  # characters of a name that Kafka would refuse
MAX_EPOCH = 10**10 - 1  # names have ten digits for it
BUNDLED = 1000
"""The commits of a bundle: bundle `k` has those from `k * BUNDLED` on. The number is part of the format."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")  # Kafka's Topic.validate
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")  # a UUID in base64url without padding, Kafka's Uuid.toString
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION = re.compile(r"/generation=([1-9][0-9]*)/")
_COMMIT = re.compile(r"catalog/([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"catalog/([0-9]{20})-([0-9]{10})\.checkpoint")
_BUNDLE = re.compile(r"catalog/([0-9]{20})\.bundle")
_PACK = re.compile(r"packs/([0-9]{10})-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)-(0|[1-9][0-9]*)\.pack")
_SEGMENT = re.compile(
    r"topics/([a-zA-Z0-9._-]{1,249})/([A-Za-z0-9_-]{22})/partition=(0|[1-9][0-9]*)/"
    rf"([0-9]{{20}})\.([0-9]{{10}})(?:-([1-9][0-9]*))?({'|'.join(map(re.escape, SUFFIXES))})"
)


@dataclass(frozen=True, slots=True)
class SegmentObjectName:
    """The parts of the name of a segment's object. `attempt` 0 is a task's first, and it is not in the name."""

    topic: str
    topic_id: str
    partition: int
    base_offset: int
    epoch: int
    attempt: int
    suffix: str


def commit_path(number: int) -> str:
    """The object of commit `number` (0 is the first)."""
    return f"{CATALOG}{number:020d}.json"


def parse_commit(path: str) -> int | None:
    """Return the commit's number, or None for any other object."""
    match = _COMMIT.fullmatch(path)
    return int(match[1]) if match else None


def checkpoint_path(number: int, epoch: int) -> str:
    """Return the object of the fold of commits 0..`number`, written at `epoch`."""
    return f"{CATALOG}{number:020d}-{epoch:010d}.checkpoint"


def parse_checkpoint(path: str) -> tuple[int, int] | None:
    """(last commit's number, epoch), or None for any other object."""
    match = _CHECKPOINT.fullmatch(path)
    return (int(match[1]), int(match[2])) if match else None


def bundle_path(number: int) -> str:
    """The object of bundle `number` (0 is the first)."""
    return f"{CATALOG}{number:020d}.bundle"


def parse_bundle(path: str) -> int | None:
    """Return the bundle's number, or None for any other object."""
    match = _BUNDLE.fullmatch(path)
    return int(match[1]) if match else None


def bundle_of(commit: int) -> int:
    """Return the number of the bundle that has, or may have one day, this commit."""
    return commit // BUNDLED


def bundled(number: int) -> range:
    """Return the commits of bundle `number`."""
    return range(number * BUNDLED, (number + 1) * BUNDLED)


def segment_stem(topic: str, topic_id: str, partition: int, base_offset: int, epoch: int, attempt: int) -> str:
    """Return the path of a segment without its suffix. Raises ValueError for what is not a topic, topic id or
    number."""
    check_topic(topic)
    check_topic_id(topic_id)
    if partition < 0 or attempt < 0 or not 0 <= base_offset <= MAX_OFFSET or not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(
            f"no segment name for partition {partition}, offset {base_offset}, epoch {epoch}, attempt {attempt}"
        )
    tries = f"-{attempt}" if attempt else ""
    return f"{TOPICS}{topic}/{topic_id}/partition={partition}/{base_offset:020d}.{epoch:010d}{tries}"


def pack_path(epoch: int, task: int, attempt: int, number: int) -> str:
    """Return the object of pack `number` of an attempt at a task. Raises ValueError for what is not such a number."""
    if not 0 <= epoch <= MAX_EPOCH or min(task, attempt, number) < 0:
        raise ValueError(f"no pack name for epoch {epoch}, task {task}, attempt {attempt}, number {number}")
    return f"{PACKS}{epoch:010d}-{task}-{attempt}-{number}.pack"


def parse_pack(path: str) -> tuple[int, int, int, int] | None:
    """Epoch, task, attempt and number of a pack, or None for any other object."""
    match = _PACK.fullmatch(path)
    return (int(match[1]), int(match[2]), int(match[3]), int(match[4])) if match else None


def snapshots_folder(topic: str, topic_id: str, partition: int, epoch: int, attempt: int) -> str:
    """Return the folder of a snapshot of a partition. It is an attempt's own, so no name is used twice. Raises
    ValueError as `segment_stem` does."""
    stem = segment_stem(topic, topic_id, partition, 0, epoch, attempt)
    folder, _, name = stem.rpartition("/")
    return f"{folder}/snapshots/{name.partition('.')[2]}/"


def snapshot_name(end: int, leader_epoch: int, part: int) -> str:
    """Return the name of a part of a snapshot without its suffix, as KIP-630 has it; later parts have their number
    after it. Raises ValueError for what is not such a number."""
    if not 0 <= end <= MAX_OFFSET or not 0 <= leader_epoch <= MAX_EPOCH or part < 0:
        raise ValueError(f"no snapshot name for end {end}, leader epoch {leader_epoch}, part {part}")
    return f"{end:020d}-{leader_epoch:010d}" + (f".{part:05d}" if part else "")


def records_stem(
    topic: str, partition: int, base_offset: int, *, root: str = TOPICS, width: int = 0, generation: int = 0
) -> str:
    """Return the path of a segment of the Records format without its suffix. `root` is "" where the topics' folders lie
    next to `archive.json` (a folder that was adopted where it is). The offset is padded to `width` digits, or as the
    format has it.
    """
    check_topic(topic)
    folder = f"{root}{topic}/{generation_folder(generation)}"
    return f"{folder}segment_partition_{partition:03d}_from_offset_{base_offset:0{width or RECORDS_WIDTH}d}"


def avro_stem(topic: str, partition: int, sequence: int, *, width: int = 0, generation: int = 0) -> str:
    """Return the path of an object of the Avro format without its suffix; `sequence` is padded to `width` digits."""
    check_topic(topic)
    folder = f"{TOPICS}{topic}/partition={partition}/{generation_folder(generation)}"
    return f"{folder}{topic}+{partition}-{sequence:0{width}d}"


def generation_folder(generation: int) -> str:
    """Return the folder of a generation, with a slash after it; empty for 0, which none has."""
    return f"generation={generation}/" if generation else ""


def without_generation(path: str) -> tuple[str, int]:
    """Return a path of the Records or the Avro format without the folder of a generation, and the number in it (0:
    none)."""
    match = _GENERATION.search(path)
    return (path, 0) if match is None else (path[: match.start() + 1] + path[match.end() :], int(match[1]))


def parse_segment(path: str) -> SegmentObjectName | None:
    """Return the parts of a segment object's name, or None for any other object."""
    match = _SEGMENT.fullmatch(path)
    if match is None:
        return None
    topic, topic_id, partition, base_offset, epoch, attempt, suffix = match.groups()
    return SegmentObjectName(topic, topic_id, int(partition), int(base_offset), int(epoch), int(attempt or 0), suffix)


def run_file(run_id: str, name: str) -> str:
    """Return the path of a file of a run, `runs/<run id>/<name>`. Raises ValueError for what cannot be a path."""
    check_run_id(run_id)
    if not name or any(part in ("", ".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a file name")
    return f"{RUNS}{run_id}/{name}"


def digests_path(topic: str, topic_id: str, partition: int) -> str:
    """Return the object with the digests of the records of a partition. Raises ValueError for what is not a topic or
    topic id."""
    check_topic(topic)
    check_topic_id(topic_id)
    return f"{DIGESTS}{topic}/{topic_id}/{partition}.json"


def check_topic(topic: str) -> None:
    """Raises ValueError for a name that Kafka would refuse, and for anything but text."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"{ascii(topic)[:_MAX_SHOWN]} is not a topic name")


def check_topic_id(topic_id: str) -> None:
    """Raises ValueError for what is not a topic id."""
    if not isinstance(topic_id, str) or not _TOPIC_ID.fullmatch(topic_id):
        raise ValueError(f"{topic_id!r} is not a topic id (22 characters of base64url)")


def check_run_id(run_id: str) -> None:
    """Raises ValueError for a run id that cannot be a folder."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ValueError(f"{run_id!r} is not a run id (letters, digits, '.', '_', '-', at most 128)")
