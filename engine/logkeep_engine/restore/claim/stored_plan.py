"""The plan that a restore has stored: it is read, created once, and refused if it is not this run's."""

from __future__ import annotations

from logkeep_engine.errors import ArchiveMismatch, ObjectExists, ObjectMissing, SpecError, StateAltered
from logkeep_engine.restore.model.context import RestoreContext
from logkeep_engine.restore.model.plan import RestorePlan
from logkeep_engine.restore.model.state import ALTERED, PLAN, RestoreState


def stored_plan(state: RestoreState) -> RestorePlan | None:
    """Return the plan that an earlier start of the run has stored, None if there is none."""
    try:
        return RestorePlan.from_json(state.storage.read(state.file(PLAN)), state.name(PLAN))
    except ObjectMissing:
        return None


def refuse_unknown(state: RestoreState) -> None:
    """Raises SpecError if no run of this restore has begun under the id."""
    if state.success() is None and stored_plan(state) is None:
        raise unknown_run(state)


def unknown_run(state: RestoreState) -> SpecError:
    """Return the error for the id of a run that has not begun."""
    return SpecError(
        f"this restore has no run {state.run_id}: {state.name(PLAN)} is missing",
        hint="Name a run that has started, and its spec.state if it has one.",
    )


def store_plan(context: RestoreContext, plan: RestorePlan) -> None:
    """Store the plan of the run. Raises SpecError if another start of the run has stored another one in the
    meantime."""
    state, data = context.state, plan.to_json()
    path = state.file(PLAN)
    try:
        state.storage.create(path, data)
    except ObjectExists:
        # If the answer to this very call was lost, the object is the same.
        if state.storage.read(path) != data:
            raise SpecError(
                f"run {context.run_id} is being started twice at the same time",
                hint="Wait for the other one, or give this restore its own run id.",
            ) from None


_AS_BEGUN = (
    "Give the command the file that the run was started with, and in it the `ifTopicExists` that the option "
    "--if-topic-exists had set. Fields that do not affect what is restored may differ, such as limits, security and "
    "topics.holdFor."
)


def refuse_other_plan(context: RestoreContext, plan: RestorePlan, digest: str) -> None:
    """Raises SpecError for the plan of a run that was started with another spec, archive or cluster, and StateAltered
    for that of another run. `digest` is that of this run's spec."""
    hint = _AS_BEGUN if context.only_asked else "Give this restore its own run id."
    if plan.archive_id != context.archive.info.archive_id:
        raise SpecError(f"run {context.run_id} was started from archive {plan.archive_id}, not this one", hint=hint)
    if plan.cluster_id != context.cluster_id:
        raise SpecError(
            f"run {context.run_id} was started into Kafka cluster {plan.cluster_id}, not {context.cluster_id}",
            hint=hint,
        )
    if plan.run_id != context.state.run_id:
        raise StateAltered(
            f"{context.state.name(PLAN)} is the plan of run {plan.run_id}; it was not used", hint=ALTERED
        )
    if plan.spec_digest != digest:
        raise SpecError(
            f"run {context.run_id} was started with another spec",
            hint=_AS_BEGUN
            if context.only_asked
            else "Use the spec that it was started with, or give this restore its own run id.",
        )


def overtaken(plan: RestorePlan) -> ArchiveMismatch:
    """Return the error of a restore that an erasure has overtaken."""
    return ArchiveMismatch(
        f"Run {plan.run_id} cannot continue: since it started, an erasure has removed records that it restores, or "
        "that determine its point, from the archive, so it is unknown which records are in the target.",
        hint="Start the restore again under another run id, into topics without what this run has written.",
    )
