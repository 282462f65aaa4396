"""Shell scripts have no faults that shellcheck finds."""

from pathlib import Path

import pytest

from tests.cluster import system

ROOT = Path(__file__).parents[2]


def scripts() -> list[str]:
    return system.run(["git", "ls-files", "*.sh", ".ci/run"], cwd=ROOT).stdout.split()


def test_there_are_scripts() -> None:
    assert {"tests/cluster/bootstrap.sh", "examples/quickstart/quickstart.sh", "docker/entrypoint.sh"} <= set(scripts())


@pytest.mark.parametrize("script", scripts())
def test_shellcheck_finds_nothing(script: str) -> None:
    system.run(["shellcheck", "--external-sources", script], cwd=ROOT)
