"""`--signing-dir`: one option for the keys of an archive, of every command that opens one."""

import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.archive.catalog.archive import Archive
from logkeep_engine.cli import app
from logkeep_engine.contract.names import ENV_SIGNING_DIR
from logkeep_engine.storage import open_uri
from tests.unit.archive.catalog.test_signing import ALICE, a_run

OPENS_NOTHING = {"coverage", "explain", "log recover", "storage check"}


def commands(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        full = f"{name} {word}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


def test_every_command_that_opens_an_archive_has_the_option() -> None:
    lacking = {
        name
        for name, command in commands(typer.main.get_command(app))
        if not any("--signing-dir" in option.opts for option in command.params)
    }
    assert lacking == OPENS_NOTHING


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the public key of ALICE alone."""
    monkeypatch.delenv(ENV_SIGNING_DIR, raising=False)
    folder = tmp_path / "keys"
    folder.mkdir()
    (key,) = ALICE.trusted.values()
    (folder / "publicKeys").write_bytes(base64.b64encode(key.public_bytes_raw()))
    return folder


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_the_keys_are_those_of_the_folder(tmp_path: Path, keys: Path, command: str) -> None:
    storage = open_uri(f"file://{tmp_path}/archive")
    a_run(storage, 0, ALICE)
    reported = CliRunner().invoke(app, [command, storage.uri, "--signing-dir", str(keys)])
    assert reported.exit_code == 0, reported.output
    storage.put("archive.json", Archive.open(storage).storage.read("archive.json"))  # as nobody has signed it
    assert CliRunner().invoke(app, [command, storage.uri]).exit_code == 0
    reported = CliRunner().invoke(app, [command, storage.uri, "--signing-dir", str(keys)])
    assert reported.exit_code == (6 if command == "verify" else 2)
    assert "archive.json: it has no signature" in reported.output
    assert ENV_SIGNING_DIR not in os.environ


def test_the_option_counts_more_than_the_variable(tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_uri(f"file://{tmp_path}/archive")
    a_run(storage, 0, ALICE)
    monkeypatch.setenv(ENV_SIGNING_DIR, str(tmp_path / "missing"))
    assert CliRunner().invoke(app, ["verify", storage.uri]).exit_code == 2
    assert CliRunner().invoke(app, ["verify", storage.uri, "--signing-dir", str(keys)]).exit_code == 0
    assert os.environ[ENV_SIGNING_DIR] == str(tmp_path / "missing")


@pytest.mark.parametrize("given", ["", "missing"])
def test_what_is_no_folder_is_refused(tmp_path: Path, given: str) -> None:
    reported = CliRunner().invoke(app, ["verify", f"file://{tmp_path}", "--signing-dir", given])
    assert reported.exit_code == 2
    assert f"'{given}' is not a folder" in reported.stderr


def test_a_folder_without_a_key_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_SIGNING_DIR, raising=False)
    a_run(open_uri(f"file://{tmp_path}/archive"), 0, ALICE)
    reported = CliRunner().invoke(app, ["inspect", f"file://{tmp_path}/archive", "--signing-dir", str(tmp_path)])
    assert reported.exit_code == 2
    assert f"{tmp_path} has no key" in reported.stderr
    assert "--signing-dir" in reported.stderr
