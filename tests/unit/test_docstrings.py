"""Docstrings and documents name things that are there, and are written as CONTRIBUTING.md says."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docstring_examples import Example, docstrings_in, docstrings_of, examples, faults

ROOT = Path(__file__).parents[2]
SOURCES = ("engine/", "operator/", "")
"""Modules are named from here on."""

IN_AN_ARCHIVE = {"catalog/", "digests/", "packs/", "runs/", "topics/"}
MADE = {"bench/results/", "test-logs/", "run/"}  # when tests and benchmarks run; git does not keep them
OTHERS = {"group-coordinator/", "logkeep.dev/"}  # a folder of Kafka's sources, and a prefix of labels


def files(pattern: str) -> list[str]:
    listed = subprocess.run(["git", "ls-files", pattern], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def module_of(path: str) -> str:
    prefix = next(prefix for prefix in SOURCES if path.startswith(prefix))
    return path.removeprefix(prefix).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.mark.parametrize("folder", ["bench", "engine", "operator", "tests"])
def test_what_examples_use_is_there(folder: str) -> None:
    found = [item for path in files(f"{folder}/*.py") for item in examples(ROOT / path, module_of(path))]
    assert any(item.is_code for item in found)
    assert [(item.module, fault) for item in found for fault in faults(item)] == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("archive = Archive.open(storage)\nstate = archive.laod()", "archive.laod: Archive has none"),
        ("archive = Archive.open()", "Archive.open(): missing a required argument: 'storage'"),
        ("archive = Archive.open(storage, waiting=3)", "got an unexpected keyword argument 'waiting'"),
        ("archive = open_archive(storage)", "no open_archive"),
        ("print(RunOutcome.SUCEEDED)", "RunOutcome.SUCEEDED: RunOutcome has none"),
        ("print(RunOutcomes.SUCCEEDED)", "no RunOutcomes"),
        ("for entry in in state: ...", "no Python"),
        ("logkeep inspect s3://bucket\nlogkeep inspekt s3://bucket", "no command inspekt"),
        ("logkeep log index chekc FOLDER", "no command chekc"),
        ("python -m tests.nears archive", "no module tests.nears"),
    ],
)
def test_a_wrong_example_is_found(text: str, fault: str) -> None:
    (found,) = faults(Example("logkeep_engine.archive.catalog.archive", text))
    assert fault in found


def test_examples_are_found_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    inner = 'def f():\n    """Two.\n\n        c = 3\n\n    More.\n    """\n'
    path.write_text('"""One.\n\n    a = 1\n\n    b = 2\n\nMore.\n"""\n\n' + inner)
    assert [item.text.strip() for item in examples(path, "module")] == ["a = 1", "b = 2", "c = 3"]


def folders(path: str) -> Iterator[str]:
    """Folders that a file names in backticks."""
    for name in re.findall(r"`([\w.-]+(?:/[\w.-]+)*/)`", (ROOT / path).read_text()):
        if name not in IN_AN_ARCHIVE | MADE | OTHERS:
            yield name


def test_folders_that_are_named_are_there() -> None:
    named = [(path, name) for path in [*files("*.md"), *files("*.py")] for name in folders(path)]
    assert len(named) > 20
    roots = (ROOT, ROOT / "engine/logkeep_engine", ROOT / "operator/logkeep_operator")
    gone = [item for item in named if not any((at / item[1]).is_dir() for at in (*roots, (ROOT / item[0]).parent))]
    assert gone == []


@pytest.mark.parametrize("folder", ["bench", "engine", "operator", "tests"])
def test_docstrings_are_text(folder: str) -> None:
    """Python 3.13 compiles no module whose docstring has half of a character."""
    for path in files(f"{folder}/*.py"):
        for _, said in docstrings_of(ROOT / path).all:
            assert said.encode(), path


def begins_without_a_subject(said: str) -> bool:
    return re.match(r"\s*(?:Of|As|What)\b", said) is not None


def test_docstrings_begin_with_a_subject_or_a_verb() -> None:
    found = [(path, *item) for path in files("*.py") for item in docstrings_of(ROOT / path).all]
    assert len(found) > 500
    assert [(path, line) for path, line, said in found if begins_without_a_subject(said)] == []


def test_docstrings_without_a_subject_are_found() -> None:
    text = '"""What it is."""\nA = 1\n"""Of a thing."""\ndef f():\n    """\n    As others.\n    """\n    "Office."\n'
    assert [line for line, said in docstrings_in(text).all if begins_without_a_subject(said)] == [1, 3, 5]


def is_too_long(line: str) -> bool:
    """Tables cannot be folded, nor can an address."""
    text = line.strip()
    return len(line) > 120 and not text.startswith("|") and " " in text


def test_lines_of_documents_are_short() -> None:
    lines = [
        (path, at, line) for path in files("*.md") for at, line in enumerate((ROOT / path).read_text().splitlines(), 1)
    ]
    assert len(lines) > 1000
    assert [(path, at) for path, at, line in lines if is_too_long(line)] == []


def test_long_lines_are_found() -> None:
    assert is_too_long("word " * 30)
    assert not is_too_long("| cell " * 30)
    assert not is_too_long("https://" + "a" * 200)
