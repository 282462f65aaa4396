"""The frame of every run: its work ends in a result, and so does every error.

    result = run.perform()      # `run` is a `DriverRun`

`archiving` adds what all runs that write an archive share. `restore.run.restoring` is a run that writes none.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from logkeep_engine.contract.clear_text import clear_text_warnings
from logkeep_engine.contract.model import replace
from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import LogkeepError
from logkeep_engine.report import bounded_warnings, failed

if TYPE_CHECKING:
    from logkeep_engine.contract.restore_spec import KafkaRestoreSpec
    from logkeep_engine.contract.spec import KafkaBackupSpec

log = logging.getLogger(__name__)


def with_clear_text_warnings(result: RunResult, spec: KafkaBackupSpec | KafkaRestoreSpec) -> RunResult:
    """Return the result of a run, with warnings for secrets that its spec sends across the network in the clear."""
    found = clear_text_warnings(spec)
    return replace(result, warnings=bounded_warnings((*found, *result.warnings))) if found else result


class DriverRun(ABC):
    """One run, with what is known of it so far."""

    def __init__(self, run_id: str, kind: str, start_time: float, requested_by: str | None = None) -> None:
        self._run_id = run_id
        self._kind = kind
        self._start_time = start_time
        self._requested_by = requested_by

    def perform(self) -> RunResult:
        """Do the run, and return its result.

        Never raises for what happens in a run: every error becomes a result with its exit code.
        """
        try:
            return self.perform_or_raise()
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, Exception) and not isinstance(error, LogkeepError):
                log.exception("unexpected error")
            return replace(failed(self.result(), error), end_time=time.time())

    def perform_or_raise(self) -> RunResult:
        """Do the run, and return the result of its success. The run notes an error before this method raises it."""
        try:
            self.execute()
            result = replace(self.result(), outcome="Succeeded", exit_code=int(ExitCode.OK))
        except (Exception, KeyboardInterrupt) as error:
            self.give_up(error, failed(self.result(), error))
            raise
        return result

    @abstractmethod
    def execute(self) -> None:
        """Do the work of the run."""

    def result(self) -> RunResult:
        """Return the facts so far; outcome and exit code are those of a failed run."""
        return RunResult(
            run_id=self._run_id,
            kind=self._kind,
            outcome="Failed",
            exit_code=int(ExitCode.FAILED),
            start_time=self._start_time,
            end_time=time.time(),
            requested_by=self._requested_by,
        )

    @abstractmethod
    def give_up(self, error: BaseException, result: RunResult) -> None:
        """Note that the run has failed with `error`; `result` is the result of the failure."""
