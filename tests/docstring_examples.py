"""The examples in docstrings: indented blocks of code and of command lines, and what of them is not there.

An example is not run: it would need a cluster. Looked up is every name that it calls, with the number and the names of
its arguments, and every attribute of what it makes. Command lines must name commands and modules that are there.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_BLOCK = re.compile(r"(?:^|(?<=\n\n))((?:    .*(?:\n|$))+)")
_CODE = re.compile(r"^(?:with|async with|for|while|if|[a-z_., ]+ = |(?:await )?[a-z_.]+\()", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A block of the docstring of a module."""

    module: str
    text: str

    @property
    def is_code(self) -> bool:
        """It is Python, rather than a file format, a diagram or command lines."""
        return _CODE.search(self.text) is not None


def examples(path: Path, module: str) -> Iterator[Example]:
    """The examples in all docstrings of a file."""
    for said in docstrings_of(path).described:
        for block in _BLOCK.findall(said):
            yield Example(module, textwrap.dedent(block))


@dataclass(frozen=True)
class Docstrings:
    """The docstrings of a file. `described` are those of modules, classes and functions, without their indentation;
    `all` are the line and the text of each, also of those of constants and fields."""

    described: Sequence[str]
    all: Sequence[tuple[int, str]]


@cache  # parsing all files takes seconds, and several tests ask
def docstrings_of(path: Path) -> Docstrings:
    """The docstrings of a file."""
    return docstrings_in(path.read_text())


