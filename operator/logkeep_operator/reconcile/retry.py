"""A retry of a restore that has failed, for which the annotation `logkeep.dev/retry` asks.

The run keeps its id: by it the engine finds the run's plan, and the target recognises what it already has. The Job
keeps its name with it, so the operator first deletes what is left of the last Job: the Job itself, its pods, and its
documents. Their result would be taken for that of the next Job.
"""

from __future__ import annotations

from datetime import datetime

from logkeep_engine.contract.facts.values import timestamp
from logkeep_engine.contract.model import replace
from logkeep_operator.api import Resource, RunStatus, StatusOutcome
from logkeep_operator.api.resource import ANNOTATION_RETRY, ANNOTATION_RUN, ANNOTATION_RUN_AGAIN
from logkeep_operator.reconcile.observed import Observed
from logkeep_operator.reconcile.plan import Action, DeleteConfigMap, DeleteJob

NOT_STARTED = 0
"""The attempt of a run that is to continue and has no Job yet."""


def is_asked(resource: Resource) -> bool:
    """Return whether the last run has failed and the annotation has a value that was not answered yet. A value that
    came while the run continued counts; one that was there when it was started does not."""
    run = resource.status.run
    if not resource.key.is_restore or run is None or run.outcome is not StatusOutcome.FAILED:
        return False
    return bool(resource.retry) and resource.retry != resource.status.last_handled_retry


def hint(resource: Resource) -> str:
    """Return a sentence that says how a failed run is started again. It is empty for a KafkaBackup, whose next run
    continues anyway."""
    if not resource.key.is_restore:
        return ""
    _, namespace, name = resource.key
    asks = f"kubectl -n {namespace} annotate krst {name} {ANNOTATION_RETRY}=<a new value> --overwrite"
    return f" To continue this run: {asks}"


def hint_again(resource: Resource) -> str:
    """Return a sentence that says how a restore that was done before is done once more."""
    _, namespace, name = resource.key
    asks = f"kubectl -n {namespace} annotate krst {name} {ANNOTATION_RUN_AGAIN}=<a new value> --overwrite"
    return f". To restore once more: {asks}"


def hint_compare(resource: Resource) -> str:
    """Return the message for a restore that was made while its CRD lacked fields: how it is looked at, and how it
    begins."""
    _, namespace, name = resource.key
    return (
        "This KafkaRestore was created while its CRD lacked fields, and the API server may have dropped some of its "
        f"spec, such as dryRun. Compare it with yours: kubectl -n {namespace} get krst {name} -o yaml. If it lacks "
        "something, delete it and create it again. To start it as it is: "
        f"kubectl -n {namespace} annotate krst {name} {ANNOTATION_RUN_AGAIN}=<a new value> --overwrite"
    )


def hint_begin(resource: Resource) -> str:
    """Return a sentence that says how the run begins that a dry run has described."""
    _, namespace, name = resource.key
    patch = f'kubectl -n {namespace} patch {_short(resource)} {name} --type merge -p \'{{"spec":{{"dryRun":false}}}}\''
    return f". To do it: {patch}"


def hint_look_again(resource: Resource) -> str:
    """Return a sentence that says how a dry run is repeated, when what it has found is repaired."""
    _, namespace, name = resource.key
    annotation = ANNOTATION_RETRY if resource.key.is_restore else ANNOTATION_RUN
    asks = f"kubectl -n {namespace} annotate {_short(resource)} {name} {annotation}=<a new value> --overwrite"
    return f". To look again: {asks}"


def _short(resource: Resource) -> str:
    return "krst" if resource.key.is_restore else "kbak"


def leftovers(observed: Observed, run_id: str) -> list[Action]:
    """Return the parts of the last Job that are to be deleted."""
    found = observed.jobs.get(run_id)
    deleted: list[Action] = [DeleteJob(found.name, found.uid)] if found is not None and not found.deleting else []
    documents = observed.documents.get(run_id)
    if documents is not None:
        deleted += [DeleteConfigMap(name) for name in documents.config_maps]
    return deleted


def is_clear(observed: Observed, run_id: str) -> bool:
    """Return whether nothing of the last Job is left. Its pods go with it."""
    left = run_id in observed.jobs or run_id in observed.documents
    return not left and all(pod.run_id != run_id for pod in observed.pods)


def renewed(run: RunStatus, now: datetime) -> RunStatus:
    """Return the run as one that continues and has no Job yet."""
    begun = replace(run, attempt=NOT_STARTED, start_time=timestamp(now), heard_time=None)
    return replace(begun, end_time=None, outcome=None, exit_code=None, message=None)


def hint_inspect(resource: Resource, uri: str) -> str:
    """Return the end of the message of a backup that has succeeded: where its archive is, and how to look into it."""
    key = resource.key
    return f"; archived in {uri}. To look into it: kubectl logkeep inspect kbak/{key.name} -n {key.namespace}"
