"""Three JSON documents: the operator hands one to a run, and the run reports back in two.

`RunRequest` lies in the run's ConfigMap. `Progress` is overwritten in the progress ConfigMap while the run lasts,
`RunResult` is written there once at its end and, shortened, as the pod's termination message. All are small whatever
the number of partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Self, cast, get_args, get_origin, get_type_hints

from logkeep_engine.contract.archive import ArchiveReport
from logkeep_engine.contract.dry_run import DryRunReport
from logkeep_engine.contract.emitting import EmittedFacts
from logkeep_engine.contract.model import Model
from logkeep_engine.contract.nesting import WRONG
from logkeep_engine.contract.reconcile import ReconcileFacts
from logkeep_engine.contract.stored import DocumentDamaged, Maybe, StoredDocument

MAX_PARTITIONS_SHOWN = 2000  # a ConfigMap holds 1 MiB; an entry is about 200 bytes
MAX_LIST = 20
MAX_MOVING = 10
TASK_PHASES = ("Running", "Snapshotting", "Verifying")
"""The phases of a run in which tasks move or read its records."""


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


@cache
def _fields(kind: Any) -> dict[str, tuple[str, Any]]:
    """The fields of a dataclass with their types, by their keys."""
    hints = get_type_hints(kind)
    return {_camel(f.name): (f.name, hints[f.name]) for f in fields(kind)}


def _given(hint: Any) -> Any:
    """The type of a field where it is not None."""
    given = [kind for kind in get_args(hint) if kind is not NoneType] if isinstance(hint, UnionType) else [hint]
    return given[0]


def _shape(hint: Any) -> Any:
    """The shape of a field in JSON, by its type."""
    if isinstance(hint, UnionType):
        return Maybe(_shape(_given(hint)))
    if get_origin(hint) is tuple:
        return [_shape(get_args(hint)[0])]
    if get_origin(hint) is dict:
        kind = get_args(hint)[1]
        return dict if kind is Any else {str: kind}
    if is_dataclass(hint):
        return {key: _shape(kind) for key, (_, kind) in _fields(cast(Any, hint)).items()}
    return dict if issubclass(hint, Model) else hint


def _out(value: Any) -> Any:
    if isinstance(value, (ArchiveReport, DryRunReport)):
        return value.to_json()
    if is_dataclass(value):
        return {key: _out(getattr(value, name)) for key, (name, _) in _fields(cast(Any, type(value))).items()}
    return list(map(_out, value)) if isinstance(value, tuple) else value


@cache
def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """Makes the value of a field of JSON of its shape; None if that is the value."""
    kind = _given(hint)
    if get_origin(kind) is tuple:
        item = _reader(get_args(kind)[0])
        return tuple if item is None else lambda values: tuple(map(item, values))
    if is_dataclass(kind):
        return partial(_record, cast(Any, kind))
    return kind.of if kind in (ArchiveReport, DryRunReport) else None


def _record(kind: Any, body: Mapping[str, Any]) -> Any:
    known = _fields(kind)
    values = {known[key][0]: value for key, value in body.items()}
    for name, read in _readers(kind):
        if values[name] is not None:
            values[name] = read(values[name])
    return kind(**values)


@cache
def _readers(kind: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    found = ((name, _reader(hint)) for name, hint in _fields(kind).values())
    return [(name, read) for name, read in found if read is not None]


class _Document:
    """JSON with the fields in camelCase (see `contract.stored`)."""

    @classmethod
    @cache
    def _kind(cls) -> StoredDocument:
        return StoredDocument(cls.__name__, 1, _shape(cls))

    def to_json(self) -> str:
        return self._kind().dumps(_out(self)).decode("utf-8", "surrogatepass")

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The document of a text. Raises DocumentRefused."""
        body = cls._kind().loads(text)
        try:
            found: Self = _record(cls, body)
        except WRONG as error:
            raise DocumentDamaged(f"not a {cls.__name__}: {error}") from error
        return found


