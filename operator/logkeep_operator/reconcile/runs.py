"""The run that a resource wants. Everything else follows from the run's id, and two reconciliations compute the same
one.

A KafkaRestore wants one run for ever, whose id depends on the uid only. A KafkaBackup wants another run when a part of
its spec changes that decides what is archived, or when the annotation `logkeep.dev/run` gets a new value. `key` is the
hash of these inputs. The id also depends on the run before, since a spec that is changed back means another run with
another plan.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from logkeep_engine.contract.spec import KafkaBackupSpec, KafkaRestoreSpec
from logkeep_operator.api import Resource, StatusOutcome

_ID_LENGTH = 10
_TRIGGER_LENGTH = 6
_NOT_INPUTS = {"suspend", "run_policy", "spark", "limits", "retention"}


@dataclass(frozen=True)
class WantedRun:
    """The run that a resource wants. `inputs` is the part of `key` that comes from the spec."""

    id: str
    key: str
    inputs: str
    trigger: str | None = None


def wanted_run(resource: Resource, spec: KafkaBackupSpec | KafkaRestoreSpec) -> WantedRun:
    """The run that the resource asks for now."""
    if isinstance(spec, KafkaRestoreSpec):
        run_id = _hash(resource.uid)[:_ID_LENGTH]
        return WantedRun(run_id, run_id, run_id)
    # Fields that have their default are left out: a field that a later version adds must not start runs.
    said = spec.model_dump(mode="json", by_alias=True, exclude=_NOT_INPUTS, exclude_defaults=True)
    inputs = _hash(resource.uid, json.dumps(said, sort_keys=True))[:_ID_LENGTH]
    # An annotation that was taken away asks for nothing new.
    trigger = resource.trigger if resource.trigger is not None else resource.status.last_handled_run
    key = f"{inputs}.{_hash(trigger)[:_TRIGGER_LENGTH]}" if trigger else inputs
    last = resource.status.run
    if last is not None and last.key == key and last.outcome is not StatusOutcome.REPLACED:
        return WantedRun(last.id, key, inputs, trigger)
    return WantedRun(_hash(resource.uid, key, last.id if last else "")[:_ID_LENGTH], key, inputs, trigger)


def inputs_of(key: str) -> str:
    """The part of a run's key that comes from the spec."""
    return key.partition(".")[0]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
