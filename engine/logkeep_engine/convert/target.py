"""The target of a conversion: the archive that takes what is converted, and the plans that are stored in it."""

from __future__ import annotations

from collections.abc import Iterator

from logkeep_engine.archive import names
from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.archive.catalog.state import ArchiveState
from logkeep_engine.archive.plans import CONVERT_PLAN_FILE
from logkeep_engine.contract.archive_format import FormatName
from logkeep_engine.convert.plan import ConvertPlan
from logkeep_engine.convert.source import ConvertSource
from logkeep_engine.errors import ArchiveMismatch, ArchiveMissing, ObjectMissing
from logkeep_engine.storage import Storage

KIND = "Convert"


def check_apart(source: ConvertSource, target: Storage) -> None:
    """Raises ArchiveMismatch if source and target lie in one another."""
    here, there = f"{source.storage.uri}/", f"{target.uri}/"
    if here.startswith(there) or there.startswith(here):
        raise ArchiveMismatch(
            f"{target.uri} and the source at {source.storage.uri} are the same folder, or one is inside the other.",
            hint="Name a new folder for the target.",
        )


def find_target(source: ConvertSource, target: Storage, format_name: FormatName) -> Archive | None:
    """Return the archive at `target`, if it was made of this source; None if nothing lies there. Raises ArchiveMismatch
    otherwise."""
    try:
        archive = Archive.open(target)
    except ArchiveMissing:
        found = target.list()
        if found:
            raise ArchiveMismatch(
                f"{target.uri} is not empty: it holds {found[0].path}.", hint="Name a new folder for the target."
            ) from None
        return None
    info = archive.info
    if info.archive_id == source.identity:
        raise ArchiveMismatch(
            f"{target.uri} is the source itself, by another name.", hint="Name a new folder for the target."
        )
    if info.segments is not format_name or info.cluster_id != source.cluster_id or info.imported != source.imported:
        raise ArchiveMismatch(
            f"{target.uri} is an archive of format {info.segments} of Kafka cluster {info.cluster_id}, not of what "
            f"is to be written: format {format_name}, cluster {source.cluster_id}.",
            hint="Name a new folder for the target.",
        )
    made = _other_origin(source, archive)
    if made:
        raise ArchiveMismatch(
            f"The archive at {target.uri} was written by {made}: only an archive made from the same source can "
            "be added to.",
            hint="Name a new folder for the target.",
        )
    return archive


def _other_origin(source: ConvertSource, target: Archive) -> str:
    """Tells who has written the target, other than conversions of this source; "" if nobody has. The last plan is
    enough to tell: each run was checked against the plans before it."""
    state = target.load()
    for run in state.runs.values():
        if not run.is_maintenance and run.kind != KIND:
            return f"run {run.run_id} ({run.kind})"
    last = next(stored_plans(target.storage, state), None)
    return "" if last is None or last.source == source.identity else f"a conversion of {last.source}"


def stored_plans(storage: Storage, state: ArchiveState) -> Iterator[ConvertPlan]:
    """Return the stored plans of the runs of the archive at `storage`, the last one first. A run that has not stored a
    plan has none here. Each plan is read when it is asked for."""
    plans = (stored_plan(storage, run_id) for run_id in reversed(state.runs))
    return (plan for plan in plans if plan is not None)


def stored_plan(storage: Storage, run_id: str) -> ConvertPlan | None:
    """Return the stored plan of a run of the archive at `storage`, None if it has not stored one."""
    path = names.run_file(run_id, CONVERT_PLAN_FILE)
    try:
        data = storage.read(path)
    except ObjectMissing:
        return None
    return ConvertPlan.from_json(data, f"{storage.uri}/{path}")
