"""The two things that others start: a restore, and the comparison of what a run has restored.

result = run_of(request, spec, session.runner, reporter, os.environ).perform()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from logkeep_engine.contract.model import replace
from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
from logkeep_engine.contract.run import RunRequest, RunResult
from logkeep_engine.errors import SpecError
from logkeep_engine.report import Reporter, failed
from logkeep_engine.restore.run.restoring import RestoreRun
from logkeep_engine.tasks import Expect, TaskRunner


def run_of(
    request: RunRequest,
    spec: KafkaRestoreSpec,
    runner_factory: Callable[[], TaskRunner],
    reporter: Reporter,
    environ: Mapping[str, str],
    expect: Expect | None = None,
) -> RestoreRun:
    """Return the run that restores as `spec` says. A run id that has succeeded returns its result and writes nothing.

    `expect` gets the amount of work, and `runner_factory` is called when the first tasks are ready. `perform` makes
    every error a result with its exit code, and `perform_or_raise` raises a LogkeepError when the restore cannot be
    done; the same run can then be started again and continues where it stopped. The caller hands the result to the
    reporter.
    """
    if spec.drill is None:
        return RestoreRun(request, spec, runner_factory, reporter, environ, expect)
    from logkeep_engine.restore.run.drill import DrillRun  # few restores are drills

    return DrillRun(request, spec, runner_factory, reporter, environ, expect)


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
            hint="Its report says what was compared. Start another drill.",
        )
    from logkeep_engine.restore.verification.step import wrong_with

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
