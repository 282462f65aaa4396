"""A command that a test calls in its own process leaves nothing behind for the tests after it."""

import logging
import signal
from pathlib import Path

from typer.testing import CliRunner

from logkeep_engine.cli import app
from tests.as_it_was import process_as_it_was


def state() -> tuple[object, ...]:
    names = ("", "botocore", "logkeep_engine.spark.runner")
    levels = [logging.getLogger(name).level for name in names]
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), *logging.getLogger().handlers, *levels


def test_a_command_in_this_process_leaves_signals_and_the_log_as_they_were(tmp_path: Path) -> None:
    before = state()
    with process_as_it_was():
        done = CliRunner().invoke(app, ["inspect", tmp_path.as_uri()])
        assert done.exit_code == 2, done.output
        assert state() != before, "the command takes them over"
    assert state() == before
