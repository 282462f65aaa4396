"""The names of classes and functions follow docs/glossary.md."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
ALONE = "## Names that no class has alone"


@dataclass(frozen=True)
class Name:
    path: str
    name: str
    is_class: bool


@dataclass(frozen=True)
class Ban:
    """A word that names may not use, but for the names and folders in `allowed`."""

    word: str
    allowed: tuple[str, ...] = ()

    def forbids(self, item: Name) -> bool:
        if self.word[0].isupper() and not item.is_class:
            return False
        used = self.word.lower() in words_of(item.name)
        return used and not any(_allows(exception, item) for exception in self.allowed)


def _allows(exception: str, item: Name) -> bool:
    return f"/{exception}" in f"/{item.path}" if exception.endswith("/") else exception == item.name


@cache
def words_of(name: str) -> list[str]:
    """The words of a name in CamelCase or snake_case, in small letters."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().strip("_").split("_")


def items(text: str) -> list[str]:
    """The items of the glossary, each in one line."""
    found = re.findall(r"^- \*\*.*?(?=\n- \*\*|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return [" ".join(item.split()) for item in found]


def bans(text: str) -> list[Ban]:
    found = []
    for item in items(text):
        for sentence in re.findall(r"Never: (.*?)\.(?: |$)", item):
            for word, exceptions in re.findall(r"`(\w+)`(?: \(but ([^)]*)\))?", sentence):
                found.append(Ban(word, tuple(re.findall(r"`([^`]+)`", exceptions))))
    return found


def carriers(text: str) -> set[str]:
    """The classes that the glossary names."""
    sentences = [sentence for item in items(text) for sentence in re.findall(r"Classes: (.*?)\.(?: |$)", item)]
    return {name for sentence in sentences for name in re.findall(r"`(\w+)`", sentence)}


def never_alone(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text.partition(ALONE)[2]))


def names_in(path: str, text: str) -> Iterator[Name]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield Name(path, node.name, isinstance(node, ast.ClassDef))


@cache
def all_names() -> list[Name]:
    found: list[Name] = []
    for folder in (ROOT / "engine/logkeep_engine", ROOT / "operator/logkeep_operator"):
        for file in sorted(folder.rglob("*.py")):
            path = str(file.relative_to(folder.parent))
            found += names_in(path, file.read_text())
    return found


def test_no_name_uses_a_word_that_the_glossary_forbids() -> None:
    forbidden = bans(GLOSSARY)
    assert len(forbidden) > 15
    found = [f"{item.path}: {item.name} ({ban.word})" for item in all_names() for ban in forbidden if ban.forbids(item)]
    assert found == []


def test_no_class_has_a_name_that_says_nothing_alone() -> None:
    alone = never_alone(GLOSSARY)
    assert len(alone) > 15
    assert [f"{item.path}: {item.name}" for item in all_names() if item.is_class and item.name in alone] == []


def test_no_two_classes_have_one_name() -> None:
    where = defaultdict(list)
    for item in all_names():
        if item.is_class and not item.name.startswith("_"):
            where[item.name].append(item.path)
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}


def test_the_classes_that_the_glossary_names_are_there() -> None:
    assert carriers(GLOSSARY) - {item.name for item in all_names() if item.is_class} == set()


TEXT = """
- **gap**: A range of offsets.
  Classes: `Gap`, `ManifestGap`.
  Never: `Hole` (but `HoleInOne`), `flaw`.
- **piece**: Work.
  Classes: `Piece`.
  Never: `piece` (but `backup/`).

## Names that no class has alone

`Part`
"""


@pytest.mark.parametrize(
    ("name", "path", "is_class", "used"),
    [
        ("LogHole", "archive/a.py", True, ["Hole"]),
        ("_Hole", "archive/a.py", True, ["Hole"]),
        ("pass_hole", "archive/a.py", False, []),
        ("HoleInOne", "archive/a.py", True, []),
        ("Whole", "archive/a.py", True, []),
        ("find_flaw", "archive/a.py", False, ["flaw"]),
        ("FirstFlaw", "archive/a.py", True, ["flaw"]),
        ("PieceWriter", "archive/a.py", True, ["piece"]),
        ("PieceWriter", "logkeep_engine/backup/a.py", True, []),
    ],
)
def test_forbidden_words_are_found(name: str, path: str, is_class: bool, used: list[str]) -> None:
    assert [ban.word for ban in bans(TEXT) if ban.forbids(Name(path, name, is_class))] == used


def test_the_glossary_is_read_whole() -> None:
    assert carriers(TEXT) == {"Gap", "ManifestGap", "Piece"}
    assert never_alone(TEXT) == {"Part"}
    assert len(items(GLOSSARY)) == GLOSSARY.count("\n- **")
    assert len(carriers(GLOSSARY)) > 60
