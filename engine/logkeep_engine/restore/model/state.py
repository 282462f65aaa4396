"""The state that a restore needs to continue: objects in `runs/<run id>/` below `spec.state`, by default next to the
archive.

The archive is only read, so credentials that cannot write to it suffice if the state has a place of its own. If that
place cannot be written, the restore says so before it does anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.claim import ArchiveClaim, anchor_of
from logkeep_engine.archive.catalog.signed_documents import SigningStorage
from logkeep_engine.archive.names import RUNS, check_run_id, run_file
from logkeep_engine.contract import restore_spec as specs
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import BACKUP, KAFKA_ARCHIVE, STATE_KEYS
from logkeep_engine.contract.run import RunResult
from logkeep_engine.contract.storage import ArchiveSpec, StorageSpec
from logkeep_engine.contract.stored import DocumentRefused, StoredDocument
from logkeep_engine.errors import ArchiveMismatch, ObjectMissing, SpecError, StateAltered, StateRefused, StorageRefused
from logkeep_engine.storage import Storage, open_storage

PLAN = "restore-plan.json"
STARTED = "started.json"
_START = StoredDocument("note of a start", 1, {"runId": str, "archiveId": str, "time": int})
RESULT = "result.json"
OFFSET_MAPS = "offset-maps"
COUNTED = "counted.json"
COUNTED_NOTE = StoredDocument("note of what was counted", 1, {"partitions": int, "topicIds": {str: str}})
ALL_BUT_USERS = "all-but-users.json"
ACLS_SENT = "acls-sent.json"
HELD_NOTE = "held-topics.json"

ALTERED = (
    "The object was altered, or belongs to another restore. Find out who can write to the place of the state, and give "
    "it its own bucket (spec.state). Then start the restore under another run id."
)
"""The hint of an error about an object that the spec, the archive or the cluster does not bear out."""

_Read = TypeVar("_Read")
_READS_AT_ONCE = 32


@dataclass(frozen=True)
class RestoreState:
    """The objects of one run's state. `beside`: they lie next to the archive."""

    storage: Storage
    run_id: str
    beside: bool = True

    def file(self, name: str) -> str:
        """Return the path of an object of the run. Raises ValueError for a run id that cannot be part of one."""
        return run_file(self.run_id, name)

    def name(self, name: str) -> str:
        """Return the same with the storage's URI, for messages."""
        return f"{self.storage.uri}/{self.file(name)}"

    @property
    def folder(self) -> str:
        """The folder of the run."""
        return f"{RUNS}{self.run_id}/"

    @property
    def maps_folder(self) -> str:
        """The folder of the run's offset maps."""
        return f"{self.file(OFFSET_MAPS)}/"

    def map_path(self, topic: str, partition: int) -> str:
        """Return the path of the offset map of a target partition, or of an archived one whose records go to
        several."""
        return self.file(f"{OFFSET_MAPS}/{topic}/{partition}.json")

    def read_all(self, folder: str, read: Callable[[str], _Read]) -> list[_Read]:
        """`read` called with the path of each object of a folder of the run, many at once."""
        paths = [info.path for info in self.storage.list(folder)]
        with ThreadPoolExecutor(_READS_AT_ONCE, thread_name_prefix="logkeep-state") as pool:
            return list(pool.map(read, paths))

    def of_run(self, run_id: str) -> RestoreState:
        """Return the state of another run in the same place."""
        return replace(self, run_id=run_id)

    def success(self) -> RunResult | None:
        """Return the result of the run if it says that it has succeeded. Raises ArchiveMismatch, and StateAltered for
        the result of another run."""
        result = self.result_in(RESULT)
        if result is None or result.outcome != "Succeeded":
            return None
        try:
            check_run_id(result.earlier_run or self.run_id)
        except ValueError:
            result = replace(result, run_id="")
        if result.run_id != self.run_id:
            raise StateAltered(f"{self.name(RESULT)}: it is not a result of run {self.run_id}", hint=ALTERED)
        return result

    def result_in(self, name: str) -> RunResult | None:
        """Return the result that an object of the run has, None if there is no such object. Raises ArchiveMismatch."""
        try:
            return RunResult.from_json(self.storage.read(self.file(name)))
        except ObjectMissing:
            return None
        except DocumentRefused as error:
            raise ArchiveMismatch(
                f"{self.name(name)}: this version cannot read it: {error}",
                hint="Use the version of Logkeep that wrote it, or a newer one. If that cannot read it either, the "
                "object was altered.",
            ) from error

    def is_planned(self) -> bool:
        """Return whether the run has stored its plan. Before that it writes nothing to Kafka."""
        return bool(self.storage.list(self.file(PLAN)))

    def begin(self, archive: Archive) -> None:
        """Note that the run was started. Raises StateRefused if nothing can be written here, and as
        `refuse_begun_beside`.
        """
        self.refuse_begun_beside(archive)
        note = {"runId": self.run_id, "archiveId": archive.info.archive_id, "time": int(time.time())}
        try:
            self.storage.put(self.file(STARTED), _START.dumps(note))
        except StorageRefused as error:
            if self.beside:
                where, hint = (
                    "next to the archive",
                    "Name a storage that may be written in spec.state: the archive is only read then.",
                )
            else:
                where, hint = "in spec.state", error.hint
            raise StateRefused(f"The restore cannot keep its state {where}: {error.message}", hint=hint) from error

    def refuse_begun_beside(self, archive: Archive) -> None:
        """Raises SpecError if the run was begun with its state next to the archive, and that state was not moved
        here."""
        if not self.beside and self._is_begun_beside(archive.storage):
            raise SpecError(
                f"spec.state: run {self.run_id} was started without it, with {archive.storage.uri}/{self.file(PLAN)}",
                hint=f"Leave spec.state out, copy runs/{self.run_id}/ there, or give this restore another run id.",
            )

    def _is_begun_beside(self, archive: Storage) -> bool:
        """Return whether the plan of the run lies next to the archive and not here. If the same plan is here, it is a
        copy, or this is the same place by another name.
        """
        path = self.file(PLAN)
        if not archive.list(path):
            return False
        return not self.storage.list(path) or self.storage.read(path) != archive.read(path)


