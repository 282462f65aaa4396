"""The run that a resource wants. Everything else follows from the run's id, and two reconciliations compute the same
one.

A KafkaRestore wants one run for ever, whose id depends on the uid only, unless a new value of the annotation
`logkeep.dev/run-again` asks for another one, or a time of the schedule of its drill is due. A KafkaBackup wants another
run when a part of its spec changes that decides what is archived, when the annotation `logkeep.dev/run` gets a new
value, when a time of its schedule is due, or when a KafkaBackupRun asks for it. `key` says these inputs: hashes and the
time. The id also depends on the run before, since a spec that is changed back means another run with another plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import datetime

from logkeep_engine.contract.spec import KafkaBackupSpec, KafkaRestoreSpec
from logkeep_operator.api import Resource, StatusOutcome
from logkeep_operator.api.status import timestamp

_ID_LENGTH = 10
_TRIGGER_LENGTH = 6
_NOT_INPUTS = {"suspend", "schedule", "run_policy", "spark", "limits", "retention"}


@dataclass(frozen=True)
class WantedRun:
    """The run that a resource wants. `inputs` is the part of `key` that comes from the spec. `trigger` is the value of
    the annotation that asked for the run: `logkeep.dev/run`, or `logkeep.dev/run-again` of a restore. `scheduled` is
    the time of the schedule for which this or an earlier run was started last, `asked` the hash of the
    KafkaBackupRuns."""

    id: str
    key: str
    inputs: str
    trigger: str | None = None
    scheduled: str | None = None
    asked: str | None = None


def wanted_run(
    resource: Resource,
    spec: KafkaBackupSpec | KafkaRestoreSpec,
    due: datetime | None = None,
    waiting: str | None = None,
) -> WantedRun:
    """The run that the resource asks for now. `due` is the time of its schedule that has come, if one has, `waiting`
    the hash of the KafkaBackupRuns for which no run was started yet, if there are some."""
    if isinstance(spec, KafkaRestoreSpec):
        return _wanted_restore(resource, due)
    # Fields that have their default are left out: a field that a later version adds must not start runs.
    said = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_INPUTS, exclude_defaults=True)
    inputs = _hash(resource.uid, json.dumps(said, sort_keys=True))[:_ID_LENGTH]
    # An annotation that was taken away asks for nothing new.
    trigger = resource.trigger if resource.trigger is not None else resource.status.last_handled_run
    # A schedule that was taken away asks for nothing new, either.
    scheduled = timestamp(due) if due is not None else resource.status.last_schedule_time
    asked = waiting if waiting is not None else resource.status.last_handled_backup_runs
    parts = (_hash(trigger)[:_TRIGGER_LENGTH] if trigger else "", scheduled or "", asked or "")
    key = ".".join([inputs, *(part for part in parts if part)])
    last = resource.status.run
    if last is not None and last.key == key and last.outcome is not StatusOutcome.REPLACED:
        return WantedRun(last.id, key, inputs, trigger, scheduled, asked)
    run_id = _hash(resource.uid, key, last.id if last else "")[:_ID_LENGTH]
    return WantedRun(run_id, key, inputs, trigger, scheduled, asked)


def _wanted_restore(resource: Resource, due: datetime | None) -> WantedRun:
    """The run of a restore. One that goes on is not left for another: what it has written only it knows. A drill has
    another run for each time of its schedule."""
    last, asked = resource.status.run, resource.run_again
    goes_on = last is not None and last.outcome is None
    again = resource.status.last_handled_run_again if goes_on or asked is None else asked
    scheduled = timestamp(due) if due is not None else resource.status.last_schedule_time
    parts = ([again] if again else []) + (["scheduled", scheduled] if scheduled else [])
    run_id = _hash(resource.uid, *parts)[:_ID_LENGTH]
    return WantedRun(run_id, run_id, run_id, again, scheduled)


def inputs_of(key: str) -> str:
    """The part of a run's key that comes from the spec."""
    return key.partition(".")[0]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
