"""The files and folders that documents name are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = ("", "engine/logkeep_engine", "engine/logkeep_engine/restore", "operator/logkeep_operator")
"""From here paths in backticks begin."""
ARCHIVE = "engine/logkeep_engine/archive"
"""Documents about archives begin their paths here, too."""


def paths(text: str) -> list[str]:
    """The paths in backticks: a path has a slash and no space, or it is a module."""
    return [
        name
        for name in re.findall(r"`([^`\n]+)`", text)
        if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", name) and ("/" in name or name.endswith((".py", ".md", ".toml")))
    ]


def missing(text: str) -> Iterator[str]:
    for name in paths(text):
        places = [ROOT / place / name for place in PLACES]
        if not any(place.is_dir() if name.endswith("/") else place.is_file() for place in places):
            yield name
    for link in re.findall(r"\]\(([^):#]+)\)", text):
        if not (ROOT / link).exists():
            yield link


def test_every_file_that_the_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(set(paths(text))) > 60
    assert list(missing(text)) == []


@pytest.mark.parametrize("text", ["`{}gone.py`", "`{}running/`", "`{}pieces`", "[x]({}gone.md)"])
def test_a_file_that_is_gone_is_found(text: str) -> None:
    assert len(list(missing(f"Here is {text.format('backup/')}."))) == 1


def test_every_module_that_the_docs_name_is_there() -> None:
    named = [
        (page.name, name)
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|rs))`", page.read_text())
    ]
    assert len(named) > 10
    assert [
        (page, name) for page, name in named if not any((ROOT / place / name).is_file() for place in (*PLACES, ARCHIVE))
    ] == []


@pytest.mark.parametrize("root", ["engine/logkeep_engine", "operator/logkeep_operator"])
def test_every_room_is_in_the_architecture(root: str) -> None:
    named = paths((ROOT / "ARCHITECTURE.md").read_text())
    rooms = [path.name for path in (ROOT / root).iterdir() if (path / "__init__.py").is_file()]
    assert "resources" in rooms or "archive" in rooms
    assert [room for room in rooms if not any(re.match(rf"(.*/)?{room}/", name) for name in named)] == []


def test_lines_of_the_architecture_are_short() -> None:
    assert max(map(len, (ROOT / "ARCHITECTURE.md").read_text().splitlines())) <= 120