def archive_place(spec: specs.KafkaRestoreSpec) -> ArchiveSpec:
    """Return the storage of the restore's archive. Raises SpecError if the spec still names a KafkaBackup or a
    KafkaArchive instead."""
    if spec.source.storage is None:
        field, kind = ("archiveRef", KAFKA_ARCHIVE) if spec.source.backup_ref is None else ("backupRef", BACKUP)
        raise SpecError(
            f"spec.source.{field}: only the operator can look up a {kind}",
            hint=f"Write spec.source.storage, as in the {kind}'s spec.storage.",
        )
    return spec.source.storage


def archive_to_restore(spec: specs.KafkaRestoreSpec, environ: Mapping[str, str], anchor: str | None = None) -> Archive:
    """Return the archive of the restore, in a place that answers. It must have the commit that the spec names; if it
    names none, that of `anchor`. Raises SpecError as `archive_place`, and what the storage raises."""
    claim = ArchiveClaim(anchor_of(spec.source.expect_commit or anchor))
    storage = open_storage(archive_place(spec), environ)
    storage.check()
    return Archive.open(storage, claim)


def open_state(run_id: str, spec: specs.KafkaRestoreSpec, archive: Archive, environ: Mapping[str, str]) -> RestoreState:
    """Return the state of the run, in a place that answers."""
    if spec.state is None:
        return RestoreState(archive.storage, run_id)
    if spec.state.credentials is not None:
        storage = open_storage(spec.state, environ, secret_keys=STATE_KEYS)
    else:  # the credentials of the archive are those of the state, unchecked: a folder takes no notice of them
        credentials = archive_place(spec).credentials
        storage = open_storage(spec.state.model_copy(update={"credentials": credentials}), environ)
    storage.check()
    signing = SigningStorage(storage, archive.keys, archive.info.archive_id)
    return RestoreState(signing, run_id, beside=_place(spec.state) == _place(spec.source.storage))


def _place(storage: StorageSpec | None) -> tuple[str, str] | None:
    return None if storage is None else (storage.uri.rstrip("/"), (storage.endpoint or "").rstrip("/"))


def counted_ids(state: RestoreState) -> dict[str, str]:
    """Return the ids of the created topics in which an earlier start has counted, as far as brokers had reported
    them."""
    try:
        found: dict[str, str] = COUNTED_NOTE.loads(state.storage.read(state.file(COUNTED)))["topicIds"]
    except (DocumentRefused, ObjectMissing):
        return {}  # what it does not say is counted again
    return found