@dataclass(frozen=True)
class RunRequest(_Document):
    """One run. `spec` is the resource's spec as written; for a restore `source.backupRef` is already resolved to
    `source.storage`.

    `progress_config_map` is None outside Kubernetes. `spark_conf` holds what the operator sets, the resource's
    `spark.conf` included. `remembered_as` is the name under which the outcome of a restore is found by later resources,
    None if it is not. `topics_config_map` is there if the restore emits its topics. With `reconcile` a backup looks for
    stale keys when all is archived. `requested_by` says what asked for the run, in words: where it comes from an
    annotation, it is a claim of whoever may write the resource. `uid` is the resource's, None on the command line.
    `anchor` is the newest commit of the archive that is known (`contract.anchor`), and `take_over` the user's consent
    to take the archive over. With `release` a restore that has succeeded releases the topics that it holds, and does
    nothing else.
    """

    kind: str
    name: str
    namespace: str
    run_id: str
    spec: dict[str, Any]
    progress_config_map: str | None = None
    spark_conf: dict[str, str] = field(default_factory=dict)
    remembered_as: str | None = None
    topics_config_map: str | None = None
    reconcile: bool | None = None
    requested_by: str | None = None
    uid: str | None = None
    anchor: str | None = None
    take_over: str | None = None
    release: bool | None = None


@dataclass(frozen=True)
class PartitionProgress:
    """Offsets are source offsets: this run does [start, end) and has done [start, at)."""

    topic: str
    partition: int
    start: int
    end: int
    at: int
    records: int
    bytes: int


@dataclass(frozen=True)
class TopicProgress:
    """A topic on which tasks work now: `done` offsets of `total`, which are those of this run."""

    topic: str
    done: int
    total: int


