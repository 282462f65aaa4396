"""`explain` prints the page about a reason, wherever the program runs."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from logkeep_engine.cli import app
from logkeep_engine.cli.explain import page_url, reasons
from logkeep_engine.cli.kubectl import app as plugin
from logkeep_engine.contract.names import SITE

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("program", [app, plugin], ids=["logkeep", "plugin"])
def test_a_reason_is_explained_by_its_page_without_markup(program: typer.Typer) -> None:
    done = CliRunner().invoke(program, ["explain", "archiveowned"])
    assert done.exit_code == 0
    assert done.stdout.startswith("ArchiveOwned\n\nKafkaBackup")
    for part in ("\nWhy. ", "\nWhat happens next. ", "\nWhat you do. "):
        assert part in done.stdout
    assert f"({SITE}/docs/archive/trust.html#who-writes-an-archive)" in done.stdout
    assert done.stdout.endswith(f"\n{page_url('ArchiveOwned')}\n")
    assert not re.search(r"\*\*|\]\(|```", done.stdout)


@pytest.mark.parametrize("path", sorted((ROOT / "docs/conditions").glob("[A-Z]*[a-z].md")), ids=lambda path: path.stem)
def test_every_page_can_be_read(path: Path) -> None:
    done = CliRunner().invoke(app, ["explain", path.stem])
    assert done.exit_code == 0, done.stderr
    assert not re.search(r"\*\*|\]\(|```|\.md\b", done.stdout)


def test_all_reasons_are_listed_with_what_they_mean() -> None:
    done = CliRunner().invoke(app, ["explain"])
    named = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert named == sorted(path.stem for path in (ROOT / "docs/conditions").glob("*.md") if path.stem != "README")
    assert set(named) == set(reasons())
    listed = json.loads(CliRunner().invoke(app, ["explain", "-o", "json"]).stdout)
    assert {"reason": "Queued", "short": "the run waits for its turn", "url": page_url("Queued")} in listed


def test_a_word_that_is_no_reason_is_refused_with_the_nearest_one() -> None:
    done = CliRunner().invoke(app, ["explain", "NoTopicMatch"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "hint: Did you mean NoTopicMatches?" in done.stderr
    assert "lists all reasons" in CliRunner().invoke(app, ["explain", "xyzzy"]).stderr


def test_the_site_of_the_docs_has_one_address() -> None:
    assert f"site_url: {SITE}/\n" in (ROOT / "mkdocs.yml").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"] == SITE
