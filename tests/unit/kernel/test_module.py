"""The kernel's tests in Rust pass, and its module has what its stubs promise to the types of Python."""

import ast
import inspect
import re

import logkeep_kernel
import pytest

from tests.cluster import kernel
from tests.examples import number

STUBS = ast.parse((kernel.FOLDER / "stubs" / "logkeep_kernel.pyi").read_text())
FUNCTIONS = [node for node in STUBS.body if isinstance(node, ast.FunctionDef)]
CLASSES = [node for node in STUBS.body if isinstance(node, ast.ClassDef)]
CONSTANTS = {
    ast.unparse(node.target): ast.unparse(node.annotation) for node in STUBS.body if isinstance(node, ast.AnnAssign)
}


@pytest.mark.deep
def test_the_tests_in_rust_pass() -> None:
    """They make other random examples each time, so the deep profile does not take an earlier result for it."""
    printed = kernel.run_tests(again=bool(number(0, deep=1)))
    assert sum(map(int, re.findall(r"^test result: ok\. (\d+) passed", printed, re.MULTILINE))) > 0


def test_what_the_stubs_describe_is_what_the_module_has() -> None:
    described = {node.name for node in FUNCTIONS} | {node.name for node in CLASSES} | set(CONSTANTS)
    assert described == public(logkeep_kernel)


def test_a_constant_has_the_type_that_its_stub_says() -> None:
    for name, said in CONSTANTS.items():
        assert type(getattr(logkeep_kernel, name)).__name__ == said, name


@pytest.mark.parametrize("described", FUNCTIONS, ids=lambda node: node.name)
def test_a_function_takes_what_its_stub_says(described: ast.FunctionDef) -> None:
    assert taken(getattr(logkeep_kernel, described.name)) == promised(described)


@pytest.mark.parametrize("described", CLASSES, ids=lambda node: node.name)
def test_a_class_has_what_its_stub_says(described: ast.ClassDef) -> None:
    members = {node.name: node for node in described.body if isinstance(node, ast.FunctionDef)}
    carrier = getattr(logkeep_kernel, described.name)
    assert {name for name in members if not name.startswith("_")} == public(carrier)
    for name in public(carrier):
        if callable(member := getattr(carrier, name)):
            assert taken(member) == promised(members[name]), name


@pytest.mark.parametrize("described", [*FUNCTIONS, *CLASSES], ids=lambda node: node.name)
def test_the_stubs_say_what_each_name_does(described: ast.FunctionDef | ast.ClassDef) -> None:
    members = described.body if isinstance(described, ast.ClassDef) else []
    for node in (described, *members):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("__"):
            said = ast.get_docstring(node)
            assert said, node.name
            assert said.split()[0] not in {"Of", "As", "What"}, node.name


def public(carrier: object) -> set[str]:
    """The names in a module or a class that do not begin with an underscore."""
    return {name for name in dir(carrier) if not name.startswith("_")}


def taken(function: object) -> list[str]:
    """The parameters that a compiled function takes; those that go by name only begin with a star."""
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return [f"*{each.name}" if each.kind is each.KEYWORD_ONLY else each.name for each in parameters]


def promised(described: ast.FunctionDef) -> list[str]:
    """The parameters in a stub, written as in `taken`."""
    arguments = described.args
    both = [each.arg for each in (*arguments.posonlyargs, *arguments.args) if each.arg != "cls"]
    return [*both, *(f"*{each.arg}" for each in arguments.kwonlyargs)]
