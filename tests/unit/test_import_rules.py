"""The import rules in pyproject.toml catch what they are there for: imports are added to the graph, not to the code."""

import ast
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter import Contract
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
KINDS: dict[str, type[Contract]] = {
    "forbidden": ForbiddenContract,
    "layers": LayersContract,
    "protected": ProtectedContract,
}

# A room of the engine, a module in it, and rooms from which it must not import.
ROOMS = {
    "contract.spec": (
        "archive archiving backup cli collector convert errors formats frame interrupt kafka limits log report restore "
        "spark storage tasks toolbox"
    ),
    "log.batch": (
        "archive archiving backup cli convert formats frame interrupt kafka limits report restore spark storage tasks "
        "toolbox"
    ),
    "formats.avro": (
        "archive archiving backup cli convert frame interrupt kafka limits report restore spark storage tasks toolbox"
    ),
    "archive.names": "archiving backup cli convert frame interrupt kafka report restore spark toolbox",
    "storage.local": (
        "archive archiving backup cli convert formats frame interrupt kafka report restore spark tasks toolbox"
    ),
    "kafka.fetch": "archive archiving backup cli convert frame interrupt report restore spark toolbox",
    "frame": "archiving backup cli convert restore spark toolbox",
    "compare.sources": "archiving backup cli compaction convert erasure restore spark toolbox",
    "archiving": "backup cli convert restore spark toolbox",
    "toolbox.dump": "archiving backup cli convert restore spark",
    "backup.model.plan": "cli convert restore spark",
    "restore.model.plan": "backup cli convert spark",
    "convert.plan": "backup cli restore spark",
    "spark.conf": "cli",
}
OTHERS = [
    ("logkeep_engine.archive.catalog.entry", "logkeep_engine.archive.reading.segments"),
    ("logkeep_engine.archive.catalog.entry", "logkeep_engine.archive.catalog.state"),
    ("logkeep_engine.archive.reading.segments", "logkeep_engine.archive.writing.log_writer"),
    ("logkeep_engine.archive.writing.log_writer", "logkeep_engine.archive.reading.segments"),
    ("logkeep_engine.archive.writing.log_writer", "logkeep_engine.archive.maintenance.verify"),
    ("logkeep_engine.archive.names", "logkeep_engine.archive.catalog.entry"),
    ("logkeep_engine.archive.maintenance.segment_check", "logkeep_engine.archive.reading.segments"),
    ("logkeep_engine.restore.sending.task", "logkeep_engine.archive.reading.segments"),
    ("logkeep_engine.restore.planning.check", "logkeep_engine.archive.reading.outcomes"),
    ("logkeep_engine.convert.write", "logkeep_engine.archive.reading.parts"),
    ("logkeep_engine.spark.source_rows", "logkeep_engine.archive.reading.batch_layout"),
    ("logkeep_engine.toolbox.segment", "logkeep_engine.archive.reading.log_reader"),
    ("logkeep_engine.toolbox.segment", "logkeep_engine.archive.reading.layouts"),
    ("logkeep_engine.archive.reading.partition", "logkeep_engine.archive.reading.salvage"),
    ("logkeep_engine.spark.source_plan", "logkeep_engine.archive.catalog.held_snapshots"),
    ("logkeep_engine.restore.model.point", "logkeep_engine.archive.catalog.branches"),
    ("logkeep_engine.backup.model.plan", "logkeep_operator.settings"),
    ("logkeep_engine.backup.model.plan", "kopf"),
    ("logkeep_engine.contract.run", "kubernetes"),
    ("logkeep_engine.contract.run", "yaml"),
    ("logkeep_engine.contract.run", "logkeep_kernel"),
    ("logkeep_engine.backup.model.plan", "logkeep_kernel"),
    ("logkeep_engine.restore.model.plan", "logkeep_kernel"),
    ("logkeep_engine.spark.link", "logkeep_kernel"),
    ("logkeep_operator.controller", "logkeep_kernel"),
    ("logkeep_engine.collector", "pyspark"),
    ("logkeep_engine.restore.sending.task", "pyspark"),
    ("logkeep_operator.controller", "pyspark"),
    ("logkeep_operator.api.status", "logkeep_engine.errors"),
    ("logkeep_operator.api.status", "logkeep_operator.cluster"),
    ("logkeep_operator.cluster", "logkeep_operator.reconcile.step"),
    ("logkeep_operator.reconcile.reconcile", "logkeep_operator.cluster"),
    ("logkeep_operator.reconcile.reconcile", "logkeep_operator.controller"),
    ("logkeep_operator.resources.run", "logkeep_operator.metrics"),
]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    """The imports of the code."""
    return grimp.build_graph("logkeep_operator", "logkeep_engine", include_external_packages=True, cache_dir=None)


