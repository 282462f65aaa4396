"""Each reason of a condition has a page in docs/conditions, and each page is of a reason that there is."""

import ast
import re
from pathlib import Path

import pytest

from logkeep_engine import errors
from logkeep_engine.contract.names import BACKUP_RUN, KAFKA_ARCHIVE
from logkeep_engine.report import failed
from logkeep_operator.api import KINDS
from tests.unit.test_report import RESULT

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs/conditions"
INDEX = PAGES / "README.md"
DECISIONS = "operator/logkeep_operator/reconcile"
WORD = re.compile(r"[A-Z][a-z]+(?:[A-Z][a-z]+)*")

# Words of the operator's decisions that are no reasons.
OTHER_WORDS = {
    "types of conditions": {
        *("Coverage", "Ready", "Reconciling", "RetentionRisk"),
        *("ScheduledRun", "StaleKeys", "Stalled", "Verified"),
    },
    "statuses and outcomes": {
        "Complete",
        "Failed",
        "FailureTarget",
        "False",
        "Finishing",
        "Succeeded",
        "True",
        "Unknown",
    },
    "kinds": {"Job", "Pod"},
    "types of events": {"Normal", "Warning"},
    "events": {
        *("ConfigMapRecreated", "DrillFailed", "DriverStuck", "MissSchedule", "Resumed"),
        *("TopicsReleased", "TopicsStayHeld"),
    },
    "of pods": {"DisruptionTarget", "PodScheduled", "Unschedulable"},
    "of containers": {
        "ContainerCreating",
        "CreateContainerConfigError",
        "CreateContainerError",
        "Error",
        "ErrImageNeverPull",
        "ErrImagePull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "PodInitializing",
        "RunContainerError",
    },
    "of reconciliations": {"NotCompared", "Same"},
    "causes of a deadline": {"Deleted", "Size", "Time"},
}

# Errors that end no run of a resource.
OTHER_ERRORS = {
    "CorruptSegment": "readers say which object it is, and raise ArchiveDamaged",
    "CorruptFrame": "readers say which object it is, and raise ArchiveDamaged",
    "ObjectExists": "callers say what it means to them",
    "UndecodableRecord": "of `logkeep log`",
    "FolderRefused": "of `logkeep import`",
    "GroupsHaveMembers": "of `logkeep groups`: a restore leaves such groups alone",
    "ClockDoubtful": "becomes a warning of the run",
}


def words_of(source: str) -> set[str]:
    """The words in capitals that stand alone in a string of the code."""
    found = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return {value for value in found if isinstance(value, str) and WORD.fullmatch(value)}


def words_of_decisions() -> set[str]:
    """The words of all modules that decide. Those of `__init__` are names of classes."""
    modules = [path for path in (ROOT / DECISIONS).glob("*.py") if path.name != "__init__.py"]
    return {word for path in modules for word in words_of(path.read_text())}


def codes_of_errors() -> set[str]:
    """The words with which a driver tells why its run failed."""
    classes = [item for item in vars(errors).values() if isinstance(item, type)]
    codes = {item.code for item in classes if issubclass(item, errors.LogkeepError)}
    return codes | {failed(RESULT, ValueError("any other")).error_code}


def reasons() -> set[str]:
    other = {word for words in OTHER_WORDS.values() for word in words}
    return (words_of_decisions() - other) | (codes_of_errors() - set(OTHER_ERRORS))


def pages() -> list[Path]:
    return sorted(path for path in PAGES.glob("*.md") if path != INDEX)


def test_each_reason_has_a_page_and_each_page_a_reason() -> None:
    found = reasons()
    assert len(found) > 80
    named = {path.stem for path in pages()}
    assert sorted(found - named) == [], "write a page in docs/conditions, or name the word in OTHER_WORDS"
    assert sorted(named - found) == [], "no code gives these reasons"


def test_words_that_are_no_reasons_are_still_there() -> None:
    assert {word for words in OTHER_WORDS.values() for word in words} - words_of_decisions() == set()
    assert set(OTHER_ERRORS) - codes_of_errors() == set()


def test_a_new_reason_is_found_wherever_it_stands() -> None:
    source = 'x = Waiting("OneReason", f"{y} Two")\nz = "ThreeReason" if x else ("FourReason", "five reasons")\n'
    assert words_of(source) == {"OneReason", "ThreeReason", "FourReason"}


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.stem)
def test_a_page_says_what_one_sees_why_and_what_to_do(path: Path) -> None:
    text = path.read_text()
    lines = text.splitlines()
    assert lines[0] == f"# {path.stem}"
    kinds = re.match(r"\*([\w, ]+)\.\* (.)", lines[2])
    assert kinds is not None, "the kinds that have the reason, and the status of their conditions"
    assert set(kinds[1].split(", ")) <= {*KINDS, BACKUP_RUN, KAFKA_ARCHIVE}
    assert re.search(r"`\w+`\s+(is|are)\s+(True|False|Unknown)|as True|is True\.", text) is not None
    parts = [text.find(head) for head in ("\n**Why.** ", "\n**What happens next.** ", "\n**What you do.** ")]
    assert -1 not in parts
    assert parts == sorted(parts)
    assert max(map(len, lines)) <= 120


def test_the_index_has_each_page() -> None:
    named = set(re.findall(r"\]\((\w+)\.md\)", INDEX.read_text()))
    assert named == {path.stem for path in pages()}
    assert max(map(len, INDEX.read_text().splitlines())) <= 120


def test_the_index_tells_the_events_that_are_no_reasons() -> None:
    reported = INDEX.read_text().partition("## Events that are not reasons")[2]
    assert {*OTHER_WORDS["events"], "RetentionRisk"} == set(re.findall(r"^\| `(\w+)` ", reported, re.MULTILINE))
