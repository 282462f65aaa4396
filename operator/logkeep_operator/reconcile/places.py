"""The place of an archive when a spec names a KafkaArchive: the API server cannot compare the storage that a reference
leads to with the one before."""

from __future__ import annotations

from logkeep_engine.contract.names import KAFKA_ARCHIVE
from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_operator.api import Resource, StatusOutcome
from logkeep_operator.api.archive import path_of, storage_of
from logkeep_operator.reconcile.runs import is_dry_run
from logkeep_operator.resources import NotAllowed


def check_place(resource: Resource) -> None:
    """Raises SpecInvalid if the spec leads to another place than the one of the archive that the resource has begun to
    write, or to restore."""
    storage, known = storage_of(resource), resource.status.archive
    if storage is None or known is None or known.uri is None or not _is_bound(resource):
        return
    uri = str(storage.get("uri", ""))
    if known.is_at(uri):
        return
    if resource.key.is_backup:
        why = "an archive belongs to one KafkaBackup; create another KafkaBackup"
    else:
        why = "a restore has one source; create another KafkaRestore"
    where = f"KafkaArchive {resource.archive_ref!r}: {uri}" if resource.archive_ref is not None else uri
    field = "archiveRef" if resource.archive_ref is not None else "storage.uri"
    raise SpecInvalid(
        [(path_of(resource, field), f"{where} is another place than {known.uri}, where the archive is: {why}")]
    )


def _is_bound(resource: Resource) -> bool:
    """Return whether there is something at the place before: an archive, or a run that may be writing one, or that has
    restored from one. A dry run leaves nothing."""
    run, archive = resource.status.run, resource.status.archive
    if archive is not None and archive.id is not None:
        return resource.key.is_backup or (run is not None and not is_dry_run(run.key))
    if run is None or is_dry_run(run.key):
        return False
    # A driver that was killed has reported records, and no archive.
    wrote = any(entry.records for entry in resource.status.history if entry.outcome != StatusOutcome.DRY_RUN)
    return resource.key.is_restore or run.outcome in (None, StatusOutcome.REPLACED) or wrote


def of_archive(resource: Resource, error: SpecInvalid) -> SpecInvalid:
    """Return the error, whose problems name the KafkaArchive for what its spec says."""
    if resource.archive_ref is None:
        return error
    field, named = path_of(resource, "storage"), path_of(resource, "archiveRef")
    problems = [
        (named, f"{KAFKA_ARCHIVE} {resource.archive_ref!r}: spec.storage{path.removeprefix(field)}: {what}")
        if path == field or path.startswith(f"{field}.")
        else (path, what)
        for path, what in error.problems
    ]
    return NotAllowed(problems) if isinstance(error, NotAllowed) else SpecInvalid(problems)