def test_the_code_keeps_the_rules(graph: grimp.ImportGraph) -> None:
    assert broken(graph) == []


@pytest.mark.parametrize("module", ROOMS)
def test_no_room_imports_from_the_rooms_above_it(graph: grimp.ImportGraph, module: str) -> None:
    importer = f"logkeep_engine.{module}"
    rooms = [f"logkeep_engine.{room}" for room in ROOMS[module].split()]
    at_once = found_by_layers(graph, importer, rooms)
    for room in rooms:
        assert room in at_once or caught(graph, importer, room), room


@pytest.mark.parametrize(("importer", "imported"), OTHERS)
def test_what_must_not_be_imported_is_caught(graph: grimp.ImportGraph, importer: str, imported: str) -> None:
    assert caught(graph, importer, imported)


@pytest.mark.parametrize("parent", ["logkeep_engine", "logkeep_operator", "logkeep_engine.archive"])
def test_a_room_without_a_place_is_caught(graph: grimp.ImportGraph, parent: str) -> None:
    changed = deepcopy(graph)
    changed.add_module(f"{parent}.newcomer")
    assert broken(changed)


def test_a_new_module_of_reading_lies_after_the_door(graph: grimp.ImportGraph) -> None:
    changed = deepcopy(graph)
    changed.add_module("logkeep_engine.archive.reading.newcomer")
    assert not broken(changed)
    changed.add_import(
        importer="logkeep_engine.restore.sending.task",
        imported="logkeep_engine.archive.reading.newcomer",
        line_number=1,
        line_contents="import newcomer",
    )
    assert broken(changed)


def found_by_layers(graph: grimp.ImportGraph, importer: str, rooms: Sequence[str]) -> set[str]:
    """The rooms of which the rules about layers say by name that the module's room must not import from them, when it
    imports from all of them."""
    room = ".".join(importer.split(".")[:2])
    changed = with_imports(graph, importer, rooms)
    said = [
        rule.check(deepcopy(changed), verbose=False).metadata for rule in rules() if isinstance(rule, LayersContract)
    ]
    return {found["imported"] for data in said for found in data["invalid_dependencies"] if found["importer"] == room}


def caught(graph: grimp.ImportGraph, importer: str, imported: str) -> bool:
    """Whether the rules forbid that module to import the other."""
    changed = with_imports(graph, importer, [imported])
    return any(True for _ in broken_rules(changed))


def with_imports(graph: grimp.ImportGraph, importer: str, modules: Sequence[str]) -> grimp.ImportGraph:
    """The graph in which that module imports these as well."""
    assert importer in graph.modules
    changed = deepcopy(graph)
    for imported in modules:
        if imported not in changed.modules:
            changed.add_module(imported, is_squashed=True)
        changed.add_import(importer=importer, imported=imported, line_number=1, line_contents=f"import {imported}")
    return changed


def broken(graph: grimp.ImportGraph) -> list[str]:
    """Names of the rules that the graph breaks."""
    return list(broken_rules(graph))


def broken_rules(graph: grimp.ImportGraph) -> Iterator[str]:
    """The same, each as it is found: who asks whether there is one need not wait for all."""
    for rule in rules():
        if not rule.check(deepcopy(graph), verbose=False).kept:
            yield rule.name


@cache
def rules() -> Sequence[Contract]:
    configured = read_configuration(str(PYPROJECT))
    return [
        KINDS[options["type"]](options["name"], configured["session_options"], options)
        for options in configured["contracts_options"]
    ]


READERS = ("backup/reconcile", "convert", "restore", "spark", "toolbox")


def test_no_reader_asks_a_state_for_snapshots() -> None:
    """A view chooses them (`archive.history`). A reader that did it for itself hid the records of a branch."""
    engine = PYPROJECT.parent / "engine" / "logkeep_engine"
    paths = [path for reader in READERS for path in sorted((engine / reader).rglob("*.py"))]
    assert len(paths) > 100
    assert [path.name for path in paths if asks_for(path.read_text(), "snapshots")] == []
    assert asks_for("state.snapshots[key]", "snapshots")


def asks_for(text: str, name: str) -> bool:
    """Whether some code asks an object for this attribute."""
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(ast.parse(text)))
