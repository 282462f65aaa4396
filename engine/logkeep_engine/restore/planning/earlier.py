"""This module finds what an earlier run, or an earlier start of the same run, has done of this restore.

earlier = borne_out(context, claimed)       # `claimed` is its result, as it is stored
context, planned = of_earlier(context, earlier)
"""

from __future__ import annotations

import time

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import BrokerRefused
from logkeep_engine.report import bounded_warnings
from logkeep_engine.restore.model.context import Planned, RestoreContext
from logkeep_engine.restore.model.state import counted_ids
from logkeep_engine.restore.planning import restored_before
from logkeep_engine.restore.planning.planner import RestorePlanner
from logkeep_engine.restore.topics.held_topics import describe_held, held_now


def borne_out(context: RestoreContext, claimed: RunResult) -> RunResult:
    """Return the result of a run that says it has done this restore, if spec, archive and brokers bear it out, with the
    topics that it holds now.

    Raises StateAltered and TargetChanged if they do not. ACLs of a restore of everything may have taken this right
    from the user who restores: then a warning says so.
    """
    run_id = claimed.earlier_run or claimed.run_id
    found = run_id != context.run_id
    context = replace(context, run_id=run_id, state=context.state.of_run(run_id))
    planned = RestorePlanner(context).load_claimed(found=found)
    try:
        restored_before.check_still_there(claimed, planned, counted_ids(context.state), context.control)
        if claimed.held_topics is not None:
            claimed = replace(claimed, held_topics=held_now(context, planned.plan))
    except BrokerRefused as error:
        if not context.spec.everything:
            raise
        text = f"it is no longer known whether the cluster has what run {run_id} has restored: {error.message}"
        return replace(claimed, warnings=bounded_warnings([text, *claimed.warnings]))
    return claimed


def of_earlier(context: RestoreContext, earlier: RunResult) -> tuple[RestoreContext, Planned]:
    """Return the context and the plan of the run that has done this restore."""
    run_id = earlier.earlier_run or earlier.run_id
    context = replace(context, run_id=run_id, state=context.state.of_run(run_id))
    return context, RestorePlanner(context).load_finished(found=earlier.earlier_run is not None)


def of_now(found: RunResult, run_id: str, start_time: float, spec: KafkaRestoreSpec, text: str) -> RunResult:
    """Return the result of a start of `run_id` that restores nothing, since `found` is the result of the same restore.
    Its message is `text`, and which topics are held now."""
    return replace(
        found,
        run_id=run_id,
        start_time=start_time,
        end_time=time.time(),
        message="; ".join(filter(None, (text, describe_held(found.held_topics, spec.topics.hold_for)))),
        earlier_run=found.earlier_run or found.run_id,
        earlier_end=found.end_time if found.earlier_end is None else found.earlier_end,
    )
