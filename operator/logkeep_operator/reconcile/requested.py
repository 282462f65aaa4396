"""Words for what asked for a run: `requestedBy` of its request, its result and the status, and in an event.

The operator knows which input was new when it started the run. It does not know who wrote the input. The value of an
annotation is a claim by a user who may write the resource; the API server's audit log knows the user.
"""

from __future__ import annotations

from logkeep_engine.contract.names import BACKUP_RUN
from logkeep_engine.contract.visible import visible
from logkeep_operator.api import Resource, Status
from logkeep_operator.api.resource import ANNOTATION_RUN, ANNOTATION_RUN_AGAIN
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.runs import WantedRun

MAX_CLAIM = 128
"""Characters of an annotation's value that are kept."""
_MAX_NAMED = 5


def requested_by(observed: Observed, wanted: WantedRun) -> str:
    """Return the words for it: the reasons that are new, or the resource's spec if none of them is."""
    resource, before = observed.resource, observed.resource.status
    found = [
        *_annotation(resource, before, wanted),
        *_asked(observed, before, wanted),
        *_schedule(resource, before, wanted),
    ]
    return ", ".join(found) or f"spec of {resource.key.kind} {resource.key.namespace}/{resource.key.name}"


def _annotation(resource: Resource, before: Status, wanted: WantedRun) -> list[str]:
    handled = before.last_handled_run if resource.key.is_backup else before.last_handled_run_again
    if not wanted.trigger or wanted.trigger == handled:
        return []
    name = ANNOTATION_RUN if resource.key.is_backup else ANNOTATION_RUN_AGAIN
    claim = visible(wanted.trigger)
    return [f"annotation {name}: {claim if len(claim) <= MAX_CLAIM else claim[: MAX_CLAIM - 1] + '…'}"]


def _asked(observed: Observed, before: Status, wanted: WantedRun) -> list[str]:
    if wanted.asked is None or wanted.asked == before.last_handled_backup_runs:
        return []
    namespace = observed.resource.key.namespace
    waiting = sorted(f"{BACKUP_RUN} {namespace}/{one.name}" for one in observed.asked if one.pending)
    more = [f"{len(waiting) - _MAX_NAMED} more"] if len(waiting) > _MAX_NAMED else []
    return [*waiting[:_MAX_NAMED], *more]


def _schedule(resource: Resource, before: Status, wanted: WantedRun) -> list[str]:
    if wanted.scheduled is None or wanted.scheduled == before.last_schedule_time:
        return []
    return [f"schedule of {resource.key.kind} {resource.key.namespace}/{resource.key.name}, due {wanted.scheduled}"]