def docstrings_in(text: str) -> Docstrings:
    """The docstrings of a module's text."""
    described, every = [], []
    for node in _statements(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            described.append(ast.get_docstring(node) or "")
        for statement in getattr(node, "body", ()):
            match statement:
                case ast.Expr(ast.Constant(str(said))):
                    every.append((statement.lineno, said))
    return Docstrings(described, every)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The module and all statements in it. The expressions in them are ten times as many, and have no docstrings."""
    left = deque([tree])
    while left:
        node = left.popleft()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            left.extend(getattr(node, name, ()))


def faults(example: Example) -> list[str]:
    """The names that the example uses and that are not there."""
    if not example.is_code:
        return list(_wrong_commands(example.text))
    try:
        tree = ast.parse("async def example():\n" + textwrap.indent(example.text, "    "))
    except SyntaxError as error:
        return [f"no Python: {error}"]
    return _Reader(importlib.import_module(example.module)).read(tree)


def _wrong_commands(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if found := re.match(r"python -m ([\w.]+)", line):
            if importlib.util.find_spec(found[1]) is None:
                yield f"no module {found[1]}"
        elif found := re.match(r"logkeep((?: [a-z]+)+)", line):
            yield from _no_command(found[1].split())


def _no_command(words: list[str]) -> Iterator[str]:
    import typer.main

    from logkeep_engine.cli import app

    commands: Mapping[str, Any] = {"logkeep": typer.main.get_command(app)}
    commands = commands["logkeep"].commands
    for word in words:
        if word not in commands:
            yield f"no command {word}"
            return
        found = getattr(commands[word], "commands", None)
        if found is None:
            return
        commands = found


class _Reader(ast.NodeVisitor):
    """Follows one example: `_types` are the classes of the names that it has given."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._types: dict[str, Any] = {}
        self._given: set[str] = set()
        self._faults: list[str] = []

    def read(self, tree: ast.AST) -> list[str]:
        self._given = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and _is_given(node)}
        self.visit(tree)
        return self._faults

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        if isinstance(node.targets[0], ast.Name):
            self._types[node.targets[0].id] = self._type_of(node.value)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.generic_visit(node)
        if isinstance(node.optional_vars, ast.Name):
            self._types[node.optional_vars.id] = self._type_of(node.context_expr)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        called = self._called(node.func)
        if called is None:
            return
        try:
            arguments: list[None] = [None] * len(node.args)
            named = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            if not any(isinstance(item, ast.Starred) or _is_dots(item) for item in node.args):
                inspect.signature(called).bind(*arguments, **named)
        except TypeError as error:
            self._faults.append(f"{ast.unparse(node)}: {error}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        names_a_class = isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
        kind = self._called(node.value) if names_a_class else self._type_of(node.value)
        if isinstance(kind, type) and not _has(kind, node.attr):
            self._faults.append(f"{ast.unparse(node)}: {kind.__name__} has none")

    def _called(self, node: ast.expr) -> Any:
        """The function or class that is called; None if it cannot be known."""
        if isinstance(node, ast.Name):
            if node.id in self._given or hasattr(builtins, node.id):
                return None
            found = self._find(node.id)
            if found is None:
                self._faults.append(f"no {node.id}")
            return found
        if isinstance(node, ast.Attribute):
            owner = self._find(node.value.id) if isinstance(node.value, ast.Name) else None
            if owner is not None:
                return getattr(owner, node.attr, None)
            kind = self._type_of(node.value)
            found = getattr(kind, node.attr, None) if isinstance(kind, type) else None
            return _without_self(found)
        return None

    def _find(self, name: str) -> Any:
        """Find the name in the module, or anywhere in its package: an example takes what its neighbours have."""
        if name in self._given:
            return None
        if hasattr(self._module, name):
            return getattr(self._module, name)
        own = self._module.__name__
        found = [
            module for root in dict.fromkeys((own.split(".")[0], *_ROOTS)) for module in _defined(root).get(name, ())
        ]
        nearest = max(found, key=lambda module: _shared(own, module), default=None)
        return getattr(importlib.import_module(nearest), name) if nearest is not None else None

    def _type_of(self, node: ast.expr) -> Any:
        """The class of what an expression gives; None if it cannot be known."""
        if isinstance(node, ast.Await):
            return self._type_of(node.value)
        if isinstance(node, ast.Name):
            return self._types.get(node.id)
        if not isinstance(node, ast.Call):
            return None
        called = self._called_quietly(node.func)
        if isinstance(called, type):
            return called
        said = getattr(called, "__annotations__", {}).get("return")
        if said == "Self":
            return getattr(called, "__self__", None)
        found = getattr(sys.modules[called.__module__], said, None) if isinstance(said, str) else said
        return found if isinstance(found, type) else None

    def _called_quietly(self, node: ast.expr) -> Any:
        known = len(self._faults)
        found = self._called(node)
        del self._faults[known:]
        return found


_ROOTS = ("logkeep_engine", "logkeep_operator", "tests")


@cache
def _defined(package: str) -> Mapping[str, Sequence[str]]:
    """The modules of a package that have a function or class of each name."""
    spec = importlib.util.find_spec(package)
    (root, *_) = (spec.submodule_search_locations if spec is not None else None) or [""]
    found: dict[str, list[str]] = {}
    for path in sorted(Path(root).rglob("*.py")):
        module = ".".join([package, *path.relative_to(root).with_suffix("").parts])
        for name in re.findall(r"^(?:class|def|async def) (\w+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, []).append(module)
    return found


def _shared(one: str, other: str) -> int:
    """How many folders two modules have in common."""
    return sum(1 for mine, theirs in zip(one.split("."), other.split("."), strict=False) if mine == theirs)


def _is_given(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _is_dots(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _has(kind: type, name: str) -> bool:
    if hasattr(kind, name):
        return True
    if is_dataclass(kind) and any(item.name == name for item in fields(kind)):
        return True
    if any(name in getattr(base, "__annotations__", {}) for base in kind.__mro__):
        return True
    return any(re.search(rf"self\.{name}\b", inspect.getsource(base)) for base in kind.__mro__ if _is_ours(base))


def _is_ours(kind: type) -> bool:
    return kind.__module__.startswith(("logkeep_", "tests."))


def _without_self(function: Any) -> Any:
    """The method as it is called on an object."""
    if not inspect.isfunction(function):
        return None

    def called(*arguments: Any, **named: Any) -> None: ...

    parameters = list(inspect.signature(function).parameters.values())[1:]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called
