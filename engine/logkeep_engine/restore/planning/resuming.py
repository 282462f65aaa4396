"""A restore that continues one that another resource has begun (`ifTopicExists: Resume`).

Every run that has a plan notes its id in `runs/begun-<digest>/restore.json` in place of its state. The digest is
over everything that decides what is restored to where, the archive and the Kafka cluster. What happens to topics that
are there is not among it, and neither is the name of the resource. The newest run that has planned is the one that is
noted.

A run that resumes takes over the plan of that run: the producer ids, the ends of existing topics, the ids of topics
that are replaced. So it finds in the target what that run has written, as a later start of that run would. The offset
maps of partitions that are done come along, and so do the positions that consumer groups had before. From then on it
is a run as any other.

The run that was taken over must not continue next to it. So `runs/<its id>/taken-over.json` names the run that has done
it (`claim.takeover`).
"""

from __future__ import annotations

from collections.abc import Callable

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import ObjectMissing, StateAltered
from logkeep_engine.restore.claim.takeover import RunClaim, refuse_taken_over
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.state import ACLS_SENT, ALL_BUT_USERS, ALTERED, COUNTED, HELD_NOTE, PLAN, RestoreState
from logkeep_engine.restore.planning.restored_before import RUN_NOTE, RestoreKey, noted_run
from logkeep_engine.restore.positions.changes import copy_changes


def note_begun(context: RestoreContext) -> None:
    """Note that the run has a plan, before it writes anything to Kafka. Raises RestoreBusy if another one has taken
    it over."""
    refuse_taken_over(context.state)
    context.state.storage.put(begun_key(context).path, RUN_NOTE.dumps({"runId": context.run_id}))


def begun_key(context: RestoreContext) -> RestoreKey:
    """Return the key by which a run is found that another resource has begun."""
    return RestoreKey.of(context.spec, context.archive.info.archive_id, context.cluster_id)


def finished_before(begun: RestoreKey, state: RestoreState) -> RunResult | None:
    """Return the result of the run that would be resumed, if it has succeeded: the last one that has taken over the
    noted one. Raises ArchiveDamaged."""
    known = noted_run(begun.path, state)
    return None if known in (None, state.run_id) else RunClaim.after(state.of_run(str(known)), state).last.success()


def begun_run(context: RestoreContext) -> RestoreState | None:
    """Return the state of another run that was begun with these settings, and whose plan would be taken over. None if
    none was."""
    noted = _noted(context)
    return None if noted is None else RunClaim.after(noted, context.state).planned


def _noted(context: RestoreContext) -> RestoreState | None:
    known = noted_run(begun_key(context).path, context.state)
    return None if known in (None, context.state.run_id) else context.state.of_run(str(known))


def take_over(
    context: RestoreContext, digest: str, refuse_strange: Callable[[RestorePlan, str], None]
) -> RestorePlan | None:
    """Take over the plan of the run that was begun with these settings, and what it has finished; None if none was.
    `digest` is that of the spec of this run. `refuse_strange` raises for a plan, in the object of this name, with which
    this run could not continue. Raises RestoreBusy if that run is still running.
    """
    state, noted = context.state, _noted(context)
    if noted is None:
        return None
    claim = RunClaim.after(noted, state)
    storage, other = state.storage, claim.planned
    try:
        begun = RestorePlan.from_json(storage.read(other.file(PLAN)), other.name(PLAN))
    except ObjectMissing:
        return None
    with context.refusals:
        claim.refuse_alive()
    if begun.run_id != other.run_id:
        raise StateAltered(
            f"{other.name(PLAN)} is the plan of run {begun.run_id}; it was not used",
            hint=ALTERED,
        )
    plan = replace(begun, run_id=state.run_id, spec_digest=digest)
    refuse_strange(plan, other.name(PLAN))
    if context.dry_run:
        return plan
    claim.make()
    # The plan comes last: without it, a later start begins here again.
    old, own = other.maps_folder, state.maps_folder
    storage.delete([info.path for info in storage.list(own)])
    for info in storage.list(old):
        storage.put(own + info.path[len(old) :], storage.read(info.path))
    copy_changes(other, state)
    for note in (COUNTED, ALL_BUT_USERS, ACLS_SENT, HELD_NOTE):
        if storage.list(other.file(note)):
            storage.put(state.file(note), storage.read(other.file(note)))
    storage.put(state.file(PLAN), plan.to_json())
    return plan
