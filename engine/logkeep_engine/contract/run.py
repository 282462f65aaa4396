"""Three JSON documents: the operator hands one to a run, and the run reports back in two.

`RunRequest` lies in the run's ConfigMap. `Progress` is overwritten in the progress ConfigMap while the run lasts,
`RunResult` is written there once at its end and, shortened, as the pod's termination message. All are small whatever
the number of partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from logkeep_engine.contract.anchor import AnchorText, consent_in
from logkeep_engine.contract.facts.archive import ArchiveReport
from logkeep_engine.contract.facts.dry_run import DryRunReport
from logkeep_engine.contract.facts.outcome import (
    ClusterStateFacts,
    DrillFacts,
    EmittedFacts,
    HeldTopics,
    LossFact,
    ReconcileFacts,
    TopicCoverage,
    VerificationFacts,
)
from logkeep_engine.contract.facts.progress import PartitionProgress, TopicProgress
from logkeep_engine.contract.facts.values import (
    MAX_INTEGER,
    MAX_LISTED,
    Count,
    Id,
    Items,
    Listed,
    Seconds,
    Text,
    Uri,
    Word,
    shortened,
)
from logkeep_engine.contract.model import Model, replace
from logkeep_engine.contract.stored import DocumentRefused, StoredDocument, refused

MAX_PARTITIONS_SHOWN = 2000  # a ConfigMap holds 1 MiB; an entry is about 200 bytes
MAX_LIST = MAX_LISTED
MAX_MOVING = 10
TASK_PHASES = ("Running", "Snapshotting", "Verifying")
"""The phases of a run in which tasks move or read its records."""


class Document(Model):
    """JSON with the fields in camelCase. Another format, unknown keys and values of another kind are refused."""

    @classmethod
    def _kind(cls) -> StoredDocument:
        return StoredDocument(cls.__name__, 1, {})

    def to_dict(self) -> dict[str, Any]:
        """Return the values by their keys."""
        return {"format": self._kind().format, **self.model_dump(by_alias=True)}

    def to_json(self) -> str:
        """Return the JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the document of a text. Raises DocumentRefused."""
        body = cls._kind().body_of(text)
        try:
            found = cls.model_validate(body, by_alias=True, by_name=False)
        except ValidationError as error:
            raise refused(cls.__name__, error) from error
        # A default must not stand for a fact that is missing: whoever writes a document writes every key.
        if lacking := _missing_key(found):
            raise DocumentRefused(f"{cls.__name__}: no key {lacking}")
        return found


def _missing_key(value: Any) -> str:
    """Return the first key that the JSON of a model, or of models, lacked; empty if it had all."""
    if isinstance(value, tuple):
        return next(filter(None, map(_missing_key, value)), "") if value and isinstance(value[0], BaseModel) else ""
    fields, given = type(value).model_fields, value.model_fields_set
    if len(given) < len(fields):
        return next(str(field.alias) for name, field in fields.items() if name not in given)
    for name, item in value.__dict__.items():
        if isinstance(item, (BaseModel, tuple)) and (found := _missing_key(item)):
            return f"{fields[name].alias}.{found}"
    return ""


def _consent(text: str) -> str:
    if not consent_in(text):
        raise ValueError("must be a consent")
    return text


class RunRequest(Document):
    """One run. `spec` is the resource's spec as written; for a restore `source.backupRef` is already resolved to
    `source.storage`.

    `progress_config_map` is None outside Kubernetes. `spark_conf` holds what the operator sets, the resource's
    `spark.conf` included. `remembered_as` is the name under which the outcome of a restore is found by later resources,
    None if it is not. `topics_config_map` is there if the restore emits its topics. With `reconcile` a backup looks for
    stale keys when all is archived. `requested_by` says what asked for the run, in words: where it comes from an
    annotation, it is a claim by a user who may write the resource. `uid` is the resource's, None on the command line.
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
    spark_conf: dict[str, str] = Field(default={})
    remembered_as: str | None = None
    topics_config_map: str | None = None
    reconcile: bool | None = None
    requested_by: str | None = None
    uid: str | None = None
    anchor: str | None = None
    take_over: str | None = None
    release: bool | None = None