@dataclass(frozen=True)
class Progress(_Document):
    """A view of a run that is still running. Times are seconds since the epoch; bytes are those of batches.

    `partitions_shown` is complete up to MAX_PARTITIONS_SHOWN, then the ones furthest behind. `moving` are at most
    MAX_MOVING topics. `bytes_per_second` and `seconds_left` go by the last half minute; None while that is not known.
    """

    run_id: str
    phase: str  # Starting, Planning, Retrieving, Checking, Running, Snapshotting, Verifying, Finishing
    start_time: float
    update_time: float
    attempt: int = 1
    topics: int = 0
    partitions: int = 0
    partitions_done: int = 0
    records: int = 0
    bytes: int = 0
    offsets_done: int = 0
    offsets_total: int = 0
    partitions_shown: tuple[PartitionProgress, ...] = ()
    moving: tuple[TopicProgress, ...] = ()
    bytes_per_second: int | None = None
    seconds_left: int | None = None
    executors: int | None = None  # as many were asked for; 0: the driver does the work itself
    point: str | None = None  # what the point of a restore gives
    waits: str | None = None  # what the run waits for

    @property
    def percent(self) -> int:
        """0 to 100 by offsets; 100 when there is nothing to do and that is known."""
        if self.offsets_total == 0:
            return 0 if self.phase in ("Starting", "Planning", "Retrieving", "Checking") else 100
        return min(100, self.offsets_done * 100 // self.offsets_total)


@dataclass(frozen=True)
class LossFact:
    """Offsets [start, end) of a partition that could not be archived or restored, and why."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class TopicCoverage:
    """How much of a cluster a backup protects: numbers, and of each list the first MAX_LIST.

    `protected` topics were archived whole, as far as the run has come. `left_out` topics exist and are not chosen,
    `vanished` ones are in the archive and no more in the cluster, the user may not read `unreadable` ones.
    """

    protected: int = 0
    unmatched: int = 0
    left_out: int = 0
    vanished: int = 0
    unreadable: int = 0
    patterns_unmatched: tuple[str, ...] = ()
    topics_left_out: tuple[str, ...] = ()
    topics_vanished: tuple[str, ...] = ()
    topics_unreadable: tuple[str, ...] = ()

    def without_names(self) -> TopicCoverage:
        """The numbers alone."""
        return TopicCoverage(self.protected, self.unmatched, self.left_out, self.vanished, self.unreadable)


@dataclass(frozen=True)
class VerificationFacts:
    """The findings of a verification. `outcome` is Verified, NotVerified or Different, the other numbers
    but `records` count partitions. `report` is the URI of the page that tells all of it."""

    outcome: str
    message: str = ""
    partitions: int = 0
    verified: int = 0
    not_verified: int = 0
    different: int = 0
    records: int = 0
    end_time: float = 0.0
    report: str = ""


@dataclass(frozen=True)
class ClusterStateFacts:
    """The outcome of bringing back the cluster state that `source_run` has archived. Of ACLs and quotas: how many there
    are, how many were added, and how many the cluster did not take. `acls_held_back` were not added, since `spec.acls`
    does not name them: `held_back` are the first MAX_LIST. The numbers of a kind that was not archived are
    None. `kept` quotas have another value in the target, which stays. `users` are the SCRAM users that the target
    lacks, to be created with new passwords: the first MAX_LIST of `users_total`. `report` is the URI of the document
    that names all of it.
    """

    source_run: str
    acls: int | None = None
    acls_added: int | None = None
    acls_refused: int | None = None
    acls_held_back: int | None = None
    held_back: tuple[str, ...] = ()
    quotas: int | None = None
    quotas_added: int | None = None
    quotas_refused: int | None = None
    quotas_kept: int | None = None
    users_total: int | None = None
    users: tuple[str, ...] = ()
    report: str = ""


@dataclass(frozen=True)
class HeldTopics:
    """The topics that a restore has left without limits of retention (`spec.topics.retention: Hold`), until they are
    released: how many, and the first MAX_LIST.

    Their release tells how many have their own retention now, the first MAX_LIST of the others, each with its
    `ReleaseOutcome` (`orders: NotHeld`), and when that was."""

    total: int
    topics: tuple[str, ...] = ()
    released: int | None = None
    not_released: tuple[str, ...] = ()
    released_time: float | None = None


@dataclass(frozen=True)
class DrillFacts:
    """The findings of a drill: the seconds from its start until the last record was acknowledged, and until all was
    verified. `partitions` were restored, without so many `cold_segments`. `report` is the URI of the document that
    tells all of it.

    Only sampled drills have the numbers of the `cycle`: of `total` partitions, `drilled` were, and all are within so
    many `runs`."""

    recovery_seconds: float
    verified_seconds: float
    partitions: int
    records: int
    bytes: int
    report: str
    total: int = 0
    cycle: int = 0
    drilled: int = 0
    runs: int = 0
    cold_segments: int = 0


@dataclass(frozen=True)
class RunResult(_Document):
    """How a run ended. `loss` holds at most MAX_LIST facts, `loss_total` counts all; `loss_offsets` is the sum of
    their lengths. `earlier_run` is the run that has done the same restore before, and `earlier_end` is its end: then
    this run has done nothing, and the facts are those of the earlier one. `requested_by` is that of the request.
    """

    run_id: str
    kind: str
    outcome: str  # Succeeded, Failed, DryRun: nothing was written, `dry_run` says what would be; of `diff` its verdict
    exit_code: int
    start_time: float
    end_time: float
    error_code: str = ""
    message: str = ""
    topics: int = 0
    partitions: int = 0
    records: int = 0
    bytes: int = 0
    segments: int = 0
    aborted_records: int = 0  # of aborted transactions: a restore has left them out
    groups: int = 0
    archive_id: str = ""
    cluster_id: str = ""
    epoch: int = 0
    commit: int = -1
    loss_total: int = 0
    loss_offsets: int = 0
    loss: tuple[LossFact, ...] = ()
    warnings: tuple[str, ...] = ()
    offset_map: str = ""  # URI of the folder with a restore's offset maps
    coverage: TopicCoverage | None = None  # a backup that got as far as planning has it
    archive: ArchiveReport | None = None  # a backup that has tried everything has it
    anchor: str | None = None  # `commit` with its hash, of a run that has written the archive
    taken_over: str | None = None  # the consent that the run was given, once it writes the archive
    earlier_run: str | None = None
    earlier_end: float | None = None
    verification: VerificationFacts | None = None
    cluster_state: ClusterStateFacts | None = None
    dry_run: DryRunReport | None = None
    drill: DrillFacts | None = None  # a drill that has restored everything has it
    emitted: EmittedFacts | None = None
    held_topics: HeldTopics | None = None  # a restore that holds its topics has it
    reconciled: ReconcileFacts | None = None
    requested_by: str | None = None

    def to_termination_message(self, limit: int) -> str:
        """The JSON, with lists dropped and the message cut until it fits `limit` bytes of UTF-8."""
        numbers = self.coverage.without_names() if self.coverage is not None else None
        report = self.archive.without_topics() if self.archive is not None else None
        state = replace(self.cluster_state, users=(), held_back=()) if self.cluster_state is not None else None
        held = replace(self.held_topics, topics=(), not_released=()) if self.held_topics is not None else None
        short = replace(
            self, loss=(), warnings=(), coverage=numbers, archive=report, cluster_state=state, held_topics=held
        )
        for length in (2000, 500, 100, 0):
            short = replace(short, message=short.message[:length])
            if short.verification is not None:
                facts = short.verification
                short = replace(short, verification=replace(facts, message=facts.message[:length]))
            if short.reconciled is not None:
                short = replace(short, reconciled=replace(short.reconciled, message=short.reconciled.message[:length]))
            if self.dry_run is not None:
                short = replace(short, dry_run=self.dry_run.without_lists(length))
            text = short.to_json()
            if len(text.encode()) <= limit:
                return text
        return text
