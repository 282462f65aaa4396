"""The result of a drill: in the status of its KafkaRestore, and in that of the KafkaBackup whose archive it has proved.

A KafkaBackup shows the drill that has ended last, whichever KafkaRestore it was. The look at the restore writes it
there, and compares first, so it is reported once, and also if the operator was killed in between.
"""

from __future__ import annotations

from datetime import datetime

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.values import human_duration, so_many
from logkeep_engine.contract.visible import cut
from logkeep_operator.api import Condition, DrillStatus, Resource, Status, StatusOutcome
from logkeep_operator.reconcile import conditions
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.outcome import JobOutcome
from logkeep_operator.reconcile.plan import Event, Plan, ReportDrill

CONDITION = "Verified"
DRILL_SUCCEEDED = "DrillSucceeded"
DRILL_FAILED = "DrillFailed"


def is_drill(resource: Resource) -> bool:
    """Return whether the resource is a KafkaRestore that drills."""
    return resource.key.is_restore and isinstance(resource.spec.get("drill"), dict)


def drill_status(resource: Resource, run_id: str, outcome: JobOutcome, end: datetime) -> DrillStatus:
    """Return the end of a drill. A drill that has not come to its measures leaves those of the last one."""
    before = resource.status.drill or DrillStatus()
    good = outcome.outcome is StatusOutcome.SUCCEEDED
    ended = replace(
        before,
        restore=resource.key.name,
        run_id=run_id,
        outcome=outcome.outcome,
        reason=DRILL_SUCCEEDED if good else outcome.reason,
        message=cut(outcome.message),
        end_time=timestamp(end),
        last_good_time=timestamp(end) if good else before.last_good_time,
    )
    facts = outcome.result.drill if outcome.result is not None else None
    if facts is None:
        return ended
    seconds = round(facts.recovery_seconds)
    if good:
        proved = f"{ended.message}; all are those of the archive, restored in {human_duration(seconds)}"
        if facts.cold_segments:
            proved += f"; {so_many(facts.cold_segments, 'segment')} with cold objects were left out and are not proved"
        ended = replace(ended, message=cut(proved))
    if facts.cycle and good:
        text = f"{facts.drilled}/{facts.total}, all partitions within {facts.runs} runs"
        ended = replace(ended, total=facts.total, cycle=facts.cycle, drilled=facts.drilled, runs=facts.runs)
        ended = replace(ended, progress=text, message=cut(f"{ended.message}; drilled {text}"))
    return replace(
        ended,
        recovery_seconds=seconds,
        recovery=human_duration(seconds),
        verified_seconds=round(facts.verified_seconds),
        partitions=facts.partitions,
        records=facts.records,
        bytes=facts.bytes,
        report=facts.report,
    )


def with_drill_reported(observed: Observed, plan: Plan, now: datetime) -> Plan:
    """Return the plan, and what is to be written to the KafkaBackup whose archive the drill has read."""
    resource, backup = observed.resource, observed.backup
    status = plan.status if plan.status is not None else resource.status
    if status.drill is None or backup is None or backup.deleting or _of_another_archive(status, backup.status):
        return plan
    if backup.key.namespace != resource.key.namespace:
        return plan  # a KafkaBackup of another namespace is not written to
    known = backup.status.drill
    if known is not None and _order(known) > _order(status.drill):
        return plan  # another one has ended later
    times = [drill.last_good_time for drill in (known, status.drill) if drill is not None and drill.last_good_time]
    drill = replace(status.drill, last_good_time=max(times, default=None))
    if drill == known:
        return plan
    good = drill.outcome is StatusOutcome.SUCCEEDED
    message = f"KafkaRestore {drill.restore}, run {drill.run_id}: {drill.message}"
    condition = Condition(
        type=CONDITION,
        status="True" if good else "False",
        reason=drill.reason or DRILL_FAILED,
        message=cut(message),
    )
    merged = conditions.merge(backup.status, [condition], backup.generation, now)
    # The others keep their places, so that the backup's own look has nothing to write.
    placed = (*(one for one in merged if one.type != CONDITION), *(one for one in merged if one.type == CONDITION))
    event = Event("Normal" if good else "Warning", DRILL_SUCCEEDED if good else DRILL_FAILED, condition.message)
    written = replace(backup.status, drill=drill, conditions=placed)
    return replace(plan, drilled=ReportDrill(backup, written, replace(event, run_id=drill.run_id or "")))


def _of_another_archive(restore: Status, backup: Status) -> bool:
    ids = {status.archive.id for status in (restore, backup) if status.archive is not None and status.archive.id}
    return len(ids) > 1


def _order(drill: DrillStatus) -> tuple[str, str]:
    return drill.end_time or "", drill.restore or ""
