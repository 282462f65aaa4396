"""The names of classes and functions follow docs/glossary.md."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
ALONE = "## Names that no class has alone"


@dataclass(frozen=True)
class Name:
    path: str
    name: str
    is_class: bool


def items(text: str) -> list[str]:
    """The items of the glossary, each in one line."""
    found = re.findall(r"^- \*\*.*?(?=\n- \*\*|\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return [" ".join(item.split()) for item in found]


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
- **piece**: Work.
  Classes: `Piece`.

## Names that no class has alone

`Part`
"""


def test_the_glossary_is_read_whole() -> None:
    assert carriers(TEXT) == {"Gap", "ManifestGap", "Piece"}
    assert never_alone(TEXT) == {"Part"}
    assert len(items(GLOSSARY)) == GLOSSARY.count("\n- **")
    assert len(carriers(GLOSSARY)) > 60
