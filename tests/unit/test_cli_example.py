"""The examples that `backup` and `restore` print are valid, as they are and with all that is commented out."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.checks import check_spec
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import API_VERSION, parse_backup


@pytest.mark.parametrize(
    ("command", "kind", "parse"),
    [("backup", "KafkaBackup", parse_backup), ("restore", "KafkaRestore", parse_restore)],
)
def test_an_example_is_valid_as_it_is_and_with_what_is_commented_out(
    command: str, kind: str, parse: Callable[..., Any]
) -> None:
    done = CliRunner().invoke(app, [command, "--example"])
    assert (done.exit_code, done.stderr) == (0, "")
    options = re.compile(r"^( +)# (\w+: \S.*)$", re.MULTILINE)
    assert len(options.findall(done.stdout)) >= 6
    assert max(map(len, done.stdout.splitlines())) <= 120
    for text in (done.stdout, options.sub(r"\1\2", done.stdout)):
        found = yaml.safe_load(text)
        assert (found["apiVersion"], found["kind"]) == (API_VERSION, kind)
        check_spec(parse(found["spec"]))


def test_a_command_without_its_file_still_asks_for_it() -> None:
    done = CliRunner().invoke(app, ["backup"])
    assert done.exit_code == 2
    assert "--file" in done.stderr
