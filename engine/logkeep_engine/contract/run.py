"""Three JSON documents: the operator hands one to a run, and the run reports back in two.

`RunRequest` lies in the run's ConfigMap. `Progress` is overwritten in the progress ConfigMap while the run goes on,
`RunResult` is written there once at its end and, shortened, as the pod's termination message. All are small whatever
the number of partitions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Self

from logkeep_engine.contract.archive import ArchiveReport
from logkeep_engine.contract.dry_run import DryRunReport
from logkeep_engine.contract.emitting import EmittedFacts
from logkeep_engine.contract.nesting import WRONG, loads
from logkeep_engine.contract.reconcile import ReconcileFacts

FORMAT = 1
Text = str | bytes
MAX_PARTITIONS_SHOWN = 2000  # a ConfigMap holds 1 MiB; an entry is about 200 bytes
MAX_LIST = 20
MAX_MOVING = 10
TASK_PHASES = ("Running", "Snapshotting", "Verifying")
"""The phases of a run in which tasks move or read its records."""


class ContractError(ValueError):
    """A document of another version, or not of this kind at all."""


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {(_camel(key) if isinstance(key, str) else key): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value


class _Document:
    """JSON in camelCase with a format number; unknown keys of a document of the same format are an error."""

    # Fields that are left out where they are None, so that versions which do not know them read the document.
    _LEFT_OUT: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> str:
        written = [
            f.name
            for f in fields(self)  # type: ignore[arg-type]
            if f.name not in self._LEFT_OUT or getattr(self, f.name) is not None
        ]
        body = {_camel(name): self._field_to_json(name) for name in written}
        return json.dumps({"format": FORMAT, **body}, separators=(",", ":"), ensure_ascii=False)

    def _field_to_json(self, name: str) -> Any:
        value = getattr(self, name)
        if name in ("spec", "spark_conf"):
            return value
        if isinstance(value, ArchiveReport | DryRunReport):
            return value.to_json()
        if hasattr(value, "__dataclass_fields__"):
            return _to_json(asdict(value))
        if isinstance(value, (list, tuple)):
            return [_to_json(asdict(item)) if hasattr(item, "__dataclass_fields__") else item for item in value]
        return value

    @classmethod
    def _body(cls, text: Text) -> dict[str, Any]:
        try:
            document = loads(text)
        except ValueError as error:
            raise ContractError(f"{cls.__name__}: not JSON: {error}") from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            found = document.get("format") if isinstance(document, dict) else type(document).__name__
            raise ContractError(f"{cls.__name__}: format {found!r}, this version reads {FORMAT}")
        names = {_camel(f.name): f.name for f in fields(cls)}  # type: ignore[arg-type]
        body = {key: value for key, value in document.items() if key != "format"}
        unknown = sorted(set(body) - set(names))
        if unknown:
            raise ContractError(f"{cls.__name__}: unknown keys {unknown}")
        return {names[key]: value for key, value in body.items()}

    @classmethod
    def from_json(cls, text: Text) -> Self:
        body = cls._body(text)
        try:
            return cls._of(body)
        except WRONG as error:
            raise ContractError(f"{cls.__name__}: {error}") from error

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Self:
        return cls(**body)


def _record(kind: type[Any], value: Mapping[str, Any]) -> Any:
    names = {_camel(f.name): f.name for f in fields(kind)}
    return kind(**{names[key]: item for key, item in value.items()})


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
    to take the archive over.
    """

    # Backups and the command line have none of the first two, and few backups the last.
    _LEFT_OUT = frozenset(
        {"remembered_as", "topics_config_map", "reconcile", "requested_by", "uid", "anchor", "take_over"}
    )

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
    """A view of a run that goes on. Times are seconds since the epoch; bytes are those of batches.

    `partitions_shown` is complete up to MAX_PARTITIONS_SHOWN, then the ones furthest behind. `moving` are at most
    MAX_MOVING topics. `bytes_per_second` and `seconds_left` go by the last half minute; None while that is not known.
    """

    # The command line knows no executors, and few restores have a point.
    _LEFT_OUT = frozenset({"bytes_per_second", "seconds_left", "executors", "point"})

    run_id: str
    phase: str  # Starting, Planning, Checking, Running, Snapshotting, Verifying, Finishing
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

    @property
    def percent(self) -> int:
        """0 to 100 by offsets; 100 when there is nothing to do and that is known."""
        if self.offsets_total == 0:
            return 0 if self.phase in ("Starting", "Planning", "Checking") else 100
        return min(100, self.offsets_done * 100 // self.offsets_total)

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Self:
        body["partitions_shown"] = tuple(_record(PartitionProgress, item) for item in body.get("partitions_shown", ()))
        body["moving"] = tuple(_record(TopicProgress, item) for item in body.get("moving", ()))
        return cls(**body)


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

    @classmethod
    def of(cls, value: Any) -> TopicCoverage:
        """From JSON. Raises ContractError for what is none."""
        if not isinstance(value, dict):
            raise ContractError(f"coverage: a {type(value).__name__}")
        known = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
        for key, item in known.items():
            names = isinstance(item, tuple) and all(isinstance(name, str) for name in item)
            if not names and type(item) is not int:
                raise ContractError(f"coverage.{key}: neither a number nor names")
        try:
            found: TopicCoverage = _record(cls, known)
        except KeyError as error:
            raise ContractError(f"coverage: unknown key {error}") from error
        if any(isinstance(getattr(found, f.name), tuple) != isinstance(f.default, tuple) for f in fields(cls)):
            raise ContractError("coverage: numbers and names are mixed up")
        return found

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
class DrillFacts:
    """The findings of a drill: the seconds from its start until the last record was acknowledged, and until all was
    verified. `partitions` were restored. `report` is the URI of the document that tells all of it.

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


@dataclass(frozen=True)
class RunResult(_Document):
    """How a run ended. `loss` holds at most MAX_LIST facts, `loss_total` counts all; `loss_offsets` is the sum of
    their lengths. `earlier_run` is the run that has done the same restore before, and `earlier_end` is its end: then
    this run has done nothing, and the facts are those of the earlier one. `requested_by` is that of the request.
    """

    # Only a backup has the first two, few restores have an earlier run, and only some have the others.
    _LEFT_OUT = frozenset(
        {
            *("coverage", "archive", "anchor", "taken_over", "earlier_run", "earlier_end"),
            *("verification", "drill", "dry_run", "emitted", "cluster_state", "reconciled", "requested_by"),
        }
    )

    run_id: str
    kind: str
    outcome: str  # Succeeded, Failed, or DryRun: nothing was written, `dry_run` says what would be
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
    reconciled: ReconcileFacts | None = None
    requested_by: str | None = None

    @classmethod
    def _of(cls, body: dict[str, Any]) -> Self:
        body["loss"] = tuple(_record(LossFact, item) for item in body.get("loss", ()))
        body["warnings"] = tuple(body.get("warnings", ()))
        if (found := body.get("coverage")) is not None:
            body["coverage"] = TopicCoverage.of(found)
        if (told := body.get("archive")) is not None:
            body["archive"] = ArchiveReport.of(told)
        if (facts := body.get("verification")) is not None:
            body["verification"] = _record(VerificationFacts, facts)
        if (told := body.get("cluster_state")) is not None:
            found = _record(ClusterStateFacts, told)
            body["cluster_state"] = replace(found, users=tuple(found.users), held_back=tuple(found.held_back))
        if (found := body.get("dry_run")) is not None:
            body["dry_run"] = DryRunReport.of(found)
        if (measured := body.get("drill")) is not None:
            body["drill"] = _record(DrillFacts, measured)
        if (emitted := body.get("emitted")) is not None:
            body["emitted"] = _record(EmittedFacts, emitted)
        if (compared := body.get("reconciled")) is not None:
            body["reconciled"] = _record(ReconcileFacts, compared)
        return cls(**body)

    def to_termination_message(self, limit: int) -> str:
        """The JSON, with lists dropped and the message cut until it fits `limit` bytes of UTF-8."""
        numbers = self.coverage.without_names() if self.coverage is not None else None
        report = self.archive.without_topics() if self.archive is not None else None
        state = replace(self.cluster_state, users=(), held_back=()) if self.cluster_state is not None else None
        short = replace(self, loss=(), warnings=(), coverage=numbers, archive=report, cluster_state=state)
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
