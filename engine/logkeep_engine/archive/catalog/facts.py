"""The facts an archive keeps. No I/O.

Every fact checks itself when it is made and raises ValueError for what cannot be.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.entry import SegmentEntry
from logkeep_engine.archive.catalog.holds import Hold
from logkeep_engine.archive.catalog.kinds import MOST_PARTITIONS
from logkeep_engine.archive.catalog.lineage import LeaderEpoch, LeaderSeen
from logkeep_engine.archive.catalog.snapshots import RemovedSnapshot, SnapshotEntry
from logkeep_engine.contract.names import MAINTENANCE_KINDS
from logkeep_engine.log.cleanup import is_compacted, is_deleted

Partition = tuple[str, int]  # (topic id, partition number)

_BRANCH_PREFIX = "branch-"
_ID_LENGTH = 22  # a UUID in base64url, without padding
_SHA256_LENGTH = 64  # in hexadecimal digits
_MAX_BRANCHES = 9999
_SHOWN = 100  # characters of what is not a number
NOTHING_LEFT = -1
"""Nothing takes the place of a segment that was replaced."""
NO_COMMIT = -1
"""The number below that of every commit."""


def _is_text(value: object) -> bool:
    """Return whether it is a text that can be encoded: JSON has halves of characters, too."""
    try:
        return isinstance(value, str) and bool(value.isascii() or value.encode())
    except UnicodeEncodeError:
        return False


class RunOutcome(StrEnum):
    """The end of a run. `TakenOver`: the run began and never ended, and another run continued."""

    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    TAKEN_OVER = "TakenOver"


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """One incarnation of a topic as last seen. `configs` are the values that are set on the topic itself, without the
    broker's defaults; a `cleanup.policy` that compacts the topic is among them even if it is a default. Runs up to the
    epoch `compacted_until` have found it compacted only, which it is no longer (0: it never was, or is now). Runs up to
    `cleaned_until` have found it compacted, be it deleted from or not, which it is no longer."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict, hash=False)
    compacted_until: int = 0
    cleaned_until: int = 0

    def __post_init__(self) -> None:
        names.check_topic(self.name)
        names.check_topic_id(self.topic_id)
        if type(self.partitions) is not int or not 1 <= self.partitions <= MOST_PARTITIONS:
            raise ValueError(f"topic {self.name} with {ascii(self.partitions)[:_SHOWN]} partitions")
        for key, value in self.configs.items():
            if not (_is_text(key) and _is_text(value)):
                raise ValueError(f"topic {self.name} with a configuration that is not text: {key!a} {value!a}")

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted, whatever else is done with its records."""
        return is_compacted(self.configs)

    @property
    def was_compacted(self) -> bool:
        """Whether brokers may have overwritten records of the topic before they were archived."""
        return self.is_compacted or self.cleaned_until > 0

    @property
    def is_compacted_only(self) -> bool:
        """Whether Kafka keeps the last record of every key of the topic for ever."""
        return self.is_compacted and not is_deleted(self.configs)


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A consumer group's committed position: the next offset it would read. `leader_epoch` -1: not known. Of a `share`
    group (KIP-932) it is the start offset: all records below are done, and some after may be."""

    group_id: str
    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    share: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """The offsets [start, end) of a partition are archived: what was there is in segments."""

    topic_id: str
    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        _check_range(self.topic_id, self.partition, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Gap:
    """The offsets [start, end) of a partition, which were gone before they could be archived. No coverage has any of
    them."""

    topic_id: str
    partition: int
    start: int
    end: int
    reason: str

    def __post_init__(self) -> None:
        _check_range(self.topic_id, self.partition, self.start, self.end)


@dataclass(frozen=True, slots=True)
class RemovedSegment:
    """A segment that retention takes out of a line of the partition. The archive still accounts for its offsets: they
    are not fetched again."""

    topic_id: str
    partition: int
    base_offset: int
    line: int = 0


class PurgedPack(NamedTuple):
    """A pack that is deleted, as `packed.PackId` names it."""

    epoch: int
    task: int
    attempt: int
    number: int


@dataclass(frozen=True, slots=True)
class ReplacedSegment:
    """A segment of a line of the partition in whose place another one comes; or a part of the snapshot with the end
    `snapshot`. `by` is the number of that one among the segments of the same commit; neighbours that are merged have
    the same. NOTHING_LEFT: it has lost all its batches. The archive accounts for its offsets as before."""

    topic_id: str
    partition: int
    line: int
    base_offset: int
    by: int
    snapshot: int = 0


@dataclass(frozen=True, slots=True)
class Branching:
    """The log of a partition was cut off at `offset` and continues as a new line. The line before is the branch
    `branch_id` from now on."""

    topic_id: str
    partition: int
    branch_id: str
    offset: int

    def __post_init__(self) -> None:
        names.check_topic_id(self.branch_id)
        if not is_branch_id(self.branch_id) or self.partition < 0 or self.offset < 0:
            raise ValueError(
                f"topic id {self.topic_id} partition {self.partition}: branch {self.branch_id} at offset {self.offset}"
            )


def branch_id(topic_id: str, number: int) -> str:
    """Return the id of the topic's branch `number`, from 1."""
    if not 1 <= number <= _MAX_BRANCHES:
        raise ValueError(f"topic id {topic_id} with {number} branches")
    own = urlsafe_b64encode(hashlib.sha256(f"{topic_id} {number}".encode()).digest()).decode()
    return f"{_BRANCH_PREFIX}{number:04d}-{own}"[:_ID_LENGTH]


def is_branch_id(text: str) -> bool:
    """Tells whether an id names a branch, and not an incarnation."""
    return text.startswith(_BRANCH_PREFIX) and len(text) == _ID_LENGTH and text[len(_BRANCH_PREFIX) :][:4].isdecimal()


class GenerationStep(StrEnum):
    """The steps of a generation of a compacted partition: it begins to be read, then it becomes the active one, or it
    is dropped. `Due`: the active one has stale keys, so another is to be begun, and one that is being read goes."""

    BEGIN = "Begin"
    ACTIVATE = "Activate"
    DROP = "Drop"
    DUE = "Due"


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """A step of generation `number` of a partition. One that begins is of the offsets [start, end); one that becomes
    active is exact from offset `end` on. Where another is due, `number` is that of the active one."""

    topic_id: str
    partition: int
    number: int
    step: GenerationStep
    start: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        if self.number < 1 or self.partition < 0 or not 0 <= self.start <= self.end:
            raise ValueError(f"{self} is not a change of a generation")


@dataclass(frozen=True, slots=True)
class PassiveFacts:
    """The facts that a commit adds to passive generations."""

    coverage: tuple[Coverage, ...] = ()
    segments: Sequence[SegmentEntry] = ()
    epochs: tuple[LeaderEpoch, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.coverage or len(self.segments) or self.epochs)


@dataclass(frozen=True, slots=True)
class Receipt:
    """The work that one task has done. It is committed whole or not at all. `epochs` are those of the
    batches that the task has seen. With a `generation` it belongs to the passive generation of this number."""

    coverage: tuple[Coverage, ...] = ()
    segments: tuple[SegmentEntry, ...] = ()
    gaps: tuple[Gap, ...] = ()
    epochs: tuple[LeaderEpoch, ...] = ()
    generation: int = 0

    @property
    def ranges(self) -> list[tuple[str, int, int, int]]:
        """(topic id, partition, start, end) of every range that it accounts for, archived or a gap."""
        found: list[Coverage | Gap] = [*self.coverage, *self.gaps]
        return [(item.topic_id, item.partition, item.start, item.end) for item in found]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run of this archive. `records`, `bytes` and `segments` are what it has archived, or what an erasure has erased.
    `attempts` counts starts of its driver, `epoch` is that of the last. Times are ms since the epoch.

    `succeeded_epoch` and `succeeded_time` are the epoch and the end of its last success, if the run was begun again
    since and has not succeeded again; else 0."""

    run_id: str
    epoch: int
    kind: str
    begin_time: int
    end_time: int | None = None
    outcome: RunOutcome = RunOutcome.RUNNING
    message: str = ""
    records: int = 0
    bytes: int = 0
    segments: int = 0
    attempts: int = 1
    succeeded_epoch: int = 0
    succeeded_time: int = 0

    @property
    def success(self) -> RunEntry | None:
        """The run as its last success has left it; None if it has never succeeded. What was restorable then stays so,
        whatever becomes of a later attempt."""
        if self.outcome is RunOutcome.SUCCEEDED:
            return self
        if not self.succeeded_epoch:
            return None
        epoch, time = self.succeeded_epoch, self.succeeded_time
        return replace(self, epoch=epoch, end_time=time, outcome=RunOutcome.SUCCEEDED, message="")

    def added(self, records: int, size: int, segments: int) -> RunEntry:
        """Return the run with what a commit has added."""
        return replace(self, records=self.records + records, bytes=self.bytes + size, segments=self.segments + segments)

    def begun_again(self, epoch: int) -> RunEntry:
        """Return the run with one attempt more."""
        before = self.success
        return replace(
            self,
            epoch=epoch,
            end_time=None,
            outcome=RunOutcome.RUNNING,
            message="",
            attempts=self.attempts + 1,
            succeeded_epoch=before.epoch if before else 0,
            succeeded_time=(before.end_time or 0) if before else 0,
        )

    def ended(self, outcome: RunOutcome, time: int, message: str) -> RunEntry:
        """Return the run at its end. A success takes the place of an earlier one."""
        found = replace(self, end_time=time, outcome=outcome, message=message)
        return replace(found, succeeded_epoch=0, succeeded_time=0) if outcome is RunOutcome.SUCCEEDED else found

    @property
    def is_maintenance(self) -> bool:
        """Whether the run keeps in order what others have archived, and archives nothing."""
        return self.kind in MAINTENANCE_KINDS


@dataclass(frozen=True, slots=True)
class ClusterStateEntry:
    """The archived state of a cluster: the SHA-256 of the object, and how many ACLs, client quotas and SCRAM users are
    in it; None for what the cluster did not report."""

    sha256: str
    acls: int | None
    quotas: int | None
    users: int | None

    def __post_init__(self) -> None:
        if len(self.sha256) != _SHA256_LENGTH or min(self.acls or 0, self.quotas or 0, self.users or 0) < 0:
            raise ValueError(f"{self} is not the state of a cluster")


@dataclass(frozen=True, slots=True)
class ErasureEntry:
    """The work of an erasure: the SHA-256 of its audit entry, the records that are gone, and the segments that it has
    replaced."""

    sha256: str
    records: int
    segments: int

    def __post_init__(self) -> None:
        if len(self.sha256) != _SHA256_LENGTH or min(self.records, self.segments) < 0:
            raise ValueError(f"{self} is not an erasure")


class CommitKind(StrEnum):
    BEGIN = "Begin"
    DATA = "Data"
    END = "End"


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of the archive's history. `token` is unique to the call that wrote it; `time` is ms since the epoch, for
    people. `previous` is the hash of the commit on which it stands, "" of commit 0. `sha256` is its own hash, "" before
    it is written. `signer` names the key that signs it, "" of none, and `signature` is what that has made of the hash.

    A Begin has `run_kind` and `taken_over`, the ids of the runs that began and never ended.

    A Data has `topics`, the facts of receipts, the `epochs` that are new, and the `leaders` on whose logs the run
    begins. Its `branchings` come before all else. It may have `removed` segments. `purged`: of what these commits have
    removed the objects of their own are deleted, and `purged_packs` are the packs that are. `snapshots` are new ones of
    compacted partitions, and `removed_snapshots` are there no more. `holds` are all that there are from now on; None:
    they stay as they were. `generations` are steps of generations; what the commit adds to those that are being read is
    `passive`.

    With `replaced`, an erasure's, its `segments` are those that take their place, and nothing is added.

    An End has `outcome`, `message` and `groups`, which replace the groups of earlier runs if the run succeeded, and
    `cluster_state`, if the run has archived it.
    `erasure`: the run has erased records and archived nothing, so groups stay as they were.
    `partial`: the run failed, but it has tried everything, so all that it could archive is archived. `maintenance`:
    the run has kept the archive in order and added nothing, so groups stay as they were, and its end is not a point.
    """

    number: int
    archive_id: str
    token: str
    kind: CommitKind
    run_id: str
    epoch: int
    time: int
    run_kind: str = ""
    taken_over: tuple[str, ...] = ()
    topics: tuple[TopicEntry, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    segments: Sequence[SegmentEntry] = ()
    gaps: tuple[Gap, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    outcome: RunOutcome = RunOutcome.RUNNING
    message: str = ""
    removed: tuple[RemovedSegment, ...] = ()
    purged: tuple[int, ...] = ()
    purged_packs: tuple[PurgedPack, ...] = ()
    epochs: tuple[LeaderEpoch, ...] = ()
    leaders: tuple[LeaderSeen, ...] = ()
    branchings: tuple[Branching, ...] = ()
    partial: bool = False
    cluster_state: ClusterStateEntry | None = None
    maintenance: bool = False
    generations: tuple[GenerationChange, ...] = ()
    passive: PassiveFacts = PassiveFacts()
    snapshots: tuple[SnapshotEntry, ...] = ()
    holds: tuple[Hold, ...] | None = None
    removed_snapshots: tuple[RemovedSnapshot, ...] = ()
    replaced: tuple[ReplacedSegment, ...] = ()
    erasure: ErasureEntry | None = None
    previous: str = ""
    signer: str = ""
    sha256: str = field(default="", compare=False)
    signature: str = field(default="", compare=False)

    @property
    def snapshot_parts(self) -> list[SegmentEntry]:
        """The parts of all its snapshots."""
        return [part for item in self.snapshots for part in item.parts]

    @property
    def ends_backup(self) -> bool:
        """True if it ends a run that may have archived something, with success."""
        succeeded = self.kind is CommitKind.END and self.outcome is RunOutcome.SUCCEEDED
        return succeeded and self.erasure is None and not self.maintenance

    @property
    def restorable(self) -> bool:
        """True if a restore may see the archive as it is after this commit."""
        return self.ends_backup or (self.kind is CommitKind.END and self.partial)

    @property
    def is_maintenance(self) -> bool:
        """True if the commit adds no records, but makes snapshots of those that are there, replaces or removes segments
        or snapshots, says that their objects are gone, or that generations are due. It may stand right after the end
        of a run."""
        new = () if self.replaced else self.segments
        facts: list[Sequence[object]] = [self.topics, self.coverage, new, self.gaps]
        changed = [item for item in self.generations if item.step is not GenerationStep.DUE]
        added = any(map(len, [*facts, self.epochs, self.leaders, self.branchings, changed]))
        done = (self.replaced, self.removed, self.purged, self.purged_packs, self.snapshots, self.removed_snapshots)
        return self.kind is CommitKind.DATA and any((*done, self.generations)) and not added and not self.passive


def why_not_on(commit: Commit, sha256: str) -> str:
    """Tell why a commit does not stand on the one before, which has another hash (""; there is none)."""
    return (
        f"commit {commit.number} does not follow the commit before it: it names {commit.previous or 'none'}, and "
        f"that is {sha256 or 'none'}. One of the two was altered, or belongs to another history"
    )


def _check_range(topic_id: str, partition: int, start: int, end: int) -> None:
    if not 0 <= start < end or partition < 0:
        raise ValueError(f"topic id {topic_id} partition {partition}: [{start}, {end}) is not a range of offsets")
