"""The run that a resource requests. Everything else follows from the run's id, and two reconciliations compute the same
one.

A KafkaRestore needs one run forever, whose id depends on the uid only, unless a new value of the annotation
`logkeep.dev/run-again` asks for another one, or a time of the schedule of its drill is due. A KafkaBackup needs another
run when a part of its spec changes that decides what is archived, when the annotation `logkeep.dev/run` gets a new
value, when a time of its schedule is due, or when a KafkaBackupRun asks for it. `key` says these inputs: hashes and the
time. The id also depends on the run before, since a spec that is changed back means another run with another plan.

A dry run is another run than the one it is for. A KafkaRestore with `dryRun: true` needs one for each spec that it has
had, and for each value of `logkeep.dev/retry`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_operator.api import Resource, StatusOutcome

_ID_LENGTH = 10
_TRIGGER_LENGTH = 6
_NOT_INPUTS = {
    *("suspend", "schedule", "run_policy", "spark", "limits"),
    *("snapshots", "generations", "retention", "reconcile"),
}
_NO_INPUTS_OF_DRY_RUN = {"suspend", "run_policy", "spark"}
_DRY_RUN = "dryRun"  # the last part of the key of a dry run
_RELEASE = "release"


@dataclass(frozen=True)
class WantedRun:
    """The run that a resource requests. `inputs` is the part of `key` that comes from the spec. `trigger` is the value
    of the annotation that asked for the run: `logkeep.dev/run`, or `logkeep.dev/run-again` of a restore. `scheduled` is
    the time of the schedule for which this or an earlier run was started last, `requested` the hash of the
    KafkaBackupRuns."""

    id: str
    key: str
    inputs: str
    trigger: str | None = None
    scheduled: str | None = None
    requested: str | None = None


def wanted_run(
    resource: Resource,
    spec: KafkaBackupSpec | KafkaRestoreSpec,
    due: datetime | None = None,
    waiting: str | None = None,
) -> WantedRun:
    """Return the run that the resource asks for now. `due` is the time of its schedule that has come, if one has,
    `waiting` the hash of the KafkaBackupRuns for which no run was started yet, if there are some."""
    if isinstance(spec, KafkaRestoreSpec):
        return _wanted_dry_run(resource, spec) if spec.dry_run else _wanted_restore(resource, due)
    # Fields that have their default are left out: a field that a later version adds must not start runs.
    said = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_INPUTS, exclude_defaults=True)
    inputs = _hash(resource.uid, json.dumps(said, sort_keys=True))[:_ID_LENGTH]
    last = resource.status.run
    if spec.storage is None and last is not None:
        inputs = inputs_of(last.key)  # whether the archive is another one is unknown as long as its place is
    # An annotation that was taken away asks for nothing new.
    trigger = resource.trigger if resource.trigger is not None else resource.status.last_handled_run
    # A schedule that was taken away asks for nothing new, either.
    scheduled = timestamp(due) if due is not None else resource.status.last_schedule_time
    requested = waiting if waiting is not None else resource.status.last_handled_backup_runs
    asks = (_hash(trigger)[:_TRIGGER_LENGTH] if trigger else "", scheduled or "", requested or "")
    parts = (*asks, _DRY_RUN if spec.dry_run else "")
    key = ".".join([inputs, *(part for part in parts if part)])
    return WantedRun(_id_after(resource, key), key, inputs, trigger, scheduled, requested)


def _id_after(resource: Resource, key: str) -> str:
    """Return the id of the run with this key: that of the last run if it had the same key, or else another one."""
    last = resource.status.run
    if last is not None and last.key == key and last.outcome is not StatusOutcome.REPLACED:
        return last.id
    return _hash(resource.uid, key, last.id if last else "")[:_ID_LENGTH]


def _wanted_dry_run(resource: Resource, spec: KafkaRestoreSpec) -> WantedRun:
    """Return the dry run of a restore. It may be left for another at any time, since it has written nothing."""
    status = resource.status
    again = resource.run_again if resource.run_again is not None else status.last_handled_run_again
    retry = resource.retry if resource.retry is not None else status.last_handled_retry
    said = spec.model_dump(mode="json", by_alias=True, exclude=_NO_INPUTS_OF_DRY_RUN, exclude_defaults=True)
    inputs = _hash(resource.uid, json.dumps(said, sort_keys=True), again or "", retry or "")[:_ID_LENGTH]
    key = f"{inputs}.{_DRY_RUN}"
    return WantedRun(_id_after(resource, key), key, inputs, again)


def is_dry_run(key: str | None) -> bool:
    """Return whether a run of this key only finds out what it would do."""
    return key is not None and key.endswith(f".{_DRY_RUN}")


def _wanted_restore(resource: Resource, due: datetime | None) -> WantedRun:
    """Return the run of a restore. One that is still running is not left for another: only it knows what it has
    written. A drill has another run for each time of its schedule."""
    last, requested = resource.status.run, resource.run_again
    goes_on = last is not None and last.outcome is None and not is_dry_run(last.key)
    again = resource.status.last_handled_run_again if goes_on or requested is None else requested
    scheduled = timestamp(due) if due is not None else resource.status.last_schedule_time
    parts = ([again] if again else []) + (["scheduled", scheduled] if scheduled else [])
    run_id = _hash(resource.uid, *parts)[:_ID_LENGTH]
    return WantedRun(run_id, run_id, run_id, again, scheduled)


def release_key(run_id: str, release_time: str, failures: int) -> str:
    """Return the key of a Job that releases the topics which a run holds: another one for each time, and after each
    failure. The run has the id, the Job and the documents that it had when it restored them."""
    return f"{run_id}.{_RELEASE}.{release_time}.{failures}"


def is_release(key: str | None) -> bool:
    """Return whether a Job of this key releases topics."""
    return key is not None and f".{_RELEASE}." in key


def inputs_of(key: str) -> str:
    """Return the part of a run's key that comes from the spec."""
    return key.partition(".")[0]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
