"""Compares once more what a run has restored, for `logkeep diff`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaRestoreSpec
from logkeep_engine.errors import SpecError
from logkeep_engine.report import Reporter, failed
from logkeep_engine.restore.run import RestoreRun
from logkeep_engine.restore.verification.step import wrong_with
from logkeep_engine.tasks import TaskRunner


def verify_again(
    request: RunRequest,
    spec: KafkaRestoreSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: Mapping[str, str],
) -> RunResult:
    """Verify what the run `request.run_id` of this restore has restored. The outcome of the result is the verdict, and
    its exit code is 0 only if everything is verified. Restores nothing.

    Raises SpecError if there is no such run, or it has not succeeded, and what the parts raise.
    """
    if spec.drill is not None:
        raise SpecError(
            "spec.drill: a drill deletes its topics, so they cannot be compared again",
            hint="Its report says what was compared. Begin another drill.",
        )
    began = time.time()
    done = RestoreRun(request, spec, runner_factory, reporter, environ, only_verify=True).perform_or_raise()
    found = done.verification
    assert found is not None
    compared = replace(
        done,
        outcome=found.outcome,
        message=found.message,
        warnings=(),
        start_time=began,
        end_time=time.time(),
        requested_by=request.requested_by,
    )
    error = wrong_with(found)
    return compared if error is None else replace(failed(compared, error), outcome=found.outcome)
