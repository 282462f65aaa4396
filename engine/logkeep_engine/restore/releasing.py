"""The release of held topics by the operator, in the driver: the run that holds them is started again when
`spec.topics.holdFor` is over.

    result = run_release(request, spec, reporter, os.environ)

It changes what `logkeep release` changes. The stored result of the restore stays as it is, and is that of the release,
too: only what it says of held topics is new.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from logkeep_engine.contract.run import MAX_LIST, HeldTopics, RunRequest, RunResult
from logkeep_engine.contract.spec import KafkaRestoreSpec
from logkeep_engine.frame import DriverRun
from logkeep_engine.report import Reporter
from logkeep_engine.restore.held_topics import ReleasedTopic, ReleaseOutcome, release
from logkeep_engine.restore.opening import open_run

_HAVE_IT = (ReleaseOutcome.RELEASED, ReleaseOutcome.RELEASED_BEFORE)


def run_release(
    request: RunRequest, spec: KafkaRestoreSpec, reporter: Reporter, environ: Mapping[str, str]
) -> RunResult:
    """Release the topics that the run of the request holds. Its result tells how many have their retention now, and
    which have not.

    Never raises for what happens in a run: every error becomes a result with its exit code.
    """
    return _Release(request, spec, reporter, environ).perform()


def released(found: Sequence[ReleasedTopic]) -> HeldTopics:
    """The topics that a run has held, after their release."""
    left = [f"{item.topic}: {item.outcome.value}" for item in found if item.outcome not in _HAVE_IT]
    names = sorted(item.topic for item in found)
    return HeldTopics(
        total=len(found),
        topics=tuple(names[:MAX_LIST]),
        released=len(found) - len(left),
        not_released=tuple(sorted(left)[:MAX_LIST]),
        released_time=time.time(),
    )


class _Release(DriverRun):
    """The release of the topics of one run."""

    def __init__(
        self, request: RunRequest, spec: KafkaRestoreSpec, reporter: Reporter, environ: Mapping[str, str]
    ) -> None:
        super().__init__(request.run_id, request.kind, time.time(), request.requested_by)
        self._spec = spec
        self._anchor = request.anchor
        self._reporter = reporter
        self._environ = environ
        self._done: RunResult | None = None

    def execute(self) -> None:
        self._reporter.phase("Finishing")
        with open_run(self._spec, self._run_id, self._environ, self._anchor) as context:
            found, done = release(context, in_time=True), context.state.success()
        if done is not None:  # else nothing would have been released
            self._done = replace(done, held_topics=released(found))

    def result(self) -> RunResult:
        return self._done or super().result()

    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note nothing: what brokers say of the topics tells what is left to do."""
