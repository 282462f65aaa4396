"""Errors about files of resources name the file and the line."""

from dataclasses import astuple
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.contract.names import OWN_KEYS, STATE_KEYS, Keys


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: [", "column 1: while parsing a flow node did not find expected node content"),
        ("a: 1\nb: c: d\n", "line 2, column 5: mapping values are not allowed in this context"),
        ("a: 1\na: 2\n", "line 2, column 1: key 'a' appears twice"),
        ("a: \x07\n", "unacceptable character #x0007: control characters are not allowed at position 3"),
    ],
    ids=["cut short", "two colons", "twice", "control character"],
)
def test_what_is_no_yaml_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "backup.yaml"
    file.write_text(text)
    for given, name in ((str(file), str(file)), ("-", "standard input")):
        done = CliRunner().invoke(app, ["backup", "-f", given], input=text)
        assert done.exit_code == 2
        assert f"error: {name}: not YAML: " in done.stderr
        assert said in done.stderr
        assert "unicode string" not in done.stderr


@pytest.mark.parametrize("keys", [OWN_KEYS, STATE_KEYS], ids=["storage", "state"])
def test_every_variable_with_a_key_of_a_store_is_documented(keys: Keys) -> None:
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    variables = {name for name in astuple(keys) if name.isupper()}
    assert len(variables) == 7
    assert {name for name in variables if f"`{name}`" not in page} == set()
