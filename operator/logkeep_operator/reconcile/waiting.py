"""Reasons why a run cannot be started yet, and the place of its archive, which may be such a reason."""

from __future__ import annotations

from dataclasses import dataclass

from logkeep_engine.contract.checks import state_problems, storage_problems
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec, parse_backup
from logkeep_engine.contract.storage import ArchiveSpec
from logkeep_operator.api import Phase, Resource, Status
from logkeep_operator.api.archive import path_of
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.resources.allowed import NotAllowed, endpoint_problems, inline_problems
from logkeep_operator.settings import EngineSettings

BACKUP_RECHECK_SECONDS = 15.0
ARCHIVE_NOT_FOUND = "ArchiveNotFound"


@dataclass(frozen=True)
class Waiting(Exception):
    """The run cannot be started yet. `reason` and `message` are for the status in the meantime. `warn` makes an event
    of it, since a user may have to help. `requeue_after` is in seconds, None waits for an event. `stalled`: it cannot
    be started until something is changed."""

    reason: str
    message: str
    warn: bool
    requeue_after: float | None
    stalled: bool = False


def archive_place(
    observed: Observed, spec: KafkaBackupSpec | KafkaRestoreSpec, engine: EngineSettings, *, begun: bool
) -> tuple[ArchiveSpec, dict[str, object]]:
    """Return the archive's place, typed and as written. A restore that has `begun` does not ask whether its backup has
    succeeded. Raises Waiting when a backupRef or an archiveRef leads nowhere."""
    resource = observed.resource
    if isinstance(spec, KafkaBackupSpec):
        if spec.storage is None:
            raise archive_not_found(resource)
        return spec.storage, dict(resource.spec["storage"])
    if spec.source.archive_ref is not None:
        raise archive_not_found(resource)
    if spec.source.storage is not None:
        return spec.source.storage, dict(resource.spec["source"]["storage"])
    name = spec.source.backup_ref.name if spec.source.backup_ref is not None else ""
    backup = observed.backup
    if backup is None:
        message = f"spec.source.backupRef: there is no KafkaBackup {name!r} in namespace {resource.key.namespace}."
        raise Waiting("BackupNotFound", message, True, BACKUP_RECHECK_SECONDS)
    try:
        storage = parse_backup(backup.spec).storage
        if storage is None:
            raise archive_not_found(backup, f"spec.source.backupRef: KafkaBackup {name!r}: ")
        problems = storage_problems("spec.storage", storage)
        if problems:
            raise SpecInvalid(problems)
    except SpecInvalid as error:
        raise _backup_invalid(name, str(error)) from error
    problems = endpoint_problems("spec.storage", storage, engine)
    if problems := [*problems, *inline_problems("spec.storage", backup, engine)]:
        message = f"spec.source.backupRef: KafkaBackup {name!r} is not allowed: {NotAllowed(problems)}"
        raise Waiting("NotAllowed", message, True, BACKUP_RECHECK_SECONDS, stalled=True)
    if problems := state_problems(storage, spec.state):
        raise Waiting("InvalidSpec", str(SpecInvalid(problems)), True, BACKUP_RECHECK_SECONDS, stalled=True)
    if backup.status.last_success_time is None and not begun:
        if backup.status.phase is Phase.INVALID and backup.status.observed_generation == backup.generation:
            ready = backup.status.condition("Ready")
            raise _backup_invalid(name, "it has not succeeded yet" if ready is None else ready.message)
        raise Waiting("WaitingForBackup", _not_succeeded(name, backup.status), False, BACKUP_RECHECK_SECONDS)
    return storage, dict(backup.spec["storage"])


def archive_not_found(resource: Resource, where: str = "") -> Waiting:
    """Return what a resource waits for whose spec names a KafkaArchive that is not there."""
    field, namespace = path_of(resource, "archiveRef"), resource.key.namespace
    message = f"{where}{field}: there is no KafkaArchive {resource.archive_ref!r} in namespace {namespace}."
    return Waiting(ARCHIVE_NOT_FOUND, message, True, BACKUP_RECHECK_SECONDS)


def _backup_invalid(name: str, why: str) -> Waiting:
    message = f"spec.source.backupRef: KafkaBackup {name!r} is invalid: {why}"
    return Waiting("BackupInvalid", message, True, BACKUP_RECHECK_SECONDS, stalled=True)


def _not_succeeded(name: str, backup: Status) -> str:
    phase = f" ({backup.phase.value})" if backup.phase is not None else ""
    return (
        f"spec.source.backupRef: KafkaBackup {name!r} has not succeeded yet{phase}; the restore begins when it has. An "
        "archive that another KafkaBackup has written, or one whose backups fail, is restored by another KafkaRestore, "
        "with spec.source.storage."
    )
