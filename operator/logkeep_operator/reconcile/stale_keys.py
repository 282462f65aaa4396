"""Stale keys of a KafkaBackup: which run looks for them, and what the status says of it."""

from __future__ import annotations

from datetime import datetime, timedelta

from logkeep_engine.contract.cron import CronTimes, parse_zone
from logkeep_engine.contract.facts.outcome import ReconcileFacts
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.spec import KafkaBackupSpec
from logkeep_engine.contract.values import parse_timestamp
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, Status

CONDITION = "StaleKeys"
FOUND, NONE_FOUND = "StaleKeysFound", "NoStaleKeys"
_UNKNOWN = {"KeysMissing": "KeysMissing", "NotCompared": "NotReconciled"}
_SAME = "Same"


def reconciles(status: Status, spec: KafkaBackupSpec | KafkaRestoreSpec, now: datetime) -> bool:
    """Return whether a run that begins now looks for stale keys: a time of the cron expression has come since the last
    one that did. A run that makes the archive has nothing to compare it with."""
    if not isinstance(spec, KafkaBackupSpec) or spec.reconcile is None or status.last_success_time is None:
        return False
    last = parse_timestamp(status.reconcile.end_time) if status.reconcile is not None else None
    if last is None:
        return True
    times = CronTimes.parse(spec.reconcile.cron, parse_zone(spec.reconcile.time_zone))
    return times.latest(min(last, now) + timedelta(seconds=1), now) is not None


def stale_keys_condition(facts: ReconcileFacts) -> Condition:
    """The condition is True if keys are alive in the archive and gone from the cluster, False if all were compared and
    none is."""
    message = cut(f"{facts.message}; report {facts.report}" if facts.report else facts.message)
    if facts.stale:
        return Condition(type=CONDITION, status="True", reason=FOUND, message=message)
    if facts.outcome == _SAME:
        return Condition(type=CONDITION, status="False", reason=NONE_FOUND, message=message)
    return Condition(
        type=CONDITION, status="Unknown", reason=_UNKNOWN.get(facts.outcome, "NotReconciled"), message=message
    )