class Progress(Document):
    """A view of a run that is still running. Times are seconds since the epoch; bytes are those of batches.

    `partitions_shown` is complete up to MAX_PARTITIONS_SHOWN, then the ones furthest behind. `moving` are at most
    MAX_MOVING topics. `bytes_per_second` and `seconds_left` go by the last half minute; None while that is not known.
    """

    run_id: Id
    phase: Word  # Starting, Planning, Retrieving, Checking, Running, Snapshotting, Verifying, Finishing
    start_time: Seconds
    update_time: Seconds
    attempt: Count = 1
    topics: Count = 0
    partitions: Count = 0
    partitions_done: Count = 0
    records: Count = 0
    bytes: Count = 0
    offsets_done: Count = 0
    offsets_total: Count = 0
    partitions_shown: tuple[PartitionProgress, ...] = ()
    moving: tuple[TopicProgress, ...] = ()
    bytes_per_second: Count | None = None
    seconds_left: Count | None = None
    executors: Count | None = None  # as many were asked for; 0: the driver does the work itself
    point: Text | None = None  # what the point of a restore gives
    waits: Text | None = None  # what the run waits for

    @property
    def percent(self) -> int:
        """0 to 100 by offsets; 100 when there is nothing to do and that is known."""
        if self.offsets_total == 0:
            return 0 if self.phase in ("Starting", "Planning", "Retrieving", "Checking") else 100
        return min(100, self.offsets_done * 100 // self.offsets_total)


class RunResult(Document):
    """How a run ended. `loss` holds at most MAX_LIST facts, `loss_total` counts all; `loss_offsets` is the sum of
    their lengths. `earlier_run` is the run that has done the same restore before, and `earlier_end` is its end: then
    this run has done nothing, and the facts are those of the earlier one. `requested_by` is that of the request.
    """

    run_id: Id
    kind: Id
    # Succeeded, Failed, DryRun (nothing was written: `dry_run` says what would be), or the verdict of `diff`
    outcome: Word
    exit_code: Count
    start_time: Seconds
    end_time: Seconds
    error_code: Word | Literal[""] = ""
    message: Text = ""
    topics: Count = 0
    partitions: Count = 0
    records: Count = 0
    bytes: Count = 0
    segments: Count = 0
    aborted_records: Count = 0  # of aborted transactions: a restore has left them out
    groups: Count = 0
    archive_id: Id = ""
    cluster_id: Id = ""
    epoch: Count = 0
    commit: Annotated[int, Field(strict=True, ge=-1, le=MAX_INTEGER)] = -1
    loss_total: Count = 0
    loss_offsets: Count = 0
    loss: Listed[LossFact] = ()
    warnings: Items[Text] = ()
    offset_map: Uri = ""  # URI of the folder with a restore's offset maps
    coverage: TopicCoverage | None = None  # a backup that got as far as planning has it
    archive: ArchiveReport | None = None  # a backup that has tried everything has it
    anchor: AnchorText | None = None  # `commit` with its hash, of a run that has written the archive
    taken_over: Annotated[str, AfterValidator(_consent)] | None = (
        None  # the consent that the run was given, once it writes the archive
    )
    earlier_run: Id | None = None
    earlier_end: Seconds | None = None
    verification: VerificationFacts | None = None
    cluster_state: ClusterStateFacts | None = None
    dry_run: DryRunReport | None = None
    drill: DrillFacts | None = None  # a drill that has restored everything has it
    emitted: EmittedFacts | None = None
    held_topics: HeldTopics | None = None  # a restore that holds its topics has it
    reconciled: ReconcileFacts | None = None
    requested_by: str | None = None

    @model_validator(mode="after")
    def _is_the_anchor_of_the_commit(self) -> Self:
        if self.anchor is not None and self.anchor.partition(":")[0] != str(self.commit):
            raise ValueError(f"anchor is {self.anchor!r}, and commit {self.commit}")
        return self

    def to_termination_message(self, limit: int) -> str:
        """Return the JSON, with lists and then facts dropped and the texts cut until it fits `limit` bytes of UTF-8.
        The outcome and what names the run stay."""
        for length in (2000, 500, 100, 0):
            dry_run = None if self.dry_run is None else self.dry_run.without_lists(length)
            short = replace(shortened(self, 0, length), dry_run=dry_run)
            text = short.to_json()
            if len(text.encode()) <= limit:
                return text
        for name, value in short._to_leave_out():
            short = replace(short, **{name: value})
            text = short.to_json()
            if len(text.encode()) <= limit:
                break
        return text

    def _to_leave_out(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that may be missing in a termination message, with their values then, the least important
        first: addresses and names, facts that lie in the archive, too, and at last what a later run compares."""
        yield "requested_by", None
        yield "emitted", None
        yield "offset_map", ""
        for name in ("reconciled", "cluster_state", "verification"):
            facts = getattr(self, name)
            yield name, None if facts is None else replace(facts, report="")
        for name in ("drill", "reconciled", "cluster_state", "coverage", "archive", "held_topics", "dry_run"):
            yield name, None
        yield "verification", None
        yield "earlier_end", None
        yield "earlier_run", None
        yield "taken_over", None
        yield "anchor", None
        yield "cluster_id", ""
        yield "archive_id", ""
