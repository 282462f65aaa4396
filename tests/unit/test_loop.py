"""The loop of a contributor: targets of the Makefile and hooks before a commit."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
HOOKS: list[dict[str, Any]] = [
    hook | {"repo": repo["repo"]}
    for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]
]
TARGETS = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_help_tells_every_target() -> None:
    assert TARGETS is not None
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    reported = re.findall(r"^  make (\S+) +\S", printed, re.MULTILINE)
    assert sorted(reported) == sorted(TARGETS[1].replace("\\\n", " ").split())


def test_the_guide_names_targets_that_are_there() -> None:
    assert TARGETS is not None
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`make ([a-z0-9-]+)", guide)) | set(re.findall(r"^make ([a-z0-9-]+)", guide, re.MULTILINE))
    assert {"check", "test-near", "test"} <= named
    assert named <= set(TARGETS[1].replace("\\\n", " ").split())


def test_the_guide_names_files_that_are_there() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:tests|engine|operator|kernel|docs|bench|charts|crds|docker)/[\w./-]*)`", guide)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("hook", HOOKS, ids=[hook["id"] for hook in HOOKS])
def test_hooks_download_nothing(hook: dict[str, Any]) -> None:
    assert (hook["repo"], hook["language"]) == ("local", "system")
    script = ROOT / hook["entry"].split()[0]
    assert os.access(script, os.X_OK)


def test_hooks_call_the_locked_tools() -> None:
    locked = re.findall(r"^ruff==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    printed = subprocess.run(
        [ROOT / "tests" / "cluster" / "tool.sh", "ruff", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert [printed.strip()] == [f"ruff {version}" for version in locked]
    tools = {tuple(hook["entry"].split()[:2]) for hook in HOOKS}
    locked_tools = {("tests/cluster/tool.sh", tool) for tool in ("ruff", "mypy", "lint-imports")}
    assert tools == {*locked_tools, ("tests/cluster/rust.sh", "cargo")}


def test_every_clone_uses_the_same_cache_of_mypy() -> None:
    tool = ROOT / "tests" / "cluster" / "tool.sh"
    printed = subprocess.run(
        [tool, "bash", "-c", 'echo "$MYPY_CACHE_DIR"; command -v mypy'], capture_output=True, text=True, check=True
    ).stdout
    cache, program = printed.split()
    environment = Path(program).parents[1]
    assert Path(cache) == environment / "mypy"
    assert ROOT not in environment.parents


def test_targets_keep_bytecode_where_the_machine_asks_for_none() -> None:
    rule = "shown: ; @printenv PYTHONDONTWRITEBYTECODE || echo unset"
    asked = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["make", "--silent", "--no-print-directory", "--eval", rule, "shown"]
    printed = subprocess.run(command, cwd=ROOT, env=asked, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["unset"]
