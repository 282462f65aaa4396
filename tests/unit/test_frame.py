"""The frame of every run: an error is noted before it is raised, and becomes a result."""

import pytest

from logkeep_engine.contract.names import ExitCode
from logkeep_engine.contract.run import RunResult
from logkeep_engine.errors import BrokerUnavailable
from logkeep_engine.frame import DriverRun

GONE = BrokerUnavailable("Nobody there.", hint="Look.")


class Failing(DriverRun):
    def __init__(self, error: BaseException | None) -> None:
        super().__init__("run-1", "KafkaRestore", 5.0)
        self._error = error
        self.noted: list[tuple[BaseException, str]] = []

    def execute(self) -> None:
        if self._error is not None:
            raise self._error

    def give_up(self, error: BaseException, result: RunResult) -> None:
        self.noted.append((error, result.message))


def test_a_run_that_succeeds() -> None:
    run = Failing(None)
    for result in (run.perform(), run.perform_or_raise()):
        assert (result.run_id, result.kind) == ("run-1", "KafkaRestore")
        assert (result.outcome, result.exit_code) == ("Succeeded", 0)
        assert 5.0 == result.start_time < result.end_time
    assert run.noted == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (GONE, GONE.exit_code, "Nobody there. Look."),
        (KeyError("bug"), ExitCode.FAILED, "KeyError: 'bug'"),
        (
            KeyboardInterrupt(),
            ExitCode.INTERRUPTED,
            "The run was interrupted. Start the same run again and it continues where it stopped.",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_is_noted_once_and_becomes_a_result(error: BaseException, code: ExitCode, message: str) -> None:
    run = Failing(error)
    result = run.perform()
    assert (result.outcome, result.exit_code, result.message) == ("Failed", int(code), message)
    assert run.noted == [(error, message)]
    with pytest.raises(type(error)):
        run.perform_or_raise()
    assert len(run.noted) == 2


def test_what_ends_the_process_is_no_result() -> None:
    run = Failing(SystemExit())
    with pytest.raises(SystemExit):
        run.perform()
    assert run.noted == []
